//! The daemon and the autoscalers: what is scraped, decided, and done about it.
//!
//! The daemon is its [`Pipeline`]: the same code decides here and in production, and what it is
//! given here is what it would have scraped and watched there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use rand::RngExt;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::peers::law::Law;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::reading::{self, Names};
use crate::simulate::run::judge::law;
use crate::simulate::run::pods::{Pod, State};
use crate::simulate::run::{Happening, Simulation, wall_clock};
use crate::simulate::scaler::{MetricError, MilliValue, Outcome, Scaler};
use crate::simulate::scenario::{Actuator, Hpa, Scenario, Signal, Variant};
use crate::simulate::score::{Belief, CHANGES_MAX, Change};
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::decide::Decision;
use plimsoll_core::fleet::{Fleet, ModelKey};
use plimsoll_core::observe::{
    Counts, Demand, Inputs, Listing, Naming, Scale, ScaleState, Scrape, ScrapeFailure, Seen, Start,
    Way,
};
use plimsoll_core::pipeline::{Decisions, Pipeline};
use plimsoll_core::units::{Replicas, RequestRate, Requests};

/// The time over which a rate is taken.
const RATE_WINDOW: Micros = Micros::from_secs(60);

/// The daemon, and one autoscaler for each variant.
pub(crate) struct Controller {
    pipeline: Pipeline,
    fleet: Arc<Fleet>,
    names: Vec<Names>,
    autoscalers: Vec<Autoscaler>,
    /// The autoscalers that write the scale themselves.
    pub(crate) laws: Vec<Option<Law>>,
    /// Pages that a Prometheus has scraped and that the daemon has not got yet, oldest first.
    relayed: VecDeque<(Micros, Scrape)>,
    /// What each model's gateway last said that it holds, and when, where the daemon reads it.
    gateways: BTreeMap<ModelKey, (Micros, Vec<Demand>)>,
    /// The admissible rate that the daemon publishes of each model.
    admissible: BTreeMap<ModelKey, RequestRate>,
    ticks: u64,
    losses: Pcg64,
}

/// What scales one variant.
struct Autoscaler {
    scaler: Option<Scaler>,
    /// What the daemon publishes, and when the data was seen that it rests on.
    published: Option<(Replicas, Timestamp)>,
    /// The basis of that decision.
    belief: Belief,
    /// The signal at each tick, as far back as the autoscaler's value is old.
    signal: VecDeque<(Micros, Option<MilliValue>)>,
    /// Requests that a rate is taken of, so many until each tick, as far back as it is taken.
    counted: VecDeque<(Micros, u64)>,
    /// When KEDA last saw a value above its threshold.
    active: Option<Micros>,
}

// === impl Controller ===

