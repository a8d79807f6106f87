//! The decisions and observations as Prometheus metrics.
//!
//! Each scrape computes the metrics from [`Published`] instead of updating gauges one by one. So a
//! removed variant leaves no series that could still drive an autoscaler. An absent value has no
//! sample at all, and ages are exact. [`FAMILIES`] is the single place that documents each metric.

mod foresight;
mod limits;
mod sheet;

use std::sync::Arc;

use tokio::sync::watch;

use crate::clock::Clock;
pub use crate::publish::gauges::sheet::GaugeFamily;
use crate::publish::gauges::sheet::MetricSheet;
use crate::publish::load::{ObservedLoad, sum};
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::pools::pooled::PoolReport;
use plimsoll_core::decide::workload::WorkloadReport;
use plimsoll_core::decide::{Basis, Decision, ReasonCode, Stage};
use plimsoll_core::observe::overrides::Override;
use plimsoll_core::observe::{Freshness, Observation, ReplicaObservation, StartQuantiles, Startup};
use plimsoll_core::units::{Fraction, Replicas, RequestRate, Requests, Seconds, TokenRate};

const VARIANT: &[&str] = &["namespace", "model", "variant"];
const MODEL: &[&str] = &["namespace", "model", "role"];
const CARRIED: &[&str] = &["namespace", "model", "variant", "said_by"];
const WVA: &[&str] = &["variant_name", "namespace", "accelerator_type"];

macro_rules! families {
    ($($id:ident = $name:literal, $labels:expr, $help:literal;)*) => {
        $(const $id: GaugeFamily = GaugeFamily { name: $name, labels: $labels, help: $help };)*
        /// Every metric of this module, in the order of its documentation.
        pub const FAMILIES: &[GaugeFamily] = &[$($id),*];
    };
}

