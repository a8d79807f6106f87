//! The simulated fleet: an engine at the address of every pod, all on one port. Engines can be
//! broken, all together or one of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::engine::{EngineResponse, read_head, write};
use crate::page;

/// The behavior of an engine.
#[derive(Clone)]
pub(crate) enum Behavior {
    /// It returns the metrics of its load.
    Honest,
    /// It takes requests and answers none.
    Hang,
    /// It sends the head of a response and nothing more.
    StallAfterHead,
    /// It resets the connection in the middle of a response.
    Reset,
    /// It answers after this time.
    Slow(Duration),
    /// It answers after 300 ms, and resets every twentieth connection.
    Lossy,
    /// It answers with these bytes.
    Bytes(Arc<EngineResponse>),
    /// It changes the metrics of its load.
    Edited(fn(String) -> String),
    /// It returns its metrics behind another head, such as another status.
    Head(&'static str),
    /// It returns the metrics of this load, whatever its load is.
    Frozen(f64),
}

struct FleetState {
    /// The load of the model, in replicas that it would fill.
    load: f64,
    /// The replicas that share the load.
    replicas: u32,
    all: Behavior,
    single: BTreeMap<IpAddr, Behavior>,
    requests: u64,
}

/// The engines of one variant.
pub(crate) struct Fleet {
    pub(crate) port: u16,
    /// Keeps the port from others while nothing listens there. Two sockets share an address only if both
    /// permit it, so this one permits it while the engines listen.
    place: TcpSocket,
    state: Arc<Mutex<FleetState>>,
    serving: Mutex<Option<JoinSet<()>>>,
}

/// The address of the pod with this number.
pub(crate) fn address(number: u32) -> IpAddr {
    let [.., high, low] = (number + 256).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 64, high, low + 1))
}

// === impl Fleet ===

impl Fleet {
    pub(crate) async fn start(load: f64) -> Self {
        let place = TcpSocket::new_v4().unwrap();
        place.bind(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
        let port = place.local_addr().unwrap().port();
        let state = FleetState {
            load,
            replicas: 1,
            all: Behavior::Honest,
            single: BTreeMap::new(),
            requests: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let fleet = Self { port, place, state, serving: Mutex::new(None) };
        fleet.open().await;
        fleet
    }

    fn serve(&self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(serve(stream, Arc::clone(&state)));
                while connections.try_join_next().is_some() {}
            }
        });
        *self.serving.lock().unwrap() = Some(serving);
    }

    /// Closes the port, and every connection.
    pub(crate) async fn close(&self) {
        self.place.set_reuseaddr(false).unwrap();
        let serving = self.serving.lock().unwrap().take();
        if let Some(mut serving) = serving {
            serving.shutdown().await;
        }
    }

    /// Listens again.
    pub(crate) async fn open(&self) {
        let address = SocketAddr::from(([0, 0, 0, 0], self.port));
        self.place.set_reuseaddr(true).unwrap();
        self.serve(TcpListener::bind(address).await.unwrap());
    }

    pub(crate) fn load(&self, load: f64) {
        self.state.lock().unwrap().load = load;
    }

    /// Shares the load among this many replicas.
    pub(crate) fn share(&self, replicas: u32) {
        self.state.lock().unwrap().replicas = replicas.max(1);
    }

    pub(crate) fn behave(&self, behavior: Behavior) {
        let mut state = self.state.lock().unwrap();
        state.all = behavior;
        state.single.clear();
    }

    /// Changes the engine of one pod.
    pub(crate) fn behave_at(&self, pod: u32, behavior: Behavior) {
        self.state.lock().unwrap().single.insert(address(pod), behavior);
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.state.lock().unwrap().requests
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<FleetState>>) {
    let Ok(local) = stream.local_addr() else { return };
    while read_head(&mut stream).await.is_some() {
        let (behavior, share, number) = {
            let mut state = state.lock().unwrap();
            state.requests += 1;
            let own = state.single.get(&local.ip()).unwrap_or(&state.all).clone();
            (own, state.load / f64::from(state.replicas), state.requests)
        };
        if answer(&mut stream, behavior, share, number).await.is_none() {
            return;
        }
    }
}

async fn answer(stream: &mut TcpStream, behavior: Behavior, share: f64, number: u64) -> Option<()> {
    let honest = || EngineResponse::whole(page::render(share));
    match behavior {
        Behavior::Honest => write(stream, &honest()).await,
        Behavior::Hang => std::future::pending().await,
        Behavior::StallAfterHead => {
            let stalled = EngineResponse { parts: 0, ..honest() };
            write(stream, &stalled).await?;
            std::future::pending().await
        }
        Behavior::Reset => {
            let whole = honest();
            let half = whole.part.slice(..whole.part.len() / 2);
            write(stream, &EngineResponse { part: half, ..whole }).await?;
            stream.set_zero_linger().ok()?;
            None
        }
        Behavior::Slow(time) => {
            sleep(time).await;
            write(stream, &honest()).await
        }
        Behavior::Lossy => {
            sleep(Duration::from_millis(300)).await;
            if number.is_multiple_of(20) {
                stream.set_zero_linger().ok()?;
                return None;
            }
            write(stream, &honest()).await
        }
        Behavior::Bytes(response) => {
            write(stream, &response).await?;
            match response.end {
                crate::engine::ResponseEnd::KeepAlive => Some(()),
                crate::engine::ResponseEnd::Close => None,
                crate::engine::ResponseEnd::Hold => std::future::pending().await,
            }
        }
        Behavior::Edited(edit) => {
            write(stream, &EngineResponse::whole(edit(page::render(share)))).await
        }
        Behavior::Head(head) => {
            let whole = honest();
            let length = whole.part.len();
            let head = format!("{head}\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            write(stream, &EngineResponse { head, ..whole }).await
        }
        Behavior::Frozen(share) => write(stream, &EngineResponse::whole(page::render(share))).await,
    }
}
