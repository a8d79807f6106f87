//! What a trace says of its load and of its engines: how many requests arrived when, how long they
//! were, and what an iteration takes.
//!
//! All of it is differences of counters from page to page. What arrived between two pages is spread
//! evenly over the time between them. What an iteration takes is learned as
//! [`foresight`](plimsoll_core::analyze::foresight::pace) learns it.
//!
//! With the roles prefill and decode apart, each request is on the pages of two replicas. It counts
//! once: it arrived where its prompt was computed and was as long as the prompts there, and its
//! answer was as long as those of the replicas that decode.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use plimsoll_core::analyze::foresight::lesson::Lessons;
use plimsoll_core::analyze::foresight::pace::{Iteration, Pace};
use plimsoll_core::analyze::foresight::policy::Learning;
use plimsoll_core::fleet::{Bounds, ModelKey, ReplicaKey, Role, VariantKey, VariantSpec};
use plimsoll_core::observe::histogram::{Histogram, Life};
use plimsoll_core::observe::stride::{Odometer, Stride};
use plimsoll_core::observe::{Inputs, Reading, Scale, WhyUnknown};
use plimsoll_core::units::Replicas;
use plimsoll_daemon::trace::Tick;

/// Seconds of an interval in which arrivals are counted: below those in which load changes, and
/// some pages of every replica.
pub(crate) const INTERVAL: f64 = 10.0;

/// Seconds without a page of any replica from which a trace has a gap.
const GAP: SignedDuration = SignedDuration::from_secs(60);

/// Everything that has been gathered.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Each model's load.
    pub(crate) models: BTreeMap<ModelKey, Load>,
    /// Each variant's engines.
    pub(crate) variants: BTreeMap<VariantKey, Crew>,
    /// The first tick and the last.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// Times without any page.
    pub(crate) gaps: Vec<(Timestamp, Timestamp)>,
    heard: Option<Timestamp>,
    meters: BTreeMap<ReplicaKey, Meter>,
}

/// The load of one model.
#[derive(Default)]
pub(crate) struct Load {
    /// Of each interval since the first tick.
    pub(crate) intervals: Vec<Interval>,
    /// Lengths of all prompts.
    pub(crate) prompts: Histogram,
    /// Lengths of all answers.
    pub(crate) answers: Histogram,
    /// Requests that arrived at replicas that only compute prompts, and at those that only decode.
    pub(crate) halves: [f64; 2],
}

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    /// Requests that arrived where prompts are computed.
    pub(crate) arrived: f64,
    /// Of the requests that finished there, the tokens of their prompts, and their number.
    pub(crate) prompts: [f64; 2],
    /// Of those that finished where answers are made, the tokens of these, and their number.
    pub(crate) answers: [f64; 2],
}

/// The replicas of one variant, and their engines.
pub(crate) struct Crew {
    pub(crate) spec: VariantSpec,
    /// The bounds that held last.
    pub(crate) bounds: Bounds,
    /// What was first asked for.
    pub(crate) initial: Option<Replicas>,
    /// Seconds that replicas existed.
    pub(crate) replica_seconds: f64,
    /// Seconds at the largest number that was allowed.
    pub(crate) at_max: f64,
    /// Changes of the number that was asked for, and those that went the other way than the one
    /// before.
    pub(crate) changes: u32,
    pub(crate) flips: u32,
    /// Tokens in the KV cache of a replica.
    pub(crate) kv: Option<f64>,
    /// The most requests that ran at once in a replica.
    pub(crate) running: f64,
    /// What its iterations are at most.
    pub(crate) most: Most,
    /// Seconds from created to ready, of each start.
    pub(crate) starts: BTreeMap<ReplicaKey, f64>,
    pace: Pace,
    /// What is asked for, and whether that is more than before.
    asked: Option<(Replicas, Option<bool>)>,
    /// The tick before, and how many replicas there were; `None` where nobody could say.
    seen: Option<(Timestamp, u32)>,
}

/// The largest iteration, as far as buckets tell.
#[derive(Clone, Copy, Default)]
pub(crate) struct Most {
    /// Tokens that no iteration exceeded; without bound where one was beyond all buckets.
    iteration: f64,
}

/// What is known of a replica.
#[derive(Default)]
struct Meter {
    odometer: Odometer,
    lessons: Lessons,
    lengths: Option<(Option<Timestamp>, Histogram, Histogram)>,
}

// === impl Gathered ===

