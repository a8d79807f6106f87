//! The bounds on one replica's capacity (memory and compute), and the tokens of a request.

use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::policy::TokenRules;
use crate::fleet::Role;
use crate::units::{Fraction, Requests, Tokens};

/// The average shape of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestShape {
    /// Tokens of the prompt.
    pub prompt: Option<Tokens>,
    /// Generated tokens.
    pub output: Option<Tokens>,
    /// The share of the prompt that is found in the prefix cache.
    pub prefix_hits: Option<Fraction>,
}

impl RequestShape {
    /// This shape, with unknown values taken from another shape.
    pub(crate) fn or(&self, other: &Self) -> Self {
        Self {
            prompt: self.prompt.or(other.prompt),
            output: self.output.or(other.output),
            prefix_hits: self.prefix_hits.or(other.prefix_hits),
        }
    }
}

/// Requests that wait in front of the replicas, in a gateway or scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulerQueue {
    /// The number of requests.
    pub requests: Requests,
    /// Tokens of their prompts, estimated from their size.
    pub prompt: Tokens,
}

/// Classes of output length, because the binding limit depends on the length.
///
/// A replica with long answers keeps many requests in its cache and is bound by memory. A replica
/// with short answers spends its steps on prompts and is bound by compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLength {
    /// The length is unknown.
    Unknown,
    /// Below 100 tokens.
    Short,
    /// From 100 and below 500 tokens.
    Medium,
    /// From 500 tokens.
    Long,
}

impl OutputLength {
    /// The class of an output of this many tokens.
    #[must_use]
    pub fn of(output: Option<Tokens>) -> Self {
        match output.map(Tokens::tokens) {
            None => Self::Unknown,
            Some(tokens) if tokens < 100.0 => Self::Short,
            Some(tokens) if tokens < 500.0 => Self::Medium,
            Some(_) => Self::Long,
        }
    }
}

/// Tokens that fit into the KV cache below its threshold: `k1 = kv capacity * threshold`.
#[must_use]
pub fn memory_bound(kv_capacity: Tokens, threshold: Fraction) -> Tokens {
    tokens(kv_capacity.tokens() * threshold.fraction())
}

/// Tokens that are resident when an engine's compute is at its limit, derived from its arguments.
///
/// # Model
///
/// A request is in the batch for `O` steps, one for each output token. Its prompt of `I` tokens is
/// computed alongside the decoding of other requests. With `N` requests in the batch, a step
/// computes `N` output tokens. `N / O` requests begin in it, each with `I` prompt tokens:
///
/// ```text
/// N * (1 + d) + N * I' / O = B       so   N = B * O / (I' + (1 + d) * O),  at most S
/// k2 = N * (I + O / 2)
/// ```
///
/// with `B` tokens per step, at most `S` sequences, `d` draft tokens per step, and `I'` the part of
/// the prompt that is not in the prefix cache. A request holds its prompt and, on average over its
/// life, half of its output.
///
/// # Domain
///
/// A steady state with prompts spread over time; `None` without output tokens. If `B` or `S` is not
/// set, the engine chooses it by accelerator, and it sets no bound; [`TokenRules::Wva`] takes 8192
/// and
/// 256. The bound limits the content of a step and not its duration, so it shows the possible load,
/// which may be too slow.
///
/// # Source
///
/// `estimateCapacity` of the Workload Variant Autoscaler for `d = 0` and `I' = I`.
#[must_use]
pub fn compute_bound(
    arguments: &EngineArguments,
    requests: &RequestShape,
    rules: TokenRules,
) -> Option<Tokens> {
    let prompt = requests.prompt.unwrap_or_default();
    let output = requests.output?.tokens();
    let drafts = arguments.draft_tokens.map_or(0.0, |tokens| f64::from(tokens.get()));
    let computed = uncached(prompt, requests.prefix_hits) + (1.0 + drafts) * output;
    if output <= 0.0 {
        return None;
    }

    let (step, sequences) = match rules {
        TokenRules::Plimsoll => (arguments.step_tokens, arguments.sequences),
        TokenRules::Wva => (Some(arguments.tokens_per_step()), Some(arguments.sequences_at_once())),
    };
    let by_step = step.map(|step| step.tokens() * output / computed);
    let by_sequences = sequences.map(Requests::requests);
    let batch = [by_step, by_sequences].into_iter().flatten().reduce(f64::min)?;

    let resident = tokens(batch * (prompt.tokens() + output / 2.0));
    (resident > Tokens::ZERO).then_some(resident)
}

/// KV tokens that a waiting request will hold on average, in addition to the tokens already there.
///
/// This is its prompt without the tokens in the prefix cache, and half of its output. A running
/// request holds half of its output on average, so a request counts the same before and after its
/// admission. A prefill replica hands the request on and holds only its prompt. `None` if a
/// required length is unknown.
#[must_use]
pub fn tokens_of_request(requests: &RequestShape, role: Role) -> Option<Tokens> {
    let prompt = uncached(requests.prompt?, requests.prefix_hits);
    match role {
        Role::Prefill => Some(tokens(prompt)),
        Role::Both | Role::Decode => Some(tokens(prompt + requests.output?.tokens() / 2.0)),
    }
}

/// Tokens of a prompt that are not in the prefix cache.
fn uncached(prompt: Tokens, hits: Option<Fraction>) -> f64 {
    let cached = hits.unwrap_or_default().min(Fraction::ONE);
    prompt.tokens() * (1.0 - cached.fraction())
}

/// The closest valid number of tokens: a difference may be negative, and a product may be infinite.
pub(crate) fn tokens(value: f64) -> Tokens {
    Tokens::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}
