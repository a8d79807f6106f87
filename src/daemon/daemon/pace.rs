//! Judges the speed of HPAs by the speed that the configuration asks for.

use crate::collect::cluster::{Direction, Finding, HpaPolicy, PolicyAmount, PolicyChoice};
use plimsoll_core::decide::enforce::{Amount, Behavior, Rules, Select, StepPolicy};
use plimsoll_core::pipeline::Policy;

/// Returns true if a finding is about policies of an HPA that are hardly slower than `enforce`:
/// they then delay nothing that is not delayed already.
pub(crate) fn is_intended(finding: &Finding, policy: &Policy) -> bool {
    is_as_slow(finding, &policy.behavior, policy.grows_at_once())
}

fn is_as_slow(finding: &Finding, behavior: &Behavior, grows_at_once: bool) -> bool {
    let Finding::SlowPolicies { direction, change, .. } = finding else { return false };
    let rules = match direction {
        Direction::Up if grows_at_once => return false,
        Direction::Up => &behavior.scale_up,
        Direction::Down => &behavior.scale_down,
    };

    let choice = match rules.select {
        Select::Max => PolicyChoice::Largest,
        Select::Min => PolicyChoice::Smallest,
        Select::Disabled => return true,
    };
    let limits = steps(rules);
    !limits.is_empty() && finding.is_as_slow_as(change.takes(&limits, choice))
}

/// The policies of `enforce` as those of an HPA. No policy limits nothing.
fn steps(rules: &Rules) -> Vec<HpaPolicy> {
    rules.policies.iter().map(step).collect()
}

fn step(policy: &StepPolicy) -> HpaPolicy {
    let amount = match policy.amount {
        Amount::Pods(pods) => PolicyAmount::Pods(pods),
        Amount::Percent(percent) => PolicyAmount::Percent(percent),
    };
    let longest = f64::from(u32::MAX);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a period has whole seconds, and half an hour at most"
    )]
    let period = policy.period.seconds().ceil().clamp(0.0, longest) as u32;

    HpaPolicy { amount, period }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::cluster::BoundsChange;
    use plimsoll_core::units::Seconds;

    /// An HPA that takes five minutes from 2 to 8 replicas and back.
    fn slow(direction: Direction) -> Finding {
        let change = match direction {
            Direction::Up => BoundsChange { first: 2, last: 8 },
            Direction::Down => BoundsChange { first: 8, last: 2 },
        };
        Finding::SlowPolicies { hpa: "llama".to_owned(), direction, takes: Some(300), change }
    }

    fn with(pods: u32, period: u32) -> Behavior {
        let step = StepPolicy { amount: Amount::Pods(pods), period: Seconds::literal(period) };
        let mut behavior = Behavior::default();
        behavior.scale_up.policies = vec![step];
        behavior.scale_down.policies = vec![step];
        behavior
    }

    #[test]
    fn an_hpa_is_slow_only_if_it_is_slower_than_enforce() {
        for direction in [Direction::Up, Direction::Down] {
            let finding = slow(direction);
            let is_intended = |behavior: &Behavior| is_as_slow(&finding, behavior, false);
            assert!(!is_intended(&Behavior::default()), "the defaults are an HPA's");
            assert!(is_intended(&with(1, 60)), "as slow as the HPA");
            assert!(is_intended(&with(1, 1800)), "slower than an hour");
            assert!(!is_intended(&with(2, 60)), "120 s instead of 300 s");

            let mut behavior = with(1, 60);
            behavior.scale_up.policies.clear();
            behavior.scale_down.policies.clear();
            assert!(!is_intended(&behavior), "nothing is limited");
            behavior.scale_up.select = Select::Disabled;
            behavior.scale_down.select = Select::Disabled;
            assert!(is_intended(&behavior), "no change is asked for");
        }
        let other = Finding::ScalingDisabled { hpa: "llama".to_owned() };
        assert!(!is_as_slow(&other, &with(1, 1800), false));
    }

    #[test]
    fn enforce_limits_no_growth_that_is_asked_for_at_once() {
        assert!(!is_as_slow(&slow(Direction::Up), &with(1, 60), true));
        assert!(is_as_slow(&slow(Direction::Down), &with(1, 60), true));
    }
}
