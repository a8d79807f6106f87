//! The values and texts that a key may have.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::settings::problem::Problems;

/// The values that a key may have.
#[derive(Clone, Debug)]
pub struct Allowed<P> {
    /// The smallest value, or the exclusive lower limit.
    pub minimum: P,
    /// The largest value.
    pub maximum: P,
    /// True if the minimum itself is not allowed.
    pub is_above: bool,
}

/// The texts that a key may have.
#[derive(Clone, Copy, Debug)]
pub struct TextRule {
    pub(super) accepts: fn(&str) -> bool,
    pub(super) rule: &'static str,
}

/// Numbers above zero, up to a limit.
#[must_use]
pub const fn above_zero(maximum: f64) -> Allowed<f64> {
    Allowed { minimum: 0.0, maximum, is_above: true }
}

/// Texts that a predicate accepts, with the rule for messages.
#[must_use]
pub const fn text(accepts: fn(&str) -> bool, rule: &'static str) -> TextRule {
    TextRule { accepts, rule }
}

// === impl Allowed ===

impl<P> From<RangeInclusive<P>> for Allowed<P> {
    fn from(range: RangeInclusive<P>) -> Self {
        let (minimum, maximum) = range.into_inner();
        Self { minimum, maximum, is_above: false }
    }
}

impl<P: PartialOrd + Clone> Allowed<P> {
    /// Returns the value if it is allowed, and otherwise reports it in the form of a file.
    pub fn check<W: Display + From<P>>(
        &self,
        value: P,
        path: &str,
        problems: &mut Problems,
    ) -> Option<P> {
        let Self { minimum, maximum, is_above } = self;
        let is_allowed =
            *minimum <= value && value <= *maximum && !(*is_above && value == *minimum);
        if is_allowed {
            return Some(value);
        }

        let [minimum, maximum] = [minimum, maximum].map(|it| W::from(it.clone()));
        let rule = if *is_above {
            format!("must be above {minimum} and at most {maximum}")
        } else {
            format!("must be from {minimum} to {maximum}")
        };
        problems.error(path, rule, W::from(value));
        None
    }
}
