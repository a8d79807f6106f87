//! Readiness: whether requests should be sent to this process.
//!
//! Every port answers readiness probes from one [`Readiness`]. So a kubelet that probes one port
//! takes a pod for ready only if requests to the others can be answered as well. No check looks at
//! data, because a pod that is not ready makes the whole external metrics API unavailable.

use std::sync::Arc;

use tokio::sync::watch;

use crate::server::ServerPhase;
use crate::server::auth::TrustAnchor;
use crate::server::tls::ServingCertificate;

/// One readiness check: its name, and the problem if it fails.
pub type ReadinessCheck = (&'static str, Result<(), String>);

/// Everything that must be there before requests can be answered.
#[derive(Clone)]
pub struct Readiness {
    phase: watch::Receiver<ServerPhase>,
    trust: Option<watch::Receiver<Option<Arc<TrustAnchor>>>>,
    certificate: Option<Arc<ServingCertificate>>,
}

// === impl Readiness ===

impl Readiness {
    /// The readiness of a process that serves nothing over TLS.
    #[must_use]
    pub const fn new(phase: watch::Receiver<ServerPhase>) -> Self {
        Self { phase, trust: None, certificate: None }
    }

    /// Waits for the certificate authority of the front proxy, without which every metric request
    /// is answered with 503.
    #[must_use]
    pub fn with_trust(self, trust: watch::Receiver<Option<Arc<TrustAnchor>>>) -> Self {
        Self { trust: Some(trust), ..self }
    }

    /// Waits for the serving certificate, without which no connection succeeds.
    #[must_use]
    pub fn with_certificate(self, certificate: Arc<ServingCertificate>) -> Self {
        Self { certificate: Some(certificate), ..self }
    }

    /// Every check with its current result. A check passes if there is nothing to wait for.
    #[must_use]
    pub fn checks(&self) -> Vec<ReadinessCheck> {
        let unknown = self.trust.as_ref().is_some_and(|trust| trust.borrow().is_none());
        let awaited = self.certificate.as_ref().is_some_and(|it| it.not_after().is_none());
        let leaving = *self.phase.borrow() != ServerPhase::Serving;

        let untrusted = "the front proxy's certificate authority is not known yet: \
                         kube-system/extension-apiserver-authentication has not been read";
        vec![
            ("ping", Ok(())),
            ("shutdown", fails_if(leaving, "shutting down")),
            ("certificate", fails_if(awaited, "no serving certificate yet")),
            ("trust-anchor", fails_if(unknown, untrusted)),
        ]
    }
}

fn fails_if(failed: bool, problem: &str) -> Result<(), String> {
    if failed { Err(problem.to_owned()) } else { Ok(()) }
}
