//! The assessment of one model: the analyzers' reports, their vote, and the resulting proposals.

use std::sync::Arc;

use crate::analyze::ballot::{Analyzer, Ballot, BallotVerdict, StayReason, VoterStanding};
use crate::analyze::capacity::{CapacityReport, Unit};
use crate::decide::optimize::{Candidate, Consent, PlanModel, ReportFreshness, VotingReport};
use crate::decide::sized::{Shortfall, SizedReason, SizingValues};
use crate::decide::{Reason, Stage};
use crate::fleet::{Bounds, ModelKey, Role, VariantKey};
use crate::pipeline::limits::{PlannedModel, rank};
use crate::pipeline::proposal::{Proposal, ProposalBasis};
use crate::pipeline::sizing::input::VariantInput;
use crate::pipeline::sizing::learner::ForesightFindings;
use crate::units::{Amount, Replicas};

/// The analyzers' reports and the vote for one model.
#[derive(Debug)]
pub(crate) struct ModelAssessment<'a> {
    pub(crate) model: ModelKey,
    pub(crate) members: Vec<VariantInput<'a>>,
    pub(crate) reports: Vec<(Analyzer, CapacityReport)>,
    pub(crate) ballot: Ballot,
    pub(crate) outlook: ForesightFindings,
    pub(crate) shrinking: ScaleDownPermission,
}

/// Permission for a model to scale down, independent of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleDownPermission {
    /// The model may scale down.
    Allowed,
    /// The model must not scale down. Some of its variants cannot be counted, or their capacity per
    /// replica comes from a card and was not measured.
    Forbidden,
}

// === impl ModelAssessment ===

impl ModelAssessment<'_> {
    /// The model as the optimizer sees it; `None` while the capacity per replica is not known.
    pub(crate) fn plan_model(&self) -> Option<PlanModel<'_>> {
        let voices: Vec<VotingReport<'_>> = self
            .reports
            .iter()
            .map(|(analyzer, report)| VotingReport { report, standing: self.freshness(*analyzer) })
            .collect();

        let (_, sizing) = self
            .reports
            .iter()
            .find(|(_, report)| report.variants.iter().any(|it| it.per_replica.is_some()))?;

        let candidates = self.members.iter().map(|member| self.candidate(sizing, member)).collect();
        Some(PlanModel { key: self.model.clone(), candidates, sizing, voices })
    }

    /// The proposal for one variant.
    pub(crate) fn proposal(
        &self,
        member: &VariantInput<'_>,
        planned: &PlannedModel,
        basis: ProposalBasis,
    ) -> Option<Proposal> {
        let key = &member.spec.key;
        let placement = planned.alone.placements.iter().find(|it| it.key == *key)?;
        let sizing = Arc::new(self.sizing(member, planned));
        let because = member.because(placement);
        let reason = Reason::Sized(SizedReason::new(because, Arc::clone(&sizing)));
        let planned_replicas = member.with_stuck(placement.after, sizing.short);
        let mut proposal = Proposal::new(member.wanted, planned_replicas, reason, basis);
        proposal.admissible = self.outlook.admissible.get(key).copied();
        proposal.sizing = Some(sizing);

        if let Some(share) = planned.shared.get(key) {
            // A limit cuts the share, not the maximum.
            let after = member.with_stuck(share.after, Shortfall::None);
            proposal.push(Stage::Share, after, Reason::Limited(share.why.clone()));
        }

        if let Some(bridge) = self.outlook.bridges.get(key).copied() {
            // Replicas that do not start or sleep have no capacity, and stay on top.
            let after = bridge.replicas + member.uncounted();
            if after > proposal.desired() {
                proposal.push(Stage::Bridge, after, Reason::Bridged(bridge));
            }
        }

        Some(proposal)
    }

    /// Decides if replicas of a role that the plan removes may go. The model's verdict counts too,
    /// because an analyzer whose report has no roles votes only on the model.
    pub(crate) fn consent(&self, role: Role) -> Consent {
        let is_heard =
            [self.ballot.model, self.verdict(role)].iter().all(|verdict| match verdict {
                BallotVerdict::Grow(_)
                | BallotVerdict::Shrink(_)
                | BallotVerdict::Stay(StayReason::NothingSpare(_)) => true,
                BallotVerdict::Stay(StayReason::NotHeard(_)) | BallotVerdict::Held => false,
            });

        let all_live = self.ballot.voters.iter().all(|(_, it)| *it == VoterStanding::Live);
        match self.shrinking {
            ScaleDownPermission::Allowed if all_live && is_heard => Consent::Given,
            ScaleDownPermission::Allowed | ScaleDownPermission::Forbidden => Consent::Refused,
        }
    }

    /// The verdict on a role; that on the model if no report names the role.
    fn verdict(&self, role: Role) -> BallotVerdict {
        self.ballot.roles.get(&role).copied().unwrap_or(self.ballot.model)
    }

    /// The values behind a variant's planned replicas.
    fn sizing(&self, member: &VariantInput<'_>, planned: &PlannedModel) -> SizingValues {
        let Self { ballot, outlook, .. } = self;
        let plan = &planned.alone;
        let key = &member.spec.key;
        let role = member.spec.role;
        let is_short = plan.is_short_of(role);

        SizingValues {
            verdict: self.verdict(role),
            method: plan.method,
            stuck: member.given_up,
            unplaced: member.unplaced,
            asleep: member.dormant,
            absent: ballot
                .voters
                .iter()
                .filter(|(_, standing)| *standing != VoterStanding::Live)
                .copied()
                .collect(),
            short: if is_short { Shortfall::Some } else { Shortfall::None },
            rank: rank(key, &plan.rankings),
            foreseen: outlook.foreseen.get(&role).copied(),
            card: outlook.cards.get(key).map(|card| card.title()),
            carries: outlook.estimates.get(key).copied(),
            slowest: outlook.slowest.get(key).cloned(),
            starving: outlook.starving.get(key).copied(),
        }
    }

    /// A variant as the optimizer sees it. A variant whose replicas do not start gets no additional
    /// ones while another variant can scale up.
    fn candidate(&self, sizing: &CapacityReport, member: &VariantInput<'_>) -> Candidate {
        let is_replaced = member.given_up > Replicas::ZERO
            && self.members.iter().any(|other| {
                other.spec.role == member.spec.role
                    && other.room() > Replicas::ZERO
                    && is_sized(sizing, &other.spec.key)
            });

        let candidate = member.candidate();
        let most = candidate.bounds.clamp(candidate.current);
        let bounds = Bounds::new(candidate.bounds.min(), Some(most));
        match bounds.filter(|_| is_replaced) {
            Some(bounds) => Candidate { bounds, ..candidate },
            None => candidate,
        }
    }

    /// Decides if an analyzer's report is reliable enough to remove replicas. An analyzer without a
    /// vote has no result, and an analyzer with stale data keeps no replicas. Neither allows a
    /// scale-down.
    fn freshness(&self, analyzer: Analyzer) -> ReportFreshness {
        let known = self.ballot.voters.iter().find(|(voter, _)| *voter == analyzer);
        match known.map(|(_, standing)| standing) {
            Some(VoterStanding::Live) => ReportFreshness::Live,
            Some(VoterStanding::Stale(_) | VoterStanding::Uninformed) | None => {
                ReportFreshness::Stale
            }
        }
    }
}

