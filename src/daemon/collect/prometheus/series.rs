//! Series whose scraper is not known yet, and the scrapers that they show.
//!
//! A scraper is identified by the labels that it adds. Two scrapers of one engine are twins. Two
//! engines can have the same pod name or address too, such as those of two clusters at one global
//! server.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::collect::prometheus::decode::Point;
use crate::collect::prometheus::query::UP;
use plimsoll_core::observe::engine::{Engine, Label, PAGE_LABELS};

/// The name of the series that shows when an engine's process has started.
const PROCESS_START: &str = "process_start_time_seconds";

/// Labels that the scraper has added.
pub(crate) type ScraperLabels = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// A series that is held until the added labels are known.
pub(crate) struct BufferedSeries<'p> {
    pub(crate) labels: Vec<Label<'p>>,
    pub(crate) points: Vec<Point>,
}

/// The scraper of a replica, identified by the labels that it adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeriesSource {
    /// The added labels that distinguish it from other sources.
    pub(crate) own: ScraperLabels,
    /// The added labels that engines also use.
    pub(crate) shared: ScraperLabels,
}

// === impl BufferedSeries ===

impl BufferedSeries<'_> {
    pub(crate) fn is_engine(&self) -> bool {
        name(&self.labels).is_some_and(is_engine)
    }

    fn label_names(&self) -> BTreeSet<&[u8]> {
        self.labels.iter().map(|label| &*label.name).collect()
    }
}

// === impl SeriesSource ===

impl SeriesSource {
    /// Returns true if a series with these labels may come from this source, because no label
    /// contradicts it. A label may be missing, because rules may drop it from scraped series but
    /// not from `up`.
    pub(crate) fn has(&self, labels: &[Label<'_>]) -> bool {
        labels
            .iter()
            .all(|label| self.own.get(&*label.name).is_none_or(|value| **value == *label.value))
    }

    /// Restores a series' original labels, without those that this source has added.
    pub(crate) fn undo<'p>(&self, labels: &[Label<'p>], page: &mut Vec<Label<'p>>) {
        page.clear();
        for label in labels {
            let added = self.own.get(&*label.name).or_else(|| self.shared.get(&*label.name));
            if *label.name == *b"__name__" || added.is_some_and(|value| **value == *label.value) {
                continue;
            }
            let Label { name, value } = label.clone();
            page.push(Label { name: self.unexported(name), value });
        }
    }

    /// Returns the times at which its engine's process has started, as bits of whole seconds.
    fn starts(&self, series: &[BufferedSeries<'_>]) -> BTreeSet<u64> {
        series
            .iter()
            .filter(|it| name(&it.labels) == Some(PROCESS_START.as_bytes()) && self.has(&it.labels))
            .flat_map(|it| &it.points)
            .map(|(_, value)| value.round().to_bits())
            .collect()
    }

    /// Returns the original name of a label.
    fn unexported<'p>(&self, name: Cow<'p, [u8]>) -> Cow<'p, [u8]> {
        const EXPORTED: &[u8] = b"exported_";
        let is_exported = name
            .strip_prefix(EXPORTED)
            .is_some_and(|rest| self.own.contains_key(rest) || self.shared.contains_key(rest));

        match name {
            Cow::Borrowed(whole) if is_exported => Cow::Borrowed(&whole[EXPORTED.len()..]),
            Cow::Owned(whole) if is_exported => Cow::Owned(whole[EXPORTED.len()..].to_vec()),
            whole => whole,
        }
    }
}

/// Returns the sources of these series, in the order of their labels.
///
/// The labels of `up` are the added ones. Without `up`, the added labels are those that all series
/// have in common, except those that engines write.
pub(crate) fn sources(series: &[BufferedSeries<'_>]) -> Vec<SeriesSource> {
    let mut sources: BTreeSet<SeriesSource> = series
        .iter()
        .filter(|held| name(&held.labels) == Some(UP.as_bytes()))
        .map(|held| source(&held.labels, |_| true))
        .collect();
    let without: Vec<&BufferedSeries<'_>> = series
        .iter()
        .filter(|held| !sources.iter().any(|source| source.has(&held.labels)))
        .collect();
    let added: BTreeSet<&[u8]> = if sources.is_empty() {
        let all = without.iter().map(|held| held.label_names());
        all.reduce(|some, names| &some & &names).unwrap_or_default()
    } else {
        without
            .iter()
            .flat_map(|held| &held.labels)
            .map(|label| &*label.name)
            .filter(|name| sources.iter().any(|source| source.own.contains_key(*name)))
            .collect()
    };

    let more: Vec<SeriesSource> = without
        .iter()
        .map(|held| source(&held.labels, |name| added.contains(name) && !is_page_label(name)))
        .collect();
    sources.extend(more);
    sources.into_iter().collect()
}

/// Returns true if some of these sources show different processes. Their scrapers then do not scrape
/// the same engine. Sources without a process's start show nothing.
pub(crate) fn show_several_engines(
    sources: &[&SeriesSource],
    series: &[BufferedSeries<'_>],
) -> bool {
    let starts: Vec<BTreeSet<u64>> = sources
        .iter()
        .map(|source| source.starts(series))
        .filter(|found| !found.is_empty())
        .collect();

    // Of an engine that has restarted, one scraper may have only the earlier start yet.
    starts.windows(2).any(|pair| pair[0].is_disjoint(&pair[1]))
}

fn source(labels: &[Label<'_>], keep: impl Fn(&[u8]) -> bool) -> SeriesSource {
    let mut source = SeriesSource::default();
    for label in labels.iter().filter(|label| *label.name != *b"__name__" && keep(&label.name)) {
        let of = if is_page_label(&label.name) { &mut source.shared } else { &mut source.own };
        of.insert(label.name.as_ref().into(), label.value.as_ref().into());
    }
    source
}

fn is_page_label(name: &[u8]) -> bool {
    PAGE_LABELS.iter().any(|known| known.as_bytes() == name)
}

pub(crate) fn is_engine(name: &[u8]) -> bool {
    Engine::ALL.iter().any(|engine| engine.owns(name))
}

pub(crate) fn name<'a>(labels: &'a [Label<'_>]) -> Option<&'a [u8]> {
    value_of(labels, "__name__")
}

pub(crate) fn value_of<'a>(labels: &'a [Label<'_>], name: &str) -> Option<&'a [u8]> {
    labels.iter().find(|label| *label.name == *name.as_bytes()).map(|label| &*label.value)
}
