//! A server's budget: connections in a TLS handshake, of strangers and of verified peers, and
//! response bytes that wait to be written.
//!
//! A connection without TLS starts as a stranger. Strangers have few slots in total and fewer per
//! address, so no peer can use up a server that others need. A new connection never waits and is
//! never refused: if no slot is free, the budget closes another stranger instead. It takes the
//! oldest connection of the address with the most connections. A kubelet with its single probe is
//! therefore closed only after every other address is down to one connection and as many newer ones
//! have arrived as there are slots.
//!
//! A connection with TLS starts in a handshake, whose slots have the same rules. So strangers
//! cannot close the connection of an API server before it could show its certificate, unless they
//! open more connections than there are such slots within the milliseconds of its handshake.
//! [`ConnectionSlot::handshaken`] then moves it to the strangers, or to the verified peers, whose
//! slots no stranger can take. [`ConnectionSlot::promote`] moves a peer that is verified later.
//!
//! The third limit is for slow readers. A response stays in memory until its last byte is written,
//! so the budget counts these bytes. Above the limit it closes the connection with the oldest
//! unwritten response. A peer that reads at a normal speed is done long before its response is the
//! oldest.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use tokio_util::sync::CancellationToken;

use crate::server::kept::kept_with;
use crate::server::shed::{ShedConnections, ShedKind};

/// Responses up to this size are not counted as unwritten, which keeps probes cheap. A thousand of
/// them have 4 MB.
const SMALL_BODY: usize = 4096;

/// The limits of a [`ConnectionBudget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Connections in a TLS handshake.
    pub handshakes: SlotLimits,
    /// Connections of strangers after it.
    pub strangers: SlotLimits,
    /// Simultaneous connections of verified peers; further ones stay strangers.
    pub verified_max: usize,
    /// Bytes of responses that are not written yet, for all connections together. A single response
    /// may be larger.
    pub unwritten_max: usize,
}

/// The limits of simultaneous connections of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// All of them.
    pub total: usize,
    /// Those of one address.
    pub per_address: usize,
}

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct ConnectionBudget {
    limits: BudgetLimits,
    shed: ShedConnections,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    /// The number of the next connection or response; a smaller number is older.
    next: u64,
    open: BTreeMap<u64, OpenConnection>,
    unwritten: BTreeMap<u64, UnwrittenResponse>,
    unwritten_bytes: usize,
}

#[derive(Debug)]
struct OpenConnection {
    address: IpAddr,
    standing: PeerStanding,
    shed: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerStanding {
    Handshake,
    Stranger,
    Verified,
}

#[derive(Debug)]
struct UnwrittenResponse {
    connection: u64,
    bytes: usize,
}

/// The place of one connection in a budget; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    budget: Arc<ConnectionBudget>,
    number: u64,
    shed: CancellationToken,
}

/// A response that counts as unwritten until this is dropped.
#[derive(Debug)]
struct CountedResponse {
    budget: Arc<ConnectionBudget>,
    number: u64,
}

// === impl ConnectionBudget ===

impl ConnectionBudget {
    pub(crate) fn new(limits: BudgetLimits, shed: ShedConnections) -> Arc<Self> {
        Arc::new(Self { limits, shed, state: Mutex::default() })
    }

