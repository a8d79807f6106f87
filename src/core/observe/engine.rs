//! Engine dialects: the only module that knows engines' metric names.
//!
//! A [`ReadingBuilder`] receives the names in a /metrics response and reports which ones it wants.
//! It takes their samples one by one and returns a [`Reading`]. It does not parse the response's
//! syntax. The names and label rules of each engine are in `dialects`. `signal` and
//! `family` define the meanings that names can have, and `draft` combines one rank's samples.
//!
//! These rules prevent a response from reading as less load than there is:
//!
//! - A *gauge* that is NaN, infinite or negative is absent (`None`). So is a share of the KV cache
//!   that is clearly above 1. The engine had no value to report; the rest of its response is sound.
//!   The reader does not fall back to an older spelling of the gauge either.
//! - A *cumulative* number (a counter, a bucket, a histogram's count) that is NaN, infinite or
//!   negative makes the response unreadable. No engine can have counted it, so other values may be
//!   wrong as well. The *sum* of a histogram can become NaN by one odd observation, so a bad sum
//!   discards only the histogram.
//! - Of several spellings of one signal, only the preferred one counts; spellings are never added
//!   up.
//! - Two series for the same number are an error: neither adding nor choosing is safe. This
//!   includes a response in which two models share a rank.
//! - A histogram without its sum, its count or, if it has buckets, its `+Inf` bucket has been cut.

mod dialect;
mod dialects;
mod draft;
mod family;
pub(super) mod kind;
mod label;
pub mod lora;
mod names;
mod number;
mod page;
mod signal;
mod unreadable;
mod value_position;

use std::collections::BTreeSet;

use crate::observe::engine::dialects::{bare, series, vllm};
use crate::observe::engine::family::{COMMON, MetricFamily, SampleKind, SamplePosition, prefix};
use crate::observe::engine::lora::LoraSample;
use crate::observe::engine::number::cumulative;
use crate::observe::engine::page::PageDraft;
use crate::observe::engine::signal::EngineSignal;
use crate::observe::engine::value_position::ValuePosition;
use crate::observe::reading::Reading;

pub use crate::observe::engine::family::{Series, unwanted_sibling};
pub use crate::observe::engine::kind::Engine;
pub use crate::observe::engine::label::Label;
pub use crate::observe::engine::names::{PAGE_LABELS, Samples, common};
pub use crate::observe::engine::number::{decimal, leading_decimal, number};
pub use crate::observe::engine::page::{Filling, PageTemplate, SeriesPosition};
pub use crate::observe::engine::unreadable::{BUCKETS_MAX, RANKS_MAX, SampleError, Unreadable};

/// Prefixes of foreign metrics that are remembered for the error message.
const PREFIXES_MAX: usize = 8;

/// Combines the samples of a response into a [`Reading`].
///
/// It keeps no text except the text of the reading. It borrows the labels of the few families that
/// are summed over labels of any value. Taking a sample allocates only for the growth of the
/// reading's collections.
#[derive(Debug, Default)]
pub struct ReadingBuilder<'p> {
    page: PageDraft,
    prefixes: Vec<String>,
    /// The newest series of adapters.
    lora: Vec<LoraSample<'p>>,
    /// Series that were added to a sum, since adding one twice would count it twice.
    added: BTreeSet<(&'static str, Vec<Label<'p>>)>,
    /// The family of the last wanted name. The parts of a histogram follow each other.
    family: Option<&'static MetricFamily>,
    /// The histogram of the last sample, if that was a used bucket: its position in `ranks`, and
    /// the histogram's position in that rank.
    bucket: Option<(usize, usize)>,
}

impl<'p> ReadingBuilder<'p> {
    /// Creates a reader without samples.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The engine that wrote the response, once one of its metrics has been seen.
    #[must_use]
    pub const fn engine(&self) -> Option<Engine> {
        self.page.engine
    }

    /// Reads a family's name in a `HELP` or `TYPE` line. Engines that have not served a request may
    /// print nothing else, and the reader still identifies them.
    pub fn note(&mut self, family: &[u8]) {
        if self.page.engine.is_none() {
            self.identify(family, |known| {
                // OpenMetrics names a counter's family without the `_total` of its samples.
                known.strip_suffix("_total").or_else(|| known.strip_suffix("_info"))
            });
        }
    }

