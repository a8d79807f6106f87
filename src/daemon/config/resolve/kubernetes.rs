//! The connection to a cluster: checks keys that must fit together, and keys without effect.

use crate::config::check::Checks;
use crate::config::file::{Discovery, Kubernetes, LeaderElection};
use plimsoll_core::settings::Written;
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::written::WrittenDuration;

const PATH: &str = "kubernetes";
const DISCOVERY: &str = "kubernetes.discovery";
const ELECTION: &str = "kubernetes.leader_election";

/// The factor by which a contender may exceed the retry period; its deadline must leave room for
/// that.
const JITTER: f64 = 1.2;

/// The keys that apply: without a cluster, only the leader election is checked.
pub(crate) fn effective(written: &Written<Kubernetes>) -> Written<Kubernetes> {
    if written.enabled == Some(true) {
        return written.clone();
    }
    // The other keys have no effect, so they are not checked.
    Written::<Kubernetes> { leader_election: written.leader_election.clone(), ..Default::default() }
}

/// Checks the section, and removes the keys without effect.
pub(crate) fn complete(
    written: Option<&Written<Kubernetes>>,
    keys: &mut Kubernetes,
    checks: &mut Checks<'_>,
) {
    check_order(&keys.leader_election, checks);
    let Some(written) = written else { return };
    if keys.enabled {
        checks.file("kubernetes.kubeconfig", keys.kubeconfig.as_ref());
        complete_discovery(written.discovery.as_ref(), &mut keys.discovery, checks);
        if !keys.leader_election.enabled {
            keys.leader_election = LeaderElection::default();
        }
        return;
    }

    let discovers = written.discovery.as_ref().is_some_and(|it| it.enabled == Some(true));
    if discovers {
        let rule = "needs kubernetes.enabled to be true";
        checks.problems.error_at(join(DISCOVERY, "enabled"), rule);
    }

    let others = [
        ("kubeconfig", written.kubeconfig.is_some()),
        ("context", written.context.is_some()),
        ("events", written.events.is_some()),
        ("leader_election", written.leader_election.is_some()),
    ];
    checks.problems.unused(PATH, &others, "kubernetes.enabled is not true");

    *keys = Kubernetes::default();
}

fn complete_discovery(
    written: Option<&Written<Discovery>>,
    keys: &mut Discovery,
    checks: &mut Checks<'_>,
) {
    let problems = &mut checks.problems;
    let mut namespaces: Vec<String> = Vec::new();
    let listed = written.and_then(|it| it.namespaces.as_deref()).unwrap_or_default();
    for (at, namespace) in listed.iter().enumerate() {
        let path = format!("{DISCOVERY}.namespaces[{at}]");
        let Some(namespace) = namespace.clone().filter(|_| !problems.refused(&path)) else {
            continue;
        };
        if namespaces.contains(&namespace) {
            problems.warning(path, "is already in the list");
        } else {
            namespaces.push(namespace);
        }
    }

    keys.namespaces = namespaces;
    if keys.enabled {
        check_discovery(keys, checks);
        return;
    }

    let Discovery {
        enabled: _,
        namespaces,
        selector,
        namespace_selector,
        annotations,
        gpus_max,
        cost_min,
        cost_max,
        wva,
    } = std::mem::take(keys);
    let usual = Discovery::default();
    let written = [
        ("namespaces", !namespaces.is_empty()),
        ("selector", selector.is_some()),
        ("namespace_selector", namespace_selector.is_some()),
        ("annotations", annotations.is_some()),
        ("gpus_max", gpus_max != usual.gpus_max),
        ("cost_min", cost_min != usual.cost_min),
        ("cost_max", cost_max != usual.cost_max),
        ("wva", !wva),
    ];
    problems.unused(DISCOVERY, &written, "kubernetes.discovery.enabled is not true");
}

fn check_discovery(keys: &Discovery, checks: &mut Checks<'_>) {
    let problems = &mut checks.problems;
    if keys.namespace_selector.is_some() && !keys.namespaces.is_empty() {
        let rule = "has no effect, because kubernetes.discovery.namespaces lists the namespaces";
        problems.warning(join(DISCOVERY, "namespace_selector"), rule);
    }

    if keys.cost_min > keys.cost_max {
        let most = keys.cost_max.per_hour();
        let rule = format!("must not be above kubernetes.discovery.cost_max, which is {most}");
        problems.error(join(DISCOVERY, "cost_min"), rule, keys.cost_min.per_hour());
    }
}

/// Checks that a leader gives up before the others take over, and has time for more than one
/// attempt.
fn check_order(election: &LeaderElection, checks: &mut Checks<'_>) {
    let LeaderElection { lease_duration, renew_deadline, retry_period, .. } = election;
    if renew_deadline >= lease_duration {
        let lease = WrittenDuration(*lease_duration);
        let rule = format!("must be shorter than lease_duration, which is {lease}");
        let path = join(ELECTION, "renew_deadline");
        checks.problems.error(path, rule, WrittenDuration(*renew_deadline));
    }

    if retry_period.mul_f64(JITTER) >= *renew_deadline {
        let deadline = WrittenDuration(*renew_deadline);
        let rule = format!("must be less than five sixths of renew_deadline, which is {deadline}");
        let path = join(ELECTION, "retry_period");
        checks.problems.error(path, rule, WrittenDuration(*retry_period));
    }
}
