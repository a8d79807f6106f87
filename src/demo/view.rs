//! What is shown of the demo at one instant, and the memory that its small charts need.
//!
//! A [`View`] is a plain value: the terminal, the text lines and the JSON lines are three ways to
//! write it. What the daemon decided comes from what the daemon publishes, what the HPA read from
//! its answers, and the rest from the fleet itself.

use std::sync::Arc;

use crate::decide::Basis;
use crate::demo::actuator::{Answer, Followed};
use crate::demo::fleet::{Fleet, VariantView};
use crate::demo::scenario::{Model, Scenario, Variant};
use crate::demo::score::Score;
use crate::publish::Published;
use crate::simulate::Micros;
use crate::simulate::workload::Shape;

/// How often the charts take a sample.
const SAMPLE: Micros = Micros::from_secs(1);
/// The samples over which a rate of requests is taken.
const RATE_SAMPLES: usize = 5;
/// The most samples that are kept: an hour of them.
const SAMPLES: usize = 3_600;

/// Everything that is shown at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The time since the start.
    pub elapsed: Micros,
    /// When it will end; `None` when it runs until it is stopped.
    pub length: Option<Micros>,
    /// The span that the charts cover.
    pub span: Micros,
    /// Where the load is in its wave.
    pub phase: Phase,
    /// How many ticks the daemon has published.
    pub generation: u64,
    /// The models, in the scenario's order.
    pub models: Vec<ModelView>,
    /// The share of judged requests that met the objectives.
    pub attainment: Option<f64>,
    /// Requests that were answered in full.
    pub finished: u64,
    /// What the replicas have cost so far.
    pub cost: f64,
    /// What the largest fleet would have cost in the same time.
    pub cost_of_max: f64,
}

/// Where the load is in its wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Near the trough.
    Trough,
    /// On its way up.
    Rising,
    /// Near the crest.
    Crest,
    /// On its way down.
    Falling,
    /// A burst on top of wherever it is.
    Burst,
}

/// What is shown of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// Its name, without the organisation.
    pub name: String,
    /// Requests per second over the last few seconds.
    pub rate: f64,
    /// Requests per second over time, and their largest possible rate.
    pub load: Vec<f64>,
    /// The rate at which the chart of the load is full.
    pub load_max: f64,
    /// The time to first token that 95 of 100 requests did not exceed.
    pub ttft: Option<Micros>,
    /// The mean time between tokens that 95 of 100 requests did not exceed.
    pub itl: Option<Micros>,
    /// The share of judged requests that met the objectives.
    pub attainment: Option<f64>,
    /// Its variants.
    pub variants: Vec<Line>,
}

/// What is shown of a variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// What it runs on.
    pub accelerator: String,
    /// What a replica costs for an hour.
    pub cost: f64,
    /// The most replicas.
    pub max: u32,
    /// The fleet's side.
    pub fleet: VariantView,
    /// Requests per second that were sent here over the last few seconds.
    pub rate: f64,
    /// What the daemon wants; `None` while it has decided nothing.
    pub desired: Option<u32>,
    /// Whether that number is kept from before, for want of data.
    pub held: bool,
    /// Why.
    pub why: String,
    /// What the HPA read last, if it was not a value.
    pub trouble: Option<String>,
    /// What the daemon wanted over time; zero while it had decided nothing.
    pub desired_past: Vec<f64>,
    /// How many were ready over time.
    pub ready_past: Vec<f64>,
}

/// Remembers what the charts need.
#[derive(Debug)]
pub struct Observer {
    scenario: Arc<Scenario>,
    length: Option<Micros>,
    next_sample: Micros,
    arrived: Vec<Vec<u64>>,
    load: Vec<Vec<f64>>,
    variants: Vec<Past>,
}

#[derive(Clone, Debug, Default)]
struct Past {
    routed: Vec<u64>,
    desired: Vec<f64>,
    ready: Vec<f64>,
}

// === impl Phase ===

impl Phase {
    fn of(shape: &Shape, at: Micros) -> Self {
        let turn = shape.turn(at);
        if shape.bursts(at) {
            Self::Burst
        } else if !(0.08..0.92).contains(&turn) {
            Self::Trough
        } else if turn < 0.42 {
            Self::Rising
        } else if turn < 0.58 {
            Self::Crest
        } else {
            Self::Falling
        }
    }

    /// The phase as a word.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Trough => "trough",
            Self::Rising => "rising",
            Self::Crest => "crest",
            Self::Falling => "falling",
            Self::Burst => "burst",
        }
    }
}

// === impl Observer ===

impl Observer {
    /// Remembers nothing yet.
    #[must_use]
    pub fn new(scenario: Arc<Scenario>, length: Option<Micros>) -> Self {
        Self {
            arrived: vec![Vec::new(); scenario.models.len()],
            load: vec![Vec::new(); scenario.models.len()],
            variants: vec![Past::default(); scenario.variants().count()],
            next_sample: Micros::ZERO,
            length,
            scenario,
        }
    }

