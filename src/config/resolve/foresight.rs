//! What `foresight` judges by.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::analyze::foresight::policy::{
    Backlog, Bursts, ColdStart, ErrorBudget, Gateway, Growth, Hold, Learning, Memory, Policy, Ramp,
    Rounding, Schedule, Unevenness, Window, Young,
};
use crate::config::check::{Checks, Durations};
use crate::config::file;
use crate::config::resolve::seconds;
use crate::config::written::WrittenDuration;
use crate::decide::enforce::JITTER_MAX;
use crate::units::{Fraction, Requests, Seconds};

const PATH: &str = "capacity.foresight";

const SHARES: RangeInclusive<f64> = 0.05..=1.0;
/// What a term may be off by; beyond, it would be no more than a large fixed number.
const FACTORS: RangeInclusive<f64> = 0.0..=10.0;
/// Below one, what is capped would be below what arrives already.
const CAPS: RangeInclusive<f64> = 1.0..=10.0;
const COUNTS: RangeInclusive<f64> = 0.0..=1000.0;
/// Below one request in a batch, an engine is idle.
const BATCHES: RangeInclusive<f64> = 1.0..=256.0;
/// A noise of nothing would believe the last lesson alone.
const NOISES: RangeInclusive<f64> = 0.001..=1.0;
/// A replica that must be spare as a whole beside the one that goes is two that must.
const SPARES: RangeInclusive<f64> = 0.0..=1.0;
/// What is more than half a replica is not rounded away.
const EXCESSES: RangeInclusive<f64> = 0.0..=0.5;

const REACTIONS: Durations = Duration::ZERO..=Duration::from_mins(10);
/// Growth is looked for among the strides that are kept, which are those of 75 minutes, the longest
/// start-up time among them.
const LOOK_BACKS: Durations = Duration::from_mins(1)..=Duration::from_hours(1);
/// Single seconds are kept for little more than five minutes.
const BURSTS_OVER: Durations = Duration::from_mins(1)..=Duration::from_mins(5);
const DRAINS: Durations = Duration::from_secs(1)..=Duration::from_mins(10);
/// What fades sooner than a replica starts is gone before it can help.
const DECAYS: Durations = Duration::from_mins(1)..=Duration::from_hours(24);
const HOLDS: Durations = Duration::ZERO..=Duration::from_hours(24);
const JITTERS: Durations = Duration::ZERO..=JITTER_MAX;
/// A fleet is not judged by its first seconds.
const HISTORIES: Durations = Duration::from_secs(30)..=Duration::from_hours(1);
const MEMORIES: Durations = Duration::from_secs(10)..=Duration::from_hours(24);

/// Reads the keys of the section, or of a section in it.
struct Keys<'a, 'c> {
    path: String,
    checks: &'a mut Checks<'c>,
}

/// What the section says, over the defaults. The window of scaling down is waited for where it is
/// written and nothing else is said.
pub(crate) fn resolve(
    written: Option<&file::Foresight>,
    window: Window,
    checks: &mut Checks<'_>,
) -> Policy {
    let usual = Policy::default();
    let file::Foresight {
        limit_share,
        reaction_time,
        look_back,
        growth,
        ramp,
        unevenness,
        young,
        bursts,
        backlog,
        gateway,
        error_budget,
        schedule,
        hold,
        history_min,
        rounding,
        cold_start,
        memory,
        learning,
    } = written.cloned().unwrap_or_default();
    let mut keys = Keys { path: PATH.to_owned(), checks };
    Policy {
        limit_share: keys.factor("limit_share", limit_share, &SHARES, usual.limit_share),
        reaction: keys.time("reaction_time", reaction_time, &REACTIONS, usual.reaction),
        look_back: keys.time("look_back", look_back, &LOOK_BACKS, usual.look_back),
        growth: keys.growth(&growth.unwrap_or_default()),
        ramp: keys.ramp(&ramp.unwrap_or_default()),
        unevenness: keys.unevenness(&unevenness.unwrap_or_default()),
        young: keys.young(&young.unwrap_or_default()),
        bursts: keys.bursts(&bursts.unwrap_or_default()),
        backlog: keys.backlog(&backlog.unwrap_or_default()),
        gateway: keys.gateway(&gateway.unwrap_or_default()),
        error_budget: error_budget.and_then(|written| keys.error_budget(&written)),
        schedule: keys.schedule(&schedule.unwrap_or_default()),
        hold: keys.hold(&hold.unwrap_or_default(), window),
        history_min: keys.time("history_min", history_min, &HISTORIES, usual.history_min),
        rounding: keys.rounding(&rounding.unwrap_or_default()),
        cold_start: keys.cold_start(&cold_start.unwrap_or_default()),
        memory: keys.memory(&memory.unwrap_or_default()),
        learning: keys.learning(&learning.unwrap_or_default()),
        ..usual
    }
}