families! {
    DESIRED = "plimsoll_desired_replicas", VARIANT,
        "Desired replicas of the variant, as decided last; the external metrics API refuses old ones.";
    OVERRIDE_UNTIL = "plimsoll_override_until_timestamp_seconds", &["namespace", "model", "variant", "kind"],
        "End of the pin or pause of the variant, in seconds since the epoch; absent without one.";
    SHADOW = "plimsoll_shadow_desired_replicas", &["namespace", "model", "variant", "policy"],
        "Desired replicas of a shadow policy; absent without shadow policies.";
    UNCONSTRAINED = "plimsoll_unconstrained_desired_replicas", VARIANT,
        "Replicas that the analysis requests, or that are held, before guards, windows and step limits; capacity plans keep within bounds.";
    CURRENT = "plimsoll_current_replicas", VARIANT,
        "Replicas that exist, ready or not.";
    READY = "plimsoll_ready_replicas", VARIANT,
        "Ready replicas; without an orchestrator, replicas that respond.";
    PENDING = "plimsoll_pending_replicas", VARIANT,
        "Replicas that exist or are requested, and are not ready yet or have never reported.";
    STUCK = "plimsoll_stuck_replicas", VARIANT,
        "Pending replicas that take too long to start and do not count as capacity.";
    UNSCHEDULABLE = "plimsoll_unschedulable_replicas", VARIANT,
        "Pending replicas for which no node has room.";
    STARTUP = "plimsoll_startup_seconds", &["namespace", "model", "variant", "until", "quantile"],
        "Time from the creation of a replica until it is ready or serving, over observed starts.";
    MIN = "plimsoll_min_replicas", VARIANT,
        "The lower bound in effect.";
    MAX = "plimsoll_max_replicas", VARIANT,
        "The upper bound in effect; absent for an unlimited variant.";
    REPLICAS = "plimsoll_replicas", &["namespace", "model", "variant", "freshness"],
        "Listed replicas by the freshness of their data: fresh, stale (answered before) or never.";
    SATURATED = "plimsoll_saturated_replicas", VARIANT,
        "Replicas at or above a saturation threshold.";
    SATURATION = "plimsoll_saturation_ratio", VARIANT,
        "Load of the replicas relative to saturation; 1 is the threshold.";
    REQUIRED_KV = "plimsoll_required_kv_cache_ratio", MODEL,
        "Shortfall of mean KV-cache headroom below its trigger; 0 if there is none.";
    REQUIRED_QUEUE = "plimsoll_required_queue_requests", MODEL,
        "Shortfall of mean queue headroom below its trigger; 0 if there is none.";
    SPARE_KV = "plimsoll_spare_kv_cache_ratio", MODEL,
        "KV-cache headroom below the threshold, a mean over unsaturated replicas.";
    SPARE_QUEUE = "plimsoll_spare_queue_requests", MODEL,
        "Queue headroom below the threshold, a mean over unsaturated replicas.";
    TRANSITION = "plimsoll_in_transition", MODEL,
        "1 while the model waits for an earlier decision to take effect, otherwise 0.";
    NEED = "plimsoll_need_per_second", MODEL,
        "Forecast demand for the time when a new replica serves, in requests per second.";
    NEED_HELD = "plimsoll_need_held_per_second", MODEL,
        "The largest forecast demand that is held, in requests per second; decisions use it.";
    CARRIES = "plimsoll_replica_carries_per_second", CARRIED,
        "Capacity per replica in requests per second, as foresight knows it.";
    CARRIES_LOW = "plimsoll_replica_carries_low_per_second", CARRIED,
        "Lower end of the 95% interval of plimsoll_replica_carries_per_second.";
    CARRIES_HIGH = "plimsoll_replica_carries_high_per_second", CARRIED,
        "Upper end of the 95% interval of plimsoll_replica_carries_per_second.";
    CAPACITY = "plimsoll_capacity_per_second", &["namespace", "model", "variant", "role", "when"],
        "Capacity in requests per second, to compare with the need: now, once pending replicas are ready, or at the maximum.";
    LEARNED = "plimsoll_capacity_learned", VARIANT,
        "1 if the capacity per replica is measured on the variant's own replicas, 0 if it is from a card or unknown.";
    SHORT_AT_MAX = "plimsoll_short_at_maximum", VARIANT,
        "1 while the load asks for more replicas than the maximum, otherwise 0.";
    SLO_TTFT = "plimsoll_slo_ttft_seconds", VARIANT,
        "Objective for the time to first token.";
    SLO_ITL = "plimsoll_slo_itl_seconds", VARIANT,
        "Objective for the mean time between tokens; absent unless configured.";
    SLO_LATE_SHARE = "plimsoll_slo_late_ratio", VARIANT,
        "Share of first tokens that may come later than the objective.";
    FIRST_TOKENS = "plimsoll_first_tokens", VARIANT,
        "First tokens in the window, of engines that show how many came late.";
    LATE_FIRST_TOKENS = "plimsoll_late_first_tokens", VARIANT,
        "First tokens in the window that came later than the objective.";
    SLOWEST = "plimsoll_slowest_replica_ratio", VARIANT,
        "Iteration time of the slowest replica over that of its peers; absent until three replicas have five lessons each.";
    STARVING = "plimsoll_starving_variant", VARIANT,
        "1 if requests wait at the variant while others have room, until the router shares by capacity.";
    ADMISSIBLE = "plimsoll_admissible_requests_per_second", VARIANT,
        "Requests per second that the serving replicas can serve in time, after their queues.";
    MODEL_ADMISSIBLE = "plimsoll_model_admissible_requests_per_second", &["namespace", "model"],
        "Requests per second that a gateway may admit for the model, over all of its variants.";
    KV_USAGE = "plimsoll_kv_cache_usage_ratio", VARIANT,
        "KV cache in use, a mean over replicas and over the window.";
    WAITING = "plimsoll_waiting_requests", VARIANT,
        "Requests waiting on all replicas.";
    RUNNING = "plimsoll_running_requests", VARIANT,
        "Requests running on all replicas.";
    ARRIVALS = "plimsoll_arrivals_per_second", VARIANT,
        "Requests arriving at all replicas, over the window.";
    PROMPT_RATE = "plimsoll_prompt_tokens_per_second", VARIANT,
        "Prompt tokens processed by all replicas, over the window.";
    GENERATION_RATE = "plimsoll_generation_tokens_per_second", VARIANT,
        "Tokens generated by all replicas, over the window.";
    TTFT = "plimsoll_time_to_first_token_seconds", VARIANT,
        "Mean time to first token over the window, as the engines measure it.";
    TTFT_P95 = "plimsoll_time_to_first_token_p95_seconds", VARIANT,
        "95th percentile of the time to first token over the window.";
    ITL = "plimsoll_inter_token_latency_seconds", VARIANT,
        "Mean time between tokens over the window, as the engines measure it.";
    COST = "plimsoll_cost_per_hour", VARIANT,
        "Cost of the current replicas per hour, in the configuration's currency.";
    DATA_AGE = "plimsoll_data_age_seconds", VARIANT,
        "Age of the oldest scrape among the replicas with known load.";
    DECISION_AGE = "plimsoll_decision_age_seconds", VARIANT,
        "Age of the data behind the published desired replicas.";
    DECISION_HELD = "plimsoll_decision_held", VARIANT,
        "1 while desired replicas are held, usually because data is missing, otherwise 0.";
    FLAP_BUDGET_SPENT = "plimsoll_flap_budget_spent", VARIANT,
        "1 while scale-down is blocked by too many changes of direction within an hour, otherwise 0.";
    PANICKING = "plimsoll_panicking", VARIANT,
        "1 while scale-down is blocked because demand has jumped, otherwise 0.";
    POOL_COPIES = "plimsoll_pool_copies", VARIANT,
        "Copies that all adapters of a pool need together.";
    POOL_ADAPTERS = "plimsoll_pool_adapters", VARIANT,
        "Adapters of a pool that need a copy.";
    POOL_WAITING = "plimsoll_pool_adapters_waiting", VARIANT,
        "Adapters of a pool that have waited for a slot on a replica for a whole window; 0 of a Seldon server.";
    POOL_ARRIVALS = "plimsoll_pool_arrivals_per_second", VARIANT,
        "Requests per second for all adapters of a pool at its gateway: the sum of each one's highest rate within idle_after. Absent without a gateway or adapters, or while a rate is unknown.";
    POOL_PER_REPLICA = "plimsoll_pool_adapters_per_replica", VARIANT,
        "Adapters with a running request per replica, a mean. Ready replicas of unknown adapters are left out.";
    POOL_SLOTS_USED = "plimsoll_pool_slots_used", VARIANT,
        "Slots with a running adapter, on replicas of a pool whose adapters are known.";
    POOL_SLOTS_FREE = "plimsoll_pool_slots_free", VARIANT,
        "Slots without a running adapter, on replicas of a pool that are not ready or whose adapters are known.";
    POOL_UNMET = "plimsoll_pool_unmet_replicas", VARIANT,
        "Replicas that a pool needs beyond its maximum.";
    POOL_LOADS = "plimsoll_pool_plan_loads", VARIANT,
        "Copies to load for the suggested placement.";
    CUT = "plimsoll_limited_replicas", &["namespace", "model", "variant", "limit"],
        "Replicas that a limit refuses to the variant; absent without a refusal.";
    ALLOWED = "plimsoll_limit_accelerators", &["limit", "accelerator"],
        "Accelerators that the limit allows for all its variants.";
    HELD = "plimsoll_limit_accelerators_held", &["limit", "accelerator"],
        "Accelerators of the limit that existing or requested replicas use.";
    ALLOWED_COST = "plimsoll_limit_cost_per_hour", &["limit"],
        "Maximum cost per hour of all replicas that the limit counts.";
    HELD_COST = "plimsoll_limit_cost_per_hour_held", &["limit"],
        "Cost of existing or requested replicas per hour.";
    ON_NODES = "plimsoll_node_accelerators", &["accelerator"],
        "Accelerators on nodes that pods can get; on closed nodes, those held by replicas of variants.";
    OF_OTHERS = "plimsoll_node_accelerators_of_others", &["accelerator"],
        "Accelerators on open nodes held by pods that are not replicas of a variant or are terminating.";
    PRICE = "plimsoll_limit_shadow_price", &["limit", "of", "namespace", "variant", "unit"],
        "Capacity that one more unit of the limit would add; absent if unknown or if the limit does not bind.";
    SOURCE_AGE = "plimsoll_limit_age_seconds", &["limit"],
        "Time since the limit was last read, and 0 up to a minute; absent before the first reading.";
    UNREAD = "plimsoll_limit_unread", &["limit"],
        "1 until the limit is first read, which blocks scale-up of its variants above their minimum; then 0.";
    SLO_UNMEETABLE = "plimsoll_slo_unmeetable", VARIANT,
        "1 while no number of replicas meets a latency target, otherwise 0.";
    ACCELERATORS = "plimsoll_replica_accelerators", &["namespace", "model", "variant", "said_by"],
        "Accelerators assumed per replica, by source: declared, template, pods or assumed.";
    ENGINE_ARGUMENTS = "plimsoll_engine_arguments", &["namespace", "model", "variant", "state"],
        "Always 1; state shows whether the pod template's engine arguments are known.";
    INFO = "plimsoll_variant_info", &["namespace", "model", "variant", "accelerator", "role"],
        "Always 1; labels describe the variant.";
}

