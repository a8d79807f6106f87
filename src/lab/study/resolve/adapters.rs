//! `LoRA` adapters: who asks for them, and how engines serve them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::simulate::Micros;
use crate::simulate::replica::adapters::{ADAPTERS_MAX, AdapterSettings};
use crate::simulate::scenario::{AdapterShare, Model};
use crate::study::file;
use plimsoll_core::fleet::ModelName;
use plimsoll_core::units::Fraction;
use plimsoll_daemon::config::check::{Checks, Durations};
use plimsoll_daemon::config::names;
use plimsoll_daemon::config::problem::join;

/// vLLM's `--max-loras`, unless it is told otherwise.
const SLOTS: u32 = 1;
/// Adapters come from a disk at the slowest, in seconds.
const LOADS: Durations = Duration::ZERO..=Duration::from_mins(1);
/// How far the sum of shares, which people write as decimals, may be beyond 1.
const ROUNDING: f64 = 1e-9;

/// Resolves the adapters of a model; what is wrong with them is a problem.
pub(super) fn shares(
    path: &str,
    written: Option<&[Option<file::Adapter>]>,
    model: Option<&str>,
    checks: &mut Checks<'_>,
) -> Vec<AdapterShare> {
    let written = written.unwrap_or_default();
    if written.len() > usize::from(ADAPTERS_MAX) {
        let rule = format!("must be at most {ADAPTERS_MAX} adapters");
        checks.problems.error(path, rule, written.len());
    }
    let mut seen: BTreeSet<&str> = model.into_iter().collect();
    let mut shares = Vec::new();
    let mut sum = 0.0;
    for (place, adapter) in written.iter().enumerate() {
        let path = format!("{path}[{place}]");
        let Some(file::Adapter { name, share }) = adapter else { continue };
        for (key, there) in [("name", name.is_some()), ("share", share.is_some())] {
            if !there {
                checks.problems.missing(join(&path, key), "is required");
            }
        }
        let name_path = join(&path, "name");
        let name =
            checks.text(&name_path, name.as_deref(), names::is_model_name, names::MODEL_NAME);
        if name.is_some_and(|name| !seen.insert(name)) {
            checks.problems.error_at(name_path, "is the name of the model or of another adapter");
        }
        let share = checks.positive(&join(&path, "share"), *share, 1.0);
        sum += share.unwrap_or_default();
        let name = name.and_then(ModelName::new);
        let resolved = name.zip(share.and_then(Fraction::new));
        shares.extend(resolved.map(|(name, share)| AdapterShare { name, share }));
    }
    if sum > 1.0 + ROUNDING {
        checks.problems.error(path, "must have shares that are at most 1 together", sum);
    }
    shares
}

/// Resolves how the engine of a variant serves the adapters of its model.
pub(super) fn slots(
    path: &str,
    written: Option<&file::Adapters>,
    model: Option<&Model>,
    checks: &mut Checks<'_>,
) -> Option<AdapterSettings> {
    let asked = model.is_some_and(|model| !model.adapters.is_empty());
    let Some(&file::Adapters { slots, load }) = written else {
        if let Some(model) = model.filter(|_| asked) {
            let name = &model.key.model;
            let rule = format!("is required, because requests of {name} ask for adapters");
            checks.problems.missing(path, rule);
        }
        return None;
    };
    let allowed = 1..=u32::from(ADAPTERS_MAX);
    let slots = checks.number(&join(path, "slots"), slots, &allowed).unwrap_or(SLOTS);
    let load = checks.duration(&join(path, "load"), load, &LOADS).unwrap_or_default();
    if let Some(model) = model.filter(|_| !asked) {
        let name = &model.key.model;
        let rule = format!("has no effect, because no request of {name} asks for an adapter");
        checks.problems.warning(path, rule);
        return None;
    }
    let slots = u8::try_from(slots).unwrap_or(ADAPTERS_MAX);
    Some(AdapterSettings { slots, load: Micros::from_duration(load) })
}
