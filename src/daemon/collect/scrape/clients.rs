//! HTTP clients: one for each distinct set of TLS files and credentials, shared by its targets.
//!
//! The caller provides the function that builds a client. Scrapes use clients with small buffers,
//! because they keep a connection to every replica. Prometheus queries use another kind.
//!
//! A client holds a connection pool and the parsed certificates. It is built once, and rebuilt only
//! when the content of a file changes. The next scrape after each refresh interval checks the
//! files. If new content is unreadable or inconsistent, the old client stays in use. This occurs
//! while a certificate and its key are replaced one after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use hyper::header::HeaderValue;
use rustls::ClientConfig;

use crate::collect::chain;
use crate::collect::file::{self, FileError};
use crate::collect::scrape::settings::ClientSettings;
use crate::collect::scrape::tls::{self, TlsError, Trust};

/// Plimsoll's `User-Agent`.
pub(crate) const USER_AGENT: &str = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));

/// Time for which a connection is kept for the next scrape. The engines' HTTP server closes a
/// connection after 5 s without a request, and a request that crosses its FIN fails. Plimsoll
/// therefore closes it slightly earlier.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Interval of keep-alive pings on an HTTP/2 connection. Unlike with HTTP/1.1, abandoning a request
/// does not close the connection. Without pings, requests to a vanished host would fail until TCP
/// gives up after a quarter of an hour.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Time within which a ping must be answered.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest credential file. Bundles of all public authorities have 250 KB.
const FILE_LIMIT: u64 = 4 << 20;

/// The reason why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpClientError {
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
    #[error("the bearer token is empty or has a character that is invalid in a header")]
    Token,
}

/// The transport of a metrics response.
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

/// The key of a client. Plain HTTP has clients of its own, because they need no system
/// certificates. A minimal container image has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientKey {
    settings: ClientSettings,
    transport: Transport,
}

/// Builds a client with this TLS configuration.
pub(crate) type ClientFactory<C> = fn(ClientConfig) -> Result<C, HttpClientError>;

/// The clients that targets use.
#[derive(Debug)]
pub(crate) struct ClientPool<C> {
    make: ClientFactory<C>,
    refresh: Duration,
    sessions: Mutex<BTreeMap<ClientKey, Weak<Session<C>>>>,
}

impl<C: Clone> ClientPool<C> {
    /// Creates an empty set. `make` builds the clients, and each client's files are checked every
    /// `refresh`.
    pub(crate) fn new(make: ClientFactory<C>, refresh: Duration) -> Self {
        Self { make, refresh, sessions: Mutex::default() }
    }

    /// Returns the session for this URL with these settings. It is dropped with its last reference.
    pub(crate) fn session(&self, settings: &ClientSettings, url: &str) -> Arc<Session<C>> {
        let key = ClientKey { settings: settings.clone(), transport: Transport::of(url) };
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get(&key).and_then(Weak::upgrade) {
            return session;
        }

        sessions.retain(|_, session| session.strong_count() > 0);
        let session = Arc::new(Session {
            key: key.clone(),
            make: self.make,
            refresh: self.refresh,
            state: tokio::sync::Mutex::new(SessionState {
                looked: None,
                built: None,
                complaint: None,
            }),
        });

        sessions.insert(key, Arc::downgrade(&session));
        session
    }
}

/// A client, and the settings and files from which it was built.
#[derive(Debug)]
pub(crate) struct Session<C> {
    key: ClientKey,
    make: ClientFactory<C>,
    refresh: Duration,
    state: tokio::sync::Mutex<SessionState<C>>,
}

#[derive(Debug)]
struct SessionState<C> {
    /// The last check of the files, on the clock's monotonic time.
    looked: Option<Duration>,
    built: Option<(ClientFiles, ReadyClient<C>)>,
    complaint: Option<Arc<str>>,
}

/// A client that is ready to use, and the header that it sends.
#[derive(Clone, Debug)]
pub(crate) struct ReadyClient<C> {
    pub(crate) client: C,
    pub(crate) authorization: Option<HeaderValue>,
}

/// The contents of the files that a client is built from.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientFiles {
    ca: Option<Vec<u8>>,
    /// Certificate chain and key, one after the other.
    identity: Option<Vec<u8>>,
    token: Option<Vec<u8>>,
}

