//! What was foreseen, in a sentence.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::Bound;
use crate::analyze::foresight::demand::{Need, Term};
use crate::analyze::foresight::gateway::Held;
use crate::analyze::foresight::policy::Rounding;
use crate::analyze::foresight::standby::Relief;
use crate::fleet::Role;
use crate::units::Fraction;

/// What will be asked for, and what one replica carries of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Foreseen {
    /// Of which role.
    pub role: Role,
    /// What is needed now, and of what it is made.
    pub need: Need,
    /// The largest need that is held, in requests a second.
    pub held: f64,
    /// Since when it is.
    pub since: Timestamp,
    /// What the weakest replica carries, in requests a second.
    pub least: f64,
    /// What a replica carries on average.
    pub carries: f64,
    /// The share of the capacity of their engines that the router leaves unused, because it fills
    /// another variant first.
    #[serde(default)]
    pub unused: f64,
    /// What keeps replicas from carrying more.
    pub bound: Option<Bound>,
    /// Seconds until what is asked for now carries load.
    pub horizon: f64,
    /// What standby does for it, where there is some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relief: Option<Relief>,
    /// Whether enough is known for anything to be spare.
    pub mature: bool,
    /// The share of what replicas carry that load may use.
    pub used: Fraction,
    /// How needs become whole replicas.
    pub rounding: Rounding,
}

impl Foreseen {
    /// The term that the need comes from, unless it is what arrives.
    fn lead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, horizon, .. } = self;
        let Need { arriving, jump, ramp, burst, .. } = need;
        let growth = need.growth.unwrap_or(*arriving);
        if let Some(rate) = jump {
            write!(f, ", after a jump to {rate:.2} in the last seconds")?;
        }
        if let Some(times) = need.drift {
            write!(f, ", each {times:.2} times the work of one {horizon:.0} s ago")?;
        }
        match (need.decided_by(), ramp, burst) {
            (Term::Schedule, _, _) => {
                let usual = need.usual.unwrap_or_default();
                write!(
                    f,
                    ", and {usual:.2} usually do at this time, in the {horizon:.0} s until a new \
                     replica serves"
                )?;
            }
            (Term::Ramp, Some(ramp), _) => {
                write!(
                    f,
                    ", rising to {ramp:.2} in the {horizon:.0} s until a new replica serves"
                )?;
            }
            (Term::Growth, _, _) => {
                write!(
                    f,
                    ", which may grow to {growth:.2} in the {horizon:.0} s until a new replica serves"
                )?;
            }
            (Term::Burst, _, Some((rate, window))) => {
                write!(f, ", in bursts that take {rate:.2} over {window} s")?;
            }
            (Term::Arriving | Term::Jump | Term::Ramp | Term::Burst, _, _) => {}
        }
        Ok(())
    }
}

impl fmt::Display for Foreseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, held, since, carries, unused, bound, relief, mature, used, .. } = self;
        let arriving = need.arriving;
        let said = |term: Option<f64>| term.filter(|it| *it > 0.005);
        write!(f, "{arriving:.2} requests/s arrive")?;
        self.lead(f)?;
        let spread = said(need.spread).filter(|_| need.decided_by() != Term::Schedule);
        if let Some(spread) = spread {
            write!(f, ", {spread:.2} for unevenness")?;
        }
        if let Some(young) = said(need.young) {
            write!(f, ", {young:.2} because little is known yet")?;
        }
        if *used != Fraction::ONE && !matches!(need.decided_by(), Term::Burst) {
            write!(f, ", which may use {:.0} % of what replicas carry", 100.0 * used.fraction())?;
        }
        let in_addition = [
            (need.backlog, "for what waits"),
            (need.budget, "because too many first tokens came late"),
            (need.absent, "for replicas that are lost"),
        ];
        for (term, why) in in_addition {
            if let Some(more) = said(term) {
                write!(f, ", {more:.2} {why}")?;
            }
        }
        if let Some(gateway) = &need.gateway {
            write!(f, ", {gateway}")?;
        }
        let total = &need.total;
        write!(f, ": {total:.2}")?;
        if *held > total * 1.005 {
            write!(f, "; {held:.2} were needed at {since:.0} and are held")?;
        }
        write!(f, "; a replica carries {carries:.2}")?;
        if let Some(bound) = bound {
            write!(f, ", bound by {bound}")?;
        }
        if *unused > 0.005 {
            let percent = 100.0 * unused;
            write!(f, ", and the router leaves {percent:.0} % of all capacity unused")?;
        }
        if let Some(relief) = relief {
            write!(f, "{relief}")?;
        }
        if let Some(gateway) = need.gateway.filter(Held::is_hopeless) {
            write!(f, "; {}", Hopeless(gateway))?;
        }
        if !mature {
            f.write_str("; too little is known for anything to be spare")?;
        }
        Ok(())
    }
}

impl fmt::Display for Relief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { startup, reserve, bridge } = self;
        if *reserve > 0.005 {
            write!(f, "; for {reserve:.2} more that may come, standby starts in {startup:.0} s")?;
        }
        if *bridge > 0.005 {
            write!(
                f,
                "; {bridge:.2} are for standby, which starts in {startup:.0} s, until the rest \
                 serves"
            )?;
        }
        Ok(())
    }
}

/// A queue in which everybody is late.
struct Hopeless(Held);

impl fmt::Display for Hopeless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { takes, allowed, .. } = self.0;
        match takes {
            Some(takes) => write!(f, "what queues at the gateway takes {takes:.0} s")?,
            None => f.write_str("nobody serves what queues at the gateway")?,
        }
        write!(
            f,
            " and a first token may take {allowed:.1} s, so in order all are late until it is \
             empty, unless the gateway sheds what has missed its deadline"
        )
    }
}
