//! The numbers that outlive a restart: which are taken over, and how they are written.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use tracing::{error, info, warn};

use crate::fleet::VariantKey;
use crate::publish::{Published, state};

/// How long after it was last in force a number is taken over. In a longer absence the numbers are
/// served by nobody, and whoever has scaled by hand since knows better; beginning without a number
/// holds every replica count.
pub(crate) const RESTORE_MAX: SignedDuration = SignedDuration::from_mins(15);

/// The numbers of before a restart that can be in force, by their variants.
pub(crate) fn in_force(
    now: Timestamp,
    saved: Vec<state::Saved>,
) -> BTreeMap<VariantKey, state::Saved> {
    let recent = |it: &state::Saved| now.duration_since(it.written) <= RESTORE_MAX;
    let (recent, old): (Vec<_>, Vec<_>) = saved.into_iter().partition(recent);
    if let Some(latest) = old.iter().map(|it| it.written).max() {
        let variants = old.len();
        warn!(variants, %latest, "Numbers of before the restart are too old to be in force");
    }
    if !recent.is_empty() {
        info!(variants = recent.len(), "The numbers of before the restart are in force");
    }
    recent.into_iter().map(|saved| (saved.variant.clone(), saved)).collect()
}

/// Writes the numbers in force and those of variants that are not seen yet; a failure is logged.
pub(crate) fn write_state(
    path: &Path,
    now: Timestamp,
    published: &Published,
    unseen: &[state::Saved],
) {
    if let Err(problem) = state::save(path, now, published, unseen) {
        error!(error = %format!("{:#}", anyhow::Error::new(problem)), "The state file cannot be written");
    }
}
