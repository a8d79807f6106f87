//! Engine dialects: the only place that knows engines' metric names.
//!
//! A [`Reader`] is shown the names on a page, says which it wants, takes their samples one by one
//! and gives a [`Reading`]. It knows nothing of the page's syntax. The names and label rules of
//! each engine are in `vllm` and `sglang`, what names can stand for is in `family`, and `draft` puts
//! one rank's samples together.
//!
//! These rules keep a page from reading as less load than there is:
//!
//! - A *gauge* that is NaN, infinite or negative is absent (`None`), and so is a share of the KV
//!   cache that is clearly above the whole. The engine had nothing to say; the rest of its page is
//!   sound. It does not fall back to an older spelling of the gauge either.
//! - A *cumulative* number (a counter, a bucket, a histogram's count) that is NaN, infinite or
//!   negative makes the page unreadable: no engine can have counted that, so something else on the
//!   page may be wrong as well. The *sum* of a histogram can become NaN by one odd observation, so
//!   it costs only the histogram.
//! - Of several spellings of one signal the preferred one counts alone; they are never added up.
//! - Two series that mean the same number are an error: neither adding nor choosing is safe. This
//!   covers a page on which two models share a rank.
//! - A histogram without its sum, its count or, if it has buckets, its `+Inf` bucket has been cut.

mod draft;
mod family;
pub mod lora;
mod names;
mod number;
mod page;
mod sglang;
mod vllm;

use std::borrow::Cow;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::Reading;
use crate::observe::engine::family::{COMMON, Family, Part, Place, Signal, bare, prefix, series};
use crate::observe::engine::lora::LoraSample;
use crate::observe::engine::number::cumulative;
use crate::observe::engine::page::{PageDraft, Spot};
use crate::settings;

pub use crate::observe::engine::family::{Series, unwanted_sibling};
pub use crate::observe::engine::names::{PAGE_LABELS, Samples, common};
pub use crate::observe::engine::number::{decimal, leading_decimal, number};
pub use crate::observe::engine::page::{Filling, Slot, Template};

/// Ranks that a page may have. The largest data-parallel deployments have a few hundred, spread
/// over many pods; each rank costs a few kilobytes.
pub const RANKS_MAX: usize = 1024;

/// Buckets that one histogram may have. Engines have about twenty; custom edges may be more.
pub const BUCKETS_MAX: usize = 1024;

/// Prefixes of foreign metrics that are remembered for the error message.
const PREFIXES_MAX: usize = 8;

/// Prefixes that any server's runtime adds and that therefore name no engine.
const RUNTIME_PREFIXES: [&str; 5] = ["python_", "process_", "http_", "go_", "promhttp_"];

/// An inference engine whose page we can read.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// vLLM, V0 and V1, Python and Rust front ends.
    Vllm,
    /// `SGLang`.
    Sglang,
}

settings! { plain: Engine; }

impl Engine {
    /// Every engine.
    pub const ALL: [Self; 2] = [Self::Vllm, Self::Sglang];

    /// The engine as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// The prefix of its metrics.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        let [prefix, _] = self.prefixes();
        prefix
    }

    /// The prefixes of its metrics: as engines write them, and as `prometheus_client` rewrites
    /// them for a scraper that does not ask for UTF-8 names.
    const fn prefixes(self) -> [&'static str; 2] {
        match self {
            Self::Vllm => vllm::PREFIXES,
            Self::Sglang => sglang::PREFIXES,
        }
    }

    /// The families that a reading is made of, without prefix.
    const fn families(self) -> &'static [Family] {
        match self {
            Self::Vllm => vllm::FAMILIES,
            Self::Sglang => sglang::FAMILIES,
        }
    }
}

/// One label of a sample; bytes, because only few labels are ever looked at as text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label<'p> {
    /// Its name.
    pub name: Cow<'p, [u8]>,
    /// Its value, unescaped.
    pub value: Cow<'p, [u8]>,
}

impl Label<'_> {
    /// The label with this name.
    fn find<'l>(labels: &'l [Self], name: &[u8]) -> Option<&'l Self> {
        labels.iter().find(|label| *label.name == *name)
    }
}

/// Why a sample of a wanted series cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A second series says the same thing.
    #[error("another series on the page already gives the same number")]
    Duplicate,
    /// A cumulative number that cannot have been counted.
    #[error("a cumulative number cannot be {value}; it must be finite and at least 0")]
    NotCumulative {
        /// The number.
        value: f64,
    },
    /// A label is missing.
    #[error("the label {label} is missing")]
    MissingLabel {
        /// Its name.
        label: &'static str,
    },
    /// A label has a value that means nothing.
    #[error("the label {label} is {value:?}, expected {expected}")]
    BadLabel {
        /// Its name.
        label: &'static str,
        /// The value.
        value: String,
        /// What would have meant something.
        expected: &'static str,
    },
    /// More ranks than [`RANKS_MAX`].
    #[error("the page has more than {RANKS_MAX} ranks")]
    TooManyRanks,
    /// More buckets than [`BUCKETS_MAX`].
    #[error("the histogram has more than {BUCKETS_MAX} buckets")]
    TooManyBuckets,
}