    /// The meaning of samples with this name; `None` if they are not wanted.
    pub fn wants(&mut self, name: &[u8]) -> Option<Series> {
        if let Some(family) = COMMON.iter().find(|family| family.name.as_bytes() == name) {
            return Some(Series { family, part: SampleKind::Whole });
        }

        let engine = match self.page.engine {
            Some(known) => known,
            None => self.identify(name, |_| None)?,
        };
        let found = series(engine, name, self.family);
        self.family = found.map_or(self.family, |it| Some(it.family));
        found
    }

    /// Takes one sample of a wanted series and returns the slot of its value.
    ///
    /// # Errors
    ///
    /// The sample repeats another, or its value is impossible for the series.
    pub fn take(
        &mut self,
        series: Series,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        self.bucket = None;

        match series.family.signal {
            EngineSignal::Started => self.page.take_started(value),
            EngineSignal::Http => self.take_http(series.family, labels, value),
            EngineSignal::Rejected => self.take_rejected(series.family, labels, value),
            EngineSignal::Lora => {
                LoraSample::add_to(&mut self.lora, labels, value);
                Ok(SeriesPosition::of_page(ValuePosition::Lora))
            }
            EngineSignal::CacheConfig
            | EngineSignal::SleepState
            | EngineSignal::WaitingByReason
            | EngineSignal::Finished
            | EngineSignal::Value(_)
            | EngineSignal::Distribution(_) => self.take_ranked(series, labels, value),
        }
    }

    /// Takes a sample that differs from the last one, a bucket, only in its `le` and its value.
    /// Returns the slot of its value.
    ///
    /// # Errors
    ///
    /// As for [`ReadingBuilder::take`].
    #[inline]
    pub fn take_next_bucket(
        &mut self,
        le: &[u8],
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        // Samples of a series that is a part of another are ignored.
        let Some((rank, distribution)) = self.bucket else {
            return Ok(SeriesPosition::PASSED_OVER);
        };
        let draft = &mut self.page.ranks[rank];
        let spot = draft.observe_next(distribution, le, value)?;
        Ok(SeriesPosition::of(draft, spot))
    }

    /// The template of a response with the same series as those that were taken.
    #[must_use]
    pub fn template(&self) -> PageTemplate {
        PageTemplate::new(&self.page)
    }

    /// The reading of all samples that were taken.
    ///
    /// # Errors
    ///
    /// No known engine wrote the response, or a histogram in it is incomplete.
    pub fn finish(self) -> Result<Reading, Unreadable> {
        let Self { page, prefixes, lora, .. } = self;
        page.finish(prefixes, &lora)
    }

