//! Policies, scored by the simulator on what a trace says of its load and engines.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Context as _;
use rand::RngExt as _;
use rayon::prelude::*;

use crate::backtest::BacktestError;
use crate::backtest::args::BacktestArgs;
use crate::backtest::demand::{Crew, Gathered, INTERVAL, Interval, Load};
use crate::backtest::interrupt::Interrupt;
use crate::backtest::policies::{Candidate, Candidates};
use crate::simulate::random::{Purpose, generator};
use crate::simulate::replica::settings::{
    Admission, BLOCK_SIZE, Options, SEATS, Settings, StepTime,
};
use crate::simulate::scenario::{
    Actuator, COOLDOWN, Client, Control, Gateway, Hpa, Keda, Lifecycle, Model, POLLING, Prefix,
    Router, SYNC, Scenario, Signal, Slo, Startup, Transfer, Variant,
};
use crate::simulate::score::{Outcome, share};
use crate::simulate::workload::load::{self, Replay, Row, Size};
use crate::simulate::{Micros, run, scaler};
use plimsoll_core::analyze::foresight::pace::Iteration;
use plimsoll_core::fleet::{ModelKey, Role, VariantKey};
use plimsoll_core::observe::histogram::Histogram;
use plimsoll_core::pipeline::limits::Watched;
use plimsoll_core::units::{Fraction, Replicas, Seconds};
use plimsoll_daemon::config::EXTERNAL_METRICS_HOLD;

/// What a variant without a maximum may have.
const MAX: Replicas = Replicas::saturating(1000);
/// The default of vLLM's V1 engine for an online server on accelerators of 70 GB and more.
const BATCH_TOKENS: u32 = 8192;
/// Tokens in the KV cache of an engine whose pages do not say it: 80 GB beside a model of 8 billion
/// parameters.
const KV_TOKENS: f64 = 400_000.0;
/// The objectives where neither the command line nor the recorded policy has any.
const TTFT: Seconds = Seconds::literal(2);
const ITL: f64 = 0.1;
/// The start of a replica where none was seen and the policy says none.
const START: f64 = 120.0;
/// More than any client would wait behind.
const QUEUE: usize = 100_000;
/// Between two looks at whether a variant is at its maximum.
const SAMPLE: Micros = Micros::from_secs(15);
/// As the daemon scrapes unless configured.
const SCRAPE: Micros = Micros::from_secs(1);
/// The share by which requests of the two roles differ from which on that is worth to know: what is
/// between the two at either end of a trace is less.
const HALVES: f64 = 0.05;
/// The longest request that is played; what is longer fits no engine.
const LENGTH_MAX: f64 = 1e6;

/// A line of the table.
struct Line {
    name: String,
    within: Option<f64>,
    replica_hours: f64,
    cost: f64,
    changes: u32,
    flips: u32,
    at_max: f64,
}

/// The table of all policies.
///
/// # Errors
///
/// The trace says too little of its load or engines, an engine cannot be built, or it was interrupted.
pub(crate) fn table(
    gathered: &Gathered,
    candidates: &Candidates,
    args: &BacktestArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let slo = objectives(candidates, args);
    let mut notes = Vec::new();
    let scenario = scenario(gathered, candidates, (slo, args), &mut notes)?;
    let outcomes: Vec<Result<Outcome, _>> = candidates
        .policies
        .par_iter()
        .map(|candidate| {
            let mut scenario = scenario.clone();
            scenario.control.policy = playable(candidate);
            run::run(&scenario, args.seed, &mut |_| !interrupt.is_heard())
        })
        .collect();
    interrupt.check()?;
    let mut lines = vec![as_it_was(gathered, &scenario)];
    for (candidate, outcome) in candidates.policies.iter().zip(outcomes) {
        let outcome = outcome.context("an engine cannot be built")?;
        lines.push(line(candidate, &scenario, &outcome));
    }
    Ok(written(&lines, slo, &notes))
}