impl SampleError {
    fn bad_label(label: &'static str, value: &[u8], expected: &'static str) -> Self {
        /// Characters of a label value that a message repeats.
        const SHOWN: usize = 60;
        let value = String::from_utf8_lossy(value).chars().take(SHOWN).collect();
        Self::BadLabel { label, value, expected }
    }
}

/// Why a page of sound samples gives no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// No metric of a known engine is on the page.
    UnknownEngine {
        /// Prefixes of the names that are, in order of appearance.
        prefixes: Vec<String>,
    },
    /// A histogram lacks one of its series: the page has been cut between two lines.
    CutHistogram {
        /// The family, without the engine's prefix.
        family: &'static str,
        /// The rank.
        rank: u32,
        /// The suffix or bucket that is missing.
        missing: &'static str,
    },
}

/// Puts a page's samples together to a [`Reading`].
///
/// It keeps no text but what ends up in the reading, and borrows the labels of those few families
/// that are summed over labels of any value; taking a sample allocates nothing but the growth of
/// the collections that hold the reading itself.
#[derive(Debug, Default)]
pub struct Reader<'p> {
    page: PageDraft,
    prefixes: Vec<String>,
    /// The newest series about adapters.
    lora: Vec<LoraSample<'p>>,
    /// Series that were added to a sum, since adding one twice would count it twice.
    added: BTreeSet<(&'static str, Vec<Label<'p>>)>,
    /// Where the last sample went, if it was a bucket that was used: the place in `ranks`, and in
    /// that the histogram.
    bucket: Option<(usize, usize)>,
}

impl<'p> Reader<'p> {
    /// A reader that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The engine that wrote the page, once a metric of one has been seen.
    #[must_use]
    pub const fn engine(&self) -> Option<Engine> {
        self.page.engine
    }

    /// Looks at the name of a family in a `HELP` or `TYPE` line. Engines that have not served a
    /// request may print nothing else, and such a page is still known to be theirs.
    pub fn note(&mut self, family: &[u8]) {
        if self.page.engine.is_none() {
            self.identify(family, |known| {
                // OpenMetrics names a counter's family without the `_total` of its samples.
                known.strip_suffix("_total").or_else(|| known.strip_suffix("_info"))
            });
        }
    }

    /// Whether samples of this name are wanted, and what they stand for.
    pub fn wants(&mut self, name: &[u8]) -> Option<Series> {
        if let Some(family) = COMMON.iter().find(|family| family.name.as_bytes() == name) {
            return Some(Series { family, part: Part::Whole });
        }
        let engine = match self.page.engine {
            Some(engine) => engine,
            None => self.identify(name, |_| None)?,
        };
        series(engine, name)
    }

