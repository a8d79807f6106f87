//! The outlook of each variant: its capacity, and its late first tokens.

use crate::analyze::foresight::ForesightPolicy;
use crate::analyze::foresight::budget::FirstTokens;
use crate::analyze::foresight::estimate::CapacityEstimate;
use crate::analyze::foresight::policy::ErrorBudget;
use crate::decide::outlook::{CapacityOutlook, CountedReplicas, LatencyObjectives, VariantOutlook};
use crate::fleet::Role;
use crate::pipeline::sizing::input::VariantInput;
use crate::units::Seconds;

impl VariantInput<'_> {
    /// The outlook of this variant, with its capacity per replica if that is known.
    pub(crate) fn outlook(
        &self,
        policy: &ForesightPolicy,
        estimate: Option<&CapacityEstimate>,
    ) -> VariantOutlook {
        let replicas = CountedReplicas {
            serving: self.counted().beyond(self.coming()),
            soon: self.staying(),
            most: self.observation.bounds.max().map(|most| self.countable(most)),
        };

        let budget = policy.error_budget.unwrap_or_default();
        let ErrorBudget { share: late_share, .. } = budget;
        VariantOutlook {
            said_by: estimate.map(|it| it.said_by),
            capacity: estimate.and_then(|it| CapacityOutlook::of(it, replicas)),
            objectives: LatencyObjectives { ttft: policy.ttft, itl: policy.itl, late_share },
            first_tokens: self.first_tokens(policy.ttft),
        }
    }

    /// The first tokens of the window. A decode replica only gets requests that have theirs.
    fn first_tokens(&self, objective: Seconds) -> Option<FirstTokens> {
        let histogram = self.observation.ttft.as_ref()?;
        let found = FirstTokens::of([histogram].into_iter(), objective.seconds());

        let shows_late_ones = found.seen > 0.0 || histogram.count <= 0.0;
        (self.spec.role != Role::Decode && shows_late_ones).then_some(found)
    }
}
