//! What simulated and recorded engines count: steps, tokens and intervals of the same requests.

use std::fmt::Write as _;

use plimsoll::observe::RankReading;
use plimsoll::observe::stride::IntervalDelta;
use plimsoll::simulate::Micros;
use plimsoll::simulate::random::{Purpose, generator};
use plimsoll::simulate::replica::settings::{Admission, Options, Settings, StepTime};
use plimsoll::simulate::replica::speculation::Speculation;
use plimsoll::simulate::replica::stats::Counters;
use plimsoll::simulate::replica::{Replica, Request as Simulated};
use plimsoll::units::Requests;

use crate::recordings::capacity::{loaded, strides};
use crate::recordings::recording::{Recording, Told, looked_at, recordings};
use crate::recordings::show;

/// How far simulated numbers may be off, as a share: of the steps in an interval while the batch is
/// full, and with several API servers at any load; of the tokens of a step while it is full; and of the
/// tokens that a request gets in a step.
const STEPS: f64 = 0.05;
const STEPS_OF_SERVERS: f64 = 0.1;
const TOKENS: f64 = 0.06;
const ACCEPTED: f64 = 0.08;

/// The share of requests that may seem to have left without an answer though none did.
const UNSERVED: f64 = 0.02;

/// What was counted up to a page.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    steps: f64,
    step_tokens: f64,
    generated: f64,
    firsts: f64,
    intervals: f64,
    /// Their sum in seconds.
    between: f64,
}

/// What was counted in a phase, as ratios that say nothing of its length.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Requests that decode, on average.
    running: f64,
    /// Counted steps in an interval between two tokens.
    steps: f64,
    /// Tokens of a counted step.
    tokens: f64,
    /// Tokens that a request gets in a step, after its first.
    accepted: f64,
}

impl Count {
    fn of_page(rank: &RankReading) -> Option<Self> {
        let itl = rank.itl.as_ref()?;
        let steps = rank.step_tokens.as_ref()?;
        Some(Self {
            steps: steps.count,
            step_tokens: steps.sum,
            generated: rank.generation_tokens?.tokens(),
            firsts: rank.ttft.as_ref()?.count,
            intervals: itl.count,
            between: itl.sum,
        })
    }

    fn of_simulated(counters: &Counters) -> Self {
        Self {
            steps: counters.iteration_tokens.count() as f64,
            step_tokens: counters.iteration_tokens.sum() as f64,
            generated: counters.generation_tokens as f64,
            firsts: counters.ttft.count() as f64,
            intervals: counters.itl.count() as f64,
            between: counters.itl.sum() as f64 / 1e6,
        }
    }

    fn shape_since(&self, before: &Self, elapsed: f64) -> Shape {
        let intervals = self.intervals - before.intervals;
        let between = self.between - before.between;
        let steps = self.steps - before.steps;
        let later = self.generated - before.generated - (self.firsts - before.firsts);
        Shape {
            running: between / elapsed,
            steps: steps * between / intervals / elapsed,
            tokens: (self.step_tokens - before.step_tokens) / steps,
            accepted: later / intervals,
        }
    }
}

