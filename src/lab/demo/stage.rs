//! The fleet on real sockets: an HTTP server for each ready replica, and a file that lists them.
//!
//! A replica's port is bound when the replica is created and listens when it is ready, so that its
//! address is known from the start and refuses connections until then, as an engine's does. A
//! replica that drains stops listening at once. The lists are files in the format of Prometheus'
//! `file_sd_configs`, one for each variant, replaced as a whole.

use std::collections::BTreeMap;
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
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::demo::fleet::{Fleet, State};
use crate::demo::scenario::Scenario;
use crate::simulate::Micros;
use crate::simulate::page;
use crate::simulate::replica::settings::SettingsError;
use plimsoll_daemon::clock::Clock;

/// Connections that may wait to be accepted; scrapers open one or two each.
const BACKLOG: u32 = 64;

/// The fleet and its sockets.
#[derive(Debug)]
pub struct Stage {
    shared: Shared,
    directory: PathBuf,
    doors: BTreeMap<String, Door>,
    /// The content of each variant's list, as last written.
    written: Vec<String>,
    tracker: TaskTracker,
    cancel: CancellationToken,
}

/// The fleet, for whoever needs to look at it or change it.
#[derive(Clone, Debug)]
pub struct Shared {
    fleet: Arc<Mutex<Fleet>>,
    clock: Clock,
    /// The clock's time when the simulation's began.
    began: Duration,
}

/// Why the stage could not be set up or kept.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// An engine of the scenario cannot be.
    #[error("the scenario has an impossible engine")]
    Engine(#[from] SettingsError),
    /// No port could be had on loopback.
    #[error("cannot bind a port on loopback")]
    Bind(#[source] io::Error),
    /// A list of targets could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
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
    /// Listening, until the token is cancelled.
    Open(CancellationToken),
    /// No longer listening.
    Shut,
}

// === impl Shared ===

impl Shared {
    /// The fleet, at the present time.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        // A panic elsewhere leaves a fleet whose state is still in order of time.
        let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        fleet.advance_to(self.now());
        fleet
    }

    /// The time of the simulation.
    #[must_use]
    pub fn now(&self) -> Micros {
        Micros::from_duration(self.clock.elapsed().saturating_sub(self.began))
    }
}

// === impl Stage ===

impl Stage {
    /// Opens the ports of the first replicas and writes the first lists into `directory`. The
    /// simulation's time begins here.
    ///
    /// # Errors
    ///
    /// Ports or files cannot be had.
    pub fn open(
        scenario: Scenario,
        directory: &Path,
        clock: Clock,
        tracker: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Result<Self, StageError> {
        let fleet = Fleet::new(Arc::new(scenario), clock.now())?;
        let mut stage = Self {
            written: vec![String::new(); fleet.scenario().variants().count()],
            shared: Shared { fleet: Arc::new(Mutex::new(fleet)), clock, began: clock.elapsed() },
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
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// The file that lists a variant's targets.
    #[must_use]
    pub fn targets_file(directory: &Path, variant: &str) -> PathBuf {
        directory.join(format!("{variant}.json"))
    }

    /// Makes the sockets and the lists what the fleet is now.
    ///
    /// # Errors
    ///
    /// Ports or files cannot be had.
    pub fn follow(&mut self) -> Result<(), StageError> {
        let (scenario, members) = {
            let fleet = self.shared.fleet();
            let scenario = Arc::clone(fleet.scenario());
            let members = (0..self.written.len())
                .map(|index| {
                    let members = fleet.members(index);
                    members.map(|(name, state)| (name.to_owned(), state)).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>();
            (scenario, members)
        };
        for (name, state) in members.iter().flatten() {
            self.move_door(name, *state)?;
        }
        self.doors.retain(|name, door| {
            let exists = members.iter().flatten().any(|(member, _)| member == name);
            if !exists {
                door.shut();
            }
            exists
        });
        for (index, (model, variant)) in scenario.variants().enumerate() {
            let addresses = members[index]
                .iter()
                .filter(|(_, state)| *state != State::Draining)
                .filter_map(|(name, _)| self.doors.get(name))
                .map(|door| door.address.to_string())
                .collect::<Vec<_>>();
            let labels =
                json!({ "variant": variant.key.variant.as_str(), "model": model.name.as_str() });
            let list = format!("{:#}\n", json!([{ "targets": addresses, "labels": labels }]));
            if self.written[index] != list {
                let path = Self::targets_file(&self.directory, variant.key.variant.as_str());
                replace(&path, &list).map_err(|source| StageError::Write { path, source })?;
                self.written[index] = list;
            }
        }
        Ok(())
    }

    fn move_door(&mut self, name: &str, state: State) -> Result<(), StageError> {
        if !self.doors.contains_key(name) {
            let door = Door::bind().map_err(StageError::Bind)?;
            self.doors.insert(name.to_owned(), door);
        }
        let Some(door) = self.doors.get_mut(name) else { return Ok(()) };
        match state {
            State::Starting(_) => {}
            State::Draining => door.shut(),
            State::Ready(_) => {
                if let DoorState::Bound(_) = door.state
                    && let DoorState::Bound(socket) =
                        std::mem::replace(&mut door.state, DoorState::Shut)
                {
                    let listener = socket.listen(BACKLOG).map_err(StageError::Bind)?;
                    let cancel = self.cancel.child_token();
                    door.state = DoorState::Open(cancel.clone());
                    let (shared, name) = (self.shared.clone(), name.to_owned());
                    let tracker = self.tracker.clone();
                    self.tracker.spawn(serve(listener, shared, name.into(), tracker, cancel));
                }
            }
        }
        Ok(())
    }
}

// === impl Door ===

impl Door {
    fn bind() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Self { address: socket.local_addr()?, state: DoorState::Bound(socket) })
    }

    fn shut(&mut self) {
        if let DoorState::Open(cancel) = std::mem::replace(&mut self.state, DoorState::Shut) {
            cancel.cancel();
        }
    }
}

/// Accepts connections until it is cancelled, which closes the port and the connections.
async fn serve(
    listener: TcpListener,
    shared: Shared,
    name: Arc<str>,
    tracker: TaskTracker,
    cancel: CancellationToken,
) {
    while let Some(accepted) = cancel.run_until_cancelled(listener.accept()).await {
        let Ok((stream, _)) = accepted else { continue };
        let (shared, name, cancel) = (shared.clone(), Arc::clone(&name), cancel.clone());
        tracker.spawn(async move {
            let service = hyper::service::service_fn(|request| {
                let response = answer(&request, &shared, &name);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // A scraper that hangs up is no event of the demo.
            let _ = cancel.run_until_cancelled(connection).await;
        });
    }
}

fn answer<B>(request: &Request<B>, shared: &Shared, name: &str) -> Response<Full<Bytes>> {
    match request.uri().path() {
        "/metrics" => match shared.fleet().page(name) {
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

/// Replaces a file as a whole, so that no reader sees a part of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}
