//! The ballot: one verdict on a model from several analyzers.
//!
//! [`cast`] turns each analyzer's report on a model into a [`Ballot`]: grow, shrink or stay, for
//! the model and for each of its roles. The ballot also names the analyzer that the verdict binds
//! to.
//!
//! # Rule
//!
//! One analyzer with live data that requires more makes the model grow. The model shrinks only if
//! every analyzer that votes has live data and finds headroom. So a single analyzer can scale a
//! model up, but can't scale it down alone. An analyzer that has lost its data blocks scale-down.
//!
//! # Units
//!
//! Analyzers measure capacity in different units, so their amounts are never compared directly. The
//! ballot compares each shortfall or headroom as a share of the analyzer's own supply:
//!
//! ```text
//! share = required / anticipated supply       the largest binds when the model grows
//! share = spare / supply                      the smallest binds when it shrinks
//! ```
//!
//! Each analyzer converts its amount to replicas in its own unit, from its capacity per replica.
//! The largest result is used.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::{CapacityReport, Totals, Unit};
use crate::fleet::Role;
use crate::units::{Amount, Fraction, Seconds};

pub use crate::analyze::analyzers::Analyzer;

/// The weight of an analyzer's findings: a vote, or display only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VotingRight {
    /// The analyzer votes.
    #[default]
    Votes,
    /// The analyzer's findings are only displayed.
    Shown,
}

/// One analyzer's contribution to the ballot.
#[derive(Clone, Copy, Debug)]
pub struct Vote<'a> {
    /// The analyzer.
    pub analyzer: Analyzer,
    /// The weight of its findings.
    pub franchise: VotingRight,
    /// The instant of the newest data that gave some variant a capacity; `None` if the analyzer
    /// never had such data.
    pub informed_at: Option<Timestamp>,
    /// The analyzer's findings; `None` if it could not run.
    pub report: Option<&'a CapacityReport>,
}

/// The combined verdict of the analyzers on one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Ballot {
    /// Each analyzer that votes, in its order, and its standing.
    pub voters: Vec<(Analyzer, VoterStanding)>,
    /// The verdict on the model.
    pub model: BallotVerdict,
    /// The verdict on each role, for a model that serves prefill and decode separately.
    pub roles: BTreeMap<Role, BallotVerdict>,
}

/// The state of a voting analyzer's data; only a live analyzer counts.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoterStanding {
    /// The data is recent.
    #[display("live")]
    Live,
    /// The data has this age, which is too old.
    #[display("its data is {_0:.0} s old")]
    Stale(Seconds),
    /// The analyzer has never had data.
    #[display("it has no data")]
    Uninformed,
}

/// The direction in which to scale a model or one of its roles.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BallotVerdict {
    /// Capacity is short.
    #[display("{_0} short")]
    Grow(BindingVote),
    /// Every analyzer finds headroom.
    #[display("{_0} headroom, and all analyzers agree")]
    Shrink(BindingVote),
    /// Capacity is sufficient, and not every analyzer confirms headroom.
    Stay(StayReason),
    /// No voting analyzer has usable data.
    #[display("no voting analyzer has usable data")]
    Held,
}

/// The analyzer that a verdict binds to, with the numbers that it compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BindingVote {
    /// The analyzer.
    pub analyzer: Analyzer,
    /// The unit of both amounts.
    pub unit: Unit,
    /// The shortfall or the headroom.
    pub amount: Amount,
    /// The supply that the amount is a share of. For a shortfall it includes pending replicas.
    pub supply: Amount,
}

/// The reason why a model stays as it is.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StayReason {
    /// This analyzer finds no headroom.
    #[display("capacity is sufficient, and {_0} finds no headroom")]
    NothingSpare(Analyzer),
    /// This analyzer votes but has no usable data, so its agreement is unknown.
    #[display("capacity is sufficient, but {_0} has no recent data")]
    NotHeard(Analyzer),
}