/// What a request must meet: by the command line, or the recorded policy.
fn objectives(candidates: &Candidates, args: &BacktestArgs) -> Slo {
    let sizing = candidates.config.policy.sizing.as_ref();
    let targets = sizing.map(|sizing| sizing.queueing.targets);
    let ttft = targets.and_then(|it| it.ttft).map_or(TTFT.seconds(), |it| it.limit.seconds());
    let itl = targets.and_then(|it| it.itl).map_or(ITL, Seconds::seconds);
    let given = |given: Option<std::time::Duration>, otherwise| {
        given.map_or(Micros::from_secs_f64(otherwise), Micros::from_duration)
    };
    Slo::new(given(args.slo_ttft, ttft), given(args.slo_itl, itl))
}

/// The policy without what the simulator has no word for: it has no nodes, no quotas and no adapters.
/// A pool whose adapters nobody knows would only ever grow.
fn playable(candidate: &Candidate) -> plimsoll_core::pipeline::Policy {
    let mut policy = candidate.policy.clone();
    policy.limits.nodes = Watched::Off;
    policy.limits.quotas = Watched::Off;
    policy.pools.clear();
    policy
}

fn scenario(
    gathered: &Gathered,
    candidates: &Candidates,
    (slo, args): (Slo, &BacktestArgs),
    notes: &mut Vec<String>,
) -> Result<Scenario, BacktestError> {
    let unscored = |why: &str| BacktestError::Unscored(why.to_owned());
    let (first, last) = gathered.span.ok_or_else(|| unscored("it has no ticks"))?;
    let length = Micros::from_secs_f64(last.duration_since(first).as_secs_f64());
    let models = models(gathered, (slo, args), length, notes);
    if let (true, Some(why)) = (models.is_empty(), notes.last()) {
        return Err(unscored(why));
    }
    let mut left_out = Vec::new();
    let mut variants = Vec::new();
    for crew in gathered.variants.values() {
        let key = crew.spec.model_key();
        let Some(model) = models.iter().position(|model| model.key == key) else { continue };
        match variant(crew, model, candidates, args, notes) {
            Some(variant) => variants.push(variant),
            None => left_out.push(format!(
                "{} is left out: its pages do not say what an iteration takes (it was too idle, or \
                 its engine does not count iterations)",
                crew.spec.key
            )),
        }
    }
    if variants.is_empty() {
        return Err(unscored("no variant served enough to learn what its engines can do"));
    }
    let models = leave_out_halves(models, &mut variants, &mut left_out);
    if models.is_empty() {
        return Err(BacktestError::Unscored(left_out.join("; ")));
    }
    notes.append(&mut left_out);
    let pools = candidates.policies.iter().flat_map(|candidate| candidate.policy.pools.keys());
    notes.extend(pools.collect::<BTreeSet<_>>().into_iter().map(unplayed));
    for (from, to) in &gathered.gaps {
        notes.push(format!(
            "no page of any replica from {from:.0} to {to:.0}: what arrived meanwhile is spread \
             evenly"
        ));
    }
    let control = Control {
        policy: candidates.config.policy.clone(),
        tick: Micros::from_duration(candidates.config.keys.tick_interval),
        scrape: SCRAPE,
        scrape_loss: Fraction::ZERO,
        relay: None,
        hold: Seconds::new(EXTERNAL_METRICS_HOLD.as_secs_f64()).unwrap_or_default(),
        outage: None,
    };
    Ok(Scenario { length, models, variants, control, sample: SAMPLE })
}

/// The models that somebody asked for.
fn models(
    gathered: &Gathered,
    (slo, args): (Slo, &BacktestArgs),
    length: Micros,
    notes: &mut Vec<String>,
) -> Vec<Model> {
    let mut models = Vec::new();
    for (at, (key, load)) in gathered.models.iter().enumerate() {
        if load.arrived() < 1.0 {
            notes.push(format!("{key} is left out: no request of it arrived"));
            continue;
        }
        let of_model = |crew: &&Crew| crew.spec.model_key() == *key;
        let mut crews = gathered.variants.values().filter(of_model);
        if crews.any(|crew| crew.spec.role != Role::Both) {
            note_halves(key, load, args, notes);
        }
        models.push(model(key, load, (slo, args), at, length));
    }
    models
}

