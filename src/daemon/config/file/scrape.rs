//! The sections about scrapes of replicas.

use std::path::PathBuf;
use std::time::Duration;

use crate::collect::targets::{Endpoint, Scheme};
use crate::config::names;
use plimsoll_core::settings;
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{millis, minutes, secs, text};

/// Declares sections that each have the keys of a scrape, and more.
macro_rules! with_scrape {
    ($($(#[$($meta:tt)*])* pub struct $name:ident { $($more:tt)* })*) => {
        settings! {$(
            $(#[$($meta)*])*
            pub struct $name {
                /// Time between two scrapes of one replica.
                // Engines update their gauges a few times per second at most.
                interval: Duration = secs(1), in millis(100)..=minutes(5);

                /// Time after which a scrape is given up.
                // Below the interval, so that a slow answer is abandoned before the next scrape.
                timeout: Duration = millis(900), in millis(10)..=minutes(5);

                $($more)*

                /// Largest response that is read, after decompression.
                // Ten times the response of an engine with many ranks and adapters.
                body_limit: Bytes = 8 << 20, in (1 << 10)..=(1 << 30);

                /// The scheme of the URL.
                scheme: Scheme = Scheme::Http;

                /// The port of replicas whose address has none.
                // The port of vLLM's API server.
                port: u16 = 8000, in 1..=u16::MAX;

                /// The path of the URL.
                path: String = "/metrics", in text(
                    Endpoint::is_path,
                    "must start with `/` and have neither spaces nor a fragment",
                );

                /// TLS of scrapes; needs `scheme: https`.
                tls: ClientTlsKeys;

                /// File with a bearer token, read again as it rotates.
                bearer_token_file: Option<PathBuf>;
            }
        )*}
    };
}

with_scrape! {
    /// Scrapes of replicas.
    pub struct ScrapeKeys {
        /// Scrapes at the same time, all variants together.
        // Each scrape has a connection, and processes have a limit of open files.
        concurrency: usize = 128, in 1..=10_000, needs restart;

        /// The namespaces whose discovered variants are scraped with `bearer_token_file` and the
        /// client certificate of `tls`; `*` is all of them. Without it, those with pods of declared
        /// variants that are scraped with the same credentials.
        credentials_for: Option<Vec<String>>, in text(
            names::is_namespace_or_all,
            "must be the name of a namespace, or `*` for all of them",
        );

        /// Ports besides `port` to which the annotation of a discovered variant may direct the
        /// credentials.
        credentials_ports: Vec<u16>, in 1..=u16::MAX;
    }

    /// Scrapes of one variant's replicas; absent keys come from `scrape`.
    pub struct VariantScrapeKeys {}
}

settings! {
    /// TLS of scrapes.
    pub struct ClientTlsKeys {
        /// PEM bundle of the authorities that are trusted instead of the system's.
        ca_file: Option<PathBuf>;

        /// PEM certificate chain to present.
        cert_file: Option<PathBuf>;

        /// PEM key to present.
        key_file: Option<PathBuf>;

        /// Skips the check of the server's certificate.
        insecure_skip_verify: bool = false;
    }
}
