//! The shadow policies.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::config::check::Checks;
use crate::config::effective::ShadowPolicy;
use crate::config::file::{CapacityKeys, ConfigFile, FileKeys, ScaleToZeroKeys, ShadowKeys};
use crate::config::resolve::policy::{fill, resolve_policy};
use crate::config::resolve::policy_context::PolicyContext;
use plimsoll_core::settings::problem::{Problem, join};
use plimsoll_core::settings::{self, Written};

/// The maximum shadow policies. Each costs as much time as the policy in effect.
const SHADOWS_MAX: usize = 16;

/// Resolves the shadow policies, each with all of its sections.
pub(crate) fn resolve_shadows(
    file: &ConfigFile,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> Vec<(ShadowKeys, ShadowPolicy)> {
    let written = file.shadow.as_deref().unwrap_or_default();
    if written.len() > SHADOWS_MAX {
        let rule = format!("must have at most {SHADOWS_MAX} entries");
        checks.problems.error("shadow", rule, written.len());
        return Vec::new();
    }

    let mut known = BTreeSet::new();
    let mut shadows = Vec::new();
    for (at, shadow) in written.iter().enumerate() {
        let Some(shadow) = shadow else { continue };
        let path = format!("shadow[{at}]");
        let ShadowKeys { name, .. } = settings::resolve(Some(shadow), &path, &mut checks.problems);
        let name_path = join(&path, "name");
        let is_named = shadow.name.is_some() && !checks.problems.refused(&name_path);
        if is_named && !known.insert(name.clone()) {
            checks.problems.error(&name_path, "must be unique", format!("{name:?}"));
        }

        let sections = sections(shadow);
        let overlaid = overlaid(file, &sections);
        let mut own = checks.beside();
        let mut keys = fill(&overlaid, around.wva, &mut own);
        let (policy, _) = resolve_policy(&overlaid, &mut keys, around, &mut own);
        checks.sources.extend(own.sources);
        let (errors, warnings) = own.problems.split();
        for Problem { path: of_section, severity, rule, found, place } in
            errors.into_iter().chain(warnings)
        {
            let end = of_section.find(['.', '[']).unwrap_or(of_section.len());
            // Problems of the other sections are noted with the policy in effect.
            if sections.contains_key(&of_section[..end]) {
                let path = format!("{path}.{of_section}");
                checks.problems.take_over(Problem { path, severity, rule, found, place });
            }
        }

        if is_named {
            shadows.push((effective(&name, keys), ShadowPolicy { name, policy }));
        }
    }

    shadows
}

/// The sections that the shadow sets itself, by their keys.
fn sections(shadow: &Written<ShadowKeys>) -> Map<String, Value> {
    let value = serde_json::to_value(shadow).expect("a file has text keys and finite numbers");
    let keys = value.as_object().cloned().unwrap_or_default();
    keys.into_iter().filter(|(key, section)| key != "name" && !section.is_null()).collect()
}

/// The file with these sections in place of its own.
fn overlaid(file: &ConfigFile, sections: &Map<String, Value>) -> ConfigFile {
    let mut value = serde_json::to_value(file).expect("a file has text keys and finite numbers");
    if let Some(keys) = value.as_object_mut() {
        keys.extend(sections.clone());
    }
    serde_json::from_value(value).expect("a written file is valid")
}

/// The entry with all sections of the policy. Its cards include those from files. Only the policy in
/// effect has wake signals and gateways of pools.
fn effective(name: &str, keys: FileKeys) -> ShadowKeys {
    let capacity = keys.capacity.map(|it| CapacityKeys { card_files: None, ..it });
    let mut pools = keys.pools.unwrap_or_default();
    for pool in pools.values_mut().flatten() {
        pool.gateway = None;
    }

    ShadowKeys {
        name: name.to_owned(),
        observe: Some(keys.observe),
        saturation: Some(keys.saturation),
        analysis: keys.analysis,
        capacity,
        enforce: Some(keys.enforce),
        scale_to_zero: Some(ScaleToZeroKeys { wake: Some(Vec::new()), ..keys.scale_to_zero }),
        pools: Some(pools),
        limits: Some(keys.limits),
    }
}
