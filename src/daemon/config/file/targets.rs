//! Locations of replicas.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::collect::targets::Record;
use crate::config::names;
use plimsoll_core::settings;
use plimsoll_core::settings::{hours, secs, text};

const REFRESHES: RangeInclusive<Duration> = secs(1)..=hours(1);

settings! {
    /// Location of a variant's replicas: exactly one key.
    pub struct TargetKeys {
        /// These addresses, `HOST:PORT` or `HOST`.
        #[serde(skip_serializing_if = "Option::is_none")]
        addresses as "static": Option<Vec<String>>;

        /// Files in the format of Prometheus' `file_sd_configs`.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<FileTargetKeys>;

        /// Names in DNS.
        #[serde(skip_serializing_if = "Option::is_none")]
        dns: Option<DnsTargetKeys>;

        /// An object with a scale subresource, and the pods behind its selector. Needs
        /// `kubernetes.enabled`.
        #[serde(skip_serializing_if = "Option::is_none")]
        scale_target: Option<ScaleTarget>;

        /// Pods by label selector, without a scale target. Needs `kubernetes.enabled`.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>;

        /// The instances that Prometheus scrapes with these labels. Needs the section `prometheus`.
        #[serde(skip_serializing_if = "Option::is_none")]
        prometheus: Option<PrometheusTargetKeys>;
    }

    /// Targets that are found in Prometheus.
    pub struct PrometheusTargetKeys {
        /// The labels that all series of the replicas have; each instance among them is a replica.
        /// Required.
        labels as "match": Option<BTreeMap<String, Option<String>>>;
    }

    /// Targets in files.
    pub struct FileTargetKeys {
        /// The files.
        paths: Vec<PathBuf>;

        /// Time between two readings.
        refresh: Duration = secs(5), in REFRESHES;
    }

    /// Targets in DNS.
    pub struct DnsTargetKeys {
        /// The names.
        names: Vec<String>, in text(names::is_dns_name, "must be a DNS name");

        /// Type of the records.
        record as "type": Record = Record::A;

        /// The port; default: `scrape.port`. SRV records have their own.
        port: Option<u16>, in 1..=u16::MAX;

        /// Time between two lookups.
        refresh: Duration = secs(15), in REFRESHES;
    }

    /// An object with a scale subresource.
    #[derive(Eq, PartialOrd, Ord)]
    pub struct ScaleTarget {
        /// Group and version, such as `apps/v1`.
        api_version: String,
            in text(names::is_api_version, "must be a group and version, such as apps/v1, or v1"),
            required "is missing";

        /// Kind, such as `Deployment`.
        kind: String, in text(names::is_kind, "must be a kind, such as Deployment"),
            required "is missing";

        /// Name, in the variant's namespace.
        name: String, in text(names::is_object_name, names::OBJECT_NAME), required "is missing";
    }
}
