//! The rules of other programs, for comparison with their own answers in `vectors`.
//!
//! Nothing of Plimsoll runs them. Each program has its folder, and its rules lean only on the
//! vocabulary of the core (`units`, `fleet`, reports and candidates), so that they stay as they are
//! when the core's own rules change.

pub(crate) mod cluster_autoscaler;
pub(crate) mod seldon;
pub(crate) mod wva;
