//! The demo's HPA: asks the daemon for each variant's metric, and scales the fleet.
//!
//! It asks what a HPA controller asks, in the way in which the API server passes the question on:
//! over HTTPS with the front proxy's client certificate, naming the controller's service account.
//! The arithmetic after the answer is the simulation's. Any answer but a good one holds
//! the variant where it is.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::demo::pki::Pki;
use crate::demo::stage::Shared;
use crate::simulate::scaler::{MetricError, MilliValue};
use crate::simulate::scenario::{SYNC, Scenario};
use plimsoll_daemon::publish::quantity::Quantity;

/// The metric that a variant's HPA follows.
const METRIC: &str = "plimsoll_desired_replicas";
/// The controller's name for itself.
const USER: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";
/// The groups that this name belongs to.
const GROUPS: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
/// How long one question may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks and scales.
#[derive(Debug)]
pub struct Actuator {
    client: reqwest::Client,
    variants: Vec<Followed>,
    log: watch::Sender<Vec<Followed>>,
}

/// A variant and what its HPA last did.
#[derive(Clone, Debug)]
pub struct Followed {
    url: String,
    /// What the last question came to.
    pub answer: Answer,
}

/// What a question for the metric came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing was asked yet.
    NotAsked,
    /// The metric's value.
    Value(MilliValue),
    /// The daemon answered, and not with a value.
    Status(u16),
    /// There was no answer that could be read; says why.
    Failed(String),
}

/// Why nothing can be asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot build the HTTP client")]
pub struct ClientError(#[source] reqwest::Error);

impl Actuator {
    /// An HPA for each variant of the scenario, and a place to see what they do.
    ///
    /// # Errors
    ///
    /// The certificates cannot be used.
    pub fn new(
        scenario: &Scenario,
        api: SocketAddr,
        pki: &Pki,
    ) -> Result<(Self, watch::Receiver<Vec<Followed>>), ClientError> {
        let identity = format!("{}{}", pki.proxy_certificate, pki.proxy_key);
        let authority = reqwest::Certificate::from_pem(pki.serving_authority.as_bytes());
        let client = reqwest::Client::builder()
            .tls_certs_only([authority.map_err(ClientError)?])
            .identity(reqwest::Identity::from_pem(identity.as_bytes()).map_err(ClientError)?)
            .timeout(TIMEOUT)
            .build()
            .map_err(ClientError)?;
        let variants = scenario
            .variants
            .iter()
            .map(|variant| Followed {
                url: format!(
                    "https://{api}/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{METRIC}\
                     ?labelSelector=variant%3D{}",
                    variant.spec.key.namespace, variant.spec.key.variant
                ),
                answer: Answer::NotAsked,
            })
            .collect::<Vec<_>>();
        let (log, seen) = watch::channel(variants.clone());
        Ok((Self { client, variants, log }, seen))
    }

    /// Syncs all variants once in each period of the first until it is cancelled.
    pub async fn run(mut self, fleet: Shared, cancel: CancellationToken) {
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
    pub async fn sync(&mut self, fleet: &Shared) {
        for (index, followed) in self.variants.iter_mut().enumerate() {
            followed.answer = ask(&self.client, &followed.url).await;
            let metric = match followed.answer {
                Answer::Value(value) => Ok(value),
                Answer::NotAsked | Answer::Status(_) | Answer::Failed(_) => Err(MetricError),
            };
            fleet.fleet().follow(index, metric);
        }
        self.log.send_replace(self.variants.clone());
    }
}

async fn ask(client: &reqwest::Client, url: &str) -> Answer {
    let mut request = client.get(url).header("X-Remote-User", USER);
    for group in GROUPS {
        request = request.header("X-Remote-Group", group);
    }
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => return Answer::Failed(innermost(&error)),
    };
    if !response.status().is_success() {
        return Answer::Status(response.status().as_u16());
    }
    let body = response.bytes().await.ok();
    match body.and_then(|body| sum(&serde_json::from_slice(&body).ok()?)) {
        Some(value) => Answer::Value(value),
        None => Answer::Failed("the answer cannot be read".to_owned()),
    }
}

/// The sum over all items of an `ExternalMetricValueList`; an empty list is an error to an HPA.
fn sum(list: &Value) -> Option<MilliValue> {
    let items = list.get("items")?.as_array().filter(|items| !items.is_empty())?;
    let milli = |item: &Value| {
        let quantity: Quantity = item.get("value")?.as_str()?.parse().ok()?;
        Some(quantity.milli())
    };
    let values = items.iter().map(milli);
    values.sum::<Option<i64>>().map(MilliValue)
}

/// The end of a chain of errors, which says what went wrong; the rest says what was attempted.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_summed_and_an_empty_list_is_no_value() {
        let list = |text: &str| serde_json::from_str(text).unwrap();
        assert_eq!(
            sum(&list(r#"{"items":[{"value":"2"},{"value":"1500m"}]}"#)),
            Some(MilliValue(3_500))
        );
        for text in [r#"{"items":[]}"#, r#"{"items":null}"#, "{}", r#"{"items":[{"value":3}]}"#] {
            assert_eq!(sum(&list(text)), None, "{text}");
        }
    }
}
