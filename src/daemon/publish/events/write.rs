//! Writes events to the API server.
//!
//! A new event is created. If its name is taken or the event repeats, a patch increases its count.
//! The patch names the version that was read, so two writers lose no counts. The version is read
//! with an empty patch, which needs no permission to read events.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersion, Status};
use kube::discovery;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::publish::events::event::{EventReason, EventSubject, ReportedEvent};

/// The name by which the API server knows Plimsoll.
const CONTROLLER: &str = "plimsoll";

/// The longest instance name that the API server accepts, in bytes.
const INSTANCE_MAX: usize = 128;

/// Time limit for one request. An event is not worth a longer wait.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Attempts if the API server does not respond or is busy. The delays start at [`DELAY`] and
/// double, up to 31 seconds in total, in which an API server restarts.
const ATTEMPTS_MAX: u32 = 6;

/// The first delay after a failure.
const DELAY: Duration = Duration::from_secs(1);

/// Attempts to increase a count while another writer also increases it.
const RACES_MAX: u32 = 4;

/// The writer of events.
#[derive(Clone)]
pub struct EventReporter {
    /// The client that writes them.
    pub client: kube::Client,
    /// The name of the pod, which identifies this daemon replica.
    pub instance: String,
}

/// The outcome of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    /// It was created as an object.
    Created,
    /// It was counted in an existing object with the same content.
    Counted,
    /// The rate limit dropped it.
    Limited,
    /// The queue was full and dropped it.
    Overflowed,
    /// The object that it is about no longer exists.
    Gone,
    /// The API server did not accept it.
    Failed,
}

/// Writes events.
pub(crate) struct EventWriter {
    client: kube::Client,
    clock: Clock,
    instance: String,
    /// The API resources of the kinds that events were about. The kinds in the cluster bound its
    /// size.
    resources: BTreeMap<(String, String), ApiResource>,
    trouble: Option<WriteTrouble>,
}

/// An event with the number of its occurrences and the time of the last.
#[derive(Clone, Copy)]
struct EventStatement<'a> {
    at: Timestamp,
    event: &'a ReportedEvent,
    times: u32,
    known: PriorWrite,
}

/// Tells whether this process has written the object before.
#[derive(Clone, Copy)]
enum PriorWrite {
    Yes,
    No,
}

/// A problem that prevents writing events. It is logged once when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteTrouble {
    Refused,
    Invalid,
    Away,
}

/// The reason why a request failed.
#[derive(Debug)]
enum WriteFailure {
    /// The name is taken, or the object has another version.
    Conflict,
    /// The object does not exist, or its namespace is being deleted.
    Gone,
    /// The permission is missing.
    Refused(String),
    /// The API server rejects the object as invalid.
    Invalid(String),
    /// The API server is unreachable or busy.
    Away(String),
}

impl EventOutcome {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Counted => "counted",
            Self::Limited => "limited",
            Self::Overflowed => "overflowed",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

impl EventWriter {
    pub(crate) fn new(reporter: EventReporter, clock: Clock) -> Self {
        let EventReporter { client, mut instance } = reporter;
        let end =
            (0..=instance.len().min(INSTANCE_MAX)).rev().find(|it| instance.is_char_boundary(*it));
        instance.truncate(end.unwrap_or_default());
        if instance.is_empty() {
            CONTROLLER.clone_into(&mut instance);
        }

        Self { client, clock, instance, resources: BTreeMap::new(), trouble: None }
    }

    /// Creates the Event for an event that happened at `at`, or counts it if the object already
    /// exists.
    pub(crate) async fn create(&mut self, at: Timestamp, event: &ReportedEvent) -> EventOutcome {
        self.insist(EventStatement { at, event, times: 1, known: PriorWrite::No }).await
    }

    /// Adds `times` occurrences to an event, the last of them just now.
    pub(crate) async fn count(&mut self, event: &ReportedEvent, times: u32) -> EventOutcome {
        self.insist(EventStatement { at: self.clock.now(), event, times, known: PriorWrite::Yes })
            .await
    }

