//! From the file as written to a configuration: resolves named files, and keys that must fit
//! together. Defaults and ranges of single keys are declared with the keys.

pub(crate) mod capacity;
pub(crate) mod cards;
mod certificate;
mod enforce;
mod kubernetes;
mod limits;
mod policy;
mod policy_context;
mod pools;
mod prometheus;
mod saturation;
mod scrape;
mod shadow;
mod variants;
mod wake;
mod zero;

use std::net::SocketAddr;

use crate::config::check::Checks;
use crate::config::effective::Config;
use crate::config::file::{
    Authorization, CompatibilityKeys, ConfigFile, ExternalMetrics, ExternalScalerKeys, FileKeys,
    ScalerTlsKeys, ServerKeys,
};
use crate::config::resolve::policy::{fill, resolve_policy};
use crate::config::resolve::policy_context::PolicyContext;
use crate::config::wva::{self, WvaDefaults};
use plimsoll_core::settings::written::WrittenDuration;
use plimsoll_core::settings::{self, Written};

/// Resolves a file into a configuration, which is usable only if there is no error.
pub(crate) fn resolve(file: &ConfigFile, checks: &mut Checks<'_>) -> Config {
    let wva = resolve_wva(file.compatibility.as_ref(), checks);
    let mut keys = fill(file, &wva, checks);
    kubernetes::complete(file.kubernetes.as_ref(), &mut keys.kubernetes, checks);
    check_server(&keys.server, checks);
    check_external_metrics(&keys, checks);
    check_external_scaler(&keys, checks);
    check_state_file(&keys, checks);
    checks.folder_to_write("trace.dir", keys.trace.as_ref().map(|trace| &trace.dir));
    let global = scrape::resolve(file.scrape.as_ref(), checks);
    let written = file.prometheus.as_ref().zip(keys.prometheus.as_mut());
    let prometheus = written.map(|(section, keys)| prometheus::resolve(section, keys, checks));

    let cluster = keys.kubernetes.enabled;
    let discovery = keys.kubernetes.discovery().is_some();
    let around_each = variants::VariantContext {
        global: &global,
        cluster,
        discovery,
        prometheus: prometheus.is_some(),
    };
    let (entries, variants): (Vec<_>, Vec<_>) =
        variants::resolve(file.variants.as_deref(), around_each, checks).into_iter().unzip();
    keys.variants = Some(entries);

    let around = PolicyContext {
        known: (!discovery).then_some(&variants[..]),
        cluster,
        relayed: prometheus.as_ref().map(|settings| settings.stale_after),
        wva: &wva,
        global: &global,
        variants: &variants,
    };

    let (policy, signals) = resolve_policy(file, &mut keys, &around, checks);
    let (entries, shadows): (Vec<_>, Vec<_>) =
        shadow::resolve_shadows(file, &around, checks).into_iter().unzip();
    keys.shadow = Some(entries).filter(|entries| !entries.is_empty());
    let scrape = global.scrape;
    Config { keys: Box::new(keys), policy, shadows, variants, scrape, prometheus, signals }
}

/// Resolves the thresholds in the `ConfigMap` entries of the workload variant autoscaler.
fn resolve_wva(
    section: Option<&Written<CompatibilityKeys>>,
    checks: &mut Checks<'_>,
) -> WvaDefaults {
    let CompatibilityKeys { wva_config, .. } =
        settings::resolve(section, "compatibility", &mut checks.problems);
    let entries = checks.wva_entries(wva::KEY, wva_config.as_deref());
    WvaDefaults { mounted: wva_config.is_some(), ..wva::parse(&entries, checks) }
}

fn check_state_file(keys: &FileKeys, checks: &mut Checks<'_>) {
    let state_file = checks.file_to_write("state_file", keys.state_file.as_ref());
    if state_file.is_some() && keys.kubernetes.leader_election().is_some() {
        let rule = "has no effect, because with kubernetes.leader_election.enabled the replicas \
                    share their decisions in a ConfigMap";
        checks.problems.warning("state_file", rule);
    }
}

fn check_server(keys: &ServerKeys, checks: &mut Checks<'_>) {
    checks.file("server.admin_token_file", keys.admin_token_file.as_ref());
    if !keys.admin_enabled {
        let token = [("admin_token_file", keys.admin_token_file.is_some())];
        checks.problems.unused("server", &token, "server.admin_enabled is false");
    }
}

fn check_external_metrics(keys: &FileKeys, checks: &mut Checks<'_>) {
    let Some(section) = &keys.external_metrics else { return };
    let ExternalMetrics { listen, authorization, fresh, hold, .. } = *section;
    let problems = &mut checks.problems;
    if fresh > hold {
        let rule = format!(
            "must not be longer than external_metrics.hold, which is {}",
            WrittenDuration(hold)
        );
        problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }

    if fresh <= keys.tick_interval {
        let rule = format!(
            "must be longer than tick_interval, which is {}",
            WrittenDuration(keys.tick_interval)
        );
        problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }

    let cluster = keys.kubernetes.enabled;
    if authorization == Authorization::SubjectAccessReview && !cluster {
        problems.error(
            "external_metrics.authorization",
            "must be trust_front_proxy unless kubernetes.enabled is true, because there is no API \
             server to ask",
            "subject_access_review",
        );
    }

    certificate::check(&section.tls, cluster, checks);
    if overlaps(listen, keys.server.listen) {
        let rule = "must not be the address of server.listen";
        checks.problems.error("external_metrics.listen", rule, keys.server.listen);
    }
}

fn check_external_scaler(keys: &FileKeys, checks: &mut Checks<'_>) {
    let Some(ExternalScalerKeys { listen, tls, .. }) = &keys.external_scaler else { return };
    if let Some(ScalerTlsKeys { cert_file, key_file, client_ca_file }) = tls {
        checks.file("external_scaler.tls.cert_file", Some(cert_file));
        checks.file("external_scaler.tls.key_file", Some(key_file));
        checks.file("external_scaler.tls.client_ca_file", client_ca_file.as_ref());
    }

    let of_api = keys.external_metrics.as_ref().map(|section| section.listen);
    for (key, other) in
        [("server.listen", Some(keys.server.listen)), ("external_metrics.listen", of_api)]
    {
        if let Some(other) = other.filter(|other| overlaps(*listen, *other)) {
            let rule = format!("must not be the address of {key}");
            checks.problems.error("external_scaler.listen", rule, other);
        }
    }
}

/// Returns true if two listeners would use the same port of the same address.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
