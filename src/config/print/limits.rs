//! What may be used, as a file says it.

use std::collections::BTreeMap;

use crate::config::file;
use crate::decide::limit::{Allowance, Limit, Priority, Scope};
use crate::decide::optimize::Headroom;
use crate::pipeline::limits::{Limits, Watched};

/// The section that gives these limits.
pub(crate) fn section(limits: &Limits) -> file::Limits {
    let Limits { nodes, quotas, names, configured, priorities } = limits;
    let mut all = file::NamespaceLimits::default();
    let mut namespaces: BTreeMap<String, Option<file::NamespaceLimits>> = BTreeMap::new();
    for Limit { name: _, scope, source } in configured {
        let there = match scope {
            Scope::Cluster => &mut all,
            Scope::Namespace(name) => {
                namespaces.entry(name.to_string()).or_default().get_or_insert_default()
            }
            // Nothing in a file becomes one of these.
            Scope::Variants(_) => continue,
        };
        match source.allowance() {
            Some(Allowance::Budget(budget)) => there.budget_per_hour = Some(budget.per_hour()),
            Some(Allowance::Kinds(kinds)) => {
                let gpus = |headroom: &Headroom| match headroom {
                    Headroom::Limited(gpus) => Some(gpus.count()),
                    Headroom::Unlimited => None,
                };
                let kinds = kinds.iter().map(|(kind, most)| (kind.to_string(), gpus(most)));
                there.accelerators = Some(kinds.collect());
            }
            // Nothing in a file becomes one of these.
            Some(Allowance::Total(_) | Allowance::Nodes(_)) | None => {}
        }
    }
    let file::NamespaceLimits { budget_per_hour, accelerators } = all;
    let models = priorities.iter().map(|(key, priority)| {
        let Priority { class, weight, guaranteed } = *priority;
        let standing = file::Standing {
            priority: Some(class),
            weight: Some(weight.weight()),
            guaranteed: Some(guaranteed.count()),
        };
        (key.to_string(), Some(standing))
    });
    let models = Some(models.collect());
    let names = names.iter().map(|(product, name)| (product.to_string(), Some(name.to_string())));
    file::Limits {
        budget_per_hour,
        accelerators,
        nodes: Some(*nodes == Watched::On),
        quotas: Some(*quotas == Watched::On),
        names: Some(names.collect()),
        namespaces: Some(namespaces),
        models,
    }
}
