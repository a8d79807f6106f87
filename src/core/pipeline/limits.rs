//! Limits: what all variants together may use, and what each gets of it.
//!
//! Models are planned alone, and only where that breaks a limit together, inside what is left
//! ([`Pipeline::share`]). Whoever decided a number, the load of replicas or an analyzer, it goes
//! through the limits once more before it is published ([`Pipeline::cap`]).
//!
//! What only bridges a time, until others serve, comes after what its model has planned, or it would
//! take what those others need.
//!
//! A limit cuts growth and nothing else. What a scale target asks for it holds, so where a limit
//! falls below what runs, nothing grows, and nothing is taken away.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::capacity::Unit;
use crate::decide::limit::{
    Allowance, Grant, Grants, Limit, LimitName, Nodes, Priority, Refusal, Scope, Shadow, Source,
    Want, limit, normalised, report, without,
};
use crate::decide::limited::{Limited, Price, Short};
use crate::decide::optimize::{self, Consent, Contender, Headroom, Plan, plan, plan_all};
use crate::decide::rank::{Rank, Ranking};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{Accelerator, Bounds, Fleet, ModelKey, VariantKey, VariantSpec};
use crate::observe::inventory::{Inventory, Known, NodeStock, QuotaStock, ReplicaUnit};
use crate::observe::{Inputs, Observation};
use crate::pipeline::{Decisions, LISTING_STALE, Pipeline};
use crate::settings;
use crate::units::{Amount, Gpus, Replicas, Seconds};

/// What may be used, and who comes first where it does not suffice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Whether what nodes have limits variants.
    pub nodes: Watched,
    /// Whether `ResourceQuota`s do.
    pub quotas: Watched,
    /// What products are called; one that is not here has its normalised name.
    pub names: BTreeMap<Accelerator, Accelerator>,
    /// Budgets and quotas that are configured.
    pub configured: Vec<Limit>,
    /// How models stand beside others; a model that is not here stands as [`Priority::default`].
    pub priorities: BTreeMap<ModelKey, Priority>,
}

/// Whether something in a cluster is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watched {
    /// It is not, and limits nothing.
    #[default]
    Off,
    /// It is. While it has never been read, nothing that it would count grows.
    On,
}

settings! { switch: Watched, Watched::On, Watched::Off }

/// What a replica of each variant carries, where somebody knows.
pub(crate) type Sizes = BTreeMap<VariantKey, (Amount, Unit)>;

/// What limits a tick, and what was found of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pub(crate) limits: Vec<Limit>,
    /// Of variants that analyzers have sized.
    pub(crate) sizes: Sizes,
    /// What cut the plans.
    shadows: Vec<Shadow>,
    inventory: Arc<Inventory>,
}

/// The plan of one model.
#[derive(Debug)]
pub(crate) struct Planned {
    /// As if it were alone.
    pub(crate) alone: Plan,
    /// What it gets instead of that, where that is something else.
    pub(crate) shared: BTreeMap<VariantKey, Shared>,
}

/// What a variant gets where its model cannot have what it would have alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shared {
    pub(crate) after: Replicas,
    pub(crate) why: Limited,
}

/// Replicas that hold what they run on, and those that there should be.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    held: Replicas,
    desired: Replicas,
}

// === impl Room ===

impl Room {
    /// What a replica takes, where somebody has seen it.
    pub(crate) fn unit(&self, key: &VariantKey) -> Option<&ReplicaUnit> {
        self.inventory.units.get(key)
    }
}

// === impl Limits ===

impl Limits {
    fn priority(&self, model: &ModelKey) -> Priority {
        self.priorities.get(model).copied().unwrap_or_default()
    }

    /// What a product is called: as configured, else normalised. A name that is configured for some
    /// product is a name as it is.
    #[must_use]
    pub fn named(&self, product: &Accelerator) -> Accelerator {
        self.names
            .get(product)
            .or_else(|| self.names.values().find(|name| *name == product))
            .cloned()
            .unwrap_or_else(|| normalised(product))
    }

