//! Readers of WVA's queueing model: its solver, its tuner, and the analyzer that uses both.
//!
//! All are read under [`Convention::Wva`]. WVA computes the solver in single precision, so answers
//! agree to 1e-4 of themselves, and waits to what single precision leaves of a response time.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use plimsoll::analyze::capacity::Confidence;
use plimsoll::analyze::queueing::{
    Analysis, BATCH_DEFAULT, Coefficients, Convention, Infer, LatencyTarget, Lengths, Model,
    Policy, Prediction, Refusal, ReplicaLoad, Room, Shape, SharedCoefficients, Sizing, Slowdown,
    Statistic, Targets, VariantLoad, analyze,
};
use plimsoll::analyze::tuner::{
    Filter, FilterPolicy, Latencies, OperatingPoint, Prior, Setup, SetupError, StepError, Verdict,
    WvaGuessError, guess_as_wva,
};
use plimsoll::fleet::{Namespace, ReplicaKey, ReplicaName, Role, VariantKey, VariantName};
use plimsoll::units::{
    CostPerHour, Fraction, Replicas, RequestRate, Seconds, TimePerToken, Tokens,
};
use serde_json::Value;

use super::Outcome;

/// How far single precision is from double precision here, as a share.
const TOLERANCE: f64 = 1e-4;

/// How far WVA's filter, which differentiates in single precision, is from double precision.
const FILTERED: f64 = 1e-3;

/// The same for covariances, as a share of the two deviations.
const COVARIED: f64 = 5e-3;

/// WVA's coefficients before anything is learned, in seconds.
const DEFAULTS: [f64; 3] = [5e-3, 5e-5, 5e-8];

const REQUIRED: &str = "what the present replicas cannot carry is required";
const CRASH: &str = "a rate above the learned maximum is a rejected observation";
const TPS: &str = "a target for tokens per second is not a latency";
const ONE_PLACE: &str = "a replica with one place is solved";
const FLAT: &str = "a latency that does not depend on the rate is met or not at all of them";
const NO_WORK: &str = "a model without work is refused";

/// `queue_solver`: latencies at rates, and rates for latencies.
pub(super) fn solver(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let model = match Replica::read(input) {
        Ok(replica) => replica,
        Err(why) if expected["error"] == why => return Outcome::Passed,
        Err(why) => return Outcome::Failed(format!("{why}, not {}", expected["error"])),
    };
    if expected["hangs"] == true {
        let target = targets(number(&input["targets"][0], "target_ttft_ms"), 0.0);
        return match model.model.rate_for(&target.unwrap()) {
            Err(Refusal::NoWork) => Outcome::Differs(NO_WORK),
            found => Outcome::Failed(format!("a model without work gives {found:?}")),
        };
    }
    let range = [model.model.rate_min(), model.model.rate_max()];
    for (found, name) in range.into_iter().zip(["min_rate_req_per_s", "max_rate_req_per_s"]) {
        let found = found.map_or(f64::INFINITY, RequestRate::requests_per_second);
        if !close(found, number(expected, name)) {
            return Outcome::Failed(format!("{name} {found}, not {}", expected[name]));
        }
    }
    let mut differs = None;
    let rates = list(input, "rates_req_per_s").iter().zip(list(expected, "at_rates"));
    let sizes = list(input, "targets").iter().zip(list(expected, "sizes"));
    let outcomes = rates
        .map(|(rate, expected)| model.same_rate(float(rate), expected))
        .chain(sizes.map(|(targets, expected)| model.same_size(targets, expected)));
    for outcome in outcomes {
        match outcome {
            Outcome::Differs(class) => differs = differs.or(Some(class)),
            Outcome::Passed => {}
            failed => return failed,
        }
    }
    differs.map_or(Outcome::Passed, Outcome::Differs)
}

/// The model of a case.
struct Replica {
    model: Model,
    places: u64,
}

