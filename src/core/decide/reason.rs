//! The reason for a step: as a code, as values with units, as a headline and as a sentence.
//!
//! [`Reason`] is the data. Each code is one row of the table at the end of this file. A row has the
//! code's meaning, its label, the reasons that map to it, their facts and the headline template.
//! Everything that lists reasons is generated from the rows: metric labels, the JSON API and its
//! schema, and the table in `docs/reasons.md`.

mod facts;
mod headline;
mod remedy;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::standby::Bridge;
use crate::analyze::saturation::{SaturationOutcome, SpareKept};
use crate::decide::check::violation::Violation;
use crate::decide::enforce::restraint::Restraint;
use crate::decide::limit::{Cut, GrantRefusal};
use crate::decide::limited::LimitedReason;
use crate::decide::optimize::PlanReason;
use crate::decide::pools::pooled::{PoolCause, PoolReason};
use crate::decide::reason::facts::Stated;
use crate::decide::sized::{SizedReason, UnmeetableTarget};
use crate::decide::unheard::UnusableSignal;
use crate::decide::zero::Move;
use crate::fleet::VariantName;
use crate::observe::overrides::OverrideSource;
use crate::units::{Replicas, Seconds};

pub use crate::decide::reason::facts::{FactValue, ReasonFact};

/// The reason why a stage changed a value or kept it.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The outcome of the saturation analysis.
    Load(SaturationOutcome),
    /// The cheapest plan for the load that the analyzers report.
    Sized(SizedReason),
    /// A standby variant serves load until slower variants have started.
    Bridged(Bridge),
    /// The replicas that the adapters of a pool need.
    Pool(Box<PoolReason>),
    /// There is no fresh data, so the last value stays.
    #[display("holding: {_0}")]
    NoData(NoData),
    /// Scale-down is blocked, because some ready replicas are not reporting.
    #[display(
        "scale-down blocked: {missing} ready {} no fresh data",
        if *missing == Replicas::ONE { "replica has" } else { "replicas have" }
    )]
    Incomplete {
        /// Ready replicas without fresh data.
        missing: Replicas,
    },
    /// Scale-down is blocked, because the number of requests in front of the model is unknown.
    #[display("scale-down blocked: {signal}, which counts queued requests, {why}")]
    Unheard {
        /// The signal that counts these requests.
        signal: String,
        /// The reason why it has no count.
        why: UnusableSignal,
    },
    /// Scale-down is blocked, because a variant of the model has not been listed and may serve any
    /// load.
    #[display("scale-down blocked: the replicas of {variant} have not been listed yet")]
    Unlisted {
        /// The variant.
        variant: VariantName,
    },
    /// Scale-down is blocked, because the list of replicas is old.
    #[display("scale-down blocked: the list of replicas is {age:.0} s old")]
    Outdated {
        /// Age of the list.
        age: Seconds,
    },
    /// Scale-down is blocked, because the same replicas have not been measured for long enough.
    #[display(
        "scale-down blocked for {:.0} s, until these replicas have been measured for long enough",
        remaining.seconds().ceil()
    )]
    Settling {
        /// Time until they have been.
        remaining: Seconds,
    },
    /// The minimum is higher.
    #[display("raised to the minimum of {_0}")]
    BelowMin(Replicas),
    /// The maximum is lower.
    #[display("limited to the maximum of {_0}")]
    AboveMax(Replicas),
    /// A recommendation inside the stabilization window is closer to the current value.
    #[display("held by the stabilization window of {window:.0} s")]
    Stabilized {
        /// Length of the window.
        window: Seconds,
    },
    /// No number of replicas of this variant meets a latency target.
    #[display("{_0}; target ignored")]
    SloUnmeetable(UnmeetableTarget),
    /// A rule holds the value back or releases it.
    Restrained(Restraint),
    /// The value may not change further in this period.
    #[display("{}", step_limited(*period))]
    StepLimited {
        /// Length of the period; `None` if the direction is disabled.
        period: Option<Seconds>,
    },
    /// The model goes to zero, comes back, or stays.
    Zero(Move),
    /// A person has set the value.
    #[display("pinned to {replicas} by {by} until {until:.0}")]
    Pinned {
        /// The replicas that were asked for.
        replicas: Replicas,
        /// The end of the pin.
        until: Timestamp,
        /// The way by which it was given.
        by: OverrideSource,
    },
    /// A person has stopped changes.
    #[display("paused by {by} until {until:.0}")]
    Paused {
        /// The end of the pause.
        until: Timestamp,
        /// The way by which it was given.
        by: OverrideSource,
    },
    /// A quota, an inventory or a budget limits the value.
    Limited(LimitedReason),
    /// The set of decisions broke an invariant, so the last valid value stays.
    #[display("not published: {_0}")]
    Refused(Violation),
    /// Another replica decided it, and only the code of its reason is known.
    #[display("{}", _0.text)]
    Told(RemoteReason),
}

/// A reason from another replica, without its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteReason {
    /// The code; [`ReasonCode::Told`] if only another release knows it.
    pub code: ReasonCode,
    /// A sentence that replaces the data.
    pub text: String,
}

/// The reason why there is no data to decide on.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoData {
    /// No replica of the variant has fresh data.
    #[display("no replica has fresh data")]
    NoFreshReplica,
    /// The scale target is unknown, for this reason.
    ScaleUnknown(String),
    /// The replicas have not been listed yet.
    #[display("the replicas have not been listed yet")]
    NotListed,
    /// Some of the listed targets have not been tried yet.
    #[display("not every listed target has been tried yet")]
    NotTried,
    /// The models of a multi-model server have not been listed, or not recently.
    #[display("the models of the server have not been listed recently")]
    NoModels,
    /// The daemon has restarted, and has no data yet.
    #[display("restored after a restart, without data yet")]
    Restored,
    /// The replicas of this daemon have not shared a decision about it.
    #[display("the replicas of Plimsoll have not shared a decision yet")]
    NotShared,
    /// The decisions of this tick broke an invariant, and no value was in effect before.
    #[display("the decisions break an invariant and are not published")]
    Refused,
    /// The scale target was brought back from zero, and its replicas are starting.
    #[display("brought back from zero, without data yet")]
    BroughtBack,
}