    /// What nodes have, by the names that products go by, one row for each.
    fn stock(&self, nodes: &[NodeStock]) -> Vec<NodeStock> {
        let mut kinds: BTreeMap<Accelerator, (Gpus, Gpus)> = BTreeMap::new();
        for NodeStock { product, allocatable, used_by_others } in nodes {
            let (has, others) = kinds.entry(self.named(product)).or_default();
            *has += *allocatable;
            *others += *used_by_others;
        }
        let row = |(product, (allocatable, used_by_others))| NodeStock {
            product,
            allocatable,
            used_by_others,
        };
        kinds.into_iter().map(row).collect()
    }

    fn nodes(&self, now: Timestamp, inventory: &Inventory) -> Option<Limit> {
        let source = source(now, inventory.nodes.as_ref(), |nodes| {
            let kinds = of_nodes(&self.stock(nodes));
            let mut free: BTreeMap<Accelerator, Vec<Gpus>> = BTreeMap::new();
            for (product, left) in &inventory.free {
                free.entry(self.named(product)).or_default().extend(left);
            }
            Allowance::Nodes(Arc::new(Nodes { kinds, free, pods: inventory.pods.clone() }))
        });
        Some(Limit { name: LimitName::new(NODES)?, scope: Scope::Cluster, source })
    }
}

/// What is left of each kind for the variants.
fn of_nodes(stock: &[NodeStock]) -> BTreeMap<Accelerator, Headroom> {
    let left = |row: &NodeStock| {
        let left = row.allocatable.beyond(row.used_by_others);
        (row.product.clone(), Headroom::Limited(left))
    };
    stock.iter().map(left).collect()
}

/// The name of the limit that is what nodes have.
const NODES: &str = "nodes";

/// What a source says, and how far that can be relied on.
fn source<T>(
    now: Timestamp,
    known: Option<&Known<T>>,
    allowance: impl Fn(&T) -> Allowance,
) -> Source {
    let Some(Known { value, as_of }) = known else { return Source::Unread };
    let age = Seconds::from_span(now.duration_since(*as_of)).unwrap_or_default();
    let allowance = allowance(value);
    if age.seconds() > LISTING_STALE {
        Source::Held { last: allowance, age }
    } else {
        Source::Read(allowance)
    }
}

/// The limits that `ResourceQuota`s are, each of one resource.
fn resource_quotas(now: Timestamp, fleet: &Fleet, inventory: &Inventory) -> Vec<Limit> {
    let Some(Known { value: quotas, as_of }) = &inventory.quotas else {
        let (scope, source) = (Scope::Cluster, Source::Unread);
        let name = LimitName::new("resource quotas");
        return name.map(|name| Limit { name, scope, source }).into_iter().collect();
    };
    let limit = |stock: &QuotaStock| {
        let QuotaStock { namespace, name, resource, hard, used_by_others } = stock;
        let name = LimitName::new(&format!("resource quota {namespace}/{name} ({resource})"))?;
        let variants = fleet.variants().map(|spec| &spec.key);
        let scope = Scope::Variants(inventory.takers(namespace, resource, variants));
        let left = Known { value: hard.beyond(*used_by_others), as_of: *as_of };
        let source = source(now, Some(&left), |left| Allowance::Total(*left));
        Some(Limit { name, scope, source })
    };
    quotas.iter().filter_map(limit).collect()
}

// === impl Pipeline ===

impl Pipeline {
    /// What limits this tick.
    pub(crate) fn room(&self, now: Timestamp, inputs: &Inputs) -> Room {
        let policy = &self.policy.limits;
        let inventory = Arc::clone(&inputs.inventory);
        let mut limits = Vec::new();
        if policy.nodes == Watched::On {
            limits.extend(policy.nodes(now, &inventory));
        }
        if policy.quotas == Watched::On {
            limits.extend(resource_quotas(now, &inputs.fleet, &inventory));
        }
        limits.extend(policy.configured.iter().cloned());
        Room { limits, inventory, ..Room::default() }
    }

