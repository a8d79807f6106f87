//! The daemon as attackers see it: addresses, identities, and the answers that they got.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::external_metrics_harness::{Authority, Http, Leaf, Use, Validity, client_tls};

/// Time for which an attacker waits for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Bytes of an answer that an attacker reads.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// The identity that a client claims by its certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Identity {
    /// No certificate.
    Stranger,
    /// A certificate with the front proxy's name, of another authority.
    Forger,
    /// A certificate of the front proxy's authority with another name.
    Misnamed,
    /// The front proxy, which forwards requests of any user.
    FrontProxy,
}

/// One of the daemon's ports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Plain,
    Tls,
    /// That of KEDA's scalers, without TLS.
    Grpc,
}

/// The certificates of both sides.
pub(crate) struct Credentials {
    pub(crate) serving: Authority,
    pub(crate) front_proxy: Authority,
    pub(crate) proxy_leaf: Leaf,
}

/// A running daemon as the aim of an attack.
pub(crate) struct Aim {
    pub(crate) plain: SocketAddr,
    pub(crate) tls: SocketAddr,
    grpc: SocketAddr,
    configs: BTreeMap<(Identity, bool), Arc<ClientConfig>>,
    answers: Mutex<BTreeMap<String, u64>>,
}

/// A connection, encrypted or not.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// The address of an attacker by its number.
pub(crate) fn address(number: u16) -> IpAddr {
    let [high, low] = [number / 250, number % 250].map(|it| u8::try_from(it).unwrap());
    IpAddr::from([127, 1, high, 1 + low])
}

/// The address from which the daemon accepts changes, as through `kubectl port-forward`.
pub(crate) fn own(_number: u16) -> IpAddr {
    IpAddr::from([127, 0, 0, 1])
}

/// Runs workers that act again and again.
pub(crate) async fn swarm<A, F>(aim: Arc<Aim>, workers: u16, act: A)
where
    A: Fn(Arc<Aim>, u16) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut workers_running = JoinSet::new();
    for number in 0..workers {
        let aim = Arc::clone(&aim);
        let act = act.clone();
        workers_running.spawn(async move {
            loop {
                act(Arc::clone(&aim), number).await;
                yield_now().await;
            }
        });
    }

    while workers_running.join_next().await.is_some() {}
}

// === impl Credentials ===

impl Credentials {
    pub(crate) fn new() -> Self {
        let front_proxy = Authority::new("front-proxy-ca");
        let proxy_leaf = front_proxy.issue("front-proxy-client", Use::Client, Validity::Now);
        Self { serving: Authority::new("serving-ca"), front_proxy, proxy_leaf }
    }

    fn leaf(&self, identity: Identity) -> Option<Leaf> {
        match identity {
            Identity::Stranger => None,
            Identity::Forger => {
                let other = Authority::new("front-proxy-ca");
                Some(other.issue("front-proxy-client", Use::Client, Validity::Now))
            }
            Identity::Misnamed => {
                Some(self.front_proxy.issue("mallory", Use::Client, Validity::Now))
            }
            Identity::FrontProxy => Some(self.proxy_leaf.clone()),
        }
    }
}

// === impl Aim ===

impl Aim {
    pub(crate) fn new([plain, tls, grpc]: [SocketAddr; 3], credentials: &Credentials) -> Self {
        let mut configs = BTreeMap::new();
        for identity in
            [Identity::Stranger, Identity::Forger, Identity::Misnamed, Identity::FrontProxy]
        {
            let leaf = credentials.leaf(identity);
            for http in [Http::One, Http::Two] {
                let mut config = client_tls(&credentials.serving.pem, leaf.as_ref(), http);
                // Every handshake costs the server as much as it can.
                config.resumption = Resumption::disabled();
                configs.insert((identity, http == Http::Two), Arc::new(config));
            }
        }

        Self { plain, tls, grpc, configs, answers: Mutex::default() }
    }

    /// The TLS settings of a client.
    pub(crate) fn config(&self, identity: Identity, http: Http) -> Arc<ClientConfig> {
        Arc::clone(&self.configs[&(identity, http == Http::Two)])
    }