/// WVA's gauges, for dashboards and scalers that were built for WVA.
pub const WVA_FAMILIES: &[GaugeFamily] = &[WVA_DESIRED, WVA_CURRENT, WVA_RATIO];

const WVA_DESIRED: GaugeFamily = GaugeFamily {
    name: "wva_desired_replicas",
    labels: WVA,
    help: "The same as plimsoll_desired_replicas, under WVA's name and labels.",
};
const WVA_CURRENT: GaugeFamily = GaugeFamily {
    name: "wva_current_replicas",
    labels: WVA,
    help: "The same as plimsoll_current_replicas, under WVA's name and labels.",
};
const WVA_RATIO: GaugeFamily = GaugeFamily {
    name: "wva_desired_ratio",
    labels: WVA,
    help: "Desired replicas divided by current replicas; desired replicas if there are none.",
};

/// Publication of WVA's gauges in addition to Plimsoll's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WvaPublication {
    /// WVA's gauges are published.
    Published,
    /// WVA's gauges are not published.
    Off,
}

/// Writes the metrics of the latest [`Published`].
pub struct DecisionGauges {
    published: watch::Receiver<Arc<Published>>,
    clock: Clock,
    wva: WvaPublication,
}

// === impl DecisionGauges ===

impl DecisionGauges {
    /// Reads from `published`.
    #[must_use]
    pub fn new(
        published: watch::Receiver<Arc<Published>>,
        clock: Clock,
        wva: WvaPublication,
    ) -> Self {
        Self { published, clock, wva }
    }

