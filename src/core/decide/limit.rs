//! Limits on resources: inventories, quotas, budgets and maxima together.
//!
//! [`limit`] turns the desired replicas of each variant into granted replicas. Every
//! [`SupplyLimit`] applies at once, so the tightest wins, and a refused replica uses nothing of the
//! other limits. Each cut names the limit that caused it. Each limit that cut reports the gain from
//! one more unit ([`LimitShadow`]).
//!
//! # Model
//!
//! Running replicas keep their accelerators. This includes a replica that is being removed, so
//! nothing becomes free before it is gone. Minima are granted first. Models below their guarantee
//! come next, regardless of their class. The rest is granted one replica at a time: within the
//! highest priority class that still lacks replicas, to the model with the smallest
//!
//! ```text
//! level = accelerators that it has / (weight * accelerators that it wants)
//! ```
//!
//! This is weighted max-min fairness of the shares of the demand (Bertsekas and Gallager, *Data
//! Networks*, 6.5.2), in whole replicas. A variant that does not fit is skipped from then on.
//! Nothing is set aside for it, and other variants get the part that it could not use.
//!
//! # Failures
//!
//! A source that cannot be read keeps its last value ([`LimitSource::Held`]). A source that was
//! never read allows no scale-up ([`LimitSource::Unread`]). Neither ever becomes unlimited. A kind
//! that a list does not name is not available.

mod explain;
mod inventory;
mod ledger;
mod nodes;
mod report;
mod turns;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::decide::limit::ledger::LimitUse;
use crate::decide::limit::turns::TurnOrder;
use crate::decide::optimize::Headroom;
use crate::fleet::{Accelerator, Bounds, ModelKey, Namespace, VariantKey};
use crate::settings;
use crate::units::{Amount, CostPerHour, Gpus, Replicas, Seconds, Weight};

pub use crate::decide::limit::inventory::normalised;
pub use crate::decide::limit::ledger::{AcceleratorLedger, without};
pub use crate::decide::limit::nodes::Nodes;
pub use crate::decide::limit::report::{AllowanceRow, LimitReading, LimitReport, Spending, report};
pub use crate::fleet::LimitName;

/// Sums of prices differ in their last digits, and a budget of 0.30 must pay for three times 0.10.
/// A gap below this share of the budget counts as zero.
const BUDGET_SLACK: f64 = 1e-9;

/// One source of limits.
#[derive(Clone, Debug, PartialEq)]
pub struct SupplyLimit {
    /// Its name.
    pub name: LimitName,
    /// The variants that it counts.
    pub scope: LimitScope,
    /// Its value and its freshness.
    pub source: LimitSource,
}

/// The variants that a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitScope {
    /// Every variant.
    Cluster,
    /// The variants of a namespace.
    Namespace(Namespace),
    /// These variants.
    Variants(BTreeSet<VariantKey>),
}

/// The value of a limit, and its freshness.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitSource {
    /// The limit has been read.
    Read(Allowance),
    /// The limit cannot be read, and its last value applies.
    Held {
        /// The last value.
        last: Allowance,
        /// Time since it was read.
        age: Seconds,
    },
    /// The limit has never been read.
    Unread,
}

/// The amount that may be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// Accelerators of each kind; none of a kind that is not listed.
    Kinds(BTreeMap<Accelerator, Headroom>),
    /// Accelerators of each kind on each node; none of a kind that is not listed.
    Nodes(Arc<Nodes>),
    /// Accelerators of all kinds together.
    Total(Gpus),
    /// Cost per hour.
    Budget(CostPerHour),
}

/// The demand of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Want {
    /// The variant.
    pub key: VariantKey,
    /// The model that it serves.
    pub model: ModelKey,
    /// The priority of the model.
    pub priority: Priority,
    /// Its accelerator; `None` if unknown.
    pub accelerator: Option<Accelerator>,
    /// Accelerators per replica.
    pub gpus: Gpus,
    /// Cost per replica.
    pub cost: CostPerHour,
    /// Capacity per replica, in the unit of its model's analysis; `None` if unknown.
    pub size: Option<Amount>,
    /// The bounds of its replicas.
    pub bounds: Bounds,
    /// Replicas that its scale target asks for.
    pub current: Replicas,
    /// Desired replicas.
    pub desired: Replicas,
}

