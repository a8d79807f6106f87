//! Why a signal that counts requests does not say how many there are.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Seconds;

/// What is missing of what a signal should say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unheard {
    /// It was never read.
    Never,
    /// It was read last so long ago.
    For(Seconds),
    /// It is read, and no number of the model is in it.
    NoNumber,
    /// It is read, and what it says is dated so far ahead.
    Ahead(Seconds),
}

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("was never read"),
            Self::For(age) => write!(f, "was not read for {:.0} s", age.seconds()),
            Self::NoNumber => f.write_str("is read and says no number of this model"),
            Self::Ahead(ahead) => {
                write!(f, "is read and dates what it says {:.0} s ahead", ahead.seconds())
            }
        }
    }
}
