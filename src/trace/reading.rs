//! A reading as a trace writes it: what differs from the replica's reading before.
//!
//! Of a page, little changes from one second to the next: some counters, some gauges, and of each
//! histogram the bucket that an observation fell into. Buckets are cumulative, so an observation
//! raises all that come after it; what is written is by how much each rises beyond the one before
//! it. Where that would not give back the very same bits, all of them are written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fleet::ModelName;
use crate::observe::engine::Engine;
use crate::observe::engine::lora::{LoraPage, Slots};
use crate::observe::histogram::Histogram;
use crate::observe::{FinishedReading, HttpReading, RankReading, Reading};
use crate::trace::word::{At, Number};
use crate::units::{Fraction, Requests, Tokens};

/// Values by their names; `null` is what is no longer there.
type Values = BTreeMap<Cow<'static, str>, Option<Number>>;

/// Histograms by their names; `null` is what is no longer there.
type Histograms = BTreeMap<Cow<'static, str>, Option<HistogramLine>>;

/// A reading, as written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadingLine {
    /// Whether there is nothing before it that it differs from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    whole: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page: Option<PageLine>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    values: Values,
    /// What the page says of adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lora: Option<LoraLine>,
    /// Whether it says nothing of them any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    no_lora: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<RankLine>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageLine {
    engine: String,
    samples: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started: Option<At>,
    models: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoraLine {
    value: Number,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    running: Vec<String>,
    waiting: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RankLine {
    rank: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    values: Values,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    histograms: Histograms,
}

/// A histogram: all of it, or by how much each bucket rises beyond the one before it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistogramLine {
    sum: Number,
    count: Number,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<(Number, Number)>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    add: Vec<(usize, Number)>,
}

/// What has become of a histogram.
enum Change {
    /// It is as it was, or was never there.
    None,
    /// It is no longer there.
    Gone,
    /// It is this.
    To(HistogramLine),
}

/// The histograms of a rank, by their names.
type Named<'r> = [(&'static str, &'r Option<Histogram>); 8];

/// The reading as written after `before`, the replica's last one in the same file.
pub(super) fn line(before: Option<&Reading>, reading: &Reading) -> ReadingLine {
    let ranks = |reading: &Reading| reading.ranks.iter().map(|it| it.rank).collect::<Vec<_>>();
    let before = before.filter(|before| ranks(before) == ranks(reading));
    let page = page_line(reading);
    let known = before.map(page_line);
    let same = known.is_some_and(|known| {
        known.engine == page.engine
            && known.samples == page.samples
            && known.started == page.started
            && known.models == page.models
    });
    let known = before.and_then(|before| before.lora.as_deref());
    let lora = reading.lora.as_deref().filter(|lora| known != Some(lora)).map(lora_line);
    let no_lora = known.is_some() && reading.lora.is_none();
    let fresh = RankReading::default();
    let rank = |(at, rank): (usize, &RankReading)| {
        let before = before.map_or(&fresh, |before| &before.ranks[at]);
        let known = histograms(before);
        let changed =
            histograms(rank).into_iter().zip(known).filter_map(|((name, new), (_, old))| {
                match histogram_line(old.as_ref(), new.as_ref()) {
                    Change::None => None,
                    Change::Gone => Some((Cow::Borrowed(name), None)),
                    Change::To(line) => Some((Cow::Borrowed(name), Some(line))),
                }
            });
        RankLine {
            rank: rank.rank,
            values: changes(&rank_values(before), &rank_values(rank)),
            histograms: changed.collect(),
        }
    };
    let none = HttpReading::default();
    let known = before.map_or(page_values(&none, None), |it| page_values(&it.http, it.rejected));
    let ranks = reading
        .ranks
        .iter()
        .enumerate()
        .map(rank)
        .filter(|it| before.is_none() || !it.values.is_empty() || !it.histograms.is_empty());
    ReadingLine {
        whole: before.is_none(),
        page: (!same).then_some(page),
        values: changes(&known, &page_values(&reading.http, reading.rejected)),
        lora,
        no_lora,
        ranks: ranks.collect(),
    }
}