    /// What a variant runs on, and how many a replica takes: as declared, else as its pod template
    /// or its pods say, and one where nobody says anything.
    pub(crate) fn takes(&self, room: &Room, spec: &VariantSpec) -> (Option<Accelerator>, Gpus) {
        let unit = room.unit(&spec.key);
        let product = spec.accelerator.as_ref().or(unit.and_then(|unit| unit.product.as_ref()));
        let gpus = spec.gpus.or(unit.map(|unit| unit.gpus)).unwrap_or(Gpus::ONE);
        (product.map(|product| self.policy.limits.named(product)), gpus)
    }

    /// Plans models: alone, and where that breaks a limit, together.
    pub(crate) fn share(
        &self,
        mut models: Vec<optimize::Model<'_>>,
        room: &mut Room,
        (fleet, observations): (&Fleet, &BTreeMap<VariantKey, Observation>),
        policy: &optimize::Policy,
        check: &dyn Fn(&VariantKey, Replicas) -> Consent,
    ) -> Vec<Planned> {
        if room.limits.is_empty() {
            let alone = |model| plan(model, None, policy, check);
            let planned = |alone| Planned { alone, shared: BTreeMap::new() };
            return models.iter().map(alone).map(planned).collect();
        }
        for candidate in models.iter_mut().flat_map(|model| &mut model.candidates) {
            if let Some(spec) = fleet.get(&candidate.key) {
                (candidate.accelerator, candidate.gpus) = self.takes(room, spec);
            }
        }
        // What others hold, and what replicas that do not start hold beside those that count.
        let counted: BTreeMap<&VariantKey, Replicas> = models
            .iter()
            .flat_map(|model| &model.candidates)
            .map(|candidate| (&candidate.key, candidate.current))
            .collect();
        let beside = fleet.variants().map(|spec| {
            let held = self.held(spec, observations.get(&spec.key));
            let counted = counted.get(&spec.key).copied().unwrap_or_default();
            let held = held.beyond(counted);
            self.want(room, spec, (spec.bounds, Numbers { held, desired: held }))
        });
        let left = without(&room.limits, &beside.collect::<Vec<_>>());
        let contenders: Vec<Contender<'_>> = models
            .into_iter()
            .map(|model| {
                let priority = self.policy.limits.priority(&model.key);
                Contender { model, priority }
            })
            .collect();
        let together = plan_all(&contenders, &left, policy, check);
        room.shadows.clone_from(&together.contended.shadows);
        planned(together, room)
    }

    /// Cuts what is decided to what may be used, and reports the limits.
    pub(crate) fn cap(
        &self,
        room: &Room,
        fleet: &Fleet,
        observations: &BTreeMap<VariantKey, Observation>,
        found: &mut Decisions,
    ) {
        if room.limits.is_empty() {
            return;
        }
        let decided: BTreeMap<&VariantKey, &Decision> =
            found.decisions.iter().map(|decision| (&decision.variant, decision)).collect();
        let wants: Vec<Want> = fleet
            .variants()
            .map(|spec| {
                let held = self.held(spec, observations.get(&spec.key));
                match decided.get(&spec.key) {
                    Some(decision) if decision.basis == Basis::Fresh => {
                        let desired = decision.desired();
                        self.want(room, spec, (decision.bounds, Numbers { held, desired }))
                    }
                    // A number that is kept for want of data is in use as it is.
                    Some(decision) => {
                        let held = held.max(decision.desired());
                        self.want(room, spec, (decision.bounds, Numbers { held, desired: held }))
                    }
                    None => self.want(room, spec, (spec.bounds, Numbers { held, desired: held })),
                }
            })
            .collect();
        let bridge =
            |want: &Want| decided.get(&want.key).map_or(Replicas::ZERO, |it| bridge_of(it));
        let Grants { grants, shadows } = grant(&wants, &bridge, &room.limits);
        let shadows: Vec<Shadow> = room
            .limits
            .iter()
            .filter_map(|limit| {
                let here = |shadow: &&Shadow| shadow.limit == limit.name;
                shadows.iter().find(here).or_else(|| room.shadows.iter().find(here)).cloned()
            })
            .collect();
        let cuts: BTreeMap<&VariantKey, &Grant> = grants
            .iter()
            .filter(|grant| grant.granted < grant.desired)
            .map(|grant| (&grant.key, grant))
            .collect();
        for decision in &mut found.decisions {
            let Some(grant) = cuts.get(&decision.variant) else { continue };
            let Some(why) = limited(grant, &shadows, room) else { continue };
            let (before, after) = (decision.desired(), grant.granted);
            let reason = Reason::Limited(why);
            decision.steps.push(Step { stage: Stage::Limit, before, after, reason });
        }
        found.limits = report(&wants, &room.limits);
        for report in &mut found.limits {
            let shadow = shadows.iter().find(|it| it.limit == report.name);
            report.price = shadow.and_then(|shadow| price(shadow, room));
            if let (NODES, Some(nodes)) = (report.name.as_str(), &room.inventory.nodes) {
                report.stock = self.policy.limits.stock(&nodes.value);
            }
        }
    }