    /// Identifies an engine by the name of one of its families. Records the prefix of other names.
    fn identify(
        &mut self,
        name: &[u8],
        alternative: impl Fn(&'static str) -> Option<&'static str>,
    ) -> Option<Engine> {
        for engine in Engine::ALL {
            let known = bare(engine, name).is_some_and(|bare| {
                engine.dialect().families.iter().any(|family| {
                    bare == family.name.as_bytes()
                        || alternative(family.name).is_some_and(|other| bare == other.as_bytes())
                })
            });

            if known || series(engine, name, None).is_some() {
                self.page.engine = Some(engine);
                return self.page.engine;
            }
        }

        self.remember_prefix(name);
        None
    }

    fn remember_prefix(&mut self, name: &[u8]) {
        let prefix = prefix(name);
        let known = self.prefixes.iter().any(|it| it.as_bytes() == prefix);
        if !known && self.prefixes.len() < PREFIXES_MAX {
            self.prefixes.push(String::from_utf8_lossy(prefix).into_owned());
        }
    }

    /// Adds an HTTP answer count to its status class. The status may be `2xx` or `200`.
    fn take_http(
        &mut self,
        family: &'static MetricFamily,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        cumulative(value)?;
        let status = Label::find(labels, b"status");
        let missing = SampleError::MissingLabel { label: "status" };
        let class = match status.ok_or(missing)?.value.first() {
            Some(b'2') => Some(0),
            Some(b'4') => Some(1),
            Some(b'5') => Some(2),
            _ => None,
        };

        self.add_once(family, labels)?;
        // Clients request generation with POST. Polling a list of models is not demand.
        let asks = Label::find(labels, b"method").is_none_or(|it| *it.value == *b"POST");
        let spot = class.filter(|_| asks).map_or(ValuePosition::Checked, ValuePosition::Http);
        self.page.put(SeriesPosition::of_page(spot), value)
    }

    fn take_rejected(
        &mut self,
        family: &'static MetricFamily,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        cumulative(value)?;
        self.add_once(family, labels)?;
        if let Some(model) = Label::find(labels, b"model_name") {
            self.page.note_model(&model.value);
        }
        self.page.put(SeriesPosition::of_page(ValuePosition::Rejected), value)
    }

    /// Takes a sample that belongs to one rank.
    fn take_ranked(
        &mut self,
        Series { family, part }: Series,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        let detail = match family.signal {
            EngineSignal::SleepState => Some("sleep_state"),
            EngineSignal::WaitingByReason => Some("reason"),
            EngineSignal::Finished => Some("finished_reason"),
            EngineSignal::Distribution(_) if part == SampleKind::Bucket => Some("le"),
            _ => None,
        };

        let engine = self.page.engine.unwrap_or(Engine::Vllm);
        let place = (engine.dialect().place)(labels, detail)?;
        let Some(place) = place else { return Ok(SeriesPosition::PASSED_OVER) };
        if let Some(label) = detail
            && place.detail.is_none()
        {
            return Err(SampleError::MissingLabel { label });
        }
        if let Some(model) = place.model {
            self.page.note_model(model);
        }
        let value_of = match (family.signal, place.detail) {
            (EngineSignal::Distribution(of), _) => {
                let rank = self.page.rank(place.rank)?;
                let draft = &mut self.page.ranks[rank];
                let (at, spot) = draft.observe(of, family, part, &place, value)?;
                self.bucket = (part == SampleKind::Bucket).then_some((rank, at));
                return Ok(SeriesPosition::of(draft, spot));
            }
            (EngineSignal::CacheConfig, _) => {
                let rank = self.page.rank(place.rank)?;
                vllm::take_cache_config(&mut self.page.ranks[rank], labels)?;
                return Ok(SeriesPosition::PASSED_OVER);
            }
            (EngineSignal::Value(value), _) => Some(value),
            (EngineSignal::WaitingByReason, Some(reason)) => vllm::waiting(reason),
            (EngineSignal::SleepState, Some(state)) => vllm::sleep_state(state),
            (EngineSignal::Finished, Some(reason)) => match vllm::finished(reason) {
                Some(known) => Some(known),
                None => return self.take_finished_other(family, labels, &place, value),
            },
            _ => None,
        };

        let rank = self.page.rank(place.rank)?;
        let Some(of) = value_of else { return Ok(SeriesPosition::PASSED_OVER) };
        let draft = &mut self.page.ranks[rank];
        let spot = draft.set(of, family.spelling, &place, value)?;
        Ok(SeriesPosition::of(draft, spot))
    }

    fn take_finished_other(
        &mut self,
        family: &'static MetricFamily,
        labels: &[Label<'p>],
        place: &SamplePosition<'_>,
        value: f64,
    ) -> Result<SeriesPosition, SampleError> {
        cumulative(value)?;
        self.add_once(family, labels)?;
        let rank = self.page.rank(place.rank)?;
        let slot = SeriesPosition::of(&self.page.ranks[rank], ValuePosition::FinishedOther);
        self.page.put(slot, value)
    }

    /// Rejects a series of a summed family that has been added before, with labels in any order.
    fn add_once(
        &mut self,
        family: &'static MetricFamily,
        labels: &[Label<'p>],
    ) -> Result<(), SampleError> {
        let mut sorted = labels.to_vec();
        sorted.sort_unstable();
        if self.added.insert((family.name, sorted)) { Ok(()) } else { Err(SampleError::Duplicate) }
    }
}