settings! {
    /// Precedence of a model if not all of them can be served.
    #[derive(Copy)]
    pub struct Priority {
        /// Class. A model of a lower class gets nothing that one of a higher class can use.
        class as "priority": u32 = 0, in 0..=1_000_000;

        /// Weight of a model's share among the models of its class.
        // A model with a weight of zero would get nothing. A quota serves that purpose.
        weight: Weight = 1.0, in 0.001..=1000.0;

        /// Accelerators up to which the model comes before all others, as far as it needs them.
        guaranteed: Gpus = 0, in 0..=1_000_000;
    }
}

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

/// A limit that keeps a variant from having more replicas.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("limited by {limit}: {why}")]
pub struct Cut {
    /// The limit.
    pub limit: LimitName,
    /// The reason for the refusal.
    pub why: GrantRefusal,
}

/// The reason why a limit refuses a replica.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantRefusal {
    /// A replica needs more than is free.
    #[display(
        "a replica takes {needed} {} and {free} are free",
        kind.as_ref().map_or("accelerators", Accelerator::as_str)
    )]
    Accelerators {
        /// The kind; `None` if all kinds count together.
        kind: Option<Accelerator>,
        /// Accelerators per replica.
        needed: Gpus,
        /// Free accelerators.
        free: Gpus,
    },
    /// Enough is free in total, but no node has enough for a pod.
    #[display(
        "a pod takes {needed} {kind} on one node, where {largest} at most are free, of {free} on \
         all nodes"
    )]
    Scattered {
        /// The kind.
        kind: Accelerator,
        /// Accelerators per pod.
        needed: Gpus,
        /// Free accelerators on the node that has most.
        largest: Gpus,
        /// Free accelerators on all nodes together.
        free: Gpus,
    },
    /// A replica costs more than is left of the budget.
    #[display("a replica costs {needed:.2} an hour and {left:.2} are left")]
    Budget {
        /// Cost per replica.
        needed: CostPerHour,
        /// The rest of the budget.
        left: CostPerHour,
    },
    /// The limit does not list the kind.
    #[display("it has no {_0}")]
    NotListed(Accelerator),
    /// The accelerator of the variant is unknown.
    #[display("what the variant runs on is unknown")]
    UnknownKind,
    /// The limit has never been read.
    #[display("it has not been read yet")]
    Unread,
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

/// Grants every variant the replicas that the limits allow.
pub fn limit(wants: &[Want], limits: &[SupplyLimit]) -> Grants {
    let mut state = GrantState::new(wants, limits);
    state.raise_to_minima();
    let mut turns = TurnOrder::new(&state);
    while let Some((line, at)) = turns.next(&state) {
        match state.refusal(at) {
            None => state.give(at),
            Some((limit, why)) => state.cut(at, limit, why),
        }
        turns.stand(&state, line);
    }

    state.grants()
}

/// The state of granting.
struct GrantState<'a> {
    wants: &'a [Want],
    limits: &'a [SupplyLimit],
    used: Vec<LimitUse>,
    granted: Vec<Replicas>,
    allowed: Vec<Replicas>,
    cuts: Vec<Option<Cut>>,
    shadows: Vec<Option<LimitShadow>>,
    /// In key order.
    models: Vec<ModelShare>,
    /// The model of each want.
    model_of: Vec<usize>,
}

/// The accelerators that a model has and wants.
#[derive(Clone)]
struct ModelShare {
    priority: Priority,
    has: f64,
    wants: f64,
}

