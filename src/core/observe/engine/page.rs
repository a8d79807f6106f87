//! One page's samples, put together, and where each value went.
//!
//! A server writes the same series page after page and only the values differ. A [`Template`] is
//! what such a page comes to without its values, and a [`Slot`] where the value of one series goes,
//! so that whoever knows that a line is the same as before need not look at its labels again.

use jiff::Timestamp;

use crate::fleet::ModelName;
use crate::observe::engine::draft::RankDraft;
use crate::observe::engine::lora::LoraSample;
use crate::observe::engine::number::{cumulative, timestamp};
use crate::observe::engine::{
    Engine, Label, RANKS_MAX, RUNTIME_PREFIXES, SampleError, Unreadable, sglang,
};
use crate::observe::{HttpReading, Reading};
use crate::units::Requests;

/// What a page says of its process' start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Started {
    #[default]
    Missing,
    Unusable,
    At(Timestamp),
}

/// What the samples of one page have come to.
#[derive(Clone, Debug, Default)]
pub(super) struct PageDraft {
    pub(super) engine: Option<Engine>,
    models: Vec<ModelName>,
    started: Started,
    http: [Option<f64>; 3],
    rejected: Option<f64>,
    /// In order of rank.
    pub(super) ranks: Vec<RankDraft>,
}

/// Where the value of one series goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The rank's number until a template is made, then its place among the ranks.
    rank: u32,
    spot: Spot,
}

/// Where in its rank, or on its page, a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// Nowhere, whatever it is.
    PassedOver,
    /// Nowhere, but it must be something that can have been counted.
    Checked,
    /// The start of the process.
    Started,
    /// A class of HTTP answers.
    Http(u16),
    /// The requests that were turned away.
    Rejected,
    /// Finished requests for other reasons.
    FinishedOther,
    /// A number of the rank.
    Number(u16),
    /// A bucket of one of the rank's histograms.
    Bucket(u16, u16),
    /// The count of a histogram.
    Count(u16),
    /// The sum of a histogram.
    Sum(u16),
    /// Among the adapters, which are in the labels.
    Lora,
    /// Somewhere that does not stay, because a bucket came before those of smaller edges. No engine
    /// writes them so.
    Unsteady,
}

/// What a page is made of that has certain series, without their values.
#[derive(Clone, Debug)]
pub struct Template {
    page: PageDraft,
}

/// A page that is made of a [`Template`] and values.
#[derive(Debug)]
pub struct Filling<'p> {
    page: PageDraft,
    lora: Vec<LoraSample<'p>>,
}

// === impl Spot ===

impl Spot {
    /// A spot in one of a rank's lists, which are all short.
    #[inline]
    pub(super) fn at(spot: impl FnOnce(u16) -> Self, place: usize) -> Self {
        u16::try_from(place).map_or(Self::Unsteady, spot)
    }

    /// The spot of a bucket.
    #[inline]
    pub(super) fn bucket(histogram: usize, bucket: usize) -> Self {
        let place = u16::try_from(histogram).ok().zip(u16::try_from(bucket).ok());
        place.map_or(Self::Unsteady, |(histogram, bucket)| Self::Bucket(histogram, bucket))
    }
}

// === impl Slot ===

impl Slot {
    /// The slot of what does not count.
    pub(super) const PASSED_OVER: Self = Self::of_page(Spot::PassedOver);

    /// Whether what a sample says is in its labels, so that these are never twice the same.
    #[must_use]
    pub fn is_in_labels(self) -> bool {
        self.spot == Spot::Lora
    }

    /// A spot that is no rank's.
    pub(super) const fn of_page(spot: Spot) -> Self {
        Self { rank: 0, spot }
    }

    /// A spot of this rank.
    #[inline]
    pub(super) const fn of(draft: &RankDraft, spot: Spot) -> Self {
        Self { rank: draft.rank(), spot }
    }
}

// === impl Template ===

impl Template {
    pub(super) fn new(page: &PageDraft) -> Self {
        let mut page = page.clone();
        page.started = Started::Missing;
        page.http = [None; 3];
        page.rejected = None;
        page.ranks.iter_mut().for_each(RankDraft::clear_sums);
        Self { page }
    }

    /// The slot on pages of this template; `None` when there is none that stays the same.
    #[must_use]
    pub fn place(&self, slot: Slot) -> Option<Slot> {
        let Slot { rank, spot } = slot;
        match spot {
            Spot::Unsteady => None,
            Spot::PassedOver
            | Spot::Checked
            | Spot::Started
            | Spot::Http(_)
            | Spot::Rejected
            | Spot::Lora => Some(slot),
            Spot::FinishedOther
            | Spot::Number(_)
            | Spot::Bucket(..)
            | Spot::Count(_)
            | Spot::Sum(_) => {
                let place = self.page.ranks.binary_search_by_key(&rank, RankDraft::rank).ok()?;
                Some(Slot { rank: u32::try_from(place).ok()?, spot })
            }
        }
    }

    /// A page to fill. Every slot must be given a value exactly once, in the order of the page that
    /// the template was made from.
    #[must_use]
    pub fn fill<'p>(&self) -> Filling<'p> {
        Filling { page: self.page.clone(), lora: Vec::new() }
    }
}

// === impl Filling ===