impl<C: Clone> Session<C> {
    /// Returns the client, built from the content of the files at `elapsed` on the monotonic clock.
    ///
    /// # Errors
    ///
    /// There has not been a usable set of files yet.
    pub(crate) async fn ready(&self, elapsed: Duration) -> Result<ReadyClient<C>, Arc<str>> {
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

    fn is_due(&self, state: &SessionState<C>, elapsed: Duration) -> bool {
        let ClientSettings { ca_file, identity, insecure_skip_verify: _, bearer_token_file } =
            &self.key.settings;
        let any = ca_file.is_some() || identity.is_some() || bearer_token_file.is_some();

        match state.looked {
            None => true,
            Some(_) if !any && state.built.is_some() => false,
            Some(looked) => elapsed.saturating_sub(looked) >= self.refresh,
        }
    }

    /// Reads the files, and rebuilds the parts that depend on changed ones.
    async fn look(&self, state: &mut SessionState<C>) {
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

    /// Builds a client from the files, unless they are unchanged.
    async fn rebuilt(
        &self,
        state: &SessionState<C>,
    ) -> Result<Option<(ClientFiles, ReadyClient<C>)>, HttpClientError> {
        let files = ClientFiles::read(&self.key).await?;
        let client = match &state.built {
            Some((old, _)) if *old == files => return Ok(None),
            Some((old, ready)) if old.ca == files.ca && old.identity == files.identity => {
                ready.client.clone()
            }
            Some(_) | None => (self.make)(files.tls(&self.key)?)?,
        };

        let authorization = files.token.as_deref().map(authorization).transpose()?;
        Ok(Some((files, ReadyClient { client, authorization })))
    }
}

impl ClientFiles {
    async fn read(key: &ClientKey) -> Result<Self, HttpClientError> {
        let ClientSettings { ca_file, identity, insecure_skip_verify: _, bearer_token_file } =
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

    /// Builds the client's TLS configuration.
    fn tls(&self, key: &ClientKey) -> Result<ClientConfig, TlsError> {
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

fn authorization(token: &[u8]) -> Result<HeaderValue, HttpClientError> {
    let trimmed = token.trim_ascii();
    if trimmed.is_empty() {
        return Err(HttpClientError::Token);
    }

    let mut value = HeaderValue::from_bytes(&[b"Bearer ", trimmed].concat())
        .map_err(|_| HttpClientError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::scrape::http::{self, HttpClient};

    #[test]
    fn targets_with_equal_settings_share_a_client_and_plain_http_has_its_own() {
        let clients = ClientPool::new(http::client, Duration::from_secs(10));
        let settings = ClientSettings::default();
        let first = clients.session(&settings, "http://127.0.0.1:1/metrics");
        let second = clients.session(&settings, "http://127.0.0.2:2/metrics");
        assert!(Arc::ptr_eq(&first, &second));

        let tls = clients.session(&settings, "HTTPS://127.0.0.1:1/metrics");
        assert!(!Arc::ptr_eq(&first, &tls));
        drop((first, second));

        let insecure = ClientSettings { insecure_skip_verify: true, ..settings };
        let other = clients.session(&insecure, "http://127.0.0.1:1/metrics");
        assert_eq!(clients.sessions.lock().unwrap().len(), 2, "the unused one is gone");
        drop(other);
    }

    async fn token(session: &Session<HttpClient>, second: u64) -> Result<String, Arc<str>> {
        let ready = session.ready(Duration::from_secs(second)).await;
        ready.map(|ready| ready.authorization.unwrap().to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn a_token_is_read_again_after_the_period_and_the_old_one_survives_a_bad_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let settings =
            ClientSettings { bearer_token_file: Some(path.clone()), ..ClientSettings::default() };
        let session =
            ClientPool::new(http::client, Duration::from_secs(10)).session(&settings, "http://a");

        assert!(token(&session, 0).await.unwrap_err().contains("cannot read"));
        std::fs::write(&path, "one\n").unwrap();
        assert!(
            token(&session, 9).await.is_err(),
            "an unreadable file is not tried at every scrape"
        );
        assert_eq!(token(&session, 10).await.unwrap(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(token(&session, 19).await.unwrap(), "Bearer one");
        assert_eq!(token(&session, 20).await.unwrap(), "Bearer two");
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(token(&session, 30).await.unwrap(), "Bearer two");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token(&session, 40).await.unwrap(), "Bearer two");
        std::fs::write(&path, "three").unwrap();
        assert_eq!(token(&session, 50).await.unwrap(), "Bearer three");
    }

    #[tokio::test]
    async fn a_file_of_authorities_without_a_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "").unwrap();
        let settings = ClientSettings { ca_file: Some(path), ..ClientSettings::default() };
        let clients = ClientPool::new(http::client, Duration::from_secs(10));
        let tls = clients.session(&settings, "https://a");
        assert!(tls.ready(Duration::ZERO).await.unwrap_err().contains("no certificate"));

        let plain = clients.session(&settings, "http://a");
        assert!(plain.ready(Duration::ZERO).await.is_ok(), "plain HTTP needs no authority");
    }
}
