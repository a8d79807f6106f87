//! Other autoscalers, to compare with. Each replaces what a scenario says of its variants'
//! autoscalers, and nothing else, so that all meet the same requests and the same starts.
//!
//! Each that is more than a stock HPA has a file of its own, which says where its rules come from.

pub mod apa;
mod demand;
mod dynamo;
mod keda;
pub mod kpa;
pub mod law;
mod melange;
pub mod oracle;
mod profile;
pub mod schedule;
mod slo_aware;
pub mod wva;

use std::fmt;

use crate::simulate::Micros;
use crate::simulate::peers::law::Rule;
use crate::simulate::peers::oracle::OracleError;
use crate::simulate::run::Watch;
use crate::simulate::scaler::{self, MilliValue, Select};
use crate::simulate::scenario::{Actuator, Hpa, Keda, SYNC, Scenario, Signal, Variant};
use crate::units::Replicas;

/// Who scales the variants of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peer {
    /// Whoever the scenario says.
    Scenario,
    /// The same, but nothing is ever scaled down.
    OnlyUp,
    /// Nobody: this many replicas of each variant, all the time.
    Static(Replicas),
    /// A stock HPA without `behavior`.
    Average {
        /// What it follows.
        signal: Signal,
        /// The average for each replica that it aims at, in thousandths.
        target: MilliValue,
    },
    /// KEDA on requests a second for each replica, in thousandths.
    KedaRate(MilliValue),
    /// Knative's pod autoscaler on requests in flight, in thousandths.
    Kpa(MilliValue),
    /// `AIBrix`' APA on the use of the KV cache, in thousandths.
    Apa(MilliValue),
    /// llm-d's Workload Variant Autoscaler.
    Wva(wva::Version),
    /// llm-d's control law on latency.
    SloAware,
    /// Dynamo's planner by load.
    DynamoLoad,
    /// Dynamo's planner by traffic.
    DynamoThroughput,
    /// The cheapest static mix for the busiest minute, as Mélange finds it.
    Melange,
    /// A clairvoyant schedule.
    Oracle,
}

/// Why a text names no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be plimsoll, plimsoll-only-up, static:N, waiting:N, in-flight:N, kv:SHARE, keda-rate:RATE, \
     kpa:N, apa:SHARE, wva-v1, wva-v2, llm-d-slo, dynamo-load, dynamo-throughput, melange or oracle"
)]
pub struct UnknownPeer;

impl Peer {
    /// Those without a number, by name.
    const NAMED: [(&str, Self); 9] = [
        ("plimsoll", Self::Scenario),
        ("plimsoll-only-up", Self::OnlyUp),
        ("wva-v1", Self::Wva(wva::Version::V1)),
        ("wva-v2", Self::Wva(wva::Version::V2)),
        ("llm-d-slo", Self::SloAware),
        ("dynamo-load", Self::DynamoLoad),
        ("dynamo-throughput", Self::DynamoThroughput),
        ("melange", Self::Melange),
        ("oracle", Self::Oracle),
    ];

    /// Reads a peer.
    ///
    /// # Errors
    ///
    /// The text names none.
    pub fn parse(text: &str) -> Result<Self, UnknownPeer> {
        if let Some((_, peer)) = Self::NAMED.into_iter().find(|(name, _)| *name == text) {
            return Ok(peer);
        }
        let (name, value) = text.split_once(':').ok_or(UnknownPeer)?;
        if name == "static" {
            let count = value.parse().ok().and_then(Replicas::new).ok_or(UnknownPeer)?;
            return Ok(Self::Static(count));
        }
        let target = value.parse().ok().and_then(milli).ok_or(UnknownPeer)?;
        match name {
            // What most guides for vLLM on Kubernetes scale on, such as the production stack's with
            // KEDA: vllm:num_requests_waiting, with a target of 5.
            "waiting" => Ok(Self::Average { signal: Signal::Waiting, target }),
            // Requests in flight for each replica, as Knative's and KServe's concurrency.
            "in-flight" => Ok(Self::Average { signal: Signal::InFlight, target }),
            // Google's guide for GKE scales on vllm:gpu_cache_usage_perc and calls it the second
            // choice after the queue.
            "kv" => Ok(Self::Average { signal: Signal::KvUsage, target }),
            "keda-rate" => Ok(Self::KedaRate(target)),
            "kpa" => Ok(Self::Kpa(target)),
            "apa" => Ok(Self::Apa(target)),
            _ => Err(UnknownPeer),
        }
    }

