//! What is learned of what a server carries, held against what it carried.
//!
//! *Within a phase*, nothing is extrapolated: the requests that the pages show as running, over the
//! iteration that a lesson says, are so many tokens a second, and the pages count how many there were.
//! *Across phases*, what light and medium load teach is held against the saturated server. The machines
//! without an accelerator did other work meanwhile, and took up to 40 % longer for the same in one phase
//! than in another. *Late requests*: with the latency that one request in a hundred of a phase exceeded
//! as the objective, the rate that a server carries should be that of the phase.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use plimsoll::analyze::foresight::estimate::CapacityEstimate;
use plimsoll::analyze::foresight::gateway::GatewaySignals;
use plimsoll::analyze::foresight::lesson::{IterationSample, IterationSampler};
use plimsoll::analyze::foresight::{
    EngineLimits, Foresight, ForesightPolicy, ReplicaStrides, VariantStrides, analyze,
};
use plimsoll::fleet::{ReplicaKey, ReplicaName, VariantSpec};
use plimsoll::observe::stride::{IntervalDelta, Odometer};
use plimsoll::units::{Fraction, Gpus, Replicas, Requests, Seconds, Tokens};

use crate::pipeline::spec;
use crate::recordings::recording::{
    Page, Phase, Recording, Server, Told, instant, looked_at, recordings,
};
use crate::recordings::show;

/// How far the tokens that a lesson implies may be off within a phase, as a share, beyond what chance
/// makes of the pages' numbers of running requests.
const WITHIN: f64 = 0.05;

/// How many standard errors of that chance are allowed.
const ERRORS: f64 = 2.0;

/// Running requests below which the few pages of a phase say little of how many there were.
const RUNNING_MIN: f64 = 2.0;

/// How far what light and medium load say of a full server may be off.
const ACROSS: RangeInclusive<f64> = 0.65..=1.5;

/// How many times as much as it did a full server may be believed to carry: the tolerance of its
/// correction, and noise. It is believed to carry less where few places need room for one in a hundred.
const FULL_MAX: f64 = 1.25;

/// The share of the tokens that an iteration may have from which on prompts wait for their turn in the
/// batch, as nobody knows how many.
const BUDGET_ROOM: f64 = 0.8;

/// Tokens that an iteration may have, without a record of what the server was told.
const USUAL_BUDGET: f64 = 2048.0;

/// How many times as long as at medium load an iteration of a full server takes at least. One that did
/// not ran on a machine that did something else meanwhile, and says nothing of the other phase.
const LONGER: f64 = 1.1;

/// How many times as long as the shortest mean iteration of a phase its longest may be. The load of a
/// phase stays, so where it is more, the machine was disturbed.
const STEADY: f64 = 2.0;

/// How far the rate may be off at which one request in a hundred is late. Objectives of 0.1 s to a
/// first token are tight here, because the formula lacks the time of the HTTP server. With
/// speculation it lacks that some answers are guessed better than others.
const LATE: RangeInclusive<f64> = 0.75..=1.55;

/// Requests of a phase below which the latency that one in a hundred exceeds is chance.
const TIMED_MIN: usize = 200;

/// Tokens of a mean answer below which hardly any request is seen to run.
const SHORT: f64 = 5.0;

/// Sums over strides.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    strides: f64,
    elapsed: f64,
    computed: f64,
    generated: f64,
    begun: f64,
    outputs: f64,
    finished: f64,
    answers: f64,
    /// Requests that ran, and their squares.
    running: f64,
    squares: f64,
}

/// Bounds of a server in addition to those of its arguments.
#[derive(Clone, Copy, Debug)]
struct Objectives {
    itl: f64,
    ttft: f64,
}

/// A lesson, and what was counted meanwhile.
#[derive(Clone, Copy, Debug)]
struct Taught {
    lesson: IterationSample,
    counted: Counted,
}

impl Counted {
    fn of(strides: &[IntervalDelta]) -> Self {
        let mut sums = Self::default();
        for stride in strides {
            let running = stride.running.map_or(0.0, Requests::requests);
            let (_, outputs) = stride.intervals.unwrap();
            let (_, answers, finished) = stride.lengths.unwrap();
            sums.strides += 1.0;
            sums.elapsed += stride.elapsed.seconds();
            sums.computed += stride.computed.unwrap().tokens();
            sums.generated += stride.generated.unwrap().tokens();
            sums.begun += stride.begun.unwrap().requests();
            sums.outputs += outputs.requests();
            sums.finished += finished.requests();
            sums.answers += answers.tokens();
            sums.running += running;
            sums.squares += running * running;
        }
        sums
    }

