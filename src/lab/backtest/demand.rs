//! Extracts the load and the engines of a trace: the arrivals over time, the lengths of requests,
//! and the duration of an iteration.
//!
//! All of it comes from the counter differences between two scrapes. Arrivals between two scrapes
//! are spread evenly over the time between them. The duration of an iteration is learned as
//! [`foresight`](plimsoll_core::analyze::foresight::pace) learns it.
//!
//! With separate prefill and decode roles, the metrics of two replicas include each request, but it
//! counts once. Its arrival and its prompt length come from prefill replicas, its answer length
//! from decode replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use plimsoll_core::analyze::engine_args;
use plimsoll_core::analyze::foresight::lesson::IterationSampler;
use plimsoll_core::analyze::foresight::pace::{IterationCost, PaceFilter};
use plimsoll_core::analyze::foresight::policy::Learning;
use plimsoll_core::fleet::{Bounds, ModelKey, ReplicaKey, Role, VariantKey, VariantSpec};
use plimsoll_core::observe::histogram::{Histogram, ProcessLife};
use plimsoll_core::observe::stride::{IntervalDelta, Odometer};
use plimsoll_core::observe::template::PodTemplate;
use plimsoll_core::observe::{Inputs, Reading, Scale, WhyScaleUnknown};
use plimsoll_core::pipeline::EARLIER_MAX;
use plimsoll_core::units::Replicas;
use plimsoll_daemon::trace::TraceTick;

/// Seconds per interval in which arrivals are counted. It is shorter than the changes of load, and
/// contains several scrapes of every replica.
pub(crate) const INTERVAL: f64 = 10.0;

/// Time without a successful scrape after which a trace has a gap.
const GAP: SignedDuration = SignedDuration::from_secs(60);

/// All data gathered from a trace.
#[derive(Default)]
pub(crate) struct TraceDemand {
    /// The load of each model.
    pub(crate) models: BTreeMap<ModelKey, RecordedLoad>,
    /// The engines of each variant.
    pub(crate) variants: BTreeMap<VariantKey, RecordedVariant>,
    /// The times of the first and the last tick.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// Times without a successful scrape, each up to the next one.
    pub(crate) gaps: Vec<(Timestamp, Timestamp)>,
    /// Models with a wake signal.
    pub(crate) signaled: BTreeSet<ModelKey>,
    heard: Option<Timestamp>,
    meters: BTreeMap<ReplicaKey, Meter>,
}

/// The load of one model.
#[derive(Default)]
pub(crate) struct RecordedLoad {
    /// The data of each interval since the first tick.
    pub(crate) intervals: Vec<Interval>,
    /// The lengths of all prompts.
    pub(crate) prompts: Histogram,
    /// The lengths of all answers.
    pub(crate) answers: Histogram,
    /// Requests that arrived at prefill replicas, and at decode replicas.
    pub(crate) halves: [f64; 2],
}

/// The requests of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    /// Requests that arrived at replicas that compute prompts.
    pub(crate) arrived: f64,
    /// Requests that finished at these replicas: the sum of their prompt tokens, and their count.
    pub(crate) prompts: [f64; 2],
    /// Requests that finished at replicas that generate answers: the sum of their answer tokens,
    /// and their count.
    pub(crate) answers: [f64; 2],
}