/// The reading that was written after `before`.
///
/// # Errors
///
/// What is wrong with it.
pub(super) fn reading(before: Option<&Reading>, line: ReadingLine) -> Result<Reading, String> {
    let ReadingLine { whole, page, values, lora, no_lora, ranks } = line;
    let before = if whole { None } else { Some(before.ok_or("nothing that it differs from")?) };
    let mut reading = match (before, page) {
        (before, Some(page)) => {
            let mut reading = empty(page)?;
            if let Some(before) = before {
                let Reading { http, rejected, lora, ranks, .. } = before.clone();
                reading = Reading { http, rejected, lora, ranks, ..reading };
            }
            reading
        }
        (Some(before), None) => before.clone(),
        (None, None) => return Err("a whole reading without its page".into()),
    };
    for (name, value) in values {
        set_page(&mut reading, &name, value.map(|it| it.0))?;
    }
    if let Some(lora) = lora {
        reading.lora = Some(Box::new(lora_page(lora)?));
    } else if no_lora {
        reading.lora = None;
    }
    for line in ranks {
        let known = reading.ranks.iter_mut().find(|it| it.rank == line.rank).filter(|_| !whole);
        if let Some(rank) = known {
            fill(rank, line)?;
        } else {
            let mut rank = RankReading { rank: line.rank, ..RankReading::default() };
            fill(&mut rank, line)?;
            reading.ranks.push(rank);
        }
    }
    Ok(reading)
}

// === the page ===

fn page_line(reading: &Reading) -> PageLine {
    PageLine {
        engine: reading.engine.label().to_owned(),
        samples: reading.samples,
        started: reading.started.map(At),
        models: reading.models.iter().map(|it| it.as_str().to_owned()).collect(),
    }
}

fn empty(page: PageLine) -> Result<Reading, String> {
    let PageLine { engine, samples, started, models } = page;
    let known = Engine::ALL.into_iter().find(|it| it.label() == engine);
    Ok(Reading {
        engine: known.ok_or_else(|| format!("the engine {engine:?}"))?,
        samples,
        started: started.map(|it| it.0),
        models: models.iter().map(|it| model(it)).collect::<Result<_, _>>()?,
        http: HttpReading::default(),
        rejected: None,
        lora: None,
        ranks: Vec::new(),
    })
}

fn model(text: &str) -> Result<ModelName, String> {
    ModelName::new(text).ok_or_else(|| "a model without a name".to_owned())
}

fn lora_line(page: &LoraPage) -> LoraLine {
    let LoraPage { value, slots, running, waiting } = page;
    let names = |names: &std::collections::BTreeSet<ModelName>| {
        names.iter().map(|it| it.as_str().to_owned()).collect()
    };
    LoraLine {
        value: Number(*value),
        slots: slots.map(Slots::number),
        running: names(running),
        waiting: names(waiting),
    }
}

fn lora_page(line: LoraLine) -> Result<LoraPage, String> {
    let LoraLine { value, slots, running, waiting } = line;
    let slots = slots.map(|it| Slots::new(it).ok_or("no slots")).transpose()?;
    let names = |names: &[String]| names.iter().map(|it| model(it)).collect::<Result<_, _>>();
    Ok(LoraPage { value: value.0, slots, running: names(&running)?, waiting: names(&waiting)? })
}

// === values ===

