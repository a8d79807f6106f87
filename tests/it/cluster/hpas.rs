//! HPAs that read a variant's desired number and do not follow it.

use plimsoll::collect::cluster::{BoundsChange, Direction, Finding, HpaCondition, VariantState};
use plimsoll::fleet::VariantKey;
use plimsoll::observe::Scale;
use serde_json::{Value, json};

use super::fake::FakeCluster;
use super::{DEPLOYMENTS, HPAS, Watching, deploy, deployment_of, hpa, variant};

/// The watching of two variants in one namespace, of which the first has a Deployment.
struct Judging {
    fake: FakeCluster,
    watching: Watching,
    llama: VariantKey,
}

impl Judging {
    async fn start(variants: &[&str], wanted: u32) -> Self {
        let fake = FakeCluster::start().await;
        deploy(&fake, DEPLOYMENTS, "llama", wanted, wanted);
        let wanted: Vec<_> =
            variants.iter().map(|name| deployment_of(&variant(name), name)).collect();
        let watching = Watching::start(&fake, &wanted);
        Self { fake, watching, llama: variant("llama") }
    }

    /// Puts the HPA, and waits until it is found as described. One without findings follows.
    async fn found(&mut self, hpa: &Value, findings: &[Finding]) -> VariantState {
        self.fake.put(HPAS, hpa);
        let is_found = |state: &VariantState| {
            state.findings == findings && (state.follower.is_some() || !findings.is_empty())
        };
        self.watching.until(&self.llama, is_found).await
    }

    /// Puts an HPA without findings, so that the next one does not find those of the last one.
    async fn reset(&mut self) {
        self.found(&hpa("llama", "llama"), &[]).await;
    }
}

fn selecting(selector: &Value) -> Value {
    let mut hpa = hpa("llama", "llama");
    hpa["spec"]["metrics"][0]["external"]["metric"]["selector"] = selector.clone();
    hpa
}

fn expression(operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": "variant", "operator": operator, "values": values}]})
}

fn sums(selector: &str, others: &[&str]) -> Finding {
    Finding::SumsVariants {
        hpa: "llama".to_owned(),
        metric: "plimsoll_desired_replicas".to_owned(),
        selector: selector.to_owned(),
        others: others.iter().map(|name| (*name).to_owned()).collect(),
        variant: "llama".to_owned(),
    }
}

#[tokio::test]
async fn an_hpa_without_a_selector_is_told_that_it_adds_up_all_variants() {
    let mut alone = Judging::start(&["llama"], 3).await;
    let state = alone.found(&selecting(&Value::Null), &[sums("", &[])]).await;
    assert!(state.follower.is_some(), "the sum of one number is that number");
    assert_eq!(
        state.findings[0].to_string(),
        "HPA llama reads plimsoll_desired_replicas without a selector, which adds up all variants once others exist: add matchLabels {variant: llama} to metric.selector"
    );

    let mut two = Judging::start(&["llama", "qwen"], 3).await;
    let state = two.found(&selecting(&Value::Null), &[sums("", &["qwen"])]).await;
    assert_eq!(state.follower, None, "it follows the sum");
    assert_eq!(state.autoscaler(), Some("llama"));
    assert_eq!(
        state.findings[0].to_string(),
        "HPA llama reads plimsoll_desired_replicas without a selector, which also adds the \
         variants qwen: add matchLabels {variant: llama} to metric.selector"
    );
}

