//! The section about the gRPC server for KEDA.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::file::address::any;
use plimsoll_core::settings;

settings! {
    /// The gRPC server for KEDA's external and external-push scalers.
    #[derive(Eq)]
    pub struct ExternalScalerKeys {
        /// Serves the scalers.
        enabled: bool = true;

        /// Address and port to listen on.
        listen: SocketAddr = any(6444);

        /// Encryption. Without it, the server speaks plain text, as inside a service mesh.
        tls: Option<ScalerTlsKeys>;
    }

    /// The certificate of the gRPC server, and those of its clients.
    #[derive(Eq)]
    pub struct ScalerTlsKeys {
        /// PEM certificate chain, read again as it rotates.
        cert_file: PathBuf, required "is missing";

        /// PEM key, read again as it rotates.
        key_file: PathBuf, required "is missing";

        /// PEM bundle of authorities, read again as it rotates. With it, only clients with a
        /// certificate of these authorities are served.
        client_ca_file: Option<PathBuf>;
    }
}