    /// Looks at everything once.
    pub fn look(&mut self, fleet: &Fleet, published: &Published, followed: &[Followed]) -> View {
        let (elapsed, views, score) = (fleet.now(), fleet.view(), fleet.score());
        if elapsed >= self.next_sample {
            self.next_sample = elapsed + SAMPLE;
            self.sample(&views, &score, published);
        }
        let scenario = Arc::clone(&self.scenario);
        let mut lines = scenario
            .variants()
            .enumerate()
            .map(|(index, (_, variant))| {
                let line = self.line(index, variant, published, followed.get(index));
                Line { fleet: views[index], ..line }
            })
            .collect::<Vec<_>>()
            .into_iter();
        let models = scenario
            .models
            .iter()
            .enumerate()
            .map(|(index, model)| {
                let variants = lines.by_ref().take(model.variants.len()).collect();
                self.model(index, model, &score, variants)
            })
            .collect();
        let hours = elapsed.seconds() / 3600.0;
        let largest =
            scenario.variants().map(|(_, v)| v.cost.per_hour() * f64::from(v.max.count()));
        View {
            elapsed,
            length: self.length,
            span: self.length.unwrap_or(scenario.wave),
            phase: scenario
                .models
                .first()
                .map_or(Phase::Trough, |model| Phase::of(&model.shape, elapsed)),
            generation: published.generation,
            models,
            attainment: score.attainment(),
            finished: score.finished(),
            cost: score.cost(&scenario),
            cost_of_max: largest.sum::<f64>() * hours,
        }
    }

    fn sample(&mut self, views: &[VariantView], score: &Score, published: &Published) {
        for ((arrived, load), model) in
            self.arrived.iter_mut().zip(&mut self.load).zip(&score.models)
        {
            keep(arrived, model.arrived);
            keep(load, rate(arrived));
        }
        for ((past, view), (_, variant)) in
            self.variants.iter_mut().zip(views).zip(self.scenario.variants())
        {
            let decided = published.variants.get(&variant.key).and_then(|v| v.decided.as_ref());
            let desired = decided.map_or(0, |decided| decided.decision.desired().count());
            keep(&mut past.routed, view.routed);
            keep(&mut past.ready, f64::from(view.ready));
            keep(&mut past.desired, f64::from(desired));
        }
    }

    fn model(&self, index: usize, model: &Model, score: &Score, variants: Vec<Line>) -> ModelView {
        let service = &score.models[index];
        ModelView {
            name: model.short_name().to_owned(),
            rate: rate(&self.arrived[index]),
            load: self.load[index].clone(),
            load_max: model.shape.bound().requests_per_second(),
            ttft: service.ttft_quantile(0.95),
            itl: service.itl_quantile(0.95),
            attainment: service.attainment(),
            variants,
        }
    }

    fn line(
        &self,
        index: usize,
        variant: &Variant,
        published: &Published,
        followed: Option<&Followed>,
    ) -> Line {
        let past = &self.variants[index];
        let decided = published.variants.get(&variant.key).and_then(|v| v.decided.as_ref());
        let decision = decided.map(|decided| &decided.decision);
        let why = decision
            .and_then(|decision| decision.because())
            .map_or_else(|| "nothing decided yet".to_owned(), ToString::to_string);
        Line {
            name: variant.key.variant.as_str().to_owned(),
            accelerator: variant.accelerator.as_str().to_owned(),
            cost: variant.cost.per_hour(),
            max: variant.max.count(),
            fleet: VariantView::default(),
            rate: rate(&past.routed),
            desired: decision.map(|decision| decision.desired().count()),
            held: decision.is_some_and(|decision| decision.basis == Basis::Held),
            why,
            trouble: followed.and_then(|followed| trouble(&followed.answer)),
            desired_past: past.desired.clone(),
            ready_past: past.ready.clone(),
        }
    }
}

fn trouble(answer: &Answer) -> Option<String> {
    match answer {
        Answer::NotAsked | Answer::Value(_) => None,
        Answer::Status(status) => Some(format!("HPA holds: the API answered {status}")),
        Answer::Failed(why) => Some(format!("HPA holds: {why}")),
    }
}

fn keep<T>(values: &mut Vec<T>, value: T) {
    if values.len() == SAMPLES {
        values.remove(0);
    }
    values.push(value);
}

/// The growth of a count over the last samples, for each second.
fn rate(counts: &[u64]) -> f64 {
    let recent = &counts[counts.len().saturating_sub(RATE_SAMPLES + 1)..];
    match recent {
        [first, .., last] => {
            let seconds = SAMPLE.seconds() * (recent.len() - 1) as f64;
            (last - first) as f64 / seconds
        }
        [] | [_] => 0.0,
    }
}
