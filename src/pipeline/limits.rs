//! Limits: what all variants together may use, and what each gets of it.
//!
//! Models are planned alone, and only where that breaks a limit together, inside what is left
//! ([`Pipeline::share`]). Whoever decided a number, the load of replicas or an analyzer, it goes
//! through the limits once more before it is published ([`Pipeline::cap`]).
//!
//! A limit cuts growth and nothing else. What a scale target asks for it holds, so where a limit
//! falls below what runs, nothing grows, and nothing is taken away.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::analyze::capacity::Unit;
use crate::decide::limit::{
    Grant, Grants, Limit, Priority, Refusal, Shadow, Sharing, Source, Want, limit, normalised,
    report, without,
};
use crate::decide::limited::{Limited, Price, Short};
use crate::decide::optimize::{self, Consent, Contender, Plan, least_cost, least_cost_of_all};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{Bounds, Fleet, ModelKey, VariantKey, VariantSpec};
use crate::observe::Observation;
use crate::pipeline::{Decisions, Pipeline};
use crate::units::{Amount, Gpus, Replicas};

/// What may be used, and who comes first where it does not suffice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Budgets and quotas that are configured.
    pub configured: Vec<Limit>,
    /// How models stand beside others; a model that is not here stands as [`Priority::default`].
    pub priorities: BTreeMap<ModelKey, Priority>,
}

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

// === impl Limits ===

impl Limits {
    fn priority(&self, model: &ModelKey) -> Priority {
        self.priorities.get(model).copied().unwrap_or_default()
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// What limits this tick.
    pub(crate) fn room(&self) -> Room {
        Room { limits: self.policy.limits.configured.clone(), ..Room::default() }
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
            let alone = |model| least_cost(model, None, policy, check);
            let planned = |alone| Planned { alone, shared: BTreeMap::new() };
            return models.iter().map(alone).map(planned).collect();
        }
        for candidate in models.iter_mut().flat_map(|model| &mut model.candidates) {
            candidate.accelerator = candidate.accelerator.as_ref().map(normalised);
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
            self.want(spec, spec.bounds, Numbers { held, desired: held })
        });
        let left = without(&room.limits, &beside.collect::<Vec<_>>());
        let contenders: Vec<Contender<'_>> = models
            .into_iter()
            .map(|model| {
                let priority = self.policy.limits.priority(&model.key);
                Contender { model, priority }
            })
            .collect();
        let together = least_cost_of_all(&contenders, &left, policy, check);
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
                        self.want(spec, decision.bounds, Numbers { held, desired })
                    }
                    // A number that is kept for want of data is in use as it is.
                    Some(decision) => {
                        let held = held.max(decision.desired());
                        self.want(spec, decision.bounds, Numbers { held, desired: held })
                    }
                    None => self.want(spec, spec.bounds, Numbers { held, desired: held }),
                }
            })
            .collect();
        let Grants { grants, shadows } = limit(&wants, &room.limits, Sharing::MaxMin);
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
            let shadow = shadows.iter().find(|shadow| shadow.limit == report.name);
            report.price = shadow.and_then(|shadow| price(shadow, room));
        }
    }

    /// Replicas that hold what they run on: those that the scale target asks for or that are there.
    /// While nobody can say, it is what is in force, and else the minimum.
    fn held(&self, spec: &VariantSpec, observation: Option<&Observation>) -> Replicas {
        let seen = observation.and_then(|it| it.wanted.max(it.current));
        let in_force = || self.in_force.get(&spec.key).map(|it| it.desired);
        let bounds = observation.map_or(spec.bounds, |it| it.bounds);
        seen.or_else(in_force).unwrap_or(bounds.min())
    }

    fn want(&self, spec: &VariantSpec, bounds: Bounds, numbers: Numbers) -> Want {
        let Numbers { held, desired } = numbers;
        let model = spec.model_key();
        Want {
            key: spec.key.clone(),
            priority: self.policy.limits.priority(&model),
            model,
            accelerator: spec.accelerator.as_ref().map(normalised),
            gpus: gpus(spec),
            cost: spec.cost,
            size: None,
            bounds,
            current: held,
            desired,
        }
    }
}

/// Accelerators that one replica takes; one where nobody says otherwise.
pub(crate) fn gpus(spec: &VariantSpec) -> Gpus {
    spec.gpus.unwrap_or(Gpus::ONE)
}

/// What each model gets, in the order of the plans.
fn planned(together: optimize::FleetPlan, room: &Room) -> Vec<Planned> {
    let optimize::FleetPlan { plans, grants, contended, mut alone } = together;
    let granted: BTreeMap<VariantKey, Grant> =
        grants.grants.into_iter().map(|grant| (grant.key.clone(), grant)).collect();
    let first: BTreeMap<&VariantKey, &Grant> =
        contended.grants.iter().map(|grant| (&grant.key, grant)).collect();
    let one = |(position, plan): (usize, Plan)| {
        let alone = alone.remove(&position).unwrap_or(plan);
        // Who was cut first is why the model is planned again.
        let is_cut = |key: &VariantKey| first.get(key).is_some_and(|it| it.granted < it.desired);
        let of = alone.placements.iter().map(|it| &it.key).find(|key| is_cut(key));
        let cut = |key: &VariantKey| {
            let grants = [first.get(key).copied(), granted.get(key)];
            let cut = grants.into_iter().flatten().find(|grant| grant.granted < grant.desired)?;
            limited(cut, &room.shadows, room)
        };
        let instead = || {
            let (of, cut) = (of?, first.get(of?)?.cut.as_ref()?);
            Some(Limited::Instead { of: of.variant.clone(), limit: cut.limit.clone() })
        };
        let shared = |placement: &optimize::Placement| {
            let after = granted.get(&placement.key)?.granted;
            let why = match after.cmp(&placement.after) {
                Ordering::Equal => return None,
                Ordering::Less => cut(&placement.key).or_else(instead)?,
                Ordering::Greater => instead()?,
            };
            Some((placement.key.clone(), Shared { after, why }))
        };
        let shared = alone.placements.iter().filter_map(shared).collect();
        Planned { alone, shared }
    };
    plans.into_iter().enumerate().map(one).collect()
}

/// Why a variant is cut.
fn limited(grant: &Grant, shadows: &[Shadow], room: &Room) -> Option<Limited> {
    let cut = grant.cut.clone()?;
    let source = room.limits.iter().find(|limit| limit.name == cut.limit).map(|it| &it.source);
    let age = match source {
        Some(Source::Held { age, .. }) => Some(*age),
        Some(Source::Read(_) | Source::Unread) | None => None,
    };
    let shadow = shadows.iter().find(|shadow| shadow.limit == cut.limit);
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
        Refusal::NotListed(_) | Refusal::UnknownKind | Refusal::Unread => return None,
    };
    Some(Price { of, next: shadow.next.clone(), carries, unit })
}
