//! The fleet on real sockets: an HTTP server for each ready replica, and a file that lists them.
//!
//! A replica's port is bound when the replica is created, and listens when it is ready. So its
//! address is known from the start but refuses connections until then, as an engine's does. A
//! draining replica stops listening at once.
//!
//! The lists are files in the format of Prometheus' `file_sd_configs`, one per variant, and are
//! replaced atomically.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::demo::scenario::DemoSetup;
use crate::simulate::Micros;
use crate::simulate::page;
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::run::{PodState, Simulation};
use plimsoll_daemon::clock::Clock;

/// Connections that may wait to be accepted; each scraper opens one or two.
const BACKLOG: u32 = 64;

/// The fleet and its sockets.
#[derive(Debug)]
pub struct DemoStage {
    shared: SharedFleet,
    directory: PathBuf,
    /// The ports by replica number.
    doors: BTreeMap<usize, Door>,
    /// The content of each variant's list, as last written.
    written: Vec<String>,
    tracker: TaskTracker,
    cancel: CancellationToken,
}

/// The fleet, shared with tasks that read or change it.
#[derive(Clone, Debug)]
pub struct SharedFleet {
    fleet: Arc<Mutex<Simulation<'static>>>,
    clock: Clock,
    /// The clock's time at the start of the simulation.
    began: Duration,
    /// The wall-clock time at the start of the simulation.
    epoch: Timestamp,
}

/// The reason why the stage failed.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// An engine of the scenario is invalid.
    #[error("the scenario has an impossible engine")]
    Engine(#[from] SettingsError),
    /// No port on loopback is available.
    #[error("cannot bind a port on loopback")]
    Bind(#[source] io::Error),
    /// A list of targets could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path of the list.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: io::Error,
    },
}

/// A replica's port.
#[derive(Debug)]
struct Door {
    address: SocketAddr,
    state: DoorState,
}

#[derive(Debug)]
enum DoorState {
    /// Bound and not listening: connections are refused.
    Bound(TcpSocket),
    /// Listening, until the guard is dropped.
    Open(#[expect(dead_code, reason = "it acts when it is dropped")] DropGuard),
    /// No longer listening.
    Shut,
}

// === impl SharedFleet ===

impl SharedFleet {
    /// The fleet, advanced to the current time.
    pub fn fleet(&self) -> MutexGuard<'_, Simulation<'static>> {
        // A panic in another task leaves a consistent fleet.
        let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self.clock.elapsed().saturating_sub(self.began);
        fleet.advance_to(Micros::from_duration(passed));
        fleet
    }
}

// === impl DemoStage ===

impl DemoStage {
    /// Opens the ports of the first replicas and writes the first lists into `directory`. The
    /// simulation's time starts at this call.
    ///
    /// # Errors
    ///
    /// Ports or files are unavailable.
    pub fn open(
        played: &DemoSetup,
        directory: &Path,
        clock: Clock,
        tracker: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Result<Self, StageError> {
        let fleet = Arc::new(Mutex::new(Simulation::new(played.scenario, played.seed)?));
        let mut stage = Self {
            written: vec![String::new(); played.scenario.variants.len()],
            shared: SharedFleet { fleet, clock, began: clock.elapsed(), epoch: clock.now() },
            directory: directory.to_owned(),
            doors: BTreeMap::new(),
            tracker: tracker.clone(),
            cancel: cancel.clone(),
        };

        stage.follow()?;
        Ok(stage)
    }

    /// The fleet, for other tasks.
    #[must_use]
    pub fn shared(&self) -> SharedFleet {
        self.shared.clone()
    }

    /// The file that lists a variant's targets.
    #[must_use]
    pub fn targets_file(directory: &Path, variant: &str) -> PathBuf {
        directory.join(format!("{variant}.json"))
    }

    /// Updates the sockets and the lists to the current state of the fleet.
    ///
    /// # Errors
    ///
    /// Ports or files are unavailable.
    pub fn follow(&mut self) -> Result<(), StageError> {
        let fleet = self.shared.fleet();
        let scenario = fleet.scenario();
        let replicas: Vec<Vec<(usize, PodState)>> =
            (0..self.written.len()).map(|variant| fleet.replicas(variant).collect()).collect();
        drop(fleet);

        for &(replica, state) in replicas.iter().flatten() {
            self.move_door(replica, state)?;
        }

        self.doors.retain(|number, _| replicas.iter().flatten().any(|(it, _)| it == number));

        for (index, variant) in scenario.variants.iter().enumerate() {
            let addresses = replicas[index]
                .iter()
                .filter(|(_, state)| *state != PodState::Draining)
                .filter_map(|(replica, _)| self.doors.get(replica))
                .map(|door| door.address.to_string())
                .collect::<Vec<_>>();
            let name = variant.spec.key.variant.as_str();
            let labels = json!({ "variant": name, "model": variant.spec.model.as_str() });
            let list = format!("{:#}\n", json!([{ "targets": addresses, "labels": labels }]));
            if self.written[index] != list {
                let path = Self::targets_file(&self.directory, name);
                replace(&path, &list).map_err(|source| StageError::Write { path, source })?;
                self.written[index] = list;
            }
        }

        Ok(())
    }

    fn move_door(&mut self, replica: usize, state: PodState) -> Result<(), StageError> {
        let door = match self.doors.entry(replica) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Door::bind().map_err(StageError::Bind)?),
        };
        match state {
            PodState::Starting => {}
            PodState::Draining | PodState::Gone => door.state = DoorState::Shut,
            PodState::Ready => {
                if let DoorState::Bound(_) = door.state
                    && let DoorState::Bound(socket) =
                        std::mem::replace(&mut door.state, DoorState::Shut)
                {
                    let listener = socket.listen(BACKLOG).map_err(StageError::Bind)?;
                    let cancel = self.cancel.child_token();
                    door.state = DoorState::Open(cancel.clone().drop_guard());
                    let shared = self.shared.clone();
                    let tracker = self.tracker.clone();
                    self.tracker.spawn(serve(listener, shared, replica, tracker, cancel));
                }
            }
        }

