//! The values that a reason states, by name and with their units.

use std::fmt;

use jiff::Timestamp;

use crate::analyze::ballot::{Analyzer, BallotVerdict};
use crate::analyze::foresight::standby::Bridge;
use crate::analyze::queueing::QueueingRefusal;
use crate::analyze::saturation::{
    SpareEnough, SpareKept, SpareLow, SpareTight, TightLoad, Transition,
};
use crate::decide::check::violation::Violation;
use crate::decide::enforce::direction::ScalingDirection;
use crate::decide::limit::{Cut, GrantRefusal};
use crate::decide::optimize::PlanReason;
use crate::decide::pools::packing::Lowering;
use crate::decide::pools::pooled::PoolReason;
use crate::decide::sized::{SizedReason, SizingValues, UnmeetableTarget};
use crate::decide::unheard::UnusableSignal;
use crate::decide::zero::{IdleEvidence, Idleness, UnknownIdleness};
use crate::fleet::{Accelerator, LimitName, ModelName, VariantKey, VariantName};
use crate::observe::overrides::OverrideSource;
use crate::units::{CostPerHour, Fraction, Gpus, Replicas, RequestRate, Requests, Seconds, Tokens};

/// A value that a reason states.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasonFact {
    /// Its name in the reason.
    pub name: &'static str,
    /// The value.
    pub value: FactValue,
    /// Its unit; `None` for a text, and for a count of the things that its name states.
    pub unit: Option<&'static str>,
}

/// The value of a fact.
#[derive(Clone, Debug, PartialEq)]
pub enum FactValue {
    /// A number.
    Number(f64),
    /// A name or a word.
    Text(String),
}

/// Something that a reason states in one or more facts.
pub(super) trait Stated {
    /// Adds its facts. A fact without a more specific name gets this name.
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>);
}

// === impl ReasonFact ===

impl ReasonFact {
    fn number(name: &'static str, number: f64, unit: &'static str) -> Self {
        Self { name, value: FactValue::Number(number), unit: Some(unit) }
    }
}

impl fmt::Display for ReasonFact {
    /// Writes the value as in a headline: `3 replicas`, `37.6 req/s`, `44%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match &self.value {
            FactValue::Number(value) => *value,
            FactValue::Text(text) => return f.write_str(text),
        };

        match self.unit {
            Some(RATIO) => write!(f, "{}%", ThreeDigits(100.0 * number)),
            Some(SECONDS) if number > 0.0 && number < 1.0 => {
                write!(f, "{} ms", ThreeDigits(1000.0 * number))
            }
            Some(SECONDS) => write!(f, "{:.0} s", number.ceil()),
            Some(REPLICAS) if (number - 1.0).abs() < f64::EPSILON => f.write_str("1 replica"),
            Some("requests" | "accelerators") | None => write!(f, "{}", ThreeDigits(number)),
            Some("requests/s") => write!(f, "{} req/s", ThreeDigits(number)),
            Some(unit) => write!(f, "{} {unit}", ThreeDigits(number)),
        }
    }
}

/// A number with about three digits.
struct ThreeDigits(f64);

impl fmt::Display for ThreeDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        if number >= 1e7 {
            write!(f, "{:.0}M", number / 1e6)
        } else if number >= 1e4 {
            write!(f, "{:.0}k", number / 1e3)
        } else if number >= 100.0 {
            write!(f, "{number:.0}")
        } else {
            let decimals = if number >= 10.0 { 1 } else { 2 };
            let text = format!("{number:.decimals$}");
            f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

// === units ===

/// The unit of a share of a whole.
const RATIO: &str = "ratio";

/// The unit of time.
const SECONDS: &str = "s";

/// The unit of a replica count.
const REPLICAS: &str = "replicas";

impl Stated for Timestamp {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        let value = FactValue::Text(format!("{self:.0}"));
        facts.push(ReasonFact { name, value, unit: None });
    }
}

impl Stated for OverrideSource {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        facts.push(ReasonFact { name, value: FactValue::Text(self.to_string()), unit: None });
    }
}

/// States quantities in their units.
macro_rules! quantities {
    ($($quantity:ty, $number:expr, $unit:expr;)*) => {$(
        impl Stated for $quantity {
            fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
                let convert: fn($quantity) -> f64 = $number;
                facts.push(ReasonFact::number(name, convert(*self), $unit));
            }
        }
    )*};
}

