//! The simulated engine beside the recorded ones: what an iteration takes is learned from the pages,
//! the requests of the clients are given to the simulated engine, and what its clients would have
//! seen is compared with what they saw.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll::analyze::foresight::lesson::{IterationSample, IterationSampler};
use plimsoll::analyze::foresight::pace::{IterationCost, PaceFilter};
use plimsoll::analyze::foresight::policy::Learning;
use plimsoll::observe::stride::{IntervalDelta, Odometer};
use plimsoll::simulate::Micros;
use plimsoll::simulate::replica::settings::{Admission, Settings, StepTime};
use plimsoll::simulate::replica::{EngineEvent, Replica, Request as Simulated};
use plimsoll::units::{Fraction, Tokens};

use crate::recordings::recording::{
    End, Page, Phase, Recording, Request, Server, Told, instant, looked_at, recordings,
};
use crate::recordings::show;

/// How often a phase is gone through to learn from it, each time from other pages.
const ROUNDS: usize = 5;

/// Runs whose engines do what the simulated one does not: adapters of their own kind, several API
/// servers that each count an iteration, several tokens in one, iterations that are not counted because
/// they compute a piece of a prompt, and answers of so few tokens that nothing is learned of them.
const UNLIKE: [&str; 7] = [
    "d",
    "api-servers-2",
    "speculative",
    "long-prompts",
    "one-token",
    "three-tokens",
    "h100-speculative",
];

/// Requests of a phase below which a mean says little.
const REQUESTS_MIN: usize = 25;

/// How far the simulated mean may be off, as a share of the recorded one. The recorded engines ran on
/// processors that other work shared, so an iteration did not always take the same; and a queue is the
/// sum of what everybody before took too long or too short.
const BETWEEN_TOKENS: f64 = 0.25;
const IN_ALL: f64 = 0.3;
const TO_THE_FIRST: f64 = 0.4;

/// Time to the first token below which the way to the server and back is most of it, in seconds.
const QUEUED: f64 = 1.0;

/// Means of the streamed requests of a phase that were answered whole.
#[derive(Debug, Default)]
struct Means {
    requests: usize,
    ttft: f64,
    itl: f64,
    e2e: f64,
}

/// What one client saw or would have seen, in seconds.
#[derive(Clone, Copy, Debug)]
struct Answer {
    ttft: f64,
    itl: f64,
    e2e: f64,
}

impl Means {
    fn of(answers: &[Answer]) -> Self {
        let mean = |of: fn(&Answer) -> f64| {
            answers.iter().map(of).sum::<f64>() / answers.len().max(1) as f64
        };
        Self {
            requests: answers.len(),
            ttft: mean(|it| it.ttft),
            itl: mean(|it| it.itl),
            e2e: mean(|it| it.e2e),
        }
    }
}

/// What an iteration takes, by the pages of a server in a phase. Of a lesson's length, as the daemon
/// has it, a phase has too few, so a new one begins with each page.
fn learn(server: &Server, phase: &Phase) -> Option<IterationCost> {
    let mut odometer = Odometer::default();
    let within = |page: &&Page| phase.start <= page.asked && page.asked < phase.end;
    let strides: Vec<IntervalDelta> = server
        .pages
        .iter()
        .filter(within)
        .filter_map(|page| odometer.take(instant(page.asked), page.outcome.as_ref().ok()?))
        .collect();
    let lesson = |at: usize| {
        let mut lessons = IterationSampler::default();
        strides[at..].iter().find_map(|stride| lessons.take(stride))
    };
    let lessons: Vec<IterationSample> = (0..strides.len()).filter_map(lesson).collect();

    // Not in the order of time: a machine that changed meanwhile is not to be followed to its end.
    let mut pace = PaceFilter::default();
    for first in 0..ROUNDS {
        for lesson in lessons.iter().skip(first).step_by(ROUNDS) {
            pace.learn(lesson, &Learning::default());
        }
    }
    pace.iteration()
}

