//! The daemon and the autoscalers: scrapes, decisions and scaling.
//!
//! The daemon is its [`Pipeline`](plimsoll_core::pipeline::Pipeline): the simulation and production
//! run the same code. In the simulation it gets the inputs that it would scrape and watch in
//! production.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use rand::RngExt;

use crate::simulate::Micros;
use crate::simulate::reading;
use crate::simulate::run::controller::GatewayReading;
use crate::simulate::run::pods::{PodState, SimulatedPod};
use crate::simulate::run::{Happening, Simulation, wall_clock};
use crate::simulate::scaler::{MetricError, MilliValue, SyncOutcome};
use crate::simulate::scenario::{Actuator, Signal};
use crate::simulate::score::{CHANGES_MAX, DecisionChange, ForesightEstimate};
use plimsoll_core::fleet::{ModelKey, VariantKey};
use plimsoll_core::observe::routed::RoutedCounts;
use plimsoll_core::observe::{
    DemandSignal, Inputs, Naming, ReplicaListing, ReplicaStart, Scale, ScaleState, Scrape,
    ScrapeFailure, ScrapeRoute, SignalQuantity, SignalValue,
};
use plimsoll_core::pipeline::Decisions;
use plimsoll_core::units::{Replicas, RequestRate, Requests};

/// The window of rates.
const RATE_WINDOW: Micros = Micros::from_secs(60);

