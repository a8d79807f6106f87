//! Makes a scenario of a trace: the recorded load, and the engines that its metrics show.

mod requests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::backtest::args::{AssumptionArgs, ObjectiveArgs};
use crate::backtest::demand::{RecordedLoad, RecordedVariant, TraceDemand};
use crate::backtest::error::BacktestError;
use crate::backtest::policies::Candidates;
use crate::simulate::replica::settings::{
    Admission, BLOCK_SIZE, Options, SEATS, Settings, StepTime,
};
use crate::simulate::scenario::{
    Actuator, COOLDOWN, Client, Control, Gateway, Hpa, Keda, Lifecycle, Model, POLLING, Prefix,
    Router, SYNC, Scenario, Signal, Slo, Startup, Transfer, Variant,
};
use crate::simulate::workload::load::{self, ReplayLoad, Row};
use crate::simulate::{Micros, scaler};
use plimsoll_core::analyze::foresight::pace::IterationCost;
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::fleet::{Bounds, ModelKey, ReplicaKey, Role, VariantKey};
use plimsoll_core::pipeline::limits::LimitSwitch;
use plimsoll_core::pipeline::{EARLIER_SPREAD, Policy};
use plimsoll_core::units::{Fraction, Replicas, Seconds};
use plimsoll_daemon::config::EXTERNAL_METRICS_HOLD;

/// The maximum replicas of a variant without an upper bound.
const MAX: Replicas = Replicas::saturating(1000);
/// The default of vLLM's V1 engine for an online server on accelerators of 70 GB and more.
const BATCH_TOKENS: u32 = 8192;
/// The KV cache tokens of an engine whose metrics do not report them: 80 GB next to a model of 8
/// billion parameters.
const KV_TOKENS: f64 = 400_000.0;
/// The objectives if neither the command line nor the recorded policy sets any.
const TTFT: Seconds = Seconds::literal(2);
const ITL: f64 = 0.1;
/// The start-up time in seconds if the trace has no start and the policy sets none.
const START: f64 = 120.0;
/// A queue longer than any client would wait in.
const QUEUE: usize = 100_000;
/// The time between two samples of the variants at their maximum.
const SAMPLE: Micros = Micros::from_secs(15);
/// The time between two reads of the count of requests that a gateway holds.
pub(crate) const WAKE_READ: Micros = Micros::from_secs(5);
/// The daemon's default scrape interval.
const SCRAPE: Micros = Micros::from_secs(1);
/// The relative difference between the requests of two roles that gets a note. Requests in transit
/// at either end of a trace are fewer.
const HALVES: f64 = 0.05;

/// The objectives of requests, from the command line or the recorded policy.
pub(crate) fn objectives(candidates: &Candidates, args: &ObjectiveArgs) -> Slo {
    let sizing = candidates.config.policy.sizing.as_ref();
    let targets = sizing.map(|sizing| sizing.queueing.targets);
    let ttft = targets.and_then(|it| it.ttft).map_or(TTFT.seconds(), |it| it.limit.seconds());
    let itl = targets.and_then(|it| it.itl).map_or(ITL, Seconds::seconds);

    let mut slo = Slo::new(given_or(args.slo_ttft, ttft), given_or(args.slo_itl, itl));
    if let Some(sizing) = sizing {
        slo.ttft_per_token = Micros::from_secs_f64(sizing.foresight.ttft_per_token.seconds());
        slo.long_prompt = whole(sizing.foresight.long_prompt.tokens());
    }

    slo
}

/// The objectives of requests in words.
pub(crate) fn written_objectives(slo: &Slo) -> String {
    let allowance = if slo.ttft_per_token > Micros::ZERO {
        let per_token = slo.ttft_per_token.seconds() * 1e3;
        format!(", plus {per_token:.3} ms for each prompt token beyond {}", slo.long_prompt)
    } else {
        String::new()
    };

    let between = slo.itl.seconds() * 1e3;
    format!(
        "first token in {:.3} s{allowance}, then {between:.1} ms between tokens",
        slo.ttft.seconds()
    )
}

/// An option of the command line, or the seconds to use without it.
fn given_or(given: Option<std::time::Duration>, otherwise: f64) -> Micros {
    given.map_or(Micros::from_secs_f64(otherwise), Micros::from_duration)
}

/// The policy without the parts that the simulator lacks: nodes, quotas and adapters. A pool with
/// unknown adapters would only ever scale up.
pub(crate) fn playable(policy: &Policy) -> Policy {
    let mut playable = policy.clone();
    playable.limits.nodes = LimitSwitch::Off;
    playable.limits.quotas = LimitSwitch::Off;
    playable.pools.clear();
    playable
}

