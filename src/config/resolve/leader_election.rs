//! Several replicas, of which one decides.

use std::time::Duration;

use crate::config::LeaderElection;
use crate::config::check::{Checks, Durations};
use crate::config::file;
use crate::config::names;
use crate::config::written::WrittenDuration;

const PATH: &str = "kubernetes.leader_election";

const NAME: &str = "plimsoll";

/// What the controllers of Kubernetes itself use.
const LEASE_DURATION: Duration = Duration::from_secs(15);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// A Lease is written in whole seconds, and numbers that nobody renews for longer are not fresh.
const LEASE_DURATIONS: Durations = Duration::from_secs(1)..=Duration::from_mins(5);
const PERIODS: Durations = Duration::from_millis(100)..=Duration::from_mins(5);

/// How much longer than the retry period a contender may wait; its deadline must leave room for it.
const JITTER: f64 = 1.2;

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            namespace: None,
            name: NAME.to_owned(),
            identity: None,
            lease_duration: LEASE_DURATION,
            renew_deadline: RENEW_DEADLINE,
            retry_period: RETRY_PERIOD,
        }
    }
}

pub(crate) fn resolve(
    section: file::LeaderElection,
    checks: &mut Checks<'_>,
) -> Option<LeaderElection> {
    let file::LeaderElection {
        enabled,
        namespace,
        name,
        identity,
        lease_duration,
        renew_deadline,
        retry_period,
    } = section;
    let at = |key: &str| format!("{PATH}.{key}");
    let defaults = LeaderElection::default();
    let rule = "must be the name of a namespace";
    let namespace = checks.text(&at("namespace"), namespace.as_deref(), names::is_dns_label, rule);
    let rule = "must be the name of a Lease, with room for `-decisions` behind it";
    let name = checks.text(&at("name"), name.as_deref(), is_lease_name, rule);
    let rule = "must be a text without spaces at its ends";
    let identity = checks.text(&at("identity"), identity.as_deref(), names::is_label_text, rule);
    let lease = checks.duration(&at("lease_duration"), lease_duration, &LEASE_DURATIONS);
    let deadline = checks.duration(&at("renew_deadline"), renew_deadline, &PERIODS);
    let retry = checks.duration(&at("retry_period"), retry_period, &PERIODS);
    let election = LeaderElection {
        namespace: namespace.map(ToOwned::to_owned),
        name: name.map_or(defaults.name, ToOwned::to_owned),
        identity: identity.map(ToOwned::to_owned),
        lease_duration: lease.unwrap_or(LEASE_DURATION),
        renew_deadline: deadline.unwrap_or(RENEW_DEADLINE),
        retry_period: retry.unwrap_or(RETRY_PERIOD),
    };
    check_order(&election, checks);
    enabled.unwrap_or(false).then_some(election)
}

/// A leader must give up before the others take over, and have time to try more than once.
fn check_order(election: &LeaderElection, checks: &mut Checks<'_>) {
    let LeaderElection { lease_duration, renew_deadline, retry_period, .. } = election;
    if renew_deadline >= lease_duration {
        let lease_duration = WrittenDuration(*lease_duration);
        let rule = format!("must be shorter than lease_duration, which is {lease_duration}");
        let path = format!("{PATH}.renew_deadline");
        checks.problems.error(path, rule, WrittenDuration(*renew_deadline));
    }
    if retry_period.mul_f64(JITTER) >= *renew_deadline {
        let renew_deadline = WrittenDuration(*renew_deadline);
        let rule =
            format!("must be less than five sixths of renew_deadline, which is {renew_deadline}");
        let path = format!("{PATH}.retry_period");
        checks.problems.error(path, rule, WrittenDuration(*retry_period));
    }
}

fn is_lease_name(text: &str) -> bool {
    names::is_object_name(&format!("{text}-decisions"))
}
