//! The demo's HPA: reads each variant's metric from the daemon, and scales the fleet.
//!
//! It sends the requests of an HPA controller as the API server forwards them: over HTTPS, with the
//! front proxy's client certificate and the name of the controller's service account. The
//! simulation does the arithmetic after that. Without a valid metric, the variant keeps its scale.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::demo::pki::Pki;
use crate::demo::stage::SharedFleet;
use crate::simulate::scaler::{MetricError, MilliValue};
use crate::simulate::scenario::{SYNC, Scenario};
use plimsoll_daemon::publish::quantity::Quantity;

/// The metric that a variant's HPA follows.
const METRIC: &str = "plimsoll_desired_replicas";
/// The user name of the controller.
const USER: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";
/// The groups of this user.
const GROUPS: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the metrics and scales the variants.
#[derive(Debug)]
pub struct HpaActuator {
    client: reqwest::Client,
    variants: Vec<HpaTarget>,
    log: watch::Sender<Vec<HpaTarget>>,
}

/// A variant and the last result of its HPA.
#[derive(Clone, Debug)]
pub struct HpaTarget {
    url: String,
    /// The result of the last request.
    pub answer: MetricAnswer,
}

/// The result of a request for the metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricAnswer {
    /// No request was sent yet.
    NotAsked,
    /// The metric's value.
    Value(MilliValue),
    /// The daemon responded with an error status.
    Status(u16),
    /// There was no readable response; the text is the cause.
    Failed(String),
}

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("cannot build the HTTP client")]
pub struct ActuatorError(#[source] reqwest::Error);

impl HpaActuator {
    /// An HPA for each variant of the scenario, and a receiver for their results.
    ///
    /// # Errors
    ///
    /// The certificates are invalid.
    pub fn new(
        scenario: &Scenario,
        api: SocketAddr,
        pki: &Pki,
    ) -> Result<(Self, watch::Receiver<Vec<HpaTarget>>), ActuatorError> {
        let identity = format!("{}{}", pki.proxy_certificate, pki.proxy_key);
        let authority = reqwest::Certificate::from_pem(pki.serving_authority.as_bytes());
        let client = reqwest::Client::builder()
            .tls_certs_only([authority.map_err(ActuatorError)?])
            .identity(reqwest::Identity::from_pem(identity.as_bytes()).map_err(ActuatorError)?)
            .timeout(TIMEOUT)
            .build()
            .map_err(ActuatorError)?;

        let variants = scenario
            .variants
            .iter()
            .map(|variant| HpaTarget {
                url: format!(
                    "https://{api}/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{METRIC}\
                     ?labelSelector=variant%3D{}",
                    variant.spec.key.namespace, variant.spec.key.variant
                ),
                answer: MetricAnswer::NotAsked,
            })
            .collect::<Vec<_>>();

        let (log, seen) = watch::channel(variants.clone());
        Ok((Self { client, variants, log }, seen))
    }

    /// Syncs all variants periodically until cancellation. The period is that of the first
    /// variant's HPA.
    pub async fn run(mut self, fleet: SharedFleet, cancel: CancellationToken) {
        let first = fleet.fleet().scenario().variants.first();
        let hpa = first.and_then(|variant| variant.actuator.hpa());
        let period = hpa.map_or(SYNC, |hpa| hpa.sync).duration();

        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
            if cancel.run_until_cancelled(self.sync(&fleet)).await.is_none() {
                return;
            }
        }
    }

    /// Syncs all variants once.
    pub async fn sync(&mut self, fleet: &SharedFleet) {
        for (index, followed) in self.variants.iter_mut().enumerate() {
            followed.answer = ask(&self.client, &followed.url).await;
            let metric = match followed.answer {
                MetricAnswer::Value(value) => Ok(value),
                MetricAnswer::NotAsked | MetricAnswer::Status(_) | MetricAnswer::Failed(_) => {
                    Err(MetricError)
                }
            };
            fleet.fleet().follow(index, metric);
        }
        self.log.send_replace(self.variants.clone());
    }
}

async fn ask(client: &reqwest::Client, url: &str) -> MetricAnswer {
    let mut request = client.get(url).header("X-Remote-User", USER);
    for group in GROUPS {
        request = request.header("X-Remote-Group", group);
    }

    let response = match request.send().await {
        Ok(answered) => answered,
        Err(error) => return MetricAnswer::Failed(innermost(&error)),
    };
    if !response.status().is_success() {
        return MetricAnswer::Status(response.status().as_u16());
    }

    let body = response.bytes().await.ok();
    match body.and_then(|body| sum(&serde_json::from_slice(&body).ok()?)) {
        Some(value) => MetricAnswer::Value(value),
        None => MetricAnswer::Failed("the answer cannot be read".to_owned()),
    }
}

/// The sum over all items of an `ExternalMetricValueList`; an HPA treats an empty list as an error.
fn sum(list: &Value) -> Option<MilliValue> {
    let items = list.get("items")?.as_array().filter(|all| !all.is_empty())?;
    items.iter().map(milli).sum::<Option<i64>>().map(MilliValue)
}

fn milli(item: &Value) -> Option<i64> {
    let quantity: Quantity = item.get("value")?.as_str()?.parse().ok()?;
    Some(quantity.milli())
}

/// The innermost error of a chain, which is the cause; the outer ones describe the attempt.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_are_summed_and_an_empty_list_is_no_value() {
        let list = json!({"items": [{"value": "2"}, {"value": "1500m"}]});
        assert_eq!(sum(&list), Some(MilliValue(3_500)));

        for none in [
            json!({"items": []}),
            json!({"items": null}),
            json!({}),
            json!({"items": [{"value": 3}]}),
        ] {
            assert_eq!(sum(&none), None, "{none}");
        }
    }
}
