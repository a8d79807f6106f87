//! Exchanges: replicas that a plan removes, and their replacements.
//!
//! Replaced replicas stay until their replacements serve load. Meanwhile they are *leaving* and no
//! longer count as supply. Otherwise each plan would replace them once more.
//!
//! Replicas leave only up to the published capacity of the other variants. If a limit cuts a
//! replacement, nothing has been replaced.

use crate::decide::Decision;
use crate::decide::optimize::{DemandCover, ModelPlan, Placement, PlanReason, SLACK, whole_count};
use crate::fleet::VariantKey;
use crate::pipeline::sizing::assessment::ModelAssessment;
use crate::pipeline::sizing::input::VariantInput;
use crate::units::{Amount, CostPerHour, Replicas};

/// A plan that removes current replicas.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    /// The capacity that must be covered, per analyzer and role.
    wanted: Vec<f64>,
    members: Vec<ExchangeMember>,
}

/// One variant of the exchange.
#[derive(Clone, Debug, PartialEq)]
struct ExchangeMember {
    key: VariantKey,
    cost: CostPerHour,
    /// The capacity per replica for each entry of `wanted`; 0 if it is not known or belongs to
    /// another role.
    carries: Vec<f64>,
    uncounted: Replicas,
    counted: Replicas,
    leaves: LeavingReplicas,
}

/// The replicas of a variant that leave.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LeavingReplicas {
    /// All replicas beyond this count.
    Beyond(Replicas),
    /// This count of replicas.
    These(Replicas),
}

// === impl ExchangeMember, Exchange ===

impl ExchangeMember {
    /// The replicas that are there or published. Removed replicas stay until the removal is
    /// actuated.
    fn there(&self, decisions: &[Decision]) -> Replicas {
        let asked = Decision::find(decisions, &self.key).map(Decision::desired);
        asked.map_or(self.counted, |it| it.beyond(self.uncounted)).max(self.counted)
    }
}

impl Exchange {
    /// The replicas that a plan removes; `None` if it removes none.
    pub(crate) fn of(assessment: &ModelAssessment<'_>, plan: &ModelPlan) -> Option<Self> {
        let adds = plan.placements.iter().any(|it| it.because == PlanReason::Added);
        let mut members = Vec::with_capacity(assessment.members.len());
        for member in &assessment.members {
            let key = &member.spec.key;
            let placement = plan.placements.iter().find(|it| it.key == *key)?;
            let bridges = assessment.outlook.bridges.get(key).map(|it| it.replicas);
            let leaves = match bridges {
                // Bridging replicas leave as soon as the rest serves.
                Some(bridges) if bridges > placement.after => {
                    LeavingReplicas::Beyond(placement.after)
                }
                Some(_) | None => leaves(member, placement, adds),
            };

            members.push(ExchangeMember {
                key: key.clone(),
                cost: member.spec.cost,
                carries: carries(assessment, member, &plan.covers),
                uncounted: member.uncounted(),
                counted: member.counted(),
                leaves,
            });
        }

        let wanted = plan.covers.iter().map(|cover| cover.wanted.amount()).collect();
        let stays = members.iter().all(|it| it.leaves == LeavingReplicas::These(Replicas::ZERO));
        (!stays).then_some(Self { wanted, members })
    }

    /// The leaving replicas of each variant, given the published decisions.
    pub(crate) fn leaving(&self, decisions: &[Decision]) -> Vec<(VariantKey, Replicas)> {
        let mut leaving: Vec<Replicas> = self
            .members
            .iter()
            .map(|part| match part.leaves {
                LeavingReplicas::Beyond(planned) => part.there(decisions).beyond(planned),
                LeavingReplicas::These(count) => count,
            })
            .collect();

        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by(|&a, &b| self.members[a].cost.compare(self.members[b].cost));
        for (want, wanted) in self.wanted.iter().enumerate() {
            // The cheapest replicas stay first.
            for &at in &order {
                let parts = self.members.iter().zip(&leaving);
                let staying: f64 = parts
                    .map(|(part, out)| {
                        let count = part.there(decisions).beyond(*out).count();
                        part.carries[want] * f64::from(count)
                    })
                    .sum();

                let missing = wanted * (1.0 - SLACK) - staying;
                let each = self.members[at].carries[want];
                if missing > 0.0 && each > 0.0 {
                    let kept = Replicas::saturating(whole_count((missing / each).ceil()));
                    leaving[at] = leaving[at].beyond(kept);
                }
            }
        }

        let keys = self.members.iter().map(|part| part.key.clone());
        keys.zip(leaving).filter(|(_, leaving)| *leaving > Replicas::ZERO).collect()
    }
}

/// The replicas that a plan removes. Leaving replicas keep leaving until they are gone, however
/// long the actuation takes.
fn leaves(member: &VariantInput<'_>, placement: &Placement, adds: bool) -> LeavingReplicas {
    match placement.because {
        PlanReason::Serving { planned } => LeavingReplicas::Beyond(planned),
        // Replicas that are not needed but may not go are replaced only if the plan adds others
        // for them.
        PlanReason::Refused { planned } if adds => LeavingReplicas::Beyond(planned),
        PlanReason::Refused { planned } => {
            LeavingReplicas::These(member.leaving.min(member.counted().beyond(planned)))
        }
        PlanReason::Kept
        | PlanReason::Added
        | PlanReason::Tried
        | PlanReason::Removed
        | PlanReason::Replaced => {
            LeavingReplicas::These(member.leaving.min(member.counted().beyond(placement.after)))
        }
        // The last known state stays valid until new data arrives.
        PlanReason::Unknown => LeavingReplicas::These(member.leaving),
    }
}

/// The capacity per replica of a variant for each cover. Each group has one cover per report.
fn carries(
    assessment: &ModelAssessment<'_>,
    member: &VariantInput<'_>,
    covers: &[DemandCover],
) -> Vec<f64> {
    let reports = assessment.reports.iter().cycle();
    covers
        .iter()
        .zip(reports)
        .map(|(cover, (_, report))| {
            let is_of = cover.role.is_none_or(|role| role == member.spec.role);
            let row = report.variants.iter().find(|it| it.key == member.spec.key);
            let each = row.filter(|_| is_of).and_then(|row| row.per_replica);
            each.map_or(0.0, Amount::amount)
        })
        .collect()
}
