//! Exchanges: replicas that a plan does without, and what takes their place.
//!
//! What is replaced stays until what replaces it carries load. Meanwhile it is no supply any more, or
//! each plan would replace it once more: it is *leaving*. So much of it as what was published for the
//! others carries, and no more: where a limit leaves a replacement out, nothing has been replaced.

use crate::analyze::capacity::CapacityReport;
use crate::decide::Decision;
use crate::decide::optimize::{Because, Cover, Placement, Plan, SLACK, whole_count};
use crate::fleet::VariantKey;
use crate::pipeline::Pipeline;
use crate::pipeline::sizing::{Judged, Sizable};
use crate::units::{Amount, CostPerHour, Replicas};

/// A plan that does without replicas that are there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    /// What must be carried, by each analyzer and for each role.
    wanted: Vec<f64>,
    members: Vec<Part>,
}

/// One variant of it.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    key: VariantKey,
    cost: CostPerHour,
    /// What a replica carries of each that is wanted; 0 where nobody knows, or of another role.
    carries: Vec<f64>,
    stuck: Replicas,
    counted: Replicas,
    leaves: Leaves,
}

/// What goes of a variant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    /// What is there beyond so many.
    Beyond(Replicas),
    /// So many.
    These(Replicas),
}

// === impl Pipeline ===

impl Pipeline {
    /// Notes what is leaving from now on.
    pub(crate) fn note_exchanges(&mut self, exchanges: &[Exchange], decisions: &[Decision]) {
        self.leaving.clear();
        // Decisions are in the order of their keys.
        let published = |key: &VariantKey| {
            let at = decisions.binary_search_by(|it| it.variant.cmp(key)).ok()?;
            Some(decisions[at].desired())
        };
        self.leaving.extend(exchanges.iter().flat_map(|it| it.leaving(&published)));
    }
}

// === impl Judged ===

impl Judged<'_> {
    /// What a plan does without; `None` where that is nothing.
    pub(crate) fn exchange(&self, plan: &Plan) -> Option<Exchange> {
        let adds = plan.placements.iter().any(|it| it.because == Because::Added);
        let mut parts: Vec<(&Sizable<'_>, Leaves)> = Vec::new();
        for member in &self.members {
            let placement = plan.placements.iter().find(|it| it.key == member.spec.key)?;
            let bridges = self.outlook.bridges.get(&member.spec.key).map(|it| it.replicas);
            let leaves = match bridges {
                // What bridges goes as soon as the rest serves.
                Some(bridges) if bridges > placement.after => Leaves::Beyond(placement.after),
                Some(_) | None => member.leaves(placement, adds),
            };
            parts.push((member, leaves));
        }
        if parts.iter().all(|(_, leaves)| *leaves == Leaves::These(Replicas::ZERO)) {
            return None;
        }
        // Of each group, one for each report.
        let covers = || plan.covers.iter().zip(self.reports.iter().cycle());
        let carries = |member: &Sizable<'_>| {
            let of = |(Cover { role, .. }, (_, report)): (&Cover, &(_, CapacityReport))| {
                let is_of = role.is_none_or(|role| role == member.spec.role);
                let row = report.variants.iter().find(|it| it.key == member.spec.key);
                let each = row.filter(|_| is_of).and_then(|row| row.per_replica);
                each.map_or(0.0, Amount::amount)
            };
            covers().map(of).collect()
        };
        let members = parts.iter().map(|(member, leaves)| Part {
            key: member.spec.key.clone(),
            cost: member.spec.cost,
            carries: carries(member),
            stuck: member.stuck,
            counted: member.counted(),
            leaves: *leaves,
        });
        let wanted = plan.covers.iter().map(|cover| cover.wanted.amount()).collect();
        Some(Exchange { wanted, members: members.collect() })
    }
}

// === impl Sizable ===

impl Sizable<'_> {
    /// The replicas that count: those that are there, and those that will be.
    pub(super) fn counted(&self) -> Replicas {
        self.wanted.beyond(self.stuck)
    }

    /// Those of them that no earlier plan does without.
    pub(super) fn staying(&self) -> Replicas {
        self.counted().beyond(self.leaving)
    }

    pub(super) fn coming(&self) -> Replicas {
        self.pending.beyond(self.stuck).min(self.counted())
    }

    /// Why the variant gets its number.
    pub(crate) fn because(&self, placement: &Placement) -> Because {
        match placement.because {
            Because::Removed if self.leaving > Replicas::ZERO => Because::Replaced,
            because => because,
        }
    }

    /// What a plan does without. What was leaving leaves until it is gone, however long somebody
    /// takes to carry that out.
    fn leaves(&self, placement: &Placement, adds: bool) -> Leaves {
        match placement.because {
            Because::Serving { planned } => Leaves::Beyond(planned),
            // What nobody needs and may not go is replaced only where something is added for it.
            Because::Refused { planned } if adds => Leaves::Beyond(planned),
            Because::Refused { planned } => {
                Leaves::These(self.leaving.min(self.counted().beyond(planned)))
            }
            Because::Kept
            | Because::Added
            | Because::Tried
            | Because::Removed
            | Because::Replaced => {
                Leaves::These(self.leaving.min(self.counted().beyond(placement.after)))
            }
            // What was known of it is true for as long as nobody knows more.
            Because::Unknown => Leaves::These(self.leaving),
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// What is leaving of each variant, with these numbers published.
    fn leaving(
        &self,
        published: &impl Fn(&VariantKey) -> Option<Replicas>,
    ) -> Vec<(VariantKey, Replicas)> {
        let there = |part: &Part| {
            let asked = published(&part.key).map_or(part.counted, |it| it.beyond(part.stuck));
            // What was let go stays until somebody carries that out.
            asked.max(part.counted)
        };
        let mut leaving: Vec<Replicas> = self
            .members
            .iter()
            .map(|part| match part.leaves {
                Leaves::Beyond(planned) => there(part).beyond(planned),
                Leaves::These(leaving) => leaving,
            })
            .collect();
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by(|&a, &b| self.members[a].cost.compare(self.members[b].cost));
        for (want, wanted) in self.wanted.iter().enumerate() {
            let stays = |leaving: &[Replicas]| -> f64 {
                let parts = self.members.iter().zip(leaving);
                parts
                    .map(|(it, out)| it.carries[want] * f64::from(there(it).beyond(*out).count()))
                    .sum()
            };
            // The cheapest stays first.
            for &at in &order {
                let missing = wanted * (1.0 - SLACK) - stays(&leaving);
                let each = self.members[at].carries[want];
                if missing > 0.0 && each > 0.0 {
                    let stays = Replicas::saturating(whole_count((missing / each).ceil()));
                    leaving[at] = leaving[at].beyond(stays);
                }
            }
        }
        let keys = self.members.iter().map(|part| part.key.clone());
        keys.zip(leaving).filter(|(_, leaving)| *leaving > Replicas::ZERO).collect()
    }
}
