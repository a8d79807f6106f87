//! Counterfactuals: the answers to "What would change this number?", found by deciding again.
//!
//! Each answer changes one input of a tick and decides the tick again by the same code. All of them
//! look at the *settled* number: the desired replicas once every wait has ended, if the load stays
//! as it is. So an answer does not depend on how long a window still lasts.
//!
//! # Search
//!
//! The load and the latency targets are searched by bisection between the value in effect and
//! [`REACH`] times more or less, until the ends differ by 0.5%. The reported value is always one
//! that was decided. If the number does not change at the far end either, there is no answer.
//!
//! Loads are compared with the desired replicas in effect, which readers see. While a scale-down
//! waits, the load is already below the threshold for fewer replicas, so that is searched among
//! higher loads, and the other way round.
//!
//! # Cost
//!
//! At most [`SOLVES_MAX`] decisions, and fewer once `goes_on` returns false. The answers say if
//! they are complete.

use std::cell::Cell;

use crate::decide::limit::{Cut, GrantRefusal};
use crate::decide::limited::LimitedReason;
use crate::decide::{Decision, Reason, Stage};
use crate::fleet::{Accelerator, Bounds, LimitName, VariantKey};
use crate::observe::overrides::Order;
use crate::pipeline::limits::raised::{LimitIncrease, RaisedLimit};
use crate::pipeline::repeat::{Change, RepeatableTick};
use crate::units::{CostPerHour, Fraction, Gpus, Replicas, Seconds};

/// The most decisions for the answers about one variant.
pub const SOLVES_MAX: u32 = 128;

/// The factor by which the load and the targets are changed. Its inverse is the other one.
const REACH: f64 = 20.0;

/// The difference of the ends at which a search ends, as a share.
const CLOSE: f64 = 0.005;

/// The most units by which a limit is raised.
const UNITS_MAX: u32 = 16;

/// The answers about one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Counterfactuals {
    /// The desired replicas of the tick; `None` if the variant has no decision.
    pub desired: Option<Replicas>,
    /// The desired replicas once every wait has ended, if the load stays as it is.
    pub settled: Option<Replicas>,
    /// The loads from which the settled number differs from the desired replicas.
    pub load: Result<LoadAnswer, Unanswered>,
    /// Other inputs that would change the number.
    pub changes: Vec<ChangeAnswer>,
    /// The decisions that were made to find the answers.
    pub solves: u32,
    /// Whether every question was asked.
    pub complete: bool,
}

/// The loads above and below which the settled number differs from the desired replicas in effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadAnswer {
    /// The quantity that is the load.
    pub measure: LoadMeasure,
    /// Its value now: requests per second, or a share.
    pub now: f64,
    /// The lowest load at which more replicas settle; `None` up to [`REACH`] times the load.
    pub up: Option<LoadThreshold>,
    /// The highest load at which fewer settle; `None` down to 1/[`REACH`] of the load.
    pub down: Option<LoadThreshold>,
}

/// The quantity that is the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMeasure {
    /// Arriving requests per second of the model, or of the role of the variant.
    Arrivals,
    /// The largest KV cache usage among the replicas of the variant, with queues in proportion.
    KvUsage,
}

/// A load, and the number at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadThreshold {
    /// The load.
    pub load: f64,
    /// The settled number at that load.
    pub desired: Replicas,
}

/// The reason why no load is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The variant has no decision.
    NoDecision,
    /// The decision is kept from before, because data is missing.
    NoData,
    /// A pin or a pause decides, and no load changes that.
    Overridden,
    /// Nothing arrives, and no multiple of nothing is a load.
    NoLoad,
    /// An analyzer decides whose load cannot be changed after it was measured.
    OtherAnalyzer,
    /// The cost bound was reached.
    TooCostly,
}

/// A changed input, and the number with it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeAnswer {
    /// The changed input.
    pub input: ChangedInput,
    /// The settled number with it.
    pub desired: Replicas,
}