impl Controller {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let scaler = |hpa: &Hpa, initial: Replicas| {
            let scaler = Scaler::new(hpa.settings.clone());
            let zero = initial == Replicas::ZERO && hpa.settings.min == Replicas::ZERO;
            if zero { scaler.resting_at_zero() } else { scaler }
        };
        let autoscaler = |variant: &Variant| Autoscaler {
            scaler: variant.actuator.hpa().map(|hpa| scaler(hpa, variant.initial)),
            published: None,
            belief: Belief::default(),
            signal: VecDeque::new(),
            counted: VecDeque::new(),
            active: None,
        };
        let names = |variant: &Variant| Names {
            models: vec![variant.spec.model.clone()],
            adapters: {
                let adapters = scenario.models[variant.model].adapters.iter();
                adapters.map(|adapter| adapter.name.clone()).collect()
            },
        };
        let variants = &scenario.variants;
        Self {
            pipeline: Pipeline::new(scenario.control.policy.clone()),
            fleet: Arc::new(Fleet::new(variants.iter().map(|variant| variant.spec.clone()))),
            names: variants.iter().map(names).collect(),
            autoscalers: variants.iter().map(autoscaler).collect(),
            laws: (0..variants.len()).map(|variant| law(scenario, variant)).collect(),
            relayed: VecDeque::new(),
            gateways: BTreeMap::new(),
            admissible: BTreeMap::new(),
            ticks: 0,
            losses: generator(seed, Purpose::Scrapes, 0),
        }
    }

    /// What the daemon has learned of engines.
    pub(crate) fn cards(&self) -> Vec<Arc<Card>> {
        self.pipeline.cards().cloned().collect()
    }

    /// The number that the daemon publishes for a variant.
    pub(crate) fn desired(&self, variant: usize) -> Option<Replicas> {
        self.autoscalers[variant].published.map(|(desired, _)| desired)
    }

    /// The basis of the daemon's last decision about a variant.
    pub(crate) fn belief(&self, variant: usize) -> Belief {
        self.autoscalers[variant].belief
    }
}

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

    /// The daemon scrapes, decides and publishes; autoscalers' signals are noted.
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

    /// Everything that the daemon sees now.
    fn look(&mut self) -> Inputs {
        let control = &self.scenario.control;
        let now = wall_clock(self.now);
        let way = if control.relay.is_some() { Way::Relayed } else { Way::Scraped };
        // Scrapes of one replica are this many ticks apart, and replicas take turns.
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
                let Pod { created, scheduled, ready, .. } = self.pods[pod];
                let created = wall_clock(created);
                let unschedulable = (scheduled > self.now).then_some(created);
                let start = Start { created, ready: ready.map(wall_clock), unschedulable };
                inputs.starts.insert(self.pods[pod].key.clone(), start);
                // A pod without a node has no address.
                if self.pods[pod].reachable > self.now {
                    continue;
                }
                replicas.push(self.pods[pod].key.clone());
                if self.pods[pod].state == State::Starting {
                    unready.push(self.pods[pod].key.clone());
                }
                if (self.controller.ticks + pod as u64).is_multiple_of(every) {
                    let scrape = self.scrape(pod, now);
                    self.controller.relayed.push_back((self.now, scrape));
                }
            }
            let crew = &self.crews[variant];
            let existing = self.existing(variant);
            let ready = crew.pods.iter().filter(|&&pod| self.pods[pod].state == State::Ready);
            let ready = u32::try_from(ready.count()).unwrap_or(u32::MAX);
            let state = ScaleState {
                wanted: crew.wanted,
                current: Replicas::saturating(existing),
                ready: Replicas::saturating(ready),
                pending: Replicas::saturating(existing.max(crew.wanted.count()) - ready),
                bounds: None,
            };
            let key = self.scenario.variants[variant].spec.key.clone();
            let scale = Scale::Known(state);
            inputs.listings.insert(key, Listing { replicas, unready, scale, way, as_of: now });
        }
        let due = |&mut (at, _): &mut (Micros, Scrape)| {
            at + control.relay.unwrap_or_default() <= self.now
        };
        while let Some((_, scrape)) = self.controller.relayed.pop_front_if(due) {
            inputs.scrapes.push(scrape);
        }
        inputs.demand = self.gateways();
        inputs
    }

    /// What the gateways say, as far as the daemon reads them.
    fn gateways(&mut self) -> BTreeMap<ModelKey, Vec<Demand>> {
        let blind = self.scenario.control.outage.is_some_and(|outage| outage.covers(self.now));
        for (model, traffic) in self.scenario.models.iter().zip(&self.traffic) {
            let Some(every) = model.gateway.read.filter(|_| !blind) else { continue };
            let known = self.controller.gateways.get(&model.key);
            if known.is_some_and(|(at, _)| self.now.since(*at) < every) {
                continue;
            }
            let held = Requests::new(traffic.held.len() as f64).unwrap_or_default();
            let seen = Seen::Number(held, wall_clock(self.now));
            let (signal, counts) = ("gateway".to_owned(), Counts::Requests);
            let mut said = vec![Demand { signal, seen, counts, naming: Naming::Named }];

            if model.gateway.admit.is_some() {
                let rejected = Requests::new(traffic.bucket.rejected as f64).unwrap_or_default();
                said.push(Demand {
                    signal: "rejected".to_owned(),
                    seen: Seen::Number(rejected, wall_clock(self.now)),
                    counts: Counts::Rejected,
                    naming: Naming::Named,
                });
            }
            self.controller.gateways.insert(model.key.clone(), (self.now, said));
        }
        let said =
            |(model, (_, said)): (&ModelKey, &(Micros, Vec<Demand>))| (model.clone(), said.clone());
        self.controller.gateways.iter().map(said).collect()
    }

    /// The admissible rate that the daemon publishes of a model.
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
            (Some(replica), State::Ready) => Ok(reading::read(names, started, at, replica)),
            (Some(_) | None, _) => Err(ScrapeFailure::Refused),
        };
        Scrape { replica: taken.key.clone(), at, outcome }
    }

    fn publish(&mut self, decisions: &Decisions) {
        self.violations += u64::from(decisions.violation.is_some());
        let rate = |it: &Decision| Some((it.model.clone(), it.admissible()?.model?));
        self.controller.admissible = decisions.decisions.iter().filter_map(rate).collect();
        for decision in &decisions.decisions {
            let is = |described: &Variant| described.spec.key == decision.variant;
            let Some(variant) = self.scenario.variants.iter().position(is) else { continue };
            let (before, after) = (self.controller.desired(variant), decision.desired());
            let autoscaler = &mut self.controller.autoscalers[variant];
            autoscaler.published = Some((after, decision.inputs_at));
            autoscaler.belief = Belief::of(decision);
            if before == Some(after) {
                continue;
            }
            if self.changes.len() >= CHANGES_MAX {
                self.changes_left_out += 1;
                continue;
            }
            let because = decision.because().or(decision.steps.last());
            let why = because.map(ToString::to_string).unwrap_or_default();
            self.changes.push(Change { at: self.now, variant, before, after, why });
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
        let (now, delay) = (self.now, hpa.delay);
        let signal = &mut self.controller.autoscalers[variant].signal;
        signal.push_back((now, value));
        // The newest of those that are old enough stays.
        while signal.get(1).is_some_and(|(at, _)| *at + delay <= now) {
            signal.pop_front();
        }
    }

    /// What the daemon serves: nothing once it is too old.
    fn published(&self, variant: usize) -> Option<MilliValue> {
        let (desired, inputs_at) = self.controller.autoscalers[variant].published?;
        let age = wall_clock(self.now).duration_since(inputs_at).as_secs_f64();
        let fresh = age <= self.scenario.control.hold.seconds();
        fresh.then(|| MilliValue(i64::from(desired.count()) * 1000))
    }

    /// A sum over the pages of ready replicas; `None` without any, as a query has no answer then.
    #[expect(clippy::cast_possible_truncation, reason = "a sum of gauges in thousandths")]
    fn sum_of(&mut self, variant: usize, signal: Signal) -> Option<MilliValue> {
        let pods = self.crews[variant].pods.clone();
        let mut sum = None;
        for pod in pods {
            if self.pods[pod].state != State::Ready || self.is_silent(pod) {
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

    /// What the autoscaler of a variant takes for the rate of the last minute, of requests of which
    /// there were so many until now; `None` before two looks.
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

    /// The HPA of a variant follows a metric.
    pub fn follow(&mut self, variant: usize, metric: Result<MilliValue, MetricError>) {
        let (now, scale) = (self.now, self.scale_of(variant));
        let Some(scaler) = &mut self.controller.autoscalers[variant].scaler else { return };
        match scaler.sync(now, scale, metric) {
            Outcome::Scale(wanted) => self.scale(variant, wanted),
            Outcome::Hold | Outcome::Disabled => {}
        }
    }

    /// KEDA looks at the value of a variant, and scales from and to zero.
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
            let since = *autoscaler.active.get_or_insert(Micros::ZERO);
            if self.now.since(since) >= keda.cooldown {
                self.scale(variant, Replicas::ZERO);
            }
        }
    }
}
