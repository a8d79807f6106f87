//! Placement: which replicas of which server take the copies of a model.
//!
//! A model lives on one server. Servers that may not take it are left out, and of the others the one
//! that has it already is asked first. It gets a replica for each copy or, if there are not enough
//! and it says that fewer will do, as many as there are. Among a server's replicas those that hold a
//! copy already come first, then those with more free memory, then the lower ordinals, because a
//! `StatefulSet` removes the highest.
//!
//! # Source
//!
//! The filters and sorters of Seldon Core 2's scheduler. It lets memory wrap below zero when sorting,
//! and rounds it above 2^53 bytes when filtering; here the filter compares whole bytes.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use crate::reference::seldon::copies::Wanted;
use crate::reference::seldon::count::Service;
use crate::reference::seldon::{Bytes, Rules};
use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::VariantName;
use plimsoll::units::Replicas;

/// Something that a server can do and a model may require, such as a runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Capability(String);

impl Capability {
    /// The capability of this name, without the blanks around it.
    #[must_use]
    pub(crate) fn new(name: &str) -> Self {
        Self(name.trim().to_owned())
    }
}

/// Whether a server takes models that do not ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// It takes any.
    Shared,
    /// It takes those that name it.
    Private,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its name.
    pub(crate) name: VariantName,
    /// Whom it takes.
    pub(crate) sharing: Sharing,
    /// Replicas that it should have; zero while it is being deleted.
    pub(crate) expected: Option<Replicas>,
    /// What it can do.
    pub(crate) capabilities: BTreeSet<Capability>,
    /// Its connected replicas.
    pub(crate) rooms: Vec<Room>,
}

/// What one replica has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Its place.
    pub(crate) ordinal: Ordinal,
    /// Whether it is staying.
    pub(crate) service: Service,
    /// Free memory as it reports it.
    pub(crate) free: Bytes,
    /// Memory of that which copies on their way will need.
    pub(crate) reserved: Bytes,
    /// Whether a copy of the model is on it.
    pub(crate) holding: Holding,
}

/// Whether a copy of the model is on a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// One is there or loading.
    There,
    /// One has been placed there, and has memory reserved.
    Coming,
    /// None is.
    Absent,
}

/// A model to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    /// How many copies it wants.
    pub(crate) wanted: Wanted,
    /// Memory that a copy needs.
    pub(crate) memory: Bytes,
    /// What its server must be able to do.
    pub(crate) requirements: BTreeSet<Capability>,
    /// The server that it asks for.
    pub(crate) asks_for: Option<VariantName>,
    /// The server that has it.
    pub(crate) assigned: Option<VariantName>,
}

/// Where the copies of a model go.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Each copy has a replica.
    Whole(Place),
    /// There are fewer replicas than copies, and enough for now. More replicas are needed.
    Partial {
        /// The replicas that there are.
        place: Place,
        /// Copies that are wanted.
        wanted: Replicas,
    },
    /// No server may take the model.
    NoServer,
    /// No server has enough replicas with room. More replicas may help.
    NoRoom(Wanted),
}

/// Replicas of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The server.
    pub(crate) server: VariantName,
    /// The replicas, the most suitable first.
    pub(crate) on: Vec<Ordinal>,
}

impl Placement {
    /// The replicas that take a copy, if any do.
    #[must_use]
    pub(crate) const fn place(&self) -> Option<&Place> {
        match self {
            Self::Whole(place) | Self::Partial { place, .. } => Some(place),
            Self::NoServer | Self::NoRoom(_) => None,
        }
    }

