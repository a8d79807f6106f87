//! The forecast of the demand on the variants of one role, and the resulting shortfall or headroom.

use jiff::Timestamp;

use crate::analyze::capacity::{Totals, amount};
use crate::analyze::foresight::budget::{BudgetAddition, FirstTokens};
use crate::analyze::foresight::demand::{DemandInputs, RequiredCapacity, Reserve};
use crate::analyze::foresight::explain::DemandForecast;
use crate::analyze::foresight::gateway::{GatewayBacklog, GatewayLoad, GatewaySignals};
use crate::analyze::foresight::policy::{ForesightPolicy, Rounding};
use crate::analyze::foresight::role_demand::RoleDemand;
use crate::analyze::foresight::role_fleet::{Rates, RoleFleet};
use crate::analyze::foresight::standby::{self, Standby};
use crate::analyze::foresight::waking::WakeQueue;
use crate::fleet::Role;
use crate::units::Replicas;

/// The rounding of sums, so that a count that is reached exactly counts as reached.
const EPSILON: f64 = 1e-9;

/// The instants of a look at a model, and the queue before its replicas.
#[derive(Clone, Copy)]
pub(super) struct ModelLook {
    pub(super) now: Timestamp,
    /// The instant up to which every replica has reported.
    pub(super) through: Timestamp,
    pub(super) front: GatewaySignals,
    /// The queue that no replica works off.
    pub(super) unserved: Option<WakeQueue>,
}

// === impl RoleFleet ===

impl RoleFleet<'_> {
    /// The forecast for these variants, with the work of past requests.
    pub(super) fn foresee(
        &self,
        look: &ModelLook,
        policy: &ForesightPolicy,
        demand: &mut RoleDemand,
        work: &[f64],
        standby: Option<&Standby<'_>>,
    ) -> Option<DemandForecast> {
        let ModelLook { now, through, front, unserved } = *look;
        let rates = self.rates()?;
        let queues = &self.queues();

        let settles = policy.settles_after(standby::startup(self, policy));
        let startup = standby::startup(self, policy).seconds();
        let horizon = policy.horizon(startup);
        let reserve = standby
            .map(|it| Reserve { horizon: policy.horizon(it.startup.seconds()), room: it.room });

        let raised = self.raise(now, policy, &mut demand.budget);
        let ahead = policy.schedule.and_then(|_| demand.week.ahead(through, horizon));
        let (arrivals, known_through) = demand.arriving(through);
        let gateway = rates.behind_gateway(policy, front, arrivals.rate(known_through));

        let Rates { least, carries, unused, .. } = rates;
        let bound = self.bound();
        let at_zero = self.variants.iter().all(|(it, _)| it.current == Replicas::ZERO);
        let setting = DemandInputs {
            through: known_through,
            horizon,
            reserve,
            carries,
            work,
            policy,
            queues,
            gateway,
            at_zero,
            smoothing: self.smoothing(bound),
            ahead,
            raised,
            absent: self.absent(horizon),
        };

        let need = match unserved {
            Some(queue) => queue.need(arrivals, &setting, self.coming(startup)),
            None => RequiredCapacity::of(arrivals, &setting)?,
        };
        let relief = demand.relieve(now, policy, &need, standby);
        let lasting = demand.held(now, policy, &need, startup);
        // A need from before the scale to zero does not bring a replica back.
        let (since, held) = if at_zero { (now, need.total) } else { lasting };

        let known = demand.arrivals.history(demand.known_through(through));
        let mature = known >= settles.seconds() && !self.by_card;
        let ForesightPolicy { used, rounding, .. } = *policy;
        Some(DemandForecast {
            role: self.role,
            need,
            held,
            since,
            least,
            carries,
            unused,
            bound,
            horizon,
            relief,
            mature,
            used,
            rounding,
        })
    }

    /// The addition from the error budget, as a share of the need.
    fn raise(&self, now: Timestamp, policy: &ForesightPolicy, budget: &mut BudgetAddition) -> f64 {
        let Some(dial) = &policy.error_budget else { return 0.0 };
        // Decode replicas get only requests that already have their first token.
        let settled = self.variants.iter().all(|(variant, _)| variant.pending == Replicas::ZERO);
        let judges = self.role != Role::Decode && settled;

        let firsts = judges.then(|| {
            let histograms = self.variants.iter().filter_map(|(variant, _)| variant.ttft);
            FirstTokens::of(histograms, policy.ttft.seconds())
        });
        budget.judge(now, dial, firsts)
    }
}

// === impl Rates ===

impl Rates {
    /// The queue at the gateway, with the rate that it needs in addition.
    fn behind_gateway(
        &self,
        policy: &ForesightPolicy,
        front: GatewaySignals,
        arriving: Option<f64>,
    ) -> Option<GatewayBacklog> {
        let gateway = policy.gateway?;
        let queued = front.queued?.requests.requests();
        let load = GatewayLoad { arriving: arriving?, carries: self.carries, supply: self.there };
        GatewayBacklog::of(queued, &gateway, load, policy.ttft.seconds())
    }
}

// === impl DemandForecast ===

impl DemandForecast {
    /// The shortfall and the headroom with this supply.
    pub(super) fn judge(&self, supply: Totals) -> Totals {
        let Rounding { excess, spare } = self.rounding;
        let wanted = self.held - excess.fraction() * self.least;
        let required = wanted - supply.anticipated.amount();

        let one_less = self.held + (1.0 + spare.fraction()) * self.least;
        let safe = one_less <= supply.supply.amount() * (1.0 + EPSILON);
        let left = if safe && self.mature { supply.supply.amount() - wanted } else { 0.0 };

        Totals {
            demand: amount(self.held),
            required: amount(required),
            spare: amount(left),
            ..supply
        }
    }
}
