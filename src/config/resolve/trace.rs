//! The trace, and policies beside the one in force.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::config::check::Checks;
use crate::config::file::{self, File};
use crate::config::names;
use crate::config::problem::{Problem, join};
use crate::config::resolve::{Around, resolve_policy};
use crate::config::{Shadow, Trace};
use crate::trace::Limits;

/// An hour of a hundred replicas that are scraped each second.
const FILE_SIZE: u64 = 64 << 20;
const FILE_SIZES: RangeInclusive<u64> = (1 << 20)..=(1 << 40);
/// Together a gibibyte, which is below what a pod may usually write.
const FILES: u32 = 16;
const FILE_COUNTS: RangeInclusive<u32> = 2..=100_000;

/// Policies beside the one in force. Each costs as much as that one.
const SHADOWS_MAX: usize = 16;

/// Resolves the section; `None` where nothing is traced.
pub(crate) fn resolve(section: Option<&file::Trace>, checks: &mut Checks<'_>) -> Option<Trace> {
    let file::Trace { dir, max_file_size, max_files } = section?;
    let path = "trace.max_file_size";
    let file_size = checks.size(path, *max_file_size, &FILE_SIZES).map(|size| size as u64);
    let files = checks.number("trace.max_files", *max_files, &FILE_COUNTS).unwrap_or(FILES);
    if dir.is_none() {
        checks.problems.missing("trace.dir", "is required");
    }
    let dir = checks.folder_to_write("trace.dir", dir.as_ref())?;
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    Some(Trace { dir, limits: Limits { file_size: file_size.unwrap_or(FILE_SIZE), files } })
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
fn overlaid(file: &File, shadow: &file::Shadow) -> File {
    let file::Shadow {
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
fn is_written(shadow: &file::Shadow, path: &str) -> bool {
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
