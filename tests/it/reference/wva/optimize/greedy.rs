//! Several models inside what is free: the one with the largest weighted need first.
//!
//! # Model
//!
//! A model's weighted need is its priority times what each voice misses, weighted by the voice's
//! score. In each round the model with the largest gets as much as brings it down to the mean of
//! all, by cost per capacity, from what is still free. A model that gets nothing, or stays above
//! the mean, is done.
//!
//! With [`Rescale`], models of one accelerator that ask for more than there is are served apart:
//! what is free and what they have is shared by [`water_fill`], with their minima as floors. Who
//! has more than its share gives replicas back; who has less grows from what is free already, as
//! a replica that is going still holds its accelerators.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::decide::optimize::{Candidate, Headroom, SupplyHeadroom};
use plimsoll::fleet::{Accelerator, ModelKey, Namespace};
use plimsoll::units::{Gpus, Replicas, Weight};

use super::cost_aware::{Needs, Stock, grow, is_short, needs, shrink};
use super::rescale::{Claim, water_fill};
use super::sheet::{Sheet, whole_count};
use super::{Defects, Method, Model, Plan};

/// Where contended accelerators are shared anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rescale {
    /// Among the models of namespaces that have no list of their own.
    pub(crate) cluster: Share,
    /// Namespaces with a list of their own, among whose models it is shared.
    pub(crate) namespaces: BTreeSet<Namespace>,
}

/// Whether something is shared anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Share {
    /// Who has something keeps it.
    #[default]
    Kept,
    /// By weight and demand.
    Anew,
}

/// Plans all models inside what is free.
pub(crate) fn greedy_by_score(
    models: &[Model<'_>],
    mut room: SupplyHeadroom,
    rescale: &Rescale,
    defects: Defects,
) -> Vec<Plan> {
    let mut works: Vec<Work<'_>> = models.iter().map(Work::new).collect();
    share_anew(&mut works, &mut room, rescale);
    let mut active: Vec<usize> =
        (0..works.len()).filter(|&position| works[position].is_waiting()).collect();
    for position in &active {
        works[*position].weighted = works[*position].weighted_need();
    }
    active.retain(|&position| works[position].weighted > 0.0);
    while let Some(round) = Round::of(&active, &works) {
        if is_exhausted(&room) {
            break;
        }
        if round.serve(&mut works[round.position], &mut room, defects) == Served::Done {
            active.retain(|position| *position != round.position);
        }
    }
    works
        .into_iter()
        .map(|mut work| {
            if !work.is_grown && work.method == Method::GreedyByScore {
                shrink(&work.sheet, &mut work.targets);
            }
            work.sheet.plan(work.method, &work.targets)
        })
        .collect()
}

/// Whether nothing at all is free in the cluster.
fn is_exhausted(room: &SupplyHeadroom) -> bool {
    room.cluster.values().all(|headroom| *headroom == Headroom::NONE)
}

/// One model on its way to a plan.
struct Work<'a> {
    sheet: Sheet<'a>,
    targets: Vec<Replicas>,
    needs: Needs,
    weighted: f64,
    method: Method,
    /// Whether it missed something at the beginning.
    is_grown: bool,
}

/// What came of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    More,
    Done,
}

/// Whose turn it is.
struct Round {
    position: usize,
    /// How much weighted need it may work off.
    allowance: f64,
    /// The mean that it should come down to; `None` when it is alone.
    mean: Option<f64>,
}

/// What one model may take in a round.
struct Turn<'a> {
    room: &'a mut SupplyHeadroom,
    allowance: f64,
}

impl Stock for Turn<'_> {
    fn available(&self, variant: &Candidate, size: f64) -> Option<Replicas> {
        let whole = Replicas::saturating(whole_count((self.allowance / size).ceil()));
        let Some(kind) = &variant.accelerator else { return Some(Replicas::ZERO) };
        let free = self.room.free(&variant.key.namespace, kind).replicas(variant.gpus);
        Some(free.map_or(whole, |free| free.min(whole)))
    }

    fn take(&mut self, variant: &Candidate, replicas: Replicas) {
        if let Some(kind) = &variant.accelerator {
            self.room.take(&variant.key.namespace, kind, variant.gpus.times(replicas));
        }
    }
}

impl<'a> Work<'a> {
    fn new(model: &'a Model<'_>) -> Self {
        let sheet = Sheet::new(model);
        let (targets, needs) = (sheet.current(), needs(&sheet));
        let is_grown = is_short(&needs);
        Self { sheet, targets, needs, weighted: 0.0, method: Method::GreedyByScore, is_grown }
    }

    fn is_waiting(&self) -> bool {
        self.is_grown && self.method == Method::GreedyByScore
    }

