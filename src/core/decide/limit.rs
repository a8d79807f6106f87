//! What may be used: inventories, quotas, budgets and maxima together.
//!
//! [`limit`] turns what each variant wants into what it gets. Every [`Limit`] holds at once, so the
//! tightest wins, and what one refuses is not taken from another. Each cut names the limit that
//! made it, and each limit that cut says what one more would buy ([`Shadow`]).
//!
//! # Model
//!
//! What runs keeps what it holds: a replica that is going still has its accelerators, so nothing
//! becomes free before it is gone. Minima are raised first. Then models come that have less than
//! what is guaranteed to them, whatever their class. The rest is given out one replica at a time: of
//! the highest priority class that still lacks something, to the model with the smallest
//!
//! ```text
//! level = accelerators that it has / (weight * accelerators that it wants)
//! ```
//!
//! that is weighted max-min fairness of the shares of what is wanted (Bertsekas and Gallager, *Data
//! Networks*, 6.5.2), in whole replicas. A variant that does not fit is left out from then on, so
//! nothing is set aside for it, and what it could not use others get.
//!
//! # Failing
//!
//! A source that cannot be read holds at what it said last ([`Source::Held`]). One that never said
//! anything lets nothing grow ([`Source::Unread`]). Neither ever becomes unlimited. A kind that a
//! list does not name is not there.

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

use crate::decide::limit::ledger::Used;
use crate::decide::limit::turns::Turns;
use crate::decide::optimize::Headroom;
use crate::fleet::{Accelerator, Bounds, ModelKey, Namespace, VariantKey};
use crate::settings;
use crate::units::{Amount, CostPerHour, Gpus, Replicas, Seconds, Weight};

pub use crate::decide::limit::inventory::normalised;
pub use crate::decide::limit::ledger::{Ledger, without};
pub use crate::decide::limit::nodes::Nodes;
pub use crate::decide::limit::report::{LimitReport, Reading, Row, Spending, report};
pub use crate::fleet::LimitName;

/// Sums of prices differ in their last digits, and a budget of 0.30 is for three times 0.10. Less
/// than this share of it is nothing.
const BUDGET_SLACK: f64 = 1e-9;

/// One source of limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Its name.
    pub name: LimitName,
    /// Whom it counts.
    pub scope: Scope,
    /// What it says.
    pub source: Source,
}

/// Whom a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every variant.
    Cluster,
    /// The variants of a namespace.
    Namespace(Namespace),
    /// These variants.
    Variants(BTreeSet<VariantKey>),
}

/// What a limit says, and how far that can be relied on.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// It has been read.
    Read(Allowance),
    /// It cannot be read, and this is what it said last.
    Held {
        /// What it said.
        last: Allowance,
        /// How long ago.
        age: Seconds,
    },
    /// It has never been read.
    Unread,
}

/// How much may be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// So many accelerators of each kind; none of a kind that is not listed.
    Kinds(BTreeMap<Accelerator, Headroom>),
    /// What nodes have of each kind, and where; none of a kind that is not listed.
    Nodes(Arc<Nodes>),
    /// So many accelerators, of all kinds together.
    Total(Gpus),
    /// So much cost an hour.
    Budget(CostPerHour),
}

/// What one variant wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Want {
    /// The variant.
    pub key: VariantKey,
    /// The model that it serves.
    pub model: ModelKey,
    /// How the model stands beside others.
    pub priority: Priority,
    /// What it runs on; `None` when nobody can say.
    pub accelerator: Option<Accelerator>,
    /// Accelerators that one replica takes.
    pub gpus: Gpus,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// What one replica carries, in the unit of its model's analysis; `None` when nobody can say.
    pub size: Option<Amount>,
    /// What it may be scaled to.
    pub bounds: Bounds,
    /// Replicas that its scale target asks for.
    pub current: Replicas,
    /// Replicas that it should have.
    pub desired: Replicas,
}

settings! {
    /// Precedence of a model if not all of them can be served.
    #[derive(Copy)]
    pub struct Priority {
        /// Class. A model of a lower class gets nothing that one of a higher class can use.
        class as "priority": u32 = 0, in 0..=1_000_000;

        /// Weight of a model's share among the models of its class.
        // A weight of zero would be a model that gets nothing, which is what a quota is for.
        weight: Weight = 1.0, in 0.001..=1000.0;

        /// Accelerators up to which the model comes before all others, as far as it needs them.
        guaranteed: Gpus = 0, in 0..=1_000_000;
    }
}

/// What one variant gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The variant.
    pub key: VariantKey,
    /// Replicas that it should have.
    pub desired: Replicas,
    /// Replicas that it gets.
    pub granted: Replicas,
    /// Replicas that the limits alone would allow, when the minimum is above that.
    pub below_min: Option<Replicas>,
    /// What keeps it from having more.
    pub cut: Option<Cut>,
}

/// What keeps a variant from having more.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("limited by {limit}: {why}")]
pub struct Cut {
    /// The limit.
    pub limit: LimitName,
    /// Why it refuses.
    pub why: Refusal,
}

