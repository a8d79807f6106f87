//! What a user sees who describes the HPA.

use crate::daemon::Daemon;
use crate::follows;
use crate::stage::stage;
use crate::wait::until;

#[test]
fn describing_the_hpa_shows_what_was_decided() {
    let stage = &stage();
    stage.open("described", 1);
    stage.engines.load("described", 0.3);
    let daemon = Daemon::start(stage, "described");
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    follows(stage, &daemon, "described", 1.3, 2);
    let describe = || stage.kubectl(&["describe", "hpa", "llama", "-n", "described"]).ok();
    let line = until("the event", || {
        let text = describe()?;
        Some(text.lines().find(|line| line.contains("ScaledUp"))?.to_owned())
    });
    assert!(line.contains("Normal") && line.contains("desired 1 -> 2: "), "{line}");
    assert!(line.contains("plimsoll"), "{line}");

    // Nothing is heard for a minute, at a tick a second, and it is said once.
    stage.engines.wedge("described", true);
    let held = until("that the number is held", || {
        let text = describe()?;
        Some(text.lines().find(|line| line.contains("DecisionHeld"))?.to_owned())
    });
    assert!(held.contains("desired stays 2: no replica has fresh data"), "{held}");
    stage.engines.wedge("described", false);
    until("that it is decided again", || describe()?.contains("DecisionResumed").then_some(()));

    let path =
        "jsonpath={range .items[*]}{.reportingController} {.reason} {.series.count}{\"\\n\"}{end}";
    let list = ["get", "events.events.k8s.io", "-n", "described", "-o", path];
    let events = stage.kubectl(&list).unwrap();
    let ours = events.lines().filter_map(|line| line.strip_prefix("plimsoll "));
    let mut reasons: Vec<&str> = ours.map(str::trim).collect();
    reasons.sort_unstable();
    // An HPA that gets no answer in time computes no replicas, which is reported as well: before
    // the first decision, and on a busy machine.
    let reported = reasons.len();
    reasons.retain(|reason| !reason.starts_with("HPANotScaling"));
    assert!(reported - reasons.len() <= 2, "{reported} reports");
    assert_eq!(reasons, ["DecisionHeld", "DecisionResumed", "ScaledUp"], "each once");
}