impl Gathered {
    /// Takes a tick.
    pub(crate) fn take(&mut self, tick: &Tick) {
        let Tick { now, inputs, .. } = tick;
        let first = self.span.map_or(*now, |(first, _)| first);
        self.span = Some((first, *now));
        self.note_gap(*now, inputs);
        for spec in inputs.fleet.variants() {
            let known = self.variants.entry(spec.key.clone()).or_insert_with(|| Crew::new(spec));
            known.spec = spec.clone();
        }
        // Those that have left the fleet too: what they had until now counts.
        for known in self.variants.values_mut() {
            known.take(*now, inputs);
        }
        for scrape in &inputs.scrapes {
            if let Ok(reading) = &scrape.outcome {
                self.page(first, &scrape.replica, scrape.at, reading);
            }
        }
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
        crew.most.take(reading);
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

// === impl Load ===

impl Load {
    /// Spreads what a stride of a replica with this role counted over its time.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of an interval, of times after the first tick"
    )]
    fn spread(&mut self, first: Timestamp, role: Role, stride: &Stride) {
        let arrived = stride.arrived.map_or(0.0, plimsoll_core::units::Requests::requests);
        match role {
            Role::Both => {}
            Role::Prefill => self.halves[0] += arrived,
            Role::Decode => self.halves[1] += arrived,
        }
        let end = stride.at.duration_since(first).as_secs_f64().max(0.0);
        let begin = (end - stride.elapsed.seconds()).max(0.0);
        let (from, to) = ((begin / INTERVAL) as usize, (end / INTERVAL) as usize);
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
            let add = |sums: &mut [f64; 2], tokens: f64| {
                sums[0] += tokens * share;
                sums[1] += requests.requests() * share;
            };
            if begins(role) {
                add(&mut interval.prompts, prompt.tokens());
            }
            if ends(role) {
                add(&mut interval.answers, output.tokens());
            }
        }
    }

    /// All requests that arrived.
    pub(crate) fn arrived(&self) -> f64 {
        self.intervals.iter().map(|interval| interval.arrived.max(0.0)).sum()
    }
}

// === impl Crew ===

impl Crew {
    fn new(spec: &VariantSpec) -> Self {
        Self {
            spec: spec.clone(),
            bounds: spec.bounds,
            initial: None,
            replica_seconds: 0.0,
            at_max: 0.0,
            changes: 0,
            flips: 0,
            kv: None,
            running: 0.0,
            most: Most::default(),
            starts: BTreeMap::new(),
            pace: Pace::default(),
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
                let count = u32::try_from(listing.replicas.len()).ok()?;
                self.turn(Replicas::saturating(count));
                Some(count)
            }
            Scale::Unknown(WhyUnknown::NoSuchTarget) => None,
            // Replicas do not go because nobody can say how many there are.
            Scale::Unknown(
                WhyUnknown::NotListed | WhyUnknown::Forbidden | WhyUnknown::DuplicateOwners(_),
            ) => self.seen.map(|(_, count)| count),
        });
        self.pass(now);
        // Every tick ends the time before it, so that no time is counted twice.
        self.seen = count.map(|count| (now, count));
        if let Some(count) = count {
            self.initial.get_or_insert(Replicas::saturating(count));
        }
        for (replica, start) in inputs.starts.iter().filter(|(it, _)| it.variant == self.spec.key) {
            if let Some(ready) = start.ready {
                let took = ready.duration_since(start.created).as_secs_f64();
                self.starts.insert(replica.clone(), took.max(0.0));
            }
        }
    }

    /// Counts the time since the tick before, where there were replicas then that are known.
    fn pass(&mut self, now: Timestamp) {
        let Some((before, count)) = self.seen else { return };
        let passed = now.duration_since(before).as_secs_f64().max(0.0);
        self.replica_seconds += passed * f64::from(count);
        if self.bounds.max().is_some_and(|max| count >= max.count()) {
            self.at_max += passed;
        }
    }

    /// Notes what is asked for.
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

    /// What an iteration of its engines takes; `None` where too little was seen.
    pub(crate) fn iteration(&self) -> Option<Iteration> {
        self.pace.iteration()
    }
}

// === impl Most ===

impl Most {
    fn take(&mut self, reading: &Reading) {
        for rank in &reading.ranks {
            if let Some(edge) = rank.step_tokens.as_ref().and_then(largest) {
                self.iteration = self.iteration.max(edge);
            }
        }
    }

    /// Tokens that some iteration may have had. A prompt that is computed in pieces counts as a whole in
    /// the iteration that completes it, so how long pieces are does not show.
    pub(crate) fn iteration(self) -> Option<f64> {
        self.iteration.is_finite().then_some(self.iteration)
    }
}

