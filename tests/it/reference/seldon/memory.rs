//! Memory: which models fit into a replica that keeps some of them on disk.
//!
//! A replica may register more models than its main memory holds. The least recently used leave main
//! memory, and a request brings one back in place of others. [`Ledger`] keeps account of that, and
//! says how much more the replica offers.
//!
//! # Model
//!
//! ```text
//! extra     = main * over_commit / 100                       rounded down
//! available = free + extra                                   while everything registered fits
//!           = max(0, extra - (registered - main))            else
//! ```
//!
//! All amounts are bytes; `free` is what the models in main memory leave of it.
//!
//! # Source
//!
//! The memory manager of Seldon Core 2's agent. It computes `extra` in single precision, which is
//! wrong by kilobytes at 151 GB; and after a load that it refuses, models that had to leave for it
//! count as gone. Here a load that cannot fit is refused before anything leaves.

use std::collections::BTreeMap;

use crate::reference::seldon::Bytes;
use plimsoll::fleet::ModelName;

/// What one replica holds.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    main: Bytes,
    extra: Bytes,
    registered: BTreeMap<ModelName, Bytes>,
    /// Models in main memory, the least recently used first.
    resident: Vec<ModelName>,
}

/// What a replica has to hold models in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Main memory.
    pub(crate) main: Bytes,
    /// How much more than that may be registered, in per cent of it.
    pub(crate) over_commit_percent: u32,
}

/// Why a model cannot answer from this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is larger than main memory.
    TooLarge {
        /// Its size.
        size: Bytes,
        /// Main memory.
        main: Bytes,
    },
    /// It is not registered.
    Unknown,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { size, main } => write!(f, "{size} do not fit into {main}"),
            Self::Unknown => f.write_str("the model is not registered"),
        }
    }
}

impl std::error::Error for Refused {}

impl Ledger {
    /// An empty replica.
    #[must_use]
    pub(crate) fn new(capacity: Capacity) -> Self {
        let Capacity { main, over_commit_percent } = capacity;
        let extra = u128::from(main.bytes()) * u128::from(over_commit_percent) / 100;
        Self {
            main,
            extra: Bytes::new(u64::try_from(extra).unwrap_or(u64::MAX)),
            registered: BTreeMap::new(),
            resident: Vec::new(),
        }
    }

    /// Registers a model and brings it into main memory. One that is registered stays as it is.
    ///
    /// # Errors
    ///
    /// It is larger than main memory; nothing has changed.
    pub(crate) fn load(&mut self, model: &ModelName, size: Bytes) -> Result<(), Refused> {
        if self.registered.contains_key(model) {
            return Ok(());
        }
        if size > self.main {
            return Err(Refused::TooLarge { size, main: self.main });
        }
        self.registered.insert(model.clone(), size);
        self.bring_in(model, size);
        Ok(())
    }

    /// Forgets a model.
    pub(crate) fn unload(&mut self, model: &ModelName) {
        self.registered.remove(model);
        self.resident.retain(|other| other != model);
    }

    /// Notes a request for a model, which brings it into main memory.
    ///
    /// # Errors
    ///
    /// It is not registered.
    pub(crate) fn request(&mut self, model: &ModelName) -> Result<(), Refused> {
        let size = *self.registered.get(model).ok_or(Refused::Unknown)?;
        self.resident.retain(|other| other != model);
        self.bring_in(model, size);
        Ok(())
    }

    /// Makes room for a model that fits into main memory, and puts it there as the latest used.
    fn bring_in(&mut self, model: &ModelName, size: Bytes) {
        let fits = |ledger: &Self| size <= ledger.free();
        while !fits(self) && !self.resident.is_empty() {
            self.resident.remove(0);
        }
        self.resident.push(model.clone());
    }

    /// The models in main memory, the least recently used first.
    #[must_use]
    pub(crate) fn resident(&self) -> &[ModelName] {
        &self.resident
    }

    /// What all registered models need.
    #[must_use]
    pub(crate) fn registered(&self) -> Bytes {
        self.registered.values().fold(Bytes::ZERO, |sum, size| sum.plus(*size))
    }

    /// What the models in main memory leave of it.
    #[must_use]
    pub(crate) fn free(&self) -> Bytes {
        let sizes = self.resident.iter().filter_map(|model| self.registered.get(model));
        self.main.beyond(sizes.fold(Bytes::ZERO, |sum, size| sum.plus(*size)))
    }

    /// What the replica offers to further models.
    #[must_use]
    pub(crate) fn available(&self) -> Bytes {
        let registered = self.registered();
        if registered > self.main {
            self.extra.beyond(registered.beyond(self.main))
        } else {
            self.free().plus(self.extra)
        }
    }
}