impl Replica {
    /// Reads a model, or says why WVA refuses it too.
    fn read(input: &Value) -> Result<Self, &'static str> {
        let places = number(input, "max_batch_reqs");
        let queue = number(input, "max_queue_reqs");
        if places < 1.0 || queue < 0.0 {
            return Err("invalid configuration");
        }
        let shape = shape(input).ok_or("invalid request size")?;
        let batch = NonZeroU32::new(whole(input, "max_batch_reqs")).unwrap();
        let room = Room { batch, queue: whole(input, "max_queue_reqs") };
        let model = Model::under(Convention::Wva, coefficients(input), shape, room);
        Ok(Self { model, places: u64::from(batch.get()) + u64::from(room.queue) })
    }

    fn same_rate(&self, rate: f64, expected: &Value) -> Outcome {
        let found = match RequestRate::new(rate) {
            None => Err(Refusal::Idle),
            Some(rate) => self.model.at(rate),
        };
        let error = expected["error"].as_str();
        match (&found, error) {
            (Err(Refusal::Idle), Some("rate not positive"))
            | (Err(Refusal::Overload { .. }), Some("rate above max rate")) => Outcome::Passed,
            (Ok(_) | Err(_), Some("model invalid (utilisation check)")) if self.places == 1 => {
                Outcome::Differs(ONE_PLACE)
            }
            (Ok(at), None) => {
                let same = self.same_prediction(at, &expected["metrics"]);
                same.map_or_else(Outcome::Failed, |()| Outcome::Passed)
            }
            _ => Outcome::Failed(format!("{found:?} at {rate}, not {error:?}")),
        }
    }

    fn same_size(&self, input: &Value, expected: &Value) -> Outcome {
        let (ttft, itl) = (number(input, "target_ttft_ms"), number(input, "target_itl_ms"));
        let tps = number(input, "target_tps_tokens_per_s");
        let Some(both) = targets(ttft, itl) else {
            return match expected["error"].as_str() {
                Some("invalid target") => Outcome::Passed,
                error => Outcome::Failed(format!("the target is invalid, not {error:?}")),
            };
        };
        let found = self.model.rate_for(&both);
        let error = expected["error"].as_str();
        if self.places == 1 && error == Some("model invalid (utilisation check)") {
            return Outcome::Differs(ONE_PLACE);
        }
        let found = match (found, error) {
            (Err(Refusal::IdleFloor { .. }), Some("target below the bounded region")) => {
                return Outcome::Passed;
            }
            (Ok(found), None) => found,
            _ if self.is_flat() => return Outcome::Differs(FLAT),
            (found, error) => return Outcome::Failed(format!("{found:?}, not {error:?}")),
        };
        for (target, name) in [
            (targets(ttft, 0.0), "rate_for_ttft_req_per_s"),
            (targets(0.0, itl), "rate_for_itl_req_per_s"),
        ] {
            let rate = self.model.rate_for(&target.unwrap()).map(|found| found.rate);
            let rate = rate.map_or(0.0, RequestRate::requests_per_second);
            if !close(rate, number(expected, name)) {
                if self.is_flat() {
                    return Outcome::Differs(FLAT);
                }
                return Outcome::Failed(format!("{name} {rate}, not {}", expected[name]));
            }
        }
        if tps > 0.0 {
            return Outcome::Differs(TPS);
        }
        let same = self.same_prediction(&found.at, &expected["metrics"]);
        same.map_or_else(Outcome::Failed, |()| Outcome::Passed)
    }

    /// Whether the time between tokens does not grow with the rate, as in a batch of one.
    fn is_flat(&self) -> bool {
        let itl = |rate: Option<RequestRate>| {
            let rate = rate.unwrap();
            self.model.at(rate).unwrap().itl.seconds()
        };
        itl(self.model.rate_max()) <= itl(self.model.rate_min()) * (1.0 + TOLERANCE)
    }

    fn same_prediction(&self, at: &Prediction, expected: &Value) -> Result<(), String> {
        let milliseconds = |time: Seconds| 1000.0 * time.seconds();
        let slack = 1e-5 * milliseconds(at.response) + 0.01;
        let ttft = milliseconds(self.model.sized_ttft(at));
        for (found, name, slack) in [
            (at.throughput.requests_per_second(), "throughput_req_per_s", 0.0),
            (milliseconds(at.response), "avg_response_ms", 0.0),
            (milliseconds(at.wait), "avg_wait_ms", slack),
            (at.in_service.requests(), "avg_requests_in_service", 0.0),
            (milliseconds(at.prefill), "avg_prefill_ms", 0.0),
            (milliseconds(at.itl), "avg_itl_ms", 0.0),
            (ttft, "avg_ttft_ms", slack),
            (at.batch_use.fraction(), "rho_ratio", 0.0),
        ] {
            let wanted = number(expected, name);
            if !close(found, wanted) && (found - wanted).abs() > slack {
                return Err(format!("{name} {found}, not {wanted}"));
            }
        }
        Ok(())
    }
}

