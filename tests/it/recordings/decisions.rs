//! What is decided along the recordings: more when the load asks for it, and never less because a
//! server has gone.

use std::fmt::Write as _;

use plimsoll::decide::{Basis, Decision, NoData};
use plimsoll::observe::{Freshness, RankReading, ScrapeFailure};
use plimsoll::units::Requests;

use crate::recordings::clients::{Clients, Span};
use crate::recordings::recording::{Recording, Server, looked_at, recordings};
use crate::recordings::replay::{Answer, Crash, QUEUE_LENGTH, Replay, STALE_AFTER, Tick};
use crate::recordings::show;

/// Length of the window: short runs have phases of half a minute.
const WINDOW: f64 = 15.0;

/// Age from which a server that refuses connections counts as stopped: no restart takes so long.
const STOPPED_AFTER: f64 = 300.0;

/// Windows of each length that are shown.
const SHOWN: usize = 4;

/// Two ticks: a decision is due in the tick that sees the page, and the next may be between them.
const TWO_TICKS: f64 = 2.0;

fn play(recording: &Recording) -> Vec<Tick> {
    Replay { recording, window: WINDOW, crash: None }.run()
}

/// Whether every server's latest page has a queue at the threshold.
fn is_overloaded(recording: &Recording, tick: &Tick) -> bool {
    let full = |answer: &&Answer| answer.waiting.is_some_and(|waiting| waiting >= QUEUE_LENGTH);
    tick.answers.values().filter(full).count() == recording.servers.len()
}

/// The changes of the present and the desired number, a line each.
fn timeline(recording: &Recording, ticks: &[Tick]) -> String {
    let (mut lines, mut last) = (String::new(), None);
    for tick in ticks {
        let state = (tick.current(), tick.desired());
        if last == Some(state) {
            continue;
        }
        last = Some(state);
        let phase = recording.phases.iter().rfind(|phase| phase.start <= tick.now);
        let (name, start) = phase.map_or(("start", ticks[0].now), |it| (&*it.name, it.start));
        let why = match tick.decision().and_then(Decision::because) {
            Some(step) => step.to_string(),
            None => "nothing is decided".to_owned(),
        };
        let (run, since) = (&recording.name, tick.now - start);
        writeln!(lines, "{run:4} {name:>13} + {since:5.1} s, {} exist: {why}", state.0).unwrap();
    }
    lines
}

/// The first tick that asks for more than there is.
fn grows(ticks: &[Tick]) -> Option<&Tick> {
    ticks.iter().find(|tick| tick.desired().is_some_and(|desired| desired > tick.current()))
}

#[test]
fn a_saturated_model_grows_as_soon_as_its_queues_show_it() {
    let mut seen = 0;
    let mut report = String::from("\ndecisions\n");
    for recording in recordings() {
        let Some(phase) = recording.phase("sat") else { continue };
        let ticks = play(recording);
        let inside = || ticks.iter().filter(|tick| phase.start <= tick.now && tick.now < phase.end);
        let full = inside().find(|tick| is_overloaded(recording, tick));
        let first = full.expect("the load of this phase fills every queue").now;
        let decided = grows(&ticks).expect("a saturated model grows");
        report += &timeline(recording, &ticks);
        assert!(decided.now <= first + TWO_TICKS, "{}", recording.name);
        for tick in inside().filter(|tick| first <= tick.now) {
            let current = tick.current();
            assert_eq!(tick.desired(), Some(current + 1), "{} at {}", recording.name, tick.now);
        }
        seen += 1;
    }
    show(&report);
    looked_at(seen, "a phase of saturation");
}

#[test]
fn a_model_with_room_on_every_server_does_not_grow() {
    let mut roomy = 0;
    for recording in recordings() {
        let ticks = play(recording);
        for tick in ticks.iter().filter(|tick| has_room(recording, tick)) {
            let place = format!("{} at {}", recording.name, tick.now);
            assert!(tick.desired() <= Some(tick.current()), "{place}: {:?}", tick.desired());
            roomy += 1;
        }
    }
    looked_at(roomy, "a time of little load");
}

/// Whether no page that the window can hold shows less room than the triggers ask for.
fn has_room(recording: &Recording, tick: &Tick) -> bool {
    let reach = tick.now - WINDOW - TWO_TICKS;
    let pages = recording.servers.iter().flat_map(|server| &server.pages);
    let inside = pages.filter(|page| reach <= page.asked && page.answered <= tick.now);
    let readings: Vec<_> = inside.filter_map(|page| page.outcome.as_ref().ok()).collect();
    let ranks = readings.iter().flat_map(|reading| &reading.ranks);
    let roomy = |rank: &RankReading| {
        rank.kv_usage.is_some_and(|kv| kv.fraction() < 0.7)
            && rank.waiting.is_some_and(|waiting| waiting.requests() <= 2.0)
    };
    // A number that was decided under load is kept while the servers are gone.
    let answering = tick.answers.values().all(|answer| answer.waiting.is_some());
    answering && !readings.is_empty() && ranks.into_iter().all(roomy)
}

