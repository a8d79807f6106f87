//! The grants of all limits together, one replica at a time.

use crate::decide::limit::holdings::LimitUse;
use crate::decide::limit::ledger::{Holdings, holdings};
use crate::decide::limit::refusal::{Cut, GrantRefusal};
use crate::decide::limit::supply::SupplyLimit;
use crate::decide::limit::want::{Priority, Want};
use crate::fleet::{LimitName, ModelKey, VariantKey};
use crate::units::{Amount, Replicas, Weight};

/// The grant for one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The variant.
    pub key: VariantKey,
    /// Desired replicas.
    pub desired: Replicas,
    /// Granted replicas.
    pub granted: Replicas,
    /// Replicas that the limits alone would allow, if the minimum is above that.
    pub below_min: Option<Replicas>,
    /// The limit that keeps it from having more.
    pub cut: Option<Cut>,
}

/// The gain from one more unit of a limit that cuts.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitShadow {
    /// The limit.
    pub limit: LimitName,
    /// The reason for the cut.
    pub why: GrantRefusal,
    /// The variant that would be served next.
    pub next: VariantKey,
    /// Capacity per accelerator of that replica; `None` if unknown.
    pub per_gpu: Option<Amount>,
}

/// The grants for all variants.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Grants {
    /// In the order of the wants.
    pub grants: Vec<Grant>,
    /// One for each limit that cut, in the order of the limits.
    pub shadows: Vec<LimitShadow>,
}

/// The room in all limits, next to the holdings of all variants.
pub(crate) struct LimitRoom<'a> {
    /// In key order.
    wants: Vec<Want>,
    limits: &'a [SupplyLimit],
    held: Holdings,
}

/// The state of granting.
pub(super) struct GrantState<'a> {
    pub(super) wants: &'a [Want],
    limits: &'a [SupplyLimit],
    used: Holdings,
    granted: Vec<Replicas>,
    allowed: Vec<Replicas>,
    cuts: Vec<Option<Cut>>,
    shadows: Vec<Option<LimitShadow>>,
    /// In key order.
    pub(super) models: Vec<ModelShare>,
    /// The model of each want.
    pub(super) model_of: Vec<usize>,
}

/// The accelerators that a model has and wants.
#[derive(Clone)]
pub(super) struct ModelShare {
    pub(super) priority: Priority,
    has: f64,
    wants: f64,
}

impl<'a> GrantState<'a> {
    pub(super) fn new(wants: &'a [Want], limits: &'a [SupplyLimit], used: Holdings) -> Self {
        // The variants of a model follow each other, so most names equal the previous one.
        let mut keys: Vec<&ModelKey> = wants.iter().map(|want| &want.model).collect();
        keys.dedup();
        keys.sort_unstable();
        keys.dedup();
        let mut place = 0;
        let model_of: Vec<usize> = wants
            .iter()
            .map(|want| {
                if keys[place] != &want.model {
                    place = keys.binary_search(&&want.model).unwrap_or_default();
                }
                place
            })
            .collect();

        let last = Priority { weight: Weight::ZERO, ..Priority::default() };
        let nothing = ModelShare { priority: last, has: 0.0, wants: 0.0 };
        let mut models = vec![nothing; keys.len()];
        let granted: Vec<Replicas> =
            wants.iter().map(|want| want.current.min(want.wanted())).collect();
        for ((want, granted), &model) in wants.iter().zip(&granted).zip(&model_of) {
            let share = &mut models[model];
            share.priority = want.priority.above(share.priority);
            share.has += weight_of(want, *granted);
            share.wants += weight_of(want, want.wanted());
        }

        Self {
            wants,
            limits,
            used,
            allowed: granted.clone(),
            granted,
            cuts: vec![None; wants.len()],
            shadows: vec![None; limits.len()],
            models,
            model_of,
        }
    }

    /// Grants every variant its minimum, as far as it is wanted, inside the limits or not.
    pub(super) fn raise_to_minima(&mut self) {
        for at in 0..self.wants.len() {
            while self.granted[at] < self.wants[at].bounds.min().min(self.wants[at].wanted()) {
                match self.refusal(at) {
                    None => self.give(at),
                    Some((limit, why)) => {
                        self.cut(at, limit, why);
                        self.count(at);
                        self.granted[at] = self.granted[at].up();
                    }
                }
            }
        }
    }

    /// Returns true if a variant wants more than it has, and no limit has refused it yet.
    pub(super) fn lacks(&self, at: usize) -> bool {
        self.cuts[at].is_none() && self.granted[at] < self.wants[at].wanted()
    }

