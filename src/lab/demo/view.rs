//! The state of the demo at one instant, and the history for its charts.
//!
//! A [`View`] is a plain value that the terminal table, the text lines and the JSON lines show. The
//! daemon's decisions come from its published state, the HPA's readings from its responses, and the
//! rest from the fleet itself.

use std::collections::VecDeque;

use crate::demo::actuator::{HpaTarget, MetricAnswer};
use crate::demo::scenario::{DemoSetup, most, short_name};
use crate::simulate::Micros;
use crate::simulate::run::Simulation;
use crate::simulate::score::VariantSample;
use crate::simulate::workload::rate::Rate;
use crate::study::results::RunResult;
use plimsoll_core::decide::pools::pooled::PoolReport;
use plimsoll_core::decide::{Basis, Step};
use plimsoll_core::units::Replicas;
use plimsoll_daemon::publish::Published;

/// The interval between two samples of the charts.
const SAMPLE: Micros = Micros::from_secs(1);
/// The range of a load chart relative to the highest rate, because requests bunch.
const HEADROOM: f64 = 1.2;
/// The samples from which a request rate is computed.
const RATE_SAMPLES: usize = 5;
/// The most changes of the desired replicas that stay visible.
const CHANGES: usize = 12;
/// The most samples to keep: one hour.
const SAMPLES: usize = 3_600;

/// The state of the demo at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The time since the start.
    pub elapsed: Micros,
    /// The length of the demo; `None` if it runs until it is stopped.
    pub length: Option<Micros>,
    /// The span that the charts cover.
    pub span: Micros,
    /// The position of the load in its wave.
    pub phase: WavePhase,
    /// The number of ticks that the daemon has published.
    pub generation: u64,
    /// The models, in the scenario's order.
    pub models: Vec<ModelView>,
    /// The share of judged requests that met the objectives.
    pub attainment: Option<f64>,
    /// Requests that were answered in full.
    pub finished: u64,
    /// The cost of the replicas so far.
    pub cost: f64,
    /// The cost of the largest fleet over the same time.
    pub cost_of_max: f64,
    /// The last changes of the desired replicas, newest first.
    pub changes: Vec<ReplicaChange>,
}

/// A change of a variant's desired replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The time at which the demo saw it.
    pub at: Micros,
    /// The variant.
    pub variant: String,
    /// The step that explains it, in a few words.
    pub headline: String,
}

/// The position of the load in its wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WavePhase {
    /// Near the trough.
    Trough,
    /// On its way up.
    Rising,
    /// Near the crest.
    Crest,
    /// On its way down.
    Falling,
    /// A burst on top of the wave.
    Burst,
}

/// The state of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// Its name, without the organization.
    pub name: String,
    /// Requests per second over the last few seconds.
    pub rate: f64,
    /// Requests per second over time.
    pub load: Vec<f64>,
    /// The top of the load chart's range.
    pub load_max: f64,
    /// The 95th percentile of the time to first token, in seconds.
    pub ttft: Option<f64>,
    /// The 95th percentile of the mean time between tokens, in seconds.
    pub itl: Option<f64>,
    /// The share of judged requests that met the objectives.
    pub attainment: Option<f64>,
    /// Its variants.
    pub variants: Vec<VariantLine>,
}

/// The state of a variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantLine {
    /// Its name.
    pub name: String,
    /// Its accelerator.
    pub accelerator: String,
    /// The cost of a replica per hour.
    pub cost: f64,
    /// The maximum replicas.
    pub max: u32,
    /// The state of its replicas.
    pub fleet: VariantSample,
    /// Requests per second sent to the variant over the last few seconds.
    pub rate: f64,
    /// The desired replicas; `None` before the first decision.
    pub desired: Option<u32>,
    /// True if the desired replicas are held because data is missing.
    pub held: bool,
    /// The reason for the decision, as a sentence.
    pub why: String,
    /// The reason in a few words.
    pub headline: String,
    /// The adapter copies; `None` unless the variant is a pool.
    pub pool: Option<PoolView>,
    /// The HPA's last error, if its last read failed.
    pub trouble: Option<String>,
    /// The desired replicas over time; zero before the first decision.
    pub desired_past: Vec<f64>,
    /// The ready replicas over time.
    pub ready_past: Vec<f64>,
}