/// A scenario that was made of a trace.
pub(crate) struct TraceScenario {
    /// The scenario.
    pub(crate) scenario: Scenario,
    /// The objectives of all requests.
    pub(crate) slo: Slo,
    /// Assumptions and omissions.
    pub(crate) notes: Vec<String>,
}

/// What is given for all variants of a trace.
struct Given<'a> {
    candidates: &'a Candidates,
    args: &'a AssumptionArgs,
    /// The start of the scenario.
    from: Timestamp,
}

/// Makes the scenario of a trace, decided by the recorded policy.
///
/// # Errors
///
/// The trace has too little data about its load or engines.
pub(crate) fn scenario(
    gathered: &TraceDemand,
    candidates: &Candidates,
    args: &AssumptionArgs,
) -> Result<TraceScenario, BacktestError> {
    let slo = objectives(candidates, &args.objectives);
    let mut notes = Vec::new();
    let (first, last) = gathered.span.ok_or_else(|| unscored("it has no ticks"))?;
    let length = Micros::from_secs_f64(last.duration_since(first).as_secs_f64());
    let models = models(gathered, candidates, slo, args, length, &mut notes);
    if let (true, Some(why)) = (models.is_empty(), notes.last()) {
        return Err(unscored(why));
    }

    let given = Given { candidates, args, from: first };
    let mut left_out = Vec::new();
    let mut variants = Vec::new();
    for crew in gathered.variants.values() {
        let key = crew.spec.model_key();
        let Some(model) = models.iter().position(|model| model.key == key) else { continue };
        match variant(crew, model, &given, &mut notes) {
            Some(variant) => variants.push(variant),
            None => left_out.push(format!(
                "{} is left out: its metrics don't show the time of an iteration (too idle, or \
                 its engine does not count iterations)",
                crew.spec.key
            )),
        }
    }

    if variants.is_empty() {
        return Err(unscored("no variant served enough load to learn the capacity of its engines"));
    }

    let complete = leave_out_halves(models, &mut variants, &mut left_out);
    if complete.is_empty() {
        return Err(BacktestError::Unscored(left_out.join("; ")));
    }

    notes.append(&mut left_out);
    let pools = candidates.policies.iter().flat_map(|candidate| candidate.policy.pools.keys());
    notes.extend(pools.collect::<BTreeSet<_>>().into_iter().map(unplayed));
    notes.extend(gaps(gathered));

    let control = Control {
        policy: candidates.config.policy.clone(),
        tick: Micros::from_duration(candidates.config.keys.tick_interval),
        scrape: SCRAPE,
        scrape_loss: Fraction::ZERO,
        relay: None,
        hold: Seconds::new(EXTERNAL_METRICS_HOLD.as_secs_f64()).unwrap_or_default(),
        outage: None,
    };

    let scenario = Scenario { length, models: complete, variants, control, sample: SAMPLE };
    Ok(TraceScenario { scenario, slo, notes })
}

/// Returns the notes about times without a successful scrape.
fn gaps(gathered: &TraceDemand) -> Vec<String> {
    let within = gathered.gaps.iter().map(|(from, to)| {
        format!(
            "no scrape of any replica from {from:.0} to {to:.0}: requests of this time are spread \
             evenly"
        )
    });
    let last = gathered.last_gap().map(|(from, to)| {
        format!(
            "no scrape of any replica from {from:.0} to the end at {to:.0}: this time has no \
             requests"
        )
    });

    within.chain(last).collect()
}

fn unscored(why: &str) -> BacktestError {
    BacktestError::Unscored(why.to_owned())
}

/// The models that got requests.
fn models(
    gathered: &TraceDemand,
    candidates: &Candidates,
    slo: Slo,
    args: &AssumptionArgs,
    length: Micros,
    notes: &mut Vec<String>,
) -> Vec<Model> {
    let mut models = Vec::new();
    for (at, (key, load)) in gathered.models.iter().enumerate() {
        if load.arrived() < 1.0 {
            notes.push(format!("{key} is left out: no request of it arrived"));
            continue;
        }

        let mut crews = gathered.variants.values().filter(|crew| crew.spec.model_key() == *key);
        if crews.any(|crew| crew.spec.role != Role::Both) {
            note_halves(key, load, args, notes);
        }

        let rows = requests::rows(load, args.seed, at, length);
        let mut described = model(key, rows, slo, args, length);
        if is_woken(key, gathered, candidates) {
            let every = WAKE_READ.seconds();
            notes.push(format!("{key}: a wake signal every {every:.0} s is assumed"));
            described.gateway.read = Some(WAKE_READ);
        }

        models.push(described);
    }

    models
}

