//! Numbers that are in force without having been decided here: those of before a restart, and those
//! of another replica, which is followed so as to go on from where it is.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::Basis;
use crate::decide::enforce::{History, Published};
use crate::fleet::VariantKey;
use crate::observe::Inputs;
use crate::pipeline::saved::Recall;
use crate::pipeline::{Decisions, InForce, Pipeline};
use crate::units::Replicas;

/// A number that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Number {
    /// How many replicas there should be.
    pub desired: Replicas,
    /// When the data that it rests on was current.
    pub inputs_at: Timestamp,
}

impl Pipeline {
    /// Takes over a number that was in force before a restart, with the instant of the data that
    /// it rests on. It stays in force until there is data to decide on.
    pub fn restore(
        &mut self,
        now: Timestamp,
        variant: VariantKey,
        desired: Replicas,
        inputs_at: Timestamp,
    ) {
        let history = History::starting(now, desired);
        let (basis, restored, at_zero) = (Basis::Held, Some(Recall::Number), false);
        let in_force = InForce { desired, inputs_at, basis, restored, at_zero, history };
        self.in_force.insert(variant, in_force);
    }

    /// Whether a number is in force for a variant.
    #[must_use]
    pub fn has_number(&self, variant: &VariantKey) -> bool {
        self.in_force.get(variant).is_some()
    }

    /// Decides, with these numbers in force and no others: those that replicas share. Windows and
    /// histories are so warm when it is our turn to decide.
    ///
    /// What is returned is what is decided here; it is not in force before it is among the numbers.
    pub fn follow(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        numbers: &BTreeMap<VariantKey, Number>,
    ) -> Decisions {
        self.in_force.retain(|key| numbers.contains_key(key));
        self.take_over(now, numbers);
        let found = self.consider(now, inputs);
        for (place, decision) in found.decisions.iter().enumerate() {
            if let Some(number) = numbers.get(&decision.variant) {
                self.remember_one(now, (place, decision), *number);
            }
        }
        found
    }

    /// Goes on from numbers that another replica has put in force.
    pub fn take_over(&mut self, now: Timestamp, numbers: &BTreeMap<VariantKey, Number>) {
        for (key, Number { desired, inputs_at }) in numbers {
            match self.in_force.get_mut(key) {
                None => self.restore(now, key.clone(), *desired, *inputs_at),
                Some(known) if known.desired != *desired => {
                    let change = Published { before: known.desired, after: *desired };
                    known.history.record(now, *desired, change, &self.policy.behavior);
                    known.desired = *desired;
                    known.inputs_at = *inputs_at;
                }
                Some(_) => {}
            }
        }
    }
}
