//! `LoRA` adapters: their shares of the requests, and their slots in engines.

use std::collections::BTreeSet;

use crate::simulate::Micros;
use crate::simulate::replica::adapters::{ADAPTERS_MAX, AdapterSettings};
use crate::simulate::scenario::{AdapterShare, Model, SPANS};
use crate::study::file::AdapterKeys;
use plimsoll_core::fleet::ModelName;
use plimsoll_core::units::Fraction;
use plimsoll_daemon::config::problem::Problems;

/// The rounding error that the sum of shares, which people write as decimals, may have beyond 1.
const ROUNDING: f64 = 1e-9;

/// The adapters of a model; notes problems of the whole list.
pub(super) fn shares(
    path: &str,
    keys: &[AdapterKeys],
    model: &str,
    problems: &mut Problems,
) -> Vec<AdapterShare> {
    if keys.len() > usize::from(ADAPTERS_MAX) {
        problems.error(path, format!("must be at most {ADAPTERS_MAX} adapters"), keys.len());
    }

    let mut seen = BTreeSet::from([model]);
    for (place, adapter) in keys.iter().enumerate() {
        let AdapterKeys { name, from, .. } = adapter;
        if name.as_ref().is_some_and(|name| !seen.insert(name)) {
            let rule = "is the name of the model or of another adapter";
            problems.error_at(format!("{path}[{place}].name"), rule);
        }

        let until = adapter.until();
        if until <= *from {
            let rule = format!("must be later than from, which is {from}");
            problems.error(format!("{path}[{place}].until"), rule, until);
        }
    }

    let sum: f64 = keys.iter().filter_map(|adapter| adapter.share).map(Fraction::fraction).sum();
    if sum > 1.0 + ROUNDING {
        problems.error(path, "must have shares that are at most 1 together", sum);
    }

    keys.iter().filter_map(AdapterKeys::resolve).collect()
}

impl AdapterKeys {
    /// The time at which requests stop asking for the adapter.
    fn until(&self) -> Micros {
        self.until.unwrap_or(Micros::from_duration(*SPANS.end()))
    }

    fn resolve(&self) -> Option<AdapterShare> {
        let name = ModelName::new(self.name.as_ref()?)?;
        Some(AdapterShare { name, share: self.share?, from: self.from, until: self.until() })
    }
}

/// The settings with which a variant's engine serves the adapters of its model.
pub(super) fn slots(
    path: &str,
    keys: Option<AdapterSettings>,
    served: Option<&Model>,
    problems: &mut Problems,
) -> Option<AdapterSettings> {
    let model = served?;
    let name = &model.key.model;
    let asked = !model.adapters.is_empty();
    if asked && keys.is_none() {
        let rule = format!("is required, because requests of {name} ask for adapters");
        problems.missing(path, rule);
    }

    if !asked && keys.is_some() {
        let rule = format!("has no effect, because no request of {name} asks for an adapter");
        problems.warning(path, rule);
    }

    keys.filter(|_| asked)
}
