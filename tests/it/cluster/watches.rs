//! Watches against an API server that is large, overloaded or silent.

use std::time::Duration;

use plimsoll::collect::cluster::{ClusterNeeds, LinkTiming, WatchTiming};
use serde_json::json;

use super::fake::{Failure, FakeCluster};
use super::shared::{PATIENT, labelled};
use super::{DEPLOYMENTS, PODS, Watching, deploy, deployment_of, known, pod, variant};

const PODS_ELSEWHERE: &str = "/api/v1/namespaces/elsewhere/pods";

fn needs() -> ClusterNeeds {
    let variants = vec![deployment_of(&variant("llama"), "llama")];
    ClusterNeeds { variants, ..ClusterNeeds::default() }
}

/// More pods than fit on a page, two of them the variant's.
fn fill(fake: &FakeCluster) {
    deploy(fake, DEPLOYMENTS, "llama", 2, 2);
    for place in 0..1_200 {
        fake.put(PODS, &labelled(&format!("job-{place:04}"), &json!({"app": "job"})));
    }
    fake.put(PODS, &pod("a", true));
    fake.put(PODS, &pod("z", true));
}

async fn until(is: impl Fn() -> bool) {
    let reached = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), reached).await.unwrap();
}

#[tokio::test]
async fn a_long_list_is_read_in_pages_and_begun_again_when_it_is_forgotten() {
    let fake = FakeCluster::start().await;
    fill(&fake);
    let llama = variant("llama");
    let mut watching = Watching::through(fake.client(), PATIENT, needs());
    watching.until_scale(&llama, &known(2, 2, 2, 0, None)).await;
    assert_eq!(fake.lists_of(PODS), 3, "three pages");

    // The second page is not to be had, and then the third, before all are.
    fake.expire_tokens(2);
    fake.put(PODS, &pod("b", true));
    fake.compact();
    let before = watching.state.borrow().variants[&llama].clone();
    until(|| fake.lists_of(PODS) >= 3 + 2).await;
    assert!(watching.state.borrow().variants[&llama].pods.len() >= before.pods.len());
    watching.until_scale(&llama, &known(2, 2, 3, 0, None)).await;
}

#[tokio::test]
async fn an_overloaded_api_server_is_not_asked_before_the_time_that_it_says() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("a", true));
    let failure = |code, retry_after| Failure { code, retry_after };
    let failures = [failure(429, Some(1)), failure(503, Some(3)), failure(500, None)];
    fake.fail_next(PODS, &failures);
    fake.fail_next(&format!("{DEPLOYMENTS}/llama/scale"), &[failure(429, Some(3))]);
    let mut watching = Watching::through(fake.client(), PATIENT, needs());
    watching.until_scale(&variant("llama"), &known(1, 1, 1, 0, None)).await;

    let gaps = |path: &str| -> Vec<Duration> {
        let times = fake.times_of(path);
        times.windows(2).map(|two| two[1].duration_since(two[0]).unsigned_abs()).collect()
    };
    let pods = gaps(PODS);
    assert!(pods[0] >= Duration::from_secs(1) && pods[1] >= Duration::from_secs(3), "{pods:?}");
    let scale = gaps(&format!("{DEPLOYMENTS}/llama/scale"));
    assert!(scale[0] >= Duration::from_secs(3), "{scale:?}");
}

#[tokio::test]
async fn a_bookmark_spares_a_list_after_the_history_is_forgotten() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("a", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;
    until(|| fake.requests_of(PODS) > fake.lists_of(PODS)).await;

    // Much happens elsewhere, of which the watch learns no more than that.
    for place in 0..10 {
        fake.put(PODS_ELSEWHERE, &pod(&format!("other-{place}"), true));
    }
    fake.bookmark();
    fake.forget_history();
    let asked = fake.requests_of(PODS);
    until(|| fake.requests_of(PODS) >= asked + 2).await;
    assert_eq!(fake.lists_of(PODS), 1);

    fake.put(PODS, &pod("b", true));
    watching.until_scale(&llama, &known(1, 1, 2, 0, None)).await;
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_noticed_long_before_its_watches_end() {
    // Longer than a busy machine stands still while the pods are listed.
    let ping = Duration::from_secs(3);
    let pinged = LinkTiming { ping_interval: ping, ping_timeout: ping, ..LinkTiming::default() };
    let second = Duration::from_secs(1);
    let unpinged = LinkTiming { window: second, grace: second, ..LinkTiming::default() };
    for (fake, timing) in
        [(FakeCluster::start_with_tls().await, pinged), (FakeCluster::start().await, unpinged)]
    {
        deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
        fake.put(PODS, &pod("a", true));
        let llama = variant("llama");
        // Nothing but the connection itself can tell within the time of a test.
        let pace = WatchTiming { grace: Duration::from_mins(5), ..PATIENT };
        let mut watching = Watching::through(fake.client_with(timing), pace, needs());
        watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;
        until(|| fake.requests_of(PODS) > fake.lists_of(PODS)).await;

        fake.freeze_connections();
        fake.put(PODS, &pod("b", true));
        watching.until_scale(&llama, &known(1, 1, 2, 0, None)).await;
        assert_eq!(fake.lists_of(PODS), 1, "it is resumed and not begun again");
    }
}
