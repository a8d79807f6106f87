//! Desired replicas in effect that this process has not decided. They come from before a restart,
//! or from another Plimsoll replica that this one follows in order to take over.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::Basis;
use crate::decide::enforce::{PublishedReplicas, ScalingHistory};
use crate::fleet::VariantKey;
use crate::observe::Inputs;
use crate::pipeline::saved::Recall;
use crate::pipeline::{DecisionInForce, Decisions, Pipeline};
use crate::units::Replicas;

/// Desired replicas in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredReplicas {
    /// The desired replicas.
    pub desired: Replicas,
    /// The time of the data behind the decision.
    pub inputs_at: Timestamp,
}

impl Pipeline {
    /// Takes over desired replicas from before a restart, with the instant of the data behind them.
    /// They stay in effect until there is data to decide on.
    pub fn restore(
        &mut self,
        now: Timestamp,
        variant: VariantKey,
        desired: Replicas,
        inputs_at: Timestamp,
    ) {
        let history = ScalingHistory::starting(now, desired);
        let basis = Basis::Held;
        let restored = Some(Recall::Number);
        let at_zero = false;
        let in_force = DecisionInForce { desired, inputs_at, basis, restored, at_zero, history };
        self.in_force.insert(variant, in_force);
    }

    /// Returns true if a variant has desired replicas in effect.
    #[must_use]
    pub fn has_number(&self, variant: &VariantKey) -> bool {
        self.in_force.get(variant).is_some()
    }

    /// Decides with exactly these desired replicas in effect, which all Plimsoll replicas share.
    /// This keeps windows and histories warm for the time when this process takes over.
    ///
    /// Returns the decisions of this process. They are not in effect before they are among
    /// `numbers`.
    pub fn follow(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        numbers: &BTreeMap<VariantKey, DesiredReplicas>,
    ) -> Decisions {
        self.in_force.retain(|key| numbers.contains_key(key));
        self.take_over(now, numbers);

        let found = self.consider(now, inputs);
        for (place, decision) in found.decisions.iter().enumerate() {
            if let Some(number) = numbers.get(&decision.variant) {
                self.remember_one(now, place, decision, *number);
            }
        }
        found
    }

    /// Continues from desired replicas that another Plimsoll replica has put in effect.
    pub fn take_over(&mut self, now: Timestamp, numbers: &BTreeMap<VariantKey, DesiredReplicas>) {
        for (key, DesiredReplicas { desired, inputs_at }) in numbers {
            match self.in_force.get_mut(key) {
                None => self.restore(now, key.clone(), *desired, *inputs_at),
                Some(known) if known.desired != *desired => {
                    let change = PublishedReplicas { before: known.desired, after: *desired };
                    known.history.record(now, *desired, change, &self.policy.behavior);
                    known.desired = *desired;
                    known.inputs_at = *inputs_at;
                }
                Some(_) => {}
            }
        }
    }
}
