//! The explanation of a forecast, in a sentence.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::CapacityBound;
use crate::analyze::foresight::demand::{BurstDemand, DemandTerm, RequiredCapacity, TermPart};
use crate::analyze::foresight::gateway::GatewayBacklog;
use crate::analyze::foresight::policy::Rounding;
use crate::analyze::foresight::standby::Relief;
use crate::fleet::Role;
use crate::units::Fraction;

/// The forecast demand of a role, and the capacity per replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandForecast {
    /// The role.
    pub role: Role,
    /// The need now, with its terms.
    pub need: RequiredCapacity,
    /// The largest need that is held, in requests per second.
    pub held: f64,
    /// The instant at which that need was found.
    pub since: Timestamp,
    /// The capacity of a replica of the weakest variant, in requests per second.
    pub least: f64,
    /// The mean capacity per replica.
    pub carries: f64,
    /// The share of the capacity of their engines that the router leaves unused, because it fills
    /// another variant first.
    #[serde(default)]
    pub unused: f64,
    /// The limit that binds most of the capacity.
    pub bound: Option<CapacityBound>,
    /// Seconds until what is asked for now carries load.
    pub horizon: f64,
    /// The part of standby in it, if there is standby.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relief: Option<Relief>,
    /// True if enough is known for scale-down.
    pub mature: bool,
    /// The share of what replicas carry that load may use.
    pub used: Fraction,
    /// The rounding of needs to whole replicas.
    pub rounding: Rounding,
}

impl DemandForecast {
    /// Writes the term that the need comes from, unless it is the arrival rate.
    fn lead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, horizon, .. } = self;
        let RequiredCapacity { arriving, jump, ramp, bursts, .. } = need;
        let growth = need.growth.unwrap_or(*arriving);

        if let Some(rate) = jump {
            write!(f, ", after a jump to {rate:.2} in the last seconds")?;
        }
        if let Some(times) = need.drift {
            write!(f, ", each with {times:.2} times the work of {horizon:.0} s ago")?;
        }
        match (need.decided_by(), ramp, bursts) {
            (DemandTerm::Schedule, _, _) => {
                let usual = need.schedule.unwrap_or_default();
                write!(
                    f,
                    ", and {usual:.2} are usual in the next {horizon:.0} s, until a new replica \
                     serves"
                )?;
            }
            (DemandTerm::Ramp, Some(ramp), _) => {
                write!(
                    f,
                    ", rising to {ramp:.2} in the {horizon:.0} s until a new replica serves"
                )?;
            }
            (DemandTerm::Growth, _, _) => {
                write!(
                    f,
                    ", with growth up to {growth:.2} in the {horizon:.0} s until a new replica \
                     serves"
                )?;
            }
            (DemandTerm::Bursts, _, Some(BurstDemand { rate, window })) => {
                write!(f, ", in bursts that need {rate:.2} over {window} s")?;
            }
            _ => {}
        }

        Ok(())
    }
}

impl fmt::Display for DemandForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, held, since, carries, unused, bound, relief, mature, used, .. } = self;
        write!(f, "{:.2} requests/s arrive", need.arriving)?;
        self.lead(f)?;

        let is_scheduled = need.decided_by() == DemandTerm::Schedule;
        let even = visible(need, TermPart::Even);
        for (term, rate) in even.filter(|(it, _)| !(is_scheduled && *it == DemandTerm::Unevenness))
        {
            write!(f, ", {rate:.2} {}", term.words())?;
        }
        if *used != Fraction::ONE && !matches!(need.decided_by(), DemandTerm::Bursts) {
            write!(f, ", at {:.0}% of capacity", 100.0 * used.fraction())?;
        }
        for (term, rate) in visible(need, TermPart::Added) {
            write!(f, ", {rate:.2} {}", term.words())?;
        }

        if let Some(gateway) = &need.gateway {
            write!(f, ", {gateway}")?;
        }

        let total = &need.total;
        write!(f, ": {total:.2}")?;
        if *held > total * 1.005 {
            write!(f, "; {held:.2}, needed at {since:.0}, is held")?;
        }

        write!(f, "; capacity per replica {carries:.2}")?;
        if let Some(bound) = bound {
            write!(f, ", limited by {bound}")?;
        }
        if *unused > 0.005 {
            let percent = 100.0 * unused;
            write!(f, ", and the router leaves {percent:.0}% of all capacity unused")?;
        }

        if let Some(relief) = relief {
            write!(f, "{relief}")?;
        }
        if let Some(gateway) = need.gateway.filter(GatewayBacklog::is_hopeless) {
            write!(f, "; {}", HopelessBacklog(gateway))?;
        }
        if !mature {
            f.write_str("; too little is known to scale down")?;
        }

        Ok(())
    }
}

/// The terms of a part, without those that round to nothing.
fn visible(need: &RequiredCapacity, part: TermPart) -> impl Iterator<Item = (DemandTerm, f64)> {
    need.terms().filter(move |(term, rate)| term.part() == part && *rate > 0.005)
}

impl fmt::Display for Relief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { startup, reserve, bridge } = self;
        if *reserve > 0.005 {
            write!(
                f,
                "; standby covers {reserve:.2} of possible growth, because it starts in \
                {startup:.0} s"
            )?;
        }
        if *bridge > 0.005 {
            write!(
                f,
                "; standby starts in {startup:.0} s and serves {bridge:.2} until the other \
                 replicas do"
            )?;
        }

        Ok(())
    }
}

/// A queue in which every request is late.
struct HopelessBacklog(GatewayBacklog);

impl fmt::Display for HopelessBacklog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GatewayBacklog { takes, allowed, .. } = self.0;
        match takes {
            Some(takes) => write!(f, "the gateway's queue takes {takes:.0} s")?,
            None => f.write_str("no replica serves the gateway's queue")?,
        }

        write!(
            f,
            " and a first token may take {allowed:.1} s, so all requests are late until it is \
             empty, unless the gateway sheds expired requests"
        )
    }
}