/// The text of [`Reason::StepLimited`].
fn step_limited(period: Option<Seconds>) -> String {
    period.map_or_else(
        || "select_policy disables this direction".to_owned(),
        |period| format!("limited by the scaling policy over {period:.0} s"),
    )
}

impl From<SaturationOutcome> for Reason {
    fn from(outcome: SaturationOutcome) -> Self {
        Self::Load(outcome)
    }
}

impl Reason {
    /// The code.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        match self {
            Self::Told(told) => told.code,
            known => known.row(),
        }
    }

    /// The code as a label value.
    #[must_use]
    pub fn label(&self) -> &'static str {
        self.code().label()
    }

    /// The same reason without the ranking of the model's variants, whose size grows with the square
    /// of their number.
    #[must_use]
    pub fn without_rank(&self) -> Self {
        match self {
            Self::Sized(sized) => Self::Sized(sized.without_rank()),
            Self::Limited(LimitedReason::Instead { of, limit, rank: _ }) => {
                Self::Limited(LimitedReason::Instead {
                    of: of.clone(),
                    limit: limit.clone(),
                    rank: None,
                })
            }
            other => other.clone(),
        }
    }
}

// === the rows ===

/// Declares each code with its meaning, its label, the reasons that map to it, their facts, and the
/// template of its headline (see [`headline`]). The first matching row applies.
macro_rules! reasons {
    ($(
        $(#[doc = $meaning:literal])+
        $code:ident $label:literal = $reason:pat $(if $condition:expr)? => [$($fact:ident),*]
        $headline:literal;
    )*) => {
        /// The code of a reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ReasonCode {
            $($(#[doc = $meaning])+ #[serde(rename = $label)] $code,)*
        }

        impl ReasonCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$code,)*];

            /// The code as a label value.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$code => $label,)* }
            }

            /// The meaning in a sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => concat!($($meaning),+),)* }.trim_start()
            }

            /// The template of the headline.
            const fn template(self) -> &'static str {
                match self { $(Self::$code => $headline,)* }
            }
        }

        impl Reason {
            /// The code of the row that matches.
            #[expect(unused_variables, reason = "patterns bind what facts state")]
            fn row(&self) -> ReasonCode {
                match self { $($reason $(if $condition)? => ReasonCode::$code,)* }
            }

            /// The values that were compared, by name and with their units.
            #[must_use]
            pub fn facts(&self) -> Vec<ReasonFact> {
                let mut facts = Vec::new();
                match self { $($reason $(if $condition)? => {
                    $($fact.state(stringify!($fact), &mut facts);)*
                })* }
                facts
            }
        }
    };
}

