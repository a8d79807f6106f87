//! Settings: each key of the configuration is declared once, in the stage that reads it.
//!
//! A declaration has the name, type, default, range and description of each key of a section. From
//! it, [`settings!`](crate::settings!) generates:
//!
//! - the resolved type with its defaults,
//! - the type of the section as written, in which every key is optional,
//! - the checks that convert the second into the first, and the reverse conversion for printing,
//! - the JSON Schema, the source of the documents and of the list of keys that need a restart.
//!
//! ```text
//! settings! {
//!     /// Growth seen before is expected again.
//!     pub optional Growth {
//!         /// Share of past growths that the expected one is not below.
//!         quantile: Fraction = 0.9, in 0.0..=1.0;
//!     }
//! }
//! ```
//!
//! - A `struct` is a section that always applies.
//! - An `optional` section can be switched off with the key `enabled`. It is an `Option` in the
//!   parent section.
//! - A section without a default of its own in the parent section has the defaults of its keys.
//! - A field whose name differs from its key has the key's name after `as`.
//! - Fields after `..` are not keys: another stage sets them.
//! - A key can be `required`, followed by the rule to report when it is missing, if that differs
//!   from `is required`. Its default then stands in its place. A missing required section reports
//!   its own required keys, as if it were written and empty.
//! - `needs restart` after a key means that the running daemon keeps the value that it started
//!   with.

#[macro_use]
mod declare;

mod allowed;
pub mod problem;
mod schema;
mod setting;
pub mod values;
pub mod written;

use crate::settings::problem::Problems;

pub use crate::settings::allowed::{Allowed, TextRule, above_zero, text};
pub use crate::settings::schema::{MAXIMUM, MINIMUM, RESTART, SectionKeys};
pub use crate::settings::setting::{Setting, Written};
pub use crate::settings::values::{hours, millis, minutes, secs};

/// An optional section that is on by default.
#[must_use]
pub fn on<T: Default>() -> Option<T> {
    Some(T::default())
}

/// Reads the section at a path. Missing keys keep their usual values.
pub fn resolve_over<S: Setting>(
    written: Option<&S::Written>,
    usual: &S,
    path: &str,
    problems: &mut Problems,
) -> S {
    S::resolve(written, usual, None, path, problems)
}

/// Reads the section at a path.
pub fn resolve<S: Setting + Default>(
    written: Option<&S::Written>,
    path: &str,
    problems: &mut Problems,
) -> S {
    resolve_over(written, &S::default(), path, problems)
}
