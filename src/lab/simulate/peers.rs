//! Other autoscalers to compare with. Each replaces only the autoscalers of a scenario's variants,
//! so that all of them get the same requests and the same starts.
//!
//! Each has its own file, which states the source of its rules.

pub mod apa;
mod best;
mod demand;
mod dynamo;
mod fixed;
mod goal;
mod keda;
pub mod kpa;
pub mod law;
mod melange;
mod only_up;
pub mod oracle;
pub(crate) mod profile;
pub mod schedule;
pub(crate) mod sight;
mod slo_aware;
mod stock;
mod unplayable;
pub mod wva;

use std::fmt;

use crate::simulate::peers::demand::Unplannable;
use crate::simulate::peers::law::Rule;
pub use crate::simulate::peers::unplayable::{NoFleet, Unplayable};
use crate::simulate::run::Watch;
use crate::simulate::scaler::MilliValue;
use crate::simulate::scenario::{Actuator, Scenario, Variant};
use plimsoll_core::units::Replicas;

/// The policy that scales the variants of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peer {
    /// The scenario's own autoscalers.
    Scenario,
    /// The scenario's own autoscalers without scale-down.
    OnlyUp,
    /// A constant fleet: this many replicas of each variant.
    Static(Replicas),
    /// A constant fleet: the cheapest fixed counts that serve the requests.
    StaticBest,
    /// A stock HPA on waiting requests per replica, in thousandths.
    Waiting(MilliValue),
    /// A stock HPA on requests in flight per replica, in thousandths.
    InFlight(MilliValue),
    /// A stock HPA on KV cache usage, in thousandths.
    Kv(MilliValue),
    /// KEDA on requests/s per replica, in thousandths.
    KedaRate(MilliValue),
    /// KEDA on requests/s per replica, with the best target in hindsight.
    KedaBest,
    /// Knative's pod autoscaler on requests in flight, in thousandths.
    Kpa(MilliValue),
    /// `AIBrix`' APA on KV cache usage, in thousandths.
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

/// The error for a text that names no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be {}", Peer::choices())]
pub struct UnknownPeer;

/// The way in which a peer is made from its name.
#[derive(Clone, Copy)]
enum PeerForm {
    /// It has no parameter.
    Fixed(Peer),
    /// A replica count follows its name.
    NounCount(fn(Replicas) -> Peer),
    /// A target follows its name.
    Aimed(fn(MilliValue) -> Peer),
}

use PeerForm::{Aimed, Fixed, NounCount};

impl Peer {
    /// Every peer by name. A parameter follows a colon.
    const FORMS: [(&str, PeerForm); 18] = [
        ("plimsoll", Fixed(Self::Scenario)),
        ("plimsoll-only-up", Fixed(Self::OnlyUp)),
        ("static:N", NounCount(Self::Static)),
        ("static:best", Fixed(Self::StaticBest)),
        ("waiting:N", Aimed(Self::Waiting)),
        ("in-flight:N", Aimed(Self::InFlight)),
        ("kv:SHARE", Aimed(Self::Kv)),
        ("keda-rate:RATE", Aimed(Self::KedaRate)),
        ("keda-rate:best", Fixed(Self::KedaBest)),
        ("kpa:N", Aimed(Self::Kpa)),
        ("apa:SHARE", Aimed(Self::Apa)),
        ("wva-v1", Fixed(Self::Wva(wva::Version::V1))),
        ("wva-v2", Fixed(Self::Wva(wva::Version::V2))),
        ("llm-d-slo", Fixed(Self::SloAware)),
        ("dynamo-load", Fixed(Self::DynamoLoad)),
        ("dynamo-throughput", Fixed(Self::DynamoThroughput)),
        ("melange", Fixed(Self::Melange)),
        ("oracle", Fixed(Self::Oracle)),
    ];

