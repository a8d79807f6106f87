//! The trace and the policies beside the one in force, as a file says them.

use crate::config::print::{capacity_section, limits, pools, saturation_section, zero_section};
use crate::config::written::WrittenSize;
use crate::config::{Shadow, Trace, file};
use crate::observe::policy::Observe;
use crate::pipeline::Policy;
use crate::settings::{Setting, Written};
use crate::trace::Limits;

/// The section that gives this trace.
pub(crate) fn section(trace: &Trace) -> file::Trace {
    let Trace { dir, limits: Limits { file_size, files } } = trace;
    file::Trace {
        dir: Some(dir.clone()),
        max_file_size: Some(WrittenSize(*file_size)),
        max_files: Some(u32::try_from(*files).unwrap_or(u32::MAX)),
    }
}

/// The entry that gives this shadow: all of its sections.
pub(crate) fn shadow(shadow: &Shadow) -> file::Shadow {
    let Shadow { name, policy } = shadow;
    file::Shadow {
        name: Some(name.clone()),
        observe: observe(policy),
        saturation: saturation_section(policy),
        analysis: Some(analysis(policy)),
        capacity: policy.sizing.as_ref().map(capacity_section),
        enforce: policy.behavior.written(),
        scale_to_zero: Some(zero_section(&policy.zero, &[])),
        pools: Some(pools::section(&policy.pools)),
        limits: Some(limits::section(&policy.limits)),
    }
}

pub(crate) fn observe(policy: &Policy) -> Option<Written<Observe>> {
    Observe { window: policy.window, stale_after: policy.stale_after }.written()
}

pub(crate) fn analysis(policy: &Policy) -> file::Analysis {
    match policy.sizing {
        Some(_) => file::Analysis::Capacity,
        None => file::Analysis::Saturation,
    }
}
