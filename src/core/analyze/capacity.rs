//! What an analyzer says: how much a model's variants carry, and how much is asked of them.
//!
//! Analyzers measure in different things: tokens in the KV cache, tokens a second, requests a
//! second. A [`CapacityReport`] names its [`Unit`], and amounts of two units never meet: what is
//! compared between analyzers are numbers of replicas, or shares of their own supply.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::{Role, VariantKey};
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// What an analyzer measures capacity in.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[display("{}", self.label())]
pub enum Unit {
    /// Tokens that are resident in the KV cache.
    KvTokens,
    /// Tokens generated a second.
    OutputTokensPerSecond,
    /// Requests a second.
    RequestsPerSecond,
    /// Requests that run or wait.
    RequestsInFlight,
}

impl Unit {
    /// The unit as it stands behind a number in a sentence.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::KvTokens => "KV tokens",
            Self::OutputTokensPerSecond => "tokens/s",
            Self::RequestsPerSecond => "requests/s",
            Self::RequestsInFlight => "requests in flight",
        }
    }
}

/// How much of its capacity a model may use: more makes it grow, less lets it shrink.
///
/// The distance between the two is what keeps a model from growing and shrinking by turns. A share
/// of zero switches its direction off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilisation {
    /// The share of supply, with what is coming, above which more is required.
    pub grow: Fraction,
    /// The share of supply below which the rest is spare.
    pub shrink: Fraction,
}

impl Default for Utilisation {
    /// 85 % and 70 %, which WVA has settled on as well.
    fn default() -> Self {
        let percent = |share: f64| Fraction::new(share / 100.0).unwrap_or(Fraction::ONE);
        Self { grow: percent(85.0), shrink: percent(70.0) }
    }
}

/// How far a capacity can be trusted, from the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Derived from how the engine was started, or from another variant.
    Assumed,
    /// Learned under other conditions than those that hold.
    Remembered,
    /// Measured under the conditions that hold.
    Measured,
}

/// What one variant carries.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantCapacity {
    /// The variant.
    pub key: VariantKey,
    /// What part of a request it serves.
    pub role: Role,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// Replicas that carry load.
    pub replicas: Replicas,
    /// Replicas that are coming and will carry load.
    pub pending: Replicas,
    /// What one replica carries; `None` when nobody can say.
    pub per_replica: Option<Amount>,
    /// What is asked of the variant's replicas.
    pub demand: Amount,
    /// How far `per_replica` can be trusted.
    pub confidence: Confidence,
}

/// Sums over variants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// What the replicas that are there carry.
    pub supply: Amount,
    /// The same, with those that are coming.
    pub anticipated: Amount,
    /// What is asked of them.
    pub demand: Amount,
    /// How much supply is missing, those that are coming counted; zero when none is.
    pub required: Amount,
    /// How much supply can go; zero when none can.
    pub spare: Amount,
}

/// Why nothing of a model counts as spare, whatever its numbers say.
#[derive(Clone, Debug, Display, PartialEq)]
pub enum SpareWithheld {
    /// Nobody can say all that is asked for.
    #[display("nobody can say all that is asked for")]
    DemandUnknown,
    /// Replicas of this variant are ready and say nothing.
    #[display("replicas of {_0} are ready and say nothing")]
    Silent(VariantKey),
    /// What is seen of this variant is not what its model predicts.
    #[display("what is seen of {_0} is not what its model predicts")]
    Disagrees(VariantKey),
}

/// What one analyzer found of one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityReport {
    /// What all amounts are measured in.
    pub unit: Unit,
    /// Each variant, in the order of their keys.
    pub variants: Vec<VariantCapacity>,
    /// The sums over the model.
    pub total: Totals,
    /// The sums over the variants of each role, for a model that serves prefill and decode apart.
    pub roles: BTreeMap<Role, Totals>,
}

// === impl VariantCapacity ===

impl VariantCapacity {
    /// What `replicas` of the variant carry; nothing when nobody can say what one carries.
    #[must_use]
    pub fn carried_by(&self, replicas: Replicas) -> Amount {
        let each = self.per_replica.unwrap_or_default().amount();
        amount(each * f64::from(replicas.count()))
    }
}

// === impl Totals ===