    fn is_of_short_answers(&self) -> bool {
        self.generated < SHORT * self.begun
    }

    /// The mean of the requests that ran, and one standard error of it as a share.
    fn running(&self) -> (f64, f64) {
        let mean = self.running / self.strides;
        let variance = (self.squares / self.strides - mean * mean).max(0.0);
        (mean, (variance / self.strides).sqrt() / mean)
    }
}

impl Objectives {
    /// Nothing binds but the limits of the server.
    const NONE: Self = Self { itl: 60.0, ttft: 100.0 };
}

impl Taught {
    /// Tokens that the running requests were given by iterations as the lesson says they were, each of
    /// so many tokens at most.
    fn implied(&self, budget: f64) -> f64 {
        let Self { lesson: IterationSample { seconds, .. }, counted } = self;
        let (running, _) = counted.running();

        // Some of those that run do not generate yet: a prompt takes an iteration or more.
        let prompt = (counted.computed / counted.begun.max(1.0) / budget).ceil();
        let computing = counted.begun / counted.elapsed * seconds * prompt;
        let pieces = (counted.generated - counted.begun) / counted.outputs;
        (running - computing) * pieces / seconds * counted.elapsed + counted.begun
    }
}

/// The work of a server between the pages of a phase.
pub(crate) fn strides(server: &Server, phase: &Phase) -> Vec<IntervalDelta> {
    let mut odometer = Odometer::default();
    let within = |page: &&Page| phase.start <= page.asked && page.asked < phase.end;
    let pages = server.pages.iter().filter(within);
    let all =
        pages.filter_map(|page| odometer.take(instant(page.asked), page.outcome.as_ref().ok()?));
    // A page of vLLM says nothing of what has not happened yet.
    all.filter(|it| it.intervals.is_some() && it.batched.is_some() && it.begun.is_some()).collect()
}

/// The work of a server in its phases of light and medium load, and while it was saturated.
fn phases(recording: &Recording, server: &Server) -> [Vec<IntervalDelta>; 3] {
    ["light", "mid", "sat"]
        .map(|name| recording.phase(name).map(|phase| strides(server, phase)).unwrap_or_default())
}

/// The lessons of a phase. It has few of a lesson's length, so a new one begins with each page.
fn taught(strides: &[IntervalDelta]) -> Vec<Taught> {
    let from = |at: usize| {
        let mut lessons = IterationSampler::default();
        let mut found = strides[at..].iter().map(|stride| lessons.take(stride)).enumerate();
        let (last, lesson) = found.find_map(|(last, lesson)| Some((last, lesson?)))?;
        Some(Taught { lesson, counted: Counted::of(&strides[at..=at + last]) })
    };
    (0..strides.len()).filter_map(from).collect()
}

/// The mean over lessons.
fn mean(taught: &[Taught], of: fn(&IterationSample) -> f64) -> f64 {
    taught.iter().map(|it| of(&it.lesson)).sum::<f64>() / taught.len() as f64
}

/// Whether the machine did the same for the server at medium load, and when it was full.
fn is_steady(medium: &[Taught], full: &[Taught]) -> bool {
    let seconds = |it: &Taught| it.lesson.seconds;
    let longest = medium.iter().map(seconds).fold(0.0, f64::max);
    let shortest = medium.iter().map(seconds).fold(f64::INFINITY, f64::min);
    longest <= STEADY * shortest
        && mean(full, |it| it.seconds) >= LONGER * mean(medium, |it| it.seconds)
}

#[test]
fn what_a_lesson_says_within_a_phase_is_as_many_tokens_as_there_were() {
    let mut report = String::from("\nimplied tokens over those counted, within a phase\n");
    let mut cases = 0;
    for recording in recordings() {
        let budget = recording.told.map_or(USUAL_BUDGET, |told| told.budget);
        for (server, phase) in loaded(recording) {
            let strides = strides(server, phase);
            let counted = Counted::of(&strides);
            let taught = taught(&strides);
            if taught.is_empty() || counted.is_of_short_answers() {
                continue;
            }

            let place = format!("{:14} {:10} {:6}", recording.name, server.name, phase.name);
            let implied: f64 = taught.iter().map(|it| it.implied(budget)).sum();
            let ratio = implied / taught.iter().map(|it| it.counted.generated).sum::<f64>();
            let (running, error) = counted.running();
            let milliseconds = 1e3 * mean(&taught, |it| it.seconds);
            writeln!(report, "{place} {ratio:5.2} +-{error:4.2} {running:5.1} {milliseconds:6.1}")
                .unwrap();

            let tokens = mean(&taught, |it| it.tokens);
            if running >= RUNNING_MIN && tokens < BUDGET_ROOM * budget {
                let allowed = WITHIN + ERRORS * error;
                assert!((ratio - 1.0).abs() <= allowed, "{place}: {ratio}, +-{allowed}\n{report}");
                cases += 1;
            }
        }
    }
    show(&report);
    looked_at(cases, "a phase with enough load");
}