        Ok(())
    }
}

// === impl DemoSetup ===

impl DemoSetup {
    /// The variants of the configuration, with a file in this folder for the targets of each.
    #[must_use]
    pub fn with_targets(&self, folder: &Path) -> Value {
        let mut variants = self.config["variants"].clone();
        for variant in variants.as_array_mut().into_iter().flatten() {
            let name = variant["name"].as_str().unwrap_or_default();
            let path = DemoStage::targets_file(folder, name);
            variant["targets"] = json!({"file": {"paths": [path], "refresh": "1s"}});
        }
        variants
    }
}

// === impl Door ===

impl Door {
    fn bind() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Self { address: socket.local_addr()?, state: DoorState::Bound(socket) })
    }
}

/// Accepts connections until cancellation, which closes the port and the connections.
async fn serve(
    listener: TcpListener,
    shared: SharedFleet,
    replica: usize,
    tracker: TaskTracker,
    cancel: CancellationToken,
) {
    while let Some(accepted) = cancel.run_until_cancelled(listener.accept()).await {
        let Ok((stream, _)) = accepted else { continue };
        let shared = shared.clone();
        let cancel = cancel.clone();
        tracker.spawn(async move {
            let service = hyper::service::service_fn(|request| {
                let response = answer(&request, &shared, replica);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // A scraper may disconnect at any time.
            let _ = cancel.run_until_cancelled(connection).await;
        });
    }
}

fn answer<B>(request: &Request<B>, shared: &SharedFleet, replica: usize) -> Response<Full<Bytes>> {
    match request.uri().path() {
        "/metrics" => match shared.fleet().page(replica, shared.epoch) {
            Some(text) => {
                let mut response = Response::new(Full::from(text));
                let kind = HeaderValue::from_static(page::CONTENT_TYPE);
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            None => empty(StatusCode::SERVICE_UNAVAILABLE),
        },
        "/health" => empty(StatusCode::OK),
        _ => empty(StatusCode::NOT_FOUND),
    }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}
