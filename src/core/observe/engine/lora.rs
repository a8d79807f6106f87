//! `LoRA` adapters: what `vllm:lora_requests_info` says.
//!
//! # Shape
//!
//! ```text
//! vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e+09
//! ```
//!
//! A gauge since vLLM 0.6.4 whose value is the Unix time at which its labels were true. It has no
//! `model_name` and no `engine`. Each combination of labels is a series of its own that stays on the
//! page for ever, and the same adapters in another order are another combination; so the newest value
//! alone counts. Without `--enable-lora` there is no sample.
//!
//! # What it does not say
//!
//! An adapter is listed while it has requests, so one that is loaded and idle is not seen. vLLM 0.32
//! gives both labels the same adapters, those that run, so an adapter that waits for a slot is on
//! neither list: that some do is known from `num_requests_waiting_by_reason`. With
//! several API servers the values of all are added up to an instant that has not come, and cannot be
//! taken apart.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fleet::ModelName;
use crate::observe::engine::Label;
use crate::observe::engine::number::timestamp;
use crate::units::Seconds;

/// How far ahead of ours an engine's clock may be. A sum of two Unix times is decades ahead.
const SKEW_MAX: SignedDuration = SignedDuration::from_secs(300);

/// Adapters that one label may name. vLLM allows as many requests in a step as `max_num_seqs`, which
/// is rarely above 1024; what is beyond that says nothing new.
const ADAPTERS_MAX: usize = 4096;

/// One series of the gauge: its labels as they are, and its value. A label that is empty may be
/// missing, because a Prometheus drops it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LoraSample<'p> {
    /// `max_lora`.
    slots: Cow<'p, [u8]>,
    /// `running_lora_adapters`.
    running: Cow<'p, [u8]>,
    /// `waiting_lora_adapters`.
    waiting: Cow<'p, [u8]>,
    /// The value.
    value: f64,
}

/// The newest series of a page. Those of one and the same value are put together, because nothing
/// says which of them came last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraPage {
    /// The value: a Unix time, if it means anything.
    #[serde(with = "crate::observe::exact")]
    pub value: f64,
    /// How many adapters the replica can serve in one step; of several numbers the least, and
    /// `None` when one is not a number above 0.
    pub slots: Option<Slots>,
    /// Adapters with a request that runs.
    pub running: BTreeSet<ModelName>,
    /// Adapters with a request that waits.
    pub waiting: BTreeSet<ModelName>,
}

/// How many adapters a replica can serve in one step.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct Slots(u32);

impl TryFrom<u32> for Slots {
    type Error = &'static str;

    fn try_from(number: u32) -> Result<Self, &'static str> {
        Self::new(number).ok_or("a replica with adapters has at least one slot")
    }
}

impl Slots {
    /// So many, but not none.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number > 0 { Some(Self(number)) } else { None }
    }

    /// How many.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The adapters of one replica at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraReading {
    /// How many it can serve in one step.
    pub slots: Slots,
    /// Those with a request that runs.
    pub running: BTreeSet<ModelName>,
    /// Those with a request that waits.
    pub waiting: BTreeSet<ModelName>,
    /// When that was.
    pub at: Timestamp,
}

/// What a page says of `LoRA` adapters.
#[derive(Clone, Debug, PartialEq)]
pub enum Lora {
    /// There is no sample: `LoRA` is off, or nothing has been asked yet.
    Absent,
    /// The newest sample.
    Read(LoraReading),
    /// The newest sample is older than asked for. A replica that works does not leave it so, one
    /// without requests does.
    Stale {
        /// What it said.
        last: LoraReading,
        /// How old it is.
        age: Seconds,
    },
    /// The newest sample means nothing.
    Unusable(WhyUnusable),
}

/// Why a sample means nothing.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyUnusable {
    /// Its value is not an instant.
    #[display("the value {_0} is not an instant")]
    NotAnInstant(#[serde(with = "crate::observe::exact")] f64),
    /// Its value lies ahead: several processes have added theirs up.
    #[display("the value is {_0}, which lies ahead: values of processes were added up")]
    Ahead(Timestamp),
    /// `max_lora` is not a number above 0.
    #[display("max_lora is not a number above 0")]
    NoSlots,
}