    /// The priority times what all voices miss, by their scores; without a priority, the largest
    /// need.
    fn weighted_need(&self) -> f64 {
        let rows = self.needs.iter().zip(&self.sheet.voices);
        let sum: f64 =
            rows.map(|(need, voice)| voice.score.weight() * need.iter().sum::<f64>()).sum();
        let weighted = self.sheet.priority.weight() * sum;
        if weighted > 0.0 {
            return weighted;
        }
        self.needs.iter().flatten().copied().fold(0.0, f64::max)
    }

    /// Takes what has been added since `before` off the needs.
    fn settle(&mut self, before: &[Replicas]) {
        for (need, voice) in self.needs.iter_mut().zip(&self.sheet.voices) {
            for (need, group) in need.iter_mut().zip(&self.sheet.groups) {
                let carried = group.members.iter().map(|&member| {
                    let added = self.targets[member].beyond(before[member]);
                    f64::from(added.count()) * voice.sizes[member].unwrap_or(0.0)
                });
                *need = (*need - carried.sum::<f64>()).max(0.0);
            }
        }
    }
}

impl Round {
    fn of(active: &[usize], works: &[Work<'_>]) -> Option<Self> {
        let weighted = |position: usize| works[position].weighted;
        // Of equal ones the first counts: `max_by` would take the last.
        let position = active
            .iter()
            .copied()
            .reduce(|best, next| if weighted(next) > weighted(best) { next } else { best })?;
        let number = active.len() as f64;
        let mean = active.iter().map(|&position| weighted(position)).sum::<f64>() / number;
        let largest = weighted(position);
        let down_to = match active {
            [_] => 0.0,
            _ if largest <= mean => mean - largest / number,
            _ => mean,
        };
        let mean = (active.len() > 1).then_some(mean);
        Some(Self { position, allowance: largest - down_to, mean })
    }

    fn serve(&self, work: &mut Work<'_>, room: &mut SupplyHeadroom, defects: Defects) -> Served {
        let before = work.weighted;
        let mut round = work.needs.clone();
        for need in round.iter_mut().flatten() {
            *need = need.min(self.allowance);
        }
        let targets = work.targets.clone();
        let mut turn = Turn { room, allowance: self.allowance };
        let added = grow(&work.sheet, &mut round, &mut work.targets, &mut turn, defects);
        if defects == Defects::Kept && work.sheet.groups.len() > 1 {
            work.needs = round;
        } else {
            work.settle(&targets);
        }
        work.weighted = work.weighted_need();
        let is_stuck = added == Replicas::ZERO || work.weighted >= before;
        let is_above = self.mean.is_some_and(|mean| work.weighted > mean);
        if is_stuck || is_above || work.weighted <= 0.0 { Served::Done } else { Served::More }
    }
}

// === rescale ===

/// Models that draw on one budget of one kind: of a namespace with a list of its own, or of the
/// cluster.
type Pool = (Accelerator, Option<Namespace>);

/// Shares each contended kind among the models that run on nothing else.
fn share_anew(works: &mut [Work<'_>], room: &mut SupplyHeadroom, rescale: &Rescale) {
    let mut pools: BTreeMap<Pool, Vec<usize>> = BTreeMap::new();
    for (position, work) in works.iter().enumerate() {
        if let Some(pool) = work.pool(room, rescale) {
            pools.entry(pool).or_default().push(position);
        }
    }
    for ((kind, _), members) in pools {
        let Some(&first) = members.first() else { continue };
        let namespace = &works[first].sheet.key.namespace;
        let Headroom::Limited(free) = room.free(namespace, &kind) else { continue };
        let used: Gpus = members.iter().map(|&member| works[member].used()).sum();
        let budget = free + used;
        let asks: Vec<Gpus> = members.iter().map(|&member| works[member].asked()).collect();
        if asks.iter().copied().sum::<Gpus>() <= budget {
            continue;
        }
        let claims: Vec<Claim> = members
            .iter()
            .zip(asks)
            .map(|(&member, asked)| works[member].claim(asked, budget))
            .collect();
        let shares = water_fill(budget, &claims);
        let mut order: Vec<(usize, Gpus)> = members.into_iter().zip(shares.gpus).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&works[a.0].sheet, &works[b.0].sheet);
            b.priority.compare(a.priority).then_with(|| a.key.cmp(b.key))
        });
        for (member, share) in order {
            works[member].fit(share, &kind, room);
        }
    }
}

