//! What the demo plays: two models in three variants, and a wave of load for each model; or one
//! model whose replicas are a pool for six adapters, three of which are asked for only in a part of
//! the wave.
//!
//! Engines are described by their step times (fitted to kernel measurements of vLLM on each GPU, with
//! a millisecond of host time for each step) and by the size of their caches; prices are what an hour
//! of the GPU cost on demand in 2026. Two figures are not real: a start takes five seconds where an
//! engine takes a minute or more, because a wave here takes minutes and not hours; and caches are
//! smaller than the cards could hold, because with more context in a batch, a step would take longer
//! than the time between tokens that the demo promises.

use crate::simulate::Micros;
use crate::simulate::replica::adapters::AdapterSettings;
use crate::simulate::replica::settings::{Admission, Settings, StepTime};
use crate::simulate::workload::{Arrivals, Burst, Lengths, Shape};
use plimsoll_core::fleet::{Accelerator, ModelName, Namespace, VariantKey, VariantName};
use plimsoll_core::units::{CostPerHour, Replicas, RequestRate, Tokens};

/// The namespace of everything in the demo.
pub const NAMESPACE: &str = "demo";

/// Everything that is fixed before the demo starts.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The models, in the order in which they are shown.
    pub models: Vec<Model>,
    /// How long a replica needs from its creation until it answers.
    pub startup: Micros,
    /// From trough to trough of the load.
    pub wave: Micros,
    /// What a request must meet to count as served well.
    pub slo: Slo,
    /// What all random numbers start from.
    pub seed: u64,
}

/// A model, its variants and its load.
#[derive(Clone, Debug)]
pub struct Model {
    /// What its engines call it.
    pub name: ModelName,
    /// Its variants, cheapest first.
    pub variants: Vec<Variant>,
    /// When requests for it arrive.
    pub shape: Shape,
    /// How long their prompts are.
    pub prompts: Lengths,
    /// How long their answers are.
    pub outputs: Lengths,
    /// The adapters that requests ask for; `None` where they ask for the model itself.
    pub adapters: Option<Adapters>,
}

/// The adapters of a model.
#[derive(Clone, Debug)]
pub struct Adapters {
    /// How each of its replicas serves them.
    pub engine: AdapterSettings,
    /// Each of them, at most as many as an engine can be asked for.
    pub all: Vec<Adapter>,
}

/// One adapter.
#[derive(Clone, Copy, Debug)]
pub struct Adapter {
    /// Its name.
    pub name: &'static str,
    /// Its part of the requests, beside the parts of the others.
    pub weight: f64,
    /// The part of the wave in which it is asked for, in turns from the trough.
    pub from: f64,
    /// The end of that part.
    pub until: f64,
}

/// A variant and what its replicas are like.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name.
    pub key: VariantKey,
    /// What it runs on.
    pub accelerator: Accelerator,
    /// What a replica costs.
    pub cost: CostPerHour,
    /// The fewest replicas; the demo starts with these.
    pub min: Replicas,
    /// The most replicas.
    pub max: Replicas,
    /// What one engine carries.
    pub engine: Settings,
}

/// What a request must meet to count as served well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    /// The longest time to the first token.
    pub ttft: Micros,
    /// The longest mean time between tokens.
    pub itl: Micros,
}

/// One row of the table of variants.
struct Row {
    name: &'static str,
    accelerator: &'static str,
    cost: f64,
    max: u32,
    step: StepTime,
    max_num_seqs: u32,
    kv_tokens: u32,
}

const LLAMA: [Row; 2] = [
    Row {
        name: "llama-l40s",
        accelerator: "L40S",
        cost: 1.30,
        max: 4,
        step: StepTime::dense(23_200.0, 48.0, 37.0, 0.19),
        max_num_seqs: 128,
        kv_tokens: 80_000,
    },
    Row {
        name: "llama-h100",
        accelerator: "H100",
        cost: 2.95,
        max: 3,
        step: StepTime::dense(7_400.0, 15.6, 11.0, 0.042),
        max_num_seqs: 384,
        kv_tokens: 240_000,
    },
];

const QWEN: [Row; 1] = [Row {
    name: "qwen-a100",
    accelerator: "A100",
    cost: 1.80,
    max: 4,
    step: StepTime::dense(11_040.0, 81.1, 60.0, 0.031),
    max_num_seqs: 128,
    kv_tokens: 90_000,
}];

const LORA: [Row; 1] = [Row { name: "qwen-lora-a100", max: 6, ..QWEN[0] }];

