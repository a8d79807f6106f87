//! The decision about one variant, and the steps that explain it.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::SaturationOutcome;
use crate::decide::reason::{NoData, Reason};
use crate::decide::sized::{AdmissibleRate, Shortfall, SizingValues, SlowestReplica};
use crate::fleet::{Bounds, ModelKey, VariantKey};
use crate::observe::overrides::{Order, Override};
use crate::units::Replicas;

/// The desired replicas of one variant and the steps that produced them.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The variant.
    pub variant: VariantKey,
    /// The model that it serves.
    pub model: ModelKey,
    /// Existing replicas; `None` if unknown.
    pub current: Option<Replicas>,
    /// The bounds in effect for the decision.
    pub bounds: Bounds,
    /// The chain of steps that produced the desired replicas; never empty.
    pub steps: Vec<Step>,
    /// The instant of the newest data behind the desired replicas. A decision that was recomputed
    /// from old data is as old as its data.
    pub inputs_at: Timestamp,
    /// The basis of the desired replicas: fresh data, or an earlier decision.
    pub basis: Basis,
    /// The request rate that the serving replicas can take in time; `None` if unknown.
    pub admissible: Option<AdmissibleRate>,
    /// The result of the analyzers; `None` if they have none and saturation decides.
    pub sizing: Option<Arc<SizingValues>>,
}

/// The reason why a variant has no decision: no desired replicas are in effect, and there is no
/// data to decide on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoDecision(pub NoData);

/// The basis of a decision: fresh data, or an earlier decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Decided in this tick, on fresh data.
    Fresh,
    /// Kept from an earlier tick, because there is no fresh data.
    Held,
}

impl Decision {
    /// Returns the desired replicas: the `after` of the last step.
    #[must_use]
    pub fn desired(&self) -> Replicas {
        self.steps.last().map_or(Replicas::ZERO, |step| step.after)
    }

    /// Returns the replicas that the analysis alone asks for, before guards, windows and step
    /// limits. They include standby replicas that serve load until slower variants have started. A
    /// plan by capacity already keeps within the bounds; [`Self::beyond_max`] shows if these are
    /// too tight.
    #[must_use]
    pub fn unconstrained(&self) -> Replicas {
        let asked = self.last_step(|stage| matches!(stage, Stage::Analyze | Stage::Hold));
        let bridged = self.last_step(|stage| stage == Stage::Bridge);
        let number = asked.into_iter().chain(bridged).map(|step| step.after).max();
        number.unwrap_or_else(|| self.desired())
    }

    /// Returns the value that the stabilization windows remember: the recommendation of the
    /// analysis after the scale-down guard.
    #[must_use]
    pub fn recommended(&self) -> Replicas {
        self.last_step(|stage| stage <= Stage::Guard)
            .map_or_else(|| self.desired(), |step| step.after)
    }

    /// Returns the last step of the given stages.
    fn last_step(&self, is_given: impl Fn(Stage) -> bool) -> Option<&Step> {
        self.steps.iter().rev().find(|step| is_given(step.stage))
    }

