//! What may be used, and who comes first.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::config::Variant;
use crate::config::check::Checks;
use crate::config::file::{LimitKeys, NamespaceLimitKeys};
use crate::config::names;
use crate::config::problem::join;
use crate::config::resolve::saturation::model_key;
use plimsoll_core::decide::limit::{Allowance, Limit, LimitName, Priority, Scope, Source};
use plimsoll_core::decide::optimize::Headroom;
use plimsoll_core::fleet::{Accelerator, ModelKey, Namespace};
use plimsoll_core::pipeline::limits::{Limits, Watched};
use plimsoll_core::settings::{self, Setting, Written};
use plimsoll_core::units::Gpus;

const PATH: &str = "limits";

/// More than any cluster has, and far from the limits of arithmetic.
const GPUS: RangeInclusive<u32> = 0..=1_000_000;

/// Resolves the section, and completes it. `known` are the variants, where there are no others; `cluster` is whether
/// there is one.
pub(crate) fn resolve(
    section: &mut LimitKeys,
    (known, cluster): (Option<&[Variant]>, bool),
    checks: &mut Checks<'_>,
) -> Limits {
    let LimitKeys { nodes, quotas, .. } = *section;
    for (key, _) in [("nodes", nodes), ("quotas", quotas)]
        .iter()
        .filter(|(_, watched)| *watched == Watched::On && !cluster)
    {
        checks.problems.error_at(join(PATH, key), "needs kubernetes.enabled to be true");
    }
    let names = products(&section.names, checks);
    let mut limits = Limits { nodes, quotas, names, ..Limits::default() };
    let mut all = NamespaceLimitKeys {
        budget_per_hour: section.budget_per_hour,
        accelerators: section.accelerators.take(),
    };
    limits.configured = limits_of(PATH, (&limits, None), &mut all, checks);
    section.accelerators = all.accelerators;
    for (name, written) in &mut section.namespaces {
        let path = join(&join(PATH, "namespaces"), name);
        let text = checks.text(&path, Some(name), names::is_dns_label, names::DNS_LABEL);
        let Some(namespace) = text.and_then(Namespace::new) else { continue };
        let is_there = |variant: &Variant| variant.spec.key.namespace == namespace;
        if known.is_some_and(|variants| !variants.iter().any(is_there)) {
            checks.problems.warning(&path, "has no effect, because no variant is there");
        }
        let mut keys = settings::resolve(written.as_ref(), &path, &mut checks.problems);
        let configured = limits_of(&path, (&limits, Some(&namespace)), &mut keys, checks);
        limits.configured.extend(configured);
        *written = keys.written();
    }
    let nothing = NamespaceLimitKeys::default().written();
    section.namespaces.retain(|_, written| *written != nothing);
    let priorities = section.models.iter_mut();
    let priorities = priorities.filter_map(|(name, it)| priority(name, it, known, checks));
    Limits { priorities: priorities.collect(), ..limits }
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
        let text = checks.text(&path, Some(product), names::is_label_text, rule);
        let name = checks.text(&path, name.as_deref(), names::is_label_text, rule);
        products.extend(text.and_then(Accelerator::new).zip(name.and_then(Accelerator::new)));
    }
    products
}

/// The limits of a namespace's variants, or of all. Their accelerators get the names that count.
fn limits_of(
    path: &str,
    (limits, namespace): (&Limits, Option<&Namespace>),
    keys: &mut NamespaceLimitKeys,
    checks: &mut Checks<'_>,
) -> Vec<Limit> {
    let budget = keys.budget_per_hour.map(Allowance::Budget);
    let quota = keys.accelerators.as_mut().map(|written| {
        let kinds = kinds(&join(path, "accelerators"), limits, written, checks);
        *written = kinds.iter().map(|(kind, gpus)| (kind.to_string(), Some(*gpus))).collect();
        let limited = |gpus| Headroom::Limited(Gpus::new(gpus));
        Allowance::Kinds(kinds.into_iter().map(|(kind, gpus)| (kind, limited(gpus))).collect())
    });
    let limit = |(what, allowance): (&str, Allowance)| {
        let name = namespace.map_or_else(|| what.to_owned(), |it| format!("{what} of {it}"));
        let scope = namespace.map_or(Scope::Cluster, |it| Scope::Namespace(it.clone()));
        Some(Limit { name: LimitName::new(&name)?, scope, source: Source::Read(allowance) })
    };
    let all = [("quota", quota), ("budget", budget)];
    let there = all.into_iter().filter_map(|(what, allowance)| Some((what, allowance?)));
    there.filter_map(limit).collect()
}

fn kinds(
    path: &str,
    limits: &Limits,
    written: &BTreeMap<String, Option<u32>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<Accelerator, u32> {
    let mut kinds = BTreeMap::new();
    for (name, gpus) in written {
        let path = join(path, name);
        let rule = "must be the name of an accelerator, such as H100";
        let text = checks.text(&path, Some(name), names::is_label_text, rule);
        if gpus.is_none() {
            checks.problems.missing(&path, "must be a number of accelerators");
        }
        let gpus = checks.number(&path, *gpus, &GPUS);
        let Some((kind, gpus)) = text.and_then(Accelerator::new).zip(gpus) else { continue };
        let kind = limits.named(&kind);
        if kinds.insert(kind.clone(), gpus).is_some() {
            checks.problems.error_at(path, format!("is {kind}, which is in the list already"));
        }
    }
    kinds
}

fn priority(
    name: &str,
    written: &mut Option<Written<Priority>>,
    known: Option<&[Variant]>,
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
    let serves = |variant: &Variant| variant.spec.model_key() == key;
    if known.is_some_and(|variants| !variants.iter().any(serves)) {
        checks.problems.warning(path, "has no effect, because no variant serves this model");
    }
    Some((key, priority))
}