impl Simulation<'_> {
    pub(crate) fn begin_control(&mut self) {
        if self.scenario.variants.iter().all(|variant| variant.actuator == Actuator::Fixed) {
            return;
        }

        self.plan(Micros::ZERO, Happening::Tick);
        for (index, variant) in self.scenario.variants.iter().enumerate() {
            if let Some(hpa) = variant.actuator.hpa() {
                self.plan(hpa.sync, Happening::Sync(index));
            }
            match &variant.actuator {
                Actuator::Keda(keda) => self.plan(keda.polling, Happening::Poll(index)),
                Actuator::Law(rule) => self.plan(rule.every(), Happening::Judge(index)),
                Actuator::Fixed | Actuator::Hpa(_) => {}
            }
        }
    }

    /// The daemon scrapes, decides and publishes. The autoscalers' signals are recorded.
    pub(crate) fn tick(&mut self) {
        if self.scenario.is_followed() {
            let inputs = self.look();
            let now = wall_clock(self.now);
            let decisions = self.controller.pipeline.tick(now, &inputs);
            self.publish(&decisions);
            if let Some(ledger) = &mut self.ledger {
                ledger(now, inputs, &decisions);
            }
        }

        for variant in 0..self.crews.len() {
            self.note_signal(variant);
        }

        self.controller.ticks += 1;
        self.plan(self.now + self.scenario.control.tick, Happening::Tick);
    }

    /// The current inputs of the daemon.
    fn look(&mut self) -> Inputs {
        let control = &self.scenario.control;
        let now = wall_clock(self.now);
        let way = if control.relay.is_some() { ScrapeRoute::Relayed } else { ScrapeRoute::Scraped };
        // Two scrapes of a replica are this many ticks apart, and replicas take turns.
        let every = (control.scrape.micros() / control.tick.micros().max(1)).max(1);
        let mut inputs = Inputs { fleet: Arc::clone(&self.controller.fleet), ..Inputs::default() };
        for variant in 0..self.crews.len() {
            let pods = self.crews[variant].pods.clone();
            let mut replicas = Vec::with_capacity(pods.len());
            let mut unready = Vec::new();
            for pod in pods {
                if !self.pods[pod].counts() {
                    continue;
                }

                let SimulatedPod { created: begun, earlier, scheduled, ready, .. } = self.pods[pod];
                let created = wall_clock(begun) - earlier.duration();
                let unschedulable = (scheduled > self.now).then_some(created);
                let start = ReplicaStart { created, ready: ready.map(wall_clock), unschedulable };
                inputs.starts.insert(self.pods[pod].key.clone(), start);
                // A pod without a node has no address.
                if self.pods[pod].reachable > self.now {
                    continue;
                }

                replicas.push(self.pods[pod].key.clone());
                if self.pods[pod].state == PodState::Starting {
                    unready.push(self.pods[pod].key.clone());
                }
                if (self.controller.ticks + pod as u64).is_multiple_of(every) {
                    let scrape = self.scrape(pod, now);
                    self.controller.relayed.push_back((self.now, scrape));
                }
            }

            let crew = &self.crews[variant];
            let existing = self.existing(variant);
            let able = crew.pods.iter().filter(|&&pod| self.pods[pod].state == PodState::Ready);
            let ready = u32::try_from(able.count()).unwrap_or(u32::MAX);
            let state = ScaleState {
                wanted: crew.wanted,
                current: Replicas::saturating(existing),
                ready: Replicas::saturating(ready),
                pending: Replicas::saturating(existing.max(crew.wanted.count()) - ready),
                bounds: None,
            };

            let key = self.scenario.variants[variant].spec.key.clone();
            let scale = Scale::Known(state);
            if let Some(template) = &self.scenario.variants[variant].template {
                inputs.templates.insert(key.clone(), Arc::clone(template));
            }
            inputs
                .listings
                .insert(key, ReplicaListing { replicas, unready, scale, way, as_of: now });
        }

        let lag = control.relay.unwrap_or_default();
        let relayed = &mut self.controller.relayed;
        while let Some((_, scrape)) = relayed.pop_front_if(|(at, _)| *at + lag <= self.now) {
            inputs.scrapes.push(scrape);
        }

        inputs.demand = self.gateways();
        inputs.routed = self.routed();
        inputs
    }

    /// The demand that gateways report, for gateways that the daemon reads.
    fn gateways(&mut self) -> BTreeMap<ModelKey, Vec<DemandSignal>> {
        let blind = self.scenario.control.outage.is_some_and(|outage| outage.covers(self.now));
        for (model, traffic) in self.scenario.models.iter().zip(&self.traffic) {
            let Some(every) = model.gateway.read.filter(|_| !blind) else { continue };
            let known = self.controller.gateways.get(&model.key);
            if known.is_some_and(|known| self.now.since(known.at) < every) {
                continue;
            }

            let held = Requests::new(traffic.held.len() as f64).unwrap_or_default();
            let seen = SignalValue::Number(held, wall_clock(self.now));
            let signal = "gateway".to_owned();
            let counts = SignalQuantity::Requests;
            let mut demand = vec![DemandSignal { signal, seen, counts, naming: Naming::Named }];

            if model.gateway.admit.is_some() {
                let rejected = Requests::new(traffic.bucket.rejected as f64).unwrap_or_default();
                demand.push(DemandSignal {
                    signal: "rejected".to_owned(),
                    seen: SignalValue::Number(rejected, wall_clock(self.now)),
                    counts: SignalQuantity::Rejected,
                    naming: Naming::Named,
                });
            }

            let names = model.adapters.iter().map(|adapter| adapter.name.clone());
            let routed = RoutedCounts {
                at: wall_clock(self.now),
                process: None,
                requests: names.zip(traffic.routed.iter().map(|count| *count as f64)).collect(),
                others: 0.0,
            };
            let reading = GatewayReading { at: self.now, demand, routed };
            self.controller.gateways.insert(model.key.clone(), reading);
        }

        let known = self.controller.gateways.iter();
        known.map(|(model, reading)| (model.clone(), reading.demand.clone())).collect()
    }

    /// The requests that gateways have counted for pools, for gateways that the daemon reads.
    fn routed(&self) -> BTreeMap<VariantKey, Option<RoutedCounts>> {
        let pools = &self.scenario.control.policy.pools;
        let mut routed = BTreeMap::new();
        for model in self.scenario.models.iter().filter(|model| model.gateway.read.is_some()) {
            let reading = self.controller.gateways.get(&model.key);
            let counts = reading.map(|reading| &reading.routed);

            let specs = self.scenario.variants.iter().map(|variant| &variant.spec);
            let serving = specs.filter(|spec| spec.model_key() == model.key);
            for pool in serving.filter(|spec| pools.contains_key(&spec.key)) {
                routed.insert(pool.key.clone(), counts.cloned());
            }
        }

        routed
    }

    /// The admissible rate that the daemon publishes for a model.
    pub(crate) fn admissible(&self, model: usize) -> Option<RequestRate> {
        self.controller.admissible.get(&self.scenario.models[model].key).copied()
    }

    fn scrape(&mut self, pod: usize, at: Timestamp) -> Scrape {
        self.advance(pod);
        let lost = self.scenario.control.scrape_loss.fraction();
        let silent = self.is_silent(pod);
        let started = wall_clock(self.pods[pod].process);
        let taken = &self.pods[pod];
        let names = &self.controller.names[taken.variant];
        let blind = self.scenario.control.outage.is_some_and(|outage| outage.covers(self.now));
        let outcome = match (&taken.replica, taken.state) {
            _ if blind || silent => Err(ScrapeFailure::Timeout),
            _ if lost > 0.0 && self.controller.losses.random::<f64>() < lost => {
                Err(ScrapeFailure::Timeout)
            }
            (Some(replica), PodState::Ready) => Ok(reading::read(names, started, at, replica)),
            (Some(_) | None, _) => Err(ScrapeFailure::Refused),
        };

        Scrape { replica: taken.key.clone(), at, outcome }
    }

    fn publish(&mut self, decisions: &Decisions) {
        self.violations += u64::from(decisions.violation.is_some());
        self.controller.admissible = decisions
            .decisions
            .iter()
            .filter_map(|it| Some((it.model.clone(), it.admissible?.model?)))
            .collect();

        for decision in &decisions.decisions {
            let mut variants = self.scenario.variants.iter();
            let place = variants.position(|described| described.spec.key == decision.variant);
            let Some(variant) = place else { continue };
            let before = self.controller.desired(variant);
            let after = decision.desired();
            let autoscaler = &mut self.controller.autoscalers[variant];
            autoscaler.published = Some((after, decision.inputs_at));
            autoscaler.belief = ForesightEstimate::of(decision);
            if before == Some(after) {
                continue;
            }
            if self.changes.len() >= CHANGES_MAX {
                self.changes_left_out += 1;
                continue;
            }

            let because = decision.because().or(decision.steps.last());
            let why = because.map(ToString::to_string).unwrap_or_default();
            self.changes.push(DecisionChange { at: self.now, variant, before, after, why });
        }
    }

    fn note_signal(&mut self, variant: usize) {
        let Some(hpa) = self.scenario.variants[variant].actuator.hpa() else { return };
        let value = match hpa.signal {
            Signal::Desired => self.published(variant),
            _ if self.scenario.control.outage.is_some_and(|it| it.covers(self.now)) => None,
            Signal::Waiting | Signal::InFlight | Signal::KvUsage => {
                self.sum_of(variant, hpa.signal)
            }
            Signal::Rate => {
                let model = self.scenario.variants[variant].model;
                self.rate_of(variant, self.traffic[model].asked)
            }
            Signal::Sent => self.rate_of(variant, self.crews[variant].sent),
        };

        let now = self.now;
        let delay = hpa.delay;
        let signal = &mut self.controller.autoscalers[variant].signal;
        signal.push_back((now, value));
        // The newest signal that is old enough stays.
        while signal.get(1).is_some_and(|(at, _)| *at + delay <= now) {
            signal.pop_front();
        }
    }

    /// The value that the daemon serves; `None` once it is too old.
    fn published(&self, variant: usize) -> Option<MilliValue> {
        let (desired, inputs_at) = self.controller.autoscalers[variant].published?;
        let age = wall_clock(self.now).duration_since(inputs_at).as_secs_f64();
        let fresh = age <= self.scenario.control.hold.seconds();
        fresh.then(|| MilliValue(i64::from(desired.count()) * 1000))
    }

    /// A sum over the metrics of ready replicas; `None` without a replica, because a query then has
    /// no result.
    #[expect(clippy::cast_possible_truncation, reason = "a sum of gauges in thousandths")]
    fn sum_of(&mut self, variant: usize, signal: Signal) -> Option<MilliValue> {
        let pods = self.crews[variant].pods.clone();
        let mut sum = None;
        for pod in pods {
            if self.pods[pod].state != PodState::Ready || self.is_silent(pod) {
                continue;
            }

            self.advance(pod);
            let Some(gauges) = self.pods[pod].replica.as_ref().map(|it| it.gauges()) else {
                continue;
            };
            let value = match signal {
                Signal::Waiting => f64::from(gauges.waiting),
                Signal::InFlight => f64::from(gauges.waiting) + f64::from(gauges.running),
                Signal::KvUsage => gauges.kv_usage,
                Signal::Desired | Signal::Rate | Signal::Sent => return None,
            };

            *sum.get_or_insert(0.0) += value;
        }

        sum.map(|sum: f64| MilliValue((sum * 1000.0).round() as i64))
    }

    /// The last minute's rate as the autoscaler of a variant computes it, from a cumulative request
    /// count; `None` before the second observation.
    #[expect(clippy::cast_possible_truncation, reason = "a rate in thousandths")]
    fn rate_of(&mut self, variant: usize, count: u64) -> Option<MilliValue> {
        let now = self.now;
        let seen = &mut self.controller.autoscalers[variant].counted;
        seen.push_back((now, count));
        while seen.get(1).is_some_and(|(at, _)| now.since(*at) >= RATE_WINDOW) {
            seen.pop_front();
        }

        let (at, before) = *seen.front().filter(|(at, _)| *at < now)?;
        let rate = (count - before) as f64 / now.since(at).seconds();
        Some(MilliValue((rate * 1000.0).round() as i64))
    }

    /// The value that the autoscaler of a variant reads now.
    fn reads(&self, variant: usize, delay: Micros) -> Option<MilliValue> {
        let (at, value) = self.controller.autoscalers[variant].signal.front()?;
        value.filter(|_| *at + delay <= self.now)
    }

    /// The HPA of a variant syncs.
    pub(crate) fn sync(&mut self, variant: usize) {
        let Some(hpa) = self.scenario.variants[variant].actuator.hpa() else { return };
        let metric = self.reads(variant, hpa.delay).ok_or(MetricError);
        self.plan(self.now + hpa.sync, Happening::Sync(variant));
        self.follow(variant, metric);
    }

    /// Lets the HPA of a variant follow a metric.
    pub fn follow(&mut self, variant: usize, metric: Result<MilliValue, MetricError>) {
        let now = self.now;
        let scale = self.scale_of(variant);
        let Some(scaler) = &mut self.controller.autoscalers[variant].scaler else { return };
        match scaler.sync(now, scale, metric) {
            SyncOutcome::Scale(wanted) => self.scale(variant, wanted),
            SyncOutcome::Hold | SyncOutcome::Disabled => {}
        }
    }

    /// KEDA polls the value of a variant, and scales from and to zero.
    pub(crate) fn poll(&mut self, variant: usize) {
        let Actuator::Keda(keda) = &self.scenario.variants[variant].actuator else { return };
        self.plan(self.now + keda.polling, Happening::Poll(variant));
        let Some(value) = self.reads(variant, keda.hpa.delay) else { return };
        let wanted = self.crews[variant].wanted;
        let autoscaler = &mut self.controller.autoscalers[variant];

        if value > keda.activation {
            autoscaler.active = Some(self.now);
            if wanted == Replicas::ZERO {
                self.scale(variant, keda.hpa.settings.min.max(Replicas::ONE));
            }
        } else if keda.to_zero && wanted > Replicas::ZERO {
            // Replicas at the start show that a trigger was active until then.
            let since = *autoscaler.active.get_or_insert(Micros::ZERO);
            if self.now.since(since) >= keda.cooldown {
                self.scale(variant, Replicas::ZERO);
            }
        }
    }
}
