//! Ordered lists of requests, each of which is in at most one of them: the batch, and the ends of
//! requests by time.
//!
//! Requests join at the end and leave from any position, a hundred thousand times per second. So
//! the lists are linked: nothing is searched and nothing moves. Each list is a ring through its own
//! head, which avoids special cases.

use std::iter;

/// Rings of requests, identified by their indices.
#[derive(Clone, Debug)]
pub(super) struct Rings {
    /// The number of rings.
    heads: usize,
    /// The heads, then the requests.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: usize,
    after: usize,
}

/// One ring with a count of its requests.
#[derive(Clone, Debug)]
pub(super) struct DecodeBatch {
    ring: Rings,
    len: u32,
}

// === impl DecodeBatch ===

impl DecodeBatch {
    pub(super) fn new() -> Self {
        Self { ring: Rings::new(1), len: 0 }
    }

    /// The number of requests.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds a request at the end.
    pub(super) fn push(&mut self, index: usize) {
        self.ring.push(0, index);
        self.len += 1;
    }

    /// Removes a request that is in the batch.
    pub(super) fn remove(&mut self, index: usize) {
        self.ring.remove(index);
        self.len -= 1;
    }

    /// The last request.
    pub(super) fn last(&self) -> Option<usize> {
        self.ring.last(0)
    }

    /// All requests, in the order in which they joined.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        iter::successors(self.ring.first(0), |&index| self.ring.next(index))
    }

    /// The first request, or the request after `index`.
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

    /// Removes a request from its ring.
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
    fn requests_stay_in_the_order_in_which_they_came_when_others_leave() {
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
