//! The liveness of the daemon: the decision loop is there, and it ticks.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::heartbeat::Heartbeat;
use crate::daemon::context::DaemonContext;
use crate::daemon::ticks::Ticks;
use crate::publish::Published;
use crate::server::ServerPhase;

/// The signs of life of the decision loop.
pub(crate) struct LoopLiveness {
    heartbeat: Heartbeat,
    published: watch::Receiver<Arc<Published>>,
    phases: watch::Receiver<ServerPhase>,
}

/// Runs the decision loop. A loop that ends, also by a panic, no longer decides for other replicas.
pub(crate) async fn decide(ticks: Ticks, stop: CancellationToken, retire: CancellationToken) {
    let _retired = retire.drop_guard();
    Box::pin(ticks.run(stop)).await;
}

impl LoopLiveness {
    pub(crate) fn of(common: &DaemonContext) -> Self {
        Self {
            heartbeat: common.heartbeat.clone(),
            published: common.published.clone(),
            phases: common.phases.clone(),
        }
    }

    /// Fails if the loop has ended or stands still. A loop that ends at a shutdown is no failure.
    pub(crate) fn check(&self) -> Result<(), String> {
        if *self.phases.borrow() == ServerPhase::Draining {
            return Ok(());
        }

        // The loop drops its sender only when it ends; outside of a shutdown that is a panic.
        if self.published.has_changed().is_err() {
            return Err("the decision loop has ended".into());
        }

        match self.heartbeat.death() {
            None => Ok(()),
            Some(silence) => {
                let seconds = silence.as_secs();
                Err(format!("the decision loop has not completed a tick for {seconds} s"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Checks a loop whose last tick was so long ago.
    fn check(silence: Duration, phase: ServerPhase, ended: bool) -> Result<(), String> {
        let (sender, published) = watch::channel(Arc::default());
        let phases = watch::channel(phase).1;
        let heartbeat = Heartbeat::silent_for(silence);
        let liveness = LoopLiveness { heartbeat, published, phases };

        let _kept = (!ended).then_some(sender);
        liveness.check()
    }

    #[test]
    fn a_loop_is_alive_while_it_ticks_within_a_minute() {
        assert_eq!(check(Duration::from_secs(50), ServerPhase::Serving, false), Ok(()));
        let stands = check(Duration::from_secs(70), ServerPhase::Unready, false).unwrap_err();
        assert!(stands.starts_with("the decision loop has not completed a tick for 7"), "{stands}");
        let ended = check(Duration::ZERO, ServerPhase::Serving, true).unwrap_err();
        assert_eq!(ended, "the decision loop has ended");
    }

    #[test]
    fn a_loop_that_ends_with_the_daemon_is_no_failure() {
        assert_eq!(check(Duration::from_secs(70), ServerPhase::Draining, true), Ok(()));
    }
}