    /// Replicas that hold what they run on: those that the scale target asks for or that are there.
    /// While nobody can say, it is what is in force, and else the minimum.
    fn held(&self, spec: &VariantSpec, observation: Option<&Observation>) -> Replicas {
        let seen = observation.and_then(|it| it.wanted.max(it.current));
        let bounds = observation.map_or(spec.bounds, |it| it.bounds);
        seen.or_else(|| self.in_force.get(&spec.key).map(|it| it.desired)).unwrap_or(bounds.min())
    }

    fn want(
        &self,
        room: &Room,
        spec: &VariantSpec,
        (bounds, Numbers { held, desired }): (Bounds, Numbers),
    ) -> Want {
        let (accelerator, gpus) = self.takes(room, spec);
        let model = spec.model_key();
        Want {
            key: spec.key.clone(),
            priority: self.policy.limits.priority(&model),
            model,
            accelerator,
            gpus,
            cost: spec.cost,
            size: None,
            bounds,
            current: held,
            desired,
        }
    }
}

/// What of a number is there only until others serve.
fn bridge_of(decision: &Decision) -> Replicas {
    match decision.steps.iter().find(|step| step.stage == Stage::Bridge) {
        Some(bridge) => bridge.after.min(decision.desired()).beyond(bridge.before),
        None => Replicas::ZERO,
    }
}

/// Gives every variant what the limits allow, and of one model first what is more than a bridge. Each
/// bridge wants for itself, behind all others of its model.
fn grant(wants: &[Want], bridge: &dyn Fn(&Want) -> Replicas, limits: &[Limit]) -> Grants {
    let part = |(at, want): (usize, &Want)| {
        // What runs and what must always be there is no question.
        let firm = want.desired.beyond(bridge(want)).max(want.current).max(want.bounds.min());
        let part = want.desired.beyond(firm);
        (part > Replicas::ZERO).then_some((at, part))
    };
    let parts: Vec<(usize, Replicas)> = wants.iter().enumerate().filter_map(part).collect();
    if parts.is_empty() {
        return limit(wants, limits);
    }
    let mut asked = wants.to_vec();
    for &(at, part) in &parts {
        asked[at].desired = asked[at].desired.beyond(part);
        let bounds = Bounds::new(Replicas::ZERO, None).unwrap_or(asked[at].bounds);
        let current = Replicas::ZERO;
        asked.push(Want { bounds, current, desired: part, ..asked[at].clone() });
    }
    let Grants { mut grants, shadows } = limit(&asked, limits);
    let bridges = grants.split_off(wants.len());
    for ((at, part), bridge) in parts.into_iter().zip(bridges) {
        let grant = &mut grants[at];
        grant.desired += part;
        grant.granted += bridge.granted;
        grant.cut = grant.cut.take().or(bridge.cut);
    }
    Grants { grants, shadows }
}