/// Why a limit refuses a replica.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Less is free than a replica takes.
    #[display(
        "a replica takes {needed} {} and {free} are free",
        kind.as_ref().map_or("accelerators", Accelerator::as_str)
    )]
    Accelerators {
        /// Of which kind; `None` when all kinds count together.
        kind: Option<Accelerator>,
        /// What a replica takes.
        needed: Gpus,
        /// What is free.
        free: Gpus,
    },
    /// Enough is free, and on no node enough for a pod.
    #[display(
        "a pod takes {needed} {kind} on one node, where {largest} at most are free, of {free} on \
         all nodes"
    )]
    Scattered {
        /// Of which kind.
        kind: Accelerator,
        /// What a pod takes.
        needed: Gpus,
        /// What is free on the node that has most.
        largest: Gpus,
        /// What is free on all nodes together.
        free: Gpus,
    },
    /// Less of the budget is left than a replica costs.
    #[display("a replica costs {needed:.2} an hour and {left:.2} are left")]
    Budget {
        /// What a replica costs.
        needed: CostPerHour,
        /// What is left.
        left: CostPerHour,
    },
    /// The limit does not know the kind.
    #[display("it has no {_0}")]
    NotListed(Accelerator),
    /// Nobody knows what the variant runs on.
    #[display("what the variant runs on is unknown")]
    UnknownKind,
    /// The limit has never been read.
    #[display("it has not been read yet")]
    Unread,
}

/// What one more would buy where a limit cuts.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    /// The limit.
    pub limit: LimitName,
    /// What is short.
    pub why: Refusal,
    /// The variant that would be served next.
    pub next: VariantKey,
    /// What each accelerator of that replica would carry; `None` when nobody can say.
    pub per_gpu: Option<Amount>,
}

/// What everybody gets.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Grants {
    /// In the order of the wants.
    pub grants: Vec<Grant>,
    /// One for each limit that cut, in the order of the limits.
    pub shadows: Vec<Shadow>,
}

/// Gives every variant what the limits allow.
pub fn limit(wants: &[Want], limits: &[Limit]) -> Grants {
    let mut state = State::new(wants, limits);
    state.raise_to_minima();
    let mut turns = Turns::new(&state);
    while let Some((line, at)) = turns.next(&state) {
        match state.refusal(at) {
            None => state.give(at),
            Some((limit, why)) => state.cut(at, limit, why),
        }
        turns.stand(&state, line);
    }
    state.grants()
}

/// Giving out, under way.
struct State<'a> {
    wants: &'a [Want],
    limits: &'a [Limit],
    used: Vec<Used>,
    granted: Vec<Replicas>,
    allowed: Vec<Replicas>,
    cuts: Vec<Option<Cut>>,
    shadows: Vec<Option<Shadow>>,
    /// In the order of their keys.
    models: Vec<Share>,
    /// The model of each want.
    model_of: Vec<usize>,
}

/// What a model has of what it wants.
#[derive(Clone)]
struct Share {
    priority: Priority,
    has: f64,
    wants: f64,
}