/// An input with another value than it has.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangedInput {
    /// The target for the time to first token.
    Ttft {
        /// The value in effect.
        from: Seconds,
        /// The other value.
        to: Seconds,
    },
    /// The target for the mean time between tokens.
    Itl {
        /// The value in effect.
        from: Seconds,
        /// The other value.
        to: Seconds,
    },
    /// A limit allows more accelerators.
    Accelerators {
        /// The limit.
        limit: LimitName,
        /// The kind; `None` if the limit counts all kinds together.
        kind: Option<Accelerator>,
        /// The additional accelerators.
        more: Gpus,
    },
    /// A budget allows more.
    Budget {
        /// The limit.
        limit: LimitName,
        /// The additional cost per hour.
        more: CostPerHour,
    },
    /// Without the pin or the pause.
    NoOverride {
        /// The pin or the pause in effect.
        order: Order,
    },
    /// Without the maximum.
    NoMaximum {
        /// The maximum in effect.
        from: Replicas,
    },
    /// With another minimum.
    Minimum {
        /// The minimum in effect.
        from: Replicas,
        /// The other minimum.
        to: Replicas,
    },
}

/// Answers which changes would give a variant another number. `goes_on` is asked before each decision.
#[must_use]
pub fn answer(
    tick: &RepeatableTick,
    variant: &VariantKey,
    decision: Option<&Decision>,
    goes_on: &dyn Fn() -> bool,
) -> Counterfactuals {
    let solver = Solver { tick, variant, goes_on, solves: Cell::new(0), cut: Cell::new(false) };
    let desired = decision.map(Decision::desired);
    let settled = solver.decide(None);
    let load = solver.load(decision, settled.as_ref());
    let changes = settled.as_ref().map(|it| solver.changes(it)).unwrap_or_default();

    Counterfactuals {
        desired,
        settled: settled.as_ref().map(Decision::desired),
        load,
        changes,
        solves: solver.solves.get(),
        complete: !solver.cut.get(),
    }
}

/// The tick, and the cost so far.
struct Solver<'a> {
    tick: &'a RepeatableTick,
    variant: &'a VariantKey,
    goes_on: &'a dyn Fn() -> bool,
    solves: Cell<u32>,
    cut: Cell<bool>,
}

/// The direction in which a number changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    More,
    Fewer,
}

// === impl Aim ===

impl Aim {
    /// Returns true if `desired` differs from `number` in this direction.
    fn holds(self, desired: Replicas, number: Replicas) -> bool {
        match self {
            Self::More => desired > number,
            Self::Fewer => desired < number,
        }
    }
}

// === impl Solver ===

