//! Changes of a scenario, and trials that are made of them.

use crate::backtest::fleet::WAKE_READ;
use crate::simulate::scenario::{Scenario, Transfer, Variant};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::Policy;

/// A change of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum ScenarioChange {
    /// A variant takes the place of the one with its key, or is added.
    Variant(Box<Variant>),
    /// A variant is removed.
    Without(VariantKey),
    /// Another policy decides.
    Policy(Box<Policy>),
    /// Caches take this long from prefill to decode replicas, for all models.
    Transfer(Transfer),
    /// The daemon reads the count of requests that wait in front of the replicas.
    WakeSignal,
}

/// A change that is tried.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// The lever that proposes it.
    pub(crate) lever: &'static str,
    /// The variant or the model that it changes.
    pub(crate) subject: String,
    /// The change in words.
    pub(crate) what: String,
    /// What has to be true for it, and is not in the trace.
    pub(crate) assumes: Vec<String>,
    /// True if the change relaxes an objective, so that only a person can judge it.
    pub(crate) relaxes: bool,
    /// The changes of the scenario.
    pub(crate) changes: Vec<ScenarioChange>,
}

// === impl Trial ===

impl Trial {
    /// The fleet of today.
    pub(crate) fn nothing() -> Self {
        Self::new("nothing", String::new(), String::new(), Vec::new())
    }

    /// A trial without assumptions.
    pub(crate) fn new(
        lever: &'static str,
        subject: String,
        what: String,
        changes: Vec<ScenarioChange>,
    ) -> Self {
        Self { lever, subject, what, assumes: Vec::new(), relaxes: false, changes }
    }

    /// Adds an assumption.
    pub(crate) fn assuming(mut self, what: impl Into<String>) -> Self {
        self.assumes.push(what.into());
        self
    }

    /// The scenario with all changes.
    pub(crate) fn applied(&self, scenario: &Scenario) -> Scenario {
        let mut changed = scenario.clone();
        for change in &self.changes {
            change.apply(&mut changed);
        }
        changed
    }
}

// === impl ScenarioChange ===

impl ScenarioChange {
    fn apply(&self, scenario: &mut Scenario) {
        match self {
            Self::Variant(variant) => {
                let known = scenario.variants.iter_mut().find(|it| it.spec.key == variant.spec.key);
                match known {
                    Some(known) => *known = (**variant).clone(),
                    None => scenario.variants.push((**variant).clone()),
                }
            }
            Self::Without(key) => scenario.variants.retain(|it| it.spec.key != *key),
            Self::Policy(policy) => scenario.control.policy = (**policy).clone(),
            Self::Transfer(transfer) => {
                for model in &mut scenario.models {
                    model.transfer = *transfer;
                }
            }
            Self::WakeSignal => {
                for model in &mut scenario.models {
                    model.gateway.read = Some(WAKE_READ);
                }
            }
        }
    }
}
