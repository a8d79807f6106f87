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
//! lists all adapters with requests under both labels, so an adapter that is listed as waiting may
//! well be running: what waits for a slot is known from `num_requests_waiting_by_reason`. With
//! several API servers the values of all are added up to an instant that has not come, and cannot be
//! taken apart.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::fleet::ModelName;
use crate::observe::engine::number::timestamp;
use crate::units::Seconds;

/// How far ahead of ours an engine's clock may be. A sum of two Unix times is decades ahead.
const SKEW_MAX: SignedDuration = SignedDuration::from_secs(300);

/// Adapters that one label may name. vLLM allows as many requests in a step as `max_num_seqs`, which
/// is rarely above 1024; what is beyond that says nothing new.
const ADAPTERS_MAX: usize = 4096;

/// One series of the gauge: its labels as they are, and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraSample<'p> {
    /// `max_lora`.
    pub slots: &'p str,
    /// `running_lora_adapters`.
    pub running: &'p str,
    /// `waiting_lora_adapters`.
    pub waiting: &'p str,
    /// The value.
    pub value: f64,
}

/// How many adapters a replica can serve in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slots(u32);

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

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WhyUnusable {
    /// Its value is not an instant.
    NotAnInstant(f64),
    /// Its value lies ahead: several processes have added theirs up.
    Ahead(Timestamp),
    /// `max_lora` is not a number above 0.
    NoSlots,
}

impl fmt::Display for WhyUnusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnInstant(value) => write!(f, "the value {value} is not an instant"),
            Self::Ahead(at) => {
                write!(f, "the value is {at}, which lies ahead: values of processes were added up")
            }
            Self::NoSlots => f.write_str("max_lora is not a number above 0"),
        }
    }
}

/// Reads the samples of one page. Samples of one and the same instant are read together, because
/// nothing says which of them came last.
#[must_use]
pub fn lora(now: Timestamp, samples: &[LoraSample<'_>], fresh_for: Seconds) -> Lora {
    let newest = samples.iter().map(|sample| sample.value).max_by(f64::total_cmp);
    let Some(newest) = newest else { return Lora::Absent };
    let Some(at) = timestamp(newest) else {
        return Lora::Unusable(WhyUnusable::NotAnInstant(newest));
    };
    let age = now.duration_since(at);
    if age < -SKEW_MAX {
        return Lora::Unusable(WhyUnusable::Ahead(at));
    }
    let current = || samples.iter().filter(|sample| sample.value.total_cmp(&newest).is_eq());
    let slots = current().map(|sample| sample.slots.trim().parse().ok().and_then(Slots::new)).min();
    let Some(Some(slots)) = slots else { return Lora::Unusable(WhyUnusable::NoSlots) };
    let reading = LoraReading {
        slots,
        running: current().flat_map(|sample| adapters(sample.running)).collect(),
        waiting: current().flat_map(|sample| adapters(sample.waiting)).collect(),
        at,
    };
    match Seconds::from_span(age).filter(|age| *age > fresh_for) {
        Some(age) => Lora::Stale { last: reading, age },
        None => Lora::Read(reading),
    }
}

/// The names in a list that is separated by commas; an empty one names nothing.
fn adapters(list: &str) -> impl Iterator<Item = ModelName> {
    list.split(',').take(ADAPTERS_MAX).filter_map(|name| ModelName::new(name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'p>(running: &'p str, waiting: &'p str, value: f64) -> LoraSample<'p> {
        LoraSample { slots: "2", running, waiting, value }
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
        for samples in [[old, new], [new, old]] {
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
        for value in [f64::NAN, f64::INFINITY, -1.0] {
            let unusable = lora(at(10), &[sample("a", "", value)], fresh_for());
            assert!(matches!(unusable, Lora::Unusable(WhyUnusable::NotAnInstant(_))), "{value}");
        }
        let none = LoraSample { slots: "0", ..sample("a", "", 10.0) };
        assert_eq!(lora(at(10), &[none], fresh_for()), Lora::Unusable(WhyUnusable::NoSlots));
    }
}
