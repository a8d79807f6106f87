//! The reason why a signal that counts requests has no usable count.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::units::Seconds;

/// The reason why a signal has no usable count.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusableSignal {
    /// The signal was never read.
    #[display("was never read")]
    Never,
    /// The last reading is this old.
    #[display("was not read for {_0:.0} s")]
    For(Seconds),
    /// The signal is read and has no count for the model.
    #[display("is read and says no number of this model")]
    NoNumber,
    /// The signal is read and its timestamp lies this far in the future.
    #[display("is read and dates what it says {_0:.0} s ahead")]
    Ahead(Seconds),
}
