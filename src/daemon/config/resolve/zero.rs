//! Models that may have no replicas.

use std::collections::BTreeMap;

use crate::collect::demand::SignalSettings;
use crate::config::check::Checks;
use crate::config::effective::{VariantConfig, VariantTargets};
use crate::config::file::{ScaleToZeroKeys, ZeroKeys};
use crate::config::resolve::policy_context::PolicyContext;
use crate::config::resolve::saturation::{model_key, warn_of_unserved};
use crate::config::resolve::wake;
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::pipeline::zero::{Zero, ZeroRule};
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::{self, Setting, Written};
use plimsoll_core::units::Replicas;

const SECTION: &str = "scale_to_zero";

/// Resolves the section, and completes it. Names that match no variant can only be warned about if
/// all variants are known.
pub(crate) fn resolve(
    section: Option<&Written<ScaleToZeroKeys>>,
    keys: &mut ScaleToZeroKeys,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> (Zero, Vec<SignalSettings>) {
    let PolicyContext { known, wva, .. } = *around;
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
        warn_of_unserved(path, &key, known, problems);
        rules.insert(key, rule);
    }

    keys.overrides = rules.iter().map(|(model, it)| (model.to_string(), shown(*it))).collect();
    let overrides = rules.into_iter().map(|(model, it)| (model, rule(it))).collect();
    let zero = Zero { default: rule(usual), overrides, after };
    let wake = section.and_then(|section| section.wake.as_deref());
    if wake.is_none() && !zero.is_off() {
        let rule = "is missing, so Plimsoll can't wake a model from zero; write an empty list if \
            another system does";
        problems.warning(join(SECTION, "wake"), rule);
    }

    warn_of_minima(&zero, known.unwrap_or_default(), checks);
    let (entries, signals) = wake::resolve(wake, around, checks).into_iter().unzip();
    keys.wake = Some(entries);
    (zero, signals)
}

/// A rule as it is printed: without the idle time of a model that must not scale to zero.
fn shown(rule: ZeroKeys) -> Option<Written<ZeroKeys>> {
    let after = if rule.enabled { rule.after } else { ZeroKeys::default().after };
    ZeroKeys { after, ..rule }.written()
}

/// Warns about variants that may scale to zero by this section but have a minimum that prevents it.
/// If a scale target has an autoscaler, the autoscaler's minimum applies, which is not known here.
fn warn_of_minima(zero: &Zero, variants: &[VariantConfig], checks: &mut Checks<'_>) {
    for (at, variant) in variants.iter().enumerate() {
        let may = zero.of(&variant.spec.model_key()).policy != ZeroPolicy::KeepOne;
        let listed = !matches!(variant.targets, VariantTargets::ScaleTarget(_));

        if may && listed && variant.spec.bounds.min() > Replicas::ZERO {
            let rule =
                "keeps the model from going to zero, which scale_to_zero allows; set it to 0";
            checks.problems.warning(format!("variants[{at}].replicas.min"), rule);
        }
    }
}

fn rule(keys: ZeroKeys) -> ZeroRule {
    let ZeroKeys { enabled, after, awake_for } = keys;
    let policy = if enabled { ZeroPolicy::AfterIdle(after) } else { ZeroPolicy::KeepOne };
    ZeroRule { policy, awake_min: awake_for }
}
