//! HTTP clients: one for each distinct set of TLS files and credentials, shared by its targets.
//!
//! What a client is, is for who asks to say: scrapes have one with small buffers, because they keep
//! a connection to every replica, and queries of a Prometheus have another.
//!
//! A client holds a pool of connections and the parsed certificates, so it is built once and again
//! only when a file's content changes. Files are looked at again on a period, by whichever scrape
//! comes first. When a new content is unreadable or does not fit together, which happens while a
//! certificate and its key are being replaced one after the other, the old client stays in use.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use hyper::header::HeaderValue;
use rustls::ClientConfig;

use crate::collect::chain;
use crate::collect::file::{self, FileError};
use crate::collect::scrape::Client;
use crate::collect::scrape::tls::{self, TlsError, Trust};

/// How we present ourselves.
pub(crate) const USER_AGENT: &str = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));

/// How long a connection is kept for the next scrape. The engines' HTTP server closes a connection
/// that is idle for 5 s; a request that crosses its FIN fails, so we let go a little earlier.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// How often an HTTP/2 connection is asked whether it lives. Giving up a request does not close
/// it, as it does with HTTP/1.1, so without this a vanished host would be asked in vain until TCP
/// gives up after a quarter of an hour.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(2);

/// How long the answer to that may take.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest credential file. Bundles of all public authorities have 250 KB.
const FILE_LIMIT: u64 = 4 << 20;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The authorities, the certificate and the key make no TLS client.
    #[error("the TLS files cannot be used")]
    Tls(#[from] TlsError),
    /// The HTTP client cannot be built with them.
    #[error("the HTTP client cannot be built")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The token cannot be sent in a header.
    #[error("the bearer token is empty or has a character that no header may have")]
    Token,
}

/// Whether a page comes over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Transport {
    Plain,
    Tls,
}

impl Transport {
    fn of(url: &str) -> Self {
        let tls = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        if tls { Self::Tls } else { Self::Plain }
    }
}

/// What tells one client from another. Plain HTTP has clients of its own: they need no system
/// certificates, which a minimal container image does not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    settings: Client,
    transport: Transport,
}

/// Makes a client with this side of TLS.
pub(crate) type Make<C> = fn(ClientConfig) -> Result<C, ClientError>;

/// The clients that some target uses.
#[derive(Debug)]
pub(crate) struct Clients<C> {
    make: Make<C>,
    refresh: Duration,
    sessions: Mutex<BTreeMap<Key, Weak<Session<C>>>>,
}

impl<C: Clone> Clients<C> {
    /// No clients yet; `make` will make them, and the files of each will be looked at every
    /// `refresh`.
    pub(crate) fn new(make: Make<C>, refresh: Duration) -> Self {
        Self { make, refresh, sessions: Mutex::default() }
    }

    /// The session for this URL with these settings; it lives for as long as somebody holds it.
    pub(crate) fn session(&self, settings: &Client, url: &str) -> Arc<Session<C>> {
        let key = Key { settings: settings.clone(), transport: Transport::of(url) };
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get(&key).and_then(Weak::upgrade) {
            return session;
        }
        sessions.retain(|_, session| session.strong_count() > 0);
        let session = Arc::new(Session {
            key: key.clone(),
            make: self.make,
            refresh: self.refresh,
            state: tokio::sync::Mutex::new(State { looked: None, built: None, complaint: None }),
        });
        sessions.insert(key, Arc::downgrade(&session));
        session
    }
}

/// A client and what it was built from.
#[derive(Debug)]
pub(crate) struct Session<C> {
    key: Key,
    make: Make<C>,
    refresh: Duration,
    state: tokio::sync::Mutex<State<C>>,
}

#[derive(Debug)]
struct State<C> {
    /// When the files were last looked at, on the clock's monotonic time.
    looked: Option<Duration>,
    built: Option<(Files, Ready<C>)>,
    complaint: Option<Arc<str>>,
}

/// A client that can be used at once, and the header that it sends.
#[derive(Clone, Debug)]
pub(crate) struct Ready<C> {
    pub(crate) client: C,
    pub(crate) authorization: Option<HeaderValue>,
}

/// The contents of the files that a client is built from.
#[derive(Debug, Default, PartialEq, Eq)]
struct Files {
    ca: Option<Vec<u8>>,
    /// Certificate chain and key, one after the other.
    identity: Option<Vec<u8>>,
    token: Option<Vec<u8>>,
}

impl<C: Clone> Session<C> {
    /// The client, built from what the files hold at `elapsed` on the monotonic clock.
    ///
    /// # Errors
    ///
    /// There has never been a usable set of files.
    pub(crate) async fn ready(&self, elapsed: Duration) -> Result<Ready<C>, Arc<str>> {
        let mut state = self.state.lock().await;
        if self.is_due(&state, elapsed) {
            self.look(&mut state).await;
            state.looked = Some(elapsed);
        }
        match (&state.built, &state.complaint) {
            (Some((_, ready)), _) => Ok(ready.clone()),
            (None, Some(complaint)) => Err(Arc::clone(complaint)),
            (None, None) => Err("the HTTP client has not been built".into()),
        }
    }

    fn is_due(&self, state: &State<C>, elapsed: Duration) -> bool {
        let Client { ca_file, identity, insecure_skip_verify: _, bearer_token_file } =
            &self.key.settings;
        let any = ca_file.is_some() || identity.is_some() || bearer_token_file.is_some();
        match state.looked {
            None => true,
            Some(_) if !any && state.built.is_some() => false,
            Some(looked) => elapsed.saturating_sub(looked) >= self.refresh,
        }
    }

