//! Plans that add replicas by price rank and remove them at the least cost.
//!
//! If a voice reports a shortfall, [`rank_variants`] adds replicas round by round, for one voice
//! after the other. Replicas that are added for the first voice also count for the next. Nothing is
//! exchanged, so nothing is removed during a shortfall.
//!
//! Without a shortfall there is nothing to rank. The exact search finds the cheapest part of the
//! current replicas that covers the demand. The rest goes by the rules of
//! [`least_cost`](mod@crate::decide::optimize::least_cost).

use crate::decide::optimize::cover::SLACK;
use crate::decide::optimize::least_cost::{Consent, OptimizerPolicy, RoleQuestion};
use crate::decide::optimize::model::{Candidate, PlanModel};
use crate::decide::optimize::plan::{ModelPlan, PlanMethod, PlanReason};
use crate::decide::optimize::room::SupplyHeadroom;
use crate::decide::optimize::sheet::ModelSheet;
use crate::decide::rank::{self, RankedVariant, Ranking, ResidualDemand, Warmth, rank_variants};
use crate::fleet::VariantKey;
use crate::units::{Amount, Replicas};

/// Plans one model by price rank, inside the free room if that is limited.
pub fn ranked(
    model: &PlanModel<'_>,
    room: Option<&SupplyHeadroom>,
    policy: &OptimizerPolicy,
    by: &rank::Policy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> ModelPlan {
    let sheet = ModelSheet::new(model);
    let mut growth = RankedGrowth::new(&sheet, room);
    let mut released = Vec::new();
    for group in 0..sheet.groups.len() {
        if growth.lacks(group) {
            growth.add(group, by);
        } else {
            let question = RoleQuestion::new(&sheet, group, room, policy).among_what_is_there();
            let verdicts = question.release(&question.ask(), check);
            released.extend(question.members.iter().copied().zip(verdicts));
        }
    }

    let RankedGrowth { mut targets, rankings, .. } = growth;
    for &(member, (replicas, _)) in &released {
        targets[member] = replicas;
    }

    let mut plan = sheet.plan(PlanMethod::Ranked, &targets);
    for (member, placement) in plan.placements.iter_mut().enumerate() {
        if sheet.voices.iter().all(|voice| voice.sizes[member].is_none()) {
            placement.because = PlanReason::Unknown;
        }
    }

    for (member, (_, because)) in released {
        plan.placements[member].because = because;
    }

    plan.rankings = rankings.into();
    plan
}

/// The state of adding replicas.
struct RankedGrowth<'s, 'a> {
    sheet: &'s ModelSheet<'a>,
    room: Option<SupplyHeadroom>,
    targets: Vec<Replicas>,
    rankings: Vec<Ranking>,
}

impl<'s, 'a> RankedGrowth<'s, 'a> {
    /// Starts with the current replicas, inside the bounds.
    fn new(sheet: &'s ModelSheet<'a>, room: Option<&SupplyHeadroom>) -> Self {
        let targets = sheet.variants.iter().map(|it| it.bounds.clamp(it.current)).collect();
        let mut growth = Self { sheet, room: room.cloned(), targets, rankings: Vec::new() };

        if let Some(room) = &mut growth.room {
            for (variant, target) in sheet.variants.iter().zip(&growth.targets) {
                room.start(variant, target.beyond(variant.current));
            }
        }

        growth
    }

    /// Returns true if a voice reports a shortfall.
    fn lacks(&self, group: usize) -> bool {
        (0..self.sheet.voices.len()).any(|voice| self.missing(group, voice) > Amount::ZERO)
    }

    /// Returns the shortfall in the unit of a voice.
    fn missing(&self, group: usize, voice: usize) -> Amount {
        let row = &self.sheet.voices[voice];
        let wanted = row.wanted(group).amount();
        let missing = wanted - row.carried(&self.sheet.groups[group].members, &self.targets);
        Amount::new(missing).filter(|_| missing > SLACK * wanted).unwrap_or_default()
    }

    /// Adds replicas for the shortfall of each voice.
    fn add(&mut self, group: usize, by: &rank::Policy) {
        for voice in 0..self.sheet.voices.len() {
            let missing = self.missing(group, voice);
            if missing == Amount::ZERO {
                continue;
            }

            let row = &self.sheet.voices[voice];
            let of = &self.sheet.groups[group];
            let demand = ResidualDemand { missing, total: row.wanted(group) };
            let there: Vec<(Candidate, Amount, Warmth)> = of
                .members
                .iter()
                .filter(|&&member| self.sheet.is_useful(group, member))
                .filter_map(|&member| {
                    let variant = self.sheet.variants[member];
                    let size = Amount::new(row.sizes[member]?)?;
                    let warmth = match variant.current {
                        Replicas::ZERO => Warmth::Cold,
                        _ => Warmth::Warm,
                    };
                    let current = self.targets[member];
                    Some((Candidate { current, ..variant.clone() }, size, warmth))
                })
                .collect();
            let variants: Vec<RankedVariant<'_>> = there
                .iter()
                .map(|(candidate, size, warmth)| RankedVariant {
                    candidate,
                    size: *size,
                    list_price: candidate.list_price,
                    warmth: *warmth,
                })
                .collect();

            let residual = rank_variants(&variants, &demand, self.room.as_ref(), by);
            for &member in &of.members {
                let variant = self.sheet.variants[member];
                let added = residual.added(&variant.key);
                self.targets[member] += added;
                if let Some(room) = &mut self.room {
                    room.start(variant, added);
                }
            }

            self.rankings.push(Ranking { unit: row.unit, role: of.role, residual });
        }
    }
}
