//! Adding where a replica is cheapest for what it carries, removing where it is most expensive.
//!
//! # Model
//!
//! While something is missing, each role that misses something picks its variant with the lowest
//! cost per capacity that is not at its maximum, and as many replicas of it as the voice that
//! misses most needs. The roles of a model with separate prefill and decode then grow in step: the
//! role that gets the smallest share of what it needs in this round sets the share of all, so that
//! no decoder waits for a prefiller that the bounds do not allow.
//!
//! Replicas go when every live voice has spare capacity: from the most expensive variant down, as
//! many as every voice can spare, and the cheapest keeps one unless another variant serves.

use plimsoll::decide::optimize::{Candidate, ReportFreshness};
use plimsoll::units::Replicas;

use super::sheet::{Group, Row, Sheet, whole_count};
use super::{Defects, Method, Model, Plan};

/// What is missing: for each voice, of each group.
pub(super) type Needs = Vec<Vec<f64>>;

/// Where replicas come from.
pub(super) trait Stock {
    /// How many replicas of a variant there are to have, of which one carries `size`; `None` when
    /// nothing limits them.
    fn available(&self, variant: &Candidate, size: f64) -> Option<Replicas>;
    /// Takes so many.
    fn take(&mut self, variant: &Candidate, replicas: Replicas);
}

/// As many as anybody asks for.
struct Boundless;

impl Stock for Boundless {
    fn available(&self, _: &Candidate, _: f64) -> Option<Replicas> {
        None
    }

    fn take(&mut self, _: &Candidate, _: Replicas) {}
}

/// Plans one model by cost per capacity, without a limit but the bounds.
pub(crate) fn cost_aware(model: &Model<'_>, defects: Defects) -> Plan {
    let sheet = Sheet::new(model);
    let mut targets = sheet.current();
    let mut needs = needs(&sheet);
    if is_short(&needs) {
        grow(&sheet, &mut needs, &mut targets, &mut Boundless, defects);
    } else {
        shrink(&sheet, &mut targets);
    }
    sheet.plan(Method::CostAware, &targets)
}

/// What is missing before anything is done.
pub(super) fn needs(sheet: &Sheet<'_>) -> Needs {
    let required = |row: &Row| row.totals.iter().map(|totals| totals.required.amount()).collect();
    sheet.voices.iter().map(required).collect()
}

/// Whether any voice misses anything.
pub(super) fn is_short(needs: &Needs) -> bool {
    needs.iter().flatten().any(|need| *need > 0.0)
}

/// What a role has picked for one round.
struct Pick {
    group: usize,
    variant: usize,
    /// What one replica of it carries, in the unit that sizes variants.
    size: f64,
    /// The largest need, and what one replica carries in the same unit.
    need: Need,
    /// Replicas that would meet every voice, as far as there are any.
    replicas: u32,
}

/// What a voice misses.
struct Need {
    missing: f64,
    /// What one replica of the picked variant carries of it.
    size: f64,
}

impl Pick {
    /// The share of the need that the replicas meet; more than 1 when the last is not needed whole.
    fn share(&self) -> f64 {
        if self.need.missing <= 0.0 {
            return 1.0;
        }
        f64::from(self.replicas) * self.need.size / self.need.missing
    }

    /// Replicas that meet this share of the need; at least one, if there is one.
    fn at(&self, share: f64) -> Replicas {
        if self.need.missing <= 0.0 {
            return Replicas::ZERO;
        }
        let whole = (share * self.need.missing / self.need.size).floor();
        Replicas::saturating(whole_count(whole).max(self.replicas.min(1)))
    }
}

/// Adds replicas until nothing is missing or nothing is left, and takes what they carry off the
/// needs. Returns how many were added.
pub(super) fn grow(
    sheet: &Sheet<'_>,
    needs: &mut Needs,
    targets: &mut [Replicas],
    stock: &mut impl Stock,
    defects: Defects,
) -> Replicas {
    let mut added = Replicas::ZERO;
    while is_short(needs) {
        let short: Vec<usize> = (0..sheet.groups.len())
            .filter(|&group| defects == Defects::Kept || needs.iter().any(|need| need[group] > 0.0))
            .collect();
        let picks: Option<Vec<Pick>> =
            short.into_iter().map(|at| pick(sheet, at, needs, targets, stock, defects)).collect();
        let Some(picks) = picks else { break };
        let share = picks.iter().map(Pick::share).fold(f64::INFINITY, f64::min);
        let mut moved = Replicas::ZERO;
        for pick in &picks {
            let variant = sheet.variants[pick.variant];
            let left = match defects {
                Defects::Mended => stock.available(variant, pick.size),
                Defects::Kept => None,
            };
            let replicas = left.map_or(pick.at(share), |left| pick.at(share).min(left));
            targets[pick.variant] += replicas;
            stock.take(variant, replicas);
            for (need, voice) in needs.iter_mut().zip(&sheet.voices) {
                let size = match defects {
                    Defects::Mended => voice.sizes[pick.variant].unwrap_or(0.0),
                    Defects::Kept => pick.size,
                };
                need[pick.group] = (need[pick.group] - f64::from(replicas.count()) * size).max(0.0);
            }
            moved += replicas;
        }
        if moved == Replicas::ZERO {
            break;
        }
        added += moved;
    }
    added
}