/// The replicas of one variant, and their engines.
pub(crate) struct RecordedVariant {
    pub(crate) spec: VariantSpec,
    /// The bounds at the end.
    pub(crate) bounds: Bounds,
    /// The existing replicas from an instant on, at each change; `None` while their count was
    /// unknown.
    counts: Vec<(Timestamp, Option<u32>)>,
    /// The requests that an engine runs at the same time, if its arguments set them.
    pub(crate) sequences: Option<f64>,
    /// The tokens that an engine computes in one iteration at most, if its arguments set them.
    pub(crate) step_tokens: Option<f64>,
    template: Option<Arc<PodTemplate>>,
    /// Replica-seconds of existing replicas.
    pub(crate) replica_seconds: f64,
    /// Seconds at the maximum replicas.
    pub(crate) at_max: f64,
    /// Changes of the desired replicas, and changes in the direction opposite to the previous one.
    pub(crate) changes: u32,
    pub(crate) flips: u32,
    /// KV cache tokens per replica.
    pub(crate) kv: Option<f64>,
    /// The most requests that ran in a replica at the same time.
    pub(crate) running: f64,
    /// The seconds from creation to the first readiness, of each start in the trace.
    pub(crate) starts: BTreeMap<ReplicaKey, f64>,
    /// The seconds from creation to the last readiness, of replicas that were ready before.
    pub(crate) earlier_starts: BTreeMap<ReplicaKey, f64>,
    /// The replicas that were seen before they were ready.
    watched: BTreeSet<ReplicaKey>,
    pace: PaceFilter,
    /// The desired replicas, and whether the last change was up.
    asked: Option<(Replicas, Option<bool>)>,
    /// The time of the previous tick, and its replicas; `None` if the count was unknown.
    seen: Option<(Timestamp, u32)>,
}

/// The state of a replica's metrics.
#[derive(Default)]
struct Meter {
    odometer: Odometer,
    lessons: IterationSampler,
    lengths: Option<(Option<Timestamp>, Histogram, Histogram)>,
}

// === impl TraceDemand ===

impl TraceDemand {
    /// Adds the data of a tick.
    pub(crate) fn take(&mut self, tick: &TraceTick) {
        let TraceTick { now, inputs, .. } = tick;
        let first = self.span.map_or(*now, |span| span.0);
        self.span = Some((first, *now));
        self.note_gap(*now, inputs);
        for (model, signals) in &inputs.demand {
            if !signals.is_empty() && !self.signaled.contains(model) {
                self.signaled.insert(model.clone());
            }
        }
        for spec in inputs.fleet.variants() {
            let known =
                self.variants.entry(spec.key.clone()).or_insert_with(|| RecordedVariant::new(spec));
            known.spec = spec.clone();
        }

        // Also variants that have left the fleet: their data until now counts.
        for known in self.variants.values_mut() {
            known.take(*now, inputs);
        }
        for scrape in &inputs.scrapes {
            if let Ok(reading) = &scrape.outcome {
                self.page(first, &scrape.replica, scrape.at, reading);
            }
        }
    }

    /// Leaves the time before an instant out of the load. What was learned of engines stays.
    pub(crate) fn begin_at(&mut self, from: Timestamp) {
        let Some((first, last)) = self.span else { return };
        let skipped = whole_intervals(from.duration_since(first).as_secs_f64());
        let shift = SignedDuration::from_secs_f64(skipped as f64 * INTERVAL);
        let begin = first.saturating_add(shift).unwrap_or(last).min(last);
        for load in self.models.values_mut() {
            load.intervals.drain(..skipped.min(load.intervals.len()));
        }

        self.gaps.retain(|(_, until)| *until > begin);
        self.span = Some((begin, last));
    }

    /// The gap from the last successful scrape to the last tick, if there is one. Its requests are
    /// unknown, because no later counter has them.
    pub(crate) fn last_gap(&self) -> Option<(Timestamp, Timestamp)> {
        let (first, last) = self.span?;
        let from = self.heard?.max(first);
        (last.duration_since(from) > GAP).then_some((from, last))
    }

    fn note_gap(&mut self, now: Timestamp, inputs: &Inputs) {
        if !inputs.scrapes.iter().any(|scrape| scrape.outcome.is_ok()) {
            return;
        }

        if let Some(heard) = self.heard.replace(now)
            && now.duration_since(heard) > GAP
        {
            self.gaps.push((heard, now));
        }
    }