impl<'a> State<'a> {
    fn new(wants: &'a [Want], limits: &'a [Limit]) -> Self {
        let mut ledger = Ledger::new(limits);
        for want in wants {
            ledger.hold(want, want.current);
        }
        let used = ledger.into_used();
        // The variants of a model come one after the other, so most names are those of the last.
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
        let nothing = Share { priority: last, has: 0.0, wants: 0.0 };
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

    /// Gives everybody the minimum, as far as it is wanted, inside the limits or not.
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

    /// Whether a variant wants more than it has, and nothing has refused it yet.
    fn lacks(&self, at: usize) -> bool {
        self.cuts[at].is_none() && self.granted[at] < self.wants[at].wanted()
    }

    /// Which limit refuses one replica more, and why; of several, the first.
    fn refusal(&self, at: usize) -> Option<(usize, Refusal)> {
        let want = &self.wants[at];
        if self.granted[at] < want.current {
            // It holds what it runs on.
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

    /// Counts one replica more.
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

    fn cut(&mut self, at: usize, limit: usize, why: Refusal) {
        let want = &self.wants[at];
        let name = self.limits[limit].name.clone();
        if self.shadows[limit].is_none() {
            let gpus = f64::from(want.gpus.count());
            self.shadows[limit] = Some(Shadow {
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
    /// What it should have; what grows, inside its maximum.
    fn wanted(&self) -> Replicas {
        match self.bounds.max() {
            Some(max) if self.desired > self.current => self.desired.min(max),
            Some(_) | None => self.desired,
        }
    }
}

impl Share {
    /// How much a model has of what it wants, by its weight. Without a weight it comes last.
    fn level(&self) -> f64 {
        let wants = self.wants * self.priority.weight.weight();
        if wants > 0.0 { self.has / wants } else { f64::INFINITY }
    }

    /// Whether it has less than what is guaranteed to it.
    fn is_below_guarantee(&self) -> bool {
        self.has < f64::from(self.priority.guaranteed.count())
    }
}

impl Priority {
    /// The higher of two.
    fn above(self, other: Self) -> Self {
        let Self { class, weight, guaranteed } = self;
        let order = class.cmp(&other.class).then(weight.compare(other.weight));
        let order = order.then(guaranteed.cmp(&other.guaranteed));
        if order.is_lt() { other } else { self }
    }
}

/// Replicas in accelerators; those without any count as one each.
fn weight_of(want: &Want, replicas: Replicas) -> f64 {
    f64::from(want.gpus.times(replicas).count().max(replicas.count()))
}

impl Source {
    /// What holds; `None` when nothing has ever been read.
    #[must_use]
    pub fn allowance(&self) -> Option<&Allowance> {
        match self {
            Self::Read(allowance) | Self::Held { last: allowance, .. } => Some(allowance),
            Self::Unread => None,
        }
    }
}

impl Limit {
    fn counts(&self, want: &Want) -> bool {
        match &self.scope {
            Scope::Cluster => true,
            Scope::Namespace(namespace) => want.key.namespace == *namespace,
            Scope::Variants(variants) => variants.contains(&want.key),
        }
    }

    /// What a variant runs on for this limit: where there is one kind only, it is that one.
    fn kind<'a>(&'a self, want: &'a Want) -> Option<&'a Accelerator> {
        let only = || {
            let kinds = self.source.allowance()?.kinds()?;
            kinds.keys().next().filter(|_| kinds.len() == 1)
        };
        want.accelerator.as_ref().or_else(only)
    }

    /// What is free of a kind.
    fn free(&self, kind: &Accelerator, used: &Used) -> Headroom {
        match self.source.allowance() {
            None => Headroom::NONE,
            Some(Allowance::Budget(_)) => Headroom::Unlimited,
            Some(Allowance::Total(total)) => Headroom::Limited(*total).without(used.total),
            Some(Allowance::Kinds(kinds)) => left_of_kind(kinds, kind, used),
            Some(Allowance::Nodes(nodes)) => left_of_kind(&nodes.kinds, kind, used),
        }
    }

    /// Why one replica more is too many.
    fn refuses(&self, want: &Want, used: &Used) -> Option<Refusal> {
        let short = |kind: Option<&Accelerator>, free: Headroom| match free {
            Headroom::Limited(free) if free < want.gpus => {
                let (kind, needed) = (kind.cloned(), want.gpus);
                Some(Refusal::Accelerators { kind, needed, free })
            }
            Headroom::Limited(_) | Headroom::Unlimited => None,
        };
        match self.source.allowance() {
            Some(Allowance::Budget(budget)) => {
                let left = budget.beyond(used.cost);
                let short = want.cost.per_hour() - left.per_hour();
                let refused = short > BUDGET_SLACK * budget.per_hour();
                refused.then_some(Refusal::Budget { needed: want.cost, left })
            }
            // What takes no accelerators is limited by money alone.
            None | Some(Allowance::Total(_) | Allowance::Kinds(_) | Allowance::Nodes(_))
                if want.gpus == Gpus::ZERO =>
            {
                None
            }
            None => Some(Refusal::Unread),
            Some(Allowance::Total(total)) => {
                short(None, Headroom::Limited(*total).without(used.total))
            }
            Some(allowance @ (Allowance::Kinds(_) | Allowance::Nodes(_))) => {
                let kinds = allowance.kinds()?;
                let Some(kind) = self.kind(want) else { return Some(Refusal::UnknownKind) };
                if !kinds.contains_key(kind) {
                    return Some(Refusal::NotListed(kind.clone()));
                }
                let left = left_of_kind(kinds, kind, used);
                short(Some(kind), left).or_else(|| scattered(allowance, want, kind, used))
            }
        }
    }
}

impl Allowance {
    /// What it allows of each kind, if it knows kinds.
    #[must_use]
    pub fn kinds(&self) -> Option<&BTreeMap<Accelerator, Headroom>> {
        match self {
            Self::Kinds(kinds) => Some(kinds),
            Self::Nodes(nodes) => Some(&nodes.kinds),
            Self::Total(_) | Self::Budget(_) => None,
        }
    }
}

/// What is left of a kind; none of one that is not listed.
fn left_of_kind(
    kinds: &BTreeMap<Accelerator, Headroom>,
    kind: &Accelerator,
    used: &Used,
) -> Headroom {
    let used = used.kinds.get(kind).copied().unwrap_or_default();
    kinds.get(kind).map_or(Headroom::NONE, |headroom| headroom.without(used))
}

/// Why no node takes one replica more, where nodes are known.
fn scattered(
    allowance: &Allowance,
    want: &Want,
    kind: &Accelerator,
    used: &Used,
) -> Option<Refusal> {
    let Allowance::Nodes(nodes) = allowance else { return None };
    let fit = nodes.fit(&used.started, want, kind, Replicas::ONE)?;
    (fit == Replicas::ZERO).then(|| Refusal::Scattered {
        kind: kind.clone(),
        needed: nodes.pod(want),
        largest: nodes.largest(kind),
        free: match left_of_kind(&nodes.kinds, kind, used) {
            Headroom::Limited(free) => free,
            Headroom::Unlimited => Gpus::ZERO,
        },
    })
}