    /// All names in a sentence.
    #[must_use]
    pub fn choices() -> String {
        let [others @ .., (last, _)] = &Self::FORMS;
        let others: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
        format!("{} or {last}", others.join(", "))
    }

    /// Parses the name of a peer.
    ///
    /// # Errors
    ///
    /// The text names no peer.
    pub fn parse(text: &str) -> Result<Self, UnknownPeer> {
        let (head, value) = text.split_once(':').unwrap_or((text, ""));
        let form = |(name, form): (&str, PeerForm)| match form {
            Fixed(peer) => (name == text).then_some(peer),
            NounCount(_) | Aimed(_) if before_colon(name) == head => form.read(value),
            NounCount(_) | Aimed(_) => None,
        };
        Self::FORMS.into_iter().find_map(form).ok_or(UnknownPeer)
    }

    /// Returns an error if this peer cannot scale the variants of a scenario.
    ///
    /// # Errors
    ///
    /// This peer must know the requests beforehand, and those of a model cannot be known.
    pub fn plays(self, scenario: &Scenario) -> Result<(), Unplannable> {
        if !matches!(self, Self::Melange | Self::Oracle | Self::KedaBest) {
            return Ok(());
        }
        (0..scenario.models.len()).try_for_each(|model| demand::plannable(scenario, model))
    }

