//! Makes the shared document fit: the namespaces that take most give way first.
//!
//! The document has a limit, and namespaces belong to different people. One namespace with many
//! variants must not take from the others their reasons, and never their desired replicas. So each
//! namespace has a detail of its own, and the largest one is shortened first, again and again, until
//! the estimate fits. Only if every namespace has nothing left but its desired replicas, the largest
//! ones leave out variants too, new ones before those that are in effect.
//!
//! The size after compression is not a sum over namespaces. It is estimated from the sizes that they
//! have when each is compressed alone, and then measured. Each attempt is shorter than the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::publish::PublishedDecision;
use crate::publish::state::shared::error::SharedError;
use crate::publish::state::shared::line::{ShareDetail, SharedLine};
use crate::publish::state::shared::packed::{UNPACKED_MAX, pack};
use plimsoll_core::fleet::{Namespace, VariantKey};
use plimsoll_core::pipeline::saved::VariantMemory;

/// The percentage of the estimated room that an attempt uses, because the omitted part may have
/// been compressed better than what stays.
const CAUTION_PERCENT: usize = 95;

/// The largest document that is written, before its compression. It bounds the time that packing
/// takes.
const WRITTEN_MAX: usize = UNPACKED_MAX / 2;

/// The end of a document without decisions, between whose brackets they belong.
const END_OF_LIST: &str = "]}";

/// The attempts after which the document is refused. The first estimate is nearly always right.
const ATTEMPTS_MAX: usize = 16;

/// A decision to share.
#[derive(Clone, Copy, Debug)]
pub struct ShareEntry<'a> {
    /// The decision.
    pub decided: &'a PublishedDecision,
    /// The memory of its variant.
    pub memory: Option<&'a VariantMemory>,
    /// True if the last document has the variant.
    pub in_effect: bool,
}

/// A document that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedDecisions {
    /// The compressed document.
    pub packed: Vec<u8>,
    /// The number of variants by the detail with which the document has them.
    pub variants: BTreeMap<ShareDetail, usize>,
    /// The variants whose desired replicas found no room.
    pub left_out: BTreeSet<VariantKey>,
}

/// The lines of a namespace.
struct NamespaceShare<'a> {
    /// The instant at which the document is written.
    elapsed: Duration,
    detail: ShareDetail,
    /// Those in effect first: the last ones are left out first.
    entries: Vec<ShareEntry<'a>>,
    lines: Vec<Vec<u8>>,
    measure: LineMeasure,
    /// The size of the lines.
    size: usize,
}

/// The way in which lines are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineMeasure {
    /// As text.
    Text,
    /// Compressed, without the lines of other namespaces.
    Packed,
}

/// Shortens the decisions at the instant `elapsed` until they fit. `empty` is the document without
/// decisions, which ends with their empty list.
pub(super) fn fit<'a>(
    elapsed: Duration,
    entries: impl IntoIterator<Item = ShareEntry<'a>>,
    empty: &str,
    bytes_max: usize,
) -> Result<PackedDecisions, SharedError> {
    let mut shares = shares(elapsed, entries)?;
    let mut left_out = BTreeSet::new();
    while total(&shares) > WRITTEN_MAX {
        shorten(&mut shares, WRITTEN_MAX, &mut left_out)?;
    }

    let mut bytes = 0;
    for _ in 0..ATTEMPTS_MAX {
        let packed = pack(&document(empty, &shares)).map_err(SharedError::Packing)?;
        bytes = packed.len();
        if bytes <= bytes_max {
            return Ok(PackedDecisions { packed, variants: by_detail(&shares), left_out });
        }

        for share in &mut shares {
            share.measure(LineMeasure::Packed)?;
        }
        let room = total(&shares).saturating_mul(bytes_max) / bytes;
        shorten(&mut shares, room * CAUTION_PERCENT / 100, &mut left_out)?;
    }

    let variants = shares.iter().map(|share| share.entries.len()).sum();
    Err(SharedError::TooLarge { variants, bytes, bytes_max })
}

