//! Readers of WVA's queueing model: its solver, its tuner, and the analyzer that uses both.
//!
//! All are read under [`Convention::Wva`]. WVA computes the solver in single precision, so answers
//! agree to 1e-4 of themselves, and waits to what single precision leaves of a response time.

use std::num::NonZeroU32;

use plimsoll::analyze::queueing::{
    Coefficients, Convention, LatencyTarget, Lengths, Model, Prediction, Refusal, Room, Shape,
    SharedCoefficients, Statistic, Targets,
};
use plimsoll::units::{RequestRate, Seconds, TimePerToken, Tokens};
use serde_json::Value;

use super::Outcome;

/// How far single precision is from double precision here, as a share.
const TOLERANCE: f64 = 1e-4;

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
    let tokens = |name| Tokens::new(number(input, name));
    Shape::new(Lengths { input: tokens("in_tokens")?, output: tokens("out_tokens")? })
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

fn whole(value: &Value, name: &str) -> u32 {
    u32::try_from(value[name].as_u64().unwrap_or_default()).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}
