//! Thresholds of all models, and of single models.

use std::collections::BTreeMap;

use crate::config::check::Checks;
use crate::config::effective::VariantConfig;
use crate::config::{names, wva};
use plimsoll_core::analyze::saturation::Thresholds;
use plimsoll_core::fleet::{ModelKey, ModelName, Namespace};
use plimsoll_core::settings::problem::{Problems, join};
use plimsoll_core::settings::{self, Setting, Written};

/// Rejects triggers that even an idle replica would be below. The headroom is the distance to the
/// threshold, so it is never larger than the threshold.
pub(crate) fn check_together(thresholds: &Thresholds, path: &str, problems: &mut Problems) {
    let Thresholds { kv_cache, queue_length, kv_spare, queue_spare } = thresholds;
    if kv_spare >= kv_cache && !problems.refused(&join(path, "kv_cache_threshold")) {
        let rule = format!(
            "must be below kv_cache_threshold, which is {}, or the model would always scale up",
            kv_cache.fraction()
        );
        problems.error(join(path, "kv_spare_trigger"), rule, kv_spare.fraction());
    }

    if queue_spare > queue_length && !problems.refused(&join(path, "queue_length_threshold")) {
        let rule = format!(
            "must not be above queue_length_threshold, which is {}, or the model would always \
             scale up",
            queue_length.requests()
        );
        problems.error(join(path, "queue_spare_trigger"), rule, queue_spare.requests());
    }
}

/// Thresholds of single models: the written keys, over those of the WVA `ConfigMap` entries, over
/// the thresholds of all models. Completes the section.
pub(crate) fn resolve_overrides(
    section: &mut BTreeMap<String, Option<Written<Thresholds>>>,
    wva: &BTreeMap<String, Written<Thresholds>>,
    usual: &Thresholds,
    known: Option<&[VariantConfig]>,
    checks: &mut Checks<'_>,
) -> BTreeMap<ModelKey, Thresholds> {
    let none = Written::<Thresholds>::default();
    let problems = &mut checks.problems;
    let mut overrides = BTreeMap::new();
    for (name, beneath) in wva.iter().filter(|(name, _)| !section.contains_key(*name)) {
        let resolved = settings::resolve_over(Some(beneath), usual, wva::KEY, problems);
        if *beneath != none {
            check_together(&resolved, &join(wva::KEY, name), problems);
        }
        overrides.extend(model_key(name).map(|key| (key, resolved)));
    }

    for (name, written) in &*section {
        let path = join("saturation.overrides", name);
        let Some(key) = model_key(name) else {
            let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
            problems.error_at(path, rule);
            continue;
        };

        let beneath = wva.get(name).unwrap_or(&none);
        let own = written.clone().unwrap_or_default();
        let beneath_it = settings::resolve_over(Some(beneath), usual, wva::KEY, problems);
        let resolved = settings::resolve_over(Some(&own), &beneath_it, &path, problems);
        // Problems of inherited thresholds have been noted at their own section.
        if own != none || *beneath != none {
            check_together(&resolved, &path, problems);
        }

        warn_of_unserved(path, &key, known, problems);
        overrides.insert(key, resolved);
    }

    *section = overrides.iter().map(|(key, it)| (key.to_string(), it.written())).collect();
    overrides
}

/// Warns about a rule for a model that no variant serves, if all variants are known.
pub(crate) fn warn_of_unserved(
    path: String,
    model: &ModelKey,
    known: Option<&[VariantConfig]>,
    problems: &mut Problems,
) {
    let Some(variants) = known else { return };
    if variants.iter().all(|variant| variant.spec.model_key() != *model) {
        problems.warning(path, "has no effect, because no variant serves this model");
    }
}

/// The model that `MODEL#NAMESPACE` names.
pub(crate) fn model_key(name: &str) -> Option<ModelKey> {
    // The last `#`, because a namespace has none.
    let (model, namespace) = name.rsplit_once('#')?;
    if !names::is_model_name(model) || !names::is_dns_label(namespace) {
        return None;
    }
    Some(ModelKey { namespace: Namespace::new(namespace)?, model: ModelName::new(model)? })
}
