//! Checks of variants: their targets, pods and annotations.

use jiff::Timestamp;

use crate::cli::doctor::evidence::{ClusterEvidence, Evidence};
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen, Verdict};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::{Scale, WhyScaleUnknown};
use plimsoll_daemon::collect::cluster::discovery::{Discovery, Objection, ObjectionCause};
use plimsoll_daemon::collect::cluster::{ClusterPod, ClusterState, VariantState};
use plimsoll_daemon::config::counted;

/// A pod that is not ready after this time takes longer than nearly all engines.
const START_MAX: f64 = 1800.0;

/// Returns the kinds that this user cannot list in a namespace.
pub(super) fn hidden<'a>(cluster: &'a ClusterEvidence, namespace: &str) -> Option<&'a [String]> {
    let own = cluster.hidden.get(namespace).or_else(|| cluster.hidden.get(""));
    own.map(Vec::as_slice)
}

/// Judges each variant whose objects this user can see. Those without a problem are counted.
pub(super) fn of_variants(
    evidence: &Evidence,
    judge: impl Fn(&VariantKey, &VariantState) -> Vec<Symptom>,
) -> Findings {
    let cluster = evidence.cluster()?;
    let state = cluster.state.read()?;
    if state.variants.is_empty() {
        return Err(unlisted(cluster)
            .unwrap_or_else(|| Unseen::NotApplicable("there are no variants".to_owned())));
    }

    let mut sound = 0;
    let mut symptoms = Vec::new();
    for (key, variant) in &state.variants {
        if let Some(kinds) = hidden(cluster, key.namespace.as_str()) {
            symptoms.push(Symptom::unknown(may_not_list(kinds)).of(key).fix(GRANT));
            continue;
        }

        let found = judge(key, variant);
        sound += usize::from(found.is_empty());
        symptoms.extend(found);
    }

    if symptoms.is_empty() {
        symptoms.push(Symptom::ok(counted(sound, "variant")));
    }
    Ok(symptoms)
}

/// The same, and a variant of which nothing is known is unknown.
pub(super) fn of_known(
    evidence: &Evidence,
    judge: impl Fn(&VariantKey, &VariantState) -> Vec<Symptom>,
) -> Findings {
    of_variants(evidence, |key, variant| match &variant.scale {
        Scale::Unknown(why)
            if variant.pods.is_empty()
                && variant.findings.is_empty()
                && variant.follower.is_none() =>
        {
            let text = format!("it is not judged: {why}");
            vec![Symptom::unknown(text).of(key).fix("See the checks targets and owners")]
        }
        Scale::Targets | Scale::Unknown(_) | Scale::Known(_) => judge(key, variant),
    })
}

const GRANT: &str = "Run it as a user who may list these; docs/doctor.md has the permissions";

fn may_not_list(kinds: &[String]) -> String {
    format!("this user may not list {}", kinds.join(", "))
}

/// The reason that variants may exist that this user does not see.
fn unlisted(cluster: &ClusterEvidence) -> Option<Unseen> {
    let (namespace, kinds) = cluster.hidden.first_key_value()?;
    let place = if namespace.is_empty() { "the cluster" } else { namespace.as_str() };
    Some(Unseen::Unknown(format!("{} in {place}", may_not_list(kinds))))
}

pub(super) fn variants(evidence: &Evidence) -> Findings {
    let cluster = evidence.cluster()?;
    let ClusterState { variants, discovery, .. } = cluster.state.read()?;
    if let Some(unseen) = unlisted(cluster) {
        return Err(unseen);
    }
    if variants.is_empty() {
        return Ok(vec![Symptom::failure("no variant of the cluster is configured or annotated")]);
    }

    let all = counted(variants.len(), "variant");
    let found = discovery.variants.len();
    Ok(vec![Symptom::ok(format!("{all} in the cluster, {found} of them by annotations"))])
}

pub(super) fn targets(evidence: &Evidence) -> Findings {
    of_variants(evidence, |key, variant| {
        let Scale::Unknown(why) = &variant.scale else { return Vec::new() };
        let verdict = match why {
            WhyScaleUnknown::NotListed | WhyScaleUnknown::Forbidden => Verdict::Unknown,
            WhyScaleUnknown::NoSuchTarget => Verdict::Failure,
            WhyScaleUnknown::DuplicateOwners(_) => return Vec::new(),
        };
        vec![Symptom::new(verdict, why.to_string()).of(key)]
    })
}