/// `ekf_tuner`: a sequence of observations.
pub(super) fn tuner(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let observations: Vec<Seen> = list(input, "observations").iter().map(Seen::of).collect();
    let Some(first) = observations.first() else {
        return Outcome::Failed("no observation".to_owned());
    };
    if let Err(why) = same_guess(first.guess(), expected) {
        return Outcome::Failed(why);
    }
    let made = match &input["initial_covariance_row_major"] {
        Value::Array(rows) => Prior::Covariance(squared(rows)),
        _ => Prior::Drift,
    };
    let state = |name| thousandths(&floats(&input[name]));
    let setup = Setup {
        state: state("initial_state_alpha_beta_gamma"),
        prior: made,
        min: state("state_min"),
        max: state("state_max"),
    };
    let error = expected["constructor_error"].as_str();
    let mut filter = match (build(input, &setup, first), error) {
        (Ok(filter), None) => filter,
        (Err(why), Some(error)) if why == error => return Outcome::Passed,
        (made, error) => return Outcome::Failed(format!("{made:?}, not {error:?}")),
    };
    for (seen, expected) in observations.iter().zip(list(expected, "steps")) {
        if let Err(why) = same_step(&mut filter, seen, expected) {
            return Outcome::Failed(why);
        }
    }
    Outcome::Passed
}

/// An observation as WVA has it, with what we make of it.
struct Seen {
    lengths: Option<Lengths>,
    latencies: Option<Latencies>,
    point: Option<OperatingPoint>,
}

impl Seen {
    /// Reads an observation; a rate, a length or a latency of 0 makes it invalid.
    fn of(value: &Value) -> Self {
        let lengths = lengths(value);
        let latencies = Latencies {
            ttft: Seconds::new(number(value, "observed_ttft_ms") / 1000.0).unwrap(),
            itl: Seconds::new(number(value, "observed_itl_ms") / 1000.0).unwrap(),
        };
        let arrival = number(value, "arrival_rate_req_per_min") / 60.0;
        let valid = arrival > 0.0
            && latencies.ttft > Seconds::ZERO
            && latencies.itl > Seconds::ZERO
            && lengths.is_some_and(|lengths| {
                lengths.input > Tokens::ZERO && lengths.output > Tokens::ZERO
            });
        let point = || {
            let batch = NonZeroU32::new(whole(value, "max_batch_reqs"))?;
            let arrival = RequestRate::new(arrival)?;
            OperatingPoint::new(arrival, Shape::new(lengths?)?, batch, latencies)
        };
        Self {
            lengths: lengths.filter(|_| valid),
            latencies: valid.then_some(latencies),
            point: point(),
        }
    }

    fn guess(&self) -> Result<SharedCoefficients, &'static str> {
        let (lengths, latencies) = self.lengths.zip(self.latencies).ok_or("invalid environment")?;
        guess_as_wva(lengths, latencies).map_err(|error| match error {
            WvaGuessError::TtftBelowAlpha => "beta+gamma negative",
            WvaGuessError::TooFewTokens => "denominator",
            WvaGuessError::GammaNotPositive => "gamma not positive",
            WvaGuessError::BetaNotPositive => "beta not positive",
        })
    }
}

/// WVA's filter for a case, or what it says instead.
fn build(input: &Value, setup: &Setup, first: &Seen) -> Result<Filter, &'static str> {
    let unset = "observation function cannot be evaluated at the initial state";
    if first.latencies.is_none() {
        return Err("invalid environment");
    }
    let point = first.point.as_ref().ok_or(unset)?;
    let policy = filter_policy(&input["filter"]).ok_or("invalid config data")?;
    Filter::new(policy, setup, point).map_err(|error| match error {
        SetupError::Invalid => "invalid config data",
        SetupError::NoPrediction => unset,
    })
}

/// WVA's filter by its three numbers; `None` where one of them is nothing.
fn filter_policy(value: &Value) -> Option<FilterPolicy> {
    let of = |name: &str, default: f64| value.get(name).map_or(default, float);
    let (factor, error) = (of("gamma_factor", 1.0), of("error_level_fraction", 0.05));
    let percentile = of("t_percentile", 1.96);
    if [factor, error, percentile].iter().any(|value| *value <= 0.0) {
        return None;
    }
    Some(FilterPolicy::wva(Fraction::new(error / percentile / factor.sqrt())?))
}