    /// Makes this peer scale the variants of a scenario that is run with a seed. Whoever knows the
    /// future asks `watch` whether to go on looking at it.
    ///
    /// # Errors
    ///
    /// This peer must know the requests beforehand, and a workload has none that can be known.
    pub fn apply(
        self,
        scenario: &mut Scenario,
        seed: u64,
        watch: &mut impl Watch,
    ) -> Result<(), OracleError> {
        match self {
            Self::Scenario => {}
            Self::Wva(version) => wva::apply(version, scenario),
            Self::Melange => melange::apply(scenario, seed)?,
            Self::Oracle => oracle::apply(scenario, seed, watch)?,
            Self::OnlyUp
            | Self::Static(_)
            | Self::Average { .. }
            | Self::KedaRate(_)
            | Self::Kpa(_)
            | Self::Apa(_)
            | Self::SloAware
            | Self::DynamoLoad
            | Self::DynamoThroughput => {
                for variant in &mut scenario.variants {
                    self.take(variant);
                }
            }
        }
        Ok(())
    }

    /// Makes this peer scale a variant, where it looks at nothing else.
    fn take(self, variant: &mut Variant) {
        if self != Self::OnlyUp && !matches!(self, Self::Static(_)) {
            // What replicas say cannot bring a variant back from zero.
            variant.initial = variant.initial.max(Replicas::ONE);
        }
        let rule = match self {
            Self::OnlyUp => {
                if let Actuator::Hpa(hpa) | Actuator::Keda(Keda { hpa, .. }) = &mut variant.actuator
                {
                    hpa.settings.down.select = Select::Disabled;
                }
                return;
            }
            Self::Static(count) => {
                variant.initial = count;
                variant.actuator = Actuator::Fixed;
                return;
            }
            Self::Average { signal, target } => {
                variant.actuator = stock(variant, signal, target);
                return;
            }
            Self::KedaRate(target) => {
                variant.actuator = keda::on_rate(variant, target);
                return;
            }
            Self::Kpa(concurrency) => {
                Rule::Kpa(kpa::Settings { concurrency: concurrency.0 as f64 / 1000.0 })
            }
            Self::Apa(target) => Rule::Apa(apa::Settings::aiming_at(target.0 as f64 / 1000.0)),
            Self::SloAware => Rule::SloAware,
            Self::DynamoLoad => Rule::DynamoLoad,
            Self::DynamoThroughput => Rule::DynamoThroughput,
            Self::Scenario | Self::Wva(_) | Self::Melange | Self::Oracle => return,
        };
        variant.actuator = Actuator::Law(rule);
    }
}

fn stock(variant: &Variant, signal: Signal, target: MilliValue) -> Actuator {
    let (sync, delay) = match &variant.actuator {
        Actuator::Hpa(hpa) | Actuator::Keda(Keda { hpa, .. }) => (hpa.sync, hpa.delay),
        Actuator::Fixed | Actuator::Law(_) => (SYNC, Micros::ZERO),
    };
    let bounds = variant.spec.bounds;
    // An HPA on its own replicas' gauges cannot come back from zero.
    let min = bounds.min().max(Replicas::ONE);
    let max = bounds.max().unwrap_or(min);
    let settings = scaler::Settings::new(min, max, target);
    Actuator::Hpa(Hpa { signal, settings, sync, delay })
}

#[expect(clippy::cast_possible_truncation, reason = "the value is bounded")]
fn milli(value: f64) -> Option<MilliValue> {
    let milli = (value * 1000.0).round();
    (1.0..=1e12).contains(&milli).then_some(MilliValue(milli as i64))
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, target) = match self {
            Self::Static(count) => return write!(f, "static:{count}"),
            Self::Average { signal, target } => {
                let name = match signal {
                    Signal::Desired => "desired",
                    Signal::Waiting => "waiting",
                    Signal::InFlight => "in-flight",
                    Signal::KvUsage => "kv",
                    Signal::Rate => "rate",
                };
                (name, target)
            }
            Self::KedaRate(target) => ("keda-rate", target),
            Self::Kpa(target) => ("kpa", target),
            Self::Apa(target) => ("apa", target),
            Self::Scenario
            | Self::OnlyUp
            | Self::Wva(_)
            | Self::SloAware
            | Self::DynamoLoad
            | Self::DynamoThroughput
            | Self::Melange
            | Self::Oracle => {
                let named = Self::NAMED.iter().find(|(_, peer)| peer == self);
                return f.write_str(named.map_or("", |(name, _)| name));
            }
        };
        write!(f, "{name}:{}", target.0 as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_as_they_are_written() {
        let named = Peer::NAMED.iter().map(|(name, _)| *name);
        let counted = ["static:4", "waiting:5", "in-flight:40", "kv:0.7", "keda-rate:15"];
        for text in named.chain(counted).chain(["kpa:100", "apa:0.5"]) {
            assert_eq!(Peer::parse(text).unwrap().to_string(), text);
            if !text.contains(':') {
                assert!(UnknownPeer.to_string().contains(text), "{text} is not in the message");
            }
        }
        for text in ["", "static", "static:", "static:-1", "kv:0", "kv:nan", "kv:inf", "oracle:1"] {
            assert_eq!(Peer::parse(text), Err(UnknownPeer), "{text}");
        }
    }
}
