//! Why a signal that counts requests does not say how many there are.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::units::Seconds;

/// What is missing of what a signal should say.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unheard {
    /// It was never read.
    #[display("was never read")]
    Never,
    /// It was read last so long ago.
    #[display("was not read for {_0:.0} s")]
    For(Seconds),
    /// It is read, and no number of the model is in it.
    #[display("is read and says no number of this model")]
    NoNumber,
    /// It is read, and what it says is dated so far ahead.
    #[display("is read and dates what it says {_0:.0} s ahead")]
    Ahead(Seconds),
}
