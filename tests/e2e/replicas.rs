//! Replicas of Plimsoll under load, while one of them ends, hangs or is cut off. The API server
//! picks one of the endpoints for each request.

mod pair;
mod traffic;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::follows;
use crate::replicas::pair::{LEASE, Pair};
use crate::replicas::traffic::Traffic;
use crate::stage::{Stage, stage_with_endpoints};
use crate::wait::{stays, until};

/// Time before and after an incident.
const CALM: Duration = Duration::from_secs(2);

/// Time for which the API server does not reach a replica: a leader would lose its Lease.
const OUTAGE: Duration = LEASE;

/// Names the program of the release from which the rolling update begins. Without it, this release
/// plays both sides, with different configurations.
const PREVIOUS_RELEASE: &str = "PLIMSOLL_E2E_PREVIOUS_RELEASE";

fn this_release() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_plimsoll"))
}

/// Waits until another replica leads, which it does once the Lease has expired.
fn hands_over(pair: &Pair<'_>, leader: u8) {
    let took = pair.handover(leader);
    println!("another replica leads {took:.1?} after the last renewal");
    assert!(took < LEASE * 2, "{took:?} with a Lease of {LEASE:?}");
}

/// Plays an incident under load at rest. No answer changes, and neither does the count.
fn play(what: &str, pair: &mut Pair<'_>, stage: &Stage, incident: impl FnOnce(&mut Pair<'_>)) {
    let traffic = Traffic::start(stage, "busy");
    let keeps = || stays("3 replicas", CALM, || stage.replicas("busy") == Some(3));
    keeps();
    incident(pair);
    keeps();
    let record = traffic.end(stage);
    println!("{what}: {record}");
    record.is_always(3);
}

/// Kills the leader under load. Requests that the API server has sent to it, or sends before its
/// endpoint is gone, fail; no other does, and no answer is another number.
fn kill(pair: &mut Pair<'_>, stage: &Stage) {
    let leader = until("a leader", || pair.leader());
    let traffic = Traffic::start(stage, "busy");
    stays("3 replicas", CALM, || stage.replicas("busy") == Some(3));
    let killed = traffic.now();
    pair.kill(leader);
    until("an endpoint less", || (!pair.is_endpoint(leader)).then_some(()));
    // The API server hears of it a moment later.
    let gone = traffic.now() + CALM;
    hands_over(pair, leader);
    stays("3 replicas", CALM * 2, || stage.replicas("busy") == Some(3));
    let record = traffic.end(stage);
    println!("SIGKILL: {record}");
    for failure in record.failures() {
        let answered = failure.sent + failure.took;
        assert!(answered >= killed && failure.sent <= gone, "{killed:?} to {gone:?}: {failure:?}");
    }
    let numbers = record.0.iter().filter_map(|answer| answer.number.as_ref().ok());
    assert!(numbers.clone().all(|number| number == "3") && numbers.count() > 0);
}

#[test]
fn i_two_replicas_answer_every_request_whatever_becomes_of_their_leader() {
    let stage = &stage_with_endpoints();
    stage.open("busy", 3);
    stage.engines.load("busy", 2.0);
    let mut pair = Pair::start(stage, "busy");
    for number in pair.numbers() {
        until("a number", || (pair.member(number).daemon.desired(stage)? == 3).then_some(()));
    }
    let mut next = 3;
    let mut spare = || {
        next += 1;
        next - 1
    };

    play("SIGTERM", &mut pair, stage, |pair| {
        let leader = until("a leader", || pair.leader());
        pair.member(leader).daemon.signal("-TERM");
        hands_over(pair, leader);
        pair.wait(leader);
    });
    pair.add(spare(), &this_release(), "");

    play("SIGSTOP", &mut pair, stage, |pair| {
        let leader = until("a leader", || pair.leader());
        pair.member(leader).daemon.signal("-STOP");
        hands_over(pair, leader);
        pair.member(leader).daemon.signal("-CONT");
        until("an endpoint", || pair.is_endpoint(leader).then_some(()));
    });

    play("a leader that does not reach the API server", &mut pair, stage, |pair| {
        let leader = until("a leader", || pair.leader());
        pair.member(leader).outward.cut();
        hands_over(pair, leader);
        pair.member(leader).outward.restore();
    });

    play("an API server that does not reach the leader", &mut pair, stage, |pair| {
        let leader = until("a leader", || pair.leader());
        pair.member(leader).inward.cut();
        std::thread::sleep(OUTAGE);
        assert_eq!(pair.leader(), Some(leader), "it renews its Lease");
        pair.member(leader).inward.restore();
    });

    if let Some(previous) = std::env::var_os(PREVIOUS_RELEASE) {
        for number in pair.numbers() {
            pair.add(spare(), Path::new(&previous), "");
            pair.terminate(number);
        }
        for number in pair.numbers() {
            until("a number", || (pair.member(number).daemon.desired(stage)? == 3).then_some(()));
        }
    }
    play("a rolling update", &mut pair, stage, |pair| {
        for old in pair.numbers() {
            pair.add(spare(), &this_release(), "limits: {budget_per_hour: 1000}\n");
            pair.terminate(old);
        }
    });

    pair.add(spare(), &this_release(), "");
    kill(&mut pair, stage);

    let first = pair.numbers()[0];
    follows(stage, &pair.member(first).daemon, "busy", 2.7, 4);
}