    fn page(&mut self, first: Timestamp, replica: &ReplicaKey, at: Timestamp, reading: &Reading) {
        let Some(crew) = self.variants.get_mut(&replica.variant) else { return };
        let load = self.models.entry(crew.spec.model_key()).or_default();
        let meter = self.meters.entry(replica.clone()).or_default();
        let role = crew.spec.role;
        if let Some((prompts, answers)) = &meter.lengths(reading) {
            if begins(role) {
                load.prompts = total(&load.prompts, prompts);
            }
            if ends(role) {
                load.answers = total(&load.answers, answers);
            }
        }

        let Some(stride) = meter.odometer.take(at, reading) else { return };
        load.spread(first, role, &stride);
        let running = stride.running.map_or(0.0, plimsoll_core::units::Requests::requests);
        crew.running = crew.running.max(running);
        crew.kv = stride.kv_capacity.map(plimsoll_core::units::Tokens::tokens).or(crew.kv);
        if let Some(lesson) = meter.lessons.take(&stride) {
            crew.pace.learn(&lesson, &Learning::default());
        }
    }
}

/// The number of whole intervals in some seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and takes NaN and negatives to zero, as it should"
)]
fn whole_intervals(seconds: f64) -> usize {
    (seconds / INTERVAL) as usize
}

// === impl RecordedLoad ===

impl RecordedLoad {
    /// Spreads the counts of a replica's stride evenly over its time, according to the replica's
    /// role.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of an interval, of times after the first tick"
    )]
    fn spread(&mut self, first: Timestamp, role: Role, stride: &IntervalDelta) {
        let arrived = stride.arrived.map_or(0.0, plimsoll_core::units::Requests::requests);
        match role {
            Role::Both => {}
            Role::Prefill => self.halves[0] += arrived,
            Role::Decode => self.halves[1] += arrived,
        }

        let end = stride.at.duration_since(first).as_secs_f64().max(0.0);
        let begin = (end - stride.elapsed.seconds()).max(0.0);
        let from = (begin / INTERVAL) as usize;
        let to = (end / INTERVAL) as usize;
        if self.intervals.len() <= to {
            self.intervals.resize(to + 1, Interval::default());
        }
        for at in from..=to {
            let low = begin.max(at as f64 * INTERVAL);
            let high = end.min((at + 1) as f64 * INTERVAL);
            let share = if end > begin { ((high - low) / (end - begin)).max(0.0) } else { 0.0 };
            let interval = &mut self.intervals[at];
            if begins(role) {
                interval.arrived += arrived * share;
            }

            let Some((prompt, output, requests)) = stride.lengths else { continue };
            let finished = requests.requests();
            if begins(role) {
                interval.prompts[0] += prompt.tokens() * share;
                interval.prompts[1] += finished * share;
            }
            if ends(role) {
                interval.answers[0] += output.tokens() * share;
                interval.answers[1] += finished * share;
            }
        }
    }

    /// The number of arrived requests.
    pub(crate) fn arrived(&self) -> f64 {
        self.intervals.iter().map(|interval| interval.arrived.max(0.0)).sum()
    }
}

// === impl RecordedVariant ===

impl RecordedVariant {
    fn new(spec: &VariantSpec) -> Self {
        Self {
            spec: spec.clone(),
            bounds: spec.bounds,
            counts: Vec::new(),
            sequences: None,
            step_tokens: None,
            template: None,
            replica_seconds: 0.0,
            at_max: 0.0,
            changes: 0,
            flips: 0,
            kv: None,
            running: 0.0,
            starts: BTreeMap::new(),
            earlier_starts: BTreeMap::new(),
            watched: BTreeSet::new(),
            pace: PaceFilter::default(),
            asked: None,
            seen: None,
        }
    }

