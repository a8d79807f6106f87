//! Two replicas of Plimsoll, of which one is killed.

use crate::daemon::{Daemon, Replica};
use crate::stage::stage;
use crate::wait::{stays, until};
use crate::{A_WHILE, follows, keeps};

#[test]
fn a_killed_leader_changes_no_count() {
    let stage = &stage();
    stage.open("pair", 3);
    stage.engines.load("pair", 2.0);
    let first = Daemon::start_replica(stage, "pair", Replica::Second);
    until("a first number", || (first.desired(stage)? == 3).then_some(()));
    until("a leader", || (first.gauge(stage, "plimsoll_leader", &[])? == 1).then_some(()));
    // The API server asks the one that follows.
    let second = Daemon::start_replica(stage, "pair", Replica::First);
    until("the same number", || (second.desired(stage)? == 3).then_some(()));
    assert_eq!(second.gauge(stage, "plimsoll_leader", &[]), Some(0));
    keeps(stage, "pair", 3);
    follows(stage, &second, "pair", 2.7, 4);
    assert_eq!(first.desired(stage), Some(4), "both show one number");

    drop(first);
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/pair/plimsoll_desired_replicas";
    let count = || until("an API server that answers", || stage.replicas("pair"));
    let keeps_four = || {
        let answered = stage.raw(path).is_ok_and(|list| list.contains("\"value\":\"4\""));
        answered && second.desired(stage) == Some(4) && count() == 4
    };
    until("the other one to lead", || {
        assert!(keeps_four(), "the number and the count did not stay so");
        (second.gauge(stage, "plimsoll_leader", &[])? == 1).then_some(())
    });
    stays("the number and the count", A_WHILE, keeps_four);
    let holder = "jsonpath={.spec.holderIdentity}";
    let holder = stage.kubectl(&["get", "lease", "plimsoll", "-n", "plimsoll", "-o", holder]);
    assert!(holder.as_ref().is_ok_and(|it| it.starts_with("pair-first_")), "{holder:?}");
    follows(stage, &second, "pair", 2.0, 3);

    // One that comes back follows, and takes over when the leader ends in order.
    let third = Daemon::start_replica(stage, "pair", Replica::Second);
    until("the same number", || (third.desired(stage)? == 3).then_some(()));
    assert_eq!(third.gauge(stage, "plimsoll_leader", &[]), Some(0));
    second.signal("-TERM");
    until("a handover", || (third.gauge(stage, "plimsoll_leader", &[])? == 1).then_some(()));
    assert_eq!(third.desired(stage), Some(3));
    assert_eq!(until("an API server that answers", || stage.replicas("pair")), 3);
}
