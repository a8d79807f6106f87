//! Models that may have no replicas.

use std::collections::BTreeMap;

use crate::collect::demand::Signal;
use crate::config::check::Checks;
use crate::config::file::{ScaleToZeroKeys, ZeroKeys};
use crate::config::problem::join;
use crate::config::resolve::saturation::model_key;
use crate::config::resolve::wake::{self, Around};
use crate::config::wva::Wva;
use crate::config::{Targets, Variant};
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::pipeline::zero::{Rule, Zero};
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Replicas;

const SECTION: &str = "scale_to_zero";

/// Resolves the section. What names no variant can only be warned of where all are known.
pub(crate) fn resolve(
    section: Option<&Written<ScaleToZeroKeys>>,
    wva: &Wva,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> (Zero, Vec<Signal>) {
    let known = around.known;
    let problems = &mut checks.problems;
    let beneath = ScaleToZeroKeys { enabled: wva.zero.unwrap_or(false), ..Default::default() };
    let ScaleToZeroKeys { enabled, after, awake_for, overrides, .. } =
        settings::resolve_over(section, &beneath, SECTION, problems);
    let usual = ZeroKeys { enabled, after, awake_for };
    let mut rules = BTreeMap::new();
    for (name, enabled) in &wva.zero_overrides {
        let Some(key) = model_key(name) else { continue };
        rules.insert(key, rule(ZeroKeys { enabled: *enabled, ..usual }));
    }
    for (name, written) in overrides {
        let path = join(&join(SECTION, "overrides"), &name);
        let Some(key) = model_key(&name) else {
            let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
            problems.error_at(path, rule);
            continue;
        };
        let enabled = wva.zero_overrides.get(&name).copied().unwrap_or(usual.enabled);
        let beneath = ZeroKeys { enabled, ..usual };
        let keys = settings::resolve_over(written.as_ref(), &beneath, &path, problems);
        let serves = |variant: &Variant| variant.spec.model_key() == key;
        if known.is_some_and(|variants| !variants.iter().any(serves)) {
            problems.warning(path, "has no effect, because no variant serves this model");
        }
        rules.insert(key, rule(keys));
    }
    let zero = Zero { default: rule(usual), overrides: rules, after };
    let wake = section.and_then(|section| section.wake.as_deref());
    if wake.is_none() && !zero.is_off() {
        let rule = "is missing, so nothing here brings a model back that went to zero; write an \
                    empty list where something else does";
        problems.warning(join(SECTION, "wake"), rule);
    }
    warn_of_minima(&zero, known.unwrap_or_default(), checks);
    let signals = wake::resolve(wake, around, checks);
    (zero, signals)
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