    /// Makes this peer scale the variants of a scenario that runs with a seed. Peers that know
    /// future requests ask `watch` whether to continue their search.
    ///
    /// # Errors
    ///
    /// This peer must know the requests beforehand, and those of a model cannot be known. Or it
    /// searches for a fixed replica count, and there is none.
    pub fn apply(
        self,
        scenario: &mut Scenario,
        seed: u64,
        watch: &mut impl Watch,
    ) -> Result<(), Unplayable> {
        match self {
            Self::Scenario => {}
            Self::Wva(version) => wva::apply(version, scenario),
            Self::Melange => melange::apply(scenario, seed)?,
            Self::Oracle => oracle::apply(scenario, seed, watch)?,
            Self::StaticBest => best::apply(scenario, seed, watch)?,
            Self::KedaBest => keda::hindsight::apply(scenario, seed, watch)?,
            Self::OnlyUp
            | Self::Static(_)
            | Self::Waiting(_)
            | Self::InFlight(_)
            | Self::Kv(_)
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

    /// Makes this peer scale one variant, for peers that need only the variant.
    fn take(self, variant: &mut Variant) {
        if self != Self::OnlyUp && !matches!(self, Self::Static(_)) {
            // Replica metrics cannot scale a variant up from zero.
            variant.initial = variant.initial.max(Replicas::ONE);
        }

        variant.actuator = match self {
            Self::OnlyUp => return only_up::never_down(variant),
            Self::Static(count) => return fixed::keep(variant, count),
            Self::Waiting(target) => stock::waiting::on_queue(variant, target),
            Self::InFlight(target) => stock::in_flight::on_concurrency(variant, target),
            Self::Kv(target) => stock::kv::on_cache(variant, target),
            Self::KedaRate(target) => keda::on_rate(variant, target),
            Self::Kpa(target) => {
                let concurrency = target.0 as f64 / 1000.0;
                Actuator::Law(Rule::Kpa(kpa::KpaSettings { concurrency }))
            }
            Self::Apa(target) => {
                Actuator::Law(Rule::Apa(apa::ApaSettings::aiming_at(target.0 as f64 / 1000.0)))
            }
            Self::SloAware => Actuator::Law(Rule::SloAware),
            Self::DynamoLoad => Actuator::Law(Rule::DynamoLoad),
            Self::DynamoThroughput => Actuator::Law(Rule::DynamoThroughput),
            Self::Scenario
            | Self::StaticBest
            | Self::KedaBest
            | Self::Wva(_)
            | Self::Melange
            | Self::Oracle => return,
        };
    }
}

impl PeerForm {
    /// The peer with this parameter; `None` if no peer has it.
    fn read(self, value: &str) -> Option<Peer> {
        match self {
            Fixed(peer) => Some(peer),
            NounCount(make) => value.parse().ok().and_then(Replicas::new).map(make),
            Aimed(make) => value.parse().ok().and_then(milli).map(make),
        }
    }
}

/// The name of a peer without its parameter.
fn before_colon(name: &str) -> &str {
    name.split_once(':').map_or(name, |(head, _)| head)
}

#[expect(clippy::cast_possible_truncation, reason = "the value is bounded")]
fn milli(value: f64) -> Option<MilliValue> {
    let milli = (value * 1000.0).round();
    (1.0..=1e12).contains(&milli).then_some(MilliValue(milli as i64))
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Self::Static(count) => count.to_string(),
            Self::Waiting(target)
            | Self::InFlight(target)
            | Self::Kv(target)
            | Self::KedaRate(target)
            | Self::Kpa(target)
            | Self::Apa(target) => (target.0 as f64 / 1000.0).to_string(),
            _ => String::new(),
        };
        let mut forms = Self::FORMS.into_iter();
        let (name, form) =
            forms.find(|(_, form)| form.read(&value) == Some(*self)).ok_or(fmt::Error)?;
        match form {
            Fixed(_) => f.write_str(name),
            NounCount(_) | Aimed(_) => {
                write!(f, "{}:{value}", before_colon(name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Every peer, with a parameter if it has one.
    fn all() -> impl Iterator<Item = String> {
        Peer::FORMS.into_iter().map(|(name, form)| match form {
            Fixed(_) => name.to_owned(),
            NounCount(_) | Aimed(_) => format!("{}:7", before_colon(name)),
        })
    }

    #[test]
    fn peers_are_read_as_they_are_written() {
        for text in all() {
            assert_eq!(Peer::parse(&text).unwrap().to_string(), text);
        }

        for text in [
            "",
            "static",
            "static:",
            "static:-1",
            "static:1.5",
            "static:most",
            "kv:0",
            "kv:nan",
            "kv:inf",
            "oracle:1",
        ] {
            assert_eq!(Peer::parse(text), Err(UnknownPeer), "{text}");
        }
    }

    /// The file that documents a peer's rules and their source.
    fn file(peer: Peer) -> Option<&'static str> {
        match peer {
            // Plimsoll itself, and a search that documents its own method.
            Peer::Scenario | Peer::Oracle => None,
            Peer::OnlyUp => Some("only_up.rs"),
            Peer::Static(_) => Some("fixed.rs"),
            Peer::StaticBest => Some("best.rs"),
            Peer::Waiting(_) => Some("stock/waiting.rs"),
            Peer::InFlight(_) => Some("stock/in_flight.rs"),
            Peer::Kv(_) => Some("stock/kv.rs"),
            Peer::KedaRate(_) => Some("keda.rs"),
            Peer::KedaBest => Some("keda/hindsight.rs"),
            Peer::Kpa(_) => Some("kpa.rs"),
            Peer::Apa(_) => Some("apa.rs"),
            Peer::Wva(_) => Some("wva.rs"),
            Peer::SloAware => Some("slo_aware.rs"),
            Peer::DynamoLoad | Peer::DynamoThroughput => Some("dynamo.rs"),
            Peer::Melange => Some("melange.rs"),
        }
    }

    #[test]
    fn each_peer_has_a_file_of_its_own_that_says_where_its_rules_come_from() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("simulate/peers");
        for text in all() {
            let Some(file) = file(Peer::parse(&text).unwrap()) else { continue };
            let written = fs::read_to_string(folder.join(file)).unwrap();
            let documented = written.lines().filter(|line| line.starts_with("//!"));
            assert!(documented.clone().any(|line| line == "//! # Source"), "{file}");
            assert!(documented.count() > 8, "{file} has its rules, too");
        }
    }
}
