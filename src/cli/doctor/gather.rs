//! Gathers the evidence for the checks. Nothing is written, and no Secret is read.
//!
//! Every request has a time limit, and every answer a largest size. If a part cannot be read, the
//! reason is kept, and the rest is read all the same.

mod api;
mod causes;
mod cluster;
mod daemon;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cli::args::DoctorArgs;
use crate::cli::doctor::evidence::{ConfigEvidence, Evidence, Gathered};
use crate::cli::doctor::gather::api::ApiReader;
use crate::cli::doctor::gather::causes::chain;
use crate::cli::doctor::permission::ReleaseNames;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::collect::cluster::client;
use plimsoll_daemon::config::{self, Config, Files, LoadError, LoadedConfig, Surroundings};

/// The configuration without one: all annotated variants of the cluster.
const ASSUMED: &str = "kubernetes: {enabled: true, discovery: {enabled: true}}\n";

/// The key of the configuration in its `ConfigMap`.
const KEY: &str = "plimsoll.yaml";

/// Gathers everything.
pub(super) async fn gather(args: &DoctorArgs) -> Evidence {
    let DoctorArgs { config: file, no_cluster, no_daemon, url, kubeconfig, context, .. } = args;
    let names = ReleaseNames {
        namespace: args.namespace.clone(),
        name: args.name.clone(),
        account: args.service_account.clone().unwrap_or_else(|| args.name.clone()),
    };

    let asked = async {
        if *no_daemon {
            return Gathered::Absent("--no-daemon is set".to_owned());
        }
        Gathered::Read(daemon::gather(url.as_deref()).await)
    };
    let of_cluster = async {
        if *no_cluster {
            let absent = || "--no-cluster is set".to_owned();
            return (of_file(file.as_deref(), absent()), Gathered::Absent(absent()));
        }

        let reader = client(kubeconfig.as_deref(), context.as_deref()).await;
        let reader = match reader.map(ApiReader::new) {
            Ok(reader) => reader,
            Err(error) => {
                let reason = chain(&error);
                let none = format!("no --config, and the cluster is not known: {reason}");
                return (of_file(file.as_deref(), none), Gathered::Unread(reason));
            }
        };

        let read = match file {
            Some(file) => Gathered::Read(from_file(file)),
            None => from_cluster(&reader, &names).await,
        };
        let assumed = assumed();
        let used = match &read {
            Gathered::Read(Ok(found)) => &found.config,
            _ => &assumed,
        };
        let seen = Box::pin(cluster::gather(&reader, names, used)).await;
        (read, Gathered::Read(seen))
    };

    let (daemon, (config, cluster)) = tokio::join!(asked, of_cluster);
    Evidence {
        now: Clock::start().now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config,
        cluster,
        daemon,
    }
}

fn of_file(file: Option<&Path>, none: String) -> Gathered<Result<ConfigEvidence, String>> {
    match file {
        Some(file) => Gathered::Read(from_file(file)),
        None => Gathered::Unread(none),
    }
}

/// Reads the configuration as `plimsoll check --skip-files` does: files that it names may be those
/// of another machine.
fn from_file(file: &Path) -> Result<ConfigEvidence, String> {
    valid(file.display().to_string(), config::load(file, Files::NotChecked))
}

/// Reads the configuration from the `ConfigMap` of the chart.
async fn from_cluster(
    reader: &ApiReader,
    names: &ReleaseNames,
) -> Gathered<Result<ConfigEvidence, String>> {
    let ReleaseNames { namespace, name, .. } = names;
    let origin = format!("ConfigMap {namespace}/{name}");
    let object = match reader.config_map(namespace, name).await {
        Ok(object) => object,
        Err(reason) => return Gathered::Unread(reason),
    };

    let data = object.and_then(|object| object.data).unwrap_or_default();
    let Some(text) = data.get(KEY) else {
        let none = format!("there is no {origin} with the key {KEY}; --config names a file");
        return Gathered::Absent(none);
    };
    let surroundings = Surroundings {
        origin: origin.clone(),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    Gathered::Read(valid(origin, config::parse(text, &surroundings)))
}

fn valid(origin: String, read: Result<LoadedConfig, LoadError>) -> Result<ConfigEvidence, String> {
    match read {
        Ok(LoadedConfig { config, warnings }) => {
            let warnings = warnings.iter().map(ToString::to_string).collect();
            Ok(ConfigEvidence { origin, config, warnings })
        }
        Err(error) => Err(chain(&error)),
    }
}

/// The configuration that is used for looking through the cluster if there is none.
fn assumed() -> Config {
    let surroundings = Surroundings {
        origin: "the defaults".to_owned(),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let read = config::parse(ASSUMED, &surroundings);
    read.map_or_else(|error| unreachable!("{error}"), |loaded| loaded.config)
}
