//! Limits: the resources that all variants together may use, and the share of each variant.
//!
//! Models are planned alone. If their plans together break a limit, they are planned again within
//! the remaining resources ([`TickLimits::share`]). Every decision, whether from saturation or from
//! an analyzer, passes through the limits once more before it is published ([`TickLimits::cap`]).
//!
//! Bridging replicas, which only serve until others are ready, come after the plan of their model.
//! Otherwise they would take the resources that those others need.
//!
//! A limit only cuts growth. A scale target keeps the replicas that it requests. If a limit falls
//! below current usage, nothing scales up, and nothing is taken away.

pub(crate) mod policy;
pub mod raised;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::capacity::Unit;
use crate::decide::limit::{
    Allowance, Grant, GrantRefusal, Grants, LimitName, LimitReport, LimitRoom, LimitScope,
    LimitShadow, LimitSource, Nodes, SupplyLimit, Want, limit, report, without,
};
use crate::decide::limited::{LimitedReason, ScarceResource, ShadowPrice};
use crate::decide::optimize::{
    Consent, Contender, FleetPlan, Headroom, ModelPlan, OptimizerPolicy, PlanModel, plan, plan_all,
};
use crate::decide::rank::{Rank, Ranking};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{Accelerator, Bounds, Fleet, VariantKey, VariantSpec};
use crate::observe::inventory::{Inventory, NodeStock, QuotaStock, ReplicaUnit, TimedValue};
use crate::pipeline::group::Member;
use crate::pipeline::limits::raised::RaisedLimit;
use crate::pipeline::policy::LISTING_STALE;
use crate::pipeline::supply::VariantSupply;
use crate::pipeline::tick::Tick;
use crate::units::{Amount, Gpus, Replicas, Seconds};

pub use crate::pipeline::limits::policy::{LimitPolicy, LimitSwitch};

/// The capacity per replica of each variant, if known.
pub(crate) type ReplicaSizes = BTreeMap<VariantKey, (Amount, Unit)>;

/// The limits of a tick, and the results of applying them.
#[derive(Clone, Debug)]
pub(crate) struct TickLimits<'a> {
    policy: &'a LimitPolicy,
    limits: Vec<SupplyLimit>,
    /// Capacity per replica of the variants that analyzers have sized.
    pub(crate) sizes: ReplicaSizes,
    /// The limits that cut the plans, with the next replica that each refuses.
    shadows: Vec<LimitShadow>,
    inventory: &'a Inventory,
}

/// The decisions within the limits.
#[derive(Debug)]
pub(crate) struct CappedDecisions {
    pub(crate) decisions: Vec<Decision>,
    /// The limits and their usage; empty if nothing is limited.
    pub(crate) limits: Vec<LimitReport>,
}

/// The plan of one model.
#[derive(Debug)]
pub(crate) struct PlannedModel {
    /// The plan of the model on its own.
    pub(crate) alone: ModelPlan,
    /// The variants whose share differs from `alone`.
    pub(crate) shared: BTreeMap<VariantKey, VariantShare>,
}

/// The share of a variant whose model cannot have its plan from [`PlannedModel::alone`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VariantShare {
    pub(crate) after: Replicas,
    pub(crate) why: LimitedReason,
}

/// The bounds of a variant, its replicas that hold resources, and its desired replicas.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    bounds: Bounds,
    held: Replicas,
    desired: Replicas,
}

/// The grants of all variants: those that the first plans got, and the final ones.
#[derive(Debug)]
struct Division<'a> {
    first: BTreeMap<&'a VariantKey, &'a Grant>,
    granted: BTreeMap<VariantKey, Grant>,
    room: &'a TickLimits<'a>,
}

/// The limit from the resources of the nodes.
fn node_limit(now: Timestamp, policy: &LimitPolicy, inventory: &Inventory) -> Option<SupplyLimit> {
    let source = source(now, inventory.nodes.as_ref(), |nodes| {
        let kinds = of_nodes(&policy.stock(nodes));
        let mut free: BTreeMap<Accelerator, Vec<Gpus>> = BTreeMap::new();
        for (product, left) in &inventory.free {
            free.entry(policy.named(product)).or_default().extend(left);
        }
        Allowance::Nodes(Arc::new(Nodes { kinds, free, pods: inventory.pods.clone() }))
    });

    Some(SupplyLimit { name: LimitName::new(NODES)?, scope: LimitScope::Cluster, source })
}

