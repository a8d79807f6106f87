//! The leader's document, which every replica of the daemon reads.
//!
//! # Shape
//!
//! ```yaml
//! apiVersion: v1
//! kind: ConfigMap
//! metadata: {namespace: plimsoll, name: plimsoll-decisions}
//! data:
//!   term: "4"
//!   sequence: "812"
//!   holder: plimsoll-7c9d-x2x4q_5c1f0e9a7b3d2468
//!   decisions.json: '{}'
//! binaryData:
//!   decisions.json.zst: KLUv/QBY…
//! ```
//!
//! Earlier releases write the body as text to `data`, which is still read. The empty body there
//! tells them that the leader has no decision for them, so they keep the numbers that they show.
//!
//! A new leader claims the document before it decides: it reads the document and writes it back
//! with its own term. Documents are ordered by term and then by sequence. If the document cannot be
//! read, both continue from the version of the object, which is never below them: each write of the
//! document raises it at least as much.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use prometheus::IntCounter;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::leader::{ElectionSettings, Leadership};

/// The largest body, in bytes. Kubernetes limits the data of a `ConfigMap` to 1 MiB, counted before
/// its encoding as text.
pub const BODY_MAX: usize = 900 << 10;

/// The body before the first decision.
const EMPTY: &str = "{}";

/// Time limit for one request.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// The first and the longest delay after a failed write. A change of desired replicas waits for it.
const DELAY: Duration = Duration::from_millis(250);
const DELAY_MAX: Duration = Duration::from_secs(4);

const TERM: &str = "term";
const SEQUENCE: &str = "sequence";
const HOLDER: &str = "holder";
const BODY: &str = "decisions.json";
const PACKED_BODY: &str = "decisions.json.zst";

/// The count of claims of the document so far, except after an unreadable one. A later leader has a
/// higher term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaderTerm(pub u64);

/// The position of a document in its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentPosition {
    /// The leader's term.
    pub term: LeaderTerm,
    /// The sequence number. Every write increases it, in any term.
    pub sequence: u64,
}

/// A history and a position in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPosition {
    /// The uid of the `ConfigMap`. Deleting and recreating the object begins another history.
    pub history: String,
    /// The position in the history.
    pub position: DocumentPosition,
}

/// The body of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentBody {
    /// As text, as earlier releases write it.
    Plain(Arc<str>),
    /// Compressed.
    Packed(Arc<[u8]>),
}

/// The leader's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderDocument {
    /// The history and position of the document.
    pub place: HistoryPosition,
    /// The identity of the replica that wrote it.
    pub holder: String,
    /// The body.
    pub body: DocumentBody,
}

/// A `ConfigMap` that is not a valid document.
#[derive(Debug, thiserror::Error)]
#[error(
    "ConfigMap {name}: data.{key} {problem}; delete the object, and the leader writes it again"
)]
pub struct DocumentError {
    name: String,
    key: &'static str,
    problem: &'static str,
}

/// A body that the leader has queued for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentDraft {
    /// The number of the draft; a later draft has a higher number.
    pub number: u64,
    /// The term in which it was decided. The draft is not written in another term.
    pub term: LeaderTerm,
    /// The body.
    pub body: DocumentBody,
}

/// The access of this replica to the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DocumentAccess {
    /// Read only.
    #[default]
    Reader,
    /// Read and write.
    Writer {
        /// The term in which this replica may write.
        term: LeaderTerm,
        /// The document as this replica found it when it claimed it, if there was one.
        inherited: Option<LeaderDocument>,
        /// The number of the last draft written in this term; 0 before the first.
        written: u64,
        /// The history and position of the last document that this replica wrote.
        place: HistoryPosition,
    },
}

/// Writes the document while this replica leads.
pub struct DocumentWriter {
    api: Api<ConfigMap>,
    settings: ElectionSettings,
    clock: Clock,
    leadership: watch::Receiver<Leadership>,
    drafts: watch::Receiver<Option<DocumentDraft>>,
    seat: watch::Sender<DocumentAccess>,
    /// The latest known position, even if the object was deleted since.
    known: DocumentPosition,
    /// The resource version that the next write replaces.
    version: Option<String>,
    delay: Duration,
    troubled: bool,
    failures: IntCounter,
}

