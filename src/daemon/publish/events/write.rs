//! Writing events to the API server.
//!
//! A new event is created. When its name is taken, or when it was said again, its count is raised
//! by a patch that holds only for the version that was read, so that two writers lose nothing. The
//! version is read with an empty patch, which needs no permission to read events.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as KubernetesEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersion, Status};
use kube::discovery;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::publish::events::{Event, Outcome, Reason, Reference, Reporter};

/// What the API server knows us as.
const CONTROLLER: &str = "plimsoll";

/// The longest name of one of several daemons that the API server takes.
const INSTANCE_MAX: usize = 128;

/// Time for one request. An event is not worth more.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Attempts at a server that does not answer or is busy, with delays from [`DELAY`] that double:
/// 31 seconds in all, in which an API server restarts.
const ATTEMPTS_MAX: u32 = 6;

/// The first delay after a failure.
const DELAY: Duration = Duration::from_secs(1);

/// Attempts to raise a count that somebody else is raising too.
const RACES_MAX: u32 = 4;

/// Writes events.
pub(crate) struct Writer {
    client: kube::Client,
    clock: Clock,
    instance: String,
    /// What the API server calls the kinds that events were about. Bounded by the kinds of the
    /// cluster.
    resources: BTreeMap<(String, String), ApiResource>,
    trouble: Option<Trouble>,
}

/// An event that was said so many times, last at an instant.
#[derive(Clone, Copy)]
struct Statement<'a> {
    at: Timestamp,
    event: &'a Event,
    times: u32,
    known: Known,
}

/// Whether we have written the object before.
#[derive(Clone, Copy)]
enum Known {
    Yes,
    No,
}

/// Something that keeps events from being written, and is said once when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Refused,
    Invalid,
    Away,
}

/// Why a request gave nothing.
#[derive(Debug)]
enum Failure {
    /// The name is taken, or another version is there.
    Conflict,
    /// It is not there, or its namespace is being deleted.
    Gone,
    /// There is no permission.
    Refused(String),
    /// The API server does not take it.
    Invalid(String),
    /// The API server is away or busy.
    Away(String),
}

impl Writer {
    pub(crate) fn new(reporter: Reporter, clock: Clock) -> Self {
        let Reporter { client, mut instance } = reporter;
        let end = (0..=instance.len().min(INSTANCE_MAX)).rev();
        let end = end.into_iter().find(|end| instance.is_char_boundary(*end));
        instance.truncate(end.unwrap_or_default());
        if instance.is_empty() {
            CONTROLLER.clone_into(&mut instance);
        }
        Self { client, clock, instance, resources: BTreeMap::new(), trouble: None }
    }

    /// Writes an event that happened at `at`; counts it where it is there already.
    pub(crate) async fn create(&mut self, at: Timestamp, event: &Event) -> Outcome {
        self.insist(Statement { at, event, times: 1, known: Known::No }).await
    }

    /// Counts an event that was said so many times more, last just now.
    pub(crate) async fn count(&mut self, event: &Event, times: u32) -> Outcome {
        self.insist(Statement { at: self.clock.now(), event, times, known: Known::Yes }).await
    }

    /// Tries until the API server takes it or says why not, with a bound.
    async fn insist(&mut self, statement: Statement<'_>) -> Outcome {
        let event = statement.event;
        let mut delay = DELAY;
        for left in (0..ATTEMPTS_MAX).rev() {
            match self.attempt(statement).await {
                Ok(outcome) => {
                    self.recovered();
                    return outcome;
                }
                Err(Failure::Gone) => {
                    debug!(namespace = event.on.namespace, name = event.on.name, "Gone");
                    return Outcome::Gone;
                }
                Err(Failure::Away(error)) => {
                    self.say(Trouble::Away, event, &error);
                    if left > 0 {
                        sleep(delay.mul_f64(rand::random_range(0.5..=1.0))).await;
                        delay *= 2;
                    }
                }
                Err(Failure::Refused(error)) => {
                    self.say(Trouble::Refused, event, &error);
                    return Outcome::Failed;
                }
                Err(Failure::Invalid(error)) => {
                    self.say(Trouble::Invalid, event, &error);
                    return Outcome::Failed;
                }
                // Others count as well; what they wrote says that it happened.
                Err(Failure::Conflict) => return Outcome::Counted,
            }
        }
        Outcome::Failed
    }

    async fn attempt(&mut self, statement: Statement<'_>) -> Result<Outcome, Failure> {
        let on = self.identify(&statement.event.on).await?;
        match statement.known {
            Known::No => match self.put(&on, statement).await {
                Err(Failure::Conflict) => self.raise(&on, statement).await,
                other => other,
            },
            Known::Yes => match self.raise(&on, statement).await {
                // It has expired, or the object that it was about was replaced.
                Err(Failure::Gone) => self.put(&on, statement).await,
                other => other,
            },
        }
    }

    fn recovered(&mut self) {
        if self.trouble.take().is_some() {
            info!("Kubernetes Events are written again");
        }
    }

    /// Says once what keeps events from being written.
    fn say(&mut self, trouble: Trouble, event: &Event, error: &str) {
        if self.trouble.replace(trouble) == Some(trouble) {
            return;
        }
        let namespace = &event.on.namespace;
        match trouble {
            Trouble::Refused => warn!(
                namespace,
                error,
                "Kubernetes Events are refused. Allow create and patch of events in the group \
                 events.k8s.io to the service account there, or set kubernetes.events: false"
            ),
            Trouble::Invalid => {
                warn!(namespace, reason = event.reason.label(), error, "An Event is not accepted");
            }
            Trouble::Away => warn!(namespace, error, "Kubernetes Events cannot be written for now"),
        }
    }

