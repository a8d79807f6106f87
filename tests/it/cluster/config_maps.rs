//! What containers take from `ConfigMap`s of how their engine is started.

use plimsoll::observe::template::Container;
use serde_json::{Value, json};

use super::fake::FakeCluster;
use super::{DEPLOYMENTS, Watching, deploy, deployment_of, variant};

const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";

/// A Deployment whose engine has its arguments in a file and a variable, both of `ConfigMap`s.
fn cluster(fake: &FakeCluster) {
    fake.resources("/apis/apps/v1", &[("deployments", "Deployment")]);
    deploy(fake, DEPLOYMENTS, "llama", 1, 1);
    let container = json!({
        "name": "engine", "image": "vllm/vllm-openai",
        "args": ["--config", "/etc/vllm/engine.yaml", "--max-model-len=$(CONTEXT)"],
        "env": [{"name": "CONTEXT",
                 "valueFrom": {"configMapKeyRef": {"name": "sizes", "key": "context"}}}],
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/vllm"}],
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
    });
    let pod = json!({"containers": [container],
                     "volumes": [{"name": "settings", "configMap": {"name": "engine"}}]});
    let spec = json!({"template": {"spec": pod}});
    fake.put(DEPLOYMENTS, &json!({"metadata": {"name": "llama"}, "spec": spec}));
    fake.put(CONFIG_MAPS, &map("sizes", "context", "4096"));
    fake.put(CONFIG_MAPS, &map("engine", "engine.yaml", "max-num-seqs: 8"));
    fake.put(CONFIG_MAPS, &map("other", "engine.yaml", "max-num-seqs: 99"));
}

fn map(name: &str, key: &str, text: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {key: text}})
}

fn start(fake: &FakeCluster) -> Watching {
    Watching::start(fake, &[deployment_of(&variant("llama"), "llama")])
}

impl Watching {
    /// Waits until the engine is known to be told this file and this variable.
    async fn until_told(&mut self, file: Option<&str>, context: Option<&str>) {
        let told = |container: &Container| {
            container.files.get("/etc/vllm/engine.yaml").map(String::as_str) == file
                && container.environment.get("CONTEXT").map(String::as_str) == context
        };
        let is =
            |template: &plimsoll::observe::template::PodTemplate| told(&template.containers[0]);
        self.until(&variant("llama"), |state| state.template.as_ref().is_some_and(|it| is(it)))
            .await;
    }
}

#[tokio::test]
async fn what_an_engine_is_told_in_config_maps_is_followed() {
    let fake = FakeCluster::start().await;
    cluster(&fake);
    let mut watching = start(&fake);
    watching.until_told(Some("max-num-seqs: 8"), Some("4096")).await;
    assert_eq!(fake.lists_of(CONFIG_MAPS), 2, "nothing else is looked at");

    fake.put(CONFIG_MAPS, &map("engine", "engine.yaml", "max-num-seqs: 16"));
    watching.until_told(Some("max-num-seqs: 16"), Some("4096")).await;
    fake.put(CONFIG_MAPS, &map("sizes", "another", "4096"));
    watching.until_told(Some("max-num-seqs: 16"), None).await;
    fake.delete(CONFIG_MAPS, "engine");
    watching.until_told(None, None).await;
}

#[tokio::test]
async fn config_maps_that_may_not_be_read_leave_the_rest_of_a_template() {
    let fake = FakeCluster::start().await;
    cluster(&fake);
    fake.refuse(CONFIG_MAPS);
    let mut watching = start(&fake);
    watching.until_told(None, None).await;
    let state = watching.state.borrow().clone();
    assert_eq!(state.inventory.units[&variant("llama")].gpus.count(), 2);

    fake.allow(CONFIG_MAPS);
    watching.until_told(Some("max-num-seqs: 8"), Some("4096")).await;
    // A right that is taken away takes nothing back.
    fake.refuse(CONFIG_MAPS);
    fake.compact();
    // Lists or watches, as far as it had come when the right was taken.
    let refused = fake.requests_of(CONFIG_MAPS) + 10;
    let mut beats = watching.state.clone();
    while fake.requests_of(CONFIG_MAPS) < refused {
        beats.changed().await.unwrap();
    }
    watching.until_told(Some("max-num-seqs: 8"), Some("4096")).await;
}