/// The next thing to write.
enum PendingWrite {
    Claim,
    Write(DocumentDraft),
}

// === impl DocumentPosition ===

impl DocumentPosition {
    /// A position that no document of an object with this version exceeds. An object that doesn't
    /// exist begins its history at the first position.
    fn limit_of(version: Option<&str>) -> Self {
        let sequence = version.and_then(|version| version.parse().ok()).unwrap_or_default();
        Self { term: LeaderTerm(sequence), sequence }
    }
}

// === impl DocumentBody ===

impl DocumentBody {
    /// The body before the first decision.
    #[must_use]
    pub fn empty() -> Self {
        Self::Plain(EMPTY.into())
    }

    /// The number of bytes that count towards [`BODY_MAX`].
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Plain(text) => text.len(),
            Self::Packed(packed) => packed.len(),
        }
    }

    fn read(object: &ConfigMap) -> Result<Self, DocumentError> {
        match object.binary_data.as_ref().and_then(|entries| entries.get(PACKED_BODY)) {
            Some(ByteString(packed)) => Ok(Self::Packed(packed.as_slice().into())),
            None => Ok(Self::Plain(text(object, BODY)?.into())),
        }
    }
}

// === impl LeaderDocument ===

impl LeaderDocument {
    /// Reads a document from its `ConfigMap`.
    ///
    /// # Errors
    ///
    /// A key is missing, or its value is invalid.
    pub fn read(object: &ConfigMap) -> Result<Self, DocumentError> {
        let term = LeaderTerm(number(object, TERM)?);
        let position = DocumentPosition { term, sequence: number(object, SEQUENCE)? };
        let history = object.metadata.uid.clone().unwrap_or_default();

        Ok(Self {
            place: HistoryPosition { history, position },
            holder: text(object, HOLDER)?.to_owned(),
            body: DocumentBody::read(object)?,
        })
    }
}

fn text<'a>(object: &'a ConfigMap, key: &'static str) -> Result<&'a str, DocumentError> {
    let entry = object.data.as_ref().and_then(|entries| entries.get(key));
    entry.map(String::as_str).ok_or_else(|| DocumentError::new(object, key, "is missing"))
}

fn number(object: &ConfigMap, key: &'static str) -> Result<u64, DocumentError> {
    let written = text(object, key)?;
    written.parse().map_err(|_| DocumentError::new(object, key, "is not a whole number"))
}

// === impl DocumentError ===

impl DocumentError {
    fn new(object: &ConfigMap, key: &'static str, problem: &'static str) -> Self {
        Self { name: object.metadata.name.clone().unwrap_or_default(), key, problem }
    }
}

// === impl DocumentWriter ===

