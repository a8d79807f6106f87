//! Checks of the API server itself.

use crate::cli::doctor::evidence::{ApiServerVersion, DaemonEvidence, Evidence};
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen};

/// The oldest minor version of Kubernetes 1 that is supported, as docs/install.md says.
const MINOR_MIN: u32 = 29;

/// The first minor version in which the tolerance of an HPA needs no feature gate.
const MINOR_TOLERANCE: u32 = 35;

/// A difference of clocks that is no longer that of two requests.
const AHEAD_MAX: f64 = 5.0;

pub(super) fn answers(evidence: &Evidence) -> Findings {
    let cluster = match evidence.cluster.read() {
        Ok(cluster) => cluster,
        Err(Unseen::Unknown(reason)) => return Ok(vec![Symptom::failure(reason)]),
        Err(absent) => return Err(absent),
    };

    match cluster.api_server.read() {
        Ok(ApiServerVersion { version, .. }) => Ok(vec![Symptom::ok(version)]),
        Err(Unseen::Unknown(reason)) => Ok(vec![Symptom::failure(reason)]),
        Err(absent) => Err(absent),
    }
}

pub(super) fn version(evidence: &Evidence) -> Findings {
    let ApiServerVersion { version, minor, .. } = evidence.cluster()?.api_server.read()?;
    let Some(minor) = minor else {
        return Err(Unseen::Unknown(format!("cannot parse the version {version}")));
    };

    Ok(vec![if *minor < MINOR_MIN {
        Symptom::failure(format!("{version} is older than 1.{MINOR_MIN}"))
    } else if *minor < MINOR_TOLERANCE {
        Symptom::ok(format!(
            "{version}; before 1.{MINOR_TOLERANCE}, the tolerance of HPAs needs a feature gate"
        ))
    } else {
        Symptom::ok(version)
    }])
}

pub(super) fn clocks(evidence: &Evidence) -> Findings {
    let mut symptoms = Vec::new();
    let answered = evidence.cluster().and_then(|cluster| cluster.api_server.read());
    if let Ok(ApiServerVersion { ahead_seconds: Some(ahead), .. }) = answered {
        symptoms.push(difference("the API server", *ahead));
    }

    if let Ok(DaemonEvidence { ahead_seconds: Some(ahead), .. }) = evidence.daemon.read() {
        symptoms.push(difference("the daemon", *ahead));
    }

    if symptoms.is_empty() {
        evidence.cluster()?;
        let text = "neither the API server nor the daemon shows a time";
        return Err(Unseen::Unknown(text.to_owned()));
    }
    Ok(symptoms)
}

fn difference(whose: &str, ahead: f64) -> Symptom {
    let direction = if ahead < 0.0 { "behind" } else { "ahead of" };
    let text = format!("this machine is {:.1} s {direction} {whose}", ahead.abs());
    if ahead.abs() > AHEAD_MAX { Symptom::warning(text) } else { Symptom::ok(text) }
}
