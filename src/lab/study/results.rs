//! The results of a study as JSON, for programs and for merging shards.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::simulate::Micros;
use crate::simulate::scenario::{Model, Scenario, Variant};
use crate::simulate::score::{
    FleetSample, Outcome, QuantileHistogram, Service, VariantSample, VariantScore, share,
};
use crate::study::plan::Plan;
use plimsoll_core::analyze::foresight::policy::Backlog;
use plimsoll_core::units::Replicas;

/// The version of this format. It increases when a field is removed or changes its meaning.
const VERSION: u32 = 1;

/// What a study came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Results {
    /// The version of this shape.
    pub(crate) version: u32,
    /// The scenario file.
    pub(crate) scenario: String,
    /// A text that is the same for the same scenario and the same runs.
    pub(crate) fingerprint: String,
    /// How many runs the whole study has.
    pub(crate) planned: usize,
    /// The runs that were simulated, in order.
    pub(crate) runs: Vec<RunResult>,
    /// The runs that there cannot be, in order.
    pub(crate) left_out: Vec<LeftOut>,
}

/// A run that there cannot be, because who should scale its variants has found nothing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LeftOut {
    /// Its place among all runs of the study.
    pub(crate) index: usize,
    /// What was set other than in the file.
    pub(crate) settings: Map<String, Value>,
    /// Who should have scaled the variants.
    pub(crate) policy: String,
    /// The seed.
    pub(crate) seed: u64,
    /// Why there is none.
    pub(crate) why: String,
}

/// What one run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RunResult {
    /// Its place among all runs of the study.
    pub(crate) index: usize,
    /// What was set other than in the file.
    pub(crate) settings: Map<String, Value>,
    /// Who scaled the variants.
    pub(crate) policy: String,
    /// The seed.
    pub(crate) seed: u64,
    /// Whether the scenario was simulated to its end.
    pub(crate) complete: bool,
    /// How much was simulated.
    pub(crate) simulated_s: f64,
    /// The share of judged requests of all models that were served well; null without any.
    pub(crate) within_slo: Option<f64>,
    /// The share of them that were answered, and whose first token met the objective for it.
    pub(crate) within_ttft: Option<f64>,
    /// The share of them that were answered, and whose mean time between tokens met the objective.
    pub(crate) within_itl: Option<f64>,
    /// The time that replicas existed, all variants together.
    pub(crate) replica_hours: f64,
    /// What they cost.
    pub(crate) cost: f64,
    /// Changes of the numbers that were asked for.
    pub(crate) actions: u32,
    /// Changes that went the other way than the one before.
    pub(crate) flips: u32,
    /// Ticks whose decisions broke an invariant.
    pub(crate) violations: u64,
    /// Each model.
    pub(crate) models: Vec<ModelResult>,
    /// Each variant.
    pub(crate) variants: Vec<VariantResult>,
    /// Changes of what the daemon published.
    pub(crate) decisions: Vec<DecisionResult>,
    /// Changes that there were beside these.
    pub(crate) decisions_left_out: u64,
}

/// How the requests of a model fared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ModelResult {
    /// Its name.
    pub(crate) model: String,
    /// Requests that arrived. Each is in one of the eight counts that follow, without `good`.
    pub(crate) arrived: u64,
    /// Requests that were answered in full.
    pub(crate) finished: u64,
    /// Of those, the ones within both objectives.
    pub(crate) good: u64,
    /// Requests that the gateway turned away.
    pub(crate) rejected: u64,
    /// Requests whose client gave up.
    pub(crate) timed_out: u64,
    /// Requests that were cut off.
    pub(crate) failed: u64,
    /// Requests that the KV cache of the engine that the router chose could not hold.
    pub(crate) too_long: u64,
    /// Requests without a first token although its objective has passed.
    pub(crate) overdue: u64,
    /// Requests that were being answered in time at the end.
    pub(crate) open: u64,
    /// Attempts after the first.
    pub(crate) retries: u64,
    /// Preemptions.
    pub(crate) preemptions: u64,
    /// Prompt tokens of finished requests.
    pub(crate) prompt_tokens: u64,
    /// Generated tokens of finished requests.
    pub(crate) output_tokens: u64,
    /// Times that an engine loaded an adapter; null where no request asks for one.
    pub(crate) adapter_loads: Option<u64>,
    /// The share of judged requests that were served well; null without any.
    pub(crate) within_slo: Option<f64>,
    /// The share of them that were answered, and whose first token met the objective for it.
    pub(crate) within_ttft: Option<f64>,
    /// The share of them that were answered, and whose mean time between tokens met the objective.
    pub(crate) within_itl: Option<f64>,
    /// The minute of arrival in which that share was smallest, from 0.
    pub(crate) worst_minute: Option<usize>,
    /// The share in that minute.
    pub(crate) worst_minute_within_slo: Option<f64>,
    /// Time to first token, in seconds.
    pub(crate) ttft: LatencyResult,
    /// Mean time between tokens of a request, in seconds.
    pub(crate) itl: LatencyResult,
    /// Time to the last token, in seconds.
    pub(crate) e2e: LatencyResult,
    /// Its batch work, which is in none of these; null without any.
    #[serde(default)]
    pub(crate) batch: Option<BatchResult>,
}