    fn take(&mut self, now: Timestamp, inputs: &Inputs) {
        let listing = inputs.listings.get(&self.spec.key);
        let count = listing.and_then(|listing| match &listing.scale {
            Scale::Known(state) => {
                self.bounds = state.bounds.unwrap_or(self.spec.bounds);
                self.turn(state.wanted);
                Some(state.current.count())
            }
            Scale::Targets => {
                self.bounds = self.spec.bounds;
                let count = u32::try_from(listing.replicas.len()).ok()?;
                self.turn(Replicas::saturating(count));
                Some(count)
            }
            Scale::Unknown(WhyScaleUnknown::NoSuchTarget) => None,
            // An unknown count does not mean that the replicas are gone.
            Scale::Unknown(
                WhyScaleUnknown::NotListed
                | WhyScaleUnknown::Forbidden
                | WhyScaleUnknown::DuplicateOwners(_),
            ) => self.seen.map(|(_, count)| count),
        });

        self.pass(now);
        // Each tick ends the span before it, so that no time counts twice.
        self.seen = count.map(|count| (now, count));
        if self.counts.last().is_none_or(|(_, before)| *before != count) {
            self.counts.push((now, count));
        }

        self.note_arguments(inputs);
        for (replica, start) in inputs.starts.iter().filter(|(it, _)| it.variant == self.spec.key) {
            let Some(ready) = start.ready else {
                let age = now.duration_since(start.created).as_secs_f64();
                if age <= EARLIER_MAX.seconds() {
                    self.watched.insert(replica.clone());
                }
                continue;
            };

            // A start that takes no time was not observed. Of a replica that was ready before the
            // trace, a long one includes a time in which it was unready again. The first is kept.
            let took = ready.duration_since(start.created).as_secs_f64();
            if took > 0.0 && self.watched.contains(replica) {
                self.starts.entry(replica.clone()).or_insert(took);
            } else if took > 0.0 && took <= EARLIER_MAX.seconds() {
                self.earlier_starts.entry(replica.clone()).or_insert(took);
            }
        }
    }

    /// Reads the arguments of its engines, if their template is another one.
    fn note_arguments(&mut self, inputs: &Inputs) {
        let Some(template) = inputs.templates.get(&self.spec.key) else { return };
        if self.template.as_ref().is_some_and(|known| Arc::ptr_eq(known, template)) {
            return;
        }

        self.template = Some(Arc::clone(template));
        let arguments = engine_args::read(&template.containers).ok();
        let sequences = arguments.as_ref().and_then(|it| it.sequences);
        self.sequences = sequences.map(plimsoll_core::units::Requests::requests);
        let step_tokens = arguments.and_then(|it| it.step_tokens);
        self.step_tokens = step_tokens.map(plimsoll_core::units::Tokens::tokens);
    }

    /// The existing replicas at an instant, or the first known count after it.
    pub(crate) fn existing(&self, at: Timestamp) -> Option<Replicas> {
        let after = self.counts.partition_point(|(since, _)| *since <= at);
        let known = |counts: &(Timestamp, Option<u32>)| counts.1;
        let before = self.counts[..after].iter().rev().find_map(known);
        let existing = before.or_else(|| self.counts[after..].iter().find_map(known));
        existing.map(Replicas::saturating)
    }

    /// The replica-hours from one instant to another, without the time in which the count of
    /// replicas was unknown.
    pub(crate) fn hours_between(&self, from: Timestamp, to: Timestamp) -> f64 {
        let ends = self.counts.iter().skip(1).map(|(at, _)| *at).chain([to]);
        let spans = self.counts.iter().zip(ends).map(|((since, count), end)| {
            let low = from.max(*since);
            let seconds = to.min(end).duration_since(low).as_secs_f64().max(0.0);
            count.map_or(0.0, f64::from) * seconds
        });
        spans.sum::<f64>() / 3600.0
    }

    /// Counts the time since the previous tick, if its replica count was known.
    fn pass(&mut self, now: Timestamp) {
        let Some((before, count)) = self.seen else { return };
        let passed = now.duration_since(before).as_secs_f64().max(0.0);
        self.replica_seconds += passed * f64::from(count);
        if self.bounds.max().is_some_and(|max| count >= max.count()) {
            self.at_max += passed;
        }
    }

    /// Counts a change of the desired replicas.
    fn turn(&mut self, asked: Replicas) {
        let Some((before, direction)) = self.asked else {
            self.asked = Some((asked, None));
            return;
        };
        if asked != before {
            let up = asked > before;
            self.changes += 1;
            self.flips += u32::from(direction.is_some_and(|was_up| was_up != up));
            self.asked = Some((asked, Some(up)));
        }
    }

    /// The duration of its engines' iterations; `None` without enough data.
    pub(crate) fn iteration(&self) -> Option<IterationCost> {
        self.pace.iteration()
    }
}

// === impl Meter ===