quantities! {
    Seconds, Seconds::seconds, SECONDS;
    Replicas, |it| f64::from(it.count()), REPLICAS;
    Gpus, |it| f64::from(it.count()), "accelerators";
    Fraction, Fraction::fraction, RATIO;
    Requests, Requests::requests, "requests";
    RequestRate, RequestRate::requests_per_second, "requests/s";
    Tokens, Tokens::tokens, "tokens";
    CostPerHour, CostPerHour::per_hour, "per hour";
    f64, |it| it, REPLICAS;
}

/// States names and words as texts.
macro_rules! texts {
    ($($text:ty),*) => {$(
        impl Stated for $text {
            fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
                facts.push(ReasonFact { name, value: FactValue::Text(self.to_string()), unit: None });
            }
        }
    )*};
}

texts!(str, String, Analyzer, VariantKey, VariantName, LimitName, ModelName, Accelerator);

impl Stated for u32 {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        facts.push(ReasonFact { name, value: FactValue::Number(f64::from(*self)), unit: None });
    }
}

impl<T: Stated> Stated for Option<T> {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        if let Some(stated) = self {
            stated.state(name, facts);
        }
    }
}

// === the analysis ===

impl Stated for SpareLow {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        let Self { kv, queue } = self;
        if let Some((spare, trigger)) = kv {
            spare.state("kv_spare", facts);
            trigger.state("kv_trigger", facts);
        }

        if let Some((spare, trigger)) = queue {
            spare.state("queue_spare", facts);
            trigger.state("queue_trigger", facts);
        }
    }
}

impl Stated for SpareEnough {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        self.kv.state("kv_spare", facts);
        self.queue.state("queue_spare", facts);
    }
}

impl Stated for SpareKept {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        match self {
            Self::Tight(SpareTight { kv, queue }) => {
                if let Some(TightLoad { load, threshold, trigger }) = kv {
                    load.state("kv_load", facts);
                    threshold.state("kv_threshold", facts);
                    trigger.state("kv_trigger", facts);
                }

                if let Some(TightLoad { load, threshold, trigger }) = queue {
                    load.state("queue_load", facts);
                    threshold.state("queue_threshold", facts);
                    trigger.state("queue_trigger", facts);
                }
            }
            Self::TooFew { non_saturated } => non_saturated.state("non_saturated", facts),
            Self::NoneToSpare(enough) => enough.state(name, facts),
        }
    }
}

impl Stated for Transition {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        match self {
            Self::Pending(variant) | Self::NotActuated(variant) | Self::NotReporting(variant) => {
                variant.state("variant", facts);
            }
        }
    }
}

// === sizing ===

impl Stated for BallotVerdict {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        let (Self::Grow(binding) | Self::Shrink(binding)) = self else { return };
        let unit = binding.unit.label();
        let supply = binding.supply.amount();
        let amount = binding.amount.amount();

        binding.analyzer.state("analyzer", facts);
        facts.push(ReasonFact::number("capacity", supply, unit));
        if matches!(self, Self::Grow(_)) {
            facts.push(ReasonFact::number("shortfall", amount, unit));
            facts.push(ReasonFact::number("demand", supply + amount, unit));
        } else {
            facts.push(ReasonFact::number("spare", amount, unit));
            facts.push(ReasonFact::number("demand", (supply - amount).max(0.0), unit));
        }
    }
}

impl Stated for SizedReason {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        let Self { because, sizing } = self;
        let SizingValues { verdict, stuck, unplaced, asleep, absent, .. } = &**sizing;
        let SizingValues { foreseen, carries, card, starving, .. } = &**sizing;
        verdict.state(name, facts);

        if let PlanReason::Serving { planned } | PlanReason::Refused { planned } = because {
            planned.state("planned", facts);
        }
        if *stuck > Replicas::ZERO {
            stuck.state("stuck", facts);
        }
        if *unplaced > Replicas::ZERO {
            unplaced.state("unschedulable", facts);
        }
        if *asleep > Replicas::ZERO {
            asleep.state("asleep", facts);
        }
        for (analyzer, _) in absent {
            analyzer.state("absent", facts);
        }

