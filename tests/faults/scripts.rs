//! The scripts of the faults that are played live, by name.

mod api_server;
mod clocks;
mod configuration;
mod disks;
mod engines;
mod leaders;
mod pods;
mod processes;
mod soak;

use std::pin::Pin;

use anyhow::Result;

use crate::scene::Finding;

/// A script that plays.
pub(crate) type Playing = Pin<Box<dyn Future<Output = Result<Finding>> + Send>>;

/// A script with the name of its fault.
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) play: fn() -> Playing,
}

/// All scripts.
pub(crate) fn all() -> Vec<Script> {
    let parts = [
        engines::all(),
        pods::all(),
        api_server::all(),
        leaders::all(),
        configuration::all(),
        disks::all(),
        clocks::all(),
        processes::all(),
        soak::all(),
    ];
    parts.into_iter().flatten().collect()
}

/// Names a script: `script!("name", play())`.
macro_rules! script {
    ($name:literal, $play:expr) => {
        $crate::scripts::Script { name: $name, play: || Box::pin($play) }
    };
}
pub(crate) use script;
