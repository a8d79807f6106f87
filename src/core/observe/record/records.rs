//! The records of all replicas, in the order of their keys.

use smallvec::SmallVec;

use crate::fleet::ReplicaKey;
use crate::observe::Inputs;
use crate::observe::record::replica::ReplicaRecord;

/// Records in the order of their keys. Lookups in this order need no search. A tick looks up every
/// replica, and a search among thousands compares a dozen names. Each list has an entry for each
/// replica, so a walk over keys touches no record.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    keys: Vec<ReplicaKey>,
    serials: Vec<Serial>,
    records: Vec<ReplicaRecord>,
    /// True if the listings of the tick have exactly these keys, in this order.
    are_in_listed_order: bool,
    /// The serial number of the newest record.
    newest: Serial,
}

/// The records from one position on.
pub(super) struct RecordsPart<'a> {
    keys: &'a [ReplicaKey],
    serials: &'a [Serial],
    pub(super) records: &'a mut [ReplicaRecord],
    are_in_listed_order: bool,
}

/// A number that no two records ever share.
pub(super) type Serial = u64;

/// Several records.
pub(super) type Serials = SmallVec<[Serial; 6]>;

// === impl Records ===

impl Records {
    /// The number of records.
    pub(super) const fn len(&self) -> usize {
        self.records.len()
    }

    /// Keeps a record for each listed replica, and for no other.
    pub(super) fn keep(&mut self, inputs: &Inputs) {
        let listed = inputs.listings.values().flat_map(|listing| &listing.replicas);
        self.are_in_listed_order = self.keys.iter().eq(listed.clone());
        if self.are_in_listed_order {
            return;
        }

        let mut keys: Vec<&ReplicaKey> = listed.clone().collect();
        keys.sort_unstable();
        keys.dedup();

        let before = std::mem::take(&mut self.keys).into_iter();
        let serials = std::mem::take(&mut self.serials).into_iter();
        let records = std::mem::take(&mut self.records).into_iter();
        let mut known = before.zip(serials.zip(records)).peekable();
        for key in keys {
            while known.next_if(|(known, _)| known < key).is_some() {}
            let (key, (serial, record)) =
                known.next_if(|(known, _)| known == key).unwrap_or_else(|| {
                    self.newest += 1;
                    (key.clone(), (self.newest, ReplicaRecord::default()))
                });
            self.keys.push(key);
            self.serials.push(serial);
            self.records.push(record);
        }

        self.are_in_listed_order = self.keys.iter().eq(listed);
    }

    /// The position of this key's record, which may be `place`.
    pub(super) fn find(&self, key: &ReplicaKey, place: usize) -> Option<usize> {
        find(&self.keys, key, place)
    }

    /// The position of the first record of a listing, if lookups by position are possible. `before`
    /// are the replicas of all earlier listings.
    pub(super) fn start_after(&self, before: usize) -> Option<usize> {
        self.are_in_listed_order.then_some(before)
    }

    /// The records before and from a position on.
    pub(super) fn split_at(&mut self, place: usize) -> [RecordsPart<'_>; 2] {
        let are_in_listed_order = self.are_in_listed_order;
        let (keys, other_keys) = self.keys.split_at(place);
        let (serials, other_serials) = self.serials.split_at(place);
        let (records, other_records) = self.records.split_at_mut(place);
        [
            RecordsPart { keys, serials, records, are_in_listed_order },
            RecordsPart {
                keys: other_keys,
                serials: other_serials,
                records: other_records,
                are_in_listed_order,
            },
        ]
    }
}

// === impl RecordsPart ===

impl RecordsPart<'_> {
    pub(super) fn serial(&self, place: usize) -> Serial {
        self.serials[place]
    }

    pub(super) fn get(&self, key: &ReplicaKey) -> Option<&ReplicaRecord> {
        find(self.keys, key, 0).map(|place| &self.records[place])
    }

    /// The position of a listed key's record. `place` is right if listed keys are looked up in the
    /// order of the records.
    pub(super) fn find_listed(&self, key: &ReplicaKey, place: usize) -> Option<usize> {
        if self.are_in_listed_order { Some(place) } else { find(self.keys, key, place) }
    }

    /// Returns true if these are the keys of the records from `place` on.
    pub(super) fn are_at(&self, place: usize, keys: &[&ReplicaKey]) -> bool {
        let known = self.keys.get(place..).unwrap_or_default();
        self.are_in_listed_order
            || known.len() >= keys.len() && known.iter().zip(keys).all(|(known, key)| known == *key)
    }
}

/// The position of a key, which may be `place`.
fn find(keys: &[ReplicaKey], key: &ReplicaKey, place: usize) -> Option<usize> {
    if keys.get(place) == Some(key) {
        return Some(place);
    }
    keys.binary_search(key).ok()
}
