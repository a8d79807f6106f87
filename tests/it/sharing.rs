//! How much fits into the document that replicas share, measured on decisions that foresight makes:
//! `cargo test --test it sharing:: -- --nocapture` prints the figures of docs/high-availability.md.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::time::Duration;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::fleet::{ModelKey, ModelName, Namespace, VariantKey, VariantName};
use plimsoll::leader::share::BODY_MAX;
use plimsoll::pipeline::saved::VariantMemory;
use plimsoll::publish::PublishedDecision;
use plimsoll::publish::state::shared::{
    self, PackedDecisions, ShareDetail, ShareEntry, SharedMemories,
};

use crate::pipeline::{at, spec};
use crate::sizing::sized;
use crate::working::{Engine, Work};

/// A decision of one variant, and what is remembered of it.
struct Shared {
    decided: PublishedDecision,
    memory: VariantMemory,
}

/// So many variants in a hundred namespaces, with names of 40 characters. Each has a decision of its
/// own, of another second and another load.
fn fleet(count: usize) -> Vec<Shared> {
    let mut all = Vec::with_capacity(count);
    for engine in 0_u32.. {
        let output = 50.0 + 37.0 * f64::from(engine % 20);
        let engine = Engine { output, ..Engine::default() };
        let mut work =
            Work::with(sized(&[Analyzer::Foresight]), vec![spec("a", 1.0, (1, 30))], engine);
        let _learned = work.run(4, 20.0, 90);
        for second in 0..250 {
            let rate = 20.0 + 15.0 * (f64::from(second) / 17.0).sin();
            let decisions = work.run(4, rate, 1).decisions;
            let decision = decisions.into_iter().next().unwrap();
            let memory = work.world.pipeline.memory(&decision.model, &decision.variant).unwrap();
            let inputs_at = decision.inputs_at;
            let elapsed = Duration::from_millis(977 * u64::try_from(all.len()).unwrap());
            let mut decided = PublishedDecision { decision, at: inputs_at, elapsed };
            rename(&mut decided, all.len());
            all.push(Shared { decided, memory });
            if all.len() == count {
                return all;
            }
        }
    }
    all
}

fn rename(decided: &mut PublishedDecision, index: usize) {
    let mut hasher = DefaultHasher::new();
    index.hash(&mut hasher);
    let variant = format!("llama-instruct-h100-tp4-{:016x}", hasher.finish());
    assert_eq!(variant.len(), 40);
    let namespace = Namespace::new(&format!("team-{:02}", index % 100)).unwrap();
    let model = format!("meta-llama/Llama-3.1-{}B-Instruct-long-context", index % 50);
    let variant = VariantName::new(&variant).unwrap();
    let model = ModelName::new(&model).unwrap();
    decided.decision.variant = VariantKey { namespace: namespace.clone(), variant };
    decided.decision.model = ModelKey { namespace, model };
}

fn packed(fleet: &[Shared], remembers: bool) -> PackedDecisions {
    let entries = fleet.iter().map(|Shared { decided, memory }| ShareEntry {
        decided,
        memory: remembers.then_some(memory),
        in_effect: true,
    });
    let undecided = SharedMemories::new();
    shared::encode(at(0), Duration::from_hours(3), 812, entries, &undecided, BODY_MAX).unwrap()
}

#[test]
fn ten_thousand_variants_fit_into_the_document_with_their_reasons() {
    let fleet = fleet(10_000);
    let texts = fleet.iter().map(|it| it.decided.decision.because().unwrap().reason.to_string());
    let length = texts.map(|text| text.len()).sum::<usize>() / fleet.len();
    assert!(length > 250, "the reasons are as long as those of a default policy: {length}");

    for (count, remembers) in
        [(100, true), (1000, true), (2000, true), (5000, true), (10_000, true), (10_000, false)]
    {
        let PackedDecisions { packed, variants, left_out } = packed(&fleet[..count], remembers);
        let shown: BTreeMap<&str, usize> =
            variants.iter().filter(|(_, n)| **n > 0).map(|(it, n)| (it.label(), *n)).collect();
        let bytes = packed.len();
        writeln!(io::stderr(), "{count:>6} variants, {bytes:>7} bytes: {shown:?}").unwrap();
        assert!(bytes <= BODY_MAX && left_out.is_empty());
        assert_eq!(variants[&ShareDetail::Codes], 0, "all have their reasons");
    }
}