impl Solver<'_> {
    /// Decides again without waits and with a change; `None` if there is no decision, or the cost
    /// bound is reached.
    fn decide(&self, change: Option<Change>) -> Option<Decision> {
        if self.solves.get() >= SOLVES_MAX || !(self.goes_on)() {
            self.cut.set(true);
            return None;
        }

        self.solves.set(self.solves.get() + 1);
        let changes: Vec<Change> = std::iter::once(Change::NoWaits).chain(change).collect();
        self.tick.decide(self.variant, &changes)
    }

    fn desired(&self, change: Change) -> Option<Replicas> {
        self.decide(Some(change)).map(|decision| decision.desired())
    }

    fn load(
        &self,
        decision: Option<&Decision>,
        settled: Option<&Decision>,
    ) -> Result<LoadAnswer, Unanswered> {
        let decision = decision.ok_or(Unanswered::NoDecision)?;
        if decision.basis == crate::decide::Basis::Held {
            return Err(Unanswered::NoData);
        }

        let settled = settled.ok_or(Unanswered::TooCostly)?;
        if settled.overridden().is_some() {
            return Err(Unanswered::Overridden);
        }

        let (measure, now) = self.measure(settled)?;
        if now <= 0.0 {
            return Err(Unanswered::NoLoad);
        }

        let change = |factor: Fraction| match measure {
            LoadMeasure::Arrivals => Change::Arrivals(factor),
            LoadMeasure::KvUsage => Change::Saturation(factor),
        };
        let most = match measure {
            LoadMeasure::Arrivals => REACH,
            LoadMeasure::KvUsage => 1.0 / now,
        };
        let least = 1.0 / REACH;
        let before = decision.desired();
        let at_now = settled.desired();
        let threshold = |aim: Aim, toward: f64, away: f64| {
            let found = if aim.holds(at_now, before) {
                self.narrow(aim, before, (1.0, at_now), away, change)
            } else {
                self.search(aim, before, toward, change)?
            };
            Some(LoadThreshold { load: found.0 * now, desired: found.1 })
        };

        let up = threshold(Aim::More, most, least);
        let down = threshold(Aim::Fewer, least, most);
        Ok(LoadAnswer { measure, now, up, down })
    }

    /// The load behind a decision.
    fn measure(&self, decision: &Decision) -> Result<(LoadMeasure, f64), Unanswered> {
        let sizing = decision.sizing.as_ref();
        if let Some(foreseen) = sizing.and_then(|sizing| sizing.foreseen.as_ref()) {
            return match self.tick.policy().sizing.as_ref() {
                Some(sizing) if sizing.is_foreseen() => {
                    Ok((LoadMeasure::Arrivals, foreseen.need.arriving))
                }
                Some(_) | None => Err(Unanswered::OtherAnalyzer),
            };
        }

        let is_saturation = matches!(
            decision.steps.first().map(|step| (step.stage, &step.reason)),
            Some((Stage::Analyze, Reason::Load(_)))
        );
        match self.tick.fullest(self.variant) {
            Some(usage) if is_saturation => Ok((LoadMeasure::KvUsage, usage.fraction())),
            Some(_) | None => Err(Unanswered::OtherAnalyzer),
        }
    }

    /// The factor nearest to 1, between it and `far`, at which the number changes as aimed for.
    fn search(
        &self,
        aim: Aim,
        number: Replicas,
        far: f64,
        change: impl Fn(Fraction) -> Change,
    ) -> Option<(f64, Replicas)> {
        let found = (far, self.aimed(aim, number, change(Fraction::new(far)?))?);
        Some(self.bisect(aim, number, found, 1.0, change))
    }

    /// The factor farthest from 1, between it and `far`, at which the number is still as aimed for.
    fn narrow(
        &self,
        aim: Aim,
        number: Replicas,
        at_now: (f64, Replicas),
        far: f64,
        change: impl Fn(Fraction) -> Change,
    ) -> (f64, Replicas) {
        let at_far = Fraction::new(far).and_then(|it| self.aimed(aim, number, change(it)));
        match at_far {
            Some(desired) => (far, desired),
            None => self.bisect(aim, number, at_now, far, change),
        }
    }

    /// The factor nearest to `other`, where the number is not as aimed for, between it and `found`,
    /// where it is.
    fn bisect(
        &self,
        aim: Aim,
        number: Replicas,
        mut found: (f64, Replicas),
        mut other: f64,
        change: impl Fn(Fraction) -> Change,
    ) -> (f64, Replicas) {
        while (found.0 / other - 1.0_f64).abs() > CLOSE {
            let between = (found.0 * other).sqrt();
            let Some(factor) = Fraction::new(between) else { break };
            match self.aimed(aim, number, change(factor)) {
                Some(desired) => found = (between, desired),
                None if self.cut.get() => break,
                None => other = between,
            }
        }

        found
    }

    /// The desired replicas with a change, if they differ from `number` as aimed for.
    fn aimed(&self, aim: Aim, number: Replicas, change: Change) -> Option<Replicas> {
        self.desired(change).filter(|desired| aim.holds(*desired, number))
    }

    /// The other inputs that would change a settled decision.
    fn changes(&self, settled: &Decision) -> Vec<ChangeAnswer> {
        let mut answers = Vec::new();
        answers.extend(self.freed(settled));
        answers.extend(self.cut_limit(settled));
        answers.extend(self.bounds(settled));
        answers.extend(self.targets(settled));
        answers
    }

    /// The number without the pin or the pause.
    fn freed(&self, settled: &Decision) -> Option<ChangeAnswer> {
        let order = settled.overridden()?.order;
        let desired = self.desired(Change::NoOverride(self.variant.clone()))?;
        Some(ChangeAnswer { input: ChangedInput::NoOverride { order }, desired })
    }

    /// The fewest additional units of the limit that cuts the decision which change it.
    fn cut_limit(&self, settled: &Decision) -> Option<ChangeAnswer> {
        let cut = settled.steps.iter().rev().find_map(|step| match &step.reason {
            Reason::Limited(LimitedReason::Cut { cut, .. }) => Some(cut),
            _ => None,
        })?;
        let Cut { limit, why } = cut;
        let number = settled.desired();

        (1..=UNITS_MAX).find_map(|units| {
            let (by, input) = increase(limit, why, units)?;
            let raised = RaisedLimit { limit: limit.clone(), by };
            let desired = self.desired(Change::Limit(raised))?;
            (desired > number).then_some(ChangeAnswer { input, desired })
        })
    }

    /// The bound that the decision is at, if it would be another number without it.
    fn bounds(&self, settled: &Decision) -> Option<ChangeAnswer> {
        let bounds = settled.bounds;
        let number = settled.desired();
        let (other, input) = if !bounds.allow_up(number) {
            let from = bounds.max()?;
            (Bounds::new(bounds.min(), None)?, ChangedInput::NoMaximum { from })
        } else if number == bounds.min() && number > Replicas::ONE {
            let to = Replicas::ONE;
            (Bounds::new(to, bounds.max())?, ChangedInput::Minimum { from: bounds.min(), to })
        } else {
            return None;
        };

        let desired = self.desired(Change::Bounds(self.variant.clone(), other))?;
        (desired != number).then_some(ChangeAnswer { input, desired })
    }

    /// The latency targets nearest to those in effect with which fewer replicas are enough.
    fn targets(&self, settled: &Decision) -> Vec<ChangeAnswer> {
        let foreseen = settled.sizing.as_ref().and_then(|sizing| sizing.foreseen.as_ref());
        let sizing = self.tick.policy().sizing.as_ref().filter(|_| foreseen.is_some());
        let Some(foresight) = sizing.map(|sizing| &sizing.foresight) else { return Vec::new() };

        let number = settled.desired();
        let scaled =
            |from: Seconds, factor: f64| Seconds::new(from.seconds() * factor).unwrap_or(from);

        let from = foresight.ttft;
        let ttft = self.search(Aim::Fewer, number, REACH, |factor| {
            Change::Ttft(scaled(from, factor.fraction()))
        });
        let mut answers: Vec<ChangeAnswer> = Vec::new();
        answers.extend(ttft.map(|(factor, desired)| ChangeAnswer {
            input: ChangedInput::Ttft { from, to: scaled(from, factor) },
            desired,
        }));

        let Some(from) = foresight.itl else { return answers };
        let itl = self.search(Aim::Fewer, number, REACH, |factor| {
            Change::Itl(scaled(from, factor.fraction()))
        });
        answers.extend(itl.map(|(factor, desired)| ChangeAnswer {
            input: ChangedInput::Itl { from, to: scaled(from, factor) },
            desired,
        }));
        answers
    }
}

/// The increase of a limit by so many units, if more of it would help.
fn increase(
    limit: &LimitName,
    why: &GrantRefusal,
    units: u32,
) -> Option<(LimitIncrease, ChangedInput)> {
    let limit = limit.clone();
    match why {
        GrantRefusal::Accelerators { kind, .. } => {
            let more = Gpus::new(units);
            let by = LimitIncrease::Accelerators { kind: kind.clone(), count: more };
            Some((by, ChangedInput::Accelerators { limit, kind: kind.clone(), more }))
        }
        GrantRefusal::Scattered { kind, .. } | GrantRefusal::NotListed(kind) => {
            let more = Gpus::new(units);
            let kind = Some(kind.clone());
            let by = LimitIncrease::Accelerators { kind: kind.clone(), count: more };
            Some((by, ChangedInput::Accelerators { limit, kind, more }))
        }
        GrantRefusal::Budget { needed, left } => {
            let each = needed.per_hour();
            let more = CostPerHour::new(each * f64::from(units) - left.per_hour())?;
            Some((LimitIncrease::CostPerHour(more), ChangedInput::Budget { limit, more }))
        }
        GrantRefusal::UnknownKind | GrantRefusal::Unread => None,
    }
}