fn same_guess(
    found: Result<SharedCoefficients, &'static str>,
    expected: &Value,
) -> Result<(), String> {
    match found {
        Err(why) if expected["guess_error"] == why => Ok(()),
        Err(why) => Err(format!("the guess fails: {why}, not {expected}")),
        Ok(SharedCoefficients { alpha, beta, gamma }) => {
            let found = [alpha.seconds(), beta.seconds_per_token(), gamma.seconds_per_token()];
            same_state(found, &floats(&expected["guess_alpha_beta_gamma"]))
        }
    }
}

/// Makes one step, and compares all that WVA says of it.
fn same_step(filter: &mut Filter, seen: &Seen, expected: &Value) -> Result<(), String> {
    let error = expected["error"].as_str();
    let Some(point) = seen.point.as_ref().filter(|_| seen.latencies.is_some()) else {
        return match error {
            Some("invalid environment") => Ok(()),
            _ => Err(format!("the observation is invalid, not {error:?}")),
        };
    };
    let step = match (filter.step(point), error) {
        (Ok(step), None) => step,
        (
            Err(StepError::NoPrediction),
            Some("failed to update filter: measurement function returned nil"),
        ) => return Ok(()),
        (step, error) => return Err(format!("{step:?}, not {error:?}")),
    };
    same_state(filter.state(), &floats(&expected["state_alpha_beta_gamma"]))?;
    same_covariance(filter, &floats(&expected["covariance_upper"]))?;
    same_nis(step.nis, number(expected, "nis"))?;
    let latencies = seen.latencies.unwrap();
    let size = [latencies.ttft, latencies.itl].map(|time| 1000.0 * time.seconds());
    let innovation = floats(&expected["innovation_ttft_itl_ms"]);
    for ((found, wanted), size) in step.innovation.iter().zip(&innovation).zip(size) {
        let slack = FILTERED * wanted.abs() + TOLERANCE * size;
        if (1000.0 * found - wanted).abs() > slack {
            return Err(format!("innovation {}, not {wanted}", 1000.0 * found));
        }
    }
    let rejected = expected["validation_failed"] == true;
    if rejected != (step.verdict == Verdict::Rejected) {
        return Err(format!("{:?}, not {expected}", step.verdict));
    }
    Ok(())
}

fn same_state(found: [f64; 3], wanted: &[f64]) -> Result<(), String> {
    let same = |(found, wanted): (&f64, &f64)| (1000.0 * found - wanted).abs() <= FILTERED * wanted;
    if wanted.len() == 3 && found.iter().zip(wanted).all(same) {
        Ok(())
    } else {
        Err(format!("state {:?}, not {wanted:?}", found.map(|value| 1000.0 * value)))
    }
}

/// Compares covariances, each as a share of what its two variances allow.
fn same_covariance(filter: &Filter, wanted: &[f64]) -> Result<(), String> {
    let rows = filter.covariance().map(|row| row.map(|value| 1e6 * value));
    let places = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)];
    for ((row, column), wanted) in places.into_iter().zip(wanted) {
        let found = rows[row][column];
        let size = (rows[row][row] * rows[column][column]).sqrt();
        if (found - wanted).abs() > COVARIED * size {
            return Err(format!("covariance {row}{column} {found}, not {wanted} (of {size})"));
        }
    }
    Ok(())
}

/// A distance, where -1 is none.
fn same_nis(found: Option<f64>, wanted: f64) -> Result<(), String> {
    let found = found.unwrap_or(-1.0);
    if (found - wanted).abs() <= 5e-2 * wanted.abs() + 1e-3 {
        Ok(())
    } else {
        Err(format!("nis {found}, not {wanted}"))
    }
}

/// `queueing_model_analyzer`: tuner, targets and capacities of one model over cycles.
pub(super) fn analyzer(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let mut model = Learning::read(input);
    let mut differs = None;
    let cycles = list(input, "cycles").iter().zip(expected.as_array().unwrap());
    for (cycle, expected) in cycles {
        match model.cycle(input, cycle, expected) {
            Ok(None) => {}
            Ok(class) => differs = differs.or(class),
            Err(why) => return Outcome::Failed(why),
        }
    }
    differs.map_or(Outcome::Passed, Outcome::Differs)
}