/// How the batch work of a model fared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct BatchResult {
    /// Requests that arrived.
    pub(crate) arrived: u64,
    /// Requests that were answered in full.
    pub(crate) finished: u64,
    /// Requests that ended without an answer.
    pub(crate) not_served: u64,
    /// Requests that had not ended at the end, and were not late.
    pub(crate) open: u64,
    /// Prompt tokens of finished requests.
    pub(crate) prompt_tokens: u64,
    /// Generated tokens of finished requests.
    pub(crate) output_tokens: u64,
    /// The share of judged requests that were served well: answered, where there is no objective;
    /// null without any.
    pub(crate) within_slo: Option<f64>,
    /// Time to the last token, in seconds.
    pub(crate) e2e: LatencyResult,
}

/// A distribution of times, in seconds; null without any.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LatencyResult {
    /// How many there are.
    pub(crate) count: u64,
    /// The mean.
    pub(crate) mean: Option<f64>,
    /// The median, to within 0.4% of itself, as all that follow.
    pub(crate) p50: Option<f64>,
    /// The 90th percentile.
    pub(crate) p90: Option<f64>,
    /// The 95th percentile.
    pub(crate) p95: Option<f64>,
    /// The 99th percentile.
    pub(crate) p99: Option<f64>,
}

/// What became of a variant's replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct VariantResult {
    /// Its name.
    pub(crate) variant: String,
    /// The time that replicas existed on a node.
    pub(crate) replica_hours: f64,
    /// What they cost.
    pub(crate) cost: f64,
    /// Replicas that were ready at the start.
    pub(crate) initial: u32,
    /// The mean number of replicas.
    pub(crate) mean: f64,
    /// The most that existed at once.
    pub(crate) peak: u32,
    /// Replicas that were created after the start.
    pub(crate) starts: u32,
    /// Times that their number was raised.
    pub(crate) ups: u32,
    /// Times that it was lowered.
    pub(crate) downs: u32,
    /// Changes that went the other way than the one before.
    pub(crate) flips: u32,
    /// Crashes.
    pub(crate) crashes: u32,
    /// Nodes that were taken back.
    pub(crate) interruptions: u32,
    /// The share of the samples in which requests waited at each of its replicas, while none did at
    /// another variant of the model.
    #[serde(default)]
    pub(crate) starved: f64,
}

/// A change of what the daemon published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DecisionResult {
    /// When, in seconds from the start.
    pub(crate) at_s: f64,
    /// The variant.
    pub(crate) variant: String,
    /// The number before; null for the first.
    pub(crate) before: Option<u32>,
    /// The number since.
    pub(crate) after: u32,
    /// Why.
    pub(crate) why: String,
}

/// The reason that results cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// There is no file of results in a folder.
    #[error("{} has no file that ends with .json", path.display())]
    NoResults {
        /// The folder.
        path: PathBuf,
    },
    /// A file holds no results.
    #[error("{} has no results of a simulation", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The JSON error.
        source: serde_json::Error,
    },
    /// The files belong to different studies or versions.
    #[error("{} belongs to another study or version than the first", path.display())]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// Two files have different results for one run.
    #[error("{} has a different result for run {index} than an earlier file", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// The run.
        index: usize,
    },
}

// === impl Results ===

