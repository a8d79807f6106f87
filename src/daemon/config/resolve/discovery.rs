//! Namespaces and objects in which variants are discovered.

use crate::config::Discovery;
use crate::config::check::Checks;
use crate::config::file::DiscoveryKeys;
use crate::config::problem::join;
use plimsoll_core::fleet::Namespace;
use plimsoll_core::settings::Written;

const PATH: &str = "kubernetes.discovery";

/// Completes the section; `None` if variants are not discovered.
pub(crate) fn resolve(
    written: Option<&Written<DiscoveryKeys>>,
    keys: DiscoveryKeys,
    checks: &mut Checks<'_>,
) -> Option<Discovery> {
    let DiscoveryKeys { enabled, selector, wva, .. } = keys;
    let problems = &mut checks.problems;
    let mut namespaces: Vec<Namespace> = Vec::new();
    let listed = written.and_then(|it| it.namespaces.as_deref()).unwrap_or_default();
    for (at, namespace) in listed.iter().enumerate() {
        let path = format!("{PATH}.namespaces[{at}]");
        let text = namespace.as_deref().filter(|_| !problems.refused(&path));
        let Some(namespace) = text.and_then(Namespace::new) else { continue };
        if namespaces.contains(&namespace) {
            problems.warning(path, "is in the list already");
        } else {
            namespaces.push(namespace);
        }
    }

    let written =
        [("namespaces", !namespaces.is_empty()), ("selector", selector.is_some()), ("wva", !wva)];
    for (key, _) in written.iter().filter(|(_, written)| *written && !enabled) {
        let rule = "has no effect, because kubernetes.discovery.enabled is not true";
        problems.warning(join(PATH, key), rule);
    }
    enabled.then_some(Discovery { namespaces, selector, wva })
}
