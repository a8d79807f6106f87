//! The record of the ranks of one replica: what each counts, and what they show together.

use jiff::{SignedDuration, Timestamp};

use crate::observe::histogram::Life;
use crate::observe::record::View;
use crate::observe::window::{Counter, Distribution, Gauge, Totals};
use crate::observe::{FinishedReading, GaugeSummary, RankReading};
use crate::units::{Requests, Tokens};

/// A gauge of all ranks together and of the one with the most. With one rank, as nearly all
/// replicas have, they are the same and only one is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankGauges {
    pub(crate) together: Gauge,
    pub(crate) hottest: Option<Gauge>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RankRecord {
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) finished: [Counter; 5],
    pub(crate) asked: Counter,
    pub(crate) ttft: Distribution,
    pub(crate) itl: Totals,
}

// === impl RankGauges ===

impl RankGauges {
    /// Adds what all ranks make together, and what each of them says.
    pub(crate) fn push(
        &mut self,
        at: Timestamp,
        together: f64,
        ranks: &[f64],
        window: SignedDuration,
    ) {
        if ranks.len() > 1 {
            // Up to now there was one rank, or none.
            self.hottest.get_or_insert_with(|| self.together.clone());
        }
        if let Some(hottest) = &mut self.hottest {
            hottest.push(at, largest(ranks), window);
        }
        self.together.push(at, together, window);
    }

    /// The gauge of all ranks and that of the hottest.
    pub(crate) fn summaries<Q: Copy>(
        &self,
        view: &View,
        quantity: impl Fn(f64) -> Option<Q>,
    ) -> (Option<GaugeSummary<Q>>, Option<GaugeSummary<Q>>) {
        let together = summary(&self.together, view, &quantity);
        let hottest = self.hottest.as_ref();
        (together, hottest.map_or(together, |hottest| summary(hottest, view, &quantity)))
    }
}

// === impl RankRecord ===

impl RankRecord {
    pub(crate) fn take(
        &mut self,
        at: Timestamp,
        rank: &RankReading,
        life: Life,
        window: SignedDuration,
    ) {
        push_tokens(&mut self.prompt_tokens, at, rank.prompt_tokens, life, window);
        push_tokens(&mut self.generation_tokens, at, rank.generation_tokens, life, window);
        let FinishedReading { stop, length, abort, error, other } = rank.finished;
        for (counter, value) in self.finished.iter_mut().zip([stop, length, abort, error, other]) {
            push(counter, at, value, life, window);
        }
        if let Some(asked) = &rank.completions_asked {
            self.asked.push(at, asked.count, life, window);
        }
        if let Some(ttft) = &rank.ttft {
            self.ttft.push(at, ttft, life, window);
        }
        if let Some(itl) = &rank.itl {
            self.itl.push(at, itl, life, window);
        }
    }
}

// === helpers ===

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

pub(crate) fn push(
    counter: &mut Counter,
    at: Timestamp,
    value: Option<Requests>,
    life: Life,
    window: SignedDuration,
) {
    if let Some(value) = value {
        counter.push(at, value.requests(), life, window);
    }
}

pub(crate) fn push_tokens(
    counter: &mut Counter,
    at: Timestamp,
    value: Option<Tokens>,
    life: Life,
    window: SignedDuration,
) {
    if let Some(value) = value {
        counter.push(at, value.tokens(), life, window);
    }
}

pub(crate) fn summary<Q>(
    gauge: &Gauge,
    view: &View,
    quantity: impl Fn(f64) -> Option<Q>,
) -> Option<GaugeSummary<Q>> {
    let (last, age) = gauge.last(view.now)?;
    if age > view.stale_after {
        return None;
    }
    let (mean, peak) = gauge.mean_and_peak(view.now, view.gauges)?;
    Some(GaugeSummary { last: quantity(last)?, mean: quantity(mean)?, peak: quantity(peak)?, age })
}