pub(super) fn owners(evidence: &Evidence) -> Findings {
    of_variants(evidence, |key, variant| match &variant.scale {
        Scale::Unknown(why @ WhyScaleUnknown::DuplicateOwners(_)) => {
            vec![Symptom::failure(why.to_string()).of(key)]
        }
        Scale::Unknown(why @ (WhyScaleUnknown::NotListed | WhyScaleUnknown::Forbidden)) => {
            vec![Symptom::unknown(why.to_string()).of(key)]
        }
        Scale::Targets | Scale::Unknown(WhyScaleUnknown::NoSuchTarget) | Scale::Known(_) => {
            Vec::new()
        }
    })
}

pub(super) fn scheduled(evidence: &Evidence) -> Findings {
    of_known(evidence, |key, variant| {
        let waiting = variant.pods.iter().filter(|pod| pod.counts() && pod.node.is_none());
        let unplaced = waiting.filter_map(|pod| Some((pod, pod.unschedulable_since?)));
        unplaced
            .map(|(pod, since)| {
                let text = format!("pod {} is unschedulable since {since}", pod.name);
                let fix = format!("kubectl describe pod {} -n {}", pod.name, key.namespace);
                Symptom::warning(text).of(key).fix(fix)
            })
            .collect()
    })
}

pub(super) fn ready(evidence: &Evidence) -> Findings {
    of_known(evidence, |key, variant| {
        let placed: Vec<&ClusterPod> =
            variant.pods.iter().filter(|pod| pod.counts() && pod.node.is_some()).collect();
        let unready: Vec<&ClusterPod> =
            placed.iter().copied().filter(|pod| !pod.serves()).collect();
        if !unready.is_empty() && unready.len() == placed.len() {
            let text = format!("none of {} is ready", counted(placed.len(), "pod"));
            return vec![Symptom::failure(text).of(key)];
        }

        let late = unready.iter().filter(|pod| age(evidence.now, pod) > START_MAX);
        late.map(|pod| {
            let minutes = age(evidence.now, pod) / 60.0;
            let text = format!("pod {} is not ready after {minutes:.0} minutes", pod.name);
            Symptom::warning(text).of(key)
        })
        .collect()
    })
}

/// The age of a pod in seconds; 0 if it is not known.
fn age(now: Timestamp, pod: &ClusterPod) -> f64 {
    pod.created.map_or(0.0, |created| now.duration_since(created).as_secs_f64())
}

pub(super) fn annotations(evidence: &Evidence) -> Findings {
    objections(evidence, |cause| match cause {
        ObjectionCause::Refused { .. } => Some(Verdict::Failure),
        ObjectionCause::Doubted { .. }
        | ObjectionCause::TargetTaken { .. }
        | ObjectionCause::NameTaken { .. }
        | ObjectionCause::TooMany { .. }
        | ObjectionCause::CredentialsWithheld(_) => None,
    })
}

pub(super) fn annotation_values(evidence: &Evidence) -> Findings {
    objections(evidence, |cause| match cause {
        ObjectionCause::Doubted { .. } | ObjectionCause::CredentialsWithheld(_) => {
            Some(Verdict::Warning)
        }
        ObjectionCause::Refused { .. }
        | ObjectionCause::TargetTaken { .. }
        | ObjectionCause::NameTaken { .. }
        | ObjectionCause::TooMany { .. } => None,
    })
}

pub(super) fn names(evidence: &Evidence) -> Findings {
    objections(evidence, |cause| match cause {
        ObjectionCause::NameTaken { .. } | ObjectionCause::TooMany { .. } => Some(Verdict::Failure),
        ObjectionCause::TargetTaken { .. } => Some(Verdict::Warning),
        ObjectionCause::Refused { .. }
        | ObjectionCause::Doubted { .. }
        | ObjectionCause::CredentialsWithheld(_) => None,
    })
}

/// Judges the objections of discovery.
fn objections(evidence: &Evidence, judge: fn(&ObjectionCause) -> Option<Verdict>) -> Findings {
    let cluster = evidence.cluster()?;
    let discovery: &Discovery = &cluster.state.read()?.discovery;
    if let Ok(config) = evidence.config()
        && config.config.keys.kubernetes.discovery().is_none()
    {
        return Err(Unseen::NotApplicable("kubernetes.discovery is off".to_owned()));
    }
    if let Some(unseen) = unlisted(cluster) {
        return Err(unseen);
    }

    let found: Vec<Symptom> = discovery
        .objections
        .iter()
        .filter_map(|Objection { object, cause }| {
            Some(Symptom::new(judge(cause)?, cause.to_string()).of(object))
        })
        .collect();
    if found.is_empty() {
        let all: usize = discovery.standings.values().sum();
        return Ok(vec![Symptom::ok(counted(all, "annotated object"))]);
    }
    Ok(found)
}