reasons! {
    /// Headroom is below its trigger, and this is the cheapest variant that can scale up.
    SpareLow "spare_low" = Reason::Load(SaturationOutcome::SpareLow(low)) => [low]
        "low headroom[: KV {kv_spare} < {kv_trigger}][, queue {queue_spare} < {queue_trigger}]";
    /// Headroom is below its trigger, and another variant of the model scales up.
    SpareLowElsewhere "spare_low_elsewhere" = Reason::Load(SaturationOutcome::SpareLowElsewhere(variant))
        => [variant] "low headroom; scaling up {variant} instead";
    /// Headroom is below its trigger, and no variant of the model can scale up.
    SpareLowNoRoom "spare_low_no_room" = Reason::Load(SaturationOutcome::SpareLowNoRoom(low)) => [low]
        "low headroom, and no variant can scale up";
    /// Headroom stays above its triggers without one replica of this variant.
    SpareEnough "spare_enough" = Reason::Load(SaturationOutcome::SpareEnough(enough)) => [enough]
        "headroom is sufficient: KV {kv_spare}, queue {queue_spare} remain";
    /// Headroom is sufficient, and another variant of the model scales down.
    SpareEnoughElsewhere "spare_enough_elsewhere"
        = Reason::Load(SaturationOutcome::SpareEnoughElsewhere(variant))
        => [variant] "headroom is sufficient; scaling down {variant} instead";
    /// Headroom is sufficient, and no variant of the model can scale down.
    SpareAtMin "spare_at_min"
        = Reason::Load(SaturationOutcome::SpareKept(kept @ SpareKept::NoneToSpare(_))) => [kept]
        "headroom is sufficient, but no variant can scale down";
    /// Headroom is not low, and too little would remain without one replica.
    SpareKept "spare_kept" = Reason::Load(SaturationOutcome::SpareKept(kept)) => [kept]
        "headroom is needed[: KV load {kv_load} of {kv_threshold}]\
         [, queue {queue_load} of {queue_threshold}]";
    /// Replicas are not ready or not reporting yet, or an earlier decision is not in effect.
    Transition "transition" = Reason::Load(SaturationOutcome::Transition(transition)) => [transition]
        "waiting for the replicas of {variant}";
    /// No replica of the variant was measured.
    Unmeasured "unmeasured" = Reason::Load(SaturationOutcome::Unmeasured(_)) => []
        "no replica was measured";
    /// Demand exceeds capacity, and the bounds allow no plan that covers it.
    CapacityShort "capacity_short"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Kept, .. })
        if sized.is_short() && sized.leaves_demand() => [sized]
        "demand[ {demand}] exceeds capacity[ {capacity}] at the bounds";
    /// Demand exceeds capacity, and the plan has no more replicas of this variant.
    CapacityElsewhere "capacity_elsewhere"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Kept, .. })
        if sized.is_short() => [sized]
        "demand[ {demand}] exceeds capacity[ {capacity}]; kept here";
    /// The plan keeps the current replicas.
    CapacityKept "capacity_kept"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Kept, .. }) => [sized]
        "capacity fits demand[: {demand} of {capacity}]";
    /// Capacity is sufficient, and the plan has more replicas of this variant.
    CapacityPreferred "capacity_preferred"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Added, .. })
        if !sized.is_short() => [sized]
        "the cheapest plan has more of this variant";
    /// The plan adds replicas for demand that exceeds capacity.
    CapacityAdded "capacity_added"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Added, .. }) => [sized]
        "demand[ {demand}] exceeds capacity[ {capacity}]";
    /// A replica is added to learn the capacity of one, because the others are not enough.
    CapacityTried "capacity_tried"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Tried, .. }) => [sized]
        "trying one replica: its capacity is unknown";
    /// The plan has fewer replicas of this variant.
    CapacityRemoved "capacity_removed"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Removed, .. }) => [sized]
        "[{spare} of {capacity} is spare|the plan has fewer of this variant]";
    /// The replacements of these replicas serve load.
    CapacityReplaced "capacity_replaced"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Replaced, .. }) => [sized]
        "cheaper replicas have taken over";
    /// Replicas stay until their replacements serve load.
    CapacityServing "capacity_serving"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Serving { .. }, .. }) => [sized]
        "scale-down to {planned} waits until replacements serve";
    /// Fewer replicas would be enough, but an analyzer, an uncounted variant or a card blocks
    /// scale-down.
    CapacityRefused "capacity_refused"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Refused { .. }, .. }) => [sized]
        "scale-down to {planned} blocked[: no recent {absent} data]";
    /// The capacity of a replica is unknown.
    CapacityUnknown "capacity_unknown"
        = Reason::Sized(sized @ SizedReason { because: PlanReason::Unknown, .. }) => [sized]
        "capacity per replica is unknown";
    /// A standby variant serves load until slower variants have started.
    Bridged "bridged" = Reason::Bridged(bridge) => [bridge]
        "standby serves {bridged} until slower variants start";
    /// A pool may need more than is known.
    PoolUnsure "pool_unsure" = Reason::Pool(pooled) if pooled.cause() == PoolCause::Unsure => [pooled]
        "scale-down blocked: not all copies are known";
    /// No adapter of a pool and no load needs a replica.
    PoolIdle "pool_idle" = Reason::Pool(pooled) if pooled.cause() == PoolCause::Idle => [pooled]
        "no adapter and no load needs a replica";
    /// The copies of one adapter or model decide the size of a pool.
    PoolCopies "pool_copies" = Reason::Pool(pooled) if pooled.cause() == PoolCause::Copies => [pooled]
        "{needed} needed for the copies of {adapter}";
    /// The adapter slots decide the size of a pool.
    PoolSlots "pool_slots" = Reason::Pool(pooled) if pooled.cause() == PoolCause::Slots => [pooled]
        "{needed} needed for adapter slots";
    /// The load decides the size of a pool.
    PoolLoad "pool_load" = Reason::Pool(pooled) if pooled.cause() == PoolCause::Load => [pooled]
        "{needed} needed for load";
    /// A pool needs fewer replicas, for too short a time to scale down.
    PoolWaiting "pool_waiting"
        = Reason::Pool(pooled) if pooled.cause() == PoolCause::Waiting => [pooled]
        "{needed} needed; scale-down waits another {remaining}";
    /// Empty replicas of a pool are removed.
    PoolEmptied "pool_emptied"
        = Reason::Pool(pooled) if pooled.cause() == PoolCause::Emptied => [pooled]
        "{empty} empty, {needed} needed";
    /// Copies move, so that fewer replicas of a pool are enough.
    PoolPacked "pool_packed" = Reason::Pool(pooled) if pooled.cause() == PoolCause::Packed => [pooled]
        "packing onto fewer replicas (copies to move: {moved})";
    /// A pool needs fewer replicas, none is empty, and packing is off or not possible now.
    PoolKept "pool_kept" = Reason::Pool(pooled) => [pooled]
        "{needed} needed; none is empty, nothing is packed";
    /// Data for a decision is missing, so the last desired replicas stay.
    NoData "no_data" = Reason::NoData(_) => [] "held: no fresh data";
    /// Replicas that should report and do not are kept.
    IncompleteData "incomplete_data" = Reason::Incomplete { missing } => [missing]
        "scale-down blocked: no fresh data from {missing}";
    /// A signal that counts queued or rejected requests is not available, which blocks scale-down.
    SignalSilent "signal_silent" = Reason::Unheard { signal, why } => [signal, why]
        "scale-down blocked: no data from {signal}";
    /// The replicas of a variant of the model have not been listed, which blocks scale-down.
    NotListed "not_listed" = Reason::Unlisted { variant } => [variant]
        "scale-down blocked: replicas of {variant} not listed yet";
    /// The list of replicas is old, which blocks scale-down.
    OutdatedListing "outdated_listing" = Reason::Outdated { age } => [age]
        "scale-down blocked: replica list is {age} old";
    /// Replicas have not been measured for long enough, which blocks scale-down.
    Settling "settling" = Reason::Settling { remaining } => [remaining]
        "scale-down blocked for {remaining}: measuring replicas";
    /// The minimum is higher.
    BelowMin "below_min" = Reason::BelowMin(min) => [min] "raised to the minimum of {min}";
    /// The maximum is lower.
    AboveMax "above_max" = Reason::AboveMax(max) => [max] "limited to the maximum of {max}";
    /// No number of replicas of this variant meets a latency target.
    SloUnmeetable "slo_unmeetable" = Reason::SloUnmeetable(why) => [why]
        "latency target[ {target}] is unreachable[ (idle: {idle})]";
    /// A recommendation inside the stabilization window holds desired replicas.
    Stabilized "stabilized" = Reason::Stabilized { window } => [window]
        "held by the stabilization window of {window}";
    /// An HPA has a stabilization window of its own.
    LeftToHpa "left_to_hpa" = Reason::Restrained(Restraint::LeftToHpa { hpa, window })
        => [hpa, window] "stabilization left to HPA {hpa} ({window} window)";
    /// Desired replicas changed in the other direction too recently.
    Dwelling "dwelling" = Reason::Restrained(Restraint::Dwelling { direction, remaining })
        => [direction, remaining] "scale-{direction} blocked for {remaining} by the dwell time";
    /// Desired replicas changed direction as often as the flap budget allows within an hour.
    FlapBudgetSpent "flap_budget_spent"
        = Reason::Restrained(Restraint::FlapBudgetSpent { turned, refills_in })
        => [turned, refills_in] "scale-down blocked for {refills_in}: flap budget spent";
    /// Demand has jumped, so nothing is scaled down and no window delays scale-up.
    Burst "burst" = Reason::Restrained(Restraint::Burst { asked, mean, age, remaining })
        => [asked, mean, age, remaining] "demand burst to {asked}; no scale-down for {remaining}";
    /// The scaling policy allows no larger change now.
    StepLimited "step_limited" = Reason::StepLimited { period } => [period]
        "[limited by the scaling policy over {period}|select_policy disables this direction]";
    /// The model is proved to be idle.
    Idle "idle" = Reason::Zero(Move::ToZero(idleness)) => [idleness]
        "model is idle[ for {retention}]";
    /// The model is not proved to be idle, so it keeps a replica.
    IdleUnproved "idle_unproved" = Reason::Zero(Move::Stays(idleness)) => [idleness]
        "not scaled to zero: model is not proved idle";
    /// The model is idle, and a variant of the other role must keep replicas.
    Paired "paired" = Reason::Zero(Move::Paired { with, min }) => [with, min]
        "not scaled to zero: {with} keeps {min} and needs it";
    /// Requests queue for a model without replicas.
    Woken "woken" = Reason::Zero(Move::Woken { queued, signal }) => [queued, signal]
        "woken: {queued} queued by {signal}";
    /// The model was woken recently, so it keeps a replica for now.
    KeptAwake "kept_awake" = Reason::Zero(Move::KeptAwake { ago, at_least })
        => [ago, at_least] "kept awake: woken {ago} ago";
    /// A person has pinned desired replicas, within bounds and limits.
    Pinned "pinned" = Reason::Pinned { replicas, until, by } => [replicas, until, by]
        "pinned to {replicas} until {until}";
    /// A person has paused the variant, so desired replicas stay, within bounds and limits.
    Paused "paused" = Reason::Paused { until, by } => [until, by]
        "paused until {until}";
    /// A limit that was never read blocks scale-up.
    LimitUnread "limit_unread" = Reason::Limited(LimitedReason::Cut {
        cut: Cut { why: GrantRefusal::Unread, limit }, ..
    }) => [limit] "limit {limit} has not been read yet";
    /// A quota, an inventory or a budget limits the variant.
    Limited "limited" = Reason::Limited(LimitedReason::Cut { cut, age, price: _ }) => [cut, age]
        "limited by {limit}[: {needed} needed, {free} free]";
    /// A limit holds back another variant of the model, so this one is planned in its place.
    LimitedElsewhere "limited_elsewhere" = Reason::Limited(LimitedReason::Instead { of, limit, rank: _ })
        => [of, limit] "{limit} limits {of}; planned with the rest";
    /// The decisions broke an invariant, so the last valid desired replicas stay.
    Refused "refused" = Reason::Refused(violation) => [violation]
        "not published: an invariant is broken";
    /// Another replica of Plimsoll decided it, and its reason has no data here.
    Told "told" = Reason::Told(_) => [] "decided by another replica";
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::analyze::ballot::{Analyzer, BallotVerdict, BindingVote, StayReason, VoterStanding};
    use crate::analyze::capacity::Unit;
    use crate::analyze::foresight::card::CardTitle;
    use crate::analyze::foresight::demand::{BurstDemand, RequiredCapacity};
    use crate::analyze::foresight::estimate::Teacher;
    use crate::analyze::foresight::gateway::GatewayBacklog;
    use crate::analyze::foresight::policy::Rounding;
    use crate::analyze::foresight::standby::Relief;
    use crate::analyze::foresight::{DemandForecast, Floor};
    use crate::analyze::queueing::{
        LatencyMetric, LatencyTarget, Percentile, QueueingRefusal, Statistic,
    };
    use crate::analyze::saturation::{
        NoMeasurement, SpareEnough, SpareKept, SpareLow, SpareTight, TightLoad, Transition,
    };
    use crate::decide::decision::{Stage, Step};
    use crate::decide::enforce::direction::ScalingDirection;
    use crate::decide::limited::{ScarceResource, ShadowPrice};
    use crate::decide::optimize::PlanMethod;
    use crate::decide::pools::adapters::{PoolNeed, SlotNeed};
    use crate::decide::pools::packing::{Lowering, NoPacking};
    use crate::decide::pools::pooled::PoolUncertainty;
    use crate::decide::rank::{
        NoScore, Rank, RankOption, RankRecord, RankRound, Ranking, Residual,
    };
    use crate::decide::sized::{
        CapacityBound, CapacityEstimate, CapacityInterval, Shortfall, SizingValues, SlowestReplica,
        Starvation,
    };
    use crate::decide::zero::{IdleEvidence, Idleness, UnknownIdleness};
    use crate::fleet::{
        Accelerator, LimitName, ModelName, ReplicaName, Role, VariantKey, VariantSpec,
    };
    use crate::observe::adapters::Unlisted;
    use crate::observe::engine::lora::Slots;
    use crate::units::{Amount, CostPerHour, Fraction, Gpus, RequestRate, Requests, Tokens};

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn seconds(seconds: f64) -> Seconds {
        Seconds::new(seconds).unwrap()
    }

    fn share(share: f64) -> Fraction {
        Fraction::new(share).unwrap()
    }

    fn requests(count: f64) -> Requests {
        Requests::new(count).unwrap()
    }

    fn amount(amount: f64) -> Amount {
        Amount::new(amount).unwrap()
    }

    fn rate(rate: f64) -> RequestRate {
        RequestRate::new(rate).unwrap()
    }

    fn tokens(tokens: f64) -> Tokens {
        Tokens::new(tokens).unwrap()
    }

    fn money(money: f64) -> CostPerHour {
        CostPerHour::new(money).unwrap()
    }

    fn option(scored: Result<RankRecord, NoScore>) -> RankOption {
        RankOption { key: key(), served: amount(8.3), scored }
    }

    fn key() -> VariantKey {
        VariantSpec::example("llama-h100").key
    }

    fn limit() -> LimitName {
        LimitName::new("quota").unwrap()
    }

    fn h100() -> Accelerator {
        Accelerator::new("H100").unwrap()
    }

    fn rank() -> Rank {
        let record = RankRecord {
            count: n(2),
            counted: 1.7,
            real: CostPerHour::new(12.1).unwrap(),
            theoretical: CostPerHour::new(6.15).unwrap(),
            ratio: 1.86,
            unfitness: 0.5,
            suppressed: 1.1,
            cold: 2.0,
            mismatch: 1.0,
            score: 1.0 / 3.0,
        };

        let options = vec![option(Ok(record)), option(Err(NoScore::NoSize))];
        let round = RankRound { options, taken: (key(), n(2)), served: amount(8.3) };
        let residual =
            Residual { rounds: vec![round], unserved: amount(0.1), preferred: Some(amount(5.0)) };
        let ranking = Ranking { unit: Unit::KvTokens, role: Some(Role::Decode), residual };
        Rank { variant: key(), rankings: Arc::from([ranking]) }
    }

    fn foreseen() -> DemandForecast {
        let gateway = GatewayBacklog { requests: 12.0, adds: 0.4, takes: None, allowed: 2.0 };
        let need = RequiredCapacity {
            arriving: 30.1,
            growth: Some(35.7),
            unevenness: Some(1.1),
            young: Some(0.0),
            bursts: Some(BurstDemand { rate: 33.3, window: 15 }),
            gateway: Some(gateway),
            total: 37.6,
            ..RequiredCapacity::default()
        };

        DemandForecast {
            role: Role::Both,
            need,
            held: 37.6,
            since: Timestamp::from_second(1_800_000_000).unwrap(),
            least: 9.1,
            carries: 9.77,
            unused: 0.0,
            bound: Some(CapacityBound::Itl),
            horizon: 95.0,
            relief: Some(Relief { startup: 12.0, reserve: 1.5, bridge: 0.0 }),
            mature: true,
            used: share(0.9),
            rounding: Rounding { excess: share(0.05), spare: share(0.25) },
        }
    }

    fn sized(because: PlanReason) -> Reason {
        let analyzer = Analyzer::Foresight;
        let unit = Unit::RequestsPerSecond;
        let binding = BindingVote { analyzer, unit, amount: amount(8.3), supply: amount(29.3) };
        let verdict = match because {
            PlanReason::Added | PlanReason::Tried => BallotVerdict::Grow(binding),
            PlanReason::Removed | PlanReason::Replaced => BallotVerdict::Shrink(binding),
            PlanReason::Refused { .. } => {
                BallotVerdict::Stay(StayReason::NotHeard(Analyzer::Queueing))
            }
            _ => BallotVerdict::Held,
        };

        let sizing = SizingValues {
            verdict,
            method: PlanMethod::Exact { steps: 5 },
            stuck: n(2),
            unplaced: n(1),
            asleep: n(0),
            absent: vec![(Analyzer::Queueing, VoterStanding::Stale(seconds(391.0)))],
            short: Shortfall::Some,
            rank: Some(Box::new(rank())),
            foreseen: Some(foreseen()),
            card: Some(CardTitle {
                model: ModelName::new("meta/llama").unwrap(),
                accelerator: h100(),
                from: Some(key()),
                at: Some(Timestamp::from_second(1_800_000_000).unwrap()),
                prompt: tokens(512.5),
                output: tokens(128.25),
            }),
            carries: Some(CapacityEstimate {
                rate: rate(9.77),
                usable: Fraction::ONE,
                interval: Some(CapacityInterval { low: rate(8.1), high: rate(11.2) }),
                bound: CapacityBound::Itl,
                said_by: Teacher::Card,
            }),
            slowest: Some(SlowestReplica {
                replica: ReplicaName::new("llama-7d4").unwrap(),
                factor: Fraction::new(1.8).unwrap(),
                peers: 3,
            }),
            starving: Some(Starvation {
                arriving: 12.5,
                waiting: 40.0,
                others: 0.3,
                replicas: n(3),
            }),
        };

        Reason::Sized(SizedReason::new(because, Arc::new(sizing)))
    }

    fn pooled(
        lowering: Lowering,
        unsure: Option<PoolUncertainty>,
        copies: u32,
        load: u32,
    ) -> Reason {
        let known = SlotNeed::Known { copies: n(4), slots: Slots::new(2).unwrap(), replicas: n(2) };
        let need = PoolNeed {
            copies: (copies > 0).then(|| (ModelName::new("sql").unwrap(), n(copies))),
            slots: if copies > 0 { known } else { SlotNeed::Unknown },
            load: Some(n(load)),
        };
        Reason::Pool(Box::new(PoolReason { need, lowering, unsure }))
    }

    fn cut(why: GrantRefusal) -> Reason {
        let price = ShadowPrice {
            of: ScarceResource::Accelerator(Some(h100())),
            next: key(),
            carries: Amount::new(9.1).unwrap(),
            unit: Unit::KvTokens,
        };

        let cut = Cut { limit: limit(), why };
        Reason::Limited(LimitedReason::Cut { cut, age: Some(seconds(61.0)), price: Some(price) })
    }

    /// One or more reasons for every code, in the order of the rows.
    fn examples() -> Vec<Reason> {
        let mut all = of_the_analysis();
        all.extend(of_plans_and_pools());
        all.extend(of_data_and_bounds());
        all.extend(of_rules_and_zero());
        all.extend(of_limits());
        all
    }

    fn of_the_analysis() -> Vec<Reason> {
        let kv = Some((share(0.045), share(0.1)));
        let queue = Some((requests(1.5), requests(2.0)));
        let enough = SpareEnough { kv: share(0.31), queue: requests(4.4) };
        let tight = SpareTight {
            kv: Some(TightLoad { load: share(0.77), threshold: share(0.8), trigger: share(0.1) }),
            queue: Some(TightLoad {
                load: requests(4.0),
                threshold: requests(5.0),
                trigger: requests(3.0),
            }),
        };

        [
            SaturationOutcome::SpareLow(SpareLow { kv, queue }),
            SaturationOutcome::SpareLow(SpareLow { kv: None, queue }),
            SaturationOutcome::SpareLowElsewhere(key()),
            SaturationOutcome::SpareLowNoRoom(SpareLow { kv, queue: None }),
            SaturationOutcome::SpareEnough(enough),
            SaturationOutcome::SpareEnoughElsewhere(key()),
            SaturationOutcome::SpareKept(SpareKept::NoneToSpare(enough)),
            SaturationOutcome::SpareKept(SpareKept::Tight(tight)),
            SaturationOutcome::SpareKept(SpareKept::TooFew { non_saturated: n(1) }),
            SaturationOutcome::Transition(Transition::Pending(key())),
            SaturationOutcome::Unmeasured(NoMeasurement::NoReplicas),
        ]
        .map(Reason::Load)
        .into()
    }

    fn of_plans_and_pools() -> Vec<Reason> {
        let unsure = PoolUncertainty::Unlisted {
            replica: ReplicaName::new("p-0").unwrap(),
            replicas: n(2),
            why: Some(Unlisted::Stale(seconds(12.0))),
        };
        let remaining = seconds(44.0);
        let unpacked = NoPacking::TooMany { moved: n(9), max: n(8) };
        let emptied =
            Lowering::Emptied { left: n(3), needed: n(2), empty: n(1), unpacked: Some(unpacked) };
        let bridge = Bridge { replicas: n(2), missing: 8.25, startup: 12.0 };

        let mut unused = sized(PlanReason::Kept);
        if let Reason::Sized(reason) = &mut unused {
            let sizing = Arc::make_mut(&mut reason.sizing);
            let carries = sizing.carries;
            *sizing = SizingValues {
                verdict: sizing.verdict,
                method: sizing.method,
                stuck: n(0),
                unplaced: n(0),
                asleep: n(0),
                absent: Vec::new(),
                short: Shortfall::None,
                rank: None,
                foreseen: None,
                card: None,
                carries: carries.map(|it| CapacityEstimate { usable: Fraction::ZERO, ..it }),
                slowest: None,
                starving: None,
            };
        }

        let mut preferred = sized(PlanReason::Kept);
        if let Reason::Sized(reason) = &mut preferred {
            reason.because = PlanReason::Added;
        }

        let mut short = sized(PlanReason::Added);
        let mut elsewhere = sized(PlanReason::Added);
        for (reason, left) in [(&mut short, Shortfall::Some), (&mut elsewhere, Shortfall::None)] {
            let Reason::Sized(reason) = reason else { continue };
            reason.because = PlanReason::Kept;
            Arc::make_mut(&mut reason.sizing).short = left;
        }

        vec![
            short,
            elsewhere,
            sized(PlanReason::Kept),
            unused,
            preferred,
            sized(PlanReason::Added),
            sized(PlanReason::Tried),
            sized(PlanReason::Removed),
            sized(PlanReason::Replaced),
            sized(PlanReason::Serving { planned: n(2) }),
            sized(PlanReason::Refused { planned: n(1) }),
            sized(PlanReason::Unknown),
            Reason::Bridged(bridge),
            pooled(Lowering::Needed(n(2)), Some(unsure), 1, 1),
            pooled(Lowering::Needed(n(0)), None, 0, 0),
            pooled(Lowering::Needed(n(3)), None, 3, 1),
            pooled(Lowering::Needed(n(2)), None, 1, 1),
            pooled(Lowering::Needed(n(5)), None, 1, 5),
            pooled(Lowering::Waiting { asked: n(3), needed: n(2), remaining }, None, 1, 1),
            pooled(emptied, None, 1, 1),
            pooled(Lowering::Packed { asked: n(3), left: n(2), moved: n(4) }, None, 1, 1),
            pooled(Lowering::Kept { asked: n(3), needed: n(2), unpacked }, None, 1, 1),
        ]
    }

    fn of_data_and_bounds() -> Vec<Reason> {
        let percentile = Percentile::new(share(0.95)).unwrap();
        let of = Statistic::Percentile(percentile);
        let target = LatencyTarget { limit: seconds(0.005), of };
        let floor = QueueingRefusal::IdleFloor {
            metric: LatencyMetric::Ttft,
            target,
            idle: seconds(0.0655),
        };
        let overload = QueueingRefusal::Overload { arrival: rate(30.5), max: rate(12.0) };
        let floors = Floor { target: seconds(0.05), alone: seconds(0.07), share: share(0.9) };

        vec![
            Reason::NoData(NoData::ScaleUnknown("no such object".to_owned())),
            Reason::Incomplete { missing: n(1) },
            Reason::Unheard { signal: "epp".to_owned(), why: UnusableSignal::For(seconds(31.0)) },
            Reason::Unlisted { variant: key().variant },
            Reason::Outdated { age: seconds(391.4) },
            Reason::Settling { remaining: seconds(20.2) },
            Reason::BelowMin(n(3)),
            Reason::AboveMax(n(9)),
            Reason::SloUnmeetable(UnmeetableTarget::Queueing(floor)),
            Reason::SloUnmeetable(UnmeetableTarget::Foresight(floors)),
            Reason::SloUnmeetable(UnmeetableTarget::Queueing(overload)),
            Reason::Stabilized { window: seconds(300.0) },
        ]
    }

    fn of_rules_and_zero() -> Vec<Reason> {
        let remaining = seconds(59.5);
        let asked = n(6);
        let until = Timestamp::from_second(1_800_000_000).unwrap();
        let evidence = IdleEvidence { replicas: n(2), pages: 1200 };
        let too_short =
            UnknownIdleness::TooShort { seen: seconds(60.0), retention: seconds(600.0) };

        vec![
            Reason::Restrained(Restraint::LeftToHpa {
                hpa: "llama".to_owned(),
                window: seconds(600.0),
            }),
            Reason::Restrained(Restraint::Dwelling {
                direction: ScalingDirection::Down,
                remaining,
            }),
            Reason::Restrained(Restraint::FlapBudgetSpent { turned: 2, refills_in: remaining }),
            Reason::Restrained(Restraint::Burst { asked, mean: 2.5, age: remaining, remaining }),
            Reason::StepLimited { period: Some(seconds(60.0)) },
            Reason::StepLimited { period: None },
            Reason::Zero(Move::ToZero(Idleness::Proved { retention: seconds(600.0), evidence })),
            Reason::Zero(Move::Stays(Idleness::Unproved(too_short))),
            Reason::Zero(Move::Paired { with: key().variant, min: n(1) }),
            Reason::Zero(Move::Woken { queued: requests(3.0), signal: "epp".to_owned() }),
            Reason::Zero(Move::KeptAwake { ago: remaining, at_least: seconds(300.0) }),
            Reason::Pinned { replicas: n(6), until, by: OverrideSource::Api },
            Reason::Paused { until, by: OverrideSource::Annotation },
        ]
    }

    fn of_limits() -> Vec<Reason> {
        let gpus = Gpus::new;
        let instead = LimitedReason::Instead {
            of: key().variant,
            limit: limit(),
            rank: Some(Box::new(rank())),
        };
        let told = RemoteReason { code: ReasonCode::Told, text: "decided by a".to_owned() };

        vec![
            cut(GrantRefusal::Unread),
            cut(GrantRefusal::Accelerators { kind: Some(h100()), needed: gpus(4), free: gpus(0) }),
            cut(GrantRefusal::Budget { needed: money(12.0), left: money(3.5) }),
            Reason::Limited(instead),
            Reason::Refused(Violation::OutOfBounds(key(), n(7))),
            Reason::Told(told),
        ]
    }

    #[test]
    fn every_code_has_an_example_in_the_order_of_the_rows() {
        let mut codes: Vec<ReasonCode> = examples().iter().map(Reason::code).collect();
        codes.dedup();
        assert_eq!(codes, ReasonCode::ALL);
    }

    #[test]
    fn every_reason_is_the_same_after_it_was_written_and_read() {
        for reason in examples() {
            let text = serde_json::to_string(&reason).unwrap();
            let read: Reason =
                serde_json::from_str(&text).unwrap_or_else(|it| panic!("{it}: {text}"));
            assert_eq!(read, reason, "{text}");
        }
    }

    #[test]
    fn every_reason_has_a_headline_that_fits_and_facts_by_different_names() {
        for reason in examples() {
            let step = Step { stage: Stage::Analyze, before: n(10), after: n(12), reason };
            let headline = step.headline();
            let facts = step.reason.facts();

            let cut_off = headline.ends_with('\u{2026}');
            assert!(headline.chars().count() <= 80 && !cut_off, "{headline}");
            assert!(!headline.contains(['{', '[', '|']), "{headline}");
            for (index, fact) in facts.iter().enumerate() {
                assert!(facts[..index].iter().all(|it| it.name != fact.name), "{facts:?}");
            }
        }
    }

    #[test]
    fn the_headline_and_the_facts_of_every_example_are_as_reviewed() {
        let mut text = String::new();
        for reason in examples() {
            let step = Step { stage: Stage::Analyze, before: n(10), after: n(12), reason };
            let mut lines = vec![step.headline()];
            let facts = step.reason.facts();
            lines.extend(facts.iter().map(|fact| format!("  - {}: {fact}", fact.name)));
            text += &(lines.join("\n") + "\n");
        }

        let reviewed = include_str!("reason/examples.txt");
        assert!(text == reviewed, "src/core/decide/reason/examples.txt would be:\n{text}");
    }

    #[test]
    fn what_is_scattered_states_what_the_best_node_has() {
        let gpus = Gpus::new;
        let (kind, needed, largest, free) = (h100(), gpus(4), gpus(2), gpus(6));
        let facts = cut(GrantRefusal::Scattered { kind, needed, largest, free }).facts();
        let value = |name| facts.iter().find(|it| it.name == name).map(|it| it.value.clone());
        for (name, count) in [("needed", 4.0), ("free", 6.0), ("free_on_one_node", 2.0)] {
            assert_eq!(value(name), Some(FactValue::Number(count)), "{name} of {facts:?}");
        }
    }

    #[test]
    fn a_plan_states_what_is_not_used_and_where_its_capacity_is_from() {
        let card = "taken from the card of meta/llama on H100 that shop/llama-h100 taught";
        let not_used = "it is unused, because the router would fill it before the other variants";
        for reason in of_plans_and_pools() {
            let Reason::Sized(SizedReason { sizing: sized, .. }) = &reason else { continue };
            let text = reason.to_string();
            assert_eq!(text.contains(card), sized.card.is_some(), "{text}");
            let is_unused = sized.carries.is_some_and(|it| it.usable == Fraction::ZERO);
            assert_eq!(text.contains(not_used), is_unused, "{text}");
            assert_eq!(text.contains("stuck in startup"), sized.stuck > n(0), "{text}");
        }
    }

    #[test]
    fn capacity_that_is_short_is_not_called_sufficient() {
        let Reason::Sized(SizedReason { sizing, .. }) = sized(PlanReason::Added) else { panic!() };
        for short in [Shortfall::Some, Shortfall::None] {
            let values = Arc::new(SizingValues { short, ..SizingValues::clone(&sizing) });
            let reason = Reason::Sized(SizedReason::new(PlanReason::Kept, values));
            let has_remedy = reason.code().remedy().is_some();
            let step = Step { stage: Stage::Analyze, before: n(3), after: n(3), reason };
            let headline = step.headline();
            assert!(
                headline.contains("demand 37.6 req/s exceeds capacity 29.3 req/s"),
                "{headline}"
            );
            assert_eq!(has_remedy, short == Shortfall::Some, "{headline}");
        }
    }

    #[test]
    fn replicas_removed_by_a_lower_maximum_are_not_called_spare() {
        let Reason::Sized(SizedReason { sizing, .. }) = sized(PlanReason::Kept) else { panic!() };
        let removed = Reason::Sized(SizedReason::new(PlanReason::Removed, sizing));
        let text = removed.to_string();
        assert!(text.contains("fewer of this variant"), "{text}");
        assert!(!text.contains("enough capacity"), "{text}");

        let step = Step { stage: Stage::Analyze, before: n(12), after: n(10), reason: removed };
        assert_eq!(step.headline(), "Scale down 12 -> 10: the plan has fewer of this variant");
    }

    #[test]
    fn a_fact_has_about_three_digits_and_a_unit_of_a_readable_size() {
        for (number, unit, shown) in [
            (0.0, "requests", "0"),
            (0.126, "requests", "0.13"),
            (9.999, "requests", "10"),
            (10.04, "requests", "10"),
            (12.34, "requests", "12.3"),
            (99.96, "requests", "100"),
            (100.0, "requests", "100"),
            (9_999.0, "requests", "9999"),
            (10_000.0, "requests", "10k"),
            (9_999_999.0, "requests", "10000k"),
            (10_000_000.0, "requests", "10M"),
            (0.442, "ratio", "44.2%"),
            (0.0, "s", "0 s"),
            (0.0655, "s", "65.5 ms"),
            (1.0, "s", "1 s"),
            (59.1, "s", "60 s"),
            (1.0, "replicas", "1 replica"),
            (2.0, "replicas", "2 replicas"),
            (37.6, "requests/s", "37.6 req/s"),
            (45_176.0, "tokens", "45k tokens"),
        ] {
            let value = FactValue::Number(number);
            assert_eq!(ReasonFact { name: "a", value, unit: Some(unit) }.to_string(), shown);
        }
    }

    #[test]
    fn a_guard_that_keeps_replicas_is_no_scale_up() {
        let reason = Reason::Settling { remaining: seconds(28.0) };
        let step = Step { stage: Stage::Guard, before: n(3), after: n(6), reason };
        assert!(step.headline().starts_with("Keep 6, not 3: scale-down blocked for 28 s"));
    }

    #[test]
    fn a_headline_is_cut_where_a_name_is_too_long() {
        let hpa = "h".repeat(253);
        let reason = Reason::Restrained(Restraint::LeftToHpa { hpa, window: seconds(600.0) });
        let step = Step { stage: Stage::Stabilize, before: n(3), after: n(2), reason };
        let headline = step.headline();
        assert_eq!(headline.chars().count(), 80);
        assert!(headline.starts_with("Scale down 3 -> 2: stabilization left to HPA hhh"));
    }

    #[test]
    fn what_cannot_be_is_not_read() {
        for text in [
            r#"{"below_min":3000000}"#,
            r#"{"settling":{"remaining":-1.0}}"#,
            r#"{"unlisted":{"variant":""}}"#,
            r#"{"over_quota":1}"#,
        ] {
            assert!(serde_json::from_str::<Reason>(text).is_err(), "{text}");
        }
    }
}