impl<'a> GrantState<'a> {
    fn new(wants: &'a [Want], limits: &'a [SupplyLimit]) -> Self {
        let mut ledger = AcceleratorLedger::new(limits);
        for want in wants {
            ledger.hold(want, want.current);
        }

        let used = ledger.into_used();

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
    fn raise_to_minima(&mut self) {
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
    fn lacks(&self, at: usize) -> bool {
        self.cuts[at].is_none() && self.granted[at] < self.wants[at].wanted()
    }

    /// Returns the first limit that refuses one more replica, and the reason.
    fn refusal(&self, at: usize) -> Option<(usize, GrantRefusal)> {
        let want = &self.wants[at];
        if self.granted[at] < want.current {
            // A running replica keeps its accelerators.
            return None;
        }

        let refusals = self.limits.iter().zip(&self.used).enumerate();
        refusals
            .filter(|(_, (limit, _))| limit.counts(want))
            .find_map(|(position, (limit, used))| Some((position, limit.refuses(want, used)?)))
    }

    fn give(&mut self, at: usize) {
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

        for (limit, used) in self.limits.iter().zip(&mut self.used) {
            if limit.counts(want) {
                used.add(limit, want, Replicas::ONE);
                used.start(limit, want, Replicas::ONE);
            }
        }
    }

    fn cut(&mut self, at: usize, limit: usize, why: GrantRefusal) {
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

    fn grants(self) -> Grants {
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

impl Want {
    /// Returns the desired replicas. A scale-up stays inside the maximum.
    fn wanted(&self) -> Replicas {
        match self.bounds.max() {
            Some(max) if self.desired > self.current => self.desired.min(max),
            Some(_) | None => self.desired,
        }
    }

    /// Returns true if the variant takes accelerators of this kind in this namespace.
    fn takes(&self, namespace: &Namespace, kind: &Accelerator) -> bool {
        self.key.namespace == *namespace && self.accelerator.as_ref() == Some(kind)
    }
}

impl ModelShare {
    /// Returns the share of its demand that a model has, by its weight. A model without weight
    /// comes last.
    fn level(&self) -> f64 {
        let wants = self.wants * self.priority.weight.weight();
        if wants > 0.0 { self.has / wants } else { f64::INFINITY }
    }

    /// Returns true if the model has less than its guarantee.
    fn is_below_guarantee(&self) -> bool {
        self.has < f64::from(self.priority.guaranteed.count())
    }
}

impl Priority {
    /// Returns the higher of two priorities.
    fn above(self, other: Self) -> Self {
        let Self { class, weight, guaranteed } = self;
        let order = class
            .cmp(&other.class)
            .then(weight.compare(other.weight))
            .then(guaranteed.cmp(&other.guaranteed));
        if order.is_lt() { other } else { self }
    }
}

/// Converts replicas to accelerators; replicas without accelerators count as one each.
fn weight_of(want: &Want, replicas: Replicas) -> f64 {
    f64::from(want.gpus.times(replicas).count().max(replicas.count()))
}

impl LimitSource {
    /// Returns the allowance in effect; `None` if the limit has never been read.
    #[must_use]
    pub fn allowance(&self) -> Option<&Allowance> {
        match self {
            Self::Read(allowance) | Self::Held { last: allowance, .. } => Some(allowance),
            Self::Unread => None,
        }
    }
}

impl SupplyLimit {
    fn counts(&self, want: &Want) -> bool {
        match &self.scope {
            LimitScope::Cluster => true,
            LimitScope::Namespace(namespace) => want.key.namespace == *namespace,
            LimitScope::Variants(variants) => variants.contains(&want.key),
        }
    }

    /// Returns the kind of a variant. If it is unknown and the limit has one kind only, returns
    /// that kind.
    fn kind<'a>(&'a self, want: &'a Want) -> Option<&'a Accelerator> {
        want.accelerator.as_ref().or_else(|| self.only_kind())
    }

    /// Returns the kind of a limit with one kind only.
    fn only_kind(&self) -> Option<&Accelerator> {
        let kinds = self.source.allowance()?.kinds()?;
        kinds.keys().next().filter(|_| kinds.len() == 1)
    }

    fn is_budget(&self) -> bool {
        matches!(self.source.allowance(), Some(Allowance::Budget(_)))
    }

    /// Returns the free amount of a kind.
    fn free(&self, kind: &Accelerator, used: &LimitUse) -> Headroom {
        match self.source.allowance() {
            None => Headroom::NONE,
            Some(Allowance::Budget(_)) => Headroom::Unlimited,
            Some(Allowance::Total(total)) => Headroom::Limited(*total).without(used.total),
            Some(Allowance::Kinds(kinds)) => left_of_kind(kinds, kind, used),
            Some(Allowance::Nodes(nodes)) => left_of_kind(&nodes.kinds, kind, used),
        }
    }

    /// Returns the reason why one more replica is refused, if it is.
    fn refuses(&self, want: &Want, used: &LimitUse) -> Option<GrantRefusal> {
        match self.source.allowance() {
            Some(Allowance::Budget(budget)) => {
                let left = budget.beyond(used.cost);
                let short = want.cost.per_hour() - left.per_hour();
                let refused = short > BUDGET_SLACK * budget.per_hour();
                refused.then_some(GrantRefusal::Budget { needed: want.cost, left })
            }
            // Replicas without accelerators are limited by money alone.
            None | Some(Allowance::Total(_) | Allowance::Kinds(_) | Allowance::Nodes(_))
                if want.gpus == Gpus::ZERO =>
            {
                None
            }
            None => Some(GrantRefusal::Unread),
            Some(Allowance::Total(total)) => {
                shortage(want, None, Headroom::Limited(*total).without(used.total))
            }
            Some(allowance @ (Allowance::Kinds(_) | Allowance::Nodes(_))) => {
                let kinds = allowance.kinds()?;
                let Some(kind) = self.kind(want) else { return Some(GrantRefusal::UnknownKind) };
                if !kinds.contains_key(kind) {
                    return Some(GrantRefusal::NotListed(kind.clone()));
                }

                let left = left_of_kind(kinds, kind, used);
                shortage(want, Some(kind), left).or_else(|| scattered(allowance, want, kind, used))
            }
        }
    }
}

impl Allowance {
    /// Returns the allowance for each kind, if the limit has kinds.
    #[must_use]
    pub fn kinds(&self) -> Option<&BTreeMap<Accelerator, Headroom>> {
        match self {
            Self::Kinds(kinds) => Some(kinds),
            Self::Nodes(nodes) => Some(&nodes.kinds),
            Self::Total(_) | Self::Budget(_) => None,
        }
    }
}

/// Returns the rest of a kind; none of a kind that is not listed.
fn left_of_kind(
    kinds: &BTreeMap<Accelerator, Headroom>,
    kind: &Accelerator,
    used: &LimitUse,
) -> Headroom {
    let held = used.kinds.get(kind).copied().unwrap_or_default();
    kinds.get(kind).map_or(Headroom::NONE, |headroom| headroom.without(held))
}

/// Returns the refusal of one more replica, if fewer accelerators are free than it takes.
fn shortage(want: &Want, kind: Option<&Accelerator>, free: Headroom) -> Option<GrantRefusal> {
    match free {
        Headroom::Limited(free) if free < want.gpus => {
            Some(GrantRefusal::Accelerators { kind: kind.cloned(), needed: want.gpus, free })
        }
        Headroom::Limited(_) | Headroom::Unlimited => None,
    }
}

/// Returns the reason why no node fits one more replica, if nodes are known.
fn scattered(
    allowance: &Allowance,
    want: &Want,
    kind: &Accelerator,
    used: &LimitUse,
) -> Option<GrantRefusal> {
    let Allowance::Nodes(nodes) = allowance else { return None };
    let fit = nodes.fit(&used.started, want, kind, Replicas::ONE)?;

    (fit == Replicas::ZERO).then(|| GrantRefusal::Scattered {
        kind: kind.clone(),
        needed: nodes.pod(want),
        largest: nodes.largest(kind),
        free: match left_of_kind(&nodes.kinds, kind, used) {
            Headroom::Limited(free) => free,
            Headroom::Unlimited => Gpus::ZERO,
        },
    })
}
