//! Several replicas, of which one decides.

use crate::config::LeaderElection;
use crate::config::check::Checks;
use crate::config::written::WrittenDuration;

const PATH: &str = "kubernetes.leader_election";

/// How much longer than the retry period a contender may wait; its deadline must leave room for it.
const JITTER: f64 = 1.2;

/// A leader must give up before the others take over, and have time to try more than once.
pub(super) fn check_order(election: &LeaderElection, checks: &mut Checks<'_>) {
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
