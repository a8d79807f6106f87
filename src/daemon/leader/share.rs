//! The leader's document, which every replica reads.
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
//!   decisions.json: '{"version":1,…}'
//! ```
//!
//! A new leader claims the document before it decides: it reads it, and writes it back with a term
//! of its own. Documents are ordered by term and then by sequence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::leader::{Leadership, Settings};

/// The largest body. A `ConfigMap` may have a mebibyte with everything in it.
pub const BODY_MAX: usize = 900 << 10;

/// What the body says before anything was decided.
pub const EMPTY: &str = "{}";

/// Time for one request.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// The delay after a write that failed, and its longest: a change of a number waits for it.
const DELAY: Duration = Duration::from_millis(250);
const DELAY_MAX: Duration = Duration::from_secs(4);

const TERM: &str = "term";
const SEQUENCE: &str = "sequence";
const HOLDER: &str = "holder";
const BODY: &str = "decisions.json";

/// Counts the claims of the document: a later leader has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub u64);

/// Where in a history of documents one belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Whose it is.
    pub term: Term,
    /// Which of theirs.
    pub sequence: u64,
}

/// A history, and a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The uid of the object: one that was deleted and made again begins another history.
    pub history: String,
    /// Where in it.
    pub position: Position,
}

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Where it belongs.
    pub place: Place,
    /// Who wrote it.
    pub holder: String,
    /// What it says.
    pub body: Arc<str>,
}

/// An object that is no document.
#[derive(Debug, thiserror::Error)]
#[error(
    "ConfigMap {name}: data.{key} {problem}; delete the object, and the leader writes it again"
)]
pub struct DocumentError {
    name: String,
    key: &'static str,
    problem: &'static str,
}

/// A body that the leader wants written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Which one; a later one has a higher number.
    pub number: u64,
    /// The term that it was decided in. It is not written in another one.
    pub term: Term,
    /// What it says.
    pub body: Arc<str>,
}

/// What this replica may do with the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seat {
    /// Read it.
    #[default]
    Reader,
    /// Write it.
    Writer {
        /// In this term.
        term: Term,
        /// What it said when it was claimed, if there was one.
        inherited: Option<Document>,
        /// The number of the last draft that was written in this term; 0 before the first.
        written: u64,
        /// Where what we wrote last belongs.
        place: Place,
    },
}

/// Writes the document while this replica leads.
pub struct Desk {
    api: Api<ConfigMap>,
    settings: Settings,
    clock: Clock,
    leadership: watch::Receiver<Leadership>,
    drafts: watch::Receiver<Option<Draft>>,
    seat: watch::Sender<Seat>,
    /// The latest position that we know of, whatever became of the object.
    known: Position,
    /// The version of the object that our next write replaces.
    version: Option<String>,
    delay: Duration,
    troubled: bool,
}

/// What is to be written.
enum Work {
    Claim,
    Write(Draft),
}

// === impl Document ===

impl Document {
    /// Reads the object.
    ///
    /// # Errors
    ///
    /// A key is missing or is not what it should be.
    pub fn read(object: &ConfigMap) -> Result<Self, DocumentError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let empty = BTreeMap::new();
        let entries = object.data.as_ref().unwrap_or(&empty);
        let failed = |key, problem| DocumentError { name: name.clone(), key, problem };
        let text = |key| entries.get(key).ok_or_else(|| failed(key, "is missing"));
        let number =
            |key| text(key)?.parse::<u64>().map_err(|_| failed(key, "is not a whole number"));
        let position = Position { term: Term(number(TERM)?), sequence: number(SEQUENCE)? };
        let history = object.metadata.uid.clone().unwrap_or_default();
        Ok(Self {
            place: Place { history, position },
            holder: text(HOLDER)?.clone(),
            body: text(BODY)?.as_str().into(),
        })
    }
}

// === impl Desk ===