#[tokio::test]
async fn the_expressions_of_a_selector_decide_which_variants_an_hpa_reads() {
    let mut judging = Judging::start(&["gpt", "llama", "qwen"], 3).await;
    let not_read = Finding::NotRead { hpa: Some("llama".to_owned()) };
    let wrong = Finding::WrongSelector {
        hpa: "llama".to_owned(),
        metric: "plimsoll_desired_replicas".to_owned(),
        found: "operator \"Gt\" does not take 1 values".to_owned(),
    };
    let several = ["llama", "qwen", "absent"];
    for (selector, finding) in [
        (expression("In", &several), sums("variant in (absent,llama,qwen)", &["qwen"])),
        (expression("NotIn", &["gpt"]), sums("variant notin (gpt)", &["qwen"])),
        (expression("Exists", &[]), sums("variant", &["gpt", "qwen"])),
        (
            json!({"matchLabels": {"exported_namespace": "shop"}}),
            sums("exported_namespace=shop", &["gpt", "qwen"]),
        ),
        (expression("In", &["qwen"]), not_read.clone()),
        (expression("NotIn", &["llama"]), not_read.clone()),
        (expression("DoesNotExist", &[]), not_read.clone()),
        (json!({"matchLabels": {"exported_namespace": "lab"}}), not_read),
        (expression("Gt", &["1"]), wrong),
    ] {
        judging.reset().await;
        let state = judging.found(&selecting(&selector), &[finding]).await;
        assert_eq!(state.follower, None, "{selector}");
    }

    // The variants of a model are not known here, so nothing is said about their sum.
    for selector in [expression("In", &["llama"]), json!({"matchLabels": {"model": "m"}})] {
        judging.found(&selecting(&Value::Null), &[sums("", &["gpt", "qwen"])]).await;
        let state = judging.found(&selecting(&selector), &[]).await;
        assert!(state.follower.is_some(), "{selector}");
    }
}

