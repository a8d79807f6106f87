//! The models that may scale to zero, and the conditions for it.

use std::collections::BTreeMap;

use crate::decide::zero::ZeroPolicy;
use crate::fleet::{Fleet, ModelKey, ZeroPermission};
use crate::units::Seconds;

/// The models that may scale to zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Zero {
    /// The rule for models without a rule of their own.
    pub default: ZeroRule,
    /// Rules of single models.
    pub overrides: BTreeMap<ModelKey, ZeroRule>,
    /// The idle time to prove for a model that only an object allows to scale to zero, if the
    /// object sets no time.
    pub after: Seconds,
}

/// The conditions under which one model may scale to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ZeroRule {
    /// The policy: whether it may, and after how long.
    pub policy: ZeroPolicy,
    /// The minimum time for which a woken variant stays.
    pub awake_min: Seconds,
}

// === impl Zero ===

impl Zero {
    /// The rule that applies to a model.
    #[must_use]
    pub fn of(&self, model: &ModelKey) -> ZeroRule {
        self.overrides.get(model).copied().unwrap_or(self.default)
    }

    /// The rule that applies to a model of a fleet. This is its own rule, otherwise the default
    /// with the wishes from the objects that declare its variants. If the wishes differ, a wish
    /// that forbids zero decides. Otherwise the longest time applies.
    #[must_use]
    pub fn in_fleet(&self, fleet: &Fleet, model: &ModelKey) -> ZeroRule {
        let rule = self.of(model);
        let wishes = fleet.wishes(model);
        if wishes.is_empty() || self.overrides.contains_key(model) {
            return rule;
        }

        let is_allowed = wishes.iter().any(|wish| wish.may == Some(ZeroPermission::Allowed));
        let is_forbidden = wishes.iter().any(|wish| wish.may == Some(ZeroPermission::Forbidden));
        let usual = match rule.policy {
            ZeroPolicy::AfterIdle(after) => Some(after),
            ZeroPolicy::KeepOne => is_allowed.then_some(self.after),
        };

        let longest = wishes.iter().filter_map(|wish| wish.after).reduce(Seconds::max);
        let policy = match usual.filter(|_| !is_forbidden) {
            Some(usual) => ZeroPolicy::AfterIdle(longest.unwrap_or(usual)),
            None => ZeroPolicy::KeepOne,
        };
        ZeroRule { policy, ..rule }
    }

    /// Returns true if no model may scale to zero, except those whose objects allow it.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let mut rules = std::iter::once(&self.default).chain(self.overrides.values());
        rules.all(|rule| rule.policy == ZeroPolicy::KeepOne)
    }
}