        if let Some(foreseen) = foreseen {
            facts.push(ReasonFact::number("forecast", foreseen.held, "requests/s"));
        }
        if let Some(carries) = carries {
            carries.rate.state("capacity_per_replica", facts);
        }
        if let Some(starving) = starving {
            facts.push(ReasonFact::number("starving_arrivals", starving.arriving, "requests/s"));
            facts.push(ReasonFact::number("starving_queue", starving.waiting, "requests"));
        }

        card.as_ref().and_then(|card| card.from.clone()).state("card_of", facts);
    }
}

impl Stated for Bridge {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        let Self { replicas, missing, startup } = *self;
        replicas.state("replicas", facts);
        facts.push(ReasonFact::number("bridged", missing, "requests/s"));
        facts.push(ReasonFact::number("startup", startup, SECONDS));
    }
}

impl Stated for UnmeetableTarget {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        match self {
            Self::Foresight(floor) => {
                floor.target.state("target", facts);
                floor.alone.state("idle", facts);
            }
            Self::Queueing(QueueingRefusal::IdleFloor { metric, target, idle }) => {
                metric.label().state("metric", facts);
                target.limit.state("target", facts);
                idle.state("idle", facts);
            }
            Self::Queueing(QueueingRefusal::Overload { arrival, max }) => {
                arrival.state("demand", facts);
                max.state("capacity", facts);
            }
            Self::Queueing(QueueingRefusal::Idle | QueueingRefusal::NoWork) => {}
        }
    }
}

// === pools ===

impl Stated for PoolReason {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        let Self { need, lowering, unsure: _ } = self;
        need.replicas().state("needed", facts);
        if let Some((adapter, copies)) = &need.copies {
            adapter.state("adapter", facts);
            copies.state("copies", facts);
        }

        need.load.state("load", facts);
        match lowering {
            Lowering::Needed(_) | Lowering::Kept { .. } => {}
            Lowering::Waiting { remaining, .. } => remaining.state("remaining", facts),
            Lowering::Emptied { empty, .. } => empty.state("empty", facts),
            Lowering::Packed { moved, .. } => moved.count().state("moved", facts),
        }
    }
}

// === rules ===

impl Stated for ScalingDirection {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        match self {
            Self::Up => "up".state(name, facts),
            Self::Down => "down".state(name, facts),
        }
    }
}

impl Stated for UnusableSignal {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        match self {
            Self::Never | Self::NoNumber => {}
            Self::For(age) => age.state("age", facts),
            Self::Ahead(ahead) => ahead.state("ahead", facts),
        }
    }
}

impl Stated for Idleness {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        match self {
            Self::Proved { retention, evidence: IdleEvidence { replicas, pages: _ } } => {
                retention.state("retention", facts);
                replicas.state("replicas", facts);
            }
            Self::Busy { finished, on_replicas, in_front } => {
                finished.state("finished", facts);
                on_replicas.state("on_replicas", facts);
                in_front.state("in_front", facts);
            }
            Self::Unproved(UnknownIdleness::TooShort { seen, retention }) => {
                seen.state("seen", facts);
                retention.state("retention", facts);
            }
            Self::Unproved(UnknownIdleness::Starting(starting)) => {
                starting.state("starting", facts);
            }
            Self::Unproved(
                UnknownIdleness::Finished | UnknownIdleness::OnReplicas | UnknownIdleness::InFront,
            ) => {}
        }
    }
}

impl Stated for Cut {
    fn state(&self, _: &'static str, facts: &mut Vec<ReasonFact>) {
        let Self { limit, why } = self;
        limit.state("limit", facts);

        match why {
            GrantRefusal::Accelerators { kind, needed, free } => {
                kind.state("accelerator", facts);
                needed.state("needed", facts);
                free.state("free", facts);
            }
            GrantRefusal::Scattered { kind, needed, largest, free } => {
                kind.state("accelerator", facts);
                needed.state("needed", facts);
                free.state("free", facts);
                largest.state("free_on_one_node", facts);
            }
            GrantRefusal::Budget { needed, left } => {
                needed.state("needed", facts);
                left.state("free", facts);
            }
            GrantRefusal::NotListed(kind) => kind.state("accelerator", facts),
            GrantRefusal::UnknownKind | GrantRefusal::Unread => {}
        }
    }
}

impl Stated for Violation {
    fn state(&self, name: &'static str, facts: &mut Vec<ReasonFact>) {
        self.label().state(name, facts);
    }
}