/// A few are asked for by everyone, and others by one department in its hours.
const ADAPTERS: [Adapter; 6] = [
    Adapter { name: "support", weight: 40.0, from: 0.0, until: 1.0 },
    Adapter { name: "sql", weight: 25.0, from: 0.0, until: 1.0 },
    Adapter { name: "mail", weight: 12.0, from: 0.0, until: 1.0 },
    Adapter { name: "legal", weight: 9.0, from: 0.25, until: 0.75 },
    Adapter { name: "claims", weight: 8.0, from: 0.30, until: 0.60 },
    Adapter { name: "reports", weight: 6.0, from: 0.40, until: 0.70 },
];

// === impl Scenario ===

impl Scenario {
    /// The scenario of `plimsoll demo`, with a wave of this length.
    #[must_use]
    pub fn standard(wave: Micros, seed: u64) -> Option<Self> {
        Some(Self {
            models: vec![
                Model {
                    name: ModelName::new("meta-llama/Llama-3.1-8B-Instruct")?,
                    variants: LLAMA.iter().map(Row::variant).collect::<Option<_>>()?,
                    shape: shape([12.0, 54.0, 12.0], wave)?,
                    prompts: lengths(700.0, 0.7, 6_000)?,
                    outputs: lengths(220.0, 0.5, 1_000)?,
                    adapters: None,
                },
                Model {
                    name: ModelName::new("Qwen/Qwen2.5-7B-Instruct")?,
                    variants: QWEN.iter().map(Row::variant).collect::<Option<_>>()?,
                    shape: shape([2.0, 9.0, 3.0], wave)?,
                    prompts: lengths(900.0, 0.7, 6_000)?,
                    outputs: lengths(260.0, 0.5, 1_000)?,
                    adapters: None,
                },
            ],
            startup: Micros::from_secs(5),
            wave,
            slo: Slo { ttft: Micros::from_secs(2), itl: Micros::new(60_000) },
            seed,
        })
    }

    /// The scenario of `plimsoll demo --scenario lora`, with a wave of this length.
    #[must_use]
    pub fn lora(wave: Micros, seed: u64) -> Option<Self> {
        Some(Self {
            models: vec![Model {
                name: ModelName::new("Qwen/Qwen2.5-7B-Instruct")?,
                variants: LORA.iter().map(Row::variant).collect::<Option<_>>()?,
                shape: shape([2.0, 9.0, 3.0], wave)?,
                prompts: lengths(900.0, 0.7, 6_000)?,
                outputs: lengths(260.0, 0.5, 1_000)?,
                adapters: Some(Adapters {
                    // Half a second is what reading a hundred megabytes and copying them takes.
                    engine: AdapterSettings { slots: 2, load: Micros::new(500_000) },
                    all: ADAPTERS.to_vec(),
                }),
            }],
            startup: Micros::from_secs(5),
            wave,
            slo: Slo { ttft: Micros::from_secs(2), itl: Micros::new(60_000) },
            seed,
        })
    }

    /// All variants with their models, in the order in which they are shown.
    pub fn variants(&self) -> impl Iterator<Item = (&Model, &Variant)> {
        self.models.iter().flat_map(|model| model.variants.iter().map(move |v| (model, v)))
    }
}

impl Model {
    /// The arrivals of this model's requests, which is the `index`-th of the scenario.
    pub(crate) fn arrivals(&self, seed: u64, index: usize) -> Arrivals {
        let seed = seed.wrapping_mul(1_000).wrapping_add(index as u64);
        Arrivals::new(seed, self.shape, self.prompts, self.outputs)
    }

    /// The last part of the name, without the organisation.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.as_str().rsplit('/').next().unwrap_or_default()
    }
}

impl Row {
    fn variant(&self) -> Option<Variant> {
        Some(Variant {
            key: VariantKey {
                namespace: Namespace::new(NAMESPACE)?,
                variant: VariantName::new(self.name)?,
            },
            accelerator: Accelerator::new(self.accelerator)?,
            cost: CostPerHour::new(self.cost)?,
            min: Replicas::ONE,
            max: Replicas::new(self.max)?,
            engine: Settings {
                step: self.step,
                max_num_seqs: self.max_num_seqs,
                max_num_batched_tokens: 2_048,
                block_size: 16,
                kv_blocks: self.kv_tokens / 16,
                admission: Admission::WholePrompt,
            },
        })
    }
}

/// A wave from a trough to a crest, and a burst on its falling side, in requests per second.
fn shape([trough, crest, burst]: [f64; 3], wave: Micros) -> Option<Shape> {
    Some(Shape {
        trough: RequestRate::new(trough)?,
        crest: RequestRate::new(crest)?,
        period: wave,
        delay: Micros::ZERO,
        burst: Some(Burst {
            from: Micros::new(wave.micros() / 100 * 68),
            length: Micros::new(wave.micros() / 100 * 7),
            extra: RequestRate::new(burst)?,
        }),
    })
}

fn lengths(median: f64, sigma: f64, max: u32) -> Option<Lengths> {
    Some(Lengths { median: Tokens::new(median)?, sigma, min: 16, max })
}