    /// A connection that is reset when it is dropped, so that no port of the client stays in use.
    pub(crate) async fn connect(&self, port: Port, from: IpAddr) -> Option<TcpStream> {
        let server = match port {
            Port::Plain => self.plain,
            Port::Tls => self.tls,
            Port::Grpc => self.grpc,
        };
        let socket = TcpSocket::new_v4().ok()?;
        socket.set_recv_buffer_size(4096).ok()?;
        socket.set_zero_linger().ok()?;
        let connected = match socket.bind(SocketAddr::new(from, 0)) {
            Ok(()) => timeout(ANSWER_MAX, socket.connect(server)).await.ok().and_then(Result::ok),
            Err(_) => None,
        };

        if connected.is_none() {
            self.note("not connected");
            sleep(Duration::from_millis(10)).await;
        }
        connected
    }

    pub(crate) async fn connect_tls(
        &self,
        identity: Identity,
        http: Http,
        from: IpAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let stream = self.connect(Port::Tls, from).await?;
        let connector = TlsConnector::from(self.config(identity, http));
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let shaken = timeout(ANSWER_MAX, connector.connect(name, stream)).await;
        let shaken = shaken.ok().and_then(Result::ok);
        if shaken.is_none() {
            self.note("no handshake");
        }

        shaken
    }

    /// A connection for HTTP/1.1 without a certificate.
    pub(crate) async fn open(&self, port: Port, from: IpAddr) -> Option<Box<dyn Wire>> {
        match port {
            Port::Plain | Port::Grpc => Some(Box::new(self.connect(port, from).await?)),
            Port::Tls => {
                let stream = self.connect_tls(Identity::Stranger, Http::One, from).await?;
                Some(Box::new(stream))
            }
        }
    }

    /// Sends bytes, reads meanwhile, and notes the answer.
    pub(crate) async fn exchange(&self, stream: impl Wire, bytes: &[u8]) {
        let mut received = Vec::new();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let sending = async {
            let _closed = writer.write_all(bytes).await;
            pending::<()>().await;
        };
        let reading = async {
            while received.len() < ANSWER_BYTES_MAX {
                match reader.read_buf(&mut received).await {
                    Ok(0) | Err(_) => return true,
                    Ok(_) => {}
                }
            }
            false
        };

        let closed = tokio::select! {
            () = sending => true,
            closed = timeout(ANSWER_MAX, reading) => closed.unwrap_or(false),
        };
        let answer = read_answer(&received);
        self.note(answer.as_deref().unwrap_or(if closed { "closed" } else { "silence" }));
    }

    /// Sends bytes without reading, and then holds the connection.
    pub(crate) async fn push(&self, mut stream: impl Wire, bytes: &[u8]) {
        match timeout(ANSWER_MAX, stream.write_all(bytes)).await {
            Ok(Ok(())) => {
                self.note("taken");
                sleep(ANSWER_MAX).await;
            }
            Ok(Err(_)) => self.note("closed"),
            Err(_) => self.note("not read"),
        }
    }

    /// Counts an answer.
    pub(crate) fn note(&self, answer: &str) {
        *self.answers.lock().unwrap().entry(answer.to_owned()).or_default() += 1;
    }

    /// The answers so far, each with its number.
    pub(crate) fn answers(&self) -> BTreeMap<String, u64> {
        self.answers.lock().unwrap().clone()
    }
}

/// The status of an HTTP/1.1 response, or the error by which an HTTP/2 connection or stream ended.
fn read_answer(bytes: &[u8]) -> Option<String> {
    if let Some(rest) = bytes.strip_prefix(b"HTTP/1.1 ") {
        return Some(String::from_utf8_lossy(rest.get(..3)?).into_owned());
    }

    let mut rest = bytes;
    let mut answer = None;
    while let [a, b, c, kind, _, _, _, _, _, after @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let payload = after.get(..length)?;
        rest = &after[length..];
        match kind {
            1 => answer = answer.or(Some("response".to_owned())),
            3 => answer = Some(format!("reset {}", error_name(payload.get(3))?)),
            7 => return Some(format!("goaway {}", error_name(payload.get(7))?)),
            _ => answer = answer.or(Some("frames".to_owned())),
        }
    }

    answer
}

/// The name of an HTTP/2 error code (RFC 9113, section 7).
fn error_name(code: Option<&u8>) -> Option<&'static str> {
    const NAMES: [&str; 14] = [
        "no error",
        "protocol error",
        "internal error",
        "flow control error",
        "settings timeout",
        "stream closed",
        "frame size error",
        "refused stream",
        "cancel",
        "compression error",
        "connect error",
        "enhance your calm",
        "inadequate security",
        "HTTP/1.1 required",
    ];
    NAMES.get(usize::from(*code?)).copied()
}