impl Work<'_> {
    /// The pool of a model that may be shared anew and runs on one kind.
    fn pool(&self, room: &SupplyHeadroom, rescale: &Rescale) -> Option<Pool> {
        let mut kinds = self.sheet.variants.iter().map(|variant| variant.accelerator.as_ref());
        let kind = kinds.next()??;
        if !kinds.all(|other| other == Some(kind)) {
            return None;
        }
        let namespace = &self.sheet.key.namespace;
        if room.namespaces.contains_key(namespace) {
            let shared = rescale.namespaces.contains(namespace);
            return shared.then(|| (kind.clone(), Some(namespace.clone())));
        }
        (rescale.cluster == Share::Anew).then(|| (kind.clone(), None))
    }

    /// What its replicas hold.
    fn used(&self) -> Gpus {
        let held = self.sheet.variants.iter().zip(&self.targets);
        held.map(|(variant, replicas)| variant.gpus.times(*replicas)).sum()
    }

    /// What its whole demand would take in the variant of each role that carries it cheapest.
    fn asked(&self) -> Gpus {
        let of_group = |group: usize| {
            let demand = self.sheet.sizing[group].demand.amount();
            let best = self.by_efficiency(group).next()?;
            let replicas = whole_count((demand / self.sheet.sizes[best]?).ceil());
            Some(self.sheet.variants[best].gpus.times(Replicas::saturating(replicas)))
        };
        (0..self.sheet.groups.len()).filter_map(of_group).sum()
    }

    /// The members of a group whose capacity is known, by cost per capacity.
    fn by_efficiency(&self, group: usize) -> impl Iterator<Item = usize> {
        let per_capacity = |variant: &usize| {
            let size = self.sheet.sizes[*variant].unwrap_or(f64::MIN_POSITIVE);
            self.sheet.variants[*variant].cost.per_hour() / size
        };
        let mut order = self.sheet.groups[group].members.clone();
        order.retain(|variant| self.sheet.sizes[*variant].is_some());
        order.sort_by(|a, b| per_capacity(a).total_cmp(&per_capacity(b)).then(a.cmp(b)));
        order.into_iter()
    }

    fn claim(&self, asked: Gpus, budget: Gpus) -> Claim {
        let variants = || self.sheet.variants.iter();
        let most = |variant: &&Candidate| {
            variant.bounds.max().map_or(budget, |max| variant.gpus.times(max))
        };
        let most: Gpus = variants().map(most).sum();
        let demand = self.sheet.demand.amount();
        Claim {
            key: ModelKey::clone(self.sheet.key),
            weight: Weight::new(self.sheet.priority.weight() * demand).unwrap_or_default(),
            floor: variants().map(|variant| variant.gpus.times(variant.bounds.min())).sum(),
            cap: asked.min(most).min(budget),
        }
    }

    /// Brings the model to its share, each role to its part of it.
    fn fit(&mut self, share: Gpus, kind: &Accelerator, room: &mut SupplyHeadroom) {
        self.method = Method::Rescale;
        for (group, share) in self.parts(share).into_iter().enumerate() {
            let members = self.sheet.groups[group].members.clone();
            let held = |targets: &[Replicas]| -> Gpus {
                let each =
                    |&member: &usize| self.sheet.variants[member].gpus.times(targets[member]);
                members.iter().map(each).sum()
            };
            if held(&self.targets) > share {
                let mut excess = held(&self.targets).beyond(share);
                let mut order = members.clone();
                order.sort_by(|&a, &b| {
                    let cost = |variant: usize| self.sheet.variants[variant].cost;
                    cost(b).compare(cost(a)).then(a.cmp(&b))
                });
                for member in order {
                    let variant = self.sheet.variants[member];
                    let removable = self.targets[member].beyond(variant.bounds.min());
                    let fitting = excess.replicas_of(variant.gpus).unwrap_or(Replicas::ZERO);
                    let removed = removable.min(fitting);
                    self.targets[member] = self.targets[member].beyond(removed);
                    excess = excess.beyond(variant.gpus.times(removed));
                }
                continue;
            }
            let mut lacking = share.beyond(held(&self.targets));
            for member in self.by_efficiency(group).collect::<Vec<_>>() {
                let variant = self.sheet.variants[member];
                let below_max = variant
                    .bounds
                    .max()
                    .map_or(Replicas::LIMIT, |max| max.beyond(self.targets[member]));
                let free = room.free(&variant.key.namespace, kind).replicas(variant.gpus);
                let fitting = lacking.replicas_of(variant.gpus).unwrap_or(Replicas::ZERO);
                let added = fitting.min(below_max).min(free.unwrap_or(Replicas::LIMIT));
                self.targets[member] += added;
                let taken = variant.gpus.times(added);
                room.take(&variant.key.namespace, kind, taken);
                lacking = lacking.beyond(taken);
            }
        }
    }

    /// The part of each role: its minima, and the rest by what is asked of it.
    fn parts(&self, share: Gpus) -> Vec<Gpus> {
        if let [_] = self.sheet.groups.as_slice() {
            return vec![share];
        }
        let claims: Vec<Claim> = (self.sheet.groups.iter().zip(&self.sheet.sizing))
            .map(|(group, totals)| {
                let minimum = |&member: &usize| {
                    let variant = self.sheet.variants[member];
                    variant.gpus.times(variant.bounds.min())
                };
                Claim {
                    key: ModelKey::clone(self.sheet.key),
                    weight: Weight::new(totals.demand.amount()).unwrap_or_default(),
                    floor: group.members.iter().map(minimum).sum(),
                    cap: share,
                }
            })
            .collect();
        water_fill(share, &claims).gpus
    }
}