    /// Gives a slot to a new connection without TLS, and closes another stranger if none is free.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> ConnectionSlot {
        self.open(peer, PeerStanding::Stranger)
    }

    /// Gives a slot to a new connection that begins a TLS handshake, and closes another one in its
    /// handshake if none is free.
    pub(crate) fn admit_handshake(self: &Arc<Self>, peer: IpAddr) -> ConnectionSlot {
        self.open(peer, PeerStanding::Handshake)
    }

    fn open(self: &Arc<Self>, peer: IpAddr, standing: PeerStanding) -> ConnectionSlot {
        // A dual-stack socket shows IPv4 peers as IPv6 ones.
        let address = peer.to_canonical();
        let shed = CancellationToken::new();

        let mut state = self.lock();
        self.make_room(&mut state, address, standing);
        let number = state.number();
        state.open.insert(number, OpenConnection { address, standing, shed: shed.clone() });
        ConnectionSlot { budget: Arc::clone(self), number, shed }
    }

    /// Closes the connection that has the slot for one more of this address and standing, if none
    /// is free.
    fn make_room(&self, state: &mut BudgetState, address: IpAddr, standing: PeerStanding) {
        let (limits, kind) = match standing {
            PeerStanding::Handshake => (self.limits.handshakes, ShedKind::Handshake),
            PeerStanding::Stranger => (self.limits.strangers, ShedKind::Stranger),
            // Further peers stay strangers.
            PeerStanding::Verified => return,
        };
        if let Some(surplus) = state.surplus(address, standing, limits) {
            state.close(surplus);
            self.shed.count(kind);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl BudgetState ===

impl BudgetState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The connection that must close before one more of this standing is open from this address.
    fn surplus(&self, address: IpAddr, standing: PeerStanding, limits: SlotLimits) -> Option<u64> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (_, peer) in self.of(standing) {
            *counts.entry(peer.address).or_default() += 1;
        }

        let own = counts.get(&address).copied().unwrap_or_default();
        if own >= limits.per_address {
            return self.oldest(standing, |of| of == address);
        }
        if counts.values().sum::<usize>() < limits.total {
            return None;
        }

        let most = counts.values().copied().max();
        self.oldest(standing, |of| counts.get(&of).copied() == most)
    }

    fn of(&self, standing: PeerStanding) -> impl Iterator<Item = (u64, &OpenConnection)> {
        let open = self.open.iter().map(|(number, connection)| (*number, connection));
        open.filter(move |(_, connection)| connection.standing == standing)
    }

    fn oldest(&self, standing: PeerStanding, accepts: impl Fn(IpAddr) -> bool) -> Option<u64> {
        let mut candidates = self.of(standing).filter(|(_, peer)| accepts(peer.address));
        candidates.next().map(|(number, _)| number)
    }

    /// Tells a connection to close, and no longer counts its bytes.
    fn close(&mut self, connection: u64) {
        self.forget(connection);
        let unwritten = self.unwritten.extract_if(.., |_, it| it.connection == connection);
        let freed: usize = unwritten.map(|(_, response)| response.bytes).sum();
        self.unwritten_bytes -= freed;
    }

    fn forget(&mut self, connection: u64) {
        if let Some(closed) = self.open.remove(&connection) {
            closed.shed.cancel();
        }
    }

    /// The connection with the oldest unwritten response, other than `except`.
    fn slowest_reader(&self, except: u64) -> Option<u64> {
        let mut readers = self.unwritten.values().map(|response| response.connection);
        readers.find(|connection| *connection != except)
    }
}

// === impl ConnectionSlot ===

impl ConnectionSlot {
    /// Moves a connection whose handshake is over to the verified peers or the strangers. If all
    /// slots of verified peers are taken, it becomes a stranger.
    pub(crate) fn handshaken(&self, is_verified: bool) {
        let mut state = self.budget.lock();
        let Some(connection) = state.open.get(&self.number) else { return };
        let address = connection.address;
        if !(is_verified && self.promote_in(&mut state)) {
            self.budget.make_room(&mut state, address, PeerStanding::Stranger);
            self.place(&mut state, PeerStanding::Stranger);
        }
    }

    /// Moves a peer with a verified certificate to a slot that strangers cannot take, if one is
    /// free.
    pub(crate) fn promote(&self) {
        self.promote_in(&mut self.budget.lock());
    }

    /// Returns true if the peer has such a slot now.
    fn promote_in(&self, state: &mut BudgetState) -> bool {
        let standing = state.open.get(&self.number).map(|connection| connection.standing);
        let has_room = state.of(PeerStanding::Verified).count() < self.budget.limits.verified_max;
        if has_room {
            self.place(state, PeerStanding::Verified);
        }
        has_room || standing == Some(PeerStanding::Verified)
    }

    fn place(&self, state: &mut BudgetState, standing: PeerStanding) {
        if let Some(connection) = state.open.get_mut(&self.number) {
            connection.standing = standing;
        }
    }

    /// Cancelled when the connection must close.
    pub(crate) const fn shed(&self) -> &CancellationToken {
        &self.shed
    }

    /// Counts a response as unwritten until the connection no longer needs it.
    pub(crate) async fn counted(&self, response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
        let (head, body) = response.into_parts();
        let Ok(collected) = body.collect().await;
        Response::from_parts(head, Full::new(self.counted_bytes(collected.to_bytes())))
    }

    fn counted_bytes(&self, bytes: Bytes) -> Bytes {
        if bytes.len() <= SMALL_BODY || self.shed.is_cancelled() {
            return bytes;
        }

        let mut state = self.budget.lock();
        let number = state.number();
        let counted = UnwrittenResponse { connection: self.number, bytes: bytes.len() };
        state.unwritten_bytes += bytes.len();
        state.unwritten.insert(number, counted);
        while state.unwritten_bytes > self.budget.limits.unwritten_max
            && let Some(slowest) = state.slowest_reader(self.number)
        {
            state.close(slowest);
            self.budget.shed.count(ShedKind::SlowReader);
        }

        kept_with(CountedResponse { budget: Arc::clone(&self.budget), number }, bytes)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.budget.lock().forget(self.number);
    }
}

// === impl CountedResponse ===

impl Drop for CountedResponse {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        if let Some(response) = state.unwritten.remove(&self.number) {
            state.unwritten_bytes -= response.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::shed::{ShedListener, ShedMetrics};

    const LIMITS: BudgetLimits = BudgetLimits {
        handshakes: SlotLimits { total: 3, per_address: 2 },
        strangers: SlotLimits { total: 4, per_address: 2 },
        verified_max: 2,
        unwritten_max: 100_000,
    };

