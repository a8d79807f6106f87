//! The goal of searches that know all requests beforehand.

use crate::simulate::score::{Outcome, Service};

/// The target share of requests served well.
pub(crate) const GOAL: f64 = 0.99;

/// The share of requests served well.
pub(crate) fn attained(outcome: &Outcome) -> f64 {
    let judged = outcome.models.iter().map(Service::judged).sum::<u64>() as f64;
    let unservable = outcome.models.iter().map(|it| it.unservable).sum::<u64>() as f64;
    let good = outcome.models.iter().map(|it| it.good).sum::<u64>() as f64;
    // More replicas do not help requests that no engine can hold, so they do not count.
    good / (judged - unservable).max(1.0)
}