    /// Returns the first limit that refuses one more replica, and the reason.
    pub(super) fn refusal(&self, at: usize) -> Option<(usize, GrantRefusal)> {
        let want = &self.wants[at];
        if self.granted[at] < want.current {
            // A running replica keeps its accelerators.
            return None;
        }

        first_refusal(want, self.limits, &self.used)
    }

    pub(super) fn give(&mut self, at: usize) {
        self.count(at);
        self.granted[at] = self.granted[at].up();
        self.allowed[at] = self.granted[at];
    }

    /// Counts one more replica.
    fn count(&mut self, at: usize) {
        let want = &self.wants[at];
        self.models[self.model_of[at]].has += weight_of(want, Replicas::ONE);
        if self.granted[at] < want.current {
            return;
        }

        start_one(want, self.limits, &mut self.used);
    }

    pub(super) fn cut(&mut self, at: usize, limit: usize, why: GrantRefusal) {
        let want = &self.wants[at];
        let name = self.limits[limit].name.clone();
        if self.shadows[limit].is_none() {
            let gpus = f64::from(want.gpus.count());
            self.shadows[limit] = Some(LimitShadow {
                limit: name.clone(),
                why: why.clone(),
                next: want.key.clone(),
                per_gpu: want.size.and_then(|size| Amount::new(size.amount() / gpus)),
            });
        }

        self.cuts[at].get_or_insert(Cut { limit: name, why });
    }

    pub(super) fn grants(self) -> Grants {
        let rows = self.wants.iter().zip(self.granted).zip(self.allowed).zip(self.cuts);
        let grants = rows.map(|(((want, granted), allowed), cut)| Grant {
            key: want.key.clone(),
            desired: want.desired,
            granted,
            below_min: (allowed < granted).then_some(allowed),
            cut,
        });

        Grants { grants: grants.collect(), shadows: self.shadows.into_iter().flatten().collect() }
    }
}

impl ModelShare {
    /// Returns the share of its demand that a model has, by its weight. A model without weight
    /// comes last.
    pub(super) fn level(&self) -> f64 {
        let wants = self.wants * self.priority.weight.weight();
        if wants > 0.0 { self.has / wants } else { f64::INFINITY }
    }

    /// Returns true if the model has less than its guarantee.
    pub(super) fn is_below_guarantee(&self) -> bool {
        self.has < f64::from(self.priority.guaranteed.count())
    }
}

// === impl LimitRoom ===

impl<'a> LimitRoom<'a> {
    /// Creates the room that the current replicas of these variants leave.
    pub(crate) fn new(mut wants: Vec<Want>, limits: &'a [SupplyLimit]) -> Self {
        wants.sort_by(|a, b| a.key.cmp(&b.key));
        let held = holdings(&wants, limits);
        Self { wants, limits, held }
    }

    /// Returns true if no limit refuses one more replica of each of these variants together.
    /// Without a want, a variant counts in no limit.
    pub(crate) fn fits(&self, variants: &[&VariantKey]) -> bool {
        let mut held = self.held.clone();
        variants.iter().filter_map(|key| self.want(key)).all(|want| {
            let fits = first_refusal(want, self.limits, &held).is_none();
            start_one(want, self.limits, &mut held);
            fits
        })
    }

    /// Returns true if a replica of either variant takes the same from every limit, except for its
    /// cost.
    pub(crate) fn is_alike(&self, one: &VariantKey, other: &VariantKey) -> bool {
        match (self.want(one), self.want(other)) {
            (Some(first), Some(second)) => {
                self.limits.iter().all(|limit| limit.takes_alike(first, second))
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    fn want(&self, variant: &VariantKey) -> Option<&Want> {
        let place = self.wants.binary_search_by(|want| want.key.cmp(variant)).ok()?;
        self.wants.get(place)
    }
}

/// Adds one more replica of a variant, which has to be started, to the holdings.
fn start_one(want: &Want, limits: &[SupplyLimit], held: &mut [LimitUse]) {
    for (limit, used) in limits.iter().zip(held) {
        if limit.counts(want) {
            used.add(limit, want, Replicas::ONE);
            used.start(limit, want, Replicas::ONE);
        }
    }
}

/// Returns the first limit that refuses one more replica next to these holdings, and the reason.
fn first_refusal(
    want: &Want,
    limits: &[SupplyLimit],
    held: &[LimitUse],
) -> Option<(usize, GrantRefusal)> {
    let refusals = limits.iter().zip(held).enumerate();
    refusals
        .filter(|(_, (limit, _))| limit.counts(want))
        .find_map(|(position, (limit, used))| Some((position, limit.refuses(want, used)?)))
}

/// Converts replicas to accelerators; replicas without accelerators count as one each.
fn weight_of(want: &Want, replicas: Replicas) -> f64 {
    f64::from(want.gpus.times(replicas).count().max(replicas.count()))
}
