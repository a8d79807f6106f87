//! Requests in order, each in at most one of several lists: what a batch is kept in, and what ends
//! when.
//!
//! Requests join at the end and leave from anywhere, a hundred thousand times a second, so lists are
//! linked: nothing is looked for and nothing moves. Each is a ring through a head of its own, so
//! that no place in it is a special case.

use std::iter;

/// Rings of requests, which are named by their indices.
#[derive(Clone, Debug)]
pub(super) struct Rings {
    /// How many rings there are.
    heads: usize,
    /// The heads, then the requests.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: usize,
    after: usize,
}

/// One ring, whose requests are counted.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    ring: Rings,
    len: u32,
}

// === impl Batch ===

impl Batch {
    pub(super) fn new() -> Self {
        Self { ring: Rings::new(1), len: 0 }
    }

    /// How many requests it has.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds a request at the end.
    pub(super) fn push(&mut self, index: usize) {
        self.ring.push(0, index);
        self.len += 1;
    }

    /// Takes out a request that is in it.
    pub(super) fn remove(&mut self, index: usize) {
        self.ring.remove(index);
        self.len -= 1;
    }

    /// The last request.
    pub(super) fn last(&self) -> Option<usize> {
        self.ring.last(0)
    }

    /// All requests, in the order in which they came.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        iter::successors(self.ring.first(0), |&index| self.ring.next(index))
    }

    /// The first request, or the one after another.
    pub(super) fn after(&self, index: Option<usize>) -> Option<usize> {
        index.map_or_else(|| self.ring.first(0), |index| self.ring.next(index))
    }
}

// === impl Rings ===

impl Rings {
    /// Empty rings.
    pub(super) fn new(heads: usize) -> Self {
        Self { heads, links: (0..heads).map(|head| Link { before: head, after: head }).collect() }
    }

    /// Adds a request at the end of a ring; it must be in none.
    pub(super) fn push(&mut self, ring: usize, index: usize) {
        let node = self.heads + index;
        if node >= self.links.len() {
            self.links.resize(node + 1, Link { before: node, after: node });
        }
        let before = self.links[ring].before;
        self.links[node] = Link { before, after: ring };
        self.links[before].after = node;
        self.links[ring].before = node;
    }

    /// Takes a request out of the ring that it is in.
    pub(super) fn remove(&mut self, index: usize) {
        let Link { before, after } = self.links[self.heads + index];
        self.links[before].after = after;
        self.links[after].before = before;
    }

    /// The first request of a ring.
    pub(super) fn first(&self, ring: usize) -> Option<usize> {
        self.links[ring].after.checked_sub(self.heads)
    }

    /// The last request of a ring.
    pub(super) fn last(&self, ring: usize) -> Option<usize> {
        self.links[ring].before.checked_sub(self.heads)
    }

    /// The request after another in the same ring.
    pub(super) fn next(&self, index: usize) -> Option<usize> {
        self.links[self.heads + index].after.checked_sub(self.heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rings: &Rings, ring: usize) -> Vec<usize> {
        iter::successors(rings.first(ring), |&index| rings.next(index)).collect()
    }

    #[test]
    fn requests_stay_in_the_order_in_which_they_came_whoever_leaves() {
        let mut rings = Rings::new(2);
        for index in [4, 0, 2, 3] {
            rings.push(index % 2, index);
        }
        assert_eq!((all(&rings, 0), all(&rings, 1)), (vec![4, 0, 2], vec![3]));
        rings.remove(0);
        rings.remove(3);
        assert_eq!((all(&rings, 0), all(&rings, 1)), (vec![4, 2], vec![]));
        rings.push(0, 0);
        assert_eq!((all(&rings, 0), rings.last(0)), (vec![4, 2, 0], Some(0)));
        assert_eq!(rings.last(1), None);
    }
}
