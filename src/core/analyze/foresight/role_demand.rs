//! The demand for one role of one model: its arrivals, and the needs that are held.

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::ArrivalHistory;
use crate::analyze::foresight::budget::BudgetAddition;
use crate::analyze::foresight::demand::RequiredCapacity;
use crate::analyze::foresight::drift::Mixes;
use crate::analyze::foresight::explain::DemandForecast;
use crate::analyze::foresight::held::{HoldWindow, held_for};
use crate::analyze::foresight::lengths::RequestLengths;
use crate::analyze::foresight::policy::{ForesightPolicy, ScaleDownWindow};
use crate::analyze::foresight::routing::RouterWeights;
use crate::analyze::foresight::schedule::Week;
use crate::analyze::foresight::standby::{Relief, Standby};

/// The demand for one role of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct RoleDemand {
    pub(super) arrivals: ArrivalHistory,
    /// The instant up to which arrivals were counted. No replica has counted them since then.
    pub(super) counted_until: Option<Timestamp>,
    /// Arrivals at prefill, while they are more than those at decode.
    pub(super) upstream: Option<UpstreamArrivals>,
    pub(super) hold: HoldWindow,
    /// The need with the backlog, which disappears once the backlog is worked off.
    pub(super) queue: HoldWindow,
    /// The load that standby bridges until replicas that start slowly serve.
    pub(super) bridge: HoldWindow,
    pub(super) lengths: RequestLengths,
    pub(super) mixes: Mixes,
    pub(super) budget: BudgetAddition,
    pub(super) week: Week,
    pub(super) router: RouterWeights,
    /// True once saved demand was restored. It happens once, however often variants return.
    pub(super) restored: bool,
}

/// Arrivals at prefill, and the instant up to which they are known.
#[derive(Clone, Debug)]
pub(super) struct UpstreamArrivals {
    pub(super) arrivals: ArrivalHistory,
    pub(super) known_through: Timestamp,
}

// === impl RoleDemand ===

impl RoleDemand {
    /// Returns true if arrivals are not known up to this instant, although there are replicas.
    pub(super) fn is_uncounted(&self, through: Timestamp) -> bool {
        self.counted_until.is_none_or(|counted| counted < through)
    }

    /// The instant up to which arrivals are known, at most this one. While no replica counts them,
    /// the last known ones stand for the present ones.
    pub(super) fn known_through(&self, through: Timestamp) -> Timestamp {
        self.counted_until.map_or(through, |counted| counted.min(through))
    }

    /// The arrivals that count, and the instant up to which they are known.
    pub(super) fn arriving(&self, through: Timestamp) -> (&ArrivalHistory, Timestamp) {
        match &self.upstream {
            Some(upstream) => (&upstream.arrivals, upstream.known_through),
            None => (&self.arrivals, self.known_through(through)),
        }
    }

    /// Multiplies all past arrivals and the needs that are held. The schedule stays, because it is
    /// the load of other days.
    pub(super) fn scale(&mut self, factor: f64) {
        self.arrivals.scale(factor);
        if let Some(upstream) = &mut self.upstream {
            upstream.arrivals.scale(factor);
        }

        for window in [&mut self.hold, &mut self.queue, &mut self.bridge] {
            window.scale(factor);
        }
    }

    /// The largest need that is held, and its instant.
    pub(super) fn held(
        &mut self,
        now: Timestamp,
        policy: &ForesightPolicy,
        need: &RequiredCapacity,
        startup: f64,
    ) -> (Timestamp, f64) {
        // The jitter is the time for which the replica count is held instead.
        let replaced = policy.hold.filter(|hold| hold.replaces_window == ScaleDownWindow::Replaced);
        let jitter = replaced.map_or(0.0, |hold| hold.jitter.seconds());
        let length = (held_for(policy, startup) - jitter).max(0.0);
        let lasting = self.hold.take(now, (need.total - need.passing()).max(0.0), length);

        let backlog = policy.hold.and(policy.backlog);
        let drain = backlog.map_or(0.0, |backlog| backlog.drain.seconds());
        let all = self.queue.take(now, need.total, drain);
        if all.1 > lasting.1 { all } else { lasting }
    }

    /// The load that standby bridges by a forecast. Standby keeps its last bridge while there is no
    /// forecast because the arrivals are not known.
    pub(super) fn bridged(&self, found: Option<&DemandForecast>) -> f64 {
        match found {
            Some(found) => found.relief.map(|relief| relief.bridge).unwrap_or_default(),
            None => self.bridge.last().unwrap_or_default(),
        }
    }

    /// The part of standby in a need; `None` without standby. Standby bridges the load that other
    /// serving replicas cannot handle.
    pub(super) fn relieve(
        &mut self,
        now: Timestamp,
        policy: &ForesightPolicy,
        need: &RequiredCapacity,
        standby: Option<&Standby<'_>>,
    ) -> Option<Relief> {
        let Some(standby) = standby else {
            self.bridge = HoldWindow::default();
            return None;
        };

        let startup = standby.startup.seconds();
        let missing = (need.present(policy) - standby.beside).max(0.0);
        let (_, bridge) = self.bridge.take(now, missing, held_for(policy, startup));
        Some(Relief { startup, reserve: need.reserve.unwrap_or_default(), bridge })
    }
}