    /// The object with its uid, without which `kubectl describe` does not show its events.
    async fn identify(&mut self, on: &Reference) -> Result<Reference, Failure> {
        let mut found = on.clone();
        if found.uid.is_some() {
            return Ok(found);
        }
        // What may not be looked up can still be named.
        let Some(resource) = self.resource(on).await? else { return Ok(found) };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &on.namespace, &resource);
        let only = ListParams::default().fields(&format!("metadata.name={}", on.name));
        match answer(api.list_metadata(&only)).await {
            Ok(list) => match list.items.into_iter().next() {
                Some(object) => found.uid = object.metadata.uid,
                None => return Err(Failure::Gone),
            },
            Err(Failure::Refused(_)) => {}
            Err(other) => return Err(other),
        }
        Ok(found)
    }

    /// What the API server calls the kind; `None` when it does not know it or does not say.
    async fn resource(&mut self, on: &Reference) -> Result<Option<ApiResource>, Failure> {
        let key = (on.api_version.clone(), on.kind.clone());
        if let Some(known) = self.resources.get(&key) {
            return Ok(Some(known.clone()));
        }
        let Ok(version) = on.api_version.parse::<GroupVersion>() else { return Ok(None) };
        let kind = version.with_kind(&on.kind);
        match answer(discovery::pinned_kind(&self.client, &kind)).await {
            Ok((resource, _)) => {
                self.resources.insert(key, resource.clone());
                Ok(Some(resource))
            }
            Err(Failure::Away(error)) => Err(Failure::Away(error)),
            Err(_) => Ok(None),
        }
    }

    fn events(&self, on: &Reference) -> Api<KubernetesEvent> {
        Api::namespaced(self.client.clone(), &on.namespace)
    }

    async fn put(&self, on: &Reference, statement: Statement<'_>) -> Result<Outcome, Failure> {
        let object = object(on, statement, &self.instance);
        answer(self.events(on).create(&PostParams::default(), &object)).await?;
        Ok(Outcome::Created)
    }

    async fn raise(&self, on: &Reference, statement: Statement<'_>) -> Result<Outcome, Failure> {
        let Statement { at, event, times, known: _ } = statement;
        let (api, name) = (self.events(on), event.object_name(on.uid.as_deref()));
        let parameters = PatchParams::default();
        for _ in 0..RACES_MAX {
            let read = Patch::Merge(json!({}));
            let there = answer(api.patch(&name, &parameters, &read)).await?;
            let series = series(there.series.map_or(1, |series| series.count), times, at);
            let raised = Patch::Merge(json!({
                "metadata": {"resourceVersion": there.metadata.resource_version},
                "series": series,
            }));
            match answer(api.patch(&name, &parameters, &raised)).await {
                Ok(_) => return Ok(Outcome::Counted),
                Err(Failure::Conflict) => {}
                Err(other) => return Err(other),
            }
        }
        Err(Failure::Conflict)
    }
}

fn series(known: i32, times: u32, at: Timestamp) -> EventSeries {
    let count = known.saturating_add(i32::try_from(times).unwrap_or(i32::MAX));
    EventSeries { count, last_observed_time: MicroTime(at) }
}

fn object(on: &Reference, statement: Statement<'_>, instance: &str) -> KubernetesEvent {
    let Statement { at, event, times, known: _ } = statement;
    let Event { on: _, reason, note } = event;
    let Reference { api_version, kind, namespace, name, uid } = on.clone();
    KubernetesEvent {
        metadata: ObjectMeta {
            name: Some(event.object_name(uid.as_deref())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(at)),
        type_: Some(reason.severity().label().to_owned()),
        reason: Some(reason.label().to_owned()),
        action: Some(Reason::action(*reason).to_owned()),
        note: Some(note.clone()),
        regarding: Some(ObjectReference {
            api_version: Some(api_version),
            kind: Some(kind),
            namespace: Some(namespace),
            name: Some(name),
            uid,
            ..ObjectReference::default()
        }),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        series: (times > 1).then(|| series(0, times, at)),
        ..KubernetesEvent::default()
    }
}

async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match timeout(REQUEST_MAX, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(refusal(&status)),
        Ok(Err(kube::Error::Discovery(error))) => Err(Failure::Invalid(error.to_string())),
        Ok(Err(error)) => Err(Failure::Away(error.to_string())),
        Err(_) => Err(Failure::Away("there was no answer in time".to_owned())),
    }
}

/// What a refusal means.
fn refusal(status: &Status) -> Failure {
    let message = || status.message.clone();
    let terminating = || {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
    };
    match status.code {
        403 if terminating() => Failure::Gone,
        403 => Failure::Refused(message()),
        404 => Failure::Gone,
        409 => Failure::Conflict,
        400 | 405 | 406 | 413 | 415 | 422 => Failure::Invalid(message()),
        code => Failure::Away(format!("{code} {}", message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Status {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_not_a_missing_permission() {
        let terminating = status(
            r#"{"code":403,"reason":"Forbidden","message":"m",
                "details":{"causes":[{"reason":"NamespaceTerminating","message":"","field":""}]}}"#,
        );
        assert!(matches!(refusal(&terminating), Failure::Gone));
        let forbidden = status(r#"{"code":403,"reason":"Forbidden","message":"m"}"#);
        assert!(matches!(refusal(&forbidden), Failure::Refused(_)));
    }

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_not() {
        let of = |code: u16| refusal(&status(&format!(r#"{{"code":{code},"message":"m"}}"#)));
        for code in [401, 429, 500, 503, 504] {
            assert!(matches!(of(code), Failure::Away(_)), "{code}");
        }
        for code in [400, 422] {
            assert!(matches!(of(code), Failure::Invalid(_)), "{code}");
        }
        assert!(matches!(of(404), Failure::Gone) && matches!(of(409), Failure::Conflict));
    }
}
