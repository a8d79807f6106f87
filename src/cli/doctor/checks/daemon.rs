//! Checks of a running daemon.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::doctor::checks::registration::days;
use crate::cli::doctor::checks::scalers::{entries, name};
use crate::cli::doctor::evidence::{DaemonEvidence, Evidence};
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen, Verdict};
use plimsoll_core::units::NounCount;
use plimsoll_daemon::config::{LeaderElection, counted};
use plimsoll_daemon::leader::share::{BODY_MAX, LeaderDocument};

/// Ticks that the decision loop may be late.
const LATE_TICKS: f64 = 10.0;

/// The least time that counts as late, in seconds.
const LATE_MIN: f64 = 10.0;

/// A certificate that is valid for less is about to expire, unless it lives for less.
const VALID_MIN: f64 = 7.0 * 24.0 * 3600.0;

/// The age of a limit that is no longer current, in seconds.
const LIMIT_AGE_MAX: f64 = 120.0;

/// The share of a bound that leaves little room.
const FULL: f64 = 0.8;

/// The daemon, if it answers.
fn answering(evidence: &Evidence) -> Result<&DaemonEvidence, Unseen> {
    let daemon = evidence.daemon.read()?;
    daemon.status.read()?;
    Ok(daemon)
}

pub(super) fn answers(evidence: &Evidence) -> Findings {
    let daemon = evidence.daemon.read()?;
    let status = match daemon.status.read() {
        Ok(status) => status,
        Err(Unseen::Unknown(reason)) if daemon.is_named => {
            return Ok(vec![Symptom::failure(reason)]);
        }
        Err(unseen) => return Err(unseen),
    };

    let version = status["version"].as_str().unwrap_or_default();
    let url = &daemon.url;
    if version != evidence.version {
        let text = format!("{url} has version {version}, and this program {}", evidence.version);
        return Ok(vec![Symptom::warning(text).fix("Use the same release for both")]);
    }
    let seconds = status["uptime_seconds"].as_f64().unwrap_or_default();
    Ok(vec![Symptom::ok(format!("{url}, version {version}, up for {seconds:.0} s"))])
}

