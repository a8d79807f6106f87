//! The labels of a sample.

use std::borrow::Cow;

/// One label of a sample, in bytes because few labels are ever read as text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label<'p> {
    /// Its name.
    pub name: Cow<'p, [u8]>,
    /// Its value, unescaped.
    pub value: Cow<'p, [u8]>,
}

impl Label<'_> {
    /// The label with this name.
    pub(super) fn find<'l>(labels: &'l [Self], name: &[u8]) -> Option<&'l Self> {
        labels.iter().find(|label| *label.name == *name)
    }
}