#[test]
fn nothing_is_decided_before_a_server_has_answered() {
    let mut started = 0;
    for recording in recordings() {
        let ticks = play(recording);
        let silent = |tick: &&Tick| tick.answers.values().all(|answer| answer.waiting.is_none());
        for tick in ticks.iter().take_while(silent) {
            assert_eq!(tick.current(), 0, "{}", recording.name);
            assert_eq!(tick.desired(), None, "{}", recording.name);
            let why = tick.decisions.undecided.values().next().map(|it| &it.0);
            assert_eq!(why, Some(&NoData::NoFreshReplica), "{}", recording.name);
            for index in tick.answers.keys() {
                let freshness = tick.replica(&recording.servers[*index]).freshness;
                let refused = Freshness::Never { why: Some(ScrapeFailure::Refused) };
                assert_eq!(freshness, refused, "{}", recording.name);
            }
            started += 1;
        }
        let first = ticks.iter().find(|tick| !silent(tick)).unwrap();
        assert!(first.desired() >= Some(first.current()), "{}", recording.name);
    }
    looked_at(started, "servers that start");
}

#[test]
fn a_server_that_refuses_is_lost_then_stopped_and_never_idle() {
    let mut refusals = 0;
    for recording in recordings() {
        for server in &recording.servers {
            refusals += assert_lost(recording, server, &play(recording));
        }
    }
    looked_at(refusals, "a server that goes");
}

/// Follows a server from its last page on; gives the number of ticks in which it was gone.
fn assert_lost(recording: &Recording, server: &Server, ticks: &[Tick]) -> usize {
    let (mut gone, mut before) = (0, None);
    for tick in ticks {
        let last = server.pages.iter().rfind(|page| page.answered <= tick.now);
        let refuses = last.is_some_and(|page| page.outcome.is_err());
        let page = server.pages.iter().rfind(|it| it.answered <= tick.now && it.outcome.is_ok());
        if let (true, Some(page)) = (refuses, page) {
            let seen = tick.replica(server);
            let place = format!("{} {} at {}", recording.name, server.name, tick.now);
            let age = tick.now - page.asked;
            match seen.freshness {
                Freshness::Fresh { .. } => assert!(age <= STALE_AFTER, "{place}"),
                Freshness::Stale { why, .. } => {
                    assert!(age > STALE_AFTER, "{place}");
                    assert_eq!(why, Some(ScrapeFailure::Refused), "{place}");
                    assert_eq!((seen.load(), seen.waiting, seen.running), (None, None, None));
                }
                Freshness::Never { .. } => panic!("{place}: it has answered before"),
            }
            assert!(!seen.stopped || age > STOPPED_AFTER, "{place}: stopped after {age} s");
            assert_eq!(tick.current() as usize, known(recording, tick), "{place}: it exists");
            assert!(tick.desired() >= before, "{place}: {before:?} -> {:?}", tick.desired());
            gone += 1;
        }
        before = tick.desired();
    }
    gone
}

/// Servers that have answered at least once.
fn known(recording: &Recording, tick: &Tick) -> usize {
    let answered = |server: &&Server| {
        server.pages.iter().any(|page| page.answered <= tick.now && page.outcome.is_ok())
    };
    recording.servers.iter().filter(answered).count()
}

#[test]
fn a_crash_of_every_server_under_load_keeps_the_number_for_good() {
    let mut crashes = 0;
    for recording in recordings() {
        let Some(phase) = recording.phase("sat") else { continue };
        let crash = f64::midpoint(phase.start, phase.end);
        let lasting = 2.0 * STOPPED_AFTER;
        let ticks = Replay {
            recording,
            window: WINDOW,
            crash: Some(Crash { at: crash, lasting, server: 0 }),
        }
        .run();
        let servers = u32::try_from(recording.servers.len()).unwrap();
        for tick in ticks.iter().filter(|tick| tick.now >= crash) {
            let (name, gone) = (&recording.name, tick.now - crash);
            assert_eq!(tick.desired(), Some(servers + 1), "{name} {gone} s after the crash");
            // The last page is at most one tick older than the crash, and slow pages a bit more.
            if gone > STALE_AFTER {
                let decision = tick.decision().unwrap();
                assert_eq!(decision.basis, Basis::Held, "{name} {gone}");
                let age = tick.now - decision.inputs_at.as_duration().as_secs_f64();
                assert!(age >= gone, "{name}: the decision is as old as its data");
            }
            let exist = if gone < STOPPED_AFTER { servers } else { 0 };
            assert_eq!(tick.current(), exist, "{name} {gone} s after the crash");
            for replica in &tick.observation().replicas {
                assert_eq!(replica.stopped, gone >= STOPPED_AFTER, "{name} {gone}");
                assert_eq!(
                    replica.freshness.is_fresh(),
                    gone <= STALE_AFTER - 1.0,
                    "{name} {gone}"
                );
            }
            crashes += 1;
        }
    }
    looked_at(crashes, "a phase of saturation");
}