impl Meter {
    /// The lengths of the requests that have finished since the previous scrape.
    fn lengths(&mut self, reading: &Reading) -> Option<(Histogram, Histogram)> {
        let ranks = &reading.ranks;
        let prompts = sum(ranks.iter().filter_map(|rank| rank.prompt_length.as_ref()))?;
        let answers = sum(ranks.iter().filter_map(|rank| rank.generation_length.as_ref()))?;

        let before = self.lengths.replace((reading.started, prompts.clone(), answers.clone()));
        let (started, known_prompts, known_answers) = before?;
        let life = ProcessLife::between(started, reading.started);
        Some((prompts.since(&known_prompts, life), answers.since(&known_answers, life)))
    }
}

/// The sum of the histograms of an engine's ranks; `None` if no rank has one.
fn sum<'h>(histograms: impl Iterator<Item = &'h Histogram>) -> Option<Histogram> {
    histograms.cloned().reduce(|all, one| all.plus(&one))
}

/// Returns true if replicas with this role compute prompts.
const fn begins(role: Role) -> bool {
    matches!(role, Role::Both | Role::Prefill)
}

/// Returns true if replicas with this role generate answers.
const fn ends(role: Role) -> bool {
    matches!(role, Role::Both | Role::Decode)
}

/// The sum of both; a histogram without buckets takes the other's.
fn total(known: &Histogram, more: &Histogram) -> Histogram {
    if known.buckets.is_empty() { more.clone() } else { known.plus(more) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use plimsoll_core::fleet::{Fleet, ReplicaName};
    use plimsoll_core::observe::engine::Engine;
    use plimsoll_core::observe::template::Container;
    use plimsoll_core::observe::{HttpReading, ReplicaListing, ReplicaStart, Scrape, ScrapeRoute};

    /// A variant with at most two replicas.
    fn spec() -> VariantSpec {
        fixtures::variant("a")
    }

    fn replica(name: &str) -> ReplicaKey {
        let replica = ReplicaName::new(name).unwrap();
        ReplicaKey { variant: spec().key, replica, incarnation: None }
    }

    /// A tick of a fleet of one variant with two replicas.
    fn tick(second: i64, spec: VariantSpec, scale: Option<Scale>) -> TraceTick {
        let now = Timestamp::from_second(second).unwrap();
        let listed = scale.map(|scale| ReplicaListing {
            replicas: vec![replica("one"), replica("two")],
            unready: Vec::new(),
            scale,
            way: ScrapeRoute::Relayed,
            as_of: now,
        });

        let listings = listed.map(|listing| (spec.key.clone(), listing)).into_iter().collect();
        let fleet = Arc::new(Fleet::new([spec]));
        let inputs = Inputs { fleet, listings, ..Inputs::default() };
        TraceTick { now, inputs, follows: None, said: BTreeMap::new() }
    }

    /// A successful scrape of an engine without values.
    fn scrape(second: i64) -> Scrape {
        let reading = Reading {
            engine: Engine::Vllm,
            samples: 0,
            started: None,
            models: Vec::new(),
            http: HttpReading::default(),
            rejected: None,
            lora: None,
            ranks: Vec::new(),
        };

        let at = Timestamp::from_second(second).unwrap();
        Scrape { replica: replica("one"), at, outcome: Ok(reading) }
    }

    /// Ticks of an hour, `step` apart, of a variant with this listing.
    fn hour(step: usize, listing: impl Fn(i64) -> Option<Scale>) -> RecordedVariant {
        let mut gathered = TraceDemand::default();
        for second in (0..=3600).step_by(step) {
            gathered.take(&tick(second, spec(), listing(second)));
        }

        gathered.variants.remove(&spec().key).unwrap()
    }

    #[test]
    fn ticks_without_a_scrape_at_the_end_are_a_gap() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut gathered = TraceDemand::default();
        for second in (0..=600).step_by(15) {
            let mut taken = tick(second, spec(), Some(Scale::Targets));
            if second <= 300 {
                taken.inputs.scrapes = vec![scrape(second)];
            }
            gathered.take(&taken);
            assert_eq!(gathered.last_gap().is_some(), second > 360, "at {second}");
        }

        assert_eq!((gathered.last_gap(), gathered.gaps.len()), (Some((at(300), at(600))), 0));
        gathered.begin_at(at(500));
        assert_eq!(gathered.last_gap(), Some((at(500), at(600))));
    }

    #[test]
    fn the_bounds_of_listed_targets_are_those_of_the_last_configuration() {
        let mut gathered = TraceDemand::default();
        for (second, max) in [(0, 2), (60, 20)] {
            let bounds = Bounds::new(Replicas::ONE, Replicas::new(max)).unwrap();
            let spec = VariantSpec { bounds, ..spec() };
            gathered.take(&tick(second, spec, Some(Scale::Targets)));
        }

        assert_eq!(gathered.variants[&spec().key].bounds.max(), Replicas::new(20));
    }

    #[test]
    fn the_arguments_of_the_last_template_set_seats_and_tokens_per_iteration() {
        let mut variant = RecordedVariant::new(&spec());
        let mut known = |arguments: &[&str]| {
            let container = Container {
                image: "vllm/vllm-openai".to_owned(),
                command: vec!["vllm".to_owned(), "serve".to_owned()],
                args: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                ..Container::default()
            };
            let template =
                Arc::new(PodTemplate { containers: vec![container], ..PodTemplate::default() });
            let templates = [(spec().key, template)].into();
            variant.note_arguments(&Inputs { templates, ..Inputs::default() });
            (variant.sequences, variant.step_tokens)
        };

        let both = ["--max-num-seqs=64", "--max-num-batched-tokens=4096"];
        assert_eq!(known(&both), (Some(64.0), Some(4096.0)));
        assert_eq!(known(&both[..1]), (Some(64.0), None));
    }

    /// Takes a tick at which a replica that was created at 0 has been ready since an instant.
    fn take_start(variant: &mut RecordedVariant, name: &str, now: i64, ready: Option<i64>) {
        let at = |second| Timestamp::from_second(second).unwrap();
        let start = ReplicaStart { created: at(0), ready: ready.map(at), unschedulable: None };
        let starts = [(replica(name), start)].into();
        variant.take(at(now), &Inputs { starts, ..Inputs::default() });
    }

    #[test]
    fn a_replica_that_is_ready_again_keeps_the_time_of_its_start() {
        let mut variant = RecordedVariant::new(&spec());
        for (now, ready) in [(100, None), (120, Some(110)), (900, None), (930, Some(920))] {
            take_start(&mut variant, "one", now, ready);
        }
        take_start(&mut variant, "one", 2330, Some(2320));
        // Replicas that were ready before they were first seen, one of them unready in between.
        take_start(&mut variant, "two", 2330, Some(2320));
        take_start(&mut variant, "three", 2330, Some(140));
        // However long a start takes, it counts if it was watched.
        take_start(&mut variant, "four", 60, None);
        take_start(&mut variant, "four", 2410, Some(2400));

        let watched = BTreeMap::from([(replica("one"), 110.0), (replica("four"), 2400.0)]);
        assert_eq!(variant.starts, watched);
        assert_eq!(variant.earlier_starts, BTreeMap::from([(replica("three"), 140.0)]));
    }

    #[test]
    fn time_in_which_no_replica_was_listed_counts_for_none_whatever_the_step() {
        for step in [15, 30, 60] {
            let crew =
                hour(step, |second| (!(1200..2400).contains(&second)).then_some(Scale::Targets));
            assert_eq!((crew.replica_seconds, crew.at_max), (4800.0, 2400.0), "step {step}");
        }
    }

    #[test]
    fn replicas_that_were_uncounted_for_a_time_are_those_of_before() {
        for step in [15, 30, 60] {
            let crew = hour(step, |second| {
                let unknown = Scale::Unknown(WhyScaleUnknown::Forbidden);
                Some(if (1200..2400).contains(&second) { unknown } else { Scale::Targets })
            });
            assert_eq!((crew.replica_seconds, crew.at_max), (7200.0, 3600.0), "step {step}");
        }
    }
}
