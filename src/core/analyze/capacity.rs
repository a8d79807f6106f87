//! The result of an analyzer: the capacity of a model's variants and the demand on them.
//!
//! Analyzers measure in different units: tokens in the KV cache, tokens/s, requests/s. A
//! [`CapacityReport`] names its [`Unit`], and amounts of two units are never combined. Analyzers
//! are compared by replica counts or by shares of their own supply.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::{Role, VariantKey};
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// The unit in which an analyzer measures capacity.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[display("{}", self.label())]
pub enum Unit {
    /// Tokens that are resident in the KV cache.
    KvTokens,
    /// Tokens generated a second.
    OutputTokensPerSecond,
    /// Requests per second.
    RequestsPerSecond,
    /// Requests that run or wait.
    RequestsInFlight,
}

impl Unit {
    /// The unit as it follows a number in a sentence.
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

/// The utilization limits of a model: above `grow` it scales up, below `shrink` it may scale down.
///
/// The gap between the two limits prevents a model from alternating between scale-up and
/// scale-down. A share of zero disables its direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// The share of supply, pending replicas included, above which demand causes a shortfall.
    pub grow: Fraction,
    /// The share of supply below which the rest is headroom.
    pub shrink: Fraction,
}

impl Default for Utilization {
    /// 85% and 70%, the defaults of WVA.
    fn default() -> Self {
        Self {
            grow: Fraction::new(0.85).unwrap_or(Fraction::ONE),
            shrink: Fraction::new(0.70).unwrap_or(Fraction::ONE),
        }
    }
}

/// The reliability of a capacity, least reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Derived from the engine's arguments or from another variant.
    Assumed,
    /// Learned under conditions that differ from the current ones.
    Remembered,
    /// Measured under the current conditions.
    Measured,
}

/// The capacity of one variant and the demand on it.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantCapacity {
    /// The variant.
    pub key: VariantKey,
    /// The part of a request that the variant serves.
    pub role: Role,
    /// The cost per replica.
    pub cost: CostPerHour,
    /// Replicas that take load.
    pub replicas: Replicas,
    /// Pending replicas that will take load.
    pub pending: Replicas,
    /// The capacity per replica; `None` if unknown.
    pub per_replica: Option<Amount>,
    /// The demand on the variant's replicas.
    pub demand: Amount,
    /// The reliability of `per_replica`.
    pub confidence: Confidence,
}

/// Sums over variants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// The capacity of the current replicas.
    pub supply: Amount,
    /// The capacity of the current and the pending replicas.
    pub anticipated: Amount,
    /// The demand on the variants.
    pub demand: Amount,
    /// The shortfall after pending replicas are counted; zero if there is none.
    pub required: Amount,
    /// The headroom; zero if there is none.
    pub spare: Amount,
}

/// The reason why a model's headroom is ignored, whatever its totals are.
#[derive(Clone, Debug, Display, PartialEq)]
pub enum SpareWithheld {
    /// The full demand is unknown.
    #[display("the full demand is unknown")]
    DemandUnknown,
    /// Ready replicas of this variant are not reporting.
    #[display("ready replicas of {_0} are not reporting")]
    Silent(VariantKey),
    /// Measurements of this variant disagree with the predictions of its performance model.
    #[display("measurements of {_0} differ from the predictions of its model")]
    Disagrees(VariantKey),
}

/// One analyzer's findings for one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityReport {
    /// The unit of all amounts.
    pub unit: Unit,
    /// The variants, in key order.
    pub variants: Vec<VariantCapacity>,
    /// The sums over the model.
    pub total: Totals,
    /// The sums over the variants of each role, for a model that serves prefill and decode
    /// separately.
    pub roles: BTreeMap<Role, Totals>,
}

// === impl VariantCapacity ===

impl VariantCapacity {
    /// The capacity of `replicas` replicas of the variant; zero if the capacity per replica is
    /// unknown.
    #[must_use]
    pub fn carried_by(&self, replicas: Replicas) -> Amount {
        let each = self.per_replica.unwrap_or_default().amount();
        amount(each * f64::from(replicas.count()))
    }
}

// === impl Totals ===

impl Totals {
    /// The sums over these variants, with `required` and `spare` at zero.
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

    /// These totals with the shortfall and the headroom at this utilization.
    ///
    /// ```text
    /// required = max(0, demand / grow - anticipated)
    /// spare    = max(0, supply - demand / shrink)
    /// ```
    ///
    /// Pending replicas reduce the shortfall, so that no capacity is requested twice. They don't
    /// add to the headroom, because they don't take load yet.
    #[must_use]
    pub fn judged(self, utilization: Utilization) -> Self {
        let demand = self.demand.amount();
        let required = match utilization.grow {
            Fraction::ZERO => Amount::ZERO,
            grow => amount(demand / grow.fraction() - self.anticipated.amount()),
        };
        let spare = match utilization.shrink {
            Fraction::ZERO => Amount::ZERO,
            shrink => amount(self.supply.amount() - demand / shrink.fraction()),
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
    /// Writes one sentence: demand, supply, and the resulting shortfall or headroom.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, variants: _, total, roles: _ } = self;
        let Totals { supply, anticipated, demand, required, spare } = *total;
        write!(f, "demand {demand:.0} of {supply:.0} {unit}")?;
        if anticipated > supply {
            write!(f, " ({anticipated:.0} with pending replicas)")?;
        }

        match (required > Amount::ZERO, spare > Amount::ZERO) {
            (true, _) => write!(f, ", {required:.0} short"),
            (false, true) => write!(f, ", {spare:.0} headroom"),
            (false, false) => f.write_str(", neither short nor spare"),
        }
    }
}

impl CapacityReport {
    /// The report of a model with these reports of its roles, in the same unit.
    pub(crate) fn of_roles(unit: Unit, reports: BTreeMap<Role, Self>) -> Self {
        let total = reports.values().map(|report| report.total).sum();
        let has_sides = reports.keys().any(|role| *role != Role::Both);

        let mut variants = Vec::new();
        let mut roles = BTreeMap::new();
        for (role, report) in reports {
            variants.extend(report.variants);
            if has_sides {
                roles.insert(role, report.total);
            }
        }

        variants.sort_by(|a, b| a.key.cmp(&b.key));
        Self { unit, variants, total, roles }
    }

    /// This report with zero headroom for the model and for every role.
    pub(crate) fn without_spare(mut self) -> Self {
        for totals in std::iter::once(&mut self.total).chain(self.roles.values_mut()) {
            totals.spare = Amount::ZERO;
        }
        self
    }
}

/// The closest valid amount: a difference may be negative, and a product may be infinite.
pub(crate) fn amount(value: f64) -> Amount {
    Amount::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// Returns true if all of these are finite and not negative.
pub(crate) fn are_amounts(numbers: &[f64]) -> bool {
    numbers.iter().all(|number| number.is_finite() && *number >= 0.0)
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
        let shares = Utilization { grow: Fraction::ONE, shrink: Fraction::new(0.5).unwrap() };
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
        let total = Totals::of(&variants).judged(Utilization::default());
        let report =
            CapacityReport { unit: Unit::KvTokens, variants, total, roles: BTreeMap::default() };

        assert_eq!(
            report.to_string(),
            "demand 150 of 100 KV tokens (200 with pending replicas), neither short nor spare"
        );
    }
}
