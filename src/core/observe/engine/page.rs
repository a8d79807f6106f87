//! One response's samples, combined, and the slot of each value.
//!
//! A server writes the same series in each response, and only the values differ. A [`PageTemplate`]
//! is such a response without its values, and a [`SeriesPosition`] is the position of one series'
//! value. A caller that knows that a line is the same as before need not read its labels again.

use jiff::Timestamp;

use crate::fleet::ModelName;
use crate::observe::engine::draft::RankDraft;
use crate::observe::engine::kind::Engine;
use crate::observe::engine::label::Label;
use crate::observe::engine::lora::LoraSample;
use crate::observe::engine::number::{cumulative, timestamp};
use crate::observe::engine::unreadable::{RANKS_MAX, SampleError, Unreadable};
use crate::observe::engine::value_position::ValuePosition;
use crate::observe::reading::{HttpReading, Reading};
use crate::units::Requests;

/// Prefixes that any server's runtime adds. They do not identify an engine.
const RUNTIME_PREFIXES: [&str; 5] = ["python_", "process_", "http_", "go_", "promhttp_"];

/// The process start time in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProcessStart {
    #[default]
    Missing,
    Unusable,
    At(Timestamp),
}

/// The combined samples of one response.
#[derive(Clone, Debug, Default)]
pub(super) struct PageDraft {
    pub(super) engine: Option<Engine>,
    models: Vec<ModelName>,
    started: ProcessStart,
    /// The sum for each class of status, and the number of its series.
    http: [(Option<f64>, u32); 3],
    rejected: Option<f64>,
    /// In order of rank.
    pub(super) ranks: Vec<RankDraft>,
}

/// The position of one series' value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesPosition {
    /// The rank's number until a template is made, then its position among the ranks.
    rank: u32,
    spot: ValuePosition,
}

/// A response with certain series, without their values.
#[derive(Clone, Debug)]
pub struct PageTemplate {
    page: PageDraft,
}

/// A response built from a [`PageTemplate`] and values.
#[derive(Debug)]
pub struct Filling<'p> {
    page: PageDraft,
    lora: Vec<LoraSample<'p>>,
}

// === impl SeriesPosition ===

impl SeriesPosition {
    /// The slot of ignored samples.
    pub(super) const PASSED_OVER: Self = Self::of_page(ValuePosition::PassedOver);

    /// Returns true if the sample's data is in its labels, so that the labels always differ.
    #[must_use]
    pub fn is_in_labels(self) -> bool {
        self.spot == ValuePosition::Lora
    }

    /// A spot that belongs to no rank.
    pub(super) const fn of_page(spot: ValuePosition) -> Self {
        Self { rank: 0, spot }
    }

    /// A spot of this rank.
    #[inline]
    pub(super) const fn of(draft: &RankDraft, spot: ValuePosition) -> Self {
        Self { rank: draft.rank(), spot }
    }
}

// === impl PageTemplate ===

impl PageTemplate {
    pub(super) fn new(page: &PageDraft) -> Self {
        let mut cleared = page.clone();
        cleared.started = ProcessStart::Missing;
        cleared.http = [(None, 0); 3];
        cleared.rejected = None;
        cleared.ranks.iter_mut().for_each(RankDraft::clear_sums);
        Self { page: cleared }
    }

    /// The slot in responses of this template; `None` if no position stays the same.
    #[must_use]
    pub fn place(&self, slot: SeriesPosition) -> Option<SeriesPosition> {
        let SeriesPosition { rank, spot } = slot;
        match spot {
            ValuePosition::Unsteady => None,
            ValuePosition::PassedOver
            | ValuePosition::Checked
            | ValuePosition::Started
            | ValuePosition::Http(_)
            | ValuePosition::Rejected
            | ValuePosition::Lora => Some(slot),
            ValuePosition::FinishedOther
            | ValuePosition::Number(_)
            | ValuePosition::Bucket(..)
            | ValuePosition::Count(_)
            | ValuePosition::Sum(_) => {
                let place = self.page.ranks.binary_search_by_key(&rank, RankDraft::rank).ok()?;
                Some(SeriesPosition { rank: u32::try_from(place).ok()?, spot })
            }
        }
    }

    /// A response to fill. Every slot must get a value exactly once, in the order of the response
    /// that the template was made from.
    #[must_use]
    pub fn fill<'p>(&self) -> Filling<'p> {
        Filling { page: self.page.clone(), lora: Vec::new() }
    }
}

// === impl Filling ===

