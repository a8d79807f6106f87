//! Models that may have no replicas.

use std::collections::BTreeMap;

use crate::collect::demand::Signal;
use crate::config::check::Checks;
use crate::config::file::{ScaleToZeroKeys, ZeroKeys};
use crate::config::problem::join;
use crate::config::resolve::saturation::model_key;
use crate::config::resolve::{Around, wake};
use crate::config::{Targets, Variant};
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::pipeline::zero::{Rule, Zero};
use plimsoll_core::settings::{self, Setting, Written};
use plimsoll_core::units::Replicas;

const SECTION: &str = "scale_to_zero";

/// Resolves the section, and completes it. What names no variant can only be warned of where all
/// are known.
pub(crate) fn resolve(
    section: Option<&Written<ScaleToZeroKeys>>,
    keys: &mut ScaleToZeroKeys,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> (Zero, Vec<Signal>) {
    let Around { known, wva, .. } = *around;
    let problems = &mut checks.problems;
    let ScaleToZeroKeys { enabled, after, awake_for, .. } = *keys;
    let usual = ZeroKeys { enabled, after, awake_for };
    let mut rules = BTreeMap::new();
    for (name, enabled) in &wva.zero_overrides {
        let Some(key) = model_key(name) else { continue };
        rules.insert(key, ZeroKeys { enabled: *enabled, ..usual });
    }
    for (name, written) in &keys.overrides {
        let path = join(&join(SECTION, "overrides"), name);
        let Some(key) = model_key(name) else {
            let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
            problems.error_at(path, rule);
            continue;
        };
        let enabled = wva.zero_overrides.get(name).copied().unwrap_or(usual.enabled);
        let beneath = ZeroKeys { enabled, ..usual };
        let rule = settings::resolve_over(written.as_ref(), &beneath, &path, problems);
        let serves = |variant: &Variant| variant.spec.model_key() == key;
        if known.is_some_and(|variants| !variants.iter().any(serves)) {
            problems.warning(path, "has no effect, because no variant serves this model");
        }
        rules.insert(key, rule);
    }
    keys.overrides = rules.iter().map(|(model, it)| (model.to_string(), shown(*it))).collect();
    let overrides = rules.into_iter().map(|(model, it)| (model, rule(it))).collect();
    let zero = Zero { default: rule(usual), overrides, after };
    let wake = section.and_then(|section| section.wake.as_deref());
    if wake.is_none() && !zero.is_off() {
        let rule = "is missing, so nothing here brings a model back that went to zero; write an \
                    empty list where something else does";
        problems.warning(join(SECTION, "wake"), rule);
    }
    warn_of_minima(&zero, known.unwrap_or_default(), checks);
    let (entries, signals) = wake::resolve(wake, around, checks).into_iter().unzip();
    keys.wake = Some(entries);
    (zero, signals)
}

/// A rule as it is shown: without the time of a model that may not have no replicas.
fn shown(rule: ZeroKeys) -> Option<Written<ZeroKeys>> {
    let after = if rule.enabled { rule.after } else { ZeroKeys::default().after };
    ZeroKeys { after, ..rule }.written()
}

/// Says of variants that may have no replicas by this section that their minimum keeps them. Where
/// a scale target has an autoscaler, that one's minimum holds, which is not known here.
fn warn_of_minima(zero: &Zero, variants: &[Variant], checks: &mut Checks<'_>) {
    for (at, variant) in variants.iter().enumerate() {
        let may = zero.of(&variant.spec.model_key()).policy != ZeroPolicy::KeepOne;
        let listed = !matches!(variant.targets, Targets::ScaleTarget(_));
        if may && listed && variant.spec.bounds.min() > Replicas::ZERO {
            let rule =
                "keeps the model from going to zero, which scale_to_zero allows; set it to 0";
            checks.problems.warning(format!("variants[{at}].replicas.min"), rule);
        }
    }
}

fn rule(keys: ZeroKeys) -> Rule {
    let ZeroKeys { enabled, after, awake_for } = keys;
    let policy = if enabled { ZeroPolicy::AfterIdle(after) } else { ZeroPolicy::KeepOne };
    Rule { policy, awake_min: awake_for }
}