/// The engine that the pages of a server in a phase describe.
fn engine(told: Told, server: &Server, phase: &Phase) -> Option<Replica> {
    let IterationCost { alpha, beta, delta } = learn(server, phase)?;
    let readings = server.pages.iter().filter_map(|page| page.outcome.as_ref().ok());
    let rank = readings.last()?.ranks.first()?;
    let blocks = rank.kv_capacity?.tokens() / told.block;
    let settings = Settings {
        step: StepTime::dense(alpha * 1e6, beta * 1e6, delta * 1e6, 0.0),
        max_num_seqs: whole(told.seats),
        max_num_batched_tokens: whole(told.budget),
        block_size: whole(told.block),
        // One is never given to a request.
        kv_blocks: whole(blocks) - 1,
        admission: Admission::WholePrompt,
    };
    let hits = rank.prefix_hits.map(Tokens::tokens).zip(rank.prefix_queries.map(Tokens::tokens));
    let share = hits.and_then(|(hits, queries)| Fraction::new(hits / queries));
    Some(Replica::new(settings).unwrap().with_prefix_hits(share.unwrap_or_default()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn whole(number: f64) -> u32 {
    number.round() as u32
}

/// What the clients of a server would have seen of the simulated engine, by the request's number.
fn simulate(engine: &mut Replica, requests: &[&Request]) -> BTreeMap<usize, Answer> {
    let start = requests[0].sent;
    let since = |time: f64| Micros::from_secs_f64(time - start);
    // Each completion is a request of its own, and all of one leave together when its client does.
    let (mut ids, mut leaving) = (Vec::new(), Vec::new());
    for (number, request) in requests.iter().enumerate() {
        for _ in 0..whole(request.completions) {
            let id = ids.len() as u64;
            ids.push(number);
            let (prompt, output) = (whole(request.prompt_tokens), whole(request.wanted));
            // What does not fit is refused by both.
            let _ = engine.submit(since(request.sent), Simulated { id, prompt, output });
            if request.end == End::HungUp {
                leaving.push((since(request.ended), id));
            }
        }
    }
    leaving.sort_unstable();
    let mut events = Vec::new();
    for (at, id) in leaving {
        engine.advance_to(at, &mut events);
        engine.abort(id);
    }
    let hour = Micros::from_secs(3_600);
    engine.advance_to(since(requests.last().unwrap().sent) + hour, &mut events);
    let mut answers = BTreeMap::new();
    for event in events {
        if let EngineEvent::Finished(finished) = event {
            let number = ids[usize::try_from(finished.request.id).unwrap()];
            let itl = finished.itl_mean().unwrap_or_default().seconds();
            let (ttft, e2e) = (finished.first_ever.seconds(), finished.e2e.seconds());
            answers.insert(number, Answer { ttft, itl, e2e });
        }
    }
    answers
}

/// What a client saw of a whole, streamed answer.
fn seen(request: &Request) -> Option<Answer> {
    let first =
        request.first.filter(|_| request.end == End::Complete && request.completions < 1.5)?;
    let (count, sum) = request.gaps;
    let itl = if count > 0.0 { sum / count } else { 0.0 };
    Some(Answer { ttft: first - request.sent, itl, e2e: request.ended - request.sent })
}

/// The means of one server's clients in a phase, as they were and as they are simulated.
fn compare(
    phase: &Phase,
    requests: &[&Request],
    simulated: &BTreeMap<usize, Answer>,
) -> (Means, Means) {
    let in_phase = |request: &Request| phase.start <= request.sent && request.sent < phase.end;
    let (seen, model): (Vec<Answer>, Vec<Answer>) = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| in_phase(request))
        .filter_map(|(number, request)| seen(request).zip(simulated.get(&number).copied()))
        .unzip();
    (Means::of(&seen), Means::of(&model))
}

fn sound<'a>(recording: &'a Recording, server: &Server) -> Vec<&'a Request> {
    let mut requests = recording.requests_to(server);
    requests.retain(|request| request.sound && request.end != End::Lost);
    requests
}

#[test]
fn the_simulated_engine_takes_about_as_long_as_the_recorded_one() {
    let mut report = String::from(
        "\nrun  server     phase    requests   ttft, s: seen simulated   between tokens, ms   in all, s\n",
    );
    let (mut cases, mut off) = (0, Vec::new());
    for recording in recordings().iter().filter(|it| !UNLIKE.contains(&it.name.as_str())) {
        let Some(told) = recording.told else { continue };
        for server in &recording.servers {
            let requests = sound(recording, server);
            for phase in recording.phases.iter().filter(|phase| phase.name != "abort") {
                let Some(mut engine) = engine(told, server, phase) else { continue };
                let simulated = simulate(&mut engine, &requests);
                let (seen, model) = compare(phase, &requests, &simulated);
                if seen.requests < REQUESTS_MIN {
                    continue;
                }
                cases += 1;
                writeln!(
                    report,
                    "{:4} {:10} {:8} {:8} {:12.2} {:9.2} {:14.1} {:6.1} {:9.2} {:6.2}",
                    recording.name,
                    server.name,
                    phase.name,
                    seen.requests,
                    seen.ttft,
                    model.ttft,
                    seen.itl * 1e3,
                    model.itl * 1e3,
                    seen.e2e,
                    model.e2e,
                )
                .unwrap();
                let share = |seen: f64, model: f64| (model / seen - 1.0).abs();
                let ok = share(seen.itl, model.itl) <= BETWEEN_TOKENS
                    && share(seen.e2e, model.e2e) <= IN_ALL
                    && (seen.ttft < QUEUED || share(seen.ttft, model.ttft) <= TO_THE_FIRST);
                if !ok {
                    off.push(format!("{} {} {}", recording.name, server.name, phase.name));
                }
            }
        }
    }
    show(&report);
    looked_at(cases, "so many requests in a phase");
    assert!(off.is_empty(), "too far off: {off:?}");
}