#[tokio::test]
async fn an_hpa_with_other_metrics_is_told_that_the_largest_number_wins() {
    let mut judging = Judging::start(&["llama", "qwen"], 3).await;
    let mut shared = hpa("llama", "llama");
    let ours = shared["spec"]["metrics"][0].clone();
    let mut theirs = ours.clone();
    theirs["external"]["metric"]["selector"] = json!({"matchLabels": {"variant": "qwen"}});
    let cpu = json!({"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
    let queue = json!({"type": "Pods", "pods": {
        "metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "5"}}});
    shared["spec"]["metrics"] = json!([cpu, ours, queue, theirs]);

    let others = ["plimsoll_desired_replicas of variant=qwen", "cpu (Resource)", "queue (Pods)"];
    let finding = Finding::OtherMetrics {
        hpa: "llama".to_owned(),
        others: others.map(str::to_owned).to_vec(),
    };
    assert_eq!(
        finding.to_string(),
        "HPA llama also reads plimsoll_desired_replicas of variant=qwen, cpu (Resource), queue \
         (Pods), and follows the metric with the most replicas: remove the other metrics to get the desired replicas"
    );
    let state = judging.found(&shared, &[finding]).await;
    assert!(state.follower.is_some(), "its windows and tolerances hold all the same");
}

#[tokio::test]
async fn a_direction_that_is_disabled_or_slow_is_found() {
    let mut judging = Judging::start(&["llama"], 3).await;
    let disabled = |direction| Finding::DirectionDisabled { hpa: "llama".to_owned(), direction };
    let slow = |direction, takes| {
        let change = match direction {
            Direction::Up => BoundsChange { first: 2, last: 8 },
            Direction::Down => BoundsChange { first: 8, last: 2 },
        };
        Finding::SlowPolicies { hpa: "llama".to_owned(), direction, takes, change }
    };
    let one_a_minute = json!([{"type": "Pods", "value": 1, "periodSeconds": 60}]);
    let two = json!([{"type": "Pods", "value": 1, "periodSeconds": 60},
                     {"type": "Percent", "value": 100, "periodSeconds": 15}]);
    let never = json!([{"type": "Percent", "value": 0, "periodSeconds": 15}]);
    let wide = json!([{"type": "Pods", "value": 1000, "periodSeconds": 15}]);
    for (behavior, findings) in [
        (json!({"scaleDown": {"selectPolicy": "Disabled"}}), vec![disabled(Direction::Down)]),
        // From 2 to 8 replicas there are six changes, and the first one comes at once.
        (json!({"scaleUp": {"policies": one_a_minute}}), vec![slow(Direction::Up, Some(300))]),
        (
            json!({"scaleUp": {"policies": two, "selectPolicy": "Min"}}),
            vec![slow(Direction::Up, Some(300))],
        ),
        (
            json!({"scaleUp": {"selectPolicy": "Disabled"}, "scaleDown": {"policies": one_a_minute}}),
            vec![disabled(Direction::Up), slow(Direction::Down, Some(300))],
        ),
        (json!({"scaleDown": {"policies": never}}), vec![slow(Direction::Down, None)]),
    ] {
        judging.reset().await;
        let mut narrow = hpa("llama", "llama");
        narrow["spec"]["behavior"] = behavior;
        let state = judging.found(&narrow, &findings).await;
        assert!(state.follower.is_some(), "its windows hold all the same");

        // The larger of two policies counts, and wide ones are no problem.
        narrow["spec"]["behavior"] =
            json!({"scaleUp": {"policies": two}, "scaleDown": {"policies": wide}});
        judging.found(&narrow, &[]).await;
    }
}

#[tokio::test]
async fn a_false_condition_is_found_and_an_unknown_one_is_not() {
    let mut judging = Judging::start(&["llama"], 3).await;
    let failed = "FailedGetExternalMetric";
    let condition = |kind: &str, status: &str, reason: &str| {
        let mut hpa = hpa("llama", "llama");
        hpa["status"] = json!({"conditions": [
            {"type": kind, "status": status, "reason": reason, "message": "changes every time"}]});
        hpa
    };
    let finding = |condition, reason: &str| Finding::ConditionFalse {
        hpa: "llama".to_owned(),
        condition,
        reason: reason.to_owned(),
    };
    let inactive = [finding(HpaCondition::ScalingActive, failed)];
    assert_eq!(
        inactive[0].to_string(),
        "HPA llama computes no replicas: its condition ScalingActive is False \
         (FailedGetExternalMetric); kubectl describe hpa llama shows the message"
    );

    for silent in [
        hpa("llama", "llama"),
        condition("ScalingActive", "True", "ValidMetricFound"),
        condition("ScalingActive", "Unknown", failed),
        condition("ScalingLimited", "False", "DesiredWithinRange"),
        // It had no replicas when this was written, and has three now.
        condition("ScalingActive", "False", "ScalingDisabled"),
    ] {
        let state = judging.found(&condition("ScalingActive", "False", failed), &inactive).await;
        assert!(state.follower.is_some());
        judging.found(&silent, &[]).await;
    }

    let unable = condition("AbleToScale", "False", "FailedGetScale");
    judging.found(&unable, &[finding(HpaCondition::AbleToScale, "FailedGetScale")]).await;
}

#[tokio::test]
async fn an_hpa_that_zero_replicas_switch_off_is_found_once() {
    let mut judging = Judging::start(&["llama"], 0).await;
    let off = Finding::ScalingDisabled { hpa: "llama".to_owned() };
    judging.found(&hpa("llama", "llama"), std::slice::from_ref(&off)).await;
    let mut said = hpa("llama", "llama");
    said["spec"]["maxReplicas"] = json!(9);
    said["status"] = json!({"conditions": [
        {"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled"}]});
    judging.found(&said, &[off]).await;

    // KEDA itself starts the first replica; and a minimum of 0 keeps an HPA on.
    let mut from_zero = hpa("llama", "llama");
    from_zero["spec"]["minReplicas"] = json!(0);
    judging.found(&from_zero, &[]).await;
    said["metadata"]["labels"] = json!({"scaledobject.keda.sh/name": "llama"});
    judging.fake.put(HPAS, &said);
    let kept = |state: &VariantState| state.findings.is_empty() && is_bounded_by_two(state);
    judging.watching.until(&judging.llama, kept).await;
}

fn is_bounded_by_two(state: &VariantState) -> bool {
    matches!(&state.scale, Scale::Known(scale)
        if scale.bounds.is_some_and(|bounds| bounds.min().count() == 2))
}