#[test]
fn what_light_and_medium_load_say_of_a_full_server_is_near_what_it_carried_or_unknown() {
    let mut report = String::from("\nbelieved over true answers a second, across phases\n");
    let mut cases = 0;
    for recording in recordings() {
        for server in &recording.servers {
            let [light, mid, full] = phases(recording, server);
            let Some(truth) = carried(&full) else { continue };
            let before: Vec<IntervalDelta> = light.into_iter().chain(mid.iter().copied()).collect();

            let place = format!("{:14} {:10} {truth:6.2}", recording.name, server.name);
            let Some(CapacityEstimate { rate, interval, bound, .. }) =
                believed(limits(recording.told, &full), Objectives::NONE, &before)
            else {
                writeln!(report, "{place} unknown").unwrap();
                continue;
            };
            let ratio = rate.requests_per_second() / truth;
            let [low, high] = interval
                .map(|it| [it.low, it.high].map(|end| end.requests_per_second() / truth))
                .unwrap_or_default();
            let is_steady = is_steady(&taught(&mid), &taught(&full));
            let noise = if is_steady { "" } else { ", on a machine that was slower for a time" };
            writeln!(report, "{place} {ratio:5.2}, {low:.2} to {high:.2}, by {bound}{noise}")
                .unwrap();
            if is_steady && recording.told.is_some() {
                assert!(ACROSS.contains(&ratio), "{place}: {ratio}\n{report}");
                cases += 1;
            }
        }
    }
    show(&report);
    looked_at(cases, "a saturated phase and a file that says what its server was told");
}

#[test]
fn a_full_server_is_not_believed_to_carry_more_than_it_did() {
    let mut report = String::from("\nbelieved over true answers a second, from all phases\n");
    let mut cases = 0;
    for recording in recordings() {
        for server in &recording.servers {
            let [light, mid, full] = phases(recording, server);
            let Some(truth) = carried(&full) else { continue };
            let limits = limits(recording.told, &full);
            let all: Vec<IntervalDelta> = light.into_iter().chain(mid).chain(full).collect();

            let place = format!("{:14} {:10} {truth:6.2}", recording.name, server.name);
            let Some(CapacityEstimate { rate, bound, .. }) =
                believed(limits, Objectives::NONE, &all)
            else {
                writeln!(report, "{place} unknown").unwrap();
                continue;
            };
            let ratio = rate.requests_per_second() / truth;
            writeln!(report, "{place} {ratio:5.2}, by {bound}").unwrap();
            assert!(ratio <= FULL_MAX, "{place}: {ratio}\n{report}");
            cases += 1;
        }
    }
    show(&report);
    looked_at(cases, "a saturated phase");
}

#[test]
fn one_request_in_a_hundred_is_late_at_the_rate_at_which_it_was() {
    let mut report = String::from("\nbelieved over true requests a second, with late requests\n");
    let mut cases = 0;
    for recording in recordings() {
        for server in &recording.servers {
            let [light, mid, full] = phases(recording, server);
            if recording.told.is_none() || !is_steady(&taught(&mid), &taught(&full)) {
                continue;
            }

            let told = limits(recording.told, &full);
            let before: Vec<IntervalDelta> = light.into_iter().chain(mid).collect();
            for phase in ["light", "mid"].into_iter().filter_map(|name| recording.phase(name)) {
                let Some(late) = LateOfPhase::of(recording, server, phase) else { continue };

                let none = Objectives::NONE;
                let tokens = Objectives { itl: late.slowest.itl, ..none };
                let firsts = Objectives { ttft: late.slowest.ttft, ..none };
                for (objectives, name, seconds) in
                    [(tokens, "between tokens", tokens.itl), (firsts, "to first", firsts.ttft)]
                {
                    let CapacityEstimate { rate, .. } =
                        believed(told, objectives, &before).unwrap();

                    let ratio = rate.requests_per_second() / late.rate;
                    let place = format!("{:14} {:6} {name:14}", recording.name, phase.name);
                    let milliseconds = 1e3 * seconds;

                    writeln!(report, "{place} {milliseconds:6.1} ms {:6.2} {ratio:5.2}", late.rate)
                        .unwrap();
                    assert!(LATE.contains(&ratio), "{place}: {ratio}\n{report}");
                    cases += 1;
                }
            }
        }
    }
    show(&report);
    looked_at(cases, "a steady phase with hundreds of streamed requests");
}