/// The GPUs of each kind that are left for the variants.
fn of_nodes(stock: &[NodeStock]) -> BTreeMap<Accelerator, Headroom> {
    stock
        .iter()
        .map(|row| {
            let left = row.allocatable.beyond(row.used_by_others);
            (row.product.clone(), Headroom::Limited(left))
        })
        .collect()
}

/// The name of the limit on node resources.
const NODES: &str = "nodes";

/// The state of a limit's source: unread, read, or held at its last value with its age.
fn source<T>(
    now: Timestamp,
    known: Option<&TimedValue<T>>,
    allowance: impl Fn(&T) -> Allowance,
) -> LimitSource {
    let Some(TimedValue { value, as_of }) = known else { return LimitSource::Unread };
    let age = Seconds::between(*as_of, now);
    let allowance = allowance(value);

    if age.seconds() > LISTING_STALE {
        LimitSource::Held { last: allowance, age }
    } else {
        LimitSource::Read(allowance)
    }
}

/// The limits from `ResourceQuota`s, one per resource.
fn resource_quotas(now: Timestamp, fleet: &Fleet, inventory: &Inventory) -> Vec<SupplyLimit> {
    let Some(TimedValue { value: quotas, as_of }) = &inventory.quotas else {
        let scope = LimitScope::Cluster;
        let source = LimitSource::Unread;
        let name = LimitName::new("resource quotas");
        return name.map(|name| SupplyLimit { name, scope, source }).into_iter().collect();
    };

    let limits = quotas.iter().filter_map(|it| resource_quota(now, fleet, inventory, it, *as_of));
    limits.collect()
}

/// The limit from one resource of a `ResourceQuota`.
fn resource_quota(
    now: Timestamp,
    fleet: &Fleet,
    inventory: &Inventory,
    stock: &QuotaStock,
    as_of: Timestamp,
) -> Option<SupplyLimit> {
    let QuotaStock { namespace, name, resource, hard, used_by_others } = stock;
    let title = LimitName::new(&format!("resource quota {namespace}/{name} ({resource})"))?;

    let variants = fleet.variants().map(|spec| &spec.key);
    let scope = LimitScope::Variants(inventory.takers(namespace, resource, variants));

    let left = TimedValue { value: hard.beyond(*used_by_others), as_of };
    let source = source(now, Some(&left), |left| Allowance::Total(*left));
    Some(SupplyLimit { name: title, scope, source })
}

// === impl TickLimits ===

impl<'a> TickLimits<'a> {
    /// The limits of a tick, of which one may be raised.
    pub(crate) fn of(tick: &Tick<'a>, raised: Option<&RaisedLimit>) -> Self {
        let policy = &tick.policy.limits;
        let inventory: &'a Inventory = &tick.inputs.inventory;
        let mut limits = Vec::new();
        if policy.nodes == LimitSwitch::On {
            limits.extend(node_limit(tick.now, policy, inventory));
        }
        if policy.quotas == LimitSwitch::On {
            limits.extend(resource_quotas(tick.now, &tick.inputs.fleet, inventory));
        }

        limits.extend(policy.configured.iter().cloned());
        for limit in &mut limits {
            if let Some(raised) = raised.filter(|raised| raised.limit == limit.name) {
                raised.apply(limit);
            }
        }

        let sizes = ReplicaSizes::new();
        Self { policy, limits, sizes, shadows: Vec::new(), inventory }
    }

    /// The resources of one replica, if known.
    pub(crate) fn unit(&self, key: &VariantKey) -> Option<&ReplicaUnit> {
        self.inventory.units.get(key)
    }

    /// The accelerator of a variant and the GPUs per replica. Declared values come first, then
    /// those of its pod template or pods, then one GPU.
    pub(crate) fn takes(&self, spec: &VariantSpec) -> (Option<Accelerator>, Gpus) {
        let unit = self.unit(&spec.key);
        let product = spec.accelerator.as_ref().or(unit.and_then(|unit| unit.product.as_ref()));
        let gpus = self.inventory.gpus(spec).unwrap_or(Gpus::ONE);
        (product.map(|product| self.policy.named(product)), gpus)
    }

