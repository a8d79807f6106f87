//! The ballot: what several analyzers together say of a model.
//!
//! [`cast`] turns what each analyzer found of one model into a [`Ballot`]: grow, shrink or stay,
//! for the model and for each of its roles, and which analyzer that binds to.
//!
//! # Rule
//!
//! One analyzer that is alive and requires more makes the model grow. It shrinks only when every
//! analyzer that votes is alive and finds something spare. So an analyzer can prevent harm alone,
//! and cannot do it alone; and one that has lost its data prevents a model from shrinking.
//!
//! # Units
//!
//! Analyzers measure in different things, and no amount of one ever meets an amount of another.
//! What is compared is how much of its own supply each is missing, or has to spare:
//!
//! ```text
//! share = required / anticipated supply       the largest binds when the model grows
//! share = spare / supply                      the smallest binds when it shrinks
//! ```
//!
//! How many replicas that makes is found for each analyzer in its own unit, from what one replica
//! carries in it; the largest number holds.

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

/// Whether what an analyzer finds has a say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Franchise {
    /// It votes.
    #[default]
    Votes,
    /// It is only shown.
    Shown,
}

/// What one analyzer brings to the ballot.
#[derive(Clone, Copy, Debug)]
pub struct Vote<'a> {
    /// Which analyzer.
    pub analyzer: Analyzer,
    /// Whether it has a say.
    pub franchise: Franchise,
    /// The instant of the newest data from which it could say what some variant carries; `None`
    /// when it never could.
    pub informed_at: Option<Timestamp>,
    /// What it found; `None` when it could not be run.
    pub report: Option<&'a CapacityReport>,
}

/// What the analyzers together say of one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Ballot {
    /// Each analyzer that votes, in its order, and whether it counts.
    pub voters: Vec<(Analyzer, Standing)>,
    /// What they say of the model.
    pub model: Verdict,
    /// What they say of each role, for a model that serves prefill and decode apart.
    pub roles: BTreeMap<Role, Verdict>,
}

/// Whether an analyzer that votes counts.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its data is recent.
    #[display("live")]
    Live,
    /// Its data is of this age, which is too old.
    #[display("its data is {_0:.0} s old")]
    Stale(Seconds),
    /// It has never had any.
    #[display("it has no data")]
    Uninformed,
}

/// What should become of a model, or of one of its roles.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More is required.
    #[display("{_0} more are required")]
    Grow(Binding),
    /// Less would do.
    #[display("{_0} are spare, and all agree")]
    Shrink(Binding),
    /// Nothing is required, and not everything agrees that something is spare.
    Stay(Stay),
    /// Nobody who votes has anything to say.
    #[display("no analyzer that votes has anything to say")]
    Held,
}

/// The analyzer that a verdict binds to, and the numbers that it compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// Which analyzer.
    pub analyzer: Analyzer,
    /// What it measures in.
    pub unit: Unit,
    /// What it finds required, or spare.
    pub amount: Amount,
    /// The supply that this is a share of: with what is coming, when it is required.
    pub supply: Amount,
}

/// Why a model stays as it is.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stay {
    /// This analyzer finds nothing spare.
    #[display("nothing is required, and {_0} finds nothing spare")]
    NothingSpare(Analyzer),
    /// This analyzer votes and says nothing, so nobody knows that it would agree.
    #[display("nothing is required, and {_0} has not been heard")]
    NotHeard(Analyzer),
}