/// What WVA keeps of a variant between two cycles.
struct Kept {
    state: [f64; 3],
    prior: Prior,
    nis: f64,
}

/// A model, and what was learned of its variants.
struct Learning {
    namespace: String,
    kept: BTreeMap<String, Kept>,
}

/// A whole cycle agrees, or differs in this.
type Same = Result<Option<&'static str>, String>;

impl Learning {
    fn read(input: &Value) -> Self {
        let kept = list(input, "stored_parameters").iter().map(|stored| {
            let of = |name| number(stored, name) / 1000.0;
            let state = [of("alpha_ms"), of("beta_ms_per_token"), of("gamma_ms_per_token")];
            (text(stored, "variant").to_owned(), Kept { state, prior: Prior::Drift, nis: 0.0 })
        });
        Self { namespace: text(input, "namespace").to_owned(), kept: kept.collect() }
    }

    fn cycle(&mut self, input: &Value, cycle: &Value, expected: &Value) -> Same {
        let config = &input["config"];
        let mut crashed = false;
        if config["tuning_enabled"] == true {
            let mut variants: Vec<&str> =
                list(cycle, "replicas").iter().map(|pod| text(pod, "variant")).collect();
            variants.sort_unstable();
            variants.dedup();
            for variant in variants {
                crashed |= self.tune(variant, &input["config"]["filter"], cycle).is_err();
            }
        }
        if expected.get("panic").is_some() {
            return if crashed { Ok(Some(CRASH)) } else { Err("nothing crashes here".to_owned()) };
        }
        if crashed {
            return Err("WVA crashes here".to_owned());
        }
        self.same_parameters(expected)?;
        let analysis = self.analyze(config, cycle);
        same_analysis(&analysis, cycle, expected)
    }

    /// One cycle of WVA's tuner for one variant; an error is where WVA crashes.
    fn tune(&mut self, variant: &str, filter: &Value, cycle: &Value) -> Result<(), StepError> {
        let pods = || list(cycle, "replicas").iter().filter(|pod| text(pod, "variant") == variant);
        let batch = pods().find_map(|pod| NonZeroU32::new(whole(pod, "max_batch_reqs")));
        let batch = batch.unwrap_or(BATCH_DEFAULT);
        let points: Vec<(Lengths, Latencies, OperatingPoint)> = pods()
            .filter_map(|pod| {
                let latencies = Latencies {
                    ttft: Seconds::new(number(pod, "avg_ttft_s"))?,
                    itl: Seconds::new(number(pod, "avg_itl_s"))?,
                };
                let arrival = RequestRate::new(number(pod, "arrival_req_per_s"))?;
                let lengths = lengths(pod)?;
                let point = OperatingPoint::new(arrival, Shape::new(lengths)?, batch, latencies)?;
                Some((lengths, latencies, point))
            })
            .collect();
        let Some((lengths, latencies, first)) = points.first() else { return Ok(()) };
        let kept = self.kept.get(variant);
        let bounds = |state: [f64; 3]| (state.map(|x| 0.01 * x), state.map(|x| 100.0 * x));
        let (state, (min, max)) = match (kept, guess_as_wva(*lengths, *latencies)) {
            (Some(kept), _) => (kept.state, bounds(DEFAULTS)),
            (None, Err(_)) => (DEFAULTS, bounds(DEFAULTS)),
            (None, Ok(SharedCoefficients { alpha, beta, gamma })) => {
                let guess = [alpha.seconds(), beta.seconds_per_token(), gamma.seconds_per_token()];
                (guess, bounds(guess))
            }
        };
        let prior = kept.map_or(Prior::Drift, |kept| kept.prior);
        let setup = Setup { state, prior, min, max };
        let policy = filter_policy(filter).unwrap();
        let Ok(mut filter) = Filter::new(policy, &setup, first) else { return Ok(()) };
        let mut nis = 0.0;
        for (_, _, point) in &points {
            nis = filter.step(point)?.nis.unwrap_or(-1.0);
        }
        let rows = filter.covariance();
        // WVA keeps the upper triangle.
        let upper = |row: usize, column: usize| rows[row.min(column)][row.max(column)];
        let prior =
            Prior::Covariance([0, 1, 2].map(|row| [0, 1, 2].map(|column| upper(row, column))));
        self.kept.insert(variant.to_owned(), Kept { state: filter.state(), prior, nis });
        Ok(())
    }