#[test]
fn a_crash_of_one_server_keeps_the_number_when_the_load_has_gone() {
    let mut idle = 0;
    for recording in recordings().iter().filter(|recording| recording.servers.len() > 1) {
        let Some(at) = recording.phase("sat").map(|phase| phase.end - TWO_TICKS) else { continue };
        let crash = Some(Crash { at, lasting: STOPPED_AFTER - TWO_TICKS, server: 1 });
        let ticks = Replay { recording, window: WINDOW, crash }.run();
        let before = ticks.iter().rfind(|tick| tick.now < at).unwrap().desired();
        for tick in ticks.iter().filter(|tick| tick.now >= at) {
            assert!(tick.desired() >= before, "{} at {}", recording.name, tick.now);
            let left = tick.replica(&recording.servers[0]).load();
            idle += usize::from(left.is_some_and(|(_, queue)| queue == Requests::ZERO));
        }
    }
    looked_at(idle, "two servers, of which one becomes idle");
}

#[test]
fn after_a_restart_rates_are_those_of_the_clients() {
    let mut restarts = 0;
    let mut report = String::from(
        "\nfirst windows after a restart, Plimsoll : clients (window, s since; arrivals, tokens)\n",
    );
    for recording in recordings() {
        for server in &recording.servers {
            let Some((again, down)) = restart(server) else { continue };
            // A window that only knows the new life, and one that reaches back into the old.
            for window in [WINDOW, down + 4.0 * WINDOW] {
                let ticks = Replay { recording, window, crash: None }.run();
                for (nth, tick) in ticks.iter().filter(|tick| tick.now > again).enumerate() {
                    let start = tick.now - window;
                    let from = if window > down { start } else { start.max(again) };
                    let said = judge_rates(recording, server, tick, Span { from, to: tick.now });
                    if nth <= SHOWN {
                        report += &said;
                    }
                }
            }
            restarts += 1;
        }
    }
    show(&report);
    looked_at(restarts, "a restart");
}

/// Holds the rates of a tick against the clients'. They may be off by a tenth, because the old life
/// may have ended with hang-ups, and by what happens in the second between a page and its tick.
fn judge_rates(recording: &Recording, server: &Server, tick: &Tick, span: Span) -> String {
    let seen = tick.replica(server);
    let (Some(arrivals), Some(tokens)) = (seen.arrivals, seen.generation_rate) else {
        return String::new();
    };
    let clients = Clients::new(&recording.requests_to(server));
    let Span { from, to } = span;
    let early = Span { from: from - 1.0, to };
    let late = Span { from, to: to - 1.0 };
    let place = format!("{} {}, {:.0} s:", recording.name, tick.now, span.length());
    let mut said = place.clone();
    let rates = [arrivals.requests_per_second(), tokens.tokens_per_second()];
    let amounts: [fn(&Clients, Span) -> f64; 2] = [Clients::arrivals, Clients::tokens];
    // One request and its tokens.
    let slack = [1.0, 100.0];
    for ((ours, amount), slack) in rates.into_iter().zip(amounts).zip(slack) {
        let (least, most) = (amount(&clients, late), amount(&clients, early));
        let ours = ours * span.length();
        assert!(ours <= most * 1.1 + slack, "{place} {ours} is more than {most}");
        assert!(ours >= least * 0.9 - slack, "{place} {ours} is less than {least}");
        write!(said, " {ours:.1} : {least:.1}..{most:.1}").unwrap();
    }
    said + "\n"
}

/// When the first page of a second life was asked for, and how long after the last page before it.
fn restart(server: &Server) -> Option<(f64, f64)> {
    let answered = server.pages.iter().filter(|page| page.outcome.is_ok());
    let lives: Vec<_> = answered
        .filter_map(|page| Some((page.asked, page.outcome.as_ref().ok()?.started)))
        .collect();
    let pair = lives.windows(2).find(|pair| pair[0].1 != pair[1].1)?;
    Some((pair[1].0, pair[1].0 - pair[0].0))
}

#[test]
fn requests_that_wait_for_an_adapter_are_waiting_requests() {
    let mut deferred = 0;
    for recording in recordings() {
        for tick in play(recording) {
            for (index, server) in recording.servers.iter().enumerate() {
                let Some(answer) = tick.answers.get(&index).filter(|it| it.waiting.is_some())
                else {
                    continue;
                };
                let page = server.pages.iter().find(|page| page.asked >= answer.asked).unwrap();
                let rank = &page.outcome.as_ref().unwrap().ranks[0];
                let (Some(waiting), Some(held)) = (rank.waiting, rank.waiting_deferred) else {
                    continue;
                };
                let capacity = rank.waiting_capacity.unwrap();
                assert_eq!(capacity + held, waiting, "{} at {}", recording.name, page.stamp);
                assert_eq!(tick.replica(server).waiting.unwrap().last, waiting);
                if capacity == Requests::ZERO && held.requests() >= QUEUE_LENGTH {
                    assert!(tick.desired() > Some(tick.current()), "{}", recording.name);
                    deferred += 1;
                }
            }
        }
    }
    looked_at(deferred, "requests that only wait for an adapter");
}