impl Results {
    pub(crate) fn new(scenario: String, fingerprint: String, planned: usize) -> Self {
        Self {
            version: VERSION,
            scenario,
            fingerprint,
            planned,
            runs: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Merges the results of several shards.
    pub(crate) fn merge(paths: &[PathBuf]) -> Result<Self, MergeError> {
        let mut so_far: Option<Self> = None;
        for path in &files(paths)? {
            let next = Self::read(path)?;
            let Some(results) = &mut so_far else {
                so_far = Some(next);
                continue;
            };

            let same = (next.version, &next.fingerprint, next.planned)
                == (results.version, &results.fingerprint, results.planned);
            if !same {
                return Err(MergeError::Other { path: path.clone() });
            }

            let known: Vec<usize> = results.left_out.iter().map(|run| run.index).collect();
            let new = next.left_out.into_iter().filter(|run| !known.contains(&run.index));
            results.left_out.extend(new);
            for run in next.runs {
                match results.runs.iter().find(|known| known.index == run.index) {
                    Some(known) if *known == run => {}
                    // An interrupted run has less data than a complete one.
                    Some(known) if known.complete && run.complete => {
                        return Err(MergeError::Differs { path: path.clone(), index: run.index });
                    }
                    Some(known) if known.complete => {}
                    Some(_) | None => {
                        results.runs.retain(|known| known.index != run.index);
                        results.runs.push(run);
                    }
                }
            }
        }

        let mut merged = so_far.unwrap_or_else(|| Self::new(String::new(), String::new(), 0));
        merged.runs.sort_by_key(|run| run.index);
        merged.left_out.sort_by_key(|run| run.index);
        Ok(merged)
    }

    fn read(path: &Path) -> Result<Self, MergeError> {
        let text = fs::read_to_string(path)
            .map_err(|source| MergeError::Read { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| MergeError::Format { path: path.to_owned(), source })
    }
}

/// The given files, with each folder replaced by the result files in it, sorted by name.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, MergeError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }

        let mut found =
            files_in(path).map_err(|source| MergeError::Read { path: path.clone(), source })?;
        if found.is_empty() {
            return Err(MergeError::NoResults { path: path.clone() });
        }

        found.sort_unstable();
        files.append(&mut found);
    }

    Ok(files)
}

/// The result files in a folder.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "json") {
            found.push(file);
        }
    }

    Ok(found)
}