    fn same_parameters(&self, expected: &Value) -> Result<(), String> {
        for parameters in list(expected, "parameters_after") {
            let variant = text(parameters, "variant");
            let Some(kept) = self.kept.get(variant) else {
                return Err(format!("nothing was learned of {variant}"));
            };
            let names = ["alpha_ms", "beta_ms_per_token", "gamma_ms_per_token"];
            same_state(kept.state, &names.map(|name| number(parameters, name)))
                .and_then(|()| same_nis(Some(kept.nis), number(parameters, "nis")))
                .map_err(|why| format!("{variant}: {why}"))?;
        }
        Ok(())
    }

    fn analyze(&self, config: &Value, cycle: &Value) -> Analysis {
        let slowdown = Slowdown::new(number(config, "slo_multiplier")).unwrap_or_default();
        let both = [number(config, "target_ttft_ms"), number(config, "target_itl_ms")];
        let stated = both.iter().all(|target| *target > 0.0);
        let policy = Policy {
            targets: if stated { targets(both[0], both[1]).unwrap() } else { Targets::default() },
            infer: Infer { slowdown, ..Infer::default() },
            convention: Convention::Wva,
            ..Policy::default()
        };
        let variants: Vec<VariantLoad> =
            list(cycle, "states").iter().map(|state| self.variant(state, cycle)).collect();
        analyze(&variants, &policy)
    }

    fn variant(&self, state: &Value, cycle: &Value) -> VariantLoad {
        let name = text(state, "variant");
        let key = VariantKey {
            namespace: Namespace::new(&self.namespace).unwrap(),
            variant: VariantName::new(name).unwrap(),
        };
        let pods = list(cycle, "replicas").iter().filter(|pod| text(pod, "variant") == name);
        let learned = self.kept.get(name).map(|kept| {
            let [alpha, beta, gamma] = kept.state;
            let shared = SharedCoefficients {
                alpha: Seconds::new(alpha).unwrap(),
                beta: TimePerToken::new(beta).unwrap(),
                gamma: TimePerToken::new(gamma).unwrap(),
            };
            (Coefficients::from(shared), Confidence::Measured)
        });
        let (current, pending) = (whole(state, "current"), whole(state, "pending"));
        VariantLoad {
            role: Role::Both,
            cost: CostPerHour::ZERO,
            replicas: Replicas::saturating(current.saturating_sub(pending)),
            pending: Replicas::saturating(pending),
            learned,
            loads: pods.map(|pod| load(&key, pod)).collect(),
            key,
        }
    }
}

fn load(key: &VariantKey, pod: &Value) -> ReplicaLoad {
    let time = |name| Seconds::new(number(pod, name)).filter(|time| *time > Seconds::ZERO);
    let name = ReplicaName::new(text(pod, "pod")).unwrap();
    ReplicaLoad {
        replica: ReplicaKey { variant: key.clone(), replica: name, incarnation: None },
        arrival: RequestRate::new(number(pod, "arrival_req_per_s")).unwrap(),
        shape: lengths(pod).and_then(Shape::new),
        ttft: time("avg_ttft_s"),
        itl: time("avg_itl_s"),
        batch: NonZeroU32::new(whole(pod, "max_batch_reqs")),
    }
}