/// The variant of a group with the lowest cost per capacity that can grow.
fn pick(
    sheet: &Sheet<'_>,
    group: usize,
    needs: &Needs,
    targets: &[Replicas],
    stock: &impl Stock,
    defects: Defects,
) -> Option<Pick> {
    let fitting = sheet.groups[group].members.iter().filter_map(|&variant| {
        let size = sheet.sizes[variant]?;
        let limit = limit(sheet.variants[variant], targets[variant], size, stock);
        let largest = largest_need(sheet, group, needs, variant);
        let whole = |need: &Need| whole_count((need.missing / need.size).ceil());
        let replicas = largest.as_ref().map_or(0, whole).min(limit.count());
        let need = match defects {
            Defects::Mended => largest?,
            Defects::Kept => {
                let missing = needs.iter().map(|need| need[group]).fold(0.0, f64::max);
                Need { missing, size }
            }
        };
        let per_capacity = sheet.variants[variant].cost.per_hour() / size;
        let pick = Pick { group, variant, size, need, replicas };
        (limit > Replicas::ZERO).then_some((per_capacity, pick))
    });
    // Of equal ones the first counts, and the variants are in the order of their keys.
    fitting.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, pick)| pick)
}

/// The need of the voice that would need most replicas of this variant.
fn largest_need(sheet: &Sheet<'_>, group: usize, needs: &Needs, variant: usize) -> Option<Need> {
    needs
        .iter()
        .zip(&sheet.voices)
        .filter_map(|(need, voice)| {
            Some(Need { missing: need[group], size: voice.sizes[variant]? })
        })
        .filter(|need| need.missing > 0.0)
        .max_by(|a, b| (a.missing / a.size).total_cmp(&(b.missing / b.size)))
}

/// How many replicas a variant can grow by.
fn limit(variant: &Candidate, target: Replicas, size: f64, stock: &impl Stock) -> Replicas {
    let below_max = variant.bounds.max().map_or(Replicas::LIMIT, |max| max.beyond(target));
    stock.available(variant, size).map_or(below_max, |available| below_max.min(available))
}

/// Removes what every live voice can spare.
pub(super) fn shrink(sheet: &Sheet<'_>, targets: &mut [Replicas]) {
    for (position, group) in sheet.groups.iter().enumerate() {
        let mut spare: Vec<(usize, f64)> = sheet
            .voices
            .iter()
            .enumerate()
            .filter(|(_, voice)| voice.standing == ReportFreshness::Live)
            .map(|(row, voice)| (row, voice.totals[position].spare.amount()))
            .collect();
        if spare.is_empty() || spare.iter().any(|(_, spare)| *spare <= 0.0) {
            continue;
        }
        let order = dearest_first(sheet, group, &spare);
        for (turn, &variant) in order.iter().enumerate() {
            let removable = targets[variant].beyond(sheet.variants[variant].bounds.min());
            let spared = spare
                .iter()
                .filter_map(|&(row, spare)| Some(spare / sheet.voices[row].sizes[variant]?))
                .fold(f64::INFINITY, f64::min);
            if sheet.sizes[variant].is_none() || spared.is_infinite() {
                continue;
            }
            let mut removed = whole_count(spared.floor()).min(removable.count());
            let (before, is_last) = (&order[..turn], turn + 1 == order.len());
            let others = before.iter().any(|&other| targets[other] > Replicas::ZERO);
            if is_last && !others && removed == targets[variant].count() {
                removed = removed.saturating_sub(1);
            }
            targets[variant] = targets[variant].beyond(Replicas::saturating(removed));
            for (row, spare) in &mut spare {
                let size = sheet.voices[*row].sizes[variant].unwrap_or(0.0);
                *spare = (*spare - f64::from(removed) * size).max(0.0);
            }
        }
    }
}

/// The members of a group, the most expensive first; of one price, the smaller first.
fn dearest_first(sheet: &Sheet<'_>, group: &Group, spare: &[(usize, f64)]) -> Vec<usize> {
    let weighted = |variant: usize| -> f64 {
        let rows = spare.iter().map(|&(row, _)| &sheet.voices[row]);
        rows.map(|row| row.score.weight() * row.sizes[variant].unwrap_or(0.0)).sum()
    };
    let mut order = group.members.clone();
    order.sort_by(|&a, &b| {
        let (cost_a, cost_b) = (sheet.variants[a].cost, sheet.variants[b].cost);
        cost_b.compare(cost_a).then(weighted(a).total_cmp(&weighted(b))).then(a.cmp(&b))
    });
    order
}