/// What each model gets, in the order of the plans.
fn planned(together: optimize::FleetPlan, room: &Room) -> Vec<Planned> {
    let optimize::FleetPlan { plans, grants, contended, mut alone } = together;
    let granted: BTreeMap<VariantKey, Grant> =
        grants.grants.into_iter().map(|grant| (grant.key.clone(), grant)).collect();
    let first: BTreeMap<&VariantKey, &Grant> =
        contended.grants.iter().map(|grant| (&grant.key, grant)).collect();
    let one = |(position, plan): (usize, Plan)| {
        let again = Arc::clone(&plan.rankings);
        let alone = alone.remove(&position).unwrap_or(plan);
        // Who was cut first is why the model is planned again.
        let is_cut = |key: &VariantKey| first.get(key).is_some_and(|it| it.granted < it.desired);
        let of = alone.placements.iter().map(|it| &it.key).find(|key| is_cut(key));
        let cut = |key: &VariantKey| {
            let grants = [first.get(key).copied(), granted.get(key)];
            let cut = grants.into_iter().flatten().find(|grant| grant.granted < grant.desired)?;
            limited(cut, &room.shadows, room)
        };
        let instead = |key: &VariantKey| {
            let (of, cut) = (of?, first.get(of?)?.cut.as_ref()?);
            let (of, limit) = (of.variant.clone(), cut.limit.clone());
            Some(Limited::Instead { of, limit, rank: rank(key, &again) })
        };
        let shared = |placement: &optimize::Placement| {
            let after = granted.get(&placement.key)?.granted;
            let why = match after.cmp(&placement.after) {
                Ordering::Equal => return None,
                Ordering::Less => cut(&placement.key).or_else(|| instead(&placement.key))?,
                Ordering::Greater => instead(&placement.key)?,
            };
            Some((placement.key.clone(), Shared { after, why }))
        };
        let shared = alone.placements.iter().filter_map(shared).collect();
        Planned { alone, shared }
    };
    plans.into_iter().enumerate().map(one).collect()
}

/// How a variant fared in the rankings of its model; `None` where nothing was ranked.
pub(crate) fn rank(variant: &VariantKey, rankings: &Arc<[Ranking]>) -> Option<Box<Rank>> {
    let rank = || Rank { variant: variant.clone(), rankings: Arc::clone(rankings) };
    (!rankings.is_empty()).then(|| Box::new(rank()))
}

/// Why a variant is cut.
fn limited(grant: &Grant, shadows: &[Shadow], room: &Room) -> Option<Limited> {
    let cut = grant.cut.clone()?;
    let source = room.limits.iter().find(|limit| limit.name == cut.limit).map(|it| &it.source);
    let age = match source {
        Some(Source::Held { age, .. }) => Some(*age),
        Some(Source::Read(_) | Source::Unread) | None => None,
    };
    let shadow = shadows.iter().find(|it| it.limit == cut.limit);
    let price = shadow.and_then(|shadow| price(shadow, room));
    Some(Limited::Cut { cut, age, price })
}

/// What one more of what is short would buy; `None` while nobody knows what the next replica
/// carries, or where more of it would not help.
fn price(shadow: &Shadow, room: &Room) -> Option<Price> {
    let (size, unit) = *room.sizes.get(&shadow.next)?;
    let (of, carries) = match &shadow.why {
        Refusal::Accelerators { kind, needed, .. } => {
            let each = size.amount() / f64::from(needed.count());
            (Short::Accelerator(kind.clone()), Amount::new(each)?)
        }
        Refusal::Budget { needed, .. } => {
            let each = size.amount() / needed.per_hour();
            (Short::CostPerHour, Amount::new(each)?)
        }
        // More of it elsewhere would not help, and nobody knows where more would be.
        Refusal::Scattered { .. }
        | Refusal::NotListed(_)
        | Refusal::UnknownKind
        | Refusal::Unread => return None,
    };
    Some(Price { of, next: shadow.next.clone(), carries, unit })
}