    /// Takes one sample of a wanted series, and says where its value went.
    ///
    /// # Errors
    ///
    /// The sample repeats another, or is nothing that the series can mean.
    pub fn take(
        &mut self,
        series: Series,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<Slot, SampleError> {
        self.bucket = None;
        match series.family.signal {
            Signal::Started => self.page.take_started(value),
            Signal::Http => self.take_http(series.family, labels, value),
            Signal::Rejected => self.take_rejected(series.family, labels, value),
            Signal::Lora => {
                LoraSample::add_to(&mut self.lora, labels, value);
                Ok(Slot::of_page(Spot::Lora))
            }
            Signal::CacheConfig
            | Signal::SleepState
            | Signal::WaitingByReason
            | Signal::Finished
            | Signal::Value(_)
            | Signal::Distribution(_) => self.take_ranked(series, labels, value),
        }
    }

    /// Takes a sample that differs from the last one, a bucket, only in its `le` and its value, and
    /// says where its value went.
    ///
    /// # Errors
    ///
    /// As for [`Reader::take`].
    #[inline]
    pub fn take_next_bucket(&mut self, le: &[u8], value: f64) -> Result<Slot, SampleError> {
        // The samples of a series that is a part of another are passed over.
        let Some((rank, distribution)) = self.bucket else { return Ok(Slot::PASSED_OVER) };
        let draft = &mut self.page.ranks[rank];
        let spot = draft.observe_next(distribution, le, value)?;
        Ok(Slot::of(draft, spot))
    }

    /// What a page with the same series as those that were taken is made of.
    #[must_use]
    pub fn template(&self) -> Template {
        Template::new(&self.page)
    }

    /// The reading of all samples that were taken.
    ///
    /// # Errors
    ///
    /// No known engine wrote the page, or a histogram on it is incomplete.
    pub fn finish(self) -> Result<Reading, Unreadable> {
        let Self { page, prefixes, lora, .. } = self;
        page.finish(prefixes, &lora)
    }

    /// Recognises an engine by the name of one of its families; other names leave their prefix.
    fn identify(
        &mut self,
        name: &[u8],
        alternative: impl Fn(&'static str) -> Option<&'static str>,
    ) -> Option<Engine> {
        for engine in Engine::ALL {
            let known = bare(engine, name).is_some_and(|bare| {
                engine.families().iter().any(|family| {
                    bare == family.name.as_bytes()
                        || alternative(family.name).is_some_and(|other| bare == other.as_bytes())
                })
            });
            if known || series(engine, name).is_some() {
                self.page.engine = Some(engine);
                return self.page.engine;
            }
        }
        self.remember_prefix(name);
        None
    }

    fn remember_prefix(&mut self, name: &[u8]) {
        let prefix = prefix(name);
        let known = self.prefixes.iter().any(|known| known.as_bytes() == prefix);
        if !known && self.prefixes.len() < PREFIXES_MAX {
            self.prefixes.push(String::from_utf8_lossy(prefix).into_owned());
        }
    }

    /// Adds an HTTP answer count to its class of status. Status is `2xx` or `200` alike.
    fn take_http(
        &mut self,
        family: &'static Family,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<Slot, SampleError> {
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
        // Generation is asked for by POST; what polls a list of models is no demand.
        let asks = Label::find(labels, b"method").is_none_or(|it| *it.value == *b"POST");
        let spot = class.filter(|_| asks).map_or(Spot::Checked, Spot::Http);
        self.page.put(Slot::of_page(spot), value)
    }

    fn take_rejected(
        &mut self,
        family: &'static Family,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<Slot, SampleError> {
        cumulative(value)?;
        self.add_once(family, labels)?;
        if let Some(model) = Label::find(labels, b"model_name") {
            self.page.note_model(&model.value);
        }
        self.page.put(Slot::of_page(Spot::Rejected), value)
    }

    /// Takes a sample that belongs to one rank.
    fn take_ranked(
        &mut self,
        Series { family, part }: Series,
        labels: &[Label<'p>],
        value: f64,
    ) -> Result<Slot, SampleError> {
        let detail = match family.signal {
            Signal::SleepState => Some("sleep_state"),
            Signal::WaitingByReason => Some("reason"),
            Signal::Finished => Some("finished_reason"),
            Signal::Distribution(_) if part == Part::Bucket => Some("le"),
            _ => None,
        };
        let place = match self.page.engine {
            Some(Engine::Sglang) => sglang::place(labels, detail)?,
            Some(Engine::Vllm) | None => Some(vllm::place(labels, detail)?),
        };
        let Some(place) = place else { return Ok(Slot::PASSED_OVER) };
        if let Some(label) = detail
            && place.detail.is_none()
        {
            return Err(SampleError::MissingLabel { label });
        }
        if let Some(model) = place.model {
            self.page.note_model(model);
        }
        let value_of = match (family.signal, place.detail) {
            (Signal::Distribution(of), _) => {
                let rank = self.page.rank(place.rank)?;
                let draft = &mut self.page.ranks[rank];
                let (at, spot) = draft.observe(of, family, part, &place, value)?;
                self.bucket = (part == Part::Bucket).then_some((rank, at));
                return Ok(Slot::of(draft, spot));
            }
            (Signal::CacheConfig, _) => {
                let rank = self.page.rank(place.rank)?;
                vllm::take_cache_config(&mut self.page.ranks[rank], labels)?;
                return Ok(Slot::PASSED_OVER);
            }
            (Signal::Value(value), _) => Some(value),
            (Signal::WaitingByReason, Some(reason)) => vllm::waiting(reason),
            (Signal::SleepState, Some(state)) => vllm::sleep_state(state),
            (Signal::Finished, Some(reason)) => match vllm::finished(reason) {
                Some(known) => Some(known),
                None => return self.take_finished_other(family, labels, &place, value),
            },
            _ => None,
        };
        let rank = self.page.rank(place.rank)?;
        let Some(of) = value_of else { return Ok(Slot::PASSED_OVER) };
        let draft = &mut self.page.ranks[rank];
        let spot = draft.set(of, family.spelling, &place, value)?;
        Ok(Slot::of(draft, spot))
    }

    fn take_finished_other(
        &mut self,
        family: &'static Family,
        labels: &[Label<'p>],
        place: &Place<'_>,
        value: f64,
    ) -> Result<Slot, SampleError> {
        cumulative(value)?;
        self.add_once(family, labels)?;
        let rank = self.page.rank(place.rank)?;
        let slot = Slot::of(&self.page.ranks[rank], Spot::FinishedOther);
        self.page.put(slot, value)
    }

    /// Refuses a series of a summed family that has been added before, labels in any order.
    fn add_once(
        &mut self,
        family: &'static Family,
        labels: &[Label<'p>],
    ) -> Result<(), SampleError> {
        let mut labels = labels.to_vec();
        labels.sort_unstable();
        if self.added.insert((family.name, labels)) { Ok(()) } else { Err(SampleError::Duplicate) }
    }
}
