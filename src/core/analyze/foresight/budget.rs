//! The error budget: more is asked for while too many first tokens come late.
//!
//! Everything else here knows of trouble by what arrives and what waits. This term knows of it by
//! what users get: a share of requests may miss the objective for the first token, and while more
//! of them do and no replica is on its way, a share of the need is asked for in addition. It fades
//! once that is over. It is a correction of what a replica is believed to carry, where that is
//! believed wrongly, and it comes after the fact. So it is off unless it is asked for.
//!
//! # Model
//!
//! ```text
//! raised <- raised * exp(-dt / decay),  and  + step * dt / 15 s  where late / seen > share
//! ```
//!
//! A `dt` is the time since the term was last looked at, so that ticks of a second and of a quarter
//! of a minute ask for the same. Nothing is added on what nobody has seen: engines without buckets,
//! objectives beyond the last of them, and a single late request, which is chance.
//!
//! # Units
//!
//! `raised` is a share of the need; times are in seconds.

use jiff::Timestamp;

use crate::analyze::foresight::policy::ErrorBudget;
use crate::observe::histogram::Histogram;

/// Seconds that one `step` is for: a sync period of an HPA.
const STEP: f64 = 15.0;

/// The longest time in seconds that counts between two looks: the first tokens are those of about a
/// minute, and say nothing of what was before.
const LOOK_MAX: f64 = 60.0;

/// Late requests below which their share is chance.
const LATE_MIN: f64 = 2.0;

/// First tokens, and how many of them came late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Firsts {
    /// All of them.
    pub seen: f64,
    /// Those that came after the objective.
    pub late: f64,
}

/// What is asked for in addition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// As a share of the need.
    raised: f64,
    /// When it was looked at last.
    at: Option<Timestamp>,
}

// === impl Firsts ===

impl Firsts {
    /// Those of several histograms; one that cannot say which were late says nothing.
    #[must_use]
    pub fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>, objective: f64) -> Self {
        let mut firsts = Self::default();
        for histogram in histograms {
            if let Some(share) = histogram.share_above(objective) {
                firsts.seen += histogram.count;
                firsts.late += share * histogram.count;
            }
        }
        firsts
    }

    fn overspends(&self, policy: &ErrorBudget) -> bool {
        self.late >= LATE_MIN && self.late > policy.share.fraction() * self.seen
    }
}

// === impl Budget ===

impl Budget {
    /// Goes on from what was asked for before.
    #[must_use]
    pub(crate) const fn of(raised: f64, at: Timestamp) -> Self {
        Self { raised, at: Some(at) }
    }

    /// What is asked for in addition, as a share of the need.
    #[must_use]
    pub(crate) const fn raised(&self) -> f64 {
        self.raised
    }

    /// Looks at first tokens, unless a replica is on its way already.
    pub(crate) fn judge(
        &mut self,
        now: Timestamp,
        policy: &ErrorBudget,
        firsts: Option<Firsts>,
    ) -> f64 {
        let before = self.at.replace(now);
        let passed = before.map_or(0.0, |before| now.duration_since(before).as_secs_f64().max(0.0));
        self.raised *= (-passed / policy.decay.seconds()).exp();
        if firsts.is_some_and(|firsts| firsts.overspends(policy)) {
            let more = policy.step.fraction() * passed.min(LOOK_MAX) / STEP;
            self.raised = (self.raised + more).min(policy.cap.fraction());
        }
        self.raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    const fn firsts(seen: f64, late: f64) -> Firsts {
        Firsts { seen, late }
    }

    fn raised(every: i64, until: i64, seen: Option<Firsts>) -> f64 {
        let (mut budget, policy) = (Budget::default(), ErrorBudget::default());
        for second in (0..=until).step_by(usize::try_from(every).unwrap()) {
            let _ = budget.judge(at(second), &policy, seen);
        }
        budget.raised()
    }

    #[test]
    fn as_much_is_asked_for_however_often_anybody_looks() {
        let late = Some(firsts(1000.0, 11.0));
        let (seconds, quarters) = (raised(1, 60, late), raised(15, 60, late));
        assert!((seconds / 0.2 - 1.0).abs() < 0.05, "four times a twentieth: {seconds}");
        assert!((seconds / quarters - 1.0).abs() < 0.02, "{seconds} {quarters}");
    }

    #[test]
    fn what_keeps_the_budget_and_what_nobody_saw_ask_for_nothing() {
        let kept = [(1000.0, 10.0), (3.0, 1.0), (0.0, 0.0)];
        let kept = kept.map(|(seen, late)| Some(firsts(seen, late)));
        for seen in kept.into_iter().chain([None]) {
            assert!(raised(15, 600, seen).abs() < 1e-12, "{seen:?}");
        }
    }

    #[test]
    fn it_fades_and_never_exceeds_its_cap() {
        let policy = ErrorBudget::default();
        assert!(
            (raised(15, 100_000, Some(firsts(10.0, 10.0))) - policy.cap.fraction()).abs() < 1e-12
        );
        let mut budget = Budget::of(0.3, at(0));
        let left = budget.judge(at(900), &policy, None);
        assert!((left / 0.3 - (-1.0_f64).exp()).abs() < 1e-9, "{left}");
        // A clock that goes back lets nothing fade and nothing grow.
        assert!((budget.judge(at(0), &policy, Some(firsts(10.0, 10.0))) - left).abs() < 1e-12);
    }

    #[test]
    fn engines_without_buckets_say_nothing_of_what_was_late() {
        let inside = vec![(1.0, 50.0), (3.0, 90.0), (f64::INFINITY, 100.0)];
        let known = Histogram { sum: 1.0, count: 100.0, buckets: inside };
        let unknown = Histogram { sum: 1.0, count: 100.0, buckets: Vec::new() };
        let found = Firsts::of([&known, &unknown].into_iter(), 2.0);
        assert!((found.late - 30.0).abs() < 1e-9, "half of the 40 between 1 s and 3 s: {found:?}");
        assert!((found.seen - 100.0).abs() < 1e-9, "{found:?}");
        assert_eq!(Firsts::of([&known].into_iter(), 5.0), Firsts::default(), "beyond all edges");
    }
}