pub(super) fn ready(evidence: &Evidence) -> Findings {
    let status = answering(evidence)?.status.read()?;
    let checks = status["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut symptoms: Vec<Symptom> = checks
        .iter()
        .filter(|check| check["ok"] == false)
        .map(|check| {
            let problem = check["problem"].as_str().unwrap_or_default();
            let name = check["name"].as_str().unwrap_or_default();
            Symptom::failure(problem).of(format!("readiness check {name}"))
        })
        .collect();

    let interval = status["tick_interval_seconds"].as_f64().unwrap_or_default();
    match status["tick"]["age_seconds"].as_f64() {
        None => symptoms.push(Symptom::failure("it has not decided anything yet")),
        Some(age) if age > (interval * LATE_TICKS).max(LATE_MIN) => {
            let text = format!("the last tick was {age:.0} s ago, at an interval of {interval} s");
            symptoms.push(Symptom::failure(text));
        }
        Some(age) => symptoms.push(Symptom::ok(format!("the last tick was {age:.1} s ago"))),
    }
    Ok(symptoms)
}

pub(super) fn replicas(evidence: &Evidence) -> Findings {
    let cluster = evidence.cluster()?;
    let names = &cluster.names;
    let label = format!("Deployment {}/{}", names.namespace, names.name);
    let Some(deployment) = cluster.deployment.read()? else {
        return Err(Unseen::NotApplicable(format!("there is no {label}")));
    };

    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.as_ref();
    let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
    let config = evidence.config()?;
    if wanted > 1 && config.config.keys.kubernetes.leader_election().is_none() {
        let text = format!("{wanted} replicas each decide on their own");
        return Ok(vec![Symptom::failure(text).of(label)]);
    }

    let text = format!("{ready} of {} ready", NounCount(wanted, "replica", "replicas"));
    Ok(vec![if ready == 0 {
        Symptom::failure(text).of(label)
    } else if ready < wanted {
        Symptom::warning(text).of(label).fix("kubectl describe its pods")
    } else {
        Symptom::ok(text)
    }])
}

/// The settings of the leader election.
fn election(evidence: &Evidence) -> Result<&LeaderElection, Unseen> {
    let config = evidence.config()?;
    config
        .config
        .keys
        .kubernetes
        .leader_election()
        .ok_or_else(|| Unseen::NotApplicable("kubernetes.leader_election is off".to_owned()))
}

pub(super) fn leader(evidence: &Evidence) -> Findings {
    let settings = election(evidence)?;
    let Some(lease) = evidence.cluster()?.lease.read()? else {
        return Ok(vec![Symptom::failure(format!("there is no Lease {}", settings.name))]);
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    if holder.is_empty() {
        return Ok(vec![Symptom::failure("no replica holds the Lease")]);
    }

    let Some(renewed) = spec.renew_time else {
        return Ok(vec![Symptom::failure(format!("{holder} has never renewed the Lease"))]);
    };
    let age = evidence.now.duration_since(renewed.0).as_secs_f64();
    let text = format!("{holder} renewed the Lease {age:.0} s ago");
    Ok(vec![if age > settings.lease_duration.as_secs_f64() {
        Symptom::failure(text)
    } else {
        Symptom::ok(text)
    }])
}

pub(super) fn shared(evidence: &Evidence) -> Findings {
    let settings = election(evidence)?;
    let Some(object) = evidence.cluster()?.document.read()? else {
        let text = format!("there is no ConfigMap {}-decisions", settings.name);
        return Ok(vec![Symptom::failure(text)]);
    };
    let document = match LeaderDocument::read(object) {
        Ok(document) => document,
        Err(error) => return Ok(vec![Symptom::failure(error.to_string())]),
    };

    let size = document.body.size();
    let text = format!("{size} of {BODY_MAX} bytes, written by {}", document.holder);
    Ok(vec![if size as f64 > FULL * BODY_MAX as f64 {
        Symptom::warning(text).fix("Split the namespaces over several daemons")
    } else {
        Symptom::ok(text)
    }])
}

/// Judges the entries of the variants in the decisions.
fn of_entries(evidence: &Evidence, judge: impl Fn(&Value) -> Vec<Symptom>) -> Findings {
    let entries = entries(answering(evidence)?.decisions.read()?);
    if entries.is_empty() {
        return Err(Unseen::NotApplicable("the daemon has no variants".to_owned()));
    }

    let mut symptoms = Vec::new();
    for entry in entries {
        symptoms.extend(judge(entry).into_iter().map(|symptom| symptom.of(name(entry))));
    }
    if symptoms.is_empty() {
        symptoms.push(Symptom::ok(counted(entries.len(), "variant")));
    }
    Ok(symptoms)
}

pub(super) fn decisions(evidence: &Evidence) -> Findings {
    of_entries(evidence, |entry| {
        let why = entry["because"].as_str().unwrap_or_default();
        let verdict = match entry["basis"].as_str() {
            Some("fresh") => return Vec::new(),
            Some("held") => Verdict::Warning,
            _ => Verdict::Failure,
        };
        vec![Symptom::new(verdict, why).fix(format!("plimsoll explain {}", name(entry)))]
    })
}

pub(super) fn scrapes(evidence: &Evidence) -> Findings {
    of_entries(evidence, |entry| {
        let replicas = entry["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
        let failing: Vec<&Value> =
            replicas.iter().filter(|replica| replica["freshness"] != "fresh").collect();
        let verdict =
            if failing.len() == replicas.len() { Verdict::Failure } else { Verdict::Warning };
        failing
            .iter()
            .map(|replica| {
                let text = |key: &str| replica[key].as_str().unwrap_or_default();
                let state = match text("freshness") {
                    "stale" => "has stale metrics",
                    _ => "has never had metrics",
                };
                let why = format!("{} {}", text("failure"), text("failure_detail"));
                let evidence = format!("replica {} {state} {}", text("replica"), why.trim());
                Symptom::new(verdict, evidence.trim_end())
            })
            .collect()
    })
}

pub(super) fn watches(evidence: &Evidence) -> Findings {
    of_entries(evidence, |entry| {
        let problem = entry["scale_problem"].as_str();
        problem.into_iter().map(Symptom::failure).collect()
    })
}

pub(super) fn prometheus(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    let Some(up) = daemon.value("plimsoll_prometheus_up")? else {
        return Err(Unseen::NotApplicable("the daemon reads no Prometheus".to_owned()));
    };
    if up < 1.0 {
        let text = "plimsoll_prometheus_up is 0: the last responses had no series, or failed";
        return Ok(vec![Symptom::failure(text)]);
    }

    let mut symptoms = Vec::new();
    let ahead = daemon.value("plimsoll_prometheus_replicas_ahead")?.unwrap_or_default();
    if ahead > 0.0 {
        let text = NounCount(ahead, "replica has", "replicas have").to_string()
            + " samples from the future";
        symptoms.push(Symptom::warning(text).fix("Synchronize the clocks"));
    }
    let claimed = daemon.value("plimsoll_prometheus_claimed_series")?.unwrap_or_default();
    if claimed > 0.0 {
        let text = NounCount(claimed, "series is", "series are").to_string()
            + " claimed by more than one variant";
        symptoms.push(Symptom::warning(text).fix("Give each variant its own labels"));
    }
    if symptoms.is_empty() {
        let series = daemon.value("plimsoll_prometheus_series")?.unwrap_or_default();
        symptoms.push(Symptom::ok(format!("{series} series")));
    }
    Ok(symptoms)
}

pub(super) fn wake_signals(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    let mut reads: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for sample in daemon.samples("plimsoll_wake_signal_reads_total")? {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        let (read, failed) = reads.entry(label("signal")).or_default();
        match label("outcome") {
            "read" => *read += sample.value,
            _ => *failed += sample.value,
        }
    }
    if reads.is_empty() {
        return Err(Unseen::NotApplicable("there are no wake signals".to_owned()));
    }

    let judged = reads.into_iter().map(|(signal, (read, failed))| {
        let text = format!("{read} readings, and {failed} failed since the start");
        if failed == 0.0 {
            Symptom::ok(text)
        } else if read == 0.0 {
            Symptom::failure(text).of(format!("signal {signal}"))
        } else if failed > read {
            Symptom::warning(text).of(format!("signal {signal}"))
        } else {
            Symptom::ok(text)
        }
    });
    Ok(judged.collect())
}

pub(super) fn limits(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    let unread = daemon.samples("plimsoll_limit_unread")?;
    if unread.is_empty() {
        return Err(Unseen::NotApplicable("there are no limits".to_owned()));
    }

    let label = |labels: &BTreeMap<String, String>| {
        format!("limit {}", labels.get("limit").map_or("", String::as_str))
    };
    let mut symptoms = Vec::new();
    for sample in &unread {
        if sample.value > 0.0 {
            let text = "it has never been read, which stops scale-up above the minimum";
            symptoms.push(Symptom::failure(text).of(label(&sample.labels)));
        }
    }
    for sample in daemon.samples("plimsoll_limit_age_seconds")? {
        if sample.value > LIMIT_AGE_MAX {
            let text = format!("it was last read {:.0} s ago", sample.value);
            symptoms.push(Symptom::warning(text).of(label(&sample.labels)));
        }
    }
    if symptoms.is_empty() {
        symptoms.push(Symptom::ok(counted(unread.len(), "limit")));
    }
    Ok(symptoms)
}

pub(super) fn certificate(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    let own = evidence.config().ok().and_then(|config| {
        let served = config.config.keys.external_metrics.as_ref()?;
        served.tls.self_managed.as_ref()
    });
    // A certificate that is renewed by itself has a third of its life left until then.
    let least = own.map_or(VALID_MIN, |own| (own.leaf_lifetime.as_secs_f64() / 4.0).min(VALID_MIN));

    let mut symptoms = Vec::new();
    for (metric, what) in [
        ("plimsoll_tls_certificate_not_after_timestamp_seconds", "certificate"),
        ("plimsoll_tls_authority_not_after_timestamp_seconds", "authority"),
        ("plimsoll_external_scaler_certificate_not_after_timestamp_seconds", "KEDA certificate"),
    ] {
        let Some(until) = daemon.value(metric)? else { continue };
        let left = until - evidence.now.as_second() as f64;
        let text = format!("it is valid for {}", days(left));
        symptoms.push(if left <= 0.0 {
            Symptom::failure("it has expired").of(what)
        } else if left < least {
            Symptom::warning(text).of(what)
        } else {
            Symptom::ok(text).of(what)
        });
    }
    if symptoms.is_empty() {
        return Err(Unseen::NotApplicable("the daemon presents no certificate".to_owned()));
    }
    Ok(symptoms)
}

pub(super) fn state_file(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    if evidence.config()?.config.keys.state_file.is_none() {
        return Err(Unseen::NotApplicable("state_file is not set".to_owned()));
    }

    failures(daemon, "plimsoll_state_file_failures_total")
}

pub(super) fn trace(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    if evidence.config()?.config.keys.trace.is_none() {
        return Err(Unseen::NotApplicable("trace is not set".to_owned()));
    }

    failures(daemon, "plimsoll_trace_failures_total")
}

/// Judges a counter of failures.
fn failures(daemon: &DaemonEvidence, metric: &str) -> Findings {
    let failed: f64 = daemon.samples(metric)?.iter().map(|sample| sample.value).sum();
    if failed > 0.0 {
        return Ok(vec![Symptom::warning(format!("{metric} is {failed}"))]);
    }
    Ok(vec![Symptom::ok("no attempt has failed since the start")])
}

pub(super) fn descriptors(evidence: &Evidence) -> Findings {
    let daemon = answering(evidence)?;
    let open = daemon.value("process_open_fds")?;
    let most = daemon.value("process_max_fds")?;
    let (Some(open), Some(most)) = (open, most) else {
        return Err(Unseen::Unknown("the daemon does not report them".to_owned()));
    };

    let text = format!("{open} of {most} are open");
    Ok(vec![if open > FULL * most { Symptom::warning(text) } else { Symptom::ok(text) }])
}