    /// Retries a limited number of times until the API server accepts or rejects the event.
    async fn insist(&mut self, statement: EventStatement<'_>) -> EventOutcome {
        let event = statement.event;
        let mut delay = DELAY;
        for left in (0..ATTEMPTS_MAX).rev() {
            match self.attempt(statement).await {
                Ok(outcome) => {
                    self.recovered();
                    return outcome;
                }
                Err(WriteFailure::Gone) => {
                    debug!(namespace = event.on.namespace, name = event.on.name, "Gone");
                    return EventOutcome::Gone;
                }
                Err(WriteFailure::Away(error)) => {
                    self.say(WriteTrouble::Away, event, &error);
                    if left > 0 {
                        sleep(delay.mul_f64(rand::random_range(0.5..=1.0))).await;
                        delay *= 2;
                    }
                }
                Err(WriteFailure::Refused(error)) => {
                    self.say(WriteTrouble::Refused, event, &error);
                    return EventOutcome::Failed;
                }
                Err(WriteFailure::Invalid(error)) => {
                    self.say(WriteTrouble::Invalid, event, &error);
                    return EventOutcome::Failed;
                }
                // Other writers increase the same count, so their writes already report the event.
                Err(WriteFailure::Conflict) => return EventOutcome::Counted,
            }
        }

        EventOutcome::Failed
    }

    async fn attempt(
        &mut self,
        statement: EventStatement<'_>,
    ) -> Result<EventOutcome, WriteFailure> {
        let on = self.identify(&statement.event.on).await?;

        match statement.known {
            PriorWrite::No => match self.put(&on, statement).await {
                Err(WriteFailure::Conflict) => self.raise(&on, statement).await,
                other => other,
            },
            PriorWrite::Yes => match self.raise(&on, statement).await {
                // The Event has expired, or the object that it is about was replaced.
                Err(WriteFailure::Gone) => self.put(&on, statement).await,
                other => other,
            },
        }
    }

    fn recovered(&mut self) {
        if self.trouble.take().is_some() {
            info!("Kubernetes Events can be written again");
        }
    }

    /// Logs a problem once when it begins.
    fn say(&mut self, trouble: WriteTrouble, event: &ReportedEvent, error: &str) {
        if self.trouble.replace(trouble) == Some(trouble) {
            return;
        }

        let namespace = &event.on.namespace;
        match trouble {
            WriteTrouble::Refused => warn!(
                namespace,
                error,
                "Kubernetes Events are refused. Allow the service account to create and patch \
                 events in the group events.k8s.io there, or set kubernetes.events: false"
            ),
            WriteTrouble::Invalid => {
                warn!(namespace, reason = event.reason.label(), error, "An Event is not accepted");
            }
            WriteTrouble::Away => {
                warn!(namespace, error, "Kubernetes Events cannot be written for now");
            }
        }
    }

    /// Returns the object with its uid. Without the uid, `kubectl describe` does not show its
    /// events.
    async fn identify(&mut self, on: &EventSubject) -> Result<EventSubject, WriteFailure> {
        let mut found = on.clone();
        if found.uid.is_some() {
            return Ok(found);
        }

        // Without permission to look up the object, the event still names it.
        let Some(resource) = self.resource(on).await? else { return Ok(found) };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &on.namespace, &resource);
        let only = ListParams::default().fields(&format!("metadata.name={}", on.name));
        match answer(api.list_metadata(&only)).await {
            Ok(list) => match list.items.into_iter().next() {
                Some(object) => found.uid = object.metadata.uid,
                None => return Err(WriteFailure::Gone),
            },
            Err(WriteFailure::Refused(_)) => {}
            Err(other) => return Err(other),
        }

        Ok(found)
    }

    /// Returns the API resource of the kind; `None` if the API server does not know the kind or
    /// does not allow the lookup.
    async fn resource(&mut self, on: &EventSubject) -> Result<Option<ApiResource>, WriteFailure> {
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
            Err(WriteFailure::Away(error)) => Err(WriteFailure::Away(error)),
            Err(_) => Ok(None),
        }
    }

    fn events(&self, on: &EventSubject) -> Api<Event> {
        Api::namespaced(self.client.clone(), &on.namespace)
    }

    async fn put(
        &self,
        on: &EventSubject,
        statement: EventStatement<'_>,
    ) -> Result<EventOutcome, WriteFailure> {
        let object = object(on, statement, &self.instance);
        answer(self.events(on).create(&PostParams::default(), &object)).await?;
        Ok(EventOutcome::Created)
    }

    async fn raise(
        &self,
        on: &EventSubject,
        statement: EventStatement<'_>,
    ) -> Result<EventOutcome, WriteFailure> {
        let EventStatement { at, event, times, known: _ } = statement;
        let api = self.events(on);
        let name = event.object_name(on.uid.as_deref());
        let parameters = PatchParams::default();
        for _ in 0..RACES_MAX {
            let read = Patch::Merge(json!({}));
            let there = answer(api.patch(&name, &parameters, &read)).await?;
            let known = there.series.map_or(1, |it| it.count);
            let raised = Patch::Merge(json!({
                "metadata": {"resourceVersion": there.metadata.resource_version},
                "series": series(known, times, at),
            }));
            match answer(api.patch(&name, &parameters, &raised)).await {
                Ok(_) => return Ok(EventOutcome::Counted),
                Err(WriteFailure::Conflict) => {}
                Err(other) => return Err(other),
            }
        }

        Err(WriteFailure::Conflict)
    }
}