    fn budget() -> Arc<ConnectionBudget> {
        let shed = ShedMetrics::register(&prometheus::Registry::new()).unwrap();
        ConnectionBudget::new(LIMITS, shed.of(ShedListener::Plain))
    }

    fn client(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn closed(slots: &[ConnectionSlot]) -> Vec<bool> {
        slots.iter().map(|slot| slot.shed.is_cancelled()).collect()
    }

    #[test]
    fn an_address_that_has_its_share_loses_its_own_oldest_connection() {
        let budget = budget();
        let slots = [1, 2, 1, 1].map(|last| budget.admit(client(last)));
        assert_eq!(closed(&slots), [true, false, false, false]);

        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        let _fifth = budget.admit(mapped);
        assert_eq!(closed(&slots), [true, false, true, false], "one address in two spellings");
    }

    #[test]
    fn a_full_budget_closes_the_oldest_connection_of_the_address_with_the_most() {
        let budget = budget();
        let slots = [9, 1, 1, 2].map(|last| budget.admit(client(last)));
        let newcomer = budget.admit(client(3));
        assert_eq!(closed(&slots), [false, true, false, false]);

        let _another = budget.admit(client(4));
        assert_eq!(closed(&slots), [true, true, false, false], "all have one: the oldest goes");
        assert!(!newcomer.shed.is_cancelled());
    }

    #[test]
    fn strangers_never_take_the_slot_of_a_verified_peer() {
        let budget = budget();
        let proxies = [1, 1, 1].map(|last| {
            let slot = budget.admit(client(last));
            slot.promote();
            slot
        });
        let strangers: Vec<_> = (2..100).map(|last| budget.admit(client(last))).collect();
        assert_eq!(closed(&proxies), [false, false, true], "the third is one too many");
        let open = closed(&strangers).iter().filter(|closed| !**closed).count();
        assert_eq!(open, LIMITS.strangers.total);
    }

    #[test]
    fn handshakes_and_strangers_close_only_their_own_kind() {
        let budget = budget();
        let shaking = [1, 2, 3].map(|last| budget.admit_handshake(client(last)));
        let strangers: Vec<_> = (10..20).map(|last| budget.admit(client(last))).collect();
        assert_eq!(closed(&shaking), [false; 3]);
        let open = closed(&strangers).iter().filter(|closed| !**closed).count();
        assert_eq!(open, LIMITS.strangers.total);

        let _fourth = budget.admit_handshake(client(4));
        assert_eq!(closed(&shaking), [true, false, false], "the oldest handshake gives way");
        shaking[1].handshaken(false);
        assert_eq!(closed(&strangers).iter().filter(|closed| !**closed).count(), 3);
        assert_eq!(closed(&shaking), [true, false, false], "it is a stranger now");
        shaking[2].handshaken(true);
        assert_eq!(closed(&strangers).iter().filter(|closed| !**closed).count(), 3);

        let _more: Vec<_> = (30..40).map(|last| budget.admit(client(last))).collect();
        assert_eq!(closed(&shaking), [true, true, false], "a verified peer stays");
        let _handshakes = [5, 6, 7].map(|last| budget.admit_handshake(client(last)));
        assert!(!shaking[2].shed.is_cancelled());
    }

    #[test]
    fn a_verified_peer_above_the_limit_stays_a_stranger() {
        let budget = budget();
        let peers = [1, 2, 3].map(|last| budget.admit_handshake(client(last)));
        for peer in &peers {
            peer.handshaken(true);
        }
        let _strangers: Vec<_> = (10..14).map(|last| budget.admit(client(last))).collect();
        assert_eq!(closed(&peers), [false, false, true]);
    }

    #[test]
    fn a_closed_connection_gives_its_slot_back() {
        let budget = budget();
        let slots: Vec<_> = (1..=4).map(|last| budget.admit(client(last))).collect();
        drop(budget.admit(client(5)));
        let _sixth = budget.admit(client(6));
        assert_eq!(closed(&slots), [true, false, false, false]);
    }

    #[test]
    fn above_the_bound_of_unwritten_bytes_the_slowest_reader_is_closed() {
        let budget = budget();
        let slots = [1, 2, 3].map(|last| budget.admit(client(last)));
        let page = Bytes::from(vec![0; 40_000]);

        let first = slots[0].counted_bytes(page.clone());
        drop(slots[1].counted_bytes(page.clone()));
        let _second = slots[1].counted_bytes(page.clone());
        assert_eq!(closed(&slots), [false; 3], "written responses no longer count");
        let _third = slots[2].counted_bytes(page.clone());
        assert_eq!(closed(&slots), [true, false, false]);

        let largest = slots[2].counted_bytes(Bytes::from(vec![0; 1_000_000]));
        assert_eq!(closed(&slots), [true, true, false], "one response may be larger");
        assert_eq!((first.len(), largest.len()), (40_000, 1_000_000));
        assert_eq!(budget.lock().unwritten_bytes, 1_040_000);
        drop((first, largest));
        assert_eq!(budget.lock().unwritten_bytes, 40_000);
    }
}
