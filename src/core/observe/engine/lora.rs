//! `LoRA` adapters, as `vllm:lora_requests_info` reports them.
//!
//! # Shape
//!
//! ```text
//! vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e+09
//! ```
//!
//! A gauge since vLLM 0.6.4 whose value is the Unix time at which its labels were true. It has no
//! `model_name` and no `engine`. Each combination of labels is a series of its own that stays in
//! the response forever. The same adapters in another order are another combination, so only the
//! newest value counts. Without `--enable-lora` there is no sample.
//!
//! # Limits
//!
//! An adapter is listed while it has requests, so a loaded idle adapter is not seen. vLLM 0.32
//! gives both labels the same adapters, those that run. So an adapter that waits for a slot is on
//! neither list; only `num_requests_waiting_by_reason` shows that some do. With several API servers
//! the values of all are added up to an instant in the future, and cannot be separated.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fleet::ModelName;
use crate::fleet::names::is_model_name;
use crate::observe::engine::label::Label;
use crate::observe::engine::number::timestamp;
use crate::units::Seconds;

/// The maximum lead of an engine's clock. A sum of two Unix times is decades ahead.
const SKEW_MAX: SignedDuration = SignedDuration::from_secs(300);

/// The maximum of adapters in one label. vLLM allows as many requests in a step as `max_num_seqs`,
/// which is rarely above 1024. Further names add no information.
const ADAPTERS_MAX: usize = 4096;

/// One series of the gauge: its raw labels and its value. An empty label may be missing, because
/// Prometheus drops it.
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

/// The newest series of a response. Series with the same value are combined, because their order is
/// not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraPage {
    /// The value: a Unix time, if it is valid.
    #[serde(with = "crate::observe::exact")]
    pub value: f64,
    /// The adapters that the replica can serve in one step. The smallest if there are several
    /// values, and `None` if one is not a number above 0.
    pub slots: Option<Slots>,
    /// Adapters with a request that runs.
    pub running: BTreeSet<ModelName>,
    /// Adapters with a request that waits.
    pub waiting: BTreeSet<ModelName>,
}

/// The number of adapters that a replica can serve in one step.
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
    /// Creates a count of slots; `None` for 0.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number > 0 { Some(Self(number)) } else { None }
    }

    /// The number of slots.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The adapters of one replica at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraReading {
    /// The adapters that it can serve in one step.
    pub slots: Slots,
    /// Adapters with a running request.
    pub running: BTreeSet<ModelName>,
    /// Adapters with a waiting request.
    pub waiting: BTreeSet<ModelName>,
    /// The instant.
    pub at: Timestamp,
}

/// The `LoRA` adapters in a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Lora {
    /// There is no sample: `LoRA` is off, or there was no request yet.
    Absent,
    /// The newest sample.
    Read(LoraReading),
    /// The newest sample is older than allowed. A working replica keeps it fresh; a replica without
    /// requests does not.
    Stale {
        /// The last reading.
        last: LoraReading,
        /// Its age.
        age: Seconds,
    },
    /// The newest sample is invalid.
    Unusable(WhyUnusable),
}

/// The reason why a sample is invalid.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyUnusable {
    /// Its value is not an instant.
    #[display("the value {_0} is not an instant")]
    NotAnInstant(#[serde(with = "crate::observe::exact")] f64),
    /// Its value lies ahead: it is the sum of several processes' values.
    #[display("the value {_0} is in the future: values of several processes were added up")]
    Ahead(Timestamp),
    /// `max_lora` is not a number above 0.
    #[display("max_lora is not a number above 0")]
    NoSlots,
}

/// Assesses the adapters of a response that was requested at `now`.
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
        Self {
            slots: label_value(labels, b"max_lora"),
            running: label_value(labels, b"running_lora_adapters"),
            waiting: label_value(labels, b"waiting_lora_adapters"),
            value,
        }
    }

    /// Adds a series to the newest ones, unless it is older. Old ones cost nothing: a server with
    /// many adapters has thousands. A series whose value is NaN has no time and is ignored.
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

    /// Combines the newest series; `None` when there are none.
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

/// The value of a label; empty if it is missing.
fn label_value<'p>(labels: &[Label<'p>], name: &[u8]) -> Cow<'p, [u8]> {
    Label::find(labels, name).map(|it| it.value.clone()).unwrap_or_default()
}

fn slots(label: &[u8]) -> Option<Slots> {
    std::str::from_utf8(label).ok()?.trim().parse().ok().and_then(Slots::new)
}

/// The names in a comma-separated list; an empty list has no names. A text that cannot name a model
/// is no adapter that can be placed, and must not reach a log or an Event.
fn adapters(list: &[u8]) -> BTreeSet<ModelName> {
    let names = list.split(|byte| *byte == b',').take(ADAPTERS_MAX).map(String::from_utf8_lossy);
    let valid = names.filter(|name| is_model_name(name.trim()));
    valid.filter_map(|name| ModelName::new(name.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'p>(running: &'p str, waiting: &'p str, value: f64) -> LoraSample<'p> {
        let [slots, running, waiting] = ["2", running, waiting].map(|it| it.as_bytes().into());
        LoraSample { slots, running, waiting, value }
    }

    fn page(samples: &[LoraSample<'_>]) -> Option<LoraPage> {
        let mut newest = Vec::new();
        for LoraSample { slots, running, waiting, value } in samples {
            let labels = [
                label(b"max_lora", slots),
                label(b"running_lora_adapters", running),
                label(b"waiting_lora_adapters", waiting),
            ];
            LoraSample::add_to(&mut newest, &labels, *value);
        }

        LoraSample::together(&newest)
    }

    fn label(name: &'static [u8], value: &[u8]) -> Label<'static> {
        Label { name: Cow::Borrowed(name), value: Cow::Owned(value.to_vec()) }
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
        let nothing = sample("a", "", f64::NAN);
        let something = sample("b", "", 900.0);
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
    fn what_cannot_name_a_model_is_no_adapter() {
        let long = "a".repeat(513);
        let running = format!("a, b ,\u{1b}[31mred,two\nlines,shop#a,{long},");
        assert_eq!(adapters(running.as_bytes()), names(&["a", "b"]));
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
