//! The trace, and policies beside the one in force.

use std::collections::BTreeSet;

use crate::config::check::Checks;
use crate::config::file::{File, ShadowKeys, TraceKeys};
use crate::config::names;
use crate::config::problem::{Problem, join};
use crate::config::resolve::{Around, resolve_policy};
use crate::config::{Shadow, Trace};
use crate::trace::Limits;
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{self, Written};

/// A policy as written.
type Shadowed = Written<ShadowKeys>;

/// Policies beside the one in force. Each costs as much as that one.
const SHADOWS_MAX: usize = 16;

/// Resolves the section; `None` where nothing is traced.
pub(crate) fn resolve(
    section: Option<&Written<TraceKeys>>,
    checks: &mut Checks<'_>,
) -> Option<Trace> {
    let TraceKeys { dir, max_file_size: Bytes(file_size), max_files: files } =
        settings::resolve(Some(section?), "trace", &mut checks.problems);
    if dir.is_none() {
        checks.problems.missing("trace.dir", "is required");
    }
    let dir = checks.folder_to_write("trace.dir", dir.as_ref())?;
    Some(Trace { dir, limits: Limits { file_size, files } })
}

/// Resolves the policies beside the one in force.
pub(crate) fn resolve_shadows(
    file: &File,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> Vec<Shadow> {
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
        let name_path = join(&path, "name");
        if shadow.name.is_none() {
            checks.problems.missing(&name_path, "is required");
        }
        let name = shadow.name.as_deref();
        let name = checks.text(&name_path, name, names::is_dns_label, names::DNS_LABEL);
        if let Some(name) = name
            && !known.insert(name)
        {
            checks.problems.error(&name_path, "must be no other's name", format!("{name:?}"));
        }
        let overlaid = overlaid(file, shadow);
        let mut own = checks.beside();
        let (policy, _) = resolve_policy(&overlaid, around, &mut own);
        checks.sources.extend(own.sources);
        let (errors, warnings) = own.problems.split();
        // What is wrong with the sections of the policy in force is said there.
        let all = errors.into_iter().chain(warnings);
        for problem in all.filter(|problem| is_written(shadow, &problem.path)) {
            let path = format!("{path}.{}", problem.path);
            checks.problems.take_over(Problem { path, ..problem });
        }
        if let Some(name) = name {
            shadows.push(Shadow { name: name.to_owned(), policy });
        }
    }
    shadows
}

/// The file with the sections of a shadow in the place of its own.
fn overlaid(file: &File, shadow: &Shadowed) -> File {
    let Shadowed {
        name: _,
        observe,
        saturation,
        analysis,
        capacity,
        enforce,
        scale_to_zero,
        pools,
        limits,
    } = shadow.clone();
    File {
        observe: observe.or_else(|| file.observe.clone()),
        saturation: saturation.or_else(|| file.saturation.clone()),
        analysis: analysis.or(file.analysis),
        capacity: capacity.or_else(|| file.capacity.clone()),
        enforce: enforce.or_else(|| file.enforce.clone()),
        scale_to_zero: scale_to_zero.or_else(|| file.scale_to_zero.clone()),
        pools: pools.or_else(|| file.pools.clone()),
        limits: limits.or_else(|| file.limits.clone()),
        ..File::default()
    }
}

/// Whether a problem is with a section that a shadow has itself.
fn is_written(shadow: &Shadowed, path: &str) -> bool {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    match &path[..end] {
        "observe" => shadow.observe.is_some(),
        "saturation" => shadow.saturation.is_some(),
        "analysis" => shadow.analysis.is_some(),
        "capacity" => shadow.capacity.is_some(),
        "enforce" => shadow.enforce.is_some(),
        "scale_to_zero" => shadow.scale_to_zero.is_some(),
        "pools" => shadow.pools.is_some(),
        "limits" => shadow.limits.is_some(),
        _ => false,
    }
}