/// Compares what one replica of each variant carries, and the sums that WVA makes of it. WVA calls
/// what the needed replicas would carry the capacity of a variant, so that it never misses any; we
/// call what the present ones carry so.
fn same_analysis(analysis: &Analysis, cycle: &Value, expected: &Value) -> Same {
    let error = expected["error"].as_str();
    let found = match (analysis.slo, list(cycle, "states").is_empty()) {
        (None, false) => Some("no SLO target"),
        (_, true) if error.is_some() => error,
        _ => None,
    };
    if found != error {
        return Err(format!("{found:?}, not {error:?}"));
    }
    let Some(slo) = analysis.slo.filter(|_| error.is_none()) else { return Ok(None) };
    let ttft = slo.targets.ttft.map_or(0.0, |target| 1000.0 * target.limit.seconds());
    let itl = slo.targets.itl.map_or(0.0, |target| 1000.0 * target.seconds());
    for (found, name) in [(ttft, "target_ttft_ms"), (itl, "target_itl_ms")] {
        let wanted = number(&expected["slo_used"], name);
        if (found - wanted).abs() > FILTERED * wanted {
            return Err(format!("{name} {found}, not {wanted}"));
        }
    }
    let (mut supply, mut demand) = (0.0, 0.0);
    for wanted in list(&expected["result"], "variants") {
        let name = text(wanted, "variant");
        let found = analysis.variants.iter().find(|found| found.key.variant.as_str() == name);
        let found = found.ok_or_else(|| format!("no variant {name}"))?;
        let (capacity, needed, arriving) = match found.sizing {
            Sizing::Sized { capacity, demand, needed } => (
                capacity.at.throughput.requests_per_second(),
                f64::from(needed.count()),
                demand.requests_per_second(),
            ),
            Sizing::Unsized(_) => (0.0, 0.0, 0.0),
        };
        supply += capacity * needed;
        demand += arriving;
        for (found, field) in
            [(capacity, "per_replica_cap"), (capacity * needed, "total_cap"), (arriving, "demand")]
        {
            let wanted = number(wanted, field);
            if (found - wanted).abs() > FILTERED * wanted {
                return Err(format!("{name}: {field} {found}, not {wanted}"));
            }
        }
    }
    for (found, name) in [(supply, "supply"), (demand, "demand")] {
        let wanted = number(&expected["result"], name);
        if (found - wanted).abs() > FILTERED * wanted {
            return Err(format!("{name} {found}, not {wanted}"));
        }
    }
    let total = analysis.report.total;
    let missing = total.demand.amount() - total.anticipated.amount();
    if (total.required.amount() - missing.max(0.0)).abs() > TOLERANCE {
        return Err(format!("required {:?}, where {missing} is missing", total.required));
    }
    Ok((missing > 0.0).then_some(REQUIRED))
}

/// The targets of a case, in milliseconds, where 0 is none; `None` when one is no latency.
fn targets(ttft: f64, itl: f64) -> Option<Targets> {
    let target = |milliseconds: f64| {
        let seconds = Seconds::new(milliseconds / 1000.0)?;
        Some((seconds > Seconds::ZERO).then_some(seconds))
    };
    let ttft = target(ttft)?.map(|limit| LatencyTarget { limit, of: Statistic::Mean });
    Some(Targets { ttft, itl: target(itl)? })
}

fn coefficients(input: &Value) -> Coefficients {
    let per_token = |name| TimePerToken::new(number(input, name) / 1000.0).unwrap();
    Coefficients::from(SharedCoefficients {
        alpha: Seconds::new(number(input, "alpha_ms") / 1000.0).unwrap(),
        beta: per_token("beta_ms_per_token"),
        gamma: per_token("gamma_ms_per_token"),
    })
}

fn shape(input: &Value) -> Option<Shape> {
    lengths(input).and_then(Shape::new)
}

fn lengths(value: &Value) -> Option<Lengths> {
    let tokens = |name| Tokens::new(number(value, name));
    Some(Lengths { input: tokens("in_tokens")?, output: tokens("out_tokens")? })
}

fn close(found: f64, wanted: f64) -> bool {
    found.total_cmp(&wanted).is_eq() || (found - wanted).abs() <= TOLERANCE * wanted.abs()
}

/// A number, where an absent one is 0.
fn number(value: &Value, name: &str) -> f64 {
    float(&value[name])
}

fn float(value: &Value) -> f64 {
    match value.as_str() {
        Some("Infinity") => f64::INFINITY,
        _ => value.as_f64().unwrap_or_default(),
    }
}

fn floats(values: &Value) -> Vec<f64> {
    values.as_array().into_iter().flatten().map(float).collect()
}

/// Three numbers of a thousandth each: milliseconds as seconds.
fn thousandths(values: &[f64]) -> [f64; 3] {
    [0, 1, 2].map(|index| values[index] / 1000.0)
}

/// A covariance row by row, from square milliseconds.
fn squared(values: &[Value]) -> [[f64; 3]; 3] {
    [0, 1, 2].map(|row| [0, 1, 2].map(|column| float(&values[3 * row + column]) / 1e6))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn whole(value: &Value, name: &str) -> u32 {
    u32::try_from(value[name].as_u64().unwrap_or_default()).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}