    /// Returns the decision on a variant among decisions, which are ordered by key.
    pub(crate) fn find<'a>(decisions: &'a [Self], variant: &VariantKey) -> Option<&'a Self> {
        let at = decisions.binary_search_by(|it| it.variant.cmp(variant)).ok()?;
        decisions.get(at)
    }

    /// Returns the result of the analyzers behind steps from a file, which has it only in the reason
    /// that states it. Everything else takes it from [`Self::sizing`].
    #[must_use]
    pub fn sizing_of_file(steps: &[Step]) -> Option<Arc<SizingValues>> {
        steps.iter().find_map(|step| match &step.reason {
            Reason::Sized(reason) => Some(Arc::clone(&reason.sizing)),
            _ => None,
        })
    }

    /// Returns the slowest replica; `None` while too few replicas can be compared.
    #[must_use]
    pub fn slowest(&self) -> Option<&SlowestReplica> {
        self.sizing.as_ref()?.slowest.as_ref()
    }

    /// Returns true if scale-down is blocked only because the replicas have not been measured for
    /// long enough.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.reason, Reason::Settling { .. }))
    }

    /// Returns the maximum and the reason why the load asks for more, if it does.
    #[must_use]
    pub fn beyond_max(&self) -> Option<(Replicas, &Reason)> {
        let max = self.bounds.max()?;

        let fresh = self.basis == Basis::Fresh;
        let asking = self.steps.iter().find(|it| self.asks_more(it)).filter(|_| fresh)?;
        Some((max, &asking.reason))
    }

    /// Returns true if the load asks for more than the maximum; `None` if this is not known,
    /// because there is no fresh data or only the leader knows the reasons.
    #[must_use]
    pub fn is_short_at_max(&self) -> Option<bool> {
        let is_told = self.steps.iter().any(|step| matches!(step.reason, Reason::Told(_)));
        let is_known = self.basis == Basis::Fresh && !is_told;
        is_known.then(|| self.beyond_max().is_some())
    }

    /// Returns true if the load behind a step asks for more than the maximum.
    fn asks_more(&self, step: &Step) -> bool {
        match &step.reason {
            Reason::AboveMax(_) => self.is_asked_beyond_max(),
            Reason::Load(SaturationOutcome::SpareLowNoRoom(_)) => self.is_at_max(),
            Reason::Sized(_) => self.is_short() && self.is_at_max(),
            _ => false,
        }
    }

    /// Returns true if more than the maximum is asked for without a pin as well.
    fn is_asked_beyond_max(&self) -> bool {
        let pinned = self.steps.iter().find(|it| matches!(it.reason, Reason::Pinned { .. }));
        let max = self.bounds.max();

        pinned.is_none_or(|it| max.is_some_and(|most| it.before > most))
    }

    /// Returns true if no more replicas are allowed.
    fn is_at_max(&self) -> bool {
        !self.bounds.allow_up(self.desired())
    }

    /// Returns true if the plan of the analyzers leaves demand unserved.
    fn is_short(&self) -> bool {
        self.sizing.as_ref().is_some_and(|sizing| sizing.short == Shortfall::Some)
    }

    /// Returns the pin or the pause that is in effect, if there is one.
    #[must_use]
    pub fn overridden(&self) -> Option<Override> {
        self.steps.iter().find_map(|step| match step.reason {
            Reason::Pinned { replicas, until, by } => {
                Some(Override { order: Order::Pin(replicas), until, by })
            }
            Reason::Paused { until, by } => Some(Override { order: Order::Pause, until, by }),
            _ => None,
        })
    }

    /// Returns the step that explains the result best: the last step that changed the value, or a pin
    /// or a pause after it. If no step changed it, returns the last step.
    #[must_use]
    pub fn because(&self) -> Option<&Step> {
        let explains = |step: &&Step| step.before != step.after || step.stage == Stage::Override;
        self.steps.iter().rev().find(explains).or(self.steps.last())
    }
}

/// One step in the chain of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The stage that appended it.
    pub stage: Stage,
    /// Desired replicas before the stage.
    pub before: Replicas,
    /// Desired replicas after the stage.
    pub after: Replicas,
    /// The reason for the change, or for keeping the value.
    pub reason: Reason,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, before, after, reason } = self;
        if before == after {
            write!(f, "{}: {after}, {reason}", stage.label())
        } else {
            write!(f, "{}: {before} -> {after}, {reason}", stage.label())
        }
    }
}

/// Declares the stages with their labels.
macro_rules! stages {
    ($($(#[$doc:meta])* $stage:ident = $label:literal;)*) => {
        /// The stages of a decision, in order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Stage {
            $($(#[$doc])* #[serde(rename = $label)] $stage,)*
        }

        impl Stage {
            /// Every stage.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$stage),*];

            /// The stage as a label value.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$stage => $label,)*
                }
            }
        }
    };
}

stages! {
    /// The analysis of the model's load.
    Analyze = "analyze";
    /// A new plan with the replicas that the limits leave for the model.
    Share = "share";
    /// Standby replicas that serve load until slower variants have started.
    Bridge = "bridge";
    /// Replicas that the adapters of a pool need in addition to its load.
    Pool = "pool";
    /// Keeping the last desired replicas, because there is no data to decide on.
    Hold = "hold";
    /// The scale-down guard, which blocks scale-down on incomplete data.
    Guard = "guard";
    /// Stabilization windows.
    Stabilize = "stabilize";
    /// The dwell time before a change of direction.
    Dwell = "dwell";
    /// The flap budget: direction changes per hour.
    FlapBudget = "flap_budget";
    /// A burst of demand, which overrides the earlier rules.
    Panic = "panic";
    /// Limits on the change per period.
    StepLimit = "step_limit";
    /// Scale to zero and wake-up.
    Zero = "zero";
    /// A pin or a pause.
    Override = "override";
    /// Minimum and maximum.
    Bounds = "bounds";
    /// Limits: inventories, quotas and budgets.
    Limit = "limit";
    /// The final check of the invariants.
    Check = "check";
}

impl Stage {
    /// Returns true if the stage never adds replicas to those that are already desired.
    #[must_use]
    pub(crate) const fn only_keeps(self) -> bool {
        match self {
            Self::Hold | Self::Guard | Self::Stabilize | Self::Dwell | Self::FlapBudget => true,
            Self::Analyze
            | Self::Pool
            | Self::Share
            | Self::Bridge
            | Self::Limit
            | Self::Bounds
            | Self::Panic
            | Self::StepLimit
            | Self::Zero
            | Self::Override
            | Self::Check => false,
        }
    }
}
