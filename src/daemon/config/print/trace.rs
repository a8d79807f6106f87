//! The keys of the trace and of the policies alongside the one in effect.

use crate::config::file::{Analysis, ShadowKeys, TraceKeys};
use crate::config::print::{capacity_section, limits, pools, saturation_keys, zero_keys};
use crate::config::{Shadow, Trace};
use crate::trace::Limits;
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{Setting, Written};

/// The section that gives this trace.
pub(crate) fn section(trace: &Trace) -> TraceKeys {
    let Trace { dir, limits: Limits { file_size, files } } = trace;
    TraceKeys { dir: Some(dir.clone()), max_file_size: Bytes(*file_size), max_files: *files }
}

/// The entry that gives this shadow: all of its sections.
pub(crate) fn shadow(shadow: &Shadow) -> Written<ShadowKeys> {
    let Shadow { name, policy } = shadow;
    let keys = ShadowKeys {
        name: Some(name.clone()),
        observe: Some(observe(policy)),
        saturation: Some(saturation_keys(policy)),
        analysis: Some(analysis(policy)),
        capacity: None,
        enforce: Some(policy.behavior.clone()),
        scale_to_zero: Some(zero_keys(&policy.zero)),
        pools: Some(pools::section(&policy.pools)),
        limits: Some(limits::section(&policy.limits)),
    };
    let capacity = policy.sizing.as_ref().map(capacity_section);
    Written::<ShadowKeys> { capacity, ..keys.written().unwrap_or_default() }
}

pub(crate) fn observe(policy: &Policy) -> Observe {
    Observe { window: policy.window, stale_after: policy.stale_after }
}

pub(crate) fn analysis(policy: &Policy) -> Analysis {
    match policy.sizing {
        Some(_) => Analysis::Capacity,
        None => Analysis::Saturation,
    }
}