/// What differs.
fn changes<const N: usize>(
    before: &[(&'static str, Option<f64>); N],
    after: &[(&'static str, Option<f64>); N],
) -> Values {
    let differs = |((_, old), (_, new)): &(_, &(&'static str, Option<f64>))| {
        let (old, new): (&Option<f64>, &Option<f64>) = (old, new);
        old.map(f64::to_bits) != new.map(f64::to_bits)
    };
    let changed = before.iter().map(|(name, old)| (*name, *old)).zip(after).filter(differs);
    changed.map(|(_, (name, new))| (Cow::Borrowed(*name), new.map(Number))).collect()
}

fn page_values(http: &HttpReading, rejected: Option<Requests>) -> [(&'static str, Option<f64>); 4] {
    let HttpReading { success, client_error, server_error } = *http;
    let number = |it: Option<Requests>| it.map(Requests::requests);
    [
        ("success", number(success)),
        ("client_error", number(client_error)),
        ("server_error", number(server_error)),
        ("rejected", number(rejected)),
    ]
}

fn set_page(reading: &mut Reading, name: &str, value: Option<f64>) -> Result<(), String> {
    let HttpReading { success, client_error, server_error } = &mut reading.http;
    let place = match name {
        "success" => success,
        "client_error" => client_error,
        "server_error" => server_error,
        "rejected" => &mut reading.rejected,
        _ => return Err(format!("a value {name:?}")),
    };
    *place = quantity(value, Requests::new)?;
    Ok(())
}

fn rank_values(rank: &RankReading) -> [(&'static str, Option<f64>); 17] {
    let FinishedReading { stop, length, abort, error, other } = rank.finished;
    let requests = |it: Option<Requests>| it.map(Requests::requests);
    let tokens = |it: Option<Tokens>| it.map(Tokens::tokens);
    [
        ("running", requests(rank.running)),
        ("waiting", requests(rank.waiting)),
        ("waiting_capacity", requests(rank.waiting_capacity)),
        ("waiting_deferred", requests(rank.waiting_deferred)),
        ("kv_usage", rank.kv_usage.map(Fraction::fraction)),
        ("kv_capacity", tokens(rank.kv_capacity)),
        ("asleep", rank.asleep.map(|asleep| f64::from(u8::from(asleep)))),
        ("prompt_tokens", tokens(rank.prompt_tokens)),
        ("generation_tokens", tokens(rank.generation_tokens)),
        ("prefix_queries", tokens(rank.prefix_queries)),
        ("prefix_hits", tokens(rank.prefix_hits)),
        ("preemptions", requests(rank.preemptions)),
        ("stop", requests(stop)),
        ("length", requests(length)),
        ("abort", requests(abort)),
        ("error", requests(error)),
        ("other", requests(other)),
    ]
}

fn set_rank(rank: &mut RankReading, name: &str, value: Option<f64>) -> Result<(), String> {
    let finished = &mut rank.finished;
    let requests = match name {
        "running" => &mut rank.running,
        "waiting" => &mut rank.waiting,
        "waiting_capacity" => &mut rank.waiting_capacity,
        "waiting_deferred" => &mut rank.waiting_deferred,
        "preemptions" => &mut rank.preemptions,
        "stop" => &mut finished.stop,
        "length" => &mut finished.length,
        "abort" => &mut finished.abort,
        "error" => &mut finished.error,
        "other" => &mut finished.other,
        "kv_usage" => {
            rank.kv_usage = quantity(value, Fraction::new)?;
            return Ok(());
        }
        "asleep" => {
            rank.asleep = value.map(|value| value > 0.0);
            return Ok(());
        }
        _ => {
            let tokens = match name {
                "kv_capacity" => &mut rank.kv_capacity,
                "prompt_tokens" => &mut rank.prompt_tokens,
                "generation_tokens" => &mut rank.generation_tokens,
                "prefix_queries" => &mut rank.prefix_queries,
                "prefix_hits" => &mut rank.prefix_hits,
                _ => return Err(format!("a value {name:?}")),
            };
            *tokens = quantity(value, Tokens::new)?;
            return Ok(());
        }
    };
    *requests = quantity(value, Requests::new)?;
    Ok(())
}

fn quantity<Q>(value: Option<f64>, new: fn(f64) -> Option<Q>) -> Result<Option<Q>, String> {
    value.map(|value| new(value).ok_or_else(|| format!("a quantity of {value}"))).transpose()
}

fn fill(rank: &mut RankReading, line: RankLine) -> Result<(), String> {
    for (name, value) in line.values {
        set_rank(rank, &name, value.map(|it| it.0))?;
    }
    for (name, line) in line.histograms {
        let place = match &*name {
            "ttft" => &mut rank.ttft,
            "itl" => &mut rank.itl,
            "e2e" => &mut rank.e2e,
            "queue_time" => &mut rank.queue_time,
            "prompt_length" => &mut rank.prompt_length,
            "generation_length" => &mut rank.generation_length,
            "completions_asked" => &mut rank.completions_asked,
            "step_tokens" => &mut rank.step_tokens,
            _ => return Err(format!("a histogram {name:?}")),
        };
        *place = line.map(|line| histogram(place.as_ref(), line)).transpose()?;
    }
    Ok(())
}

// === histograms ===

fn histograms(rank: &RankReading) -> Named<'_> {
    let RankReading {
        ttft,
        itl,
        e2e,
        queue_time,
        prompt_length,
        generation_length,
        completions_asked,
        step_tokens,
        // The others are values.
        rank: _,
        running: _,
        waiting: _,
        waiting_capacity: _,
        waiting_deferred: _,
        kv_usage: _,
        kv_capacity: _,
        asleep: _,
        prompt_tokens: _,
        generation_tokens: _,
        prefix_queries: _,
        prefix_hits: _,
        preemptions: _,
        finished: _,
    } = rank;
    [
        ("ttft", ttft),
        ("itl", itl),
        ("e2e", e2e),
        ("queue_time", queue_time),
        ("prompt_length", prompt_length),
        ("generation_length", generation_length),
        ("completions_asked", completions_asked),
        ("step_tokens", step_tokens),
    ]
}

/// How a histogram comes after another.
fn histogram_line(before: Option<&Histogram>, after: Option<&Histogram>) -> Change {
    match (before, after) {
        (None, None) => Change::None,
        (Some(_), None) => Change::Gone,
        (before, Some(after)) => {
            if before.is_some_and(|before| is_same(before, after)) {
                return Change::None;
            }
            let line = |buckets, add| HistogramLine {
                sum: Number(after.sum),
                count: Number(after.count),
                buckets,
                add,
            };
            if let Some(before) = before
                && let Some(add) = rises(before, after)
            {
                return Change::To(line(None, add));
            }
            let all = after.buckets.iter().map(|(edge, count)| (Number(*edge), Number(*count)));
            Change::To(line(Some(all.collect()), Vec::new()))
        }
    }
}

fn is_same(before: &Histogram, after: &Histogram) -> bool {
    let bits = |it: &(f64, f64)| (it.0.to_bits(), it.1.to_bits());
    before.sum.to_bits() == after.sum.to_bits()
        && before.count.to_bits() == after.count.to_bits()
        && before.buckets.iter().map(bits).eq(after.buckets.iter().map(bits))
}

/// By how much each bucket rises beyond the one before it; `None` where adding that up again would
/// not give the same.
fn rises(before: &Histogram, after: &Histogram) -> Option<Vec<(usize, Number)>> {
    if before.buckets.len() != after.buckets.len() {
        return None;
    }
    let mut risen = 0.0;
    let mut steps = Vec::new();
    for (at, (old, new)) in before.buckets.iter().zip(&after.buckets).enumerate() {
        if old.0.to_bits() != new.0.to_bits() {
            return None;
        }
        let more = new.1 - old.1 - risen;
        if more != 0.0 {
            steps.push((at, Number(more)));
        }
        risen += more;
    }
    let back = added(before, &steps).ok()?;
    let bits = |it: &(f64, f64)| it.1.to_bits();
    back.iter().map(bits).eq(after.buckets.iter().map(bits)).then_some(steps)
}

fn added(before: &Histogram, steps: &[(usize, Number)]) -> Result<Vec<(f64, f64)>, String> {
    let mut steps = steps.iter().peekable();
    let mut risen = 0.0;
    let mut buckets = before.buckets.clone();
    for (at, (_, count)) in buckets.iter_mut().enumerate() {
        if let Some((_, more)) = steps.next_if(|(rising, _)| *rising == at) {
            risen += more.0;
        }
        if risen != 0.0 {
            *count += risen;
        }
    }
    match steps.next() {
        Some((at, _)) => Err(format!("a bucket {at} that is not there")),
        None => Ok(buckets),
    }
}

fn histogram(before: Option<&Histogram>, line: HistogramLine) -> Result<Histogram, String> {
    let HistogramLine { sum, count, buckets, add } = line;
    let buckets = match (buckets, before) {
        (Some(all), _) => all.into_iter().map(|(edge, count)| (edge.0, count.0)).collect(),
        (None, Some(before)) => added(before, &add)?,
        (None, None) => return Err("a histogram with nothing that it differs from".into()),
    };
    Ok(Histogram { sum: sum.0, count: count.0, buckets })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(counts: &[u32], step: f64) -> Histogram {
        let mut total = 0.0;
        let buckets: Vec<(f64, f64)> = counts
            .iter()
            .enumerate()
            .map(|(at, count)| {
                total += f64::from(*count) * step;
                let last = at + 1 == counts.len();
                (if last { f64::INFINITY } else { at as f64 }, total)
            })
            .collect();
        Histogram { sum: total * 0.37, count: total, buckets }
    }

    fn a_reading(running: Option<u32>, ttft: Option<&Histogram>, ranks: u32) -> Reading {
        let rank = |rank| RankReading {
            rank,
            running: running.and_then(|it| Requests::new(f64::from(it))),
            ttft: ttft.cloned(),
            ..RankReading::default()
        };
        let page = PageLine {
            engine: "vllm".into(),
            samples: 40,
            started: None,
            models: vec!["m".into()],
        };
        Reading { ranks: (0..ranks).map(rank).collect(), ..empty(page).unwrap() }
    }

    fn any_reading() -> impl Strategy<Value = Reading> {
        let counts = prop::collection::vec(0_u32..5, 0..6);
        let steps = prop::sample::select(vec![1.0, 0.1, 1e17]);
        let ttft = proptest::option::of((counts, steps));
        let lora = proptest::option::of(0_u32..3);
        let parts = (proptest::option::of(0_u32..9), ttft, 0_u32..3, lora);
        parts.prop_map(|(running, ttft, ranks, lora)| {
            let ttft = ttft.map(|(counts, step)| histogram(&counts, step));
            let lora = lora.map(|slots| {
                let running = [ModelName::new("one").unwrap()].into();
                let (slots, waiting) = (Slots::new(slots), std::collections::BTreeSet::new());
                Box::new(LoraPage { value: 1.5, slots, running, waiting })
            });
            Reading { lora, ..a_reading(running, ttft.as_ref(), ranks) }
        })
    }

    proptest! {
        #[test]
        fn any_readings_after_one_another_come_back_as_they_were(
            readings in prop::collection::vec(any_reading(), 1..8)
        ) {
            let mut before: Option<Reading> = None;
            for one in readings {
                let text = serde_json::to_string(&line(before.as_ref(), &one)).unwrap();
                let read: ReadingLine = serde_json::from_str(&text).unwrap();
                let back = reading(before.as_ref(), read).unwrap();
                prop_assert_eq!(&back, &one, "{}", text);
                before = Some(one);
            }
        }
    }

    #[test]
    fn an_observation_is_one_number_however_many_buckets_it_raises() {
        let before = a_reading(Some(3), Some(&histogram(&[1, 2, 3, 4], 1.0)), 1);
        let after = a_reading(Some(3), Some(&histogram(&[1, 3, 3, 4], 1.0)), 1);
        let text = serde_json::to_string(&line(Some(&before), &after)).unwrap();
        assert_eq!(
            text,
            r#"{"ranks":[{"rank":0,"histograms":{"ttft":{"sum":4.07,"count":11,"add":[[1,1]]}}}]}"#
        );
    }
}
