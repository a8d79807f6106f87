//! The error budget: an additional need while too many first tokens come late.
//!
//! All other terms detect overload from arrivals and queues. This term detects it from the latency
//! of users: a share of requests may miss the objective for the first token. While more of them do,
//! and no replica is starting, the need rises by a share. The addition fades once that is over. It
//! corrects an estimated capacity that is too high, and it comes after the fact. So it is off by
//! default.
//!
//! # Model
//!
//! ```text
//! raised <- raised * exp(-dt / decay),  and  + step * dt / 15 s  if late / seen > share
//! ```
//!
//! `dt` is the time since the last look, so ticks of a second and of a quarter of a minute add the
//! same. Nothing is added without a measurement: engines without buckets, and objectives beyond the
//! last bucket. A single late request is chance, and adds nothing either.
//!
//! # Units
//!
//! `raised` is a share of the need; times are in seconds.

use jiff::Timestamp;

use crate::analyze::foresight::policy::ErrorBudget;
use crate::observe::histogram::Histogram;

/// Seconds that one `step` is for: a sync period of an HPA.
const STEP: f64 = 15.0;

/// The longest time in seconds between two looks that counts. The first tokens are those of about a
/// minute, and show nothing about earlier times.
const LOOK_MAX: f64 = 60.0;

/// Late requests below which their share is chance.
const LATE_MIN: f64 = 2.0;

/// First tokens, and how many of them came late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FirstTokens {
    /// All of them.
    pub seen: f64,
    /// First tokens after the objective.
    pub late: f64,
}

/// The additional need.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetAddition {
    /// The addition as a share of the need.
    raised: f64,
    /// The instant of the last look.
    at: Option<Timestamp>,
}

// === impl FirstTokens ===

impl FirstTokens {
    /// The first tokens of several histograms. A histogram that cannot show
    /// which were late does not count.
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

// === impl BudgetAddition ===

impl BudgetAddition {
    /// Continues with a saved addition.
    #[must_use]
    pub(crate) const fn of(raised: f64, at: Timestamp) -> Self {
        Self { raised, at: Some(at) }
    }

    /// The additional need, as a share of the need.
    #[must_use]
    pub(crate) const fn raised(&self) -> f64 {
        self.raised
    }

    /// Updates the addition by the first tokens; `None` while a replica is starting.
    pub(crate) fn judge(
        &mut self,
        now: Timestamp,
        policy: &ErrorBudget,
        firsts: Option<FirstTokens>,
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

    const fn firsts(seen: f64, late: f64) -> FirstTokens {
        FirstTokens { seen, late }
    }

    fn raised(every: i64, until: i64, seen: Option<FirstTokens>) -> f64 {
        let mut budget = BudgetAddition::default();
        let policy = ErrorBudget::default();
        for second in (0..=until).step_by(usize::try_from(every).unwrap()) {
            let _ = budget.judge(at(second), &policy, seen);
        }

        budget.raised()
    }

    #[test]
    fn as_much_is_asked_for_however_often_anybody_looks() {
        let late = Some(firsts(1000.0, 11.0));
        let seconds = raised(1, 60, late);
        let quarters = raised(15, 60, late);
        assert!((seconds / 0.2 - 1.0).abs() < 0.05, "four times a twentieth: {seconds}");
        assert!((seconds / quarters - 1.0).abs() < 0.02, "{seconds} {quarters}");
    }

    #[test]
    fn a_kept_budget_and_unobserved_requests_ask_for_nothing() {
        assert!(raised(15, 600, None).abs() < 1e-12);
        for (seen, late) in [(1000.0, 10.0), (3.0, 1.0), (0.0, 0.0)] {
            assert!(raised(15, 600, Some(firsts(seen, late))).abs() < 1e-12, "{seen} {late}");
        }
    }

    #[test]
    fn it_fades_and_never_exceeds_its_cap() {
        let policy = ErrorBudget::default();
        assert!(
            (raised(15, 100_000, Some(firsts(10.0, 10.0))) - policy.cap.fraction()).abs() < 1e-12
        );

        let mut budget = BudgetAddition::of(0.3, at(0));
        let left = budget.judge(at(900), &policy, None);
        assert!((left / 0.3 - (-1.0_f64).exp()).abs() < 1e-9, "{left}");
        // After a clock jump back, nothing fades and nothing grows.
        assert!((budget.judge(at(0), &policy, Some(firsts(10.0, 10.0))) - left).abs() < 1e-12);
    }

    #[test]
    fn engines_without_buckets_say_nothing_of_what_was_late() {
        let inside = vec![(1.0, 50.0), (3.0, 90.0), (f64::INFINITY, 100.0)];
        let known = Histogram { sum: 1.0, count: 100.0, buckets: inside };
        let unknown = Histogram { sum: 1.0, count: 100.0, buckets: Vec::new() };
        let found = FirstTokens::of([&known, &unknown].into_iter(), 2.0);
        assert!((found.late - 30.0).abs() < 1e-9, "half of the 40 between 1 s and 3 s: {found:?}");
        assert!((found.seen - 100.0).abs() < 1e-9, "{found:?}");
        assert_eq!(
            FirstTokens::of([&known].into_iter(), 5.0),
            FirstTokens::default(),
            "beyond all edges"
        );
    }
}
