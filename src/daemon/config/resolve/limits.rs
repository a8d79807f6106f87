//! Limits on accelerators and cost, and the precedence of models.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::config::check::Checks;
use crate::config::effective::VariantConfig;
use crate::config::file::{LimitKeys, NamespaceLimitKeys};
use crate::config::names;
use crate::config::resolve::policy_context::PolicyContext;
use crate::config::resolve::saturation::{model_key, warn_of_unserved};
use plimsoll_core::decide::limit::{
    Allowance, LimitName, LimitScope, LimitSource, Priority, SupplyLimit,
};
use plimsoll_core::decide::optimize::Headroom;
use plimsoll_core::fleet::{Accelerator, ModelKey, Namespace};
use plimsoll_core::pipeline::limits::{LimitPolicy, LimitSwitch};
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::{self, Setting, Written};
use plimsoll_core::units::Gpus;

const PATH: &str = "limits";

/// More than any cluster has, and far from the limits of arithmetic.
const GPUS: RangeInclusive<u32> = 0..=1_000_000;

/// Resolves the section, and completes it.
pub(crate) fn resolve(
    section: &mut LimitKeys,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> LimitPolicy {
    let PolicyContext { known, cluster, .. } = *around;
    let LimitKeys { nodes, quotas, .. } = *section;
    for (key, _) in [("nodes", nodes), ("quotas", quotas)]
        .iter()
        .filter(|(_, watched)| *watched == LimitSwitch::On && !cluster)
    {
        checks.problems.error_at(join(PATH, key), "needs kubernetes.enabled to be true");
    }

    let names = products(&section.names, checks);
    let mut limits = LimitPolicy { nodes, quotas, names, ..LimitPolicy::default() };
    let mut all = NamespaceLimitKeys {
        budget_per_hour: section.budget_per_hour,
        accelerators: section.accelerators.take(),
    };
    limits.configured = limits_of(PATH, &limits, None, &mut all, checks);
    section.accelerators = all.accelerators;

    for (name, written) in &mut section.namespaces {
        let path = join(&join(PATH, "namespaces"), name);
        let text = checks.text(&path, Some(name), names::is_dns_label, names::DNS_LABEL);
        let Some(namespace) = text.and_then(Namespace::new) else { continue };
        let is_empty = known
            .is_some_and(|variants| variants.iter().all(|it| it.spec.key.namespace != namespace));
        if is_empty {
            checks.problems.warning(&path, "has no effect, because it has no variants");
        }

        let mut keys = settings::resolve(written.as_ref(), &path, &mut checks.problems);
        let configured = limits_of(&path, &limits, Some(&namespace), &mut keys, checks);
        limits.configured.extend(configured);
        *written = keys.written();
    }

    let nothing = NamespaceLimitKeys::default().written();
    section.namespaces.retain(|_, written| *written != nothing);
    let models = section.models.iter_mut();
    let priorities = models.filter_map(|(name, it)| priority(name, it, known, checks)).collect();
    LimitPolicy { priorities, ..limits }
}

fn products(
    written: &BTreeMap<String, Option<String>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<Accelerator, Accelerator> {
    let mut products = BTreeMap::new();
    for (product, name) in written {
        let path = join(&join(PATH, "names"), product);
        if name.is_none() {
            checks.problems.missing(&path, "must be the name of an accelerator, such as H100");
        }

        let rule = names::LABEL_TEXT;
        let from = checks.text(&path, Some(product), names::is_label_text, rule);
        let to = checks.text(&path, name.as_deref(), names::is_label_text, rule);
        products.extend(from.and_then(Accelerator::new).zip(to.and_then(Accelerator::new)));
    }

    products
}

/// The limits of a namespace's variants, or of all variants. Converts accelerator names to the
/// names in use.
fn limits_of(
    path: &str,
    limits: &LimitPolicy,
    namespace: Option<&Namespace>,
    keys: &mut NamespaceLimitKeys,
    checks: &mut Checks<'_>,
) -> Vec<SupplyLimit> {
    let budget = keys.budget_per_hour.map(Allowance::Budget);
    let quota = keys.accelerators.as_mut().map(|written| {
        let kinds = kinds(&join(path, "accelerators"), limits, written, checks);
        *written = kinds.iter().map(|(kind, gpus)| (kind.to_string(), Some(*gpus))).collect();
        let counts = kinds.into_iter().map(|(kind, gpus)| (kind, Gpus::new(gpus)));
        Allowance::Kinds(counts.map(|(kind, gpus)| (kind, Headroom::Limited(gpus))).collect())
    });

    let mut found = Vec::new();
    for (what, allowance) in [("quota", quota), ("budget", budget)] {
        let Some(allowance) = allowance else { continue };
        let name = namespace.map_or_else(|| what.to_owned(), |it| format!("{what} of {it}"));
        let Some(name) = LimitName::new(&name) else { continue };
        let scope = namespace.map_or(LimitScope::Cluster, |it| LimitScope::Namespace(it.clone()));
        found.push(SupplyLimit { name, scope, source: LimitSource::Read(allowance) });
    }

    found
}

fn kinds(
    path: &str,
    limits: &LimitPolicy,
    written: &BTreeMap<String, Option<u32>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<Accelerator, u32> {
    let mut kinds: BTreeMap<Accelerator, u32> = BTreeMap::new();
    for (name, gpus) in written {
        let at = join(path, name);
        let rule = "must be the name of an accelerator, such as H100";
        let text = checks.text(&at, Some(name), names::is_label_text, rule);
        if gpus.is_none() {
            checks.problems.missing(&at, "must be a number of accelerators");
        }

        let count = checks.number(&at, *gpus, &GPUS);
        let Some((written, count)) = text.and_then(Accelerator::new).zip(count) else { continue };
        let kind = limits.named(&written);
        let mut known = kinds.keys();
        let listed = known.find(|it| it.as_str().eq_ignore_ascii_case(kind.as_str()));
        if let Some(listed) = listed {
            checks.problems.error_at(at, repeated(&kind, listed));
        }

        kinds.insert(kind, count);
    }

    kinds
}

/// The rule that a kind breaks if it is in the list already, perhaps in upper or lower case. Names
/// match exactly, so a variant would be limited by one of the two numbers only.
fn repeated(kind: &Accelerator, listed: &Accelerator) -> String {
    if kind == listed {
        return format!("is {kind}, which is already in the list");
    }
    format!("is in the list as {listed}, and names match exactly; keep the name that variants have")
}

fn priority(
    name: &str,
    written: &mut Option<Written<Priority>>,
    known: Option<&[VariantConfig]>,
    checks: &mut Checks<'_>,
) -> Option<(ModelKey, Priority)> {
    let path = join(&join(PATH, "models"), name);
    let priority: Priority = settings::resolve(written.as_ref(), &path, &mut checks.problems);
    *written = priority.written();
    let Some(key) = model_key(name) else {
        let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
        checks.problems.error_at(path, rule);
        return None;
    };

    warn_of_unserved(path, &key, known, &mut checks.problems);
    Some((key, priority))
}
