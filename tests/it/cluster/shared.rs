//! Watches that many variants share: how many there are, and which pods belong to whom.

use plimsoll::collect::cluster::WatchedVariant;
use serde_json::{Value, json};

use super::fake::FakeCluster;
use super::{
    DEPLOYMENTS, PODS, Watching, deploy_with, deployment_of, known, names, pod, variant,
};

fn labelled(name: &str, labels: &Value) -> Value {
    let mut pod = pod(name, true);
    pod["metadata"]["labels"] = labels.clone();
    pod
}

#[tokio::test]
async fn the_variants_of_a_namespace_share_one_watch_of_its_pods() {
    const VARIANTS: usize = 60;
    let fake = FakeCluster::start().await;
    let mut wanted: Vec<WatchedVariant> = Vec::new();
    for place in 0..VARIANTS {
        let name = format!("model-{place}");
        deploy_with(&fake, DEPLOYMENTS, &name, &format!("app={name}"), [1, 1]);
        fake.put(PODS, &labelled(&format!("{name}-a"), &json!({"app": name})));
        wanted.push(deployment_of(&variant(&name), &name));
    }

    let mut watching = Watching::start(&fake, &wanted);
    for WatchedVariant { variant, .. } in &wanted {
        let state = watching.until_scale(variant, &known(1, 1, 1, 0, None)).await;
        assert_eq!(names(&state), [format!("{}-a", variant.variant)], "and no pod of another");
    }

    assert_eq!(fake.lists_of(PODS), 1);
    assert!(fake.connections() <= 32, "{} connections", fake.connections());
}