/// An engine as one of the recorded ones was told to be, with steps that take about as long.
fn engine(told: Told, blocks: f64, step: StepTime, options: Options) -> Replica {
    let settings = Settings {
        step,
        max_num_seqs: whole(told.seats),
        max_num_batched_tokens: whole(told.budget),
        block_size: whole(told.block),
        // One is never given to a request.
        kv_blocks: whole(blocks) - 1,
        admission: Admission::WholePrompt,
    };
    Replica::new(settings).unwrap().with_options(options, generator(1, Purpose::Steps, 0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn whole(number: f64) -> u32 {
    number.round() as u32
}

/// A recording, and the engine that is simulated beside it.
struct Case {
    recording: &'static str,
    /// Milliseconds of a step, and beside it of each token of a prompt and of each request: what its
    /// README says, or under the noise of a recording what its intervals show.
    step: [f64; 3],
    options: Options,
}

fn cases() -> [Case; 9] {
    let plain = Options::default();
    let drafts = Some(Speculation::with_mean(3, 3.5));
    [
        Case {
            recording: "api-servers-2",
            step: [8.0, 0.1, 0.45],
            options: Options { api_servers: 2, ..plain },
        },
        Case {
            recording: "speculative",
            step: [80.0, 0.1, 8.0],
            options: Options { speculation: drafts, ..plain },
        },
        Case { recording: "long-prompts", step: [8.0, 0.25, 0.5], options: plain },
        Case { recording: "one-token", step: [8.0, 0.1, 0.45], options: plain },
        Case { recording: "three-tokens", step: [8.0, 0.1, 0.45], options: plain },
        Case { recording: "h100", step: [6.4, 0.023, 0.04], options: plain },
        Case { recording: "h100-long-prompts", step: [6.4, 0.023, 0.11], options: plain },
        Case {
            recording: "h100-api-servers-2",
            step: [6.4, 0.023, 0.04],
            options: Options { api_servers: 2, ..plain },
        },
        Case {
            recording: "h100-speculative",
            step: [9.2, 0.025, 0.1],
            options: Options { speculation: Some(Speculation::with_mean(3, 3.72)), ..plain },
        },
    ]
}

/// What a server and its simulation counted in a phase.
struct Compared {
    recording: &'static str,
    phase: String,
    recorded: Shape,
    simulated: Shape,
}

fn compare(case: &Case, recording: &Recording) -> Option<Vec<Compared>> {
    let [server] = recording.servers.as_slice() else { return None };
    let told = recording.told?;
    let pages: Vec<(f64, Count, f64)> = server
        .pages
        .iter()
        .filter_map(|page| {
            let rank = page.outcome.as_ref().ok()?.ranks.first()?;
            Some((page.asked, Count::of_page(rank)?, rank.kv_capacity?.tokens()))
        })
        .collect();
    let (start, _, kv_tokens) = *pages.first()?;
    let since = |time: f64| Micros::from_secs_f64(time - start);
    let [alpha, beta, delta] = case.step.map(|millis| millis * 1e3);
    let step = StepTime::dense(alpha, beta, delta, 0.0);
    let mut replica = engine(told, kv_tokens / told.block, step, case.options);
    for (id, request) in recording.requests.iter().enumerate() {
        let (prompt, output) = (whole(request.prompt_tokens), whole(request.wanted));
        let simulated = Simulated { id: id as u64, prompt, output };
        replica.submit(since(request.sent), simulated).unwrap();
    }

    let mut compared = Vec::new();
    for phase in ["light", "mid", "sat"] {
        let phase = recording.phase(phase)?;
        let mut within = pages.iter().filter(|(at, ..)| phase.start <= *at && *at < phase.end);
        let (from, before, _) = *within.next()?;
        let (to, after, _) = *within.next_back()?;
        replica.advance_to(since(from), &mut Vec::new());
        let then = Count::of_simulated(replica.counters());
        replica.advance_to(since(to), &mut Vec::new());
        let now = Count::of_simulated(replica.counters());
        compared.push(Compared {
            recording: case.recording,
            phase: phase.name.clone(),
            recorded: after.shape_since(&before, to - from),
            simulated: now.shape_since(&then, to - from),
        });
    }
    Some(compared)
}

impl Compared {
    /// Whether the two count alike. How many requests run at a time depends on what else the machine of
    /// a recording did, and with it how many tokens per step has; only a full batch does not.
    fn agrees(&self) -> bool {
        let Self { recording, phase, recorded, simulated } = self;
        let full = phase == "sat";
        if full && !is_near(simulated.tokens, recorded.tokens, TOKENS) {
            return false;
        }
        if recorded.accepted.is_nan() {
            return simulated.accepted.is_nan();
        }

        let steps = match (*recording, full) {
            ("api-servers-2" | "h100-api-servers-2", _) => STEPS_OF_SERVERS,
            (_, true) => STEPS,
            (_, false) => f64::INFINITY,
        };
        is_near(simulated.steps, recorded.steps, steps)
            && is_near(simulated.accepted, recorded.accepted, ACCEPTED)
    }
}

/// Whether a number is as the recorded one, give or take a share.
fn is_near(simulated: f64, recorded: f64, share: f64) -> bool {
    (simulated / recorded - 1.0).abs() <= share
}

#[test]
fn an_iteration_has_the_computed_tokens_of_prompts_and_those_that_are_generated() {
    let mut cases = 0;
    for recording in recordings() {
        for row in recording.servers.iter().filter_map(|server| server.rows.last()) {
            if !row.names().any(|name| name == "iter_sum") {
                continue;
            }
            let number = |name| row.number(name).unwrap_or_default();
            let tokens = number("prompt_local_compute") + number("generation_tokens");
            assert!((number("iter_sum") - tokens).abs() < 0.5, "{}", recording.name);
            cases += 1;
        }
    }
    looked_at(cases, "the tokens of its iterations");
}

#[test]
fn no_request_counts_as_unserved_while_every_client_waits_for_its_answer() {
    let mut report = String::from("\nunserved requests, of those that began\n");
    let mut cases = 0;
    for recording in recordings() {
        for (server, phase) in loaded(recording) {
            let strides = strides(server, phase);
            let sum = |of: fn(&IntervalDelta) -> Option<Requests>| -> f64 {
                strides.iter().filter_map(of).map(Requests::requests).sum()
            };

            let unserved = sum(|stride| stride.unserved);
            let begun = sum(|stride| stride.begun);
            let place = format!("{:14} {:10} {:6}", recording.name, server.name, phase.name);
            writeln!(report, "{place} {unserved:5.1} {begun:6.1}").unwrap();
            assert!(unserved <= UNSERVED * begun, "{place}: {unserved} of {begun}\n{report}");
            cases += 1;
        }
    }
    show(&report);
    looked_at(cases, "a phase without clients that hang up");
}

#[test]
fn a_simulated_engine_counts_steps_as_the_recorded_one() {
    let mut report = String::from(
        "\nrecorded, simulated:    running     steps in an interval  tokens of a step  tokens a request and step\n",
    );
    let mut wrong = Vec::new();
    let mut judged = 0;
    for case in cases() {
        let found = recordings().iter().find(|it| it.name == case.recording);
        let Some(compared) = found.and_then(|recording| compare(&case, recording)) else {
            continue;
        };
        for it in compared {
            judged += 1;
            let Compared { recording, phase, recorded, simulated } = &it;
            write!(report, "{recording:14} {phase:6}").unwrap();
            for (recorded, simulated) in [
                (recorded.running, simulated.running),
                (recorded.steps, simulated.steps),
                (recorded.tokens, simulated.tokens),
                (recorded.accepted, simulated.accepted),
            ] {
                write!(report, "  {recorded:7.2} {simulated:7.2}").unwrap();
            }
            report.push('\n');
            if !it.agrees() {
                wrong.push(format!("{recording} {phase}"));
            }
        }
    }
    show(&report);
    looked_at(judged, "a configuration that is simulated");
    assert!(wrong.is_empty(), "other steps are counted: {wrong:?}");
}

#[test]
fn iterations_count_more_tokens_than_they_may_compute() {
    let mut report = String::from("\nshare of iterations that count more tokens than the budget\n");
    let mut cases = 0;
    for recording in recordings() {
        let Some(told) = recording.told else { continue };
        for server in &recording.servers {
            let mut read = server.pages.iter().rev().filter_map(|page| page.outcome.as_ref().ok());
            let last = read.find_map(|reading| reading.ranks.first()?.step_tokens.as_ref());
            let Some(share) = last.and_then(|steps| steps.share_above(told.budget)) else {
                continue;
            };

            let place = format!("{:18} {:10}", recording.name, server.name);
            writeln!(report, "{place} {:6} {:7.3}%", told.budget, 100.0 * share).unwrap();
            // A prompt counts whole in the iteration that ends it, even if others computed most.
            cases += usize::from(share > 0.0);
        }
    }
    show(&report);
    looked_at(cases, "an iteration that counts more tokens than its budget");
}
