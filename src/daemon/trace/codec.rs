//! Encodes records as lines of JSON.
//!
//! A line serializes its record with the types of the core. Most inputs of a tick are equal to
//! those of the tick before. So every tick except the first of its block leaves such inputs out and
//! lists their names.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::trace::record::{FileHeader, RecordedResult, TraceTick};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::DesiredReplicas;

/// One line of a trace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordLine {
    /// The first line of every file.
    Began(HeaderLine),
    /// The configuration in effect from here on, as YAML.
    Config(String),
    /// Desired replicas and memories that were put into effect, in the shape of the state file.
    Restored(serde_json::Value),
    /// A tick.
    Tick(Box<TickLine>),
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeaderLine {
    /// The version of the format.
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) began: FileHeader,
}

/// The inputs and results of one tick.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TickLine {
    now: Timestamp,
    /// The names of the inputs that are equal to those of the tick before and are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    same: Vec<Cow<'static, str>>,
    inputs: Inputs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follows: Option<Vec<(VariantKey, DesiredReplicas)>>,
    said: Vec<(VariantKey, RecordedResult)>,
}

/// The state of the tick before in the same block: its inputs without the scrapes.
#[derive(Debug, Default)]
pub(super) struct Codec {
    before: Option<Inputs>,
}

macro_rules! may_stay {
    ($($section:ident),+) => {
        /// Leaves out the inputs that are unchanged, and returns their names.
        fn leave_out(inputs: &mut Inputs, before: &Inputs) -> Vec<Cow<'static, str>> {
            let mut same = Vec::new();
            $(if inputs.$section == before.$section {
                inputs.$section = Default::default();
                same.push(Cow::Borrowed(stringify!($section)));
            })+
            same
        }

        /// Restores an input that was left out.
        fn put_back(inputs: &mut Inputs, before: &Inputs, section: &str) -> Result<(), String> {
            match section {
                $(stringify!($section) => inputs.$section = before.$section.clone(),)+
                _ => return Err(format!("there is nothing of the name {section:?} to leave out")),
            }
            Ok(())
        }
    };
}

// Each tick has its own scrapes, so they are always written.
may_stay!(fleet, listings, inventory, autoscalers, demand, starts, templates, hosting, routed);

// === impl Codec ===

impl Codec {
    /// Encodes a tick as the next line of the block.
    pub(super) fn line(&mut self, tick: TraceTick) -> TickLine {
        let TraceTick { now, mut inputs, follows, said } = tick;
        let scrapes = std::mem::take(&mut inputs.scrapes);
        let whole = inputs.clone();
        inputs.scrapes = scrapes;

        let same = match &self.before {
            Some(before) => leave_out(&mut inputs, before),
            None => Vec::new(),
        };
        self.before = Some(whole);

        TickLine {
            now,
            same,
            inputs,
            follows: follows.map(|numbers| numbers.into_iter().collect()),
            said: said.into_iter().collect(),
        }
    }

    /// Decodes a line that follows the lines before it.
    ///
    /// # Errors
    ///
    /// The line leaves out an input that does not exist.
    pub(super) fn tick(&mut self, line: TickLine) -> Result<TraceTick, String> {
        let TickLine { now, same, mut inputs, follows, said } = line;
        let before = self.before.take().unwrap_or_default();
        for section in &same {
            put_back(&mut inputs, &before, section)?;
        }

        let scrapes = std::mem::take(&mut inputs.scrapes);
        self.before = Some(inputs.clone());
        inputs.scrapes = scrapes;

        Ok(TraceTick {
            now,
            inputs,
            follows: follows.map(|numbers| numbers.into_iter().collect()),
            said: said.into_iter().collect(),
        })
    }
}