    /// Plans each model alone. Plans models together if their plans break a limit.
    pub(crate) fn share(
        &mut self,
        tick: &Tick<'_>,
        supply: &[VariantSupply],
        mut models: Vec<PlanModel<'_>>,
        policy: &OptimizerPolicy,
        check: &dyn Fn(&VariantKey, Replicas) -> Consent,
    ) -> Vec<PlannedModel> {
        if self.limits.is_empty() {
            return models
                .iter()
                .map(|model| plan(model, None, policy, check))
                .map(|alone| PlannedModel { alone, shared: BTreeMap::new() })
                .collect();
        }

        for candidate in models.iter_mut().flat_map(|model| &mut model.candidates) {
            if let Some(spec) = tick.inputs.fleet.get(&candidate.key) {
                (candidate.accelerator, candidate.gpus) = self.takes(spec);
            }
        }

        let left = without(&self.limits, &self.uncounted(tick, supply, &models));
        let contenders: Vec<Contender<'_>> = models
            .into_iter()
            .map(|model| {
                let priority = self.policy.priority(&model.key);
                Contender { model, priority }
            })
            .collect();
        let together = plan_all(&contenders, &left, policy, check);
        self.shadows.clone_from(&together.contended.shadows);
        planned(together, self)
    }

    /// The room next to the present replicas of all variants.
    pub(crate) fn room(&self, tick: &Tick<'_>) -> LimitRoom<'_> {
        // Without plans, no holding is counted already. Without limits, none counts.
        let wants =
            if self.limits.is_empty() { Vec::new() } else { self.uncounted(tick, &[], &[]) };
        LimitRoom::new(wants, &self.limits)
    }

    /// Cuts the decisions to the limits and reports the limits.
    pub(crate) fn cap(&self, tick: &Tick<'_>, mut decisions: Vec<Decision>) -> CappedDecisions {
        if self.limits.is_empty() {
            return CappedDecisions { decisions, limits: Vec::new() };
        }

        let decided: BTreeMap<&VariantKey, &Decision> =
            decisions.iter().map(|decision| (&decision.variant, decision)).collect();
        let wants: Vec<Want> = tick
            .members
            .iter()
            .map(|member| self.decided_want(tick, member, decided.get(&member.spec.key).copied()))
            .collect();

        let granted = grant(&wants, &decided, &self.limits);
        let shadows = self.final_shadows(&granted.shadows);
        let cuts: BTreeMap<&VariantKey, &Grant> = granted
            .grants
            .iter()
            .filter(|grant| grant.granted < grant.desired)
            .map(|grant| (&grant.key, grant))
            .collect();
        for decision in &mut decisions {
            let Some(grant) = cuts.get(&decision.variant) else { continue };
            let Some(why) = limited(grant, &shadows, self) else { continue };
            let before = decision.desired();
            let after = grant.granted;
            let reason = Reason::Limited(why);
            decision.steps.push(Step { stage: Stage::Limit, before, after, reason });
        }

        let limits = self.reports(&wants, &shadows);
        CappedDecisions { decisions, limits }
    }

    /// Resources that the plans do not count: those of variants without a plan, and those of
    /// replicas that do not start. A plan may keep the surplus of its variants.
    fn uncounted(
        &self,
        tick: &Tick<'_>,
        supply: &[VariantSupply],
        models: &[PlanModel<'_>],
    ) -> Vec<Want> {
        let counted: BTreeMap<&VariantKey, Replicas> = models
            .iter()
            .flat_map(|model| &model.candidates)
            .map(|candidate| (&candidate.key, candidate.current))
            .collect();

        tick.members
            .iter()
            .map(|member| {
                let spec = member.spec;
                let in_plan = counted.get(&spec.key).map(|it| *it + supply[member.place].surplus);
                let held = held(tick, member).beyond(in_plan.unwrap_or_default());
                self.want(spec, Numbers { bounds: spec.bounds, held, desired: held })
            })
            .collect()
    }

    /// The resources that a variant uses if its decision is published.
    fn decided_want(
        &self,
        tick: &Tick<'_>,
        member: &Member<'_>,
        decision: Option<&Decision>,
    ) -> Want {
        let spec = member.spec;
        let held = held(tick, member);
        match decision {
            Some(decision) if decision.basis == Basis::Fresh => {
                let desired = decision.desired();
                self.want(spec, Numbers { bounds: decision.bounds, held, desired })
            }
            // A held decision uses the replicas in force. A pin may ask for more.
            Some(decision) => {
                let desired = decision.desired();
                let in_force = tick.in_force.get(&decision.variant).map(|it| it.desired);
                let kept = held.max(in_force.unwrap_or(desired).min(desired));
                let all = kept.max(desired);
                self.want(spec, Numbers { bounds: decision.bounds, held: kept, desired: all })
            }
            None => self.want(spec, Numbers { bounds: spec.bounds, held, desired: held }),
        }
    }

    /// The next refused replica of each limit: that of the final grants, otherwise that of the
    /// plans.
    fn final_shadows(&self, granted: &[LimitShadow]) -> Vec<LimitShadow> {
        self.limits
            .iter()
            .filter_map(|limit| {
                let mut all = granted.iter().chain(&self.shadows);
                all.find(|shadow| shadow.limit == limit.name).cloned()
            })
            .collect()
    }

    fn reports(&self, wants: &[Want], shadows: &[LimitShadow]) -> Vec<LimitReport> {
        let mut reports = report(wants, &self.limits);
        for report in &mut reports {
            let shadow = shadows.iter().find(|it| it.limit == report.name);
            report.price = shadow.and_then(|shadow| price(shadow, self));
            if let (NODES, Some(nodes)) = (report.name.as_str(), &self.inventory.nodes) {
                report.stock = self.policy.stock(&nodes.value);
            }
        }
        reports
    }

    fn want(&self, spec: &VariantSpec, numbers: Numbers) -> Want {
        let Numbers { bounds, held, desired } = numbers;
        let (accelerator, gpus) = self.takes(spec);
        let model = spec.model_key();

        Want {
            key: spec.key.clone(),
            priority: self.policy.priority(&model),
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

/// Replicas that hold resources: the requested or the current replicas, whichever are more. If
/// neither is known, the desired replicas in effect, otherwise the minimum.
fn held(tick: &Tick<'_>, member: &Member<'_>) -> Replicas {
    let observation = member.observation;
    let seen = observation.wanted.max(observation.current);
    seen.or_else(|| tick.desired(member)).unwrap_or(observation.bounds.min())
}

/// The part of the desired replicas that only bridges until others serve.
fn bridge_of(decision: &Decision) -> Replicas {
    match decision.steps.iter().find(|step| step.stage == Stage::Bridge) {
        Some(bridge) => bridge.after.min(decision.desired()).beyond(bridge.before),
        None => Replicas::ZERO,
    }
}

/// The part of a want that only bridges. Current replicas and the minimum never do.
fn bridging(want: &Want, decision: Option<&Decision>) -> Replicas {
    let bridge = decision.map_or(Replicas::ZERO, bridge_of);
    let firm = want.desired.beyond(bridge).max(want.current).max(want.bounds.min());
    want.desired.beyond(firm)
}

/// Grants each variant the replicas that the limits allow. Bridging replicas become separate wants
/// at the end of the list, behind all other wants of their model.
fn grant(
    wants: &[Want],
    decided: &BTreeMap<&VariantKey, &Decision>,
    limits: &[SupplyLimit],
) -> Grants {
    let parts: Vec<(usize, Replicas)> = wants
        .iter()
        .map(|want| bridging(want, decided.get(&want.key).copied()))
        .enumerate()
        .filter(|(_, part)| *part > Replicas::ZERO)
        .collect();
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

/// The share of each model, in the order of the plans.
fn planned(together: FleetPlan, room: &TickLimits<'_>) -> Vec<PlannedModel> {
    let FleetPlan { plans, grants, contended, alone: mut singles } = together;
    let division = Division {
        first: contended.grants.iter().map(|grant| (&grant.key, grant)).collect(),
        granted: grants.grants.into_iter().map(|grant| (grant.key.clone(), grant)).collect(),
        room,
    };

    plans
        .into_iter()
        .enumerate()
        .map(|(position, plan)| {
            let rankings = Arc::clone(&plan.rankings);
            let alone = singles.remove(&position).unwrap_or(plan);
            let shared = division.shared(&alone, &rankings);
            PlannedModel { alone, shared }
        })
        .collect()
}

impl Division<'_> {
    /// The variants of a model whose share differs from its plan.
    fn shared(
        &self,
        plan: &ModelPlan,
        rankings: &Arc<[Ranking]>,
    ) -> BTreeMap<VariantKey, VariantShare> {
        // The model is planned again because of the first variant whose grant was cut.
        let mut keys = plan.placements.iter().map(|it| &it.key);
        let cause = keys.find(|key| self.first.get(*key).is_some_and(|it| is_cut(it)));

        let shared = plan.placements.iter().filter_map(|placement| {
            let key = &placement.key;
            let after = self.granted.get(key)?.granted;
            let why = match after.cmp(&placement.after) {
                Ordering::Equal => return None,
                Ordering::Less => self.cut(key).or_else(|| self.instead(cause, key, rankings))?,
                Ordering::Greater => self.instead(cause, key, rankings)?,
            };
            Some((key.clone(), VariantShare { after, why }))
        });
        shared.collect()
    }

    /// The reason for the first cut among a variant's grants.
    fn cut(&self, key: &VariantKey) -> Option<LimitedReason> {
        let grants = [self.first.get(key).copied(), self.granted.get(key)];
        let cut = grants.into_iter().flatten().find(|grant| is_cut(grant))?;
        limited(cut, &self.room.shadows, self.room)
    }

    /// The reason why a variant serves instead of `cause`.
    fn instead(
        &self,
        cause: Option<&VariantKey>,
        key: &VariantKey,
        rankings: &Arc<[Ranking]>,
    ) -> Option<LimitedReason> {
        let of = cause?;
        let cut = self.first.get(of)?.cut.as_ref()?;
        Some(LimitedReason::Instead {
            of: of.variant.clone(),
            limit: cut.limit.clone(),
            rank: rank(key, rankings),
        })
    }
}

fn is_cut(grant: &Grant) -> bool {
    grant.granted < grant.desired
}

/// The result of a variant in the rankings of its model; `None` if nothing was ranked.
pub(crate) fn rank(variant: &VariantKey, rankings: &Arc<[Ranking]>) -> Option<Box<Rank>> {
    (!rankings.is_empty())
        .then(|| Box::new(Rank { variant: variant.clone(), rankings: Arc::clone(rankings) }))
}

/// The reason why a variant is cut.
fn limited(grant: &Grant, shadows: &[LimitShadow], room: &TickLimits<'_>) -> Option<LimitedReason> {
    let cut = grant.cut.clone()?;
    let source = room.limits.iter().find(|limit| limit.name == cut.limit).map(|it| &it.source);
    let age = match source {
        Some(LimitSource::Held { age: held_for, .. }) => Some(*held_for),
        Some(LimitSource::Read(_) | LimitSource::Unread) | None => None,
    };

    let shadow = shadows.iter().find(|it| it.limit == cut.limit);
    let price = shadow.and_then(|shadow| price(shadow, room));
    Some(LimitedReason::Cut { cut, age, price })
}

/// The capacity that one more unit of the short resource adds. `None` if the capacity of the next
/// replica is not known, or if more of the resource would not help.
fn price(shadow: &LimitShadow, room: &TickLimits<'_>) -> Option<ShadowPrice> {
    let (size, unit) = *room.sizes.get(&shadow.next)?;
    let (of, carries) = match &shadow.why {
        GrantRefusal::Accelerators { kind, needed, .. } => {
            let each = size.amount() / f64::from(needed.count());
            (ScarceResource::Accelerator(kind.clone()), Amount::new(each)?)
        }
        GrantRefusal::Budget { needed, .. } => {
            let each = size.amount() / needed.per_hour();
            (ScarceResource::CostPerHour, Amount::new(each)?)
        }
        // More of the resource elsewhere would not help, and the useful place is not known.
        GrantRefusal::Scattered { .. }
        | GrantRefusal::NotListed(_)
        | GrantRefusal::UnknownKind
        | GrantRefusal::Unread => return None,
    };

    Some(ShadowPrice { of, next: shadow.next.clone(), carries, unit })
}
