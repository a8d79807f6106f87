//! What one replica carries: the bound of memory, the bound of compute, and what a request takes.

use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::Rules;
use crate::fleet::Role;
use crate::units::{Fraction, Requests, Tokens};

/// What a request looks like on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestShape {
    /// Tokens of its prompt.
    pub prompt: Option<Tokens>,
    /// Tokens that are generated for it.
    pub output: Option<Tokens>,
    /// Share of the prompt that is found in the prefix cache.
    pub prefix_hits: Option<Fraction>,
}

impl RequestShape {
    /// This shape, with what is unknown of it taken from another.
    pub(crate) fn or(&self, other: &Self) -> Self {
        Self {
            prompt: self.prompt.or(other.prompt),
            output: self.output.or(other.output),
            prefix_hits: self.prefix_hits.or(other.prefix_hits),
        }
    }
}

/// Requests that wait before any replica, in a gateway or scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulerQueue {
    /// How many there are.
    pub requests: Requests,
    /// Tokens of their prompts, as far as their size tells.
    pub prompt: Tokens,
}

/// Lengths of output that are told apart, because what binds depends on them.
///
/// A replica that answers at length keeps many requests in its cache and is bound by memory; one
/// that answers briefly spends its steps on prompts and is bound by compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLength {
    /// Nobody can say.
    Unknown,
    /// Below 100 tokens.
    Short,
    /// From 100 and below 500 tokens.
    Medium,
    /// From 500 tokens.
    Long,
}

impl OutputLength {
    /// The length that these tokens are.
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

/// Tokens that fit into the KV cache before it is too full: `k1 = kv capacity * threshold`.
#[must_use]
pub fn memory_bound(kv_capacity: Tokens, threshold: Fraction) -> Tokens {
    tokens(kv_capacity.tokens() * threshold.fraction())
}

/// Tokens that are resident when an engine computes as much as it can, from how it was started.
///
/// # Model
///
/// A request is in the batch for `O` steps, one for each output token, and its prompt of `I` tokens
/// is computed beside the decoding of others. With `N` requests in the batch, a step computes `N`
/// output tokens, and `N / O` requests begin in it, each with `I` prompt tokens:
///
/// ```text
/// N * (1 + d) + N * I' / O = B       so   N = B * O / (I' + (1 + d) * O),  at most S
/// k2 = N * (I + O / 2)
/// ```
///
/// with `B` tokens a step, `S` sequences at most, `d` draft tokens a step, and `I'` the part of the
/// prompt that is not in the prefix cache. A request holds its prompt and, on average over its life,
/// half of its output.
///
/// # Domain
///
/// A steady state with prompts spread over time; `None` without output tokens. An engine chooses
/// `B` and `S` by its accelerator where nobody prescribes them, and what is not prescribed bounds
/// nothing; [`Rules::Wva`] takes 8192 and 256. It bounds what a step
/// may hold and not how long the step takes, so it says what is possible, not what is fast enough.
///
/// # Source
///
/// `estimateCapacity` of the Workload Variant Autoscaler for `d = 0` and `I' = I`.
#[must_use]
pub fn compute_bound(
    arguments: &EngineArguments,
    requests: &RequestShape,
    rules: Rules,
) -> Option<Tokens> {
    let prompt = requests.prompt.unwrap_or_default();
    let output = requests.output?.tokens();
    let drafts = arguments.draft_tokens.map_or(0.0, |drafts| f64::from(drafts.get()));
    let computed = uncached(prompt, requests.prefix_hits) + (1.0 + drafts) * output;
    if output <= 0.0 {
        return None;
    }
    let (step, sequences) = match rules {
        Rules::Plimsoll => (arguments.step_tokens, arguments.sequences),
        Rules::Wva => (Some(arguments.tokens_per_step()), Some(arguments.sequences_at_once())),
    };
    let by_step = step.map(|step| step.tokens() * output / computed);
    let batch = [by_step, sequences.map(Requests::requests)].into_iter().flatten();
    let batch = batch.reduce(f64::min)?;
    let resident = tokens(batch * (prompt.tokens() + output / 2.0));
    (resident > Tokens::ZERO).then_some(resident)
}

/// KV tokens that a waiting request will hold on average, over what is there already.
///
/// Its prompt without what the prefix cache has, and half of its output, because a running request
/// holds half of its output on average: a request counts the same before and after it is admitted.
/// A prefill replica hands the request on and holds its prompt alone. `None` when a length that is
/// needed is unknown.
#[must_use]
pub fn tokens_of_request(requests: &RequestShape, role: Role) -> Option<Tokens> {
    let prompt = uncached(requests.prompt?, requests.prefix_hits);
    match role {
        Role::Prefill => Some(tokens(prompt)),
        Role::Both | Role::Decode => Some(tokens(prompt + requests.output?.tokens() / 2.0)),
    }
}

/// Tokens of a prompt that the prefix cache does not have.
fn uncached(prompt: Tokens, hits: Option<Fraction>) -> f64 {
    let hits = hits.unwrap_or_default().min(Fraction::ONE);
    prompt.tokens() * (1.0 - hits.fraction())
}

/// The tokens nearest to this value: a difference may be below zero, a product above all numbers.
pub(crate) fn tokens(value: f64) -> Tokens {
    Tokens::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}