    /// Appends all metrics in text format 0.0.4.
    pub fn write(&self, page: &mut String) {
        let published = self.published.borrow().clone();
        let now = self.clock.elapsed();
        let mut sheet = MetricSheet::default();
        for variant in published.variants.values() {
            sheet.variant(variant, now);
            if let Some(outlook) = published.outlooks.get(&variant.spec.key) {
                sheet.outlook(variant, outlook);
            }
            if let Some(report) = published.workloads.get(&variant.spec.key) {
                sheet.workload(report, labels(variant));
            }
            if let Some(report) = published.pools.get(&variant.spec.key) {
                sheet.pool(report, labels(variant));
            }
            if self.wva == WvaPublication::Published {
                sheet.wva(variant);
            }
        }

        for ((model, role), report) in &published.models {
            let labels = [model.namespace.as_str(), model.model.as_str(), role.label()];
            sheet.set(&SPARE_KV, &labels, Some(report.spare_kv.fraction()));
            sheet.set(&SPARE_QUEUE, &labels, Some(report.spare_queue.requests()));
            sheet.set(&REQUIRED_KV, &labels, Some(report.required_kv.fraction()));
            sheet.set(&REQUIRED_QUEUE, &labels, Some(report.required_queue.requests()));
            sheet.set(&TRANSITION, &labels, Some(one_if(report.transition.is_some())));
        }

        for report in &published.limits {
            sheet.limit(report);
        }
        for (policy, variants) in &published.shadows {
            for (key, said) in variants {
                let Some(variant) = published.variants.get(key) else { continue };
                let [namespace, model, variant] = labels(variant);
                let labels = [namespace, model, variant, policy.as_str()];
                sheet.set(&SHADOW, &labels, said.desired.map(count));
            }
        }

        sheet.write(page);
    }
}

// === impl MetricSheet ===