/// The mean; `None` without values.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sum = 0.0;
    let mut count = 0.0;
    for value in values {
        sum += value;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

impl RunResult {
    /// Adapter loads of all models; `None` if no request asks for an adapter.
    pub(crate) fn adapter_loads(&self) -> Option<u64> {
        self.models.iter().filter_map(|model| model.adapter_loads).reduce(|sum, more| sum + more)
    }

    /// The smallest share of good requests in the worst minutes of all models.
    pub(crate) fn worst_minute(&self) -> Option<f64> {
        self.models.iter().filter_map(|model| model.worst_minute_within_slo).reduce(f64::min)
    }

    /// Requests of all models that were answered in full.
    pub(crate) fn finished(&self) -> u64 {
        self.models.iter().map(|model| model.finished).sum()
    }

    /// Requests of all models that ended without an answer.
    pub(crate) fn not_served(&self) -> u64 {
        self.models.iter().map(ModelResult::not_served).sum()
    }

    pub(crate) fn new(plan: &Plan, seed: u64, scenario: &Scenario, outcome: &Outcome) -> Self {
        let ended = outcome.ended.seconds();
        let crews = scenario.variants.iter().zip(&outcome.variants);
        let mut variants: Vec<VariantResult> =
            crews.map(|(variant, crew)| VariantResult::new(variant, crew, ended)).collect();
        for (at, variant) in variants.iter_mut().enumerate() {
            variant.starved = starved(scenario, &outcome.series, at);
        }

        Self {
            index: plan.index,
            settings: plan.settings.clone(),
            policy: plan.peer.to_string(),
            seed,
            complete: outcome.complete,
            simulated_s: ended,
            within_slo: share(&outcome.models, |service| service.good),
            within_ttft: share(&outcome.models, |service| service.in_time),
            within_itl: share(&outcome.models, |service| service.at_pace),
            replica_hours: variants.iter().map(|variant| variant.replica_hours).sum(),
            cost: variants.iter().map(|variant| variant.cost).sum(),
            actions: variants.iter().map(|variant| variant.ups + variant.downs).sum(),
            flips: variants.iter().map(|variant| variant.flips).sum(),
            violations: outcome.violations,
            models: scenario
                .models
                .iter()
                .zip(outcome.models.iter().zip(&outcome.batches))
                .map(|(model, (service, batch))| ModelResult::new(model, service, batch))
                .collect(),
            variants,
            decisions: outcome
                .changes
                .iter()
                .map(|change| DecisionResult {
                    at_s: change.at.seconds(),
                    variant: scenario.variants[change.variant].spec.key.variant.to_string(),
                    before: change.before.map(Replicas::count),
                    after: change.after.count(),
                    why: change.why.clone(),
                })
                .collect(),
            decisions_left_out: outcome.changes_left_out,
        }
    }
}

impl ModelResult {
    /// Requests that ended without an answer.
    const fn not_served(&self) -> u64 {
        self.rejected + self.timed_out + self.failed + self.too_long
    }

    fn new(model: &Model, service: &Service, batch: &Service) -> Self {
        let worst = service.worst_minute();
        let services = slice::from_ref(service);

        Self {
            model: model.key.model.to_string(),
            arrived: service.arrived,
            finished: service.finished,
            good: service.good,
            rejected: service.rejected,
            timed_out: service.timed_out,
            failed: service.failed,
            too_long: service.unservable,
            overdue: service.overdue,
            open: service.open,
            retries: service.retries,
            preemptions: service.preemptions,
            prompt_tokens: service.prompt_tokens,
            output_tokens: service.output_tokens,
            adapter_loads: (!model.adapters.is_empty()).then_some(service.adapter_loads),
            within_slo: service.attainment(),
            within_ttft: share(services, |service| service.in_time),
            within_itl: share(services, |service| service.at_pace),
            worst_minute: worst.map(|(minute, _)| minute),
            worst_minute_within_slo: worst.map(|(_, share)| share),
            ttft: LatencyResult::new(&service.ttft),
            itl: LatencyResult::new(&service.itl),
            e2e: LatencyResult::new(&service.e2e),
            batch: model.batch.as_ref().map(|_| BatchResult::new(batch)),
        }
    }
}

impl BatchResult {
    fn new(service: &Service) -> Self {
        Self {
            arrived: service.arrived,
            finished: service.finished,
            not_served: service.not_served(),
            open: service.open,
            prompt_tokens: service.prompt_tokens,
            output_tokens: service.output_tokens,
            within_slo: service.attainment(),
            e2e: LatencyResult::new(&service.e2e),
        }
    }
}

/// The share of the samples in which a variant starves. Then its replicas have more waiting
/// requests than usual, and the replicas of another variant of its model have none.
fn starved(scenario: &Scenario, series: &[FleetSample], at: usize) -> f64 {
    let usual = Backlog::default().usual.requests();
    let starving = series.iter().filter(|sample| {
        let VariantSample { ready, waiting, .. } = sample.variants[at];
        let is_full = ready > 0 && f64::from(waiting) > usual * f64::from(ready);
        is_full && has_idle_peer(scenario, sample, at)
    });

    starving.count() as f64 / series.len().max(1) as f64
}

/// Returns true if another variant of the same model has ready replicas without waiting requests.
fn has_idle_peer(scenario: &Scenario, sample: &FleetSample, at: usize) -> bool {
    let model = scenario.variants[at].model;
    let mut others = scenario.variants.iter().zip(&sample.variants).enumerate();
    others.any(|(other, (variant, seen))| {
        other != at && variant.model == model && seen.ready > 0 && seen.waiting == 0
    })
}

impl LatencyResult {
    fn new(spread: &QuantileHistogram) -> Self {
        let [p50, p90, p95, p99] =
            [0.5, 0.9, 0.95, 0.99].map(|share| spread.quantile(share).map(Micros::seconds));
        Self { count: spread.count(), mean: spread.mean().map(Micros::seconds), p50, p90, p95, p99 }
    }
}

impl VariantResult {
    fn new(variant: &Variant, crew: &VariantScore, ended: f64) -> Self {
        let replica_hours = crew.replica_hours();

        Self {
            variant: variant.spec.key.variant.to_string(),
            replica_hours,
            cost: variant.spec.cost.per_hour() * replica_hours,
            initial: variant.initial.count(),
            mean: crew.replica_time.seconds() / ended.max(1e-6),
            peak: crew.peak,
            starts: crew.starts,
            ups: crew.ups,
            downs: crew.downs,
            flips: crew.flips,
            crashes: crew.crashes,
            interruptions: crew.interruptions,
            starved: 0.0,
        }
    }
}
