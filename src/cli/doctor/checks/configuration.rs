//! Checks of the configuration.

use crate::cli::doctor::evidence::{ConfigEvidence, Evidence};
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen};
use plimsoll_daemon::config::counted;

pub(super) fn valid(evidence: &Evidence) -> Findings {
    let ConfigEvidence { origin, config, warnings } = match evidence.config.read()? {
        Ok(loaded) => loaded,
        Err(problems) => return Ok(vec![Symptom::failure(problems)]),
    };
    if !warnings.is_empty() {
        let each = warnings.iter().map(|warning| Symptom::warning(warning).of(origin));
        return Ok(each.collect());
    }

    let variants = counted(config.variants.len(), "variant");
    Ok(vec![Symptom::ok(format!("{origin} is valid: {variants}, hash {}", config.hash()))])
}

pub(super) fn current(evidence: &Evidence) -> Findings {
    let status = evidence.daemon.read()?.status.read()?;
    let ConfigEvidence { origin, config, .. } = evidence.config()?;

    let running = status["config"]["hash"].as_str().unwrap_or_default();
    let written = config.hash();
    if running == written {
        return Ok(vec![Symptom::ok(format!("both have the hash {written}"))]);
    }

    let keys = &config.keys;
    let cards = keys.capacity.as_ref().is_some_and(|it| it.card_files.is_some());
    if cards || keys.compatibility.wva_config.is_some() {
        let text = format!(
            "{origin} names files on the daemon's machine, which are part of its \
            hash"
        );
        return Err(Unseen::Unknown(text));
    }
    let text = format!("the daemon has the hash {running}, and {origin} has {written}");
    Ok(vec![Symptom::warning(text)])
}

pub(super) fn reloaded(evidence: &Evidence) -> Findings {
    let status = evidence.daemon.read()?.status.read()?;
    let last = &status["config"]["last_reload"];
    let at = last["at"].as_str().unwrap_or_default();

    Ok(vec![match (last["accepted"].as_bool(), last["problem"].as_str()) {
        (Some(false), problem) => {
            let problem = problem.unwrap_or("no reason given");
            Symptom::failure(format!("the configuration of {at} was rejected: {problem}"))
        }
        (Some(true), _) => Symptom::ok(format!("accepted at {at}")),
        (None, _) => Symptom::ok("it has not changed since the start"),
    }])
}
