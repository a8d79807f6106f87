//! Two replicas of Plimsoll, of which one is killed.

use std::time::Duration;

use crate::daemon::{Daemon, Replica};
use crate::stage::stage;
use crate::wait::{stays, until};
use crate::{follows, keeps};

/// Much longer than it takes to notice that a leader is gone, which is 3 s here.
const TAKEOVER: Duration = Duration::from_secs(12);

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
    stays("the number and the count", TAKEOVER, || {
        let list = stage.kubectl(&["get", "--raw", path]).unwrap_or_default();
        let answered = list.contains("\"value\":\"4\"");
        answered && second.desired(stage) == Some(4) && stage.replicas("pair") == Some(4)
    });
    until("the other one to lead", || {
        (second.gauge(stage, "plimsoll_leader", &[])? == 1).then_some(())
    });
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
    assert_eq!(stage.replicas("pair"), Some(3));
}