impl MetricSheet {
    fn variant(&mut self, published: &PublishedVariant, now: std::time::Duration) {
        let PublishedVariant { spec, observation, report, decided, undecided: _ } = published;
        let labels = labels(published);
        let [namespace, model, variant] = labels;
        let accelerator = spec.accelerator.as_ref().map_or("", |name| name.as_str());
        self.set(&INFO, &[namespace, model, variant, accelerator, spec.role.label()], Some(1.0));
        if let Some(decided) = decided {
            let decision = &decided.decision;
            self.set(&DESIRED, &labels, Some(count(decision.desired())));
            self.set(&UNCONSTRAINED, &labels, Some(count(decision.unconstrained())));
            let age = now.saturating_sub(decided.elapsed).as_secs_f64();
            self.set(&DECISION_AGE, &labels, Some(age));
            self.set(&DECISION_HELD, &labels, Some(one_if(held(decision))));

            if let Some(Override { order, until, .. }) = decision.overridden() {
                let labels = [namespace, model, variant, order.label()];
                self.set(&OVERRIDE_UNTIL, &labels, Some(until.as_duration().as_secs_f64()));
            }

            let flap_budget_spent = decision.steps.iter().any(|it| it.stage == Stage::FlapBudget);
            self.set(&FLAP_BUDGET_SPENT, &labels, Some(one_if(flap_budget_spent)));
            let unmeetable =
                decision.steps.iter().any(|it| it.reason.code() == ReasonCode::SloUnmeetable);
            self.set(&SLO_UNMEETABLE, &labels, Some(one_if(unmeetable)));
            let panicking = decision.steps.iter().any(|it| it.stage == Stage::Panic);
            self.set(&PANICKING, &labels, Some(one_if(panicking)));
            self.set(&SHORT_AT_MAX, &labels, decision.is_short_at_max().map(one_if));
            self.cuts(published, decision);
            self.foresight(published, decision);
        }

        if let Some(report) = report {
            self.set(&SATURATION, &labels, Some(report.saturation.fraction()));
            self.set(&SATURATED, &labels, Some(count(report.saturated)));
        }

        let cost = observation.current.map(|current| count(current) * spec.cost.per_hour());
        self.set(&COST, &labels, cost);
        let bounds = published.bounds();
        self.set(&MIN, &labels, Some(count(bounds.min())));
        self.set(&MAX, &labels, bounds.max().map(count));
        self.observation(observation, labels);
    }

    fn observation(&mut self, observation: &Observation, labels: [&str; 3]) {
        self.set(&CURRENT, &labels, observation.current.map(count));
        self.set(&READY, &labels, observation.ready.map(count));
        let pending = observation.current.map(|_| count(observation.pending));
        self.set(&PENDING, &labels, pending);
        let Startup { stuck, unschedulable, starts: _, to_ready, to_serving } = observation.startup;
        self.set(&STUCK, &labels, observation.current.map(|_| count(stuck)));
        self.set(&UNSCHEDULABLE, &labels, observation.current.map(|_| count(unschedulable)));

        let [namespace, model, variant] = labels;
        for (until, quantiles) in [("ready", to_ready), ("serving", to_serving)] {
            let Some(StartQuantiles { p50, p90 }) = quantiles else { continue };
            for (quantile, seconds) in [("0.5", p50), ("0.9", p90)] {
                let labels = [namespace, model, variant, until, quantile];
                self.set(&STARTUP, &labels, Some(seconds.seconds()));
            }
        }

        for (freshness, replicas) in by_freshness(&observation.replicas) {
            let [namespace, model, variant] = labels;
            let labels = [namespace, model, variant, freshness];
            self.set(&REPLICAS, &labels, Some(replicas));
        }

        self.set(&DATA_AGE, &labels, observation.oldest_measured().map(Seconds::seconds));
        let replicas = &observation.replicas;
        let load = ObservedLoad::of(replicas);
        self.set(&KV_USAGE, &labels, load.kv_usage.map(Fraction::fraction));
        self.set(&WAITING, &labels, load.waiting.map(Requests::requests));
        self.set(&RUNNING, &labels, load.running.map(Requests::requests));
        self.set(&ARRIVALS, &labels, load.arrivals.map(RequestRate::requests_per_second));

        let prompt = sum(replicas, |it| it.prompt_rate.map(TokenRate::tokens_per_second));
        self.set(&PROMPT_RATE, &labels, prompt);
        let generation = sum(replicas, |it| it.generation_rate.map(TokenRate::tokens_per_second));
        self.set(&GENERATION_RATE, &labels, generation);

        self.set(&TTFT, &labels, weighted_mean(replicas, |replica| replica.ttft_mean));
        let p95 = Fraction::new(0.95).zip(observation.ttft.as_ref());
        self.set(&TTFT_P95, &labels, p95.and_then(|(p95, ttft)| ttft.quantile(p95)));
        self.set(&ITL, &labels, weighted_mean(replicas, |replica| replica.itl_mean));
    }

    fn workload(&mut self, report: &WorkloadReport, [namespace, model, variant]: [&str; 3]) {
        let WorkloadReport { gpus, said_by, engine } = report;
        let labels = [namespace, model, variant, said_by.label()];
        self.set(&ACCELERATORS, &labels, Some(f64::from(gpus.count())));
        if let Some(engine) = engine {
            self.set(&ENGINE_ARGUMENTS, &[namespace, model, variant, engine.label()], Some(1.0));
        }
    }