impl<'p> Filling<'p> {
    /// Puts a value into its slot from [`PageTemplate::place`].
    ///
    /// # Errors
    ///
    /// The value is impossible for the series.
    #[inline]
    pub fn put(&mut self, slot: SeriesPosition, value: f64) -> Result<(), SampleError> {
        match slot.spot {
            ValuePosition::FinishedOther
            | ValuePosition::Number(_)
            | ValuePosition::Bucket(..)
            | ValuePosition::Count(_)
            | ValuePosition::Sum(_) => self.page.ranks[slot.rank as usize].put(slot.spot, value),
            ValuePosition::PassedOver
            | ValuePosition::Checked
            | ValuePosition::Started
            | ValuePosition::Http(_)
            | ValuePosition::Rejected
            | ValuePosition::Lora
            | ValuePosition::Unsteady => self.page.put(slot, value).map(|_| ()),
        }
    }

    /// Takes a sample whose slot [`SeriesPosition::is_in_labels`].
    pub fn take_labels(&mut self, labels: &[Label<'p>], value: f64) {
        LoraSample::add_to(&mut self.lora, labels, value);
    }

    /// The reading of the response.
    ///
    /// # Errors
    ///
    /// As for [`ReadingBuilder::finish`](crate::observe::engine::ReadingBuilder::finish).
    pub fn finish(self) -> Result<Reading, Unreadable> {
        self.page.finish(Vec::new(), &self.lora)
    }
}

// === impl PageDraft ===

impl PageDraft {
    /// Adds a value to its sum or spot, and returns its slot.
    pub(super) fn put(
        &mut self,
        slot: SeriesPosition,
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        match slot.spot {
            ValuePosition::Checked => drop(cumulative(value)?),
            ValuePosition::Started => {
                self.started = timestamp(value).map_or(ProcessStart::Unusable, ProcessStart::At);
            }
            ValuePosition::Http(class) => {
                let more = cumulative(value)?;
                if let Some((total, series)) = self.http.get_mut(usize::from(class)) {
                    *total = Some(total.unwrap_or(0.0) + more);
                    *series += 1;
                }
            }
            ValuePosition::Rejected => {
                self.rejected = Some(self.rejected.unwrap_or(0.0) + cumulative(value)?);
            }
            ValuePosition::FinishedOther
            | ValuePosition::Number(_)
            | ValuePosition::Bucket(..)
            | ValuePosition::Count(_)
            | ValuePosition::Sum(_) => {
                let rank = self.rank(slot.rank)?;
                self.ranks[rank].put(slot.spot, value)?;
            }
            ValuePosition::PassedOver | ValuePosition::Lora | ValuePosition::Unsteady => {}
        }

        Ok(slot)
    }

    pub(super) fn take_started(&mut self, value: f64) -> Result<SeriesPosition, SampleError> {
        if self.started != ProcessStart::Missing {
            return Err(SampleError::Duplicate);
        }
        self.put(SeriesPosition::of_page(ValuePosition::Started), value)
    }

    pub(super) fn note_model(&mut self, name: &[u8]) {
        let known = self.models.binary_search_by(|model| model.as_str().as_bytes().cmp(name));
        if let Err(at) = known
            && let Some(model) = ModelName::new(&String::from_utf8_lossy(name))
        {
            self.models.insert(at, model);
        }
    }

    /// The position of a rank in `ranks`. Creates the rank if it is missing.
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

    /// The reading. `prefixes` are those of the response's metrics, for the error if no known
    /// engine wrote it.
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
        let readings = ranks
            .into_iter()
            .map(|mut draft| {
                let mut reading = draft.reading(engines)?;
                (engine.dialect().complete)(&draft, &mut reading);
                Ok(reading)
            })
            .collect::<Result<Vec<_>, Unreadable>>()?;

        let [(_, success_series), ..] = http;
        let [success, client_error, server_error] =
            http.map(|(total, _)| total.and_then(Requests::new));
        Ok(Reading {
            engine,
            // The caller counts the samples.
            samples: 0,
            started: match started {
                ProcessStart::At(timestamp) => Some(timestamp),
                ProcessStart::Missing | ProcessStart::Unusable => None,
            },
            models,
            http: HttpReading {
                success,
                success_series: Some(success_series),
                client_error,
                server_error,
            },
            rejected: rejected.and_then(Requests::new),
            lora: LoraSample::together(lora).map(Box::new),
            ranks: readings,
        })
    }
}

/// The prefixes without those of language runtimes, unless there is nothing else.
fn telling(prefixes: Vec<String>) -> Vec<String> {
    if prefixes.iter().all(|prefix| is_runtime(prefix)) {
        return prefixes;
    }
    prefixes.into_iter().filter(|prefix| !is_runtime(prefix)).collect()
}

fn is_runtime(prefix: &str) -> bool {
    RUNTIME_PREFIXES.contains(&prefix)
}