/// Judges what a page says at `now`, when it was asked for.
#[must_use]
pub fn lora(now: Timestamp, page: Option<&LoraPage>, fresh_for: Seconds) -> Lora {
    let Some(LoraPage { value, slots, running, waiting }) = page else { return Lora::Absent };
    let Some(at) = timestamp(*value) else {
        return Lora::Unusable(WhyUnusable::NotAnInstant(*value));
    };
    let age = now.duration_since(at);
    if age < -SKEW_MAX {
        return Lora::Unusable(WhyUnusable::Ahead(at));
    }
    let Some(slots) = *slots else { return Lora::Unusable(WhyUnusable::NoSlots) };
    let reading = LoraReading { slots, running: running.clone(), waiting: waiting.clone(), at };
    match Seconds::from_span(age).filter(|age| *age > fresh_for) {
        Some(age) => Lora::Stale { last: reading, age },
        None => Lora::Read(reading),
    }
}

// === impl LoraSample ===

impl<'p> LoraSample<'p> {
    pub(super) fn new(labels: &[Label<'p>], value: f64) -> Self {
        let label =
            |name: &[u8]| Label::find(labels, name).map(|it| it.value.clone()).unwrap_or_default();
        Self {
            slots: label(b"max_lora"),
            running: label(b"running_lora_adapters"),
            waiting: label(b"waiting_lora_adapters"),
            value,
        }
    }

    /// Adds a series to the newest ones, unless it is older than they are. Old ones cost nothing:
    /// a server of many adapters has thousands. One whose value is no number is at no time, newest or
    /// not, and says nothing.
    pub(super) fn add_to(newest: &mut Vec<Self>, labels: &[Label<'p>], value: f64) {
        if value.is_nan() {
            return;
        }
        let than_known = newest.first().map(|known| value.total_cmp(&known.value));
        match than_known {
            Some(Ordering::Less) => return,
            Some(Ordering::Greater) => newest.clear(),
            Some(Ordering::Equal) | None => {}
        }
        newest.push(Self::new(labels, value));
    }

    /// What the newest series say; `None` when there are none.
    pub(super) fn together(newest: &[Self]) -> Option<LoraPage> {
        let value = newest.first()?.value;
        Some(LoraPage {
            value,
            slots: newest.iter().map(|sample| slots(&sample.slots)).min().flatten(),
            running: newest.iter().flat_map(|sample| adapters(&sample.running)).collect(),
            waiting: newest.iter().flat_map(|sample| adapters(&sample.waiting)).collect(),
        })
    }
}

fn slots(label: &[u8]) -> Option<Slots> {
    std::str::from_utf8(label).ok()?.trim().parse().ok().and_then(Slots::new)
}

/// The names in a list that is separated by commas; an empty one names nothing.
fn adapters(list: &[u8]) -> BTreeSet<ModelName> {
    let names = list.split(|byte| *byte == b',').take(ADAPTERS_MAX);
    names.filter_map(|name| ModelName::new(String::from_utf8_lossy(name).trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'p>(running: &'p str, waiting: &'p str, value: f64) -> LoraSample<'p> {
        let bytes = |text: &'p str| Cow::Borrowed(text.as_bytes());
        let (running, waiting) = (bytes(running), bytes(waiting));
        LoraSample { slots: bytes("2"), running, waiting, value }
    }

    fn page(samples: &[LoraSample<'_>]) -> Option<LoraPage> {
        let mut newest = Vec::new();
        for LoraSample { slots, running, waiting, value } in samples {
            let label = |name: &'static [u8], value: &Cow<'static, [u8]>| Label {
                name: Cow::Borrowed(name),
                value: value.clone(),
            };
            let owned = |text: &[u8]| Cow::Owned(text.to_vec());
            let labels = [
                label(b"max_lora", &owned(slots)),
                label(b"running_lora_adapters", &owned(running)),
                label(b"waiting_lora_adapters", &owned(waiting)),
            ];
            LoraSample::add_to(&mut newest, &labels, *value);
        }
        LoraSample::together(&newest)
    }

    fn lora(now: Timestamp, samples: &[LoraSample<'_>], fresh_for: Seconds) -> Lora {
        super::lora(now, page(samples).as_ref(), fresh_for)
    }

    fn names(names: &[&str]) -> BTreeSet<ModelName> {
        names.iter().map(|name| ModelName::new(name).unwrap()).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fresh_for() -> Seconds {
        Seconds::new(60.0).unwrap()
    }

    fn read(samples: &[LoraSample<'_>]) -> LoraReading {
        match lora(at(1_257_894_570), samples, fresh_for()) {
            Lora::Read(reading) => reading,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_newest_series_alone_counts_in_whatever_order_they_come() {
        let old = sample("lora4,lora2", "lora3", 1.257_894_567e9);
        let new = sample("lora4, lora3", "", 1.257_894_569e9);
        for samples in [[old.clone(), new.clone()], [new, old]] {
            let reading = read(&samples);
            assert_eq!(reading.running, names(&["lora3", "lora4"]));
            assert_eq!(reading.waiting, BTreeSet::new(), "an empty list names nothing");
            assert_eq!(reading.slots.number(), 2);
        }
    }

    #[test]
    fn series_of_one_instant_are_read_together() {
        let reading =
            read(&[sample("a", "", 1.257_894_569e9), sample("b,a", "c", 1.257_894_569e9)]);
        assert_eq!(reading.running, names(&["a", "b"]));
        assert_eq!(reading.waiting, names(&["c"]));
    }

    #[test]
    fn no_series_is_absence_and_not_an_empty_replica() {
        assert_eq!(lora(at(10), &[], fresh_for()), Lora::Absent);
    }

    #[test]
    fn an_old_sample_says_its_age() {
        let Lora::Stale { last, age } = lora(at(1_000), &[sample("a", "", 900.0)], fresh_for())
        else {
            panic!("it is 100 s old");
        };
        assert!((age.seconds() - 100.0).abs() < 1e-9);
        assert_eq!(last.running, names(&["a"]));
        assert!(matches!(lora(at(960), &[sample("a", "", 900.0)], fresh_for()), Lora::Read(_)));
    }

    #[test]
    fn a_value_that_is_no_number_says_nothing_and_hides_nothing() {
        let (nothing, something) = (sample("a", "", f64::NAN), sample("b", "", 900.0));
        assert_eq!(page(std::slice::from_ref(&nothing)), None);
        for samples in [[nothing.clone(), something.clone()], [something, nothing]] {
            let read = page(&samples);
            assert_eq!(read, page(&samples), "and a page read twice says the same");
            assert_eq!(read.unwrap().running, names(&["b"]));
        }
    }

    #[test]
    fn a_sum_of_two_clocks_is_refused() {
        let now = 1_257_894_569;
        let two = sample("a", "", 2.0 * 1.257_894_569e9);
        assert!(matches!(
            lora(at(now), &[two], fresh_for()),
            Lora::Unusable(WhyUnusable::Ahead(_))
        ));
        let ahead = sample("a", "", 1.257_894_569e9 + 299.0);
        assert!(matches!(lora(at(now), &[ahead], fresh_for()), Lora::Read(_)), "clocks differ");
    }

    #[test]
    fn a_sample_without_an_instant_or_slots_is_refused() {
        for value in [f64::INFINITY, -1.0] {
            let unusable = lora(at(10), &[sample("a", "", value)], fresh_for());
            assert!(matches!(unusable, Lora::Unusable(WhyUnusable::NotAnInstant(_))), "{value}");
        }
        let none = LoraSample { slots: Cow::Borrowed(b"0"), ..sample("a", "", 10.0) };
        assert_eq!(lora(at(10), &[none], fresh_for()), Lora::Unusable(WhyUnusable::NoSlots));
    }
}