    fn pool(&mut self, report: &PoolReport, labels: [&str; 3]) {
        let PoolReport { adapters, replicas, unmet, plan, slots, .. } = report;
        let copies: Replicas = adapters.iter().map(|it| it.copies.wanted).sum();
        self.set(&POOL_COPIES, &labels, Some(count(copies)));
        let wanted = adapters.iter().filter(|it| it.copies.wanted > Replicas::ZERO).count();
        self.set(&POOL_ADAPTERS, &labels, Some(wanted as f64));
        let starved = adapters.iter().filter(|it| it.starved > Replicas::ZERO).count();
        self.set(&POOL_WAITING, &labels, Some(starved as f64));

        let arriving: Option<f64> =
            adapters.iter().map(|it| it.arriving.map(RequestRate::requests_per_second)).sum();
        self.set(&POOL_ARRIVALS, &labels, arriving.filter(|_| !adapters.is_empty()));

        let mut said = 0.0;
        let mut used = 0.0;
        let mut free = 0.0;
        for replica in replicas.iter().filter(|replica| replica.known) {
            let running = replica.running.len() as f64;
            let room = replica.slots.or(*slots).map_or(running, |it| f64::from(it.number()));
            said += 1.0;
            used += running.min(room);
            free += (room - running).max(0.0);
        }

        let running: usize = replicas.iter().map(|it| it.running.len()).sum();
        let mean = (said > 0.0).then(|| running as f64 / said);
        self.set(&POOL_PER_REPLICA, &labels, mean);
        self.set(&POOL_SLOTS_USED, &labels, Some(used).filter(|_| said > 0.0));
        self.set(&POOL_SLOTS_FREE, &labels, Some(free).filter(|_| said > 0.0 && slots.is_some()));
        self.set(&POOL_UNMET, &labels, Some(count(*unmet)));
        self.set(&POOL_LOADS, &labels, slots.map(|_| count(plan.loads())));
    }

    fn wva(&mut self, published: &PublishedVariant) {
        let PublishedVariant { spec, observation, decided, .. } = published;
        let accelerator = spec.accelerator.as_ref().map_or("unresolved", |name| name.as_str());
        let labels = [spec.key.variant.as_str(), spec.key.namespace.as_str(), accelerator];
        let desired = decided.as_ref().map(|decided| count(decided.decision.desired()));
        let current = observation.current.map(count);
        self.set(&WVA_DESIRED, &labels, desired);
        self.set(&WVA_CURRENT, &labels, current);

        let ratio = desired
            .zip(current)
            .map(|(desired, current)| if current > 0.0 { desired / current } else { desired });
        self.set(&WVA_RATIO, &labels, ratio);
    }
}

// === helpers ===

fn labels(published: &PublishedVariant) -> [&str; 3] {
    let spec = &published.spec;
    [spec.key.namespace.as_str(), spec.model.as_str(), spec.key.variant.as_str()]
}

fn count(replicas: Replicas) -> f64 {
    f64::from(replicas.count())
}

fn one_if(condition: bool) -> f64 {
    if condition { 1.0 } else { 0.0 }
}

fn held(decision: &Decision) -> bool {
    decision.basis == Basis::Held
}

fn by_freshness(replicas: &[ReplicaObservation]) -> [(&'static str, f64); 3] {
    let mut fresh = 0.0;
    let mut stale = 0.0;
    let mut never = 0.0;
    for replica in replicas {
        match replica.freshness {
            Freshness::Fresh { .. } => fresh += 1.0,
            Freshness::Stale { .. } => stale += 1.0,
            Freshness::Never { .. } => never += 1.0,
        }
    }

    [("fresh", fresh), ("stale", stale), ("never", never)]
}

/// The mean weighted by completion rate, so that a busy replica counts more than an almost idle
/// one. Every replica with a latency weighs at least as much as one completion per minute.
fn weighted_mean(
    replicas: &[ReplicaObservation],
    latency: fn(&ReplicaObservation) -> Option<Seconds>,
) -> Option<f64> {
    let weights = sum(replicas, |replica| latency(replica).map(|_| weight(replica)))?;
    let total = sum(replicas, |replica| latency(replica).map(|it| it.seconds() * weight(replica)))?;
    Some(total / weights)
}

fn weight(replica: &ReplicaObservation) -> f64 {
    replica.completions.map_or(0.0, RequestRate::requests_per_second).max(1.0 / 60.0)
}

#[cfg(test)]
mod tests;