impl Desk {
    /// A desk, and what it says of what we may do.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: Settings,
        clock: Clock,
        leadership: watch::Receiver<Leadership>,
        drafts: watch::Receiver<Option<Draft>>,
    ) -> (Self, watch::Receiver<Seat>) {
        let api = Api::namespaced(client, &settings.namespace);
        let (seat, receiver) = watch::channel(Seat::default());
        let desk = Self {
            api,
            settings,
            clock,
            leadership,
            drafts,
            seat,
            known: Position::default(),
            version: None,
            delay: DELAY,
            troubled: false,
        };
        (desk, receiver)
    }

    /// Claims the document when we lead, and writes drafts while we do, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.turn()).await.is_some() {}
    }

    async fn turn(&mut self) {
        if !self.leads() {
            self.leave();
            // The lead also ends by the clock, and nobody tells us. Whoever acts on the seat looks
            // at the lead as well.
            let _changed_or_not = timeout(REQUEST_MAX, self.leadership.changed()).await;
            return;
        }
        let outcome = match self.next() {
            Some(Work::Claim) => timeout(REQUEST_MAX, self.claim()).await,
            Some(Work::Write(draft)) => timeout(REQUEST_MAX, self.write(draft)).await,
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
            // Somebody else wrote or deleted it: claim it again, if we still lead.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => return self.leave(),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && self.version.is_some() => {
                return self.leave();
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "there was no answer in time".to_owned(),
        };
        // Whether it was written is not known, so neither is the version.
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
        self.seat.send_if_modified(|seat| std::mem::take(seat) != Seat::Reader);
    }

    /// What there is to do.
    fn next(&mut self) -> Option<Work> {
        let draft = self.drafts.borrow_and_update().clone();
        match &*self.seat.borrow() {
            Seat::Writer { term, written, .. } if self.version.is_some() => {
                let draft = draft.filter(|it| it.term == *term && it.number > *written)?;
                Some(Work::Write(draft))
            }
            Seat::Writer { .. } | Seat::Reader => Some(Work::Claim),
        }
    }

    /// Makes the document ours: from here on, whatever a predecessor sends is refused.
    async fn claim(&mut self) -> kube::Result<()> {
        let found = self.api.get_opt(&self.settings.document()).await?;
        let version = found.as_ref().and_then(|object| object.metadata.resource_version.clone());
        let inherited = match found.as_ref().map(Document::read) {
            Some(Ok(document)) => Some(document),
            Some(Err(problem)) => {
                warn!(error = %problem, "The shared decisions cannot be read: writing them again");
                None
            }
            None => None,
        };
        if let Some(document) = &inherited {
            self.known = self.known.max(document.place.position);
        }
        let Position { term: Term(term), sequence } = self.known;
        let position = Position { term: Term(term + 1), sequence: sequence + 1 };
        let body = inherited.as_ref().map_or_else(|| EMPTY.into(), |it| Arc::clone(&it.body));
        let place = self.put(version, position, &body).await?;
        let term = position.term;
        info!(term = term.0, "This replica writes the decisions");
        self.seat.send_replace(Seat::Writer { term, inherited, written: 0, place });
        Ok(())
    }

    async fn write(&mut self, draft: Draft) -> kube::Result<()> {
        let position = Position { term: draft.term, sequence: self.known.sequence + 1 };
        let new = self.put(self.version.clone(), position, &draft.body).await?;
        self.seat.send_modify(|seat| {
            if let Seat::Writer { term, written, place, .. } = seat
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
        position: Position,
        body: &str,
    ) -> kube::Result<Place> {
        let parameters = PostParams::default();
        let object = self.object(version.clone(), position, body);
        let written = match version {
            None => self.api.create(&parameters, &object).await,
            Some(_) => self.api.replace(&self.settings.document(), &parameters, &object).await,
        };
        let metadata = written?.metadata;
        self.version = metadata.resource_version;
        self.known = self.known.max(position);
        Ok(Place { history: metadata.uid.unwrap_or_default(), position })
    }

    fn object(&self, version: Option<String>, position: Position, body: &str) -> ConfigMap {
        let Position { term: Term(term), sequence } = position;
        let entries = [
            (TERM, term.to_string()),
            (SEQUENCE, sequence.to_string()),
            (HOLDER, self.settings.identity.clone()),
            (BODY, body.to_owned()),
        ];
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.settings.document()),
                namespace: Some(self.settings.namespace.clone()),
                resource_version: version,
                ..ObjectMeta::default()
            },
            data: Some(entries.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ConfigMap::default()
        }
    }

    fn say(&mut self, error: &str) {
        if !std::mem::replace(&mut self.troubled, true) {
            warn!(
                namespace = self.settings.namespace,
                config_map = self.settings.document(),
                error,
                "The decisions cannot be shared, so no number changes. The service account needs \
                 get, list, watch, create and update of configmaps there"
            );
        }
    }

    fn recovered(&mut self) {
        self.delay = DELAY;
        if std::mem::take(&mut self.troubled) {
            info!("The decisions are shared again");
        }
    }
}