/// Puts the lines into the document.
fn document(empty: &str, shares: &[NamespaceShare<'_>]) -> Vec<u8> {
    let lines: Vec<&[u8]> = shares.iter().flat_map(NamespaceShare::lines).collect();
    let (head, end) = empty.split_at(empty.len() - END_OF_LIST.len());

    [head.as_bytes(), &lines.join(&b','), end.as_bytes()].concat()
}

/// Groups the decisions by namespace, in full detail.
fn shares<'a>(
    elapsed: Duration,
    entries: impl IntoIterator<Item = ShareEntry<'a>>,
) -> Result<Vec<NamespaceShare<'a>>, SharedError> {
    let mut grouped: BTreeMap<&Namespace, Vec<ShareEntry<'a>>> = BTreeMap::new();
    for entry in entries {
        let namespace = &entry.decided.decision.variant.namespace;
        grouped.entry(namespace).or_default().push(entry);
    }

    let mut shares = Vec::with_capacity(grouped.len());
    for mut entries in grouped.into_values() {
        entries.sort_by_key(|entry| !entry.in_effect);
        let detail = ShareDetail::Whole;
        let measure = LineMeasure::Text;
        let lines = Vec::new();
        let mut share = NamespaceShare { elapsed, detail, entries, lines, measure, size: 0 };
        share.write(detail)?;
        shares.push(share);
    }
    Ok(shares)
}

/// Shortens the largest namespace, again and again, until all fit into `room`. Leaves out variants
/// only if no namespace can be shortened.
fn shorten(
    shares: &mut [NamespaceShare<'_>],
    room: usize,
    left_out: &mut BTreeSet<VariantKey>,
) -> Result<(), SharedError> {
    if shares.iter().all(|share| share.detail.shorter().is_none()) {
        return leave_out(shares, room, left_out);
    }

    let mut size = total(shares);
    while size > room {
        let shortenable = shares.iter_mut().filter(|share| share.detail.shorter().is_some());
        let Some(largest) = shortenable.max_by_key(|share| share.size) else { break };
        size -= largest.size;
        largest.write(largest.detail.shorter().unwrap_or(ShareDetail::Codes))?;
        size += largest.size;
    }

    Ok(())
}

/// Cuts the largest namespaces to a common size, so that all fit into `room`.
fn leave_out(
    shares: &mut [NamespaceShare<'_>],
    room: usize,
    left_out: &mut BTreeSet<VariantKey>,
) -> Result<(), SharedError> {
    let mut sizes: Vec<usize> = shares.iter().map(|share| share.size).collect();
    let size_max = common_size(&mut sizes, room);

    for share in shares.iter_mut().filter(|share| share.size > size_max) {
        let kept = share.lines.len() * size_max / share.size;
        share.lines.truncate(kept);
        let cut = share.entries.drain(kept..);
        left_out.extend(cut.map(|entry| entry.decided.decision.variant.clone()));
        share.measure(share.measure)?;
    }
    Ok(())
}

/// Returns the largest size at which sizes that are cut to it fit into `room`. Those that are
/// smaller keep their own.
fn common_size(sizes: &mut [usize], room: usize) -> usize {
    sizes.sort_unstable();
    let mut left = room;

    for (index, size) in sizes.iter().enumerate() {
        let even = left / (sizes.len() - index);
        if *size > even {
            return even;
        }
        left -= size;
    }
    usize::MAX
}

fn total(shares: &[NamespaceShare<'_>]) -> usize {
    shares.iter().map(|share| share.size).sum()
}

fn by_detail(shares: &[NamespaceShare<'_>]) -> BTreeMap<ShareDetail, usize> {
    let mut variants: BTreeMap<ShareDetail, usize> =
        ShareDetail::ALL.iter().map(|detail| (*detail, 0)).collect();
    for share in shares {
        *variants.entry(share.detail).or_default() += share.entries.len();
    }

    variants
}

// === impl NamespaceShare ===

impl NamespaceShare<'_> {
    /// Writes the lines in this detail.
    fn write(&mut self, detail: ShareDetail) -> Result<(), SharedError> {
        self.detail = detail;
        self.lines.clear();
        for ShareEntry { decided, memory, in_effect: _ } in &self.entries {
            let line = SharedLine::told(self.elapsed, decided, *memory, detail)?;
            self.lines.push(serde_json::to_vec(&line).map_err(SharedError::Shape)?);
        }

        self.measure(self.measure)
    }

    /// Measures the lines in this way, from here on.
    fn measure(&mut self, measure: LineMeasure) -> Result<(), SharedError> {
        self.measure = measure;
        self.size = match measure {
            LineMeasure::Text => self.lines.iter().map(Vec::len).sum(),
            LineMeasure::Packed => pack(&self.lines.concat()).map_err(SharedError::Packing)?.len(),
        };

        Ok(())
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_cut_to_the_largest_that_fits_and_small_ones_keep_theirs() {
        let check = |mut sizes: Vec<usize>, room, expect| {
            assert_eq!(common_size(&mut sizes, room), expect, "{sizes:?} in {room}");
        };
        check(vec![10, 20, 30], 60, usize::MAX);
        check(vec![100, 10, 20], 60, 30);
        check(vec![100, 100, 10], 60, 25);
        check(vec![100, 100], 0, 0);
        check(vec![], 0, usize::MAX);
    }
}