/// Combines the votes of all analyzers that vote. An analyzer whose data is older than `patience`
/// does not count.
pub fn cast(now: Timestamp, patience: Seconds, votes: &[Vote<'_>]) -> Ballot {
    let mut voting: Vec<&Vote<'_>> =
        votes.iter().filter(|vote| vote.franchise == VotingRight::Votes).collect();
    voting.sort_by_key(|vote| vote.analyzer);
    let standings: Vec<(Analyzer, VoterStanding)> =
        voting.iter().map(|vote| (vote.analyzer, vote.standing(now, patience))).collect();

    let mut roles: BTreeMap<Role, BallotVerdict> = BTreeMap::new();
    for role in voting.iter().filter_map(|vote| vote.report).flat_map(|report| report.roles.keys())
    {
        roles.entry(*role).or_insert_with(|| {
            verdict(&cards(&voting, &standings, &|report| report.roles.get(role).copied()))
        });
    }

    let model = verdict(&cards(&voting, &standings, &|report| Some(report.total)));
    Ballot { voters: standings, model, roles }
}

/// The cards of all analyzers that vote, for the scope with these totals.
fn cards(
    voting: &[&Vote<'_>],
    standings: &[(Analyzer, VoterStanding)],
    of: &dyn Fn(&CapacityReport) -> Option<Totals>,
) -> Vec<AnalyzerTotals> {
    voting
        .iter()
        .zip(standings)
        .filter_map(|(vote, (_, standing))| vote.card(*standing, of))
        .collect()
}

/// One analyzer's totals for a model or for one of its roles.
struct AnalyzerTotals {
    analyzer: Analyzer,
    /// `None` if the analyzer votes but does not count.
    says: Option<(Unit, Totals)>,
}

/// The combined verdict of these cards.
fn verdict(cards: &[AnalyzerTotals]) -> BallotVerdict {
    // Of equal shares, the first analyzer binds: both comparisons are strict.
    let most = bindings(cards, |totals| (totals.required, totals.anticipated))
        .filter(|binding| binding.amount > Amount::ZERO)
        .reduce(|first, next| if next.share() > first.share() { next } else { first });
    if let Some(most) = most {
        return BallotVerdict::Grow(most);
    }

    let least = bindings(cards, |totals| (totals.spare, totals.supply))
        .reduce(|first, next| if next.share() < first.share() { next } else { first });
    let Some(least) = least else { return BallotVerdict::Held };
    if let Some(absent) = cards.iter().find(|card| card.says.is_none()) {
        return BallotVerdict::Stay(StayReason::NotHeard(absent.analyzer));
    }
    if least.amount == Amount::ZERO {
        return BallotVerdict::Stay(StayReason::NothingSpare(least.analyzer));
    }

    BallotVerdict::Shrink(least)
}

/// The bindings of the analyzers that count. `of` selects an amount and its supply.
fn bindings(
    cards: &[AnalyzerTotals],
    of: fn(&Totals) -> (Amount, Amount),
) -> impl Iterator<Item = BindingVote> {
    cards.iter().filter_map(move |card| {
        let (unit, totals) = card.says?;
        let (amount, supply) = of(&totals);
        Some(BindingVote { analyzer: card.analyzer, unit, amount, supply })
    })
}

// === impl Vote ===

impl Vote<'_> {
    fn standing(&self, now: Timestamp, patience: Seconds) -> VoterStanding {
        let Some(at) = self.informed_at else { return VoterStanding::Uninformed };
        // A clock that was set back does not change the age.
        let age = Seconds::between(at, now);
        if age > patience { VoterStanding::Stale(age) } else { VoterStanding::Live }
    }

    /// The analyzer's card for a scope; `None` if its report does not include the scope.
    fn card(
        &self,
        standing: VoterStanding,
        of: &dyn Fn(&CapacityReport) -> Option<Totals>,
    ) -> Option<AnalyzerTotals> {
        let analyzer = self.analyzer;
        let Some(report) = self.report else {
            return Some(AnalyzerTotals { analyzer, says: None });
        };
        let totals = of(report)?;
        let knows = report.variants.iter().any(|variant| variant.per_replica.is_some());
        let says = (standing == VoterStanding::Live && knows).then_some((report.unit, totals));

        Some(AnalyzerTotals { analyzer, says })
    }
}

// === impl BindingVote ===

impl BindingVote {
    /// The amount as a share of the supply; `None` if the supply is zero. A shortfall then ranks
    /// above every share, and there is no headroom.
    #[must_use]
    pub fn fraction(&self) -> Option<Fraction> {
        if self.supply == Amount::ZERO {
            return None;
        }
        Fraction::new(self.amount.amount() / self.supply.amount())
    }

    /// The share as a comparable number.
    fn share(&self) -> f64 {
        let of_nothing = if self.amount > Amount::ZERO { f64::INFINITY } else { 0.0 };
        self.fraction().map_or(of_nothing, Fraction::fraction)
    }
}

// === impl Display ===

impl fmt::Display for BindingVote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { analyzer, unit, amount, supply } = self;
        write!(f, "{analyzer}: {} {unit}", RoundedAmount(*amount))?;

        match self.fraction() {
            Some(share) => {
                let percent = share.fraction() * 100.0;
                write!(f, " ({percent:.0}% of {})", RoundedAmount(*supply))
            }
            None => f.write_str(" (of none)"),
        }
    }
}

/// An amount with meaningful digits only: tokens come in thousands, requests in tenths.
struct RoundedAmount(Amount);

impl fmt::Display for RoundedAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.0.amount();
        if amount == 0.0 || amount >= 100.0 {
            write!(f, "{amount:.0}")
        } else {
            write!(f, "{amount:.2}")
        }
    }
}
