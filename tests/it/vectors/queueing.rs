//! Readers of WVA's queueing model: its solver, its tuner, and the analyzer that uses both.
//!
//! WVA computes the solver in single precision, so answers agree to 1e-4 of themselves, and waits to
//! the rest that single precision leaves of a response time.

use std::collections::BTreeMap;

use plimsoll::analyze::queueing::MeanRequest;
use serde_json::Value;

use crate::reference::wva;
use crate::reference::wva::queueing::{
    Coefficients, Load, Model, Prediction, Refusal, Targets, Workload, capacity,
};
use crate::reference::wva::tuner::{
    Filter, GuessError, NoPrediction, Point, Setup, SetupError, guess,
};

use super::Outcome;

/// How far single precision is from double precision here, as a share.
const TOLERANCE: f64 = 1e-4;

/// How far WVA's filter, which differentiates in single precision, is from double precision.
const FILTERED: f64 = 1e-3;

/// The same for covariances, as a share of the two deviations.
const COVARIED: f64 = 5e-3;

/// WVA's coefficients before anything is learned, in seconds.
const DEFAULTS: [f64; 3] = [5e-3, 5e-5, 5e-8];

/// Places in the batch of a replica that does not state them.
const BATCH: u32 = 256;

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
        return match model.model.rate_for(target.unwrap()) {
            Err(Refusal::NoWork) => Outcome::Differs(NO_WORK),
            found => Outcome::Failed(format!("a model without work gives {found:?}")),
        };
    }
    let range = [model.model.rate_min(), model.model.rate_max()];
    for (found, name) in range.into_iter().zip(["min_rate_req_per_s", "max_rate_req_per_s"]) {
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
    places: u32,
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
        let batch = whole(input, "max_batch_reqs");
        let queue = whole(input, "max_queue_reqs");
        let model = Model::new(coefficients(input), shape, batch, queue);
        Ok(Self { model, places: batch + queue })
    }

    fn same_rate(&self, rate: f64, expected: &Value) -> Outcome {
        let found = self.model.at(rate);
        let error = expected["error"].as_str();
        match (&found, error) {
            (Err(Refusal::Idle), Some("rate not positive"))
            | (Err(Refusal::Overload), Some("rate above max rate")) => Outcome::Passed,
            (Ok(_) | Err(_), Some("model invalid (utilisation check)")) if self.places == 1 => {
                Outcome::Differs(ONE_PLACE)
            }
            (Ok(at), None) => {
                let same = same_prediction(at, &expected["metrics"]);
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
        let found = self.model.rate_for(both);
        let error = expected["error"].as_str();
        if self.places == 1 && error == Some("model invalid (utilisation check)") {
            return Outcome::Differs(ONE_PLACE);
        }
        let found = match (found, error) {
            (Err(Refusal::IdleFloor), Some("target below the bounded region")) => {
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
            let rate = self.model.rate_for(target.unwrap()).map_or(0.0, |found| found.rate);
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
        let same = same_prediction(&found.at, &expected["metrics"]);
        same.map_or_else(Outcome::Failed, |()| Outcome::Passed)
    }

    /// Whether the time between tokens does not grow with the rate, as in a batch of one.
    fn is_flat(&self) -> bool {
        let itl = |rate: f64| self.model.at(rate).unwrap().itl;
        itl(self.model.rate_max()) <= itl(self.model.rate_min()) * (1.0 + TOLERANCE)
    }
}

fn same_prediction(at: &Prediction, expected: &Value) -> Result<(), String> {
    let slack = 1e-5 * 1000.0 * at.response + 0.01;
    for (found, name, slack) in [
        (at.throughput, "throughput_req_per_s", 0.0),
        (1000.0 * at.response, "avg_response_ms", 0.0),
        (1000.0 * at.wait, "avg_wait_ms", slack),
        (at.in_service, "avg_requests_in_service", 0.0),
        (1000.0 * at.prefill, "avg_prefill_ms", 0.0),
        (1000.0 * at.itl, "avg_itl_ms", 0.0),
        (1000.0 * at.sized_ttft(), "avg_ttft_ms", slack),
        (at.batch_use, "rho_ratio", 0.0),
    ] {
        let wanted = number(expected, name);
        if !close(found, wanted) && (found - wanted).abs() > slack {
            return Err(format!("{name} {found}, not {wanted}"));
        }
    }
    Ok(())
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
    let covariance = input["initial_covariance_row_major"].as_array().map(|rows| squared(rows));
    let state = |name| thousandths(&floats(&input[name]));
    let setup = Setup {
        state: state("initial_state_alpha_beta_gamma"),
        covariance,
        min: state("state_min"),
        max: state("state_max"),
        noise: noise(&input["filter"]).unwrap_or_default(),
    };
    let error = expected["constructor_error"].as_str();
    let mut filter = match (build(&setup, first), error) {
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

/// An observation as WVA has it.
struct Seen {
    input: f64,
    output: f64,
    ttft: f64,
    itl: f64,
    valid: bool,
    point: Option<Point>,
}

impl Seen {
    /// Reads an observation; a rate, a length or a latency of 0 makes it invalid.
    fn of(value: &Value) -> Self {
        let input = number(value, "in_tokens");
        let output = number(value, "out_tokens");
        let ttft = number(value, "observed_ttft_ms") / 1000.0;
        let itl = number(value, "observed_itl_ms") / 1000.0;
        let arrival = number(value, "arrival_rate_req_per_min") / 60.0;
        let valid = [input, output, ttft, itl, arrival].iter().all(|it| *it > 0.0);
        let batch = whole(value, "max_batch_reqs");
        let shape = wva::shape(input, output).filter(|_| batch > 0 && valid);
        let point = shape.map(|shape| Point { arrival, shape, batch, ttft, itl });
        Self { input, output, ttft, itl, valid, point }
    }

    fn guess(&self) -> Result<Coefficients, &'static str> {
        if !self.valid {
            return Err("invalid environment");
        }
        guess(self.input, self.output, self.ttft, self.itl).map_err(|error| match error {
            GuessError::TtftBelowAlpha => "beta+gamma negative",
            GuessError::TooFewTokens => "denominator",
            GuessError::GammaNotPositive => "gamma not positive",
            GuessError::BetaNotPositive => "beta not positive",
        })
    }
}

/// WVA's filter for a case, or its error.
fn build(setup: &Setup, first: &Seen) -> Result<Filter, &'static str> {
    let unset = "observation function cannot be evaluated at the initial state";
    if !first.valid {
        return Err("invalid environment");
    }
    let point = first.point.as_ref().ok_or(unset)?;
    Filter::new(setup, point).map_err(|error| match error {
        SetupError::Invalid => "invalid config data",
        SetupError::NoPrediction => unset,
    })
}

/// The noise of WVA's filter by its three numbers; `None` where one of them is nothing.
fn noise(value: &Value) -> Option<f64> {
    let of = |name: &str, default: f64| value.get(name).map_or(default, float);
    let factor = of("gamma_factor", 1.0);
    let error = of("error_level_fraction", 0.05);
    let percentile = of("t_percentile", 1.96);
    let positive = [factor, error, percentile].iter().all(|value| *value > 0.0);
    positive.then(|| error / percentile / factor.sqrt())
}

fn same_guess(found: Result<Coefficients, &'static str>, expected: &Value) -> Result<(), String> {
    match found {
        Err(why) if expected["guess_error"] == why => Ok(()),
        Err(why) => Err(format!("the guess fails: {why}, not {expected}")),
        Ok(Coefficients { alpha, beta, gamma }) => {
            same_state([alpha, beta, gamma], &floats(&expected["guess_alpha_beta_gamma"]))
        }
    }
}

/// Makes one step, and compares all that WVA says of it.
fn same_step(filter: &mut Filter, seen: &Seen, expected: &Value) -> Result<(), String> {
    let error = expected["error"].as_str();
    let Some(point) = seen.point.as_ref() else {
        return match error {
            Some("invalid environment") => Ok(()),
            _ => Err(format!("the observation is invalid, not {error:?}")),
        };
    };
    let step = match (filter.step(point), error) {
        (Ok(step), None) => step,
        (Err(NoPrediction), Some("failed to update filter: measurement function returned nil")) => {
            return Ok(());
        }
        (step, error) => return Err(format!("{step:?}, not {error:?}")),
    };
    same_state(filter.state(), &floats(&expected["state_alpha_beta_gamma"]))?;
    same_covariance(filter, &floats(&expected["covariance_upper"]))?;
    same_nis(step.nis, number(expected, "nis"))?;
    let size = [seen.ttft, seen.itl].map(|time| 1000.0 * time);
    let innovation = floats(&expected["innovation_ttft_itl_ms"]);
    for ((found, wanted), size) in step.innovation.iter().zip(&innovation).zip(size) {
        let slack = FILTERED * wanted.abs() + TOLERANCE * size;
        if (1000.0 * found - wanted).abs() > slack {
            return Err(format!("innovation {}, not {wanted}", 1000.0 * found));
        }
    }
    let rejected = expected["validation_failed"] == true;
    if rejected == step.accepted {
        return Err(format!("accepted {}, not {expected}", step.accepted));
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
    covariance: Option<[[f64; 3]; 3]>,
    nis: f64,
}

/// A model, and what was learned of its variants.
struct Learning {
    kept: BTreeMap<String, Kept>,
}

/// A whole cycle agrees, or differs in this.
type Same = Result<Option<&'static str>, String>;

impl Learning {
    fn read(input: &Value) -> Self {
        let kept = list(input, "stored_parameters").iter().map(|stored| {
            let of = |name| number(stored, name) / 1000.0;
            let state = [of("alpha_ms"), of("beta_ms_per_token"), of("gamma_ms_per_token")];
            (text(stored, "variant").to_owned(), Kept { state, covariance: None, nis: 0.0 })
        });
        Self { kept: kept.collect() }
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
        self.same_analysis(config, cycle, expected)
    }

    /// One cycle of WVA's tuner for one variant; an error is where WVA crashes.
    fn tune(&mut self, variant: &str, filter: &Value, cycle: &Value) -> Result<(), NoPrediction> {
        let pods = || list(cycle, "replicas").iter().filter(|pod| text(pod, "variant") == variant);
        let batches = pods().map(|pod| whole(pod, "max_batch_reqs"));
        let batch = batches.into_iter().find(|batch| *batch > 0).unwrap_or(BATCH);
        let points: Vec<Point> = pods()
            .filter_map(|pod| {
                let arrival = number(pod, "arrival_req_per_s");
                let ttft = number(pod, "avg_ttft_s");
                let itl = number(pod, "avg_itl_s");
                let shape = shape(pod).filter(|shape| shape.input().tokens() > 0.0)?;
                let valid = arrival > 0.0 && ttft > 0.0 && itl > 0.0;
                valid.then_some(Point { arrival, shape, batch, ttft, itl })
            })
            .collect();
        let Some(first) = points.first() else { return Ok(()) };

        let kept = self.kept.get(variant);
        let input = first.shape.input().tokens();
        let output = first.shape.output().tokens();
        let (state, center) = match (kept, guess(input, output, first.ttft, first.itl)) {
            (Some(kept), _) => (kept.state, DEFAULTS),
            (None, Err(_)) => (DEFAULTS, DEFAULTS),
            (None, Ok(Coefficients { alpha, beta, gamma })) => {
                ([alpha, beta, gamma], [alpha, beta, gamma])
            }
        };
        let setup = Setup {
            state,
            covariance: kept.and_then(|kept| kept.covariance),
            min: center.map(|value| 0.01 * value),
            max: center.map(|value| 100.0 * value),
            noise: noise(filter).unwrap(),
        };
        let Ok(mut filter) = Filter::new(&setup, first) else { return Ok(()) };
        let mut nis = 0.0;
        for point in &points {
            nis = filter.step(point)?.nis.unwrap_or(-1.0);
        }

        let rows = filter.covariance();
        // WVA keeps the upper triangle.
        let upper = |row: usize, column: usize| rows[row.min(column)][row.max(column)];
        let covariance = [0, 1, 2].map(|row| [0, 1, 2].map(|column| upper(row, column)));
        let kept = Kept { state: filter.state(), covariance: Some(covariance), nis };
        self.kept.insert(variant.to_owned(), kept);
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

    /// The targets of a cycle, by the loads of all variants.
    fn targets(&self, config: &Value, cycle: &Value) -> Option<Targets> {
        let ttft = number(config, "target_ttft_ms");
        let itl = number(config, "target_itl_ms");
        let is_stated = ttft > 0.0 && itl > 0.0;
        let stated = if is_stated { targets(ttft, itl).unwrap() } else { Targets::default() };

        let mut names: Vec<&str> =
            list(cycle, "states").iter().map(|state| text(state, "variant")).collect();
        names.sort_unstable();
        let all: Vec<Load> = names.iter().flat_map(|name| loads(name, cycle)).collect();
        let learned: Vec<Coefficients> =
            names.iter().filter_map(|name| self.coefficients(name)).collect();
        let slowdown = Some(number(config, "slo_multiplier"));
        wva::queueing::targets(stated, slowdown, &learned, &Workload::of(&all))
    }

    fn coefficients(&self, variant: &str) -> Option<Coefficients> {
        let [alpha, beta, gamma] = self.kept.get(variant)?.state;
        Some(Coefficients { alpha, beta, gamma })
    }

    /// Compares the capacity of one replica of each variant, and the sums that WVA makes of it. The
    /// capacity of a variant is that of the needed replicas in WVA, so that it never misses any, and
    /// that of the present ones in Plimsoll.
    fn same_analysis(&self, config: &Value, cycle: &Value, expected: &Value) -> Same {
        let states = list(cycle, "states");
        let slo = self.targets(config, cycle);
        let error = expected["error"].as_str();
        let found = match (slo, states.is_empty()) {
            (None, false) => Some("no SLO target"),
            (_, true) if error.is_some() => error,
            _ => None,
        };
        if found != error {
            return Err(format!("{found:?}, not {error:?}"));
        }
        let Some(slo) = slo.filter(|_| error.is_none()) else { return Ok(None) };
        for (found, name) in [(slo.ttft, "target_ttft_ms"), (slo.itl, "target_itl_ms")] {
            near(1000.0 * found.unwrap_or_default(), &expected["slo_used"], name)?;
        }

        let mut supply = 0.0;
        let mut demand = 0.0;
        let mut missing = 0.0;
        for wanted in list(&expected["result"], "variants") {
            let name = text(wanted, "variant");
            let state = states.iter().find(|state| text(state, "variant") == name);
            let state = state.ok_or_else(|| format!("no variant {name}"))?;
            let workload = Workload::of(&loads(name, cycle));
            let capacity = capacity(self.coefficients(name), &workload, slo);
            let arriving = capacity.map_or(0.0, |_| workload.arrival);
            let each = capacity.unwrap_or_default();
            let needed = capacity.map_or(0.0, |each| (arriving / each).ceil().max(1.0));

            supply += each * needed;
            demand += arriving;
            missing += arriving - each * f64::from(whole(state, "current"));
            near(each, wanted, "per_replica_cap")
                .and_then(|()| near(each * needed, wanted, "total_cap"))
                .and_then(|()| near(arriving, wanted, "demand"))
                .map_err(|why| format!("{name}: {why}"))?;
        }
        near(supply, &expected["result"], "supply")?;
        near(demand, &expected["result"], "demand")?;
        Ok((missing > 0.0).then_some(REQUIRED))
    }
}

/// The loads of a variant's replicas, in the order of their names.
fn loads(variant: &str, cycle: &Value) -> Vec<Load> {
    let mut pods: Vec<&Value> =
        list(cycle, "replicas").iter().filter(|pod| text(pod, "variant") == variant).collect();
    pods.sort_by_key(|pod| text(pod, "pod"));
    let load = |pod: &Value| Load {
        arrival: number(pod, "arrival_req_per_s"),
        shape: shape(pod),
        ttft: number(pod, "avg_ttft_s"),
        itl: number(pod, "avg_itl_s"),
        batch: Some(whole(pod, "max_batch_reqs")).filter(|batch| *batch > 0),
    };
    pods.into_iter().map(load).collect()
}

fn near(found: f64, of: &Value, name: &str) -> Result<(), String> {
    let wanted = number(of, name);
    if (found - wanted).abs() > FILTERED * wanted {
        return Err(format!("{name} {found}, not {wanted}"));
    }
    Ok(())
}

/// The targets of a case, in milliseconds, where 0 is none; `None` when one is no latency.
fn targets(ttft: f64, itl: f64) -> Option<Targets> {
    let target = |milliseconds: f64| (milliseconds > 0.0).then_some(milliseconds / 1000.0);
    let are_latencies = [ttft, itl].iter().all(|it| it.is_finite() && *it >= 0.0);
    are_latencies.then(|| Targets { ttft: target(ttft), itl: target(itl) })
}

fn coefficients(input: &Value) -> Coefficients {
    let of = |name| number(input, name) / 1000.0;
    Coefficients {
        alpha: of("alpha_ms"),
        beta: of("beta_ms_per_token"),
        gamma: of("gamma_ms_per_token"),
    }
}

fn shape(input: &Value) -> Option<MeanRequest> {
    wva::shape(number(input, "in_tokens"), number(input, "out_tokens"))
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
