//! What may be used, as a file says it.

use std::collections::BTreeMap;

use crate::config::file::{LimitKeys, NamespaceLimitKeys};
use plimsoll_core::decide::limit::{Allowance, Limit, Scope};
use plimsoll_core::decide::optimize::Headroom;
use plimsoll_core::pipeline::limits::Limits;
use plimsoll_core::settings::Setting;

/// The section that gives these limits.
pub(crate) fn section(limits: &Limits) -> LimitKeys {
    let Limits { nodes, quotas, names, configured, priorities } = limits;
    let mut all = NamespaceLimitKeys::default();
    let mut namespaces: BTreeMap<String, NamespaceLimitKeys> = BTreeMap::new();
    for Limit { name: _, scope, source } in configured {
        let there = match scope {
            Scope::Cluster => &mut all,
            Scope::Namespace(name) => namespaces.entry(name.to_string()).or_default(),
            // Nothing in a file becomes one of these.
            Scope::Variants(_) => continue,
        };
        match source.allowance() {
            Some(Allowance::Budget(budget)) => there.budget_per_hour = Some(*budget),
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
    let NamespaceLimitKeys { budget_per_hour, accelerators } = all;
    LimitKeys {
        budget_per_hour,
        accelerators,
        nodes: *nodes,
        quotas: *quotas,
        names: names.iter().map(|(it, name)| (it.to_string(), Some(name.to_string()))).collect(),
        namespaces: namespaces.into_iter().map(|(name, it)| (name, it.written())).collect(),
        models: priorities.iter().map(|(key, it)| (key.to_string(), it.written())).collect(),
    }
}