    /// Reads the files and rebuilds what depends on those that changed.
    async fn look(&self, state: &mut State<C>) {
        match self.rebuilt(state).await {
            Ok(None) => state.complaint = None,
            Ok(Some(built)) => {
                if state.built.is_some() {
                    tracing::info!("Scrape credentials were renewed");
                }
                state.built = Some(built);
                state.complaint = None;
            }
            Err(error) => {
                let complaint = chain(&error);
                if state.complaint.as_deref() != Some(&*complaint) {
                    let held = state.built.is_some();
                    tracing::warn!(error = %complaint, held, "Scrape credentials cannot be used");
                    state.complaint = Some(complaint.into());
                }
            }
        }
    }

    /// What the files make, unless it is what there is already.
    async fn rebuilt(&self, state: &State<C>) -> Result<Option<(Files, Ready<C>)>, ClientError> {
        let files = Files::read(&self.key).await?;
        let client = match &state.built {
            Some((old, _)) if *old == files => return Ok(None),
            Some((old, ready)) if old.ca == files.ca && old.identity == files.identity => {
                ready.client.clone()
            }
            Some(_) | None => (self.make)(files.tls(&self.key)?)?,
        };
        let authorization = files.token.as_deref().map(authorization).transpose()?;
        Ok(Some((files, Ready { client, authorization })))
    }
}

impl Files {
    async fn read(key: &Key) -> Result<Self, ClientError> {
        let Client { ca_file, identity, insecure_skip_verify: _, bearer_token_file } =
            &key.settings;
        let mut files = Self::default();
        if let Some(path) = bearer_token_file {
            files.token = Some(read(path).await?);
        }
        match key.transport {
            Transport::Plain => {}
            Transport::Tls => {
                if let Some(path) = ca_file {
                    files.ca = Some(read(path).await?);
                }
                if let Some(identity) = identity {
                    let mut pem = read(&identity.cert_file).await?;
                    pem.push(b'\n');
                    pem.extend(read(&identity.key_file).await?);
                    files.identity = Some(pem);
                }
            }
        }
        Ok(files)
    }

    /// Our side of TLS.
    fn tls(&self, key: &Key) -> Result<ClientConfig, TlsError> {
        let trust = match (key.transport, &self.ca) {
            (Transport::Plain, _) => Trust::Nobody,
            (Transport::Tls, _) if key.settings.insecure_skip_verify => Trust::Anyone,
            (Transport::Tls, None) => Trust::System,
            (Transport::Tls, Some(pem)) => Trust::Bundle(pem),
        };
        tls::config(trust, self.identity.as_deref())
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    file::read(path, FILE_LIMIT).await
}

fn authorization(token: &[u8]) -> Result<HeaderValue, ClientError> {
    let token = token.trim_ascii();
    if token.is_empty() {
        return Err(ClientError::Token);
    }
    let mut value =
        HeaderValue::from_bytes(&[b"Bearer ", token].concat()).map_err(|_| ClientError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::scrape::http;

    #[test]
    fn targets_with_equal_settings_share_a_client_and_plain_http_has_its_own() {
        let clients = Clients::new(http::client, Duration::from_secs(10));
        let settings = Client::default();
        let first = clients.session(&settings, "http://127.0.0.1:1/metrics");
        let second = clients.session(&settings, "http://127.0.0.2:2/metrics");
        assert!(Arc::ptr_eq(&first, &second));
        let tls = clients.session(&settings, "HTTPS://127.0.0.1:1/metrics");
        assert!(!Arc::ptr_eq(&first, &tls));
        drop((first, second));
        let insecure = Client { insecure_skip_verify: true, ..settings };
        let other = clients.session(&insecure, "http://127.0.0.1:1/metrics");
        assert_eq!(clients.sessions.lock().unwrap().len(), 2, "the unused one is gone");
        drop(other);
    }

    #[tokio::test]
    async fn a_token_is_read_again_after_the_period_and_the_old_one_survives_a_bad_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let settings = Client { bearer_token_file: Some(path.clone()), ..Client::default() };
        let session =
            Clients::new(http::client, Duration::from_secs(10)).session(&settings, "http://a");
        let token = async |second| {
            let ready = session.ready(Duration::from_secs(second)).await;
            ready.map(|ready| ready.authorization.unwrap().to_str().unwrap().to_owned())
        };
        assert!(token(0).await.unwrap_err().contains("cannot read"));
        std::fs::write(&path, "one\n").unwrap();
        assert!(token(9).await.is_err(), "an unreadable file is not tried at every scrape");
        assert_eq!(token(10).await.unwrap(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(token(19).await.unwrap(), "Bearer one");
        assert_eq!(token(20).await.unwrap(), "Bearer two");
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(token(30).await.unwrap(), "Bearer two");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token(40).await.unwrap(), "Bearer two");
        std::fs::write(&path, "three").unwrap();
        assert_eq!(token(50).await.unwrap(), "Bearer three");
    }

    #[tokio::test]
    async fn a_file_of_authorities_without_a_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "").unwrap();
        let settings = Client { ca_file: Some(path), ..Client::default() };
        let clients = Clients::new(http::client, Duration::from_secs(10));
        let tls = clients.session(&settings, "https://a");
        assert!(tls.ready(Duration::ZERO).await.unwrap_err().contains("no certificate"));
        let plain = clients.session(&settings, "http://a");
        assert!(plain.ready(Duration::ZERO).await.is_ok(), "plain HTTP needs no authority");
    }
}
