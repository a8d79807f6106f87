//! Where replicas are, as written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::file::{Items, RecordType};
use crate::config::written::WrittenDuration;

sections! {
    /// Where a variant's replicas are listed: exactly one key.
    Targets {
        /// These addresses, `HOST:PORT` or `HOST`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<Vec<String>>")]
        r#static: Items<String>,
        /// Files in the format of Prometheus' `file_sd_configs`.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: FileTargets,
        /// Names in DNS.
        #[serde(skip_serializing_if = "Option::is_none")]
        dns: DnsTargets,
        /// An object with a scale subresource, and the pods behind its selector. Needs
        /// `kubernetes.enabled`.
        #[serde(skip_serializing_if = "Option::is_none")]
        scale_target: ScaleTarget,
        /// Pods by label selector, without a scale target. Needs `kubernetes.enabled`.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: String,
        /// Whatever Prometheus scrapes with these labels. Needs the section `prometheus`.
        #[serde(skip_serializing_if = "Option::is_none")]
        prometheus: PrometheusTargets,
    }

    /// Targets that are found in Prometheus.
    PrometheusTargets {
        /// The labels that all series of the replicas have; each instance among them is a replica.
        /// Required.
        r#match: BTreeMap<String, Option<String>>,
    }

    /// Targets in files.
    FileTargets {
        /// The files.
        #[schemars(with = "Option<Vec<PathBuf>>")]
        paths: Items<PathBuf>,
        /// How often they are read again.
        refresh: WrittenDuration,
    }

    /// Targets in DNS.
    DnsTargets {
        /// The names.
        #[schemars(with = "Option<Vec<String>>")]
        names: Items<String>,
        /// What is asked for.
        r#type: RecordType,
        /// The port; `scrape.port` without it. SRV records carry their own.
        port: u16,
        /// How often the names are looked up again.
        refresh: WrittenDuration,
    }

    /// An object with a scale subresource.
    ScaleTarget {
        /// Group and version, such as `apps/v1`.
        api_version: String,
        /// Kind, such as `Deployment`.
        kind: String,
        /// Name, in the variant's namespace.
        name: String,
    }
}
