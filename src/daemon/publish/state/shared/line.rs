//! One decision of the document, as text, in more or less detail.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::PublishedDecision;
use crate::publish::state::DecodedMemory;
use crate::publish::state::shared::error::SharedError;
use crate::publish::state::shared::receipt::DocumentReceipt;
use plimsoll_core::decide::sized::AdmissibleRate;
use plimsoll_core::decide::{Basis, Decision, Reason, ReasonCode, RemoteReason, Stage, Step};
use plimsoll_core::fleet::{Bounds, ModelKey, ModelName, VariantKey};
use plimsoll_core::pipeline::saved::{MemoryLength, VariantMemory};
use plimsoll_core::units::{Replicas, Seconds};

/// The parts of a decision that the document has. The order is from the most to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareDetail {
    /// Everything: the memory without its observations, and the whole reasons.
    Whole,
    /// Without the ranking of the other variants, whose size grows with the square of their number.
    Unranked,
    /// Also without the learned coefficients.
    Windows,
    /// Also without the rest of the memory.
    Facts,
    /// Only the desired replicas and the codes of reasons.
    Codes,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SharedLine {
    variant: VariantKey,
    model: ModelName,
    at: Timestamp,
    age: Seconds,
    basis: Basis,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<Replicas>,
    bounds: Bounds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    admissible: Option<AdmissibleRate>,
    pub(super) steps: Vec<SharedStep>,
    /// Any JSON value, because another release may remember more. A memory that this release cannot
    /// read must not invalidate the desired replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Value>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SharedStep {
    stage: Readable<Stage, String>,
    before: Replicas,
    after: Replicas,
    code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Readable<Reason, Value>>,
}

/// A value that another release may represent differently.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Readable<T, Other> {
    Known(T),
    Foreign(Other),
}

// === writing ===

impl SharedLine {
    /// Returns a decision in this detail, as it is at the instant `elapsed`.
    pub(super) fn told(
        elapsed: Duration,
        decided: &PublishedDecision,
        memory: Option<&VariantMemory>,
        detail: ShareDetail,
    ) -> Result<Self, SharedError> {
        let length = match detail {
            ShareDetail::Whole | ShareDetail::Unranked => Some(MemoryLength::Conclusions),
            ShareDetail::Windows => Some(MemoryLength::Windows),
            ShareDetail::Facts | ShareDetail::Codes => None,
        };
        let kept = length.zip(memory).map(|(length, memory)| DecodedMemory::new(memory, length));
        let memory = kept.map(serde_json::to_value).transpose().map_err(SharedError::Shape)?;

        Ok(Self { memory, ..Self::new(elapsed, decided, detail) })
    }

    fn new(elapsed: Duration, decided: &PublishedDecision, detail: ShareDetail) -> Self {
        let PublishedDecision { decision, at, elapsed: decided_at } = decided;
        let Decision { variant, model, current, bounds, steps, basis, admissible, .. } = decision;
        let age = elapsed.saturating_sub(*decided_at).as_secs_f64();

        Self {
            variant: variant.clone(),
            model: model.model.clone(),
            at: *at,
            age: Seconds::new(age).unwrap_or_default(),
            basis: *basis,
            current: *current,
            bounds: *bounds,
            admissible: admissible.filter(|_| detail < ShareDetail::Codes),
            steps: steps.iter().map(|step| SharedStep::new(step, detail)).collect(),
            memory: None,
        }
    }
}

impl SharedStep {
    fn new(step: &Step, detail: ShareDetail) -> Self {
        let Step { stage, before, after, reason } = step;
        let code = reason.label().to_owned();
        let shown = match detail {
            ShareDetail::Whole => Some(reason.clone()),
            ShareDetail::Unranked | ShareDetail::Windows | ShareDetail::Facts => {
                Some(reason.without_rank())
            }
            ShareDetail::Codes => None,
        };

        Self {
            stage: Readable::Known(*stage),
            before: *before,
            after: *after,
            code,
            // The data of a reason that was read here is on another replica.
            reason: shown.filter(|it| !matches!(it, Reason::Told(_))).map(Readable::Known),
        }
    }
}

// === reading ===

impl SharedLine {
    /// Decodes the decision; `None` if it has no steps or an impossible age. `lain` is the age of
    /// the document.
    pub(super) fn decided(
        self,
        receipt: DocumentReceipt<'_>,
        lain: Duration,
    ) -> Option<PublishedDecision> {
        let mut steps: Vec<Step> = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            let before = steps.last().map_or(Stage::Analyze, |step| step.stage);
            steps.push(step.step(receipt.holder, before));
        }

        if steps.is_empty() {
            return None;
        }

        let age = Duration::try_from_secs_f64(self.age.seconds()).ok()?;
        let namespace = self.variant.namespace.clone();
        let decision = Decision {
            variant: self.variant,
            model: ModelKey { namespace, model: self.model },
            current: self.current,
            bounds: self.bounds,
            sizing: Decision::sizing_of_file(&steps),
            steps,
            inputs_at: self.at,
            basis: self.basis,
            admissible: self.admissible,
        };

        let elapsed = receipt.elapsed.saturating_sub(age).saturating_sub(lain);
        Some(PublishedDecision { decision, at: self.at, elapsed })
    }
}

impl SharedStep {
    /// Returns the names in the step that this release does not know.
    pub(super) fn strange(&self) -> impl Iterator<Item = String> {
        let stage = match &self.stage {
            Readable::Known(_) => None,
            Readable::Foreign(name) => Some(name.clone()),
        };
        let reason = match &self.reason {
            None | Some(Readable::Known(_)) => None,
            Some(Readable::Foreign(_)) => Some(self.code.clone()),
        };

        stage.into_iter().chain(reason)
    }

    /// Decodes the step, which follows a step of the stage `last`. Steps are ordered by stage, so
    /// an unknown stage is replaced by `last`.
    fn step(self, holder: &str, last: Stage) -> Step {
        let Self { stage, before, after, code, reason: read } = self;
        let known = ReasonCode::ALL.iter().find(|it| it.label() == code);
        let reason = match (read, known) {
            (Some(Readable::Known(whole)), _) => whole,
            (_, Some(code)) => told(*code, format!("decided by {holder}")),
            (_, None) => told(ReasonCode::Told, format!("{code}, decided by {holder}")),
        };

        match stage {
            Readable::Known(stage) => Step { stage, before, after, reason },
            Readable::Foreign(stage) => {
                let text = format!("{stage}: {reason}");
                Step { stage: last, before, after, reason: told(reason.code(), text) }
            }
        }
    }
}

fn told(code: ReasonCode, text: String) -> Reason {
    Reason::Told(RemoteReason { code, text })
}

// === impl ShareDetail ===

impl ShareDetail {
    /// All details, from the most to the least.
    pub const ALL: [Self; 5] =
        [Self::Whole, Self::Unranked, Self::Windows, Self::Facts, Self::Codes];

    /// Returns the detail as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Unranked => "unranked",
            Self::Windows => "windows",
            Self::Facts => "facts",
            Self::Codes => "codes",
        }
    }

    /// The next shorter detail, if there is one.
    pub(super) const fn shorter(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::Unranked),
            Self::Unranked => Some(Self::Windows),
            Self::Windows => Some(Self::Facts),
            Self::Facts => Some(Self::Codes),
            Self::Codes => None,
        }
    }
}
