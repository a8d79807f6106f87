//! A model that goes to zero by a real HPA with `minReplicas: 0`, and comes back by what queues in
//! front of it.

use crate::daemon::Daemon;
use crate::picker::Picker;
use crate::stage::stage;
use crate::wait::until;
use crate::{follows, keeps};

#[test]
fn a_an_idle_model_goes_to_zero_and_wakes_by_the_queue_in_front_of_it() {
    let stage = &stage();
    stage.open("nightly", 1);
    stage.engines.load("nightly", 0.3);
    let from_zero = r#"{"spec":{"minReplicas":0}}"#;
    stage.kubectl(&["patch", "hpa", "llama", "-n", "nightly", "-p", from_zero]).unwrap();
    let picker = Picker::start(stage);
    let daemon = Daemon::start_with(
        stage,
        "nightly",
        &format!(
            "scale_to_zero: {{enabled: true, after: 20s, awake_for: 1m, \
             wake: [{{name: epp, url: \"{}\"}}]}}\n",
            picker.url
        ),
    );
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    keeps(stage, "nightly", 1);
    stage.engines.load("nightly", 0.0);
    until("no replica", || (stage.replicas("nightly")? == 0).then_some(()));
    keeps(stage, "nightly", 0);

    picker.queue(3);
    until("a replica", || (stage.replicas("nightly")? == 1).then_some(()));
    picker.queue(0);
    keeps(stage, "nightly", 1);
    follows(stage, &daemon, "nightly", 1.3, 2);
    follows(stage, &daemon, "nightly", 0.0, 0);
    let log = daemon.log();
    assert!(log.contains("woken: epp reports 3"), "{log}");
}
