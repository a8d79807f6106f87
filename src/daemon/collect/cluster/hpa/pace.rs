//! The time that an HPA takes for a change, by the policies of its `behavior`.

/// The seconds between two decisions of an HPA.
const SYNC_PERIOD: u32 = 15;

/// The seconds for which a change is simulated.
const SIMULATED: u32 = 3_600;

/// The seconds that a change may take longer than another one. An engine takes longer to start.
const SLOW: u32 = 60;

/// The longest change that an HPA can make: from one of its bounds to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundsChange {
    /// The replicas before.
    pub first: u32,
    /// The replicas after.
    pub last: u32,
}

/// The largest change in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HpaPolicy {
    /// The amount.
    pub amount: PolicyAmount,
    /// The length of the period in seconds.
    pub period: u32,
}

/// An amount of change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyAmount {
    /// Replicas.
    Pods(u32),
    /// Percent of the replicas at the start of the period.
    Percent(u32),
}

/// The policy that counts if there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyChoice {
    /// The one that allows the largest change.
    Largest,
    /// The one that allows the smallest change.
    Smallest,
}

/// Returns true if a change takes much longer than the other one, which may never end itself.
pub(super) fn is_slower(takes: Option<u32>, other: Option<u32>) -> bool {
    other.is_some_and(|other| takes.is_none_or(|takes| takes > other.saturating_add(SLOW)))
}

/// The policies that the API server sets for additions if none are stated.
pub(super) fn usual_policies_up() -> Vec<HpaPolicy> {
    let four = HpaPolicy { amount: PolicyAmount::Pods(4), period: SYNC_PERIOD };
    [usual_policies_down(), vec![four]].concat()
}

/// The policies that the API server sets for removals if none are stated.
pub(super) fn usual_policies_down() -> Vec<HpaPolicy> {
    vec![HpaPolicy { amount: PolicyAmount::Percent(100), period: SYNC_PERIOD }]
}

// === impl BoundsChange ===

impl BoundsChange {
    /// The seconds for the change without stated policies, by the API server's defaults.
    pub(super) fn takes_usually(self) -> Option<u32> {
        let policies = if self.is_up() { usual_policies_up() } else { usual_policies_down() };
        self.takes(&policies, PolicyChoice::Largest)
    }

    const fn is_up(self) -> bool {
        self.first <= self.last
    }

    /// Returns the seconds for the change by these policies; `None` if it takes longer than is
    /// simulated.
    ///
    /// # Source
    ///
    /// Kubernetes 1.36, `pkg/controller/podautoscaler/horizontal.go`:
    /// `calculateScaleUpLimitWithScalingRules`, `calculateScaleDownLimitWithBehaviors`.
    #[must_use]
    pub fn takes(self, policies: &[HpaPolicy], choice: PolicyChoice) -> Option<u32> {
        let Self { first, last } = self;
        // The replicas after each decision, of which the last are those of now.
        let mut counts = vec![first];
        for round in 0..=SIMULATED / SYNC_PERIOD {
            let now = *counts.last()?;
            if now == last {
                return Some(round.saturating_sub(1) * SYNC_PERIOD);
            }

            let changes = policies.iter().map(|policy| policy.change(&counts));
            let change = match choice {
                PolicyChoice::Largest => changes.max(),
                PolicyChoice::Smallest => changes.min(),
            }?;
            counts.push(if self.is_up() {
                now.saturating_add(change).min(last)
            } else {
                now.saturating_sub(change).max(last)
            });
        }

        None
    }
}

// === impl HpaPolicy ===

impl HpaPolicy {
    /// Returns the change that it still allows, after these counts at successive decisions.
    fn change(&self, counts: &[u32]) -> u32 {
        let Some(now) = counts.last().copied() else { return 0 };
        let rounds =
            usize::try_from(self.period.div_ceil(SYNC_PERIOD)).unwrap_or(usize::MAX).max(1);
        let start = counts[counts.len().saturating_sub(rounds)];
        match self.amount {
            PolicyAmount::Pods(pods) => pods.saturating_sub(start.abs_diff(now)),
            PolicyAmount::Percent(percent) => {
                let share = (u64::from(start) * u64::from(percent)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(start.abs_diff(now))
            }
        }
    }
}