/// The state of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Adapters that need a copy.
    pub adapters: u32,
    /// Copies that all of them need together.
    pub copies: u32,
    /// Copies to load for the suggested placement.
    pub plan_loads: u32,
}

/// Records the history for the charts.
#[derive(Debug)]
pub struct Observer {
    played: DemoSetup,
    length: Option<Micros>,
    next_sample: Micros,
    /// The time of each sample, in seconds. Samples can be further apart than [`SAMPLE`].
    sampled: Vec<f64>,
    arrived: Vec<Vec<u64>>,
    load: Vec<Vec<f64>>,
    variants: Vec<VariantHistory>,
    changes: VecDeque<ReplicaChange>,
}

#[derive(Clone, Debug, Default)]
struct VariantHistory {
    /// The desired replicas at the last look at the daemon.
    wanted: Option<u32>,
    sent: Vec<u64>,
    desired: Vec<f64>,
    ready: Vec<f64>,
}

// === impl WavePhase ===

impl WavePhase {
    fn of(rate: &Rate, at: Micros) -> Self {
        let turn = rate.turn(at);
        if rate.bursts(at) {
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
    /// An observer without history.
    #[must_use]
    pub fn new(played: DemoSetup, length: Option<Micros>) -> Self {
        let models = played.scenario.models.len();
        Self {
            arrived: vec![Vec::new(); models],
            load: vec![Vec::new(); models],
            variants: vec![VariantHistory::default(); played.scenario.variants.len()],
            next_sample: Micros::ZERO,
            sampled: Vec::new(),
            changes: VecDeque::new(),
            length,
            played,
        }
    }

    /// Takes a view, and a sample if one is due.
    pub fn look(
        &mut self,
        fleet: &Simulation<'_>,
        published: &Published,
        followed: &[HpaTarget],
    ) -> View {
        let elapsed = fleet.now();
        let views = fleet.view();
        let result = self.played.result(&fleet.score());
        if elapsed >= self.next_sample {
            self.next_sample = elapsed + SAMPLE;
            keep(&mut self.sampled, elapsed.seconds());
            self.sample(&views, &result, published);
        }

        let lines: Vec<VariantLine> = (0..views.len())
            .map(|index| self.line(index, views[index], published, followed.get(index)))
            .collect();
        self.remember(elapsed, &lines);
        let scenario = self.played.scenario;
        let models = (0..scenario.models.len()).map(|index| self.model(index, &result, &lines));

        let hours = elapsed.seconds() / 3600.0;
        let largest = scenario
            .variants
            .iter()
            .map(|variant| variant.spec.cost.per_hour() * f64::from(most(variant).count()));
        let rate = scenario.models.first().and_then(|model| model.load.rate());
        View {
            elapsed,
            length: self.length,
            span: self.length.unwrap_or(scenario.length),
            phase: rate.map_or(WavePhase::Trough, |rate| WavePhase::of(rate, elapsed)),
            generation: published.generation,
            models: models.collect(),
            attainment: result.within_slo,
            finished: result.finished(),
            cost: result.cost,
            cost_of_max: largest.sum::<f64>() * hours,
            changes: self.changes.iter().cloned().collect(),
        }
    }

    fn remember(&mut self, at: Micros, lines: &[VariantLine]) {
        for (past, line) in self.variants.iter_mut().zip(lines) {
            let before = std::mem::replace(&mut past.wanted, line.desired);
            if before.is_some() && before != line.desired {
                let variant = line.name.clone();
                let headline = line.headline.clone();
                self.changes.push_front(ReplicaChange { at, variant, headline });
                self.changes.truncate(CHANGES);
            }
        }
    }

    fn sample(&mut self, views: &[VariantSample], result: &RunResult, published: &Published) {
        for ((arrived, load), model) in
            self.arrived.iter_mut().zip(&mut self.load).zip(&result.models)
        {
            keep(arrived, model.arrived);
            keep(load, rate(&self.sampled, arrived));
        }

        let variants = &self.played.scenario.variants;
        for ((past, view), variant) in self.variants.iter_mut().zip(views).zip(variants) {
            let decided =
                published.variants.get(&variant.spec.key).and_then(|v| v.decided.as_ref());
            let desired = decided.map_or(0, |decided| decided.decision.desired().count());
            keep(&mut past.sent, view.sent);
            keep(&mut past.ready, f64::from(view.ready));
            keep(&mut past.desired, f64::from(desired));
        }
    }

    fn model(&self, index: usize, result: &RunResult, lines: &[VariantLine]) -> ModelView {
        let scenario = self.played.scenario;
        let model = &scenario.models[index];
        let served = &result.models[index];
        let of_model = scenario.variants.iter().zip(lines).filter(|(it, _)| it.model == index);
        let variants = of_model.map(|(_, line)| line.clone()).collect();

        ModelView {
            name: short_name(model).to_owned(),
            rate: rate(&self.sampled, &self.arrived[index]),
            load: self.load[index].clone(),
            load_max: model.load.rate().map_or(0.0, Rate::peak) * HEADROOM,
            ttft: served.ttft.p95,
            itl: served.itl.p95,
            attainment: served.within_slo,
            variants,
        }
    }

    fn line(
        &self,
        index: usize,
        fleet: VariantSample,
        published: &Published,
        followed: Option<&HpaTarget>,
    ) -> VariantLine {
        let past = &self.variants[index];
        let variant = &self.played.scenario.variants[index];
        let spec = &variant.spec;
        let decided = published.variants.get(&spec.key).and_then(|v| v.decided.as_ref());
        let decision = decided.map(|decided| &decided.decision);
        let because = decision.and_then(|decision| decision.because());
        let [why, headline] = [because.map(ToString::to_string), because.map(Step::headline)]
            .map(|text| text.unwrap_or_else(|| "nothing decided yet".to_owned()));

        VariantLine {
            name: spec.key.variant.to_string(),
            accelerator: spec.accelerator.as_ref().map(ToString::to_string).unwrap_or_default(),
            cost: spec.cost.per_hour(),
            max: most(variant).count(),
            fleet,
            rate: rate(&self.sampled, &past.sent),
            desired: decision.map(|decision| decision.desired().count()),
            held: decision.is_some_and(|decision| decision.basis == Basis::Held),
            why,
            headline,
            pool: published.pools.get(&spec.key).map(PoolView::of),
            trouble: followed.and_then(|followed| trouble(&followed.answer)),
            desired_past: past.desired.clone(),
            ready_past: past.ready.clone(),
        }
    }
}

impl PoolView {
    fn of(report: &PoolReport) -> Self {
        let wanted = report.adapters.iter().map(|it| it.copies.wanted);
        let wanting = wanted.clone().filter(|copies| *copies > Replicas::ZERO).count();

        Self {
            adapters: u32::try_from(wanting).unwrap_or(u32::MAX),
            copies: wanted.sum::<Replicas>().count(),
            plan_loads: report.plan.loads().count(),
        }
    }
}

fn trouble(answer: &MetricAnswer) -> Option<String> {
    match answer {
        MetricAnswer::NotAsked | MetricAnswer::Value(_) => None,
        MetricAnswer::Status(status) => Some(format!("HPA holds: the API answered {status}")),
        MetricAnswer::Failed(why) => Some(format!("HPA holds: {why}")),
    }
}

fn keep<T>(values: &mut Vec<T>, value: T) {
    if values.len() == SAMPLES {
        values.remove(0);
    }
    values.push(value);
}

/// The increase of a count over the last samples, per second.
fn rate(times: &[f64], counts: &[u64]) -> f64 {
    let from = counts.len().saturating_sub(RATE_SAMPLES + 1);
    match (&times[from..], &counts[from..]) {
        ([began, .., ended], [first, .., last]) => (last - first) as f64 / (ended - began),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::args::DemoScenario;
    use jiff::Timestamp;
    use plimsoll_core::decide::{Decision, Reason, Stage};
    use plimsoll_core::observe::Observation;
    use plimsoll_core::units::Seconds;
    use plimsoll_daemon::publish::{PublishedDecision, PublishedVariant};

    fn played() -> DemoSetup {
        DemoSetup::read(DemoScenario::Standard, 1, &[]).unwrap()
    }

    fn fleet(played: &DemoSetup) -> Simulation<'static> {
        Simulation::new(played.scenario, played.seed).unwrap()
    }

    /// A daemon that desires this many replicas of the first variant, and has no decision about
    /// others.
    fn published(played: &DemoSetup, generation: u64, desired: u32) -> Published {
        let spec = played.scenario.variants[0].spec.clone();
        let key = spec.key.clone();
        let at = Timestamp::UNIX_EPOCH;
        let bounds = spec.bounds;
        let after = Replicas::saturating(desired);
        let reason = Reason::Settling { remaining: Seconds::ZERO };
        let step = Step { stage: Stage::Analyze, before: after, after, reason };
        let decision = Decision {
            variant: key.clone(),
            model: spec.model_key(),
            current: None,
            bounds,
            steps: vec![step],
            inputs_at: at,
            basis: Basis::Fresh,
            admissible: None,
            sizing: None,
        };

        let observation = Observation::of_nothing(bounds);
        let decided = Some(PublishedDecision { decision, at, elapsed: std::time::Duration::ZERO });
        let report = None;
        let undecided = None;
        let published = PublishedVariant { spec, observation, report, decided, undecided };
        Published { generation, variants: [(key, published)].into(), ..Published::default() }
    }

    #[test]
    fn a_variant_without_a_decision_shows_none_and_not_zero() {
        let played = played();
        let mut observer = Observer::new(played.clone(), None);
        let view = observer.look(&fleet(&played), &published(&played, 1, 2), &[]);
        let lines = view.models.iter().flat_map(|model| &model.variants).collect::<Vec<_>>();

        assert_eq!(
            lines.iter().map(|line| line.desired).collect::<Vec<_>>(),
            [Some(2), None, None]
        );
        assert_eq!(lines[1].why, "nothing decided yet");
        assert_eq!(view.attainment, None, "nothing was answered yet");
    }

    #[test]
    fn a_rate_is_per_second_and_over_the_last_samples_only() {
        let times: Vec<f64> = (0..20).map(|sample| 1.5 * f64::from(sample)).collect();
        let counts: Vec<u64> = (0..20).map(|sample| 6 * sample + 30 * sample.min(1)).collect();

        for (samples, expected) in [(0, 0.0), (1, 0.0), (2, 24.0), (20, 4.0)] {
            let found = rate(&times[..samples], &counts[..samples]);
            assert!((found - expected).abs() < 1e-9, "{found} of {samples}");
        }
    }

    #[test]
    fn changes_are_remembered_newest_first_and_the_first_number_is_none() {
        let played = played();
        let mut fleet = fleet(&played);
        let mut observer = Observer::new(played.clone(), None);
        for (second, desired) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            fleet.advance_to(Micros::from_secs(second));
            observer.look(&fleet, &published(&played, second, desired), &[]);
        }

        let view = observer.look(&fleet, &published(&played, 6, 3), &[]);
        let seen = view.changes.iter().map(|change| change.at).collect::<Vec<_>>();
        assert_eq!(seen, [Micros::from_secs(5), Micros::from_secs(3)]);
        assert_eq!(view.models[0].variants[0].desired_past, [1.0, 1.0, 2.0, 2.0, 3.0]);
    }

    #[test]
    fn the_phases_follow_the_wave() {
        let rate = played().scenario.models[0].load.rate().unwrap();
        let seen = [0, 40, 90, 115, 130, 150, 179]
            .map(|second| WavePhase::of(rate, Micros::from_secs(second)).label());
        assert_eq!(seen, ["trough", "rising", "crest", "falling", "burst", "falling", "trough"]);
    }
}