/// Asks every analyzer that votes. One whose data is older than `patience` does not count.
pub fn cast(now: Timestamp, patience: Seconds, votes: &[Vote<'_>]) -> Ballot {
    let mut voting: Vec<&Vote<'_>> =
        votes.iter().filter(|vote| vote.franchise == Franchise::Votes).collect();
    voting.sort_by_key(|vote| vote.analyzer);
    let standings: Vec<(Analyzer, Standing)> =
        voting.iter().map(|vote| (vote.analyzer, vote.standing(now, patience))).collect();
    let scope = |of: &dyn Fn(&CapacityReport) -> Option<Totals>| {
        let cards: Vec<Card> = voting
            .iter()
            .zip(&standings)
            .filter_map(|(vote, (_, standing))| vote.card(*standing, of))
            .collect();
        verdict(&cards)
    };
    let mut roles: BTreeMap<Role, Verdict> = BTreeMap::new();
    for role in voting.iter().filter_map(|vote| vote.report).flat_map(|report| report.roles.keys())
    {
        roles
            .entry(*role)
            .or_insert_with(|| scope(&|report: &CapacityReport| report.roles.get(role).copied()));
    }
    let model = scope(&|report: &CapacityReport| Some(report.total));
    Ballot { voters: standings, model, roles }
}

/// What one analyzer says of a model, or of one of its roles.
struct Card {
    analyzer: Analyzer,
    /// `None` when it votes and does not count.
    says: Option<(Unit, Totals)>,
}

/// What these say together.
fn verdict(cards: &[Card]) -> Verdict {
    let bindings = |of: fn(&Totals) -> (Amount, Amount)| {
        cards.iter().filter_map(move |card| {
            let (unit, totals) = card.says?;
            let (amount, supply) = of(&totals);
            Some(Binding { analyzer: card.analyzer, unit, amount, supply })
        })
    };
    let required = bindings(|totals| (totals.required, totals.anticipated));
    let spare = bindings(|totals| (totals.spare, totals.supply));
    // Of equal shares, the first analyzer binds, so the comparison from below is reversed.
    let most = required
        .filter(|binding| binding.amount > Amount::ZERO)
        .reduce(|most, next| if next.share() > most.share() { next } else { most });
    if let Some(most) = most {
        return Verdict::Grow(most);
    }
    let least = spare.reduce(|least, next| if next.share() < least.share() { next } else { least });
    let Some(least) = least else { return Verdict::Held };
    if let Some(absent) = cards.iter().find(|card| card.says.is_none()) {
        return Verdict::Stay(Stay::NotHeard(absent.analyzer));
    }
    if least.amount == Amount::ZERO {
        return Verdict::Stay(Stay::NothingSpare(least.analyzer));
    }
    Verdict::Shrink(least)
}

// === impl Vote ===

impl Vote<'_> {
    fn standing(&self, now: Timestamp, patience: Seconds) -> Standing {
        let Some(at) = self.informed_at else { return Standing::Uninformed };
        // A clock that was set back makes data no older.
        let age = Seconds::from_span(now.duration_since(at)).unwrap_or_default();
        if age > patience { Standing::Stale(age) } else { Standing::Live }
    }

    /// What it says of a scope; `None` when the scope is no business of its.
    fn card(
        &self,
        standing: Standing,
        of: &dyn Fn(&CapacityReport) -> Option<Totals>,
    ) -> Option<Card> {
        let analyzer = self.analyzer;
        let Some(report) = self.report else { return Some(Card { analyzer, says: None }) };
        let totals = of(report)?;
        let knows = report.variants.iter().any(|variant| variant.per_replica.is_some());
        let says = (standing == Standing::Live && knows).then_some((report.unit, totals));
        Some(Card { analyzer, says })
    }
}

// === impl Binding ===

impl Binding {
    /// The share of the supply that is required or spare; `None` of no supply, which is more than
    /// any share when it is required, and nothing can be spare of it.
    #[must_use]
    pub fn fraction(&self) -> Option<Fraction> {
        if self.supply == Amount::ZERO {
            return None;
        }
        Fraction::new(self.amount.amount() / self.supply.amount())
    }

    /// The share as a number that can be compared.
    fn share(&self) -> f64 {
        let of_nothing = if self.amount > Amount::ZERO { f64::INFINITY } else { 0.0 };
        self.fraction().map_or(of_nothing, Fraction::fraction)
    }
}

// === impl Display ===

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { analyzer, unit, amount, supply } = self;
        write!(f, "{analyzer}: {} {unit}", Rounded(*amount))?;
        match self.fraction() {
            Some(share) => {
                let percent = share.fraction() * 100.0;
                write!(f, " ({percent:.0} % of {})", Rounded(*supply))
            }
            None => f.write_str(" (of none)"),
        }
    }
}

/// An amount with as many digits as say something: tokens come in thousands, requests in tenths.
struct Rounded(Amount);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.0.amount();
        if amount == 0.0 || amount >= 100.0 {
            write!(f, "{amount:.0}")
        } else {
            write!(f, "{amount:.2}")
        }
    }
}