/// How late the latest requests of a phase were.
#[derive(Clone, Copy, Debug)]
struct LateOfPhase {
    /// Requests a second.
    rate: f64,
    /// The latencies that one request in a hundred exceeded.
    slowest: Objectives,
}

impl LateOfPhase {
    /// Of the requests that came and went within the phase; `None` where few were streamed.
    fn of(recording: &Recording, server: &Server, phase: &Phase) -> Option<Self> {
        let mut itl = Vec::new();
        let mut ttft = Vec::new();
        let mut count = 0.0;
        for request in recording.requests_to(server) {
            if request.sent < phase.start || request.sent >= phase.end {
                continue;
            }

            count += 1.0;
            let later = request.later_tokens();
            if let Some(first) = request.first.filter(|_| later > 0.0 && request.ended < phase.end)
            {
                itl.push(request.gaps.1 / later);
                ttft.push(first - request.sent);
            }
        }

        let slowest = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all[all.len() * 99 / 100]
        };
        (itl.len() >= TIMED_MIN).then(|| Self {
            rate: count / (phase.end - phase.start),
            slowest: Objectives { itl: slowest(itl), ttft: slowest(ttft) },
        })
    }
}

/// Servers and phases in which requests were sent.
pub(crate) fn loaded(recording: &Recording) -> impl Iterator<Item = (&Server, &Phase)> {
    let named = ["light", "mid", "sat"].into_iter().filter_map(|name| recording.phase(name));
    named.flat_map(|phase| recording.servers.iter().map(move |server| (server, phase)))
}

/// Answers a second while requests waited for room: what the server carried.
fn carried(strides: &[IntervalDelta]) -> Option<f64> {
    let waits = |it: &&IntervalDelta| it.waiting.is_some_and(|waiting| waiting.requests() >= 1.0);
    let full: Vec<IntervalDelta> = strides.iter().filter(waits).copied().collect();
    let counted = Counted::of(&full);
    let answer = counted.answers / counted.finished;
    (counted.finished > 0.0).then(|| counted.generated / answer / counted.elapsed)
}

/// What a server was told, or without a record of that as many places as it filled.
fn limits(told: Option<Told>, full: &[IntervalDelta]) -> EngineLimits {
    if let Some(told) = told {
        return EngineLimits { seats: Requests::new(told.seats), budget: Tokens::new(told.budget) };
    }
    let running = full.iter().filter_map(|stride| stride.running);
    let most = running.max_by(|a, b| a.requests().total_cmp(&b.requests()));
    let seats = most.filter(|_| !Counted::of(full).is_of_short_answers());
    EngineLimits { seats, budget: None }
}

/// What foresight believes that a server carries which was seen to do this.
fn believed(
    told: EngineLimits,
    objectives: Objectives,
    strides: &[IntervalDelta],
) -> Option<CapacityEstimate> {
    let spec: VariantSpec = spec("a", 1.0, (1, 9));
    let replica = ReplicaKey {
        variant: spec.key.clone(),
        replica: ReplicaName::new("r").unwrap(),
        incarnation: None,
    };
    // No share is left free.
    let policy = ForesightPolicy {
        itl: Seconds::new(objectives.itl),
        ttft: Seconds::new(objectives.ttft).unwrap(),
        limit_share: Fraction::ONE,
        ..ForesightPolicy::default()
    };
    let mut foresight = Foresight::default();
    let mut last = None;
    for stride in strides {
        let variant = VariantStrides {
            spec: &spec,
            gpus: Some(Gpus::ONE),
            current: Replicas::ONE,
            pending: Replicas::ZERO,
            leaving: Replicas::ZERO,
            silent: Replicas::ZERO,
            min: spec.bounds.min(),
            room: Replicas::LIMIT,
            unready: Vec::new(),
            startup: None,
            slowest_start: None,
            losses: 0.0,
            told,
            arguments: None,
            ttft: None,
            replicas: vec![ReplicaStrides {
                replica: &replica,
                strides: std::slice::from_ref(stride),
                waiting: stride.waiting,
                running: stride.running,
            }],
        };
        let unseen = GatewaySignals::UNSEEN;
        let model = spec.model_key();
        let now = stride.at;
        let analysis = analyze(now, now, unseen, &policy, &model, &[variant], &mut foresight);
        last = analysis.estimates.get(&spec.key).copied();
    }
    last
}