impl DocumentWriter {
    /// Creates a desk and a receiver for the seat of this replica. `failures` counts failed writes.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: ElectionSettings,
        clock: Clock,
        leadership: watch::Receiver<Leadership>,
        drafts: watch::Receiver<Option<DocumentDraft>>,
        failures: IntCounter,
    ) -> (Self, watch::Receiver<DocumentAccess>) {
        let api = Api::namespaced(client, &settings.namespace);
        let (seat, receiver) = watch::channel(DocumentAccess::default());
        let desk = Self {
            api,
            settings,
            clock,
            leadership,
            drafts,
            seat,
            known: DocumentPosition::default(),
            version: None,
            delay: DELAY,
            troubled: false,
            failures,
        };

        (desk, receiver)
    }

    /// Claims the document when this replica leads, and writes drafts while it leads, until `stop`
    /// is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.turn()).await.is_some() {}
    }

    async fn turn(&mut self) {
        if !self.leads() {
            self.leave();
            // The lead also ends by the clock, without a notification. So every user of the seat
            // also checks the leadership.
            let _changed_or_not = timeout(REQUEST_MAX, self.leadership.changed()).await;
            return;
        }

        let outcome = match self.next() {
            Some(PendingWrite::Claim) => timeout(REQUEST_MAX, self.claim()).await,
            Some(PendingWrite::Write(draft)) => timeout(REQUEST_MAX, self.write(draft)).await,
            None => {
                tokio::select! {
                    _ = self.leadership.changed() => {}
                    _ = self.drafts.changed() => {}
                    () = sleep(REQUEST_MAX) => {}
                }
                return;
            }
        };

        let error = match outcome {
            Ok(Ok(())) => return self.recovered(),
            // Another client wrote or deleted the object: claim it again if this replica still
            // leads.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => return self.leave(),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && self.version.is_some() => {
                return self.leave();
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the request timed out".to_owned(),
        };

        // The write may or may not have succeeded, so the version is unknown.
        self.version = None;
        self.say(&error);
        sleep(self.delay.mul_f64(rand::random_range(0.5..=1.0))).await;
        self.delay = (self.delay * 2).min(DELAY_MAX);
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().leads(self.clock.elapsed())
    }

    fn leave(&mut self) {
        self.version = None;
        self.seat.send_if_modified(|seat| std::mem::take(seat) != DocumentAccess::Reader);
    }

    /// Returns the next work, if there is any.
    fn next(&mut self) -> Option<PendingWrite> {
        let draft = self.drafts.borrow_and_update().clone();
        match &*self.seat.borrow() {
            DocumentAccess::Writer { term, written, .. } if self.version.is_some() => {
                draft.filter(|it| it.term == *term && it.number > *written).map(PendingWrite::Write)
            }
            DocumentAccess::Writer { .. } | DocumentAccess::Reader => Some(PendingWrite::Claim),
        }
    }

    /// Claims the document for this replica. From here on, the API server rejects writes by earlier
    /// leaders.
    async fn claim(&mut self) -> kube::Result<()> {
        let found = self.api.get_opt(&self.settings.document()).await?;
        let version = found.as_ref().and_then(|object| object.metadata.resource_version.clone());

        let inherited = match found.as_ref().map(LeaderDocument::read) {
            Some(Ok(document)) => Some(document),
            Some(Err(problem)) => {
                warn!(error = %problem, "The shared decisions cannot be read: writing them again");
                None
            }
            None => None,
        };

        let passed = match &inherited {
            Some(document) => document.place.position,
            None => DocumentPosition::limit_of(version.as_deref()),
        };

        self.known = self.known.max(passed);

        let DocumentPosition { term: LeaderTerm(term), sequence } = self.known;
        let position = DocumentPosition { term: LeaderTerm(term + 1), sequence: sequence + 1 };
        let body = inherited.as_ref().map_or_else(DocumentBody::empty, |it| it.body.clone());
        let place = self.put(version, position, &body).await?;
        let term = position.term;
        info!(term = term.0, "This replica writes the decisions");
        self.seat.send_replace(DocumentAccess::Writer { term, inherited, written: 0, place });
        Ok(())
    }

    async fn write(&mut self, draft: DocumentDraft) -> kube::Result<()> {
        let position = DocumentPosition { term: draft.term, sequence: self.known.sequence + 1 };
        let new = self.put(self.version.clone(), position, &draft.body).await?;
        self.seat.send_modify(|seat| {
            if let DocumentAccess::Writer { term, written, place, .. } = seat
                && *term == draft.term
            {
                *written = draft.number;
                *place = new;
            }
        });

        Ok(())
    }

    async fn put(
        &mut self,
        version: Option<String>,
        position: DocumentPosition,
        body: &DocumentBody,
    ) -> kube::Result<HistoryPosition> {
        let parameters = PostParams::default();
        let object = self.object(version.clone(), position, body);
        let written = match version {
            None => self.api.create(&parameters, &object).await,
            Some(_) => self.api.replace(&self.settings.document(), &parameters, &object).await,
        };

        let metadata = written?.metadata;
        self.version = metadata.resource_version;
        self.known = self.known.max(position);
        Ok(HistoryPosition { history: metadata.uid.unwrap_or_default(), position })
    }

    fn object(
        &self,
        version: Option<String>,
        position: DocumentPosition,
        body: &DocumentBody,
    ) -> ConfigMap {
        let DocumentPosition { term: LeaderTerm(term), sequence } = position;
        let (plain, packed) = match body {
            DocumentBody::Plain(text) => (&**text, None),
            DocumentBody::Packed(packed) => (EMPTY, Some(ByteString(packed.to_vec()))),
        };
        let entries = [
            (TERM, term.to_string()),
            (SEQUENCE, sequence.to_string()),
            (HOLDER, self.settings.identity.clone()),
            (BODY, plain.to_owned()),
        ];

        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.settings.document()),
                namespace: Some(self.settings.namespace.clone()),
                resource_version: version,
                ..ObjectMeta::default()
            },
            data: Some(entries.map(|(key, value)| (key.to_owned(), value)).into()),
            binary_data: packed.map(|packed| [(PACKED_BODY.to_owned(), packed)].into()),
            ..ConfigMap::default()
        }
    }

    fn say(&mut self, error: &str) {
        self.failures.inc();
        if !std::mem::replace(&mut self.troubled, true) {
            warn!(
                namespace = self.settings.namespace,
                config_map = self.settings.document(),
                error,
                "The decisions cannot be shared, so desired replicas stay as they are. In the \
                 Lease's namespace, the service account needs get, list, watch, create and update \
                 of configmaps"
            );
        }
    }

    fn recovered(&mut self) {
        self.delay = DELAY;
        if std::mem::take(&mut self.troubled) {
            info!("The decisions can be shared again");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::fixtures::{CapturedLog, ScriptedApi};
    use crate::leader::ElectionTiming;

    fn document(version: usize, term: u64) -> (u16, Value) {
        let metadata = json!({"name": "plimsoll-decisions", "uid": "history",
                              "resourceVersion": version.to_string()});
        let data = json!({"term": term.to_string(), "sequence": (10 * term).to_string(),
                          "holder": "me", "decisions.json": "{}"});
        (200, json!({"metadata": metadata, "data": data}))
    }

    /// A writer of a replica that leads until the end of time.
    struct Writer {
        seat: watch::Receiver<DocumentAccess>,
        drafts: watch::Sender<Option<DocumentDraft>>,
        leadership: watch::Sender<Leadership>,
    }

    fn start(client: kube::Client) -> Writer {
        start_as(client, Leadership { until: Some(Duration::MAX), holder: None })
    }

    fn start_as(client: kube::Client, leads: Leadership) -> Writer {
        let limit = Duration::from_hours(1);
        let settings = ElectionSettings {
            namespace: "plimsoll".to_owned(),
            name: "plimsoll".to_owned(),
            identity: "me".to_owned(),
            pace: ElectionTiming {
                lease_duration: limit,
                renew_deadline: limit,
                retry_period: limit,
            },
        };
        let (leadership, believed) = watch::channel(leads);
        let (drafts, to_write) = watch::channel(None);
        let failures = IntCounter::new("failures", "failures").unwrap();
        let (desk, seat) =
            DocumentWriter::new(client, settings, Clock::start(), believed, to_write, failures);
        TaskTracker::new().spawn(desk.run(CancellationToken::new()));
        Writer { seat, drafts, leadership }
    }

    impl Writer {
        fn write(&self, number: u64, term: u64) {
            let body = DocumentBody::Plain(number.to_string().into());
            let draft = DocumentDraft { number, term: LeaderTerm(term), body };
            self.drafts.send_replace(Some(draft));
        }

        async fn until_term(&mut self, wanted: u64) {
            let is = |seat: &DocumentAccess| matches!(seat, DocumentAccess::Writer { term, .. } if *term == LeaderTerm(wanted));
            self.seat.wait_for(is).await.unwrap();
        }
    }

    const REFUSED: &str = "The decisions cannot be shared";
    const AGAIN: &str = "The decisions can be shared again";

    #[tokio::test(start_paused = true)]
    async fn failures_are_logged_once_and_tried_again_after_growing_delays() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let client = api.client(|number, _| match number {
            0..=7 | 10 => (500, Value::Null),
            8 => (404, Value::Null),
            _ => document(number, 1),
        });
        let mut writer = start(client);
        writer.until_term(1).await;
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (1, 1));
        assert_eq!(api.methods(), [["GET"; 9].as_slice(), &["POST"]].concat());

        writer.write(1, 1);
        let asked = api.until(12).await;
        assert_eq!(api.methods()[10..12], ["PUT", "GET"], "its version is not known any more");
        let wait =
            |number: usize| asked[number].at.saturating_sub(asked[number - 1].at).as_millis();
        for (number, most) in [(1, 250), (2, 500), (3, 1000), (4, 2000), (5, 4000), (6, 4000)] {
            assert!((most / 2..=most + 1).contains(&wait(number)), "{number}: {}", wait(number));
        }
        assert_eq!(wait(9), 0, "an absence is no failure");
        assert!((125..=251).contains(&wait(11)), "the delays begin anew: {}", wait(11));
        writer.until_term(2).await;
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_wrote_or_deleted_is_claimed_again_at_once_and_is_no_failure() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let client = api.client(|number, _| match number {
            0 | 5 | 6 => (404, Value::Null),
            2 => (409, Value::Null),
            3 => document(7, 5),
            _ => document(number, 1),
        });
        let mut writer = start(client);
        writer.until_term(1).await;
        writer.write(1, 1);
        writer.until_term(6).await;
        writer.write(2, 6);
        writer.until_term(7).await;
        let methods = ["GET", "POST", "PUT", "GET", "PUT", "PUT", "GET", "POST"];
        assert_eq!(api.methods(), methods);
        let asked = api.asked();
        assert!(asked.iter().all(|it| it.at < Duration::from_millis(100)), "{asked:#?}");
        let places = [1, 2, 4, 5, 7].map(|number: usize| {
            let data = &asked[number].body["data"];
            (data["term"].as_str().unwrap(), data["sequence"].as_str().unwrap())
        });
        let expected = [("1", "1"), ("1", "2"), ("6", "51"), ("6", "52"), ("7", "52")];
        assert_eq!(places, expected);
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_document_is_followed_by_one_that_every_replica_takes_for_newer() {
        let api = ScriptedApi::default();
        let client = api.client(|number, _| match number {
            0 => {
                let (status, mut broken) = document(812, 7);
                broken["data"].as_object_mut().unwrap().remove("term");
                (status, broken)
            }
            1 => document(813, 813),
            // A writer without an end would leave the paused clock no time to advance.
            _ => (500, Value::Null),
        });
        let mut writer = start(client);
        writer.until_term(813).await;
        let asked = api.asked();
        let data = &asked[1].body["data"];
        assert_eq!(data["term"], "813");
        assert_eq!(data["sequence"], "813");
    }

    #[tokio::test(start_paused = true)]
    async fn a_draft_is_written_once_and_then_the_next() {
        let api = ScriptedApi::default();
        let client = api.client(|number, _| match number {
            0 => (404, Value::Null),
            1..=9 => document(number, 1),
            // A writer without an end would leave the paused clock no time to advance.
            _ => (500, Value::Null),
        });
        let mut writer = start(client);
        writer.until_term(1).await;
        let written = |seat: &DocumentAccess| match seat {
            DocumentAccess::Writer { written, .. } => Some(*written),
            DocumentAccess::Reader => None,
        };
        for number in [1, 2] {
            writer.write(number, 1);
            let wait = writer.seat.wait_for(|seat| written(seat) == Some(number));
            let told = tokio::time::timeout(Duration::from_mins(10), wait).await;
            told.expect("the seat tells what is written").unwrap();
            tokio::time::sleep(Duration::from_mins(10)).await;
        }
        assert_eq!(api.methods(), ["GET", "POST", "PUT", "PUT"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_does_not_lead_reads_and_writes_nothing() {
        let api = ScriptedApi::default();
        let client = api.client(|number, _| document(number, 1));
        let mut writer = start_as(client, Leadership::default());
        writer.write(1, 1);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(api.methods(), Vec::<String>::new());
        assert_eq!(*writer.seat.borrow(), DocumentAccess::Reader);

        writer.leadership.send_modify(|it| it.until = Some(Duration::MAX));
        writer.until_term(2).await;
        writer.leadership.send_modify(|it| it.until = None);
        writer.seat.wait_for(|seat| *seat == DocumentAccess::Reader).await.unwrap();
        let before = api.methods().len();
        writer.write(2, 2);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(api.methods().len(), before);
    }

    #[test]
    fn the_size_of_a_body_is_that_of_its_bytes() {
        assert_eq!(DocumentBody::Plain("abc".into()).size(), 3);
        assert_eq!(DocumentBody::Packed([1, 2].as_slice().into()).size(), 2);
        assert_eq!(DocumentBody::empty().size(), EMPTY.len());
    }
}
