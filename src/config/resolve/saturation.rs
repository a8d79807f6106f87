//! Thresholds, and those of single models.

use std::collections::BTreeMap;

use crate::analyze::saturation::Thresholds;
use crate::config::Variant;
use crate::config::check::Checks;
use crate::config::problem::join;
use crate::config::{file, names, wva};
use crate::fleet::{ModelKey, ModelName, Namespace};
use crate::units::{Fraction, Requests};

const KV_CACHE_THRESHOLD: f64 = 0.80;
const QUEUE_LENGTH_THRESHOLD: f64 = 5.0;
const KV_SPARE_TRIGGER: f64 = 0.10;
const QUEUE_SPARE_TRIGGER: f64 = 3.0;
/// More waiting requests than any engine holds.
const QUEUE_LENGTH_MAX: f64 = 1e6;

/// Thresholds before they are known to be quantities.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    kv_cache: f64,
    queue_length: f64,
    kv_spare: f64,
    queue_spare: f64,
}

impl Numbers {
    pub(crate) const DEFAULT: Self = Self {
        kv_cache: KV_CACHE_THRESHOLD,
        queue_length: QUEUE_LENGTH_THRESHOLD,
        kv_spare: KV_SPARE_TRIGGER,
        queue_spare: QUEUE_SPARE_TRIGGER,
    };

    /// These numbers with what is written over them.
    pub(crate) fn overlaid(
        self,
        path: &str,
        written: &file::Thresholds,
        checks: &mut Checks<'_>,
    ) -> Self {
        let file::Thresholds {
            kv_cache_threshold,
            queue_length_threshold,
            kv_spare_trigger,
            queue_spare_trigger,
        } = written;
        let mut positive =
            |key, written: &_, limit| checks.positive(&join(path, key), *written, limit);
        Self {
            kv_cache: positive("kv_cache_threshold", kv_cache_threshold, 1.0)
                .unwrap_or(self.kv_cache),
            queue_length: positive(
                "queue_length_threshold",
                queue_length_threshold,
                QUEUE_LENGTH_MAX,
            )
            .unwrap_or(self.queue_length),
            kv_spare: positive("kv_spare_trigger", kv_spare_trigger, 1.0).unwrap_or(self.kv_spare),
            queue_spare: positive("queue_spare_trigger", queue_spare_trigger, QUEUE_LENGTH_MAX)
                .unwrap_or(self.queue_spare),
        }
    }

    /// Refuses triggers that an idle replica would already be below. Spare is what is left to the
    /// threshold, so it is never more than the threshold.
    pub(crate) fn check_together(self, path: &str, checks: &mut Checks<'_>) {
        let Self { kv_cache, queue_length, kv_spare, queue_spare } = self;
        let sound = |key: &str, checks: &Checks<'_>| !checks.problems.refused(&join(path, key));
        if kv_spare >= kv_cache && sound("kv_cache_threshold", checks) {
            let rule = format!(
                "must be below kv_cache_threshold, which is {kv_cache}, or the model would always \
                 grow"
            );
            checks.problems.error(join(path, "kv_spare_trigger"), rule, kv_spare);
        }
        if queue_spare > queue_length && sound("queue_length_threshold", checks) {
            let rule = format!(
                "must not be above queue_length_threshold, which is {queue_length}, or the model \
                 would always grow"
            );
            checks.problems.error(join(path, "queue_spare_trigger"), rule, queue_spare);
        }
    }

    pub(crate) fn thresholds(self) -> Option<Thresholds> {
        let Self { kv_cache, queue_length, kv_spare, queue_spare } = self;
        Some(Thresholds {
            kv_cache: Fraction::new(kv_cache)?,
            queue_length: Requests::new(queue_length)?,
            kv_spare: Fraction::new(kv_spare)?,
            queue_spare: Requests::new(queue_spare)?,
        })
    }
}

/// Thresholds of single models: what is written, over what the other autoscaler's entries say, over
/// the thresholds of all models.
pub(crate) fn resolve_overrides(
    written: &BTreeMap<String, Option<file::Thresholds>>,
    wva: &BTreeMap<String, file::Thresholds>,
    numbers: &Numbers,
    known: Option<&[Variant]>,
    checks: &mut Checks<'_>,
) -> BTreeMap<ModelKey, Thresholds> {
    let none = file::Thresholds::default();
    let mut overrides = BTreeMap::new();
    for (name, beneath) in wva.iter().filter(|(name, _)| !written.contains_key(*name)) {
        let numbers = numbers.overlaid(wva::KEY, beneath, checks);
        if *beneath != none {
            numbers.check_together(&join(wva::KEY, name), checks);
        }
        overrides.extend(model_key(name).zip(numbers.thresholds()));
    }
    for (name, written) in written {
        let path = join("saturation.overrides", name);
        let Some(key) = model_key(name) else {
            let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
            checks.problems.error_at(path, rule);
            continue;
        };
        let beneath = wva.get(name).unwrap_or(&none);
        let written = written.clone().unwrap_or_default();
        let numbers = numbers.overlaid(wva::KEY, beneath, checks).overlaid(&path, &written, checks);
        // What comes from the section as a whole has been reported there.
        if written != none || *beneath != none {
            numbers.check_together(&path, checks);
        }
        let serves = |variant: &Variant| variant.spec.model_key() == key;
        if known.is_some_and(|variants| !variants.iter().any(serves)) {
            checks.problems.warning(path, "has no effect, because no variant serves this model");
        }
        overrides.extend(numbers.thresholds().map(|thresholds| (key, thresholds)));
    }
    overrides
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