/// Returns true if a wake signal counts the requests of a model that no replica takes. All of its
/// replicas may go, and the trace has a wake signal for it, or a policy lets it scale to zero.
fn is_woken(key: &ModelKey, gathered: &TraceDemand, candidates: &Candidates) -> bool {
    let mut crews = gathered.variants.values().filter(|crew| crew.spec.model_key() == *key);
    let mut rules = candidates.policies.iter().map(|candidate| candidate.policy.zero.of(key));
    crews.all(|crew| crew.bounds.min() == Replicas::ZERO)
        && (gathered.signaled.contains(key) || rules.any(|rule| rule.policy != ZeroPolicy::KeepOne))
}

/// Notes the assumptions about a model with separate roles.
fn note_halves(
    key: &ModelKey,
    load: &RecordedLoad,
    args: &AssumptionArgs,
    notes: &mut Vec<String>,
) {
    if args.transfer_time.is_none() {
        notes.push(format!(
            "{key}: the trace does not have the transfer time of its cache from prefill to decode \
             replicas; 0 is used unless --transfer-time is set"
        ));
    }

    let [computed, decoded] = load.halves;
    if (computed - decoded).abs() > HALVES * computed.max(decoded) {
        notes.push(format!(
            "{key}: {computed:.0} requests arrived at its prefill replicas and {decoded:.0} at \
             its decode replicas; the simulation plays the former on both, so it does not \
             reproduce requests that skipped either"
        ));
    }
}

/// The note that the score of a pool ignores its adapters.
fn unplayed(pool: &VariantKey) -> String {
    format!(
        "{pool} is a pool: metrics don't show each request's adapter, so the simulation ignores \
         adapters, copies and slots; it may need more replicas than this"
    )
}

/// Leaves out models without a simulated variant for some part of their requests, and their
/// variants. One half of a model serves no requests.
fn leave_out_halves(
    models: Vec<Model>,
    variants: &mut Vec<Variant>,
    left_out: &mut Vec<String>,
) -> Vec<Model> {
    let mut whole = Vec::new();
    let mut places = Vec::new();
    for (at, model) in models.into_iter().enumerate() {
        let roles = variants.iter().filter(|it| it.model == at).map(|it| it.spec.role);
        let Some(lacking) = lacking(&roles.collect()) else {
            places.push(Some(whole.len()));
            whole.push(model);
            continue;
        };
        places.push(None);
        left_out.push(format!(
            "no variant {lacking}of {} can be simulated, so this model is left out",
            model.key
        ));
    }

    variants.retain_mut(|variant| {
        let Some(place) = places[variant.model] else { return false };
        variant.model = place;
        true
    });
    whole
}

/// The missing role of a model whose variants have these roles; `None` if they serve whole
/// requests.
fn lacking(roles: &BTreeSet<Role>) -> Option<&'static str> {
    match (roles.contains(&Role::Prefill), roles.contains(&Role::Decode)) {
        (true, true) => None,
        (true, false) => Some("with the role decode "),
        (false, true) => Some("with the role prefill "),
        (false, false) => roles.is_empty().then_some(""),
    }
}

fn model(key: &ModelKey, rows: Vec<Row>, slo: Slo, args: &AssumptionArgs, span: Micros) -> Model {
    let spread = Micros::ZERO;
    let replay =
        ReplayLoad { rows: rows.into(), prompts: None, span, copies: 1.0, spread, speed: 1.0 };

    Model {
        key: key.clone(),
        slo,
        load: load::Load::Replay(replay),
        batch: None,
        adapters: Vec::new(),
        router: Router::LeastRequests,
        router_refresh: Micros::ZERO,
        sessions: 1,
        transfer: Transfer {
            latency: args.transfer_time.map(Micros::from_duration).unwrap_or_default(),
            per_token: 0.0,
        },
        gateway: Gateway { queue: QUEUE, per_replica: None, read: None, admit: None },
        client: Client { timeout: None, retries: 0, backoff: Micros::ZERO },
    }
}

fn variant(
    crew: &RecordedVariant,
    model: usize,
    given: &Given<'_>,
    notes: &mut Vec<String>,
) -> Option<Variant> {
    let iteration = crew.iteration()?;
    let key = &crew.spec.key;
    let kv = crew.kv.unwrap_or_else(|| {
        notes
            .push(format!("{key}: the size of its KV cache is not known; {KV_TOKENS} are assumed"));
        KV_TOKENS
    });

    let start = start(crew, given);
    let max = crew.bounds.max().unwrap_or(MAX);
    let min = crew.bounds.min();
    notes.push(format!(
        "{key}: an iteration takes {}; {kv:.0} KV tokens; {start:.0} s to start",
        taken(crew.spec.role, iteration)
    ));

    let seats = crew.sequences.map_or_else(|| whole(crew.running).max(SEATS), whole).max(1);
    let batch_tokens = crew.step_tokens.map_or(BATCH_TOKENS, whole).max(seats);
    let mut spec = crew.spec.clone();
    spec.bounds = crew.bounds;
    Some(Variant {
        spec,
        model,
        initial: crew.existing(given.from).unwrap_or(min).max(min).min(max),
        engine: Settings {
            step: StepTime::dense(
                iteration.alpha * 1e6,
                iteration.beta * 1e6,
                iteration.delta * 1e6,
                0.0,
            ),
            max_num_seqs: seats,
            max_num_batched_tokens: batch_tokens,
            block_size: BLOCK_SIZE,
            kv_blocks: (whole(kv) / BLOCK_SIZE).max(1),
            admission: Admission::WholePrompt,
        },
        options: Options::default(),
        template: None,
        prefix: Prefix::Share(Fraction::ZERO),
        adapters: None,
        startup: Startup { load: Micros::from_secs_f64(start), ..Startup::default() },
        lifecycle: Lifecycle { notice: Micros::ZERO, ..Lifecycle::default() },
        rollout: None,
        actuator: following(crew.bounds),
    })
}