    /// Whether the model's server should be asked to grow.
    #[must_use]
    pub(crate) const fn wants_more(&self) -> bool {
        match self {
            Self::Whole(_) | Self::NoServer => false,
            Self::Partial { .. } | Self::NoRoom(_) => true,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(Place { server, on }) => write!(f, "{} copies on {server}", on.len()),
            Self::Partial { place: Place { server, on }, wanted } => {
                write!(f, "{} of {wanted} copies on {server}", on.len())
            }
            Self::NoServer => f.write_str("no server may take the model"),
            Self::NoRoom(Wanted { desired, min }) if *min > Replicas::ZERO => {
                write!(f, "no server has room for {desired} copies, nor for the least, {min}")
            }
            Self::NoRoom(Wanted { desired, .. }) => {
                write!(f, "no server has room for {desired} copies")
            }
        }
    }
}

/// Places the copies of a model on one of these servers, asked in their order after the one that has
/// it.
///
/// By Seldon's rules a copy that is coming must fit beside the memory that is reserved for it, so that
/// placing a model twice can move it.
pub(crate) fn place(rules: Rules, servers: &[Server], guest: &Guest) -> Placement {
    let mut willing: Vec<&Server> = servers.iter().filter(|server| server.takes(guest)).collect();
    willing.sort_by_key(|server| guest.assigned.as_ref() != Some(&server.name));
    if willing.is_empty() {
        return Placement::NoServer;
    }
    let rooms: Vec<(&Server, Vec<Ordinal>)> =
        willing.into_iter().map(|server| (server, server.suitable(rules, guest))).collect();
    let Wanted { desired, min } = guest.wanted;
    let with = |least: Replicas| {
        let least = usize::try_from(least.count()).unwrap_or(usize::MAX);
        let (server, rooms) = rooms.iter().find(|(_, rooms)| rooms.len() >= least)?;
        let on = rooms.iter().take(usize::try_from(desired.count()).ok()?).copied().collect();
        Some(Place { server: server.name.clone(), on })
    };
    if let Some(place) = with(desired) {
        return Placement::Whole(place);
    }
    match with(min).filter(|_| min > Replicas::ZERO) {
        Some(place) => Placement::Partial { place, wanted: desired },
        None => Placement::NoRoom(guest.wanted),
    }
}

impl Server {
    /// Whether the model may live here at all.
    fn takes(&self, guest: &Guest) -> bool {
        let asked = match &guest.asks_for {
            Some(name) => *name == self.name,
            None => self.sharing == Sharing::Shared,
        };
        asked
            && !self.rooms.is_empty()
            && self.expected != Some(Replicas::ZERO)
            && guest.requirements.is_subset(&self.capabilities)
    }

    /// The replicas that may take a copy, the most suitable first.
    fn suitable(&self, rules: Rules, guest: &Guest) -> Vec<Ordinal> {
        let mut rooms: Vec<&Room> = self
            .rooms
            .iter()
            .filter(|room| room.service == Service::Serving)
            .filter(|room| room.has_room(rules, guest.memory))
            .collect();
        rooms.sort_by_key(|room| {
            (room.holding == Holding::Absent, Reverse(room.rank(rules)), room.ordinal)
        });
        rooms.into_iter().map(|room| room.ordinal).collect()
    }
}

impl Room {
    /// Whether a copy of this size is there already, or fits.
    fn has_room(&self, rules: Rules, size: Bytes) -> bool {
        let is_there = match self.holding {
            Holding::There => true,
            Holding::Coming => rules == Rules::Mended,
            Holding::Absent => false,
        };
        is_there || size <= self.left()
    }

    /// What rooms are sorted by. By Seldon's rules that is a double, and a room in which more is
    /// reserved than free counts as the largest.
    const fn rank(&self, rules: Rules) -> u64 {
        match rules {
            Rules::Seldon => {
                let left = self.free.bytes().wrapping_sub(self.reserved.bytes());
                // The bits of doubles that are not negative have the order of the doubles.
                (left as f64).to_bits()
            }
            Rules::Mended => self.left().bytes(),
        }
    }

    /// Memory that nobody has spoken for.
    const fn left(&self) -> Bytes {
        self.free.beyond(self.reserved)
    }
}