impl Totals {
    /// The sums over these variants, before anything is required or spare.
    #[must_use]
    pub fn of<'a>(variants: impl IntoIterator<Item = &'a VariantCapacity>) -> Self {
        let mut totals = Self::default();
        for variant in variants {
            totals.include(variant);
        }
        totals
    }

    /// The sums over the variants of each role; empty when every variant serves whole requests.
    #[must_use]
    pub fn by_role(variants: &[VariantCapacity]) -> BTreeMap<Role, Self> {
        let mut roles: BTreeMap<Role, Self> = BTreeMap::new();
        if variants.iter().any(|variant| variant.role != Role::Both) {
            for variant in variants {
                roles.entry(variant.role).or_default().include(variant);
            }
        }
        roles
    }

    fn include(&mut self, variant: &VariantCapacity) {
        self.supply += variant.carried_by(variant.replicas);
        self.anticipated += variant.carried_by(variant.replicas + variant.pending);
        self.demand += variant.demand;
    }

    /// These totals with what is required and spare at this utilisation.
    ///
    /// ```text
    /// required = max(0, demand / grow - anticipated)
    /// spare    = max(0, supply - demand / shrink)
    /// ```
    ///
    /// What is coming counts against what is required, so that nothing is asked for twice, and not
    /// as spare, because it carries nothing yet.
    #[must_use]
    pub fn judged(self, utilisation: Utilisation) -> Self {
        let needed = |share: Fraction| self.demand.amount() / share.fraction();
        let required = match utilisation.grow {
            Fraction::ZERO => Amount::ZERO,
            grow => amount(needed(grow) - self.anticipated.amount()),
        };
        let spare = match utilisation.shrink {
            Fraction::ZERO => Amount::ZERO,
            shrink => amount(self.supply.amount() - needed(shrink)),
        };
        Self { required, spare, ..self }
    }
}

impl iter::Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        let mut total = Self::default();
        for part in parts {
            total.supply += part.supply;
            total.anticipated += part.anticipated;
            total.demand += part.demand;
            total.required += part.required;
            total.spare += part.spare;
        }
        total
    }
}

// === impl CapacityReport ===

impl fmt::Display for CapacityReport {
    /// One sentence: what is asked of what, and what follows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, variants: _, total, roles: _ } = self;
        let Totals { supply, anticipated, demand, required, spare } = *total;
        write!(f, "{demand:.0} of {supply:.0} {unit} are asked for")?;
        if anticipated > supply {
            write!(f, " ({anticipated:.0} with what is coming)")?;
        }
        match (required > Amount::ZERO, spare > Amount::ZERO) {
            (true, _) => write!(f, ", {required:.0} more are required"),
            (false, true) => write!(f, ", {spare:.0} are spare"),
            (false, false) => f.write_str(", which is as it should be"),
        }
    }
}

impl CapacityReport {
    /// This report with nothing spare, of the model or any role.
    pub(crate) fn without_spare(mut self) -> Self {
        for totals in std::iter::once(&mut self.total).chain(self.roles.values_mut()) {
            totals.spare = Amount::ZERO;
        }
        self
    }
}

/// Replicas as they stand in a sentence.
#[derive(Display)]
#[display("{_0} replica{}", if *_0 == Replicas::ONE { "" } else { "s" })]
pub(crate) struct Counted(pub(crate) Replicas);

/// The amount nearest to this value: a difference may be below zero, a product above all numbers.
pub(crate) fn amount(value: f64) -> Amount {
    Amount::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::VariantSpec;

    fn variant(role: Role, replicas: u32, pending: u32) -> VariantCapacity {
        VariantCapacity {
            key: VariantSpec::example("a").key,
            role,
            cost: CostPerHour::ZERO,
            replicas: Replicas::saturating(replicas),
            pending: Replicas::saturating(pending),
            per_replica: Amount::new(100.0),
            demand: amount(150.0),
            confidence: Confidence::Measured,
        }
    }

    #[test]
    fn what_is_coming_counts_against_what_is_required_and_is_never_spare() {
        let shares = Utilisation { grow: Fraction::ONE, shrink: Fraction::new(0.5).unwrap() };
        let coming = Totals::of(&[variant(Role::Both, 1, 1)]).judged(shares);
        assert_eq!((coming.required, coming.spare), (Amount::ZERO, Amount::ZERO));
        let alone = Totals::of(&[variant(Role::Both, 1, 0)]).judged(shares);
        assert_eq!(alone.required, amount(50.0));
        let plenty = Totals::of(&[variant(Role::Both, 4, 0)]).judged(shares);
        assert_eq!((plenty.required, plenty.spare), (Amount::ZERO, amount(100.0)));
    }

    #[test]
    fn roles_have_totals_of_their_own_only_where_they_are_apart() {
        assert!(Totals::by_role(&[variant(Role::Both, 1, 0)]).is_empty());
        let apart = Totals::by_role(&[variant(Role::Prefill, 1, 0), variant(Role::Both, 2, 0)]);
        assert_eq!(apart[&Role::Both].supply, amount(200.0));
        assert_eq!(apart[&Role::Prefill].supply, amount(100.0));
    }

    #[test]
    fn a_report_says_its_numbers_with_their_unit() {
        let variants = vec![variant(Role::Both, 1, 1)];
        let total = Totals::of(&variants).judged(Utilisation::default());
        let report =
            CapacityReport { unit: Unit::KvTokens, variants, total, roles: BTreeMap::default() };
        assert_eq!(
            report.to_string(),
            "150 of 100 KV tokens are asked for (200 with what is coming), which is as it should be"
        );
    }
}
