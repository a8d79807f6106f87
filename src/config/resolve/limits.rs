//! What may be used, and who comes first.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::config::Variant;
use crate::config::check::Checks;
use crate::config::file;
use crate::config::names;
use crate::config::problem::join;
use crate::config::resolve::saturation::model_key;
use crate::decide::limit::{Allowance, Limit, LimitName, Priority, Scope, Source};
use crate::decide::optimize::Headroom;
use crate::fleet::{Accelerator, ModelKey, Namespace};
use crate::pipeline::limits::{Limits, Watched};
use crate::units::{CostPerHour, Gpus, Weight};

const PATH: &str = "limits";

/// More than any cluster has, and far from what arithmetic could not hold.
const GPUS: RangeInclusive<u32> = 0..=1_000_000;
const BUDGETS: RangeInclusive<f64> = 0.0..=1e12;
const PRIORITIES: RangeInclusive<u32> = 0..=1_000_000;
/// A weight of zero would be a model that gets nothing, which is what a quota is for.
const WEIGHTS: RangeInclusive<f64> = 0.001..=1000.0;

/// What one scope says: a budget, and accelerators by their kind.
type Written = (Option<f64>, Option<BTreeMap<String, Option<u32>>>);

/// Resolves the section. `known` are the variants, where there are no others; `cluster` is whether
/// there is one.
pub(crate) fn resolve(
    section: Option<&file::Limits>,
    (known, cluster): (Option<&[Variant]>, bool),
    checks: &mut Checks<'_>,
) -> Limits {
    let written = section.cloned().unwrap_or_default();
    let file::Limits { budget_per_hour, accelerators, nodes, quotas, names, namespaces, models } =
        written;
    let mut watched = |key: &str, on: Option<bool>| match on {
        Some(true) if !cluster => {
            checks.problems.error_at(join(PATH, key), "needs kubernetes.enabled to be true");
            Watched::Off
        }
        Some(true) => Watched::On,
        Some(false) | None => Watched::Off,
    };
    let (nodes, quotas) = (watched("nodes", nodes), watched("quotas", quotas));
    let names = products(names.unwrap_or_default(), checks);
    let mut limits = Limits { nodes, quotas, names, ..Limits::default() };
    let written = (budget_per_hour, accelerators);
    let configured = limits_of(PATH, (&limits, None), written, checks);
    limits.configured = configured;
    for (name, written) in namespaces.unwrap_or_default() {
        let path = join(&join(PATH, "namespaces"), &name);
        let text = checks.text(&path, Some(&name), names::is_dns_label, names::DNS_LABEL);
        let Some(namespace) = text.and_then(Namespace::new) else { continue };
        let is_there = |variant: &Variant| variant.spec.key.namespace == namespace;
        if known.is_some_and(|variants| !variants.iter().any(is_there)) {
            checks.problems.warning(&path, "has no effect, because no variant is there");
        }
        let file::NamespaceLimits { budget_per_hour, accelerators } = written.unwrap_or_default();
        let written = (budget_per_hour, accelerators);
        let configured = limits_of(&path, (&limits, Some(&namespace)), written, checks);
        limits.configured.extend(configured);
    }
    let models = models.unwrap_or_default();
    let priorities = models
        .into_iter()
        .filter_map(|(name, written)| priority(&name, &written.unwrap_or_default(), known, checks));
    Limits { priorities: priorities.collect(), ..limits }
}

fn products(
    written: BTreeMap<String, Option<String>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<Accelerator, Accelerator> {
    let mut products = BTreeMap::new();
    for (product, name) in written {
        let path = join(&join(PATH, "names"), &product);
        if name.is_none() {
            checks.problems.missing(&path, "must be the name of an accelerator, such as H100");
        }
        let rule = "must not be empty, nor have spaces at the ends or control characters";
        let text = checks.text(&path, Some(&product), names::is_label_text, rule);
        let name = checks.text(&path, name.as_deref(), names::is_label_text, rule);
        products.extend(text.and_then(Accelerator::new).zip(name.and_then(Accelerator::new)));
    }
    products
}

/// The limits of a namespace's variants, or of all.
fn limits_of(
    path: &str,
    (limits, namespace): (&Limits, Option<&Namespace>),
    (budget, accelerators): Written,
    checks: &mut Checks<'_>,
) -> Vec<Limit> {
    let budget = checks.number(&join(path, "budget_per_hour"), budget, &BUDGETS);
    let budget = budget.and_then(CostPerHour::new).map(Allowance::Budget);
    let quota =
        accelerators.map(|written| kinds(&join(path, "accelerators"), limits, &written, checks));
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
) -> Allowance {
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
        if kinds.insert(kind.clone(), Headroom::Limited(Gpus::new(gpus))).is_some() {
            checks.problems.error_at(path, format!("is {kind}, which is in the list already"));
        }
    }
    Allowance::Kinds(kinds)
}

fn priority(
    name: &str,
    written: &file::Standing,
    known: Option<&[Variant]>,
    checks: &mut Checks<'_>,
) -> Option<(ModelKey, Priority)> {
    let path = join(&join(PATH, "models"), name);
    let file::Standing { priority, weight, guaranteed } = *written;
    let class = checks.number(&join(&path, "priority"), priority, &PRIORITIES);
    let weight = checks.number(&join(&path, "weight"), weight, &WEIGHTS).and_then(Weight::new);
    let guaranteed = checks.number(&join(&path, "guaranteed"), guaranteed, &GPUS);
    let Some(key) = model_key(name) else {
        let rule = "must be named MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
        checks.problems.error_at(path, rule);
        return None;
    };
    let serves = |variant: &Variant| variant.spec.model_key() == key;
    if known.is_some_and(|variants| !variants.iter().any(serves)) {
        checks.problems.warning(path, "has no effect, because no variant serves this model");
    }
    let usual = Priority::default();
    let priority = Priority {
        class: class.unwrap_or(usual.class),
        weight: weight.unwrap_or(usual.weight),
        guaranteed: guaranteed.map_or(usual.guaranteed, Gpus::new),
    };
    Some((key, priority))
}