/// Says what is assumed of a model whose roles are apart.
fn note_halves(key: &ModelKey, load: &Load, args: &BacktestArgs, notes: &mut Vec<String>) {
    if args.transfer_time.is_none() {
        notes.push(format!(
            "{key}: no page says how long its cache takes from prefill to decode replicas; it takes \
             no time here, unless --transfer-time says so"
        ));
    }
    let [computed, decoded] = load.halves;
    if (computed - decoded).abs() > HALVES * computed.max(decoded) {
        notes.push(format!(
            "{key}: {computed:.0} requests arrived at its prefill replicas and {decoded:.0} at its \
             decode replicas; the former are played, each on both, so what a router sent to decode \
             replicas alone, or nowhere, is not as it was"
        ));
    }
}

/// Why the score of a pool is that of its load.
fn unplayed(pool: &VariantKey) -> String {
    format!(
        "{pool} is a pool: which request asked for which adapter is on no page, so requests are \
         played without adapters, and policies without what its copies and slots need; it may need \
         more replicas than this"
    )
}

/// Leaves out models of which nobody simulated takes a part of the requests, with their variants:
/// half of a model serves nothing.
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

/// What a model lacks whose variants have these roles; `None` where they serve all of it.
fn lacking(roles: &BTreeSet<Role>) -> Option<&'static str> {
    match (roles.contains(&Role::Prefill), roles.contains(&Role::Decode)) {
        (true, true) => None,
        (true, false) => Some("with the role decode "),
        (false, true) => Some("with the role prefill "),
        (false, false) => roles.is_empty().then_some(""),
    }
}

fn model(
    key: &ModelKey,
    load: &Load,
    (slo, args): (Slo, &BacktestArgs),
    at: usize,
    span: Micros,
) -> Model {
    let rows = rows(load, (args.seed, at), span);
    let (rows, spread) = (rows.into(), Micros::ZERO);
    let replay = Replay { rows, prompts: None, span, copies: 1.0, spread, speed: 1.0 };
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

/// As many requests in each interval as arrived, at any time of it, and as long as those that
/// finished in it.
fn rows(load: &Load, (seed, model): (u64, usize), span: Micros) -> Vec<Row> {
    let mut times = generator(seed, Purpose::Times, model);
    let mut lengths = generator(seed, Purpose::Lengths, model);
    let (prompts, answers) = (Spread::of(&load.prompts), Spread::of(&load.answers));
    let mut rows = Vec::new();
    let mut owed = 0.0;
    let mut known = Interval::default();
    for (at, interval) in load.intervals.iter().enumerate() {
        if interval.prompts[1] >= 1.0 {
            known.prompts = interval.prompts;
        }
        if interval.answers[1] >= 1.0 {
            known.answers = interval.answers;
        }
        owed += interval.arrived;
        while owed >= 0.5 {
            owed -= 1.0;
            let second = (at as f64 + times.random::<f64>()) * INTERVAL;
            let mut length = |spread: &Spread, [sum, requests]: [f64; 2]| {
                spread.draw(lengths.random::<f64>(), (requests > 0.0).then(|| sum / requests))
            };
            let (prompt, output) =
                (length(&prompts, known.prompts), length(&answers, known.answers));
            let size = Size { prompt, output };
            rows.push(Row { at: Micros::from_secs_f64(second).min(span), size, prompt: None });
        }
    }
    rows.sort_by_key(|row| row.at);
    rows
}

/// How lengths are spread around their mean.
struct Spread {
    /// Upper edges of buckets, with the share of lengths up to each.
    buckets: Vec<(f64, f64)>,
    /// The mean of what was recorded, and that of what is drawn before it is moved. They differ by up
    /// to a tenth, because lengths are not spread evenly within a bucket.
    mean: f64,
    drawn: f64,
}

impl Spread {
    fn of(histogram: &Histogram) -> Self {
        let total = histogram.buckets.last().map_or(0.0, |(_, count)| *count);
        let mean = histogram.mean().unwrap_or(1.0).max(1.0);
        let finite = histogram.buckets.iter().filter(|(edge, _)| edge.is_finite() && total > 0.0);
        let buckets: Vec<(f64, f64)> = finite.map(|(edge, count)| (*edge, count / total)).collect();
        let (mut low, mut below, mut drawn) = (0.0, 0.0, 0.0);
        for &(edge, upto) in &buckets {
            drawn += (upto - below) * f64::midpoint(low, edge);
            (low, below) = (edge, upto);
        }
        drawn += (1.0 - below) * low;
        Self { mean, drawn: if drawn > 0.0 { drawn } else { mean }, buckets }
    }

    /// The length below which this share of all lies, moved so that the mean of all is that of its
    /// time.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between one and a million"
    )]
    fn draw(&self, share: f64, mean: Option<f64>) -> u32 {
        let (mut low, mut below) = (0.0, 0.0);
        let mut drawn = None;
        for &(edge, upto) in &self.buckets {
            if share <= upto && upto > below {
                drawn = Some(low + (edge - low) * (share - below) / (upto - below));
                break;
            }
            (low, below) = (edge, upto);
        }
        // Beyond the last edge nothing is known but that edge.
        let drawn = drawn.unwrap_or(if self.buckets.is_empty() { self.mean } else { low });
        let moved = drawn * mean.unwrap_or(self.mean) / self.drawn;
        moved.clamp(1.0, LENGTH_MAX).round() as u32
    }
}