fn series(known: i32, times: u32, at: Timestamp) -> EventSeries {
    let count = known.saturating_add(i32::try_from(times).unwrap_or(i32::MAX));
    EventSeries { count, last_observed_time: MicroTime(at) }
}

fn object(on: &EventSubject, statement: EventStatement<'_>, instance: &str) -> Event {
    let EventStatement { at, event, times, known: _ } = statement;
    let ReportedEvent { on: _, reason, note } = event;
    let EventSubject { api_version, kind, namespace, name, uid } = on.clone();

    Event {
        metadata: ObjectMeta {
            name: Some(event.object_name(uid.as_deref())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(at)),
        type_: Some(reason.severity().label().to_owned()),
        reason: Some(reason.label().to_owned()),
        action: Some(EventReason::action(*reason).to_owned()),
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
        ..Event::default()
    }
}

async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteFailure> {
    match timeout(REQUEST_MAX, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(refusal(&status)),
        Ok(Err(kube::Error::Discovery(error))) => Err(WriteFailure::Invalid(error.to_string())),
        Ok(Err(error)) => Err(WriteFailure::Away(error.to_string())),
        Err(_) => Err(WriteFailure::Away("the request timed out".to_owned())),
    }
}

/// Maps a rejected request to a failure.
fn refusal(status: &Status) -> WriteFailure {
    let message = &status.message;

    match status.code {
        403 if namespace_is_terminating(status) => WriteFailure::Gone,
        403 => WriteFailure::Refused(message.clone()),
        404 => WriteFailure::Gone,
        409 => WriteFailure::Conflict,
        400 | 405 | 406 | 413 | 415 | 422 => WriteFailure::Invalid(message.clone()),
        code => WriteFailure::Away(format!("{code} {message}")),
    }
}

fn namespace_is_terminating(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures::{AskedRequest, CapturedLog, ScriptedApi, paused_now};

    /// An event about an object whose uid is known, so that nothing is looked up.
    fn event() -> ReportedEvent {
        let on = EventSubject {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "shop".to_owned(),
            name: "llama".to_owned(),
            uid: Some("uid".to_owned()),
        };
        ReportedEvent { on, reason: EventReason::ScaledUp, note: "2 -> 3".to_owned() }
    }

    fn writer(client: kube::Client, instance: &str) -> EventWriter {
        let instance = instance.to_owned();
        EventWriter::new(EventReporter { client, instance }, Clock::start())
    }

    /// The Event as an API server returns it, with this version and count.
    fn stored(version: &str, count: i32) -> (u16, Value) {
        let series = json!({"count": count, "lastObservedTime": "2026-11-21T09:30:00.000000Z"});
        let metadata = json!({"name": "llama", "namespace": "shop", "resourceVersion": version});
        (200, json!({"metadata": metadata, "series": series}))
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_away_is_asked_six_times_with_growing_delays() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let client = api.client(|number, request| match number {
            6..=7 => (200, request.body.clone()),
            _ => (503, Value::Null),
        });
        let mut writer = writer(client, "pod");
        let began = paused_now();
        let outcome = writer.create(Timestamp::UNIX_EPOCH, &event()).await;
        assert_eq!(outcome, EventOutcome::Failed);
        let asked = api.asked();
        assert_eq!(api.methods(), ["POST"; 6]);
        for (number, most) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16)] {
            let waited = asked[number].at.saturating_sub(asked[number - 1].at).as_millis();
            assert!((most * 500..=most * 1000 + 1).contains(&waited), "{number}: {waited}");
        }
        assert_eq!(began.elapsed(), asked[5].at, "after the last attempt nothing is waited for");
        assert_eq!(log.count("Kubernetes Events cannot be written for now"), 1);

        for _ in 0..2 {
            let outcome = writer.create(Timestamp::UNIX_EPOCH, &event()).await;
            assert_eq!(outcome, EventOutcome::Created);
        }
        assert_eq!(log.count("Kubernetes Events can be written again"), 1);
        writer.create(Timestamp::UNIX_EPOCH, &event()).await;
        assert_eq!(log.count("Kubernetes Events cannot be written for now"), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_or_invalid_is_tried_once_and_each_problem_is_logged_once() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let codes = [403, 403, 422, 422, 403, 404];
        let client = api.client(move |number, _| (codes[number], Value::Null));
        let mut writer = writer(client, "pod");
        let mut outcomes = Vec::new();
        for _ in codes {
            outcomes.push(writer.create(Timestamp::UNIX_EPOCH, &event()).await);
        }
        let (failed, gone) = (EventOutcome::Failed, EventOutcome::Gone);
        assert_eq!(outcomes, [failed, failed, failed, failed, failed, gone]);
        assert_eq!(api.methods(), ["POST"; 6]);
        let lines = ["Kubernetes Events are refused", "An Event is not accepted"];
        assert_eq!(lines.map(|line| log.count(line)), [2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_is_added_to_the_version_that_was_read_and_a_race_is_given_up() {
        let api = ScriptedApi::default();
        let client = api.client(|number, _| match number {
            0 => stored("7", 20),
            2 => stored("8", 22),
            3 => stored("9", 25),
            number if number > 3 && number % 2 == 0 => stored("10", 30),
            _ => (409, Value::Null),
        });
        let mut writer = writer(client, "pod");
        assert_eq!(writer.count(&event(), 3).await, EventOutcome::Counted);
        let raised = |asked: &AskedRequest| {
            let version = asked.body["metadata"]["resourceVersion"].clone();
            (version, asked.body["series"]["count"].clone())
        };
        let asked = api.asked();
        assert_eq!(asked.len(), 4);
        assert_eq!((&asked[0].body, &asked[2].body), (&json!({}), &json!({})), "only read");
        assert_eq!(raised(&asked[1]), ("7".into(), 23.into()));
        assert_eq!(raised(&asked[3]), ("8".into(), 25.into()));

        // Another writer is always faster, and its writes already report the event.
        assert_eq!(writer.count(&event(), 3).await, EventOutcome::Counted);
        assert_eq!(api.methods().len(), 4 + 2 * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_has_expired_is_written_again_with_its_count() {
        let api = ScriptedApi::default();
        let client = api.client(|_, request| match request.method.as_str() {
            "PATCH" => (404, Value::Null),
            _ => (200, request.body.clone()),
        });
        let mut writer = writer(client, &"é".repeat(100));
        assert_eq!(writer.count(&event(), 1).await, EventOutcome::Created);
        assert_eq!(writer.count(&event(), 2).await, EventOutcome::Created);
        assert_eq!(api.methods(), ["PATCH", "POST", "PATCH", "POST"]);
        let asked = api.asked();
        assert!(asked[1].body["series"].is_null(), "once is no series: {}", asked[1].body);
        assert_eq!(asked[3].body["series"]["count"], 2);
        let instance = asked[3].body["reportingInstance"].as_str().unwrap();
        assert_eq!(instance, "é".repeat(64), "at most 128 bytes, and no half character");
        assert_eq!(asked[3].body["reportingController"], "plimsoll");
        assert_eq!(asked[3].body["type"], "Normal");
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_without_a_name_reports_as_plimsoll() {
        let api = ScriptedApi::default();
        let client = api.client(|_, request| (200, request.body.clone()));
        let outcome = writer(client, "").create(Timestamp::UNIX_EPOCH, &event()).await;
        assert_eq!(outcome, EventOutcome::Created);
        assert_eq!(api.asked()[0].body["reportingInstance"], "plimsoll");
    }

    fn status(text: &str) -> Status {
        serde_json::from_str(text).unwrap()
    }

    fn refusal_of(code: u16) -> WriteFailure {
        refusal(&status(&format!(r#"{{"code":{code},"message":"m"}}"#)))
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_not_a_missing_permission() {
        let terminating = status(
            r#"{"code":403,"reason":"Forbidden","message":"m",
                "details":{"causes":[{"reason":"NamespaceTerminating","message":"","field":""}]}}"#,
        );
        assert!(matches!(refusal(&terminating), WriteFailure::Gone));
        let forbidden = status(r#"{"code":403,"reason":"Forbidden","message":"m"}"#);
        assert!(matches!(refusal(&forbidden), WriteFailure::Refused(_)));
    }

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_not() {
        for code in [401, 429, 500, 503, 504] {
            assert!(matches!(refusal_of(code), WriteFailure::Away(_)), "{code}");
        }
        for code in [400, 422] {
            assert!(matches!(refusal_of(code), WriteFailure::Invalid(_)), "{code}");
        }

        assert!(matches!(refusal_of(404), WriteFailure::Gone));
        assert!(matches!(refusal_of(409), WriteFailure::Conflict));
    }
}
