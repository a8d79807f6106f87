//! Records as lines of JSON.
//!
//! A line is what it says, by the types of the core. Of what a tick got, most is as it was in the
//! tick before: a tick that is not the first of its block leaves that out and names it.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::trace::{Began, Said, Tick};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::Number;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordLine {
    /// The first of every file.
    Began(BeganLine),
    /// The configuration in force from here on, as YAML.
    Config(String),
    /// Numbers and memories that were put in force, in the shape of the state file.
    Restored(serde_json::Value),
    /// A tick.
    Tick(Box<TickLine>),
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BeganLine {
    /// The version of the format.
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) began: Began,
}

/// What a tick got and what it decided.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TickLine {
    now: Timestamp,
    /// The inputs that are as in the tick before, and are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    same: Vec<Cow<'static, str>>,
    inputs: Inputs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follows: Option<Vec<(VariantKey, Number)>>,
    said: Vec<(VariantKey, Said)>,
}

/// What is known of the tick before in the same block: its inputs but for the scrapes.
#[derive(Debug, Default)]
pub(super) struct Codec {
    before: Option<Inputs>,
}

macro_rules! may_stay {
    ($($section:ident),+) => {
        /// Leaves out the inputs that are as before; says which.
        fn leave_out(inputs: &mut Inputs, before: &Inputs) -> Vec<Cow<'static, str>> {
            let mut same = Vec::new();
            $(if inputs.$section == before.$section {
                inputs.$section = Default::default();
                same.push(Cow::Borrowed(stringify!($section)));
            })+
            same
        }

        /// Puts an input back that was left out.
        fn put_back(inputs: &mut Inputs, before: &Inputs, section: &str) -> Result<(), String> {
            match section {
                $(stringify!($section) => inputs.$section = before.$section.clone(),)+
                _ => return Err(format!("there is nothing of the name {section:?} to leave out")),
            }
            Ok(())
        }
    };
}

// Scrapes are never those of the tick before.
may_stay!(fleet, listings, inventory, autoscalers, demand, starts, templates);

// === impl Codec ===

impl Codec {
    /// A tick as a line after those before it.
    pub(super) fn line(&mut self, tick: Tick) -> TickLine {
        let Tick { now, mut inputs, follows, said } = tick;
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

    /// The tick that a line says after those before it.
    ///
    /// # Errors
    ///
    /// It leaves out what was not there before.
    pub(super) fn tick(&mut self, line: TickLine) -> Result<Tick, String> {
        let TickLine { now, same, mut inputs, follows, said } = line;
        let before = self.before.take().unwrap_or_default();
        for section in &same {
            put_back(&mut inputs, &before, section)?;
        }

        let scrapes = std::mem::take(&mut inputs.scrapes);
        self.before = Some(inputs.clone());
        inputs.scrapes = scrapes;

        Ok(Tick {
            now,
            inputs,
            follows: follows.map(|numbers| numbers.into_iter().collect()),
            said: said.into_iter().collect(),
        })
    }
}