fn variant(
    crew: &Crew,
    model: usize,
    candidates: &Candidates,
    args: &BacktestArgs,
    notes: &mut Vec<String>,
) -> Option<Variant> {
    let iteration = crew.iteration()?;
    let key = &crew.spec.key;
    let kv = crew.kv.unwrap_or_else(|| {
        notes
            .push(format!("{key}: the size of its KV cache is not known; {KV_TOKENS} are assumed"));
        KV_TOKENS
    });
    let start = start(crew, candidates, args);
    let max = crew.bounds.max().unwrap_or(MAX);
    let min = crew.bounds.min();
    notes.push(format!(
        "{key}: an iteration takes {}; {kv:.0} KV tokens; {start:.0} s to start",
        taken(crew.spec.role, iteration)
    ));
    let seats = whole(crew.running).max(SEATS);
    let batch_tokens = batch_tokens(crew).max(seats);
    let settings = scaler::Settings::following(min.max(Replicas::ONE), max);
    let hpa = Hpa { signal: Signal::Desired, settings, sync: SYNC, delay: Micros::ZERO };
    let actuator = if min == Replicas::ZERO {
        let activation = scaler::MilliValue(0);
        Actuator::Keda(Keda {
            hpa,
            to_zero: true,
            polling: POLLING,
            cooldown: COOLDOWN,
            activation,
        })
    } else {
        Actuator::Hpa(hpa)
    };
    let mut spec = crew.spec.clone();
    spec.bounds = crew.bounds;
    Some(Variant {
        spec,
        model,
        initial: crew.initial.unwrap_or(min).max(min).min(max),
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
        prefix: Prefix::Share(Fraction::ZERO),
        adapters: None,
        startup: Startup { load: Micros::from_secs_f64(start), ..Startup::default() },
        lifecycle: Lifecycle { notice: Micros::ZERO, ..Lifecycle::default() },
        rollout: None,
        actuator,
    })
}

/// The tokens of an iteration at most: the default, unless more was seen. Who decodes what others have
/// computed shows nothing of it.
fn batch_tokens(crew: &Crew) -> u32 {
    match crew.spec.role {
        Role::Decode => BATCH_TOKENS,
        Role::Both | Role::Prefill => {
            crew.most.iteration().map_or(BATCH_TOKENS, |most| whole(most).max(BATCH_TOKENS))
        }
    }
}

/// What an iteration takes, as far as replicas with this role show it.
fn taken(role: Role, iteration: Iteration) -> String {
    let Iteration { alpha, beta, delta } = iteration;
    let (prompt, request) = (
        format!(" + {:.1} us a prompt token", beta * 1e6),
        format!(" + {:.1} us a request", delta * 1e6),
    );
    let (prompt, request) = match role {
        Role::Both => (prompt, request),
        Role::Prefill => (prompt, String::new()),
        Role::Decode => (String::new(), request),
    };
    format!("{:.1} ms{prompt}{request}", alpha * 1e3)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and counts are not negative"
)]
fn whole(value: f64) -> u32 {
    value.ceil() as u32
}

