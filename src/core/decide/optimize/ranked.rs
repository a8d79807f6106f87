//! Replicas by the rank of their price, and fewer at the least cost.
//!
//! Where some voice finds something missing, variants are added by [`rank_variants`], round by
//! round, for one voice after the other: what is added for the first carries for the next as well.
//! Nothing is exchanged, so nothing goes while something is missing.
//!
//! Where nothing is missing there is nothing to rank: of what is there the cheapest stays that
//! carries what is wanted, by the exact search, and goes by the rules of
//! [`least_cost`](crate::decide::optimize::least_cost).

use crate::decide::optimize::least_cost::Question;
use crate::decide::optimize::sheet::{SLACK, Sheet};
use crate::decide::optimize::{Because, Candidate, Consent, Method, Model, Plan, Policy, Room};
use crate::decide::rank::{self, Demand, Ranked, Ranking, Warmth, rank_variants};
use crate::fleet::VariantKey;
use crate::units::{Amount, Replicas};

/// Plans one model by the rank of prices, inside what is free if that is limited.
pub fn ranked(
    model: &Model<'_>,
    room: Option<&Room>,
    policy: &Policy,
    by: &rank::Policy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> Plan {
    let sheet = Sheet::new(model);
    let mut growth = Growth::new(&sheet, room);
    let mut released = Vec::new();
    for group in 0..sheet.groups.len() {
        if growth.lacks(group) {
            growth.add(group, by);
        } else {
            let question = Question::new(&sheet, group, room, policy).among_what_is_there();
            let verdicts = question.release(&question.ask(), check);
            released.extend(question.members.iter().copied().zip(verdicts));
        }
    }
    let Growth { mut targets, rankings, .. } = growth;
    for &(member, (replicas, _)) in &released {
        targets[member] = replicas;
    }
    let mut plan = sheet.plan(Method::Ranked, &targets);
    for (member, placement) in plan.placements.iter_mut().enumerate() {
        if sheet.voices.iter().all(|voice| voice.sizes[member].is_none()) {
            placement.because = Because::Unknown;
        }
    }
    for (member, (_, because)) in released {
        plan.placements[member].because = because;
    }
    plan.rankings = rankings.into();
    plan
}

/// Replicas that are added, under way.
struct Growth<'s, 'a> {
    sheet: &'s Sheet<'a>,
    room: Option<Room>,
    targets: Vec<Replicas>,
    rankings: Vec<Ranking>,
}

impl<'s, 'a> Growth<'s, 'a> {
    /// What is there, inside the bounds.
    fn new(sheet: &'s Sheet<'a>, room: Option<&Room>) -> Self {
        let inside = |variant: &&Candidate| variant.bounds.clamp(variant.current);
        let targets = sheet.variants.iter().map(inside).collect();
        let mut growth = Self { sheet, room: room.cloned(), targets, rankings: Vec::new() };
        if let Some(room) = &mut growth.room {
            for (variant, target) in sheet.variants.iter().zip(&growth.targets) {
                room.start(variant, target.beyond(variant.current));
            }
        }
        growth
    }

    /// Whether some voice finds something missing.
    fn lacks(&self, group: usize) -> bool {
        (0..self.sheet.voices.len()).any(|voice| self.missing(group, voice) > Amount::ZERO)
    }

    /// What is missing in the unit of a voice.
    fn missing(&self, group: usize, voice: usize) -> Amount {
        let row = &self.sheet.voices[voice];
        let wanted = row.wanted(group).amount();
        let members = self.sheet.groups[group].members.iter();
        let carried = members.map(|&member| {
            row.sizes[member].unwrap_or(0.0) * f64::from(self.targets[member].count())
        });
        let missing = wanted - carried.sum::<f64>();
        Amount::new(missing).filter(|_| missing > SLACK * wanted).unwrap_or_default()
    }

    /// Adds what each voice finds missing.
    fn add(&mut self, group: usize, by: &rank::Policy) {
        for voice in 0..self.sheet.voices.len() {
            let missing = self.missing(group, voice);
            if missing == Amount::ZERO {
                continue;
            }
            let (row, of) = (&self.sheet.voices[voice], &self.sheet.groups[group]);
            let demand = Demand { missing, total: row.wanted(group) };
            let there: Vec<(Candidate, Amount, Warmth)> = of
                .members
                .iter()
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
            let variants: Vec<Ranked<'_>> = there
                .iter()
                .map(|(candidate, size, warmth)| {
                    let (size, warmth) = (*size, *warmth);
                    Ranked { candidate, size, list_price: candidate.list_price, warmth }
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