/// Returns true if a report knows the capacity per replica of a variant.
fn is_sized(report: &CapacityReport, key: &VariantKey) -> bool {
    report.variants.iter().any(|it| it.key == *key && it.per_replica.is_some())
}

/// The capacity per replica of each variant.
pub(crate) fn sizes(model: &PlanModel<'_>) -> impl Iterator<Item = (VariantKey, (Amount, Unit))> {
    let unit = model.sizing.unit;
    let variants = model.sizing.variants.iter();
    variants.filter_map(move |it| Some((it.key.clone(), (it.per_replica?, unit))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analyze::ballot::BindingVote;
    use crate::fleet::VariantSpec;

    #[test]
    fn an_analyzer_that_is_not_heard_keeps_one_role_while_another_one_grows() {
        let amount = Amount::new(10.0).unwrap();
        let unit = Unit::RequestsPerSecond;
        let short = BindingVote { analyzer: Analyzer::Foresight, unit, amount, supply: amount };
        let grow = BallotVerdict::Grow(short);
        let unheard = BallotVerdict::Stay(StayReason::NotHeard(Analyzer::Queueing));
        let spare = BallotVerdict::Shrink(short);

        let cases = [
            (spare, spare, Consent::Given),
            (grow, spare, Consent::Given),
            (grow, unheard, Consent::Refused),
            (unheard, spare, Consent::Refused),
        ];
        for (model, decode, consent) in cases {
            let voters = vec![(Analyzer::Foresight, VoterStanding::Live)];
            let roles = BTreeMap::from([(Role::Prefill, grow), (Role::Decode, decode)]);
            let assessment = ModelAssessment {
                model: VariantSpec::example("llama").model_key(),
                members: Vec::new(),
                reports: Vec::new(),
                ballot: Ballot { voters, model, roles },
                outlook: ForesightFindings::default(),
                shrinking: ScaleDownPermission::Allowed,
            };
            assert_eq!(assessment.consent(Role::Decode), consent, "{model} {decode}");
        }
    }
}