impl<'c> Keys<'_, 'c> {
    fn within(&mut self, section: &str) -> Keys<'_, 'c> {
        Keys { path: format!("{}.{section}", self.path), checks: self.checks }
    }

    /// The keys of a term; `None` where it is switched off, and then no other key has an effect.
    fn term<T: PartialEq + Default>(
        &mut self,
        section: &str,
        enabled: Option<bool>,
        rest: &T,
    ) -> Option<Keys<'_, 'c>> {
        let keys = self.within(section);
        if enabled != Some(false) {
            return Some(keys);
        }
        if *rest != T::default() {
            let rule = "is not enabled, so its other keys have no effect";
            keys.checks.problems.warning(keys.path, rule);
        }
        None
    }

    fn number(
        &mut self,
        key: &str,
        written: Option<f64>,
        allowed: &RangeInclusive<f64>,
    ) -> Option<f64> {
        self.checks.number(&format!("{}.{key}", self.path), written, allowed)
    }

    fn factor(
        &mut self,
        key: &str,
        written: Option<f64>,
        allowed: &RangeInclusive<f64>,
        usual: Fraction,
    ) -> Fraction {
        self.number(key, written, allowed).and_then(Fraction::new).unwrap_or(usual)
    }

    fn requests(&mut self, key: &str, written: Option<f64>, usual: Requests) -> Requests {
        self.number(key, written, &COUNTS).and_then(Requests::new).unwrap_or(usual)
    }

    fn time(
        &mut self,
        key: &str,
        written: Option<WrittenDuration>,
        allowed: &Durations,
        usual: Seconds,
    ) -> Seconds {
        let path = format!("{}.{key}", self.path);
        self.checks.duration(&path, written, allowed).map_or(usual, seconds)
    }

    fn growth(&mut self, written: &file::Growth) -> Option<Growth> {
        let rest = file::Growth { enabled: None, ..written.clone() };
        let mut keys = self.term("growth", written.enabled, &rest)?;
        let usual = Growth::default();
        Some(Growth {
            quantile: keys.factor("quantile", rest.quantile, &(0.0..=1.0), usual.quantile),
            cap: keys.factor("cap", rest.cap, &CAPS, usual.cap),
        })
    }

    fn ramp(&mut self, written: &file::Ramp) -> Option<Ramp> {
        let rest = file::Ramp { enabled: None, ..written.clone() };
        let mut keys = self.term("ramp", written.enabled, &rest)?;
        let usual = Ramp::default();
        let mut factor = |key, written, usual| keys.factor(key, written, &FACTORS, usual);
        Some(Ramp {
            certainty: factor("certainty", rest.certainty, usual.certainty),
            jump: factor("jump", rest.jump, usual.jump),
            still_rising: factor("still_rising", rest.still_rising, usual.still_rising),
            bend: factor("bend", rest.bend, usual.bend),
            cap: keys.factor("cap", rest.cap, &CAPS, usual.cap),
        })
    }

    fn unevenness(&mut self, written: &file::Unevenness) -> Option<Unevenness> {
        let rest = file::Unevenness { enabled: None, ..written.clone() };
        let mut keys = self.term("unevenness", written.enabled, &rest)?;
        let usual = Unevenness::default().deviations;
        Some(Unevenness { deviations: keys.factor("deviations", rest.deviations, &FACTORS, usual) })
    }

    fn young(&mut self, written: &file::Young) -> Option<Young> {
        let rest = file::Young { enabled: None, ..written.clone() };
        let mut keys = self.term("young", written.enabled, &rest)?;
        let usual = Young::default();
        Some(Young {
            margin: keys.factor("margin", rest.margin, &FACTORS, usual.margin),
            horizons: keys.factor("horizons", rest.horizons, &COUNTS, usual.horizons),
        })
    }

    fn bursts(&mut self, written: &file::Bursts) -> Option<Bursts> {
        let rest = file::Bursts { enabled: None, ..written.clone() };
        let mut keys = self.term("bursts", written.enabled, &rest)?;
        let usual = Bursts::default();
        Some(Bursts {
            quantile: keys.factor("quantile", rest.quantile, &(0.0..=1.0), usual.quantile),
            over: keys.time("over", rest.over, &BURSTS_OVER, usual.over),
            ttft_share: keys.factor("ttft_share", rest.ttft_share, &FACTORS, usual.ttft_share),
        })
    }

    fn backlog(&mut self, written: &file::Backlog) -> Option<Backlog> {
        let rest = file::Backlog { enabled: None, ..written.clone() };
        let mut keys = self.term("backlog", written.enabled, &rest)?;
        let usual = Backlog::default();
        Some(Backlog {
            usual: keys.requests("usual", rest.usual, usual.usual),
            drain: keys.time("drain", rest.drain, &DRAINS, usual.drain),
            cap: keys.factor("cap", rest.cap, &FACTORS, usual.cap),
        })
    }

    fn gateway(&mut self, written: &file::Gateway) -> Option<Gateway> {
        let rest = file::Gateway { enabled: None, ..written.clone() };
        let mut keys = self.term("gateway", written.enabled, &rest)?;
        let usual = Gateway::default();
        Some(Gateway {
            drain: keys.time("drain", rest.drain, &DRAINS, usual.drain),
            cap: keys.factor("cap", rest.cap, &FACTORS, usual.cap),
        })
    }

    fn error_budget(&mut self, written: &file::ErrorBudget) -> Option<ErrorBudget> {
        let rest = file::ErrorBudget { enabled: None, ..written.clone() };
        let mut keys = self.term("error_budget", written.enabled, &rest)?;
        let usual = ErrorBudget::default();
        Some(ErrorBudget {
            share: keys.factor("share", rest.share, &(0.0..=1.0), usual.share),
            step: keys.factor("step", rest.step, &(0.0..=1.0), usual.step),
            decay: keys.time("decay", rest.decay, &DECAYS, usual.decay),
            cap: keys.factor("cap", rest.cap, &FACTORS, usual.cap),
        })
    }

    fn schedule(&mut self, written: &file::Schedule) -> Option<Schedule> {
        let rest = file::Schedule { enabled: None, ..written.clone() };
        let mut keys = self.term("schedule", written.enabled, &rest)?;
        let usual = Schedule::default();
        Some(Schedule {
            share: keys.factor("share", rest.share, &FACTORS, usual.share),
            cap: keys.factor("cap", rest.cap, &CAPS, usual.cap),
        })
    }

    fn hold(&mut self, written: &file::Hold, window: Window) -> Option<Hold> {
        let rest = file::Hold { enabled: None, ..written.clone() };
        let mut keys = self.term("hold", written.enabled, &rest)?;
        let usual = Hold::default();
        Some(Hold {
            starts: keys.factor("starts", rest.starts, &FACTORS, usual.starts),
            min: keys.time("min", rest.min, &HOLDS, usual.min),
            jitter: keys.time("jitter", rest.jitter, &JITTERS, usual.jitter),
            window: match rest.replaces_window {
                Some(true) => Window::Replaced,
                Some(false) => Window::Waited,
                None => window,
            },
        })
    }

    fn rounding(&mut self, written: &file::Rounding) -> Rounding {
        let mut keys = self.within("rounding");
        let usual = Rounding::default();
        Rounding {
            excess: keys.factor("excess", written.excess, &EXCESSES, usual.excess),
            spare: keys.factor("spare", written.spare, &SPARES, usual.spare),
        }
    }

    fn cold_start(&mut self, written: &file::ColdStart) -> Option<ColdStart> {
        let rest = file::ColdStart { enabled: None, ..written.clone() };
        let mut keys = self.term("cold_start", written.enabled, &rest)?;
        let usual = ColdStart::default();
        Some(ColdStart {
            waiting: keys.requests("waiting", rest.waiting, usual.waiting),
            margin: keys.factor("margin", rest.margin, &FACTORS, usual.margin),
            times: keys.factor("times", rest.times, &CAPS, usual.times),
        })
    }

    fn memory(&mut self, &file::Memory { lengths, kv }: &file::Memory) -> Memory {
        let mut keys = self.within("memory");
        let usual = Memory::default();
        Memory {
            lengths: keys.time("lengths", lengths, &MEMORIES, usual.lengths),
            kv: keys.time("kv", kv, &MEMORIES, usual.kv),
        }
    }

    fn learning(&mut self, written: &file::Learning) -> Learning {
        let mut keys = self.within("learning");
        let usual = Learning::default();
        Learning {
            batch_min: keys.factor("batch_min", written.batch_min, &BATCHES, usual.batch_min),
            noise: keys.factor("noise", written.noise, &NOISES, usual.noise),
            drift: keys.factor("drift", written.drift, &(0.0..=1.0), usual.drift),
            clip: keys.factor("clip", written.clip, &CAPS, usual.clip),
        }
    }
}
