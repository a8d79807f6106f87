//! Where variants are discovered.

use crate::config::Discovery;
use crate::config::check::Checks;
use crate::config::file;
use crate::config::names;
use crate::config::problem::join;
use crate::fleet::Namespace;

/// Resolves the section; `None` where variants are not discovered.
pub(crate) fn resolve(section: file::Discovery, checks: &mut Checks<'_>) -> Option<Discovery> {
    let file::Discovery { enabled, namespaces, selector, wva } = section;
    let path = |key| join("kubernetes.discovery", key);
    let mut resolved: Vec<Namespace> = Vec::new();
    for (at, namespace) in namespaces.as_deref().unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{at}]", path("namespaces"));
        let text = checks.text(&path, namespace.as_deref(), names::is_dns_label, names::DNS_LABEL);
        let Some(namespace) = text.and_then(Namespace::new) else { continue };
        if resolved.contains(&namespace) {
            checks.problems.warning(path, "is in the list already");
        } else {
            resolved.push(namespace);
        }
    }
    let rule = "must be a label selector, such as \"team=chat,tier in (gold, silver)\"";
    let selector = checks.text(&path("selector"), selector.as_deref(), names::is_selector, rule);
    let selector = selector.map(ToOwned::to_owned);
    let enabled = enabled.unwrap_or(false);
    let wva = wva.unwrap_or(true);
    let written =
        [("namespaces", !resolved.is_empty()), ("selector", selector.is_some()), ("wva", !wva)];
    for (key, _) in written.iter().filter(|(_, written)| *written && !enabled) {
        let rule = "has no effect, because kubernetes.discovery.enabled is not true";
        checks.problems.warning(path(key), rule);
    }
    enabled.then_some(Discovery { namespaces: resolved, selector, wva })
}
