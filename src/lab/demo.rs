//! The demo: a simulated fleet under load, the real daemon, and a model of the stock HPA.
//!
//! Simulated are the engines, the requests that arrive for them, and the HPA's arithmetic, all by the
//! simulator ([`crate::simulate::run::Simulation`]) from a scenario file. Real are the daemon and its
//! configuration, the pages that it scrapes over HTTP, the files from which it learns the targets, and
//! the HTTPS request, with client certificate, by which the HPA reads the number. So what works here
//! works for the same reasons as in a cluster, and takes as long.
//!
//! [`run`] puts it together: it opens the [`stage::Stage`], starts a daemon that reads the stage's target
//! files and serves the external metrics API with the [`pki::Pki`], and then calls [`drive`].

pub mod actuator;
pub mod args;
pub mod pki;
pub mod scenario;
pub mod screen;
pub mod stage;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod view;
mod wiring;

pub use crate::demo::wiring::run;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::demo::actuator::Actuator;
use crate::demo::args::DemoOutput;
use crate::demo::pki::Pki;
use crate::demo::scenario::Played;
use crate::demo::screen::{Screen, Wish};
use crate::demo::stage::Stage;
use crate::demo::summary::Summary;
use crate::demo::view::Observer;
use crate::simulate::Micros;
use plimsoll_daemon::publish::Published;

/// How often sockets and target files follow the fleet.
const FOLLOW: Duration = Duration::from_millis(100);

/// Everything that the demo needs from outside.
#[derive(Debug)]
pub struct DemoParts {
    /// The scenario and its daemon.
    pub played: Played,
    /// The fleet on its sockets.
    pub stage: Stage,
    /// What the daemon publishes.
    pub published: watch::Receiver<Arc<Published>>,
    /// Where the daemon serves the external metrics API.
    pub api: SocketAddr,
    /// The certificates with which it serves, and with which it is asked.
    pub pki: Pki,
    /// When to end; `None` runs until it is ended from outside.
    pub length: Option<Micros>,
    /// How to write the views.
    pub output: DemoOutput,
    /// Keeps track of the tasks.
    pub tracker: TaskTracker,
    /// Ends the demo from outside.
    pub cancel: CancellationToken,
}

/// Plays the demo to its end and says what it came to. The fleet's servers end with it.
///
/// # Errors
///
/// Ports, files, certificates or the terminal cannot be had.
pub async fn drive(parts: DemoParts) -> anyhow::Result<Summary> {
    let DemoParts { played, mut stage, published, api, pki, tracker, cancel, .. } = parts;
    let shared = stage.shared();
    let (actuator, followed) = Actuator::new(played.scenario, api, &pki)?;
    let mut observer = Observer::new(played.clone(), parts.length);
    let mut screen = Screen::open(parts.output).context("cannot open the screen")?;

    let stop = cancel.child_token();
    let _stop_on_return = stop.clone().drop_guard();
    tracker.spawn(actuator.run(shared.clone(), stop.clone()));
    let mut follow = tokio::time::interval(FOLLOW);
    let mut show = tokio::time::interval(screen.period());
    follow.set_missed_tick_behavior(MissedTickBehavior::Delay);
    show.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            _ = follow.tick() => {
                stage.follow()?;
                if screen.wish()? == Wish::Quit {
                    break;
                }
            }
            _ = show.tick() => {
                let view =
                    observer.look(&shared.fleet(), &published.borrow(), &followed.borrow());
                screen.show(&view)?;
                if parts.length.is_some_and(|length| view.elapsed >= length) {
                    break;
                }
            }
        }
    }
    drop(screen);
    let outcome = shared.fleet().score();
    Ok(Summary::new(&played, &outcome)?)
}
