//! The policy of the token analyzer.

use crate::analyze::capacity::Utilization;
use crate::analyze::sharing::CardSharing;
use crate::units::{Fraction, Requests};

/// The policy of the token analyzer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenPolicy {
    /// The share of the KV cache that may be used.
    pub kv_threshold: Fraction,
    /// The number of waiting requests from which an engine has a queue.
    pub queue_threshold: Requests,
    /// The share of the capacity that may be used.
    pub utilization: Utilization,
    /// The variants that share measured capacities.
    pub sharing: CardSharing,
    /// The rules for ambiguous cases.
    pub rules: TokenRules,
}

impl Default for TokenPolicy {
    /// WVA's defaults: 80% of the cache, and a queue of five.
    fn default() -> Self {
        Self {
            kv_threshold: Fraction::new(0.8).unwrap_or(Fraction::ONE),
            queue_threshold: Requests::new(5.0).unwrap_or_default(),
            utilization: Utilization::default(),
            sharing: CardSharing::default(),
            rules: TokenRules::default(),
        }
    }
}

/// The rules for ambiguous cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenRules {
    /// The rules that [`tokens`](crate::analyze::tokens) describes.
    #[default]
    Plimsoll,
    /// The rules of the Workload Variant Autoscaler, with its defects; the simulator compares with
    /// it.
    Wva,
}
