//! Models that may have no replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::collect::demand::Signal;
use crate::config::check::{Checks, Durations};
use crate::config::problem::join;
use crate::config::resolve::saturation::model_key;
use crate::config::resolve::wake::{self, Around};
use crate::config::resolve::{DAY, seconds};
use crate::config::wva::Wva;
use crate::config::{Targets, Variant, file};
use crate::decide::zero::ZeroPolicy;
use crate::pipeline::zero::{Rule, Zero};
use crate::units::Replicas;

const SECTION: &str = "scale_to_zero";

/// Longer than most pauses of people, and far shorter than a night.
pub(crate) const AFTER: Duration = Duration::from_mins(15);
/// What starts in ten seconds is not worth to be sent to zero, and what is idle for a week is.
const AFTERS: Durations = Duration::from_secs(10)..=Duration::from_hours(168);

/// Long enough for a client that gave up while the replica started to come again.
const AWAKE_FOR: Duration = Duration::from_mins(5);
const AWAKES: Durations = Duration::ZERO..=DAY;

/// Resolves the section. What names no variant can only be warned of where all are known.
pub(crate) fn resolve(
    section: Option<&file::ScaleToZero>,
    wva: &Wva,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> (Zero, Vec<Signal>) {
    let known = around.known;
    let file::ScaleToZero { enabled, after, awake_for, overrides, wake } =
        section.cloned().unwrap_or_default();
    let beneath = wva.zero.unwrap_or(false);
    let usual = Written { enabled: beneath, after: AFTER, awake_for: AWAKE_FOR };
    let all = file::ZeroRule { enabled, after, awake_for };
    let usual = usual.overlaid(SECTION, &all, checks);
    let mut rules = BTreeMap::new();
    for (name, enabled) in &wva.zero_overrides {
        let Some(key) = model_key(name) else { continue };
        rules.insert(key, Written { enabled: *enabled, ..usual }.rule());
    }
    for (name, written) in overrides.unwrap_or_default() {
        let path = join(&join(SECTION, "overrides"), &name);
        let Some(key) = model_key(&name) else {
            let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
            checks.problems.error_at(path, rule);
            continue;
        };
        let enabled = wva.zero_overrides.get(&name).copied().unwrap_or(usual.enabled);
        let beneath = Written { enabled, ..usual };
        let rule = beneath.overlaid(&path, &written.unwrap_or_default(), checks);
        let serves = |variant: &Variant| variant.spec.model_key() == key;
        if known.is_some_and(|variants| !variants.iter().any(serves)) {
            checks.problems.warning(path, "has no effect, because no variant serves this model");
        }
        rules.insert(key, rule.rule());
    }
    let (default, after) = (usual.rule(), seconds(usual.after));
    let zero = Zero { default, overrides: rules, after };
    if wake.is_none() && !zero.is_off() {
        let rule = "is missing, so nothing here brings a model back that went to zero; write an \
                    empty list where something else does";
        checks.problems.warning(join(SECTION, "wake"), rule);
    }
    warn_of_minima(&zero, known.unwrap_or_default(), checks);
    let signals = wake::resolve(wake.as_deref(), around, checks);
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

/// A rule as it is written.
#[derive(Clone, Copy)]
struct Written {
    enabled: bool,
    after: Duration,
    awake_for: Duration,
}

impl Written {
    fn overlaid(self, path: &str, written: &file::ZeroRule, checks: &mut Checks<'_>) -> Self {
        let file::ZeroRule { enabled, after, awake_for } = *written;
        Self {
            enabled: enabled.unwrap_or(self.enabled),
            after: checks.duration(&join(path, "after"), after, &AFTERS).unwrap_or(self.after),
            awake_for: checks
                .duration(&join(path, "awake_for"), awake_for, &AWAKES)
                .unwrap_or(self.awake_for),
        }
    }

    fn rule(self) -> Rule {
        let after = ZeroPolicy::AfterIdle(seconds(self.after));
        let policy = if self.enabled { after } else { ZeroPolicy::KeepOne };
        Rule { policy, awake_min: seconds(self.awake_for) }
    }
}