impl<'p> Filling<'p> {
    /// Puts a value where [`Template::place`] says that it goes.
    ///
    /// # Errors
    ///
    /// The value is nothing that the series can mean.
    #[inline]
    pub fn put(&mut self, slot: Slot, value: f64) -> Result<(), SampleError> {
        match slot.spot {
            Spot::FinishedOther
            | Spot::Number(_)
            | Spot::Bucket(..)
            | Spot::Count(_)
            | Spot::Sum(_) => self.page.ranks[slot.rank as usize].put(slot.spot, value),
            Spot::PassedOver
            | Spot::Checked
            | Spot::Started
            | Spot::Http(_)
            | Spot::Rejected
            | Spot::Lora
            | Spot::Unsteady => self.page.put(slot, value).map(|_| ()),
        }
    }

    /// Takes a sample whose slot [`Slot::is_in_labels`].
    pub fn take_labels(&mut self, labels: &[Label<'p>], value: f64) {
        LoraSample::add_to(&mut self.lora, labels, value);
    }

    /// The reading of the page.
    ///
    /// # Errors
    ///
    /// As for [`Reader::finish`](crate::observe::engine::Reader::finish).
    pub fn finish(self) -> Result<Reading, Unreadable> {
        self.page.finish(Vec::new(), &self.lora)
    }
}

// === impl PageDraft ===

impl PageDraft {
    /// Adds what goes to one of the sums, and says where it went.
    pub(super) fn put(&mut self, slot: Slot, value: f64) -> Result<Slot, SampleError> {
        match slot.spot {
            Spot::Checked => drop(cumulative(value)?),
            Spot::Started => self.started = timestamp(value).map_or(Started::Unusable, Started::At),
            Spot::Http(class) => {
                let value = cumulative(value)?;
                if let Some(total) = self.http.get_mut(usize::from(class)) {
                    *total = Some(total.unwrap_or(0.0) + value);
                }
            }
            Spot::Rejected => {
                self.rejected = Some(self.rejected.unwrap_or(0.0) + cumulative(value)?);
            }
            Spot::FinishedOther
            | Spot::Number(_)
            | Spot::Bucket(..)
            | Spot::Count(_)
            | Spot::Sum(_) => {
                let rank = self.rank(slot.rank)?;
                self.ranks[rank].put(slot.spot, value)?;
            }
            Spot::PassedOver | Spot::Lora | Spot::Unsteady => {}
        }
        Ok(slot)
    }

    pub(super) fn take_started(&mut self, value: f64) -> Result<Slot, SampleError> {
        if self.started != Started::Missing {
            return Err(SampleError::Duplicate);
        }
        self.put(Slot::of_page(Spot::Started), value)
    }

    pub(super) fn note_model(&mut self, name: &[u8]) {
        let known = self.models.binary_search_by(|model| model.as_str().as_bytes().cmp(name));
        if let Err(at) = known
            && let Some(model) = ModelName::new(&String::from_utf8_lossy(name))
        {
            self.models.insert(at, model);
        }
    }

    /// The place of a rank in `ranks`, made if need be.
    pub(super) fn rank(&mut self, rank: u32) -> Result<usize, SampleError> {
        match self.ranks.binary_search_by_key(&rank, RankDraft::rank) {
            Ok(at) => Ok(at),
            Err(_) if self.ranks.len() >= RANKS_MAX => Err(SampleError::TooManyRanks),
            Err(at) => {
                self.ranks.insert(at, RankDraft::new(rank));
                Ok(at)
            }
        }
    }

    /// The reading. `prefixes` are those of the page's metrics, for when it is no known engine's.
    pub(super) fn finish(
        self,
        prefixes: Vec<String>,
        lora: &[LoraSample<'_>],
    ) -> Result<Reading, Unreadable> {
        let Self { engine, models, started, http, rejected, ranks } = self;
        let Some(engine) = engine else {
            return Err(Unreadable::UnknownEngine { prefixes: telling(prefixes) });
        };
        let engines = ranks.len();
        let ranks = ranks
            .into_iter()
            .map(|mut draft| {
                let mut reading = draft.reading(engines)?;
                match engine {
                    Engine::Vllm => reading.fill_unserved(),
                    Engine::Sglang => sglang::add_queues(&draft, &mut reading),
                }
                Ok(reading)
            })
            .collect::<Result<Vec<_>, Unreadable>>()?;
        let [success, client_error, server_error] = http.map(|n| n.and_then(Requests::new));
        Ok(Reading {
            engine,
            // Whoever reads the page counts them.
            samples: 0,
            started: match started {
                Started::At(timestamp) => Some(timestamp),
                Started::Missing | Started::Unusable => None,
            },
            models,
            http: HttpReading { success, client_error, server_error },
            rejected: rejected.and_then(Requests::new),
            lora: LoraSample::together(lora).map(Box::new),
            ranks,
        })
    }
}

/// The prefixes without those of language runtimes, unless there is nothing else.
fn telling(prefixes: Vec<String>) -> Vec<String> {
    let is_runtime = |prefix: &String| RUNTIME_PREFIXES.contains(&prefix.as_str());
    if prefixes.iter().all(is_runtime) {
        return prefixes;
    }
    prefixes.into_iter().filter(|prefix| !is_runtime(prefix)).collect()
}