/// Seconds that a replica takes to start: as told, as seen, or as the policy has it.
fn start(crew: &Crew, candidates: &Candidates, args: &BacktestArgs) -> f64 {
    if let Some(given) = args.start_time {
        return given.as_secs_f64();
    }
    let mut seen: Vec<f64> = crew.starts.values().copied().collect();
    seen.sort_by(f64::total_cmp);
    let sizing = candidates.config.policy.sizing.as_ref();
    let told = sizing.map_or(START, |sizing| sizing.foresight.startup.seconds());
    seen.get(seen.len() / 2).copied().unwrap_or(told)
}

/// What the fleet itself did, of the variants that are simulated: others would make the sums those
/// of another fleet.
fn as_it_was(gathered: &Gathered, scenario: &Scenario) -> Line {
    let simulated = |crew: &&Crew| scenario.variants.iter().any(|it| it.spec.key == crew.spec.key);
    let crews = || gathered.variants.values().filter(simulated);
    let hours = |crew: &Crew| crew.replica_seconds / 3600.0;
    let (first, last) = gathered.span.unwrap_or_default();
    let length = last.duration_since(first).as_secs_f64().max(1e-6) * crews().count().max(1) as f64;
    Line {
        name: "as it was".to_owned(),
        within: None,
        replica_hours: crews().map(hours).sum(),
        cost: crews().map(|crew| hours(crew) * crew.spec.cost.per_hour()).sum(),
        changes: crews().map(|crew| crew.changes).sum(),
        flips: crews().map(|crew| crew.flips).sum(),
        at_max: crews().map(|crew| crew.at_max).sum::<f64>() / length,
    }
}

/// What a policy came to.
fn line(candidate: &Candidate, scenario: &Scenario, outcome: &Outcome) -> Line {
    let crews = || scenario.variants.iter().zip(&outcome.variants);
    let looks = (outcome.series.len() * scenario.variants.len()).max(1) as f64;
    let at_max = outcome.series.iter().flat_map(|sample| sample.variants.iter().enumerate());
    let at_max = at_max.filter(|(at, seen)| {
        let max = scenario.variants[*at].spec.bounds.max();
        max.is_some_and(|max| seen.wanted >= max.count())
    });
    Line {
        name: candidate.name.clone(),
        within: share(&outcome.models, |service| service.good),
        replica_hours: crews().map(|(_, crew)| crew.replica_hours()).sum(),
        cost: crews().map(|(it, crew)| crew.replica_hours() * it.spec.cost.per_hour()).sum(),
        changes: crews().map(|(_, crew)| crew.ups + crew.downs).sum(),
        flips: crews().map(|(_, crew)| crew.flips).sum(),
        at_max: at_max.count() as f64 / looks,
    }
}

// Writing to a string cannot fail, so what it returns is dropped.

fn written(lines: &[Line], slo: Slo, notes: &[String]) -> String {
    let mut text = String::new();
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "\n{:<width$}  {:>10}  {:>13}  {:>10}  {:>7}  {:>5}  {:>10}",
        "policy", "within SLO", "replica-hours", "cost", "changes", "flips", "at maximum"
    );
    for line in lines {
        let Line { name, within, replica_hours, cost, changes, flips, at_max } = line;
        let within = within.map_or("-".to_owned(), |it| format!("{:.2} %", it * 100.0));
        let at_max = format!("{:.1} %", at_max * 100.0);
        let _ = writeln!(
            text,
            "{name:<width$}  {within:>10}  {replica_hours:>13.2}  {cost:>10.2}  {changes:>7}  \
             {flips:>5}  {at_max:>10}"
        );
    }
    let _ = writeln!(
        text,
        "\nThe first line is what happened, to the variants that can be simulated. The others are \
         simulated:\nthe recorded arrivals and lengths meet engines that were learned from the \
         recorded pages, so\ncompare them with each other, and \"recorded\" with the first line to \
         see how near the simulation\nis. Requests that never reached an engine are not in the \
         trace. Within SLO: first token in\n{:.3} s, then {:.1} ms between tokens.",
        slo.ttft.seconds(),
        slo.itl.seconds() * 1e3
    );
    for note in notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}
