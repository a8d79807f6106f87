//! Simple autoscalers to compare with. Each replaces what a scenario says of its variants'
//! autoscalers, and nothing else, so that all meet the same requests and the same starts.

use std::fmt;

use crate::simulate::Micros;
use crate::simulate::scaler::{self, MilliValue};
use crate::simulate::scenario::{Actuator, Hpa, Keda, Scenario, Signal};
use crate::units::Replicas;

/// The period of the HPA's controller.
const SYNC: Micros = Micros::from_secs(15);

/// Who scales the variants of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peer {
    /// Whoever the scenario says.
    Scenario,
    /// Nobody: this many replicas of each variant, all the time.
    Static(Replicas),
    /// A stock HPA with the API server's defaults for `behavior`.
    Average {
        /// What it follows.
        signal: Signal,
        /// The average for each replica that it aims at, in thousandths.
        target: MilliValue,
    },
}

/// Why a text names no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be plimsoll, static:N, waiting:N, in-flight:N or kv:SHARE")]
pub struct UnknownPeer;

impl Peer {
    /// Reads a peer.
    ///
    /// # Errors
    ///
    /// The text names none.
    pub fn parse(text: &str) -> Result<Self, UnknownPeer> {
        if text == "plimsoll" {
            return Ok(Self::Scenario);
        }
        let (name, value) = text.split_once(':').ok_or(UnknownPeer)?;
        if name == "static" {
            let count = value.parse().ok().and_then(Replicas::new).ok_or(UnknownPeer)?;
            return Ok(Self::Static(count));
        }
        let signal = match name {
            // What most guides for vLLM on Kubernetes scale on, such as the production stack's with
            // KEDA: vllm:num_requests_waiting, with a target of 5.
            "waiting" => Signal::Waiting,
            // Requests in flight for each replica, as Knative's and KServe's concurrency.
            "in-flight" => Signal::InFlight,
            // Google's guide for GKE scales on vllm:gpu_cache_usage_perc and calls it the second
            // choice after the queue.
            "kv" => Signal::KvUsage,
            _ => return Err(UnknownPeer),
        };
        let value: f64 = value.parse().map_err(|_| UnknownPeer)?;
        let target = milli(value).ok_or(UnknownPeer)?;
        Ok(Self::Average { signal, target })
    }

    /// Makes this peer scale the variants of a scenario.
    pub fn apply(self, scenario: &mut Scenario) {
        for variant in &mut scenario.variants {
            match self {
                Self::Scenario => {}
                Self::Static(count) => {
                    variant.initial = count;
                    variant.actuator = Actuator::Fixed;
                }
                Self::Average { signal, target } => {
                    let (sync, delay) = match &variant.actuator {
                        Actuator::Hpa(hpa) | Actuator::Keda(Keda { hpa, .. }) => {
                            (hpa.sync, hpa.delay)
                        }
                        Actuator::Fixed => (SYNC, Micros::ZERO),
                    };
                    let bounds = variant.spec.bounds;
                    // An HPA on its own replicas' gauges cannot come back from zero.
                    let min = bounds.min().max(Replicas::ONE);
                    let max = bounds.max().unwrap_or(min);
                    let settings = scaler::Settings::new(min, max, target);
                    variant.initial = variant.initial.max(Replicas::ONE);
                    variant.actuator = Actuator::Hpa(Hpa { signal, settings, sync, delay });
                }
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the value is bounded")]
fn milli(value: f64) -> Option<MilliValue> {
    let milli = (value * 1000.0).round();
    (1.0..=1e12).contains(&milli).then_some(MilliValue(milli as i64))
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario => f.write_str("plimsoll"),
            Self::Static(count) => write!(f, "static:{count}"),
            Self::Average { signal, target } => {
                let name = match signal {
                    Signal::Desired => "desired",
                    Signal::Waiting => "waiting",
                    Signal::InFlight => "in-flight",
                    Signal::KvUsage => "kv",
                };
                write!(f, "{name}:{}", target.0 as f64 / 1000.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_as_they_are_written() {
        for text in ["plimsoll", "static:4", "waiting:5", "in-flight:40", "kv:0.7"] {
            assert_eq!(Peer::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "static", "static:", "static:-1", "kv:0", "kv:nan", "kv:inf", "other:1"] {
            assert_eq!(Peer::parse(text), Err(UnknownPeer), "{text}");
        }
    }
}