/// An HPA that follows the desired replicas within these bounds, or KEDA if the minimum is zero.
pub(crate) fn following(bounds: Bounds) -> Actuator {
    let max = bounds.max().unwrap_or(MAX);
    let settings = scaler::ScalerSettings::following(bounds.min().max(Replicas::ONE), max);
    let hpa = Hpa { signal: Signal::Desired, settings, sync: SYNC, delay: Micros::ZERO };
    if bounds.min() > Replicas::ZERO {
        return Actuator::Hpa(hpa);
    }

    Actuator::Keda(Keda {
        hpa,
        to_zero: true,
        polling: POLLING,
        cooldown: COOLDOWN,
        activation: scaler::MilliValue(0),
    })
}

/// The duration of an iteration, as far as replicas with this role show it.
fn taken(role: Role, iteration: IterationCost) -> String {
    let IterationCost { alpha, beta, delta } = iteration;
    let prompt = format!(" + {:.1} us a prompt token", beta * 1e6);
    let request = format!(" + {:.1} us a request", delta * 1e6);

    let shown = match role {
        Role::Both => prompt + &request,
        Role::Prefill => prompt,
        Role::Decode => request,
    };
    format!("{:.1} ms{shown}", alpha * 1e3)
}

/// The next whole count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and counts are not negative"
)]
pub(crate) fn whole(value: f64) -> u32 {
    value.ceil() as u32
}

fn sorted(starts: &BTreeMap<ReplicaKey, f64>) -> Vec<f64> {
    let mut seen: Vec<f64> = starts.values().copied().collect();
    seen.sort_by(f64::total_cmp);
    seen
}

/// The seconds that a replica takes to start: as given, as watched, as the replicas that were ready
/// before the trace show it, or from the policy. Of the ready ones, a start of more than three times
/// the shortest includes a time in which the replica was unready again.
fn start(crew: &RecordedVariant, given: &Given<'_>) -> f64 {
    if let Some(start) = given.args.start_time {
        return start.as_secs_f64();
    }

    let mut seen = sorted(&crew.starts);

    if seen.is_empty() {
        seen = sorted(&crew.earlier_starts);
        if let Some(shortest) = seen.first().copied() {
            seen.retain(|took| *took <= shortest * EARLIER_SPREAD);
        }
    }

    let sizing = given.candidates.config.policy.sizing.as_ref();
    let told = sizing.map_or(START, |sizing| sizing.foresight.startup.seconds());
    seen.get(seen.len() / 2).copied().unwrap_or(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::backtest::policies;

    /// The objectives of a recorded configuration with these targets.
    fn recorded(targets: &str) -> Slo {
        let text = format!(
            "analysis: capacity\ncapacity: {{slo: {{ttft: 500ms, itl: 100ms{targets}}}}}\n\
             variants:\n- {{name: a, namespace: shop, model: m, cost: 2, replicas: {{max: 9}}, \
             targets: {{static: ['h:1']}}}}\n"
        );
        let candidates = policies::resolve(&[], Path::new("trace"), &text).unwrap();
        objectives(&candidates, &ObjectiveArgs::default())
    }

    #[test]
    fn recorded_objectives_allow_more_time_for_long_prompts() {
        let slo = recorded(", ttft_per_token: 1ms, long_prompt: 1000");
        assert_eq!(slo.ttft_of(1_000), slo.ttft);
        assert_eq!(slo.ttft_of(20_000), slo.ttft + Micros::from_secs(19));
        let words = "first token in 0.500 s, plus 1.000 ms for each prompt token beyond 1000, then \
                     100.0 ms between tokens";
        assert_eq!(written_objectives(&slo), words);

        let slo = recorded("");
        assert_eq!(slo.ttft_of(20_000), slo.ttft);
        let words = "first token in 0.500 s, then 100.0 ms between tokens";
        assert_eq!(written_objectives(&slo), words);
    }
}