/// The upper edge of the bucket that has the largest value; `None` without any.
fn largest(histogram: &Histogram) -> Option<f64> {
    let (_, all) = histogram.buckets.last().filter(|(_, all)| *all > 0.0)?;
    let at = histogram.buckets.iter().find(|(_, count)| count >= all)?;
    Some(at.0)
}

// === impl Meter ===

impl Meter {
    /// The lengths of the requests that have finished since the page before.
    fn lengths(&mut self, reading: &Reading) -> Option<(Histogram, Histogram)> {
        let sum = |of: fn(&plimsoll_core::observe::RankReading) -> Option<&Histogram>| {
            let all = reading.ranks.iter().filter_map(of).cloned();
            all.reduce(|all, one| all.plus(&one))
        };
        let prompts = sum(|rank| rank.prompt_length.as_ref())?;
        let answers = sum(|rank| rank.generation_length.as_ref())?;
        let before = self.lengths.replace((reading.started, prompts.clone(), answers.clone()));
        let (started, known_prompts, known_answers) = before?;
        let life = Life::between(started, reading.started);
        Some((prompts.since(&known_prompts, life), answers.since(&known_answers, life)))
    }
}

/// Whether requests arrive at replicas with this role, for their prompts to be computed.
const fn begins(role: Role) -> bool {
    matches!(role, Role::Both | Role::Prefill)
}

/// Whether replicas with this role make answers.
const fn ends(role: Role) -> bool {
    matches!(role, Role::Both | Role::Decode)
}

/// Both together; what has no buckets yet takes those of the other.
fn total(known: &Histogram, more: &Histogram) -> Histogram {
    if known.buckets.is_empty() { more.clone() } else { known.plus(more) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use plimsoll_core::fleet::{Fleet, ModelName, Namespace, ReplicaName, VariantName};
    use plimsoll_core::observe::{Listing, Way};
    use plimsoll_core::units::{CostPerHour, Fraction};

    /// Ticks of an hour, a step apart, of a variant of at most two replicas that has this listing.
    fn hour(step: usize, listing: impl Fn(i64) -> Option<Scale>) -> Crew {
        let two = Bounds::new(Replicas::ONE, Replicas::new(2)).unwrap();
        let spec = VariantSpec {
            key: VariantKey {
                namespace: Namespace::new("shop").unwrap(),
                variant: VariantName::new("a").unwrap(),
            },
            model: ModelName::new("m").unwrap(),
            accelerator: None,
            gpus: None,
            role: Role::Both,
            cost: CostPerHour::ZERO,
            list_price: None,
            mismatch: Fraction::ONE,
            start_time: None,
            bounds: two,
        };
        let replicas: Vec<ReplicaKey> = ["one", "two"]
            .map(|name| ReplicaKey {
                variant: spec.key.clone(),
                replica: ReplicaName::new(name).unwrap(),
                incarnation: None,
            })
            .into();
        let fleet = Arc::new(Fleet::new([spec.clone()]));
        let mut gathered = Gathered::default();
        for second in (0..=3600).step_by(step) {
            let now = Timestamp::from_second(second).unwrap();
            let listed = listing(second).map(|scale| Listing {
                replicas: replicas.clone(),
                unready: Vec::new(),
                scale,
                way: Way::Relayed,
                as_of: now,
            });
            let listings = listed.map(|listing| (spec.key.clone(), listing)).into_iter().collect();
            let inputs = Inputs { fleet: Arc::clone(&fleet), listings, ..Inputs::default() };
            let tick = Tick { now, inputs, follows: None, said: BTreeMap::new() };
            gathered.take(&tick);
        }
        gathered.variants.remove(&spec.key).unwrap()
    }

    #[test]
    fn time_in_which_no_replica_was_listed_counts_for_none_whatever_the_step() {
        for step in [15, 30, 60] {
            let gap = |second| (!(1200..2400).contains(&second)).then_some(Scale::Targets);
            let crew = hour(step, gap);
            assert_eq!((crew.replica_seconds, crew.at_max), (4800.0, 2400.0), "step {step}");
        }
    }

    #[test]
    fn replicas_that_nobody_could_count_for_a_time_are_those_of_before() {
        for step in [15, 30, 60] {
            let silent = |second| {
                let unknown = Scale::Unknown(WhyUnknown::Forbidden);
                Some(if (1200..2400).contains(&second) { unknown } else { Scale::Targets })
            };
            let crew = hour(step, silent);
            assert_eq!((crew.replica_seconds, crew.at_max), (7200.0, 3600.0), "step {step}");
        }
    }
}
