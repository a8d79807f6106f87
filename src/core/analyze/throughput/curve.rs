//! A variant's time between tokens, as a line over the share of its KV cache in use.
//!
//! A [`Curve`] keeps the readings that a line is fitted through. It drops them when they no longer
//! describe the same requests or the same pace. It uses plain least squares: within the domain the
//! relation is linear to a few percent, and readings that are spread out determine a line well.

use std::collections::BTreeMap;

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::analyze::experience::{Experience, continue_from};
use crate::analyze::throughput::pace::ReplicaPace;
use crate::analyze::tokens::capacity::RequestShape;
use crate::fleet::VariantKey;
use crate::units::{Fraction, RequestRate, Seconds, TokenRate, Tokens};

/// The KV cache usage of a replica at full capacity.
const FULL: f64 = 0.85;

/// The maximum number of readings that a curve keeps.
const READINGS_MAX: usize = 20;

/// The minimum number of readings for a line with its own intercept.
const READINGS_MIN: usize = 10;

/// The minimum spread of the readings for that. Readings at one point don't determine a line.
const SPREAD_MIN: f64 = 0.30;

/// The age at which a reading expires.
const READING_AGE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// The time for which the curve of a variant without readings is kept.
const CURVE_AGE_MAX: SignedDuration = SignedDuration::from_mins(60);

/// The domain of the line, both ends included.
const DOMAIN: std::ops::RangeInclusive<f64> = 0.15..=0.85;

/// The assumed time between tokens of an idle engine, if no intercept is known. Models of 7 to 70
/// billion parameters on current accelerators take 4 to 12 milliseconds.
const INTERCEPT_ASSUMED: f64 = 0.006;

/// A slope must be above this value.
const SLOPE_MIN: f64 = 1e-12;

/// The relative change in prompt or output length at which earlier readings no longer apply.
const SHAPE_TOLERANCE: f64 = 0.20;

/// Requests with at most this many output tokens have no time between tokens.
const OUTPUT_MIN: f64 = 1.0;

/// The tolerated relative distance between the measured and the predicted rate.
const RATE_TOLERANCE: f64 = 0.15;

/// The cache usage from which the two rates are compared; below it noise dominates.
const RATE_COMPARED_FROM: f64 = 0.30;

/// Consecutive failed comparisons after which the readings are dropped.
const DISAGREEMENTS_MAX: u32 = 3;

/// The curves of all variants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    curves: BTreeMap<VariantKey, Curve>,
}

/// The learned pace of one variant. The curve is serialized as it is, to save it or to hand it over
/// to another replica of Plimsoll.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The request shape of the last reading.
    shape: RequestShape,
    /// The request shape that new readings are compared with.
    reference: Option<RequestShape>,
    /// The readings, oldest first. Without them the line stays, and new readings start another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) readings: Vec<CurveReading>,
    /// The intercept of the last line through enough readings, in seconds.
    intercept: Option<f64>,
    /// The last fitted line.
    line: Option<CurveLine>,
    /// Tokens/s that a full replica generates.
    capacity: Option<TokenRate>,
    /// Consecutive failed comparisons.
    disagreements: u32,
    /// The time at which the variant was last observed.
    #[serde(with = "crate::units::instants")]
    seen_at: Timestamp,
}

/// One reading of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CurveReading {
    /// The time of the reading.
    #[serde(with = "crate::units::instants")]
    at: Timestamp,
    /// The share of the cache in use.
    kv: f64,
    /// The time between tokens, in seconds.
    itl: f64,
}

/// The time between tokens over the share of the KV cache in use.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{:.1} ms + {:.1} ms * KV usage between tokens", intercept * 1e3, slope * 1e3)]
pub struct CurveLine {
    /// The method of the fit.
    pub fit: LineFit,
    /// The seconds that a full cache adds.
    slope: f64,
    /// The seconds at an empty cache.
    intercept: f64,
}

/// The method by which a line was fitted.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineFit {
    /// A fit through readings that are spread out.
    #[display("fitted to spread-out readings")]
    Window,
    /// A fit through current readings with the intercept of an earlier fit.
    #[display("fitted to current readings with an earlier intercept")]
    InterceptKept,
    /// A fit through current readings with an assumed intercept.
    #[display("fitted to current readings with an assumed intercept")]
    InterceptAssumed,
}

/// A replica that reports every required value.
#[derive(Clone, Copy)]
struct CompleteReading<'a> {
    replica: &'a ReplicaPace,
    kv: f64,
    itl: f64,
    prompt: f64,
    output: f64,
    hits: f64,
}

// === impl Curves ===

impl Curves {
    /// The curve of a variant.
    #[must_use]
    pub fn get(&self, variant: &VariantKey) -> Option<&Curve> {
        self.curves.get(variant)
    }

    /// The curve of a variant; creates an empty one if none exists.
    pub(super) fn of(&mut self, variant: &VariantKey, now: Timestamp) -> &mut Curve {
        // Cloning the key, which shares its text, costs less than a second lookup.
        self.curves.entry(variant.clone()).or_insert_with(|| Curve::new(now))
    }

    /// Continues from a variant's saved curve. An existing curve stays unless it is shorter
    /// experience, and a curve that is not sound is ignored.
    pub fn recall(&mut self, variant: &VariantKey, saved: &Curve) {
        if saved.is_sound() {
            continue_from(&mut self.curves, variant, saved.clone());
        }
    }

    /// Drops the curves of variants that have not been observed for an hour.
    pub fn forget(&mut self, now: Timestamp) {
        self.curves.retain(|_, curve| now.duration_since(curve.seen_at) <= CURVE_AGE_MAX);
    }
}

// === impl Curve ===

impl Experience for Curve {
    /// An intercept of its own counts most, then a line, then the readings behind it. A curve that
    /// has expired counts for nothing.
    fn knows_less_than(&self, other: &Self) -> bool {
        let is_expired = self.seen_at.duration_since(other.seen_at) > CURVE_AGE_MAX;
        !is_expired && self.extent() < other.extent()
    }
}

impl Curve {
    fn new(now: Timestamp) -> Self {
        Self {
            shape: RequestShape::default(),
            reference: None,
            readings: Vec::with_capacity(READINGS_MAX),
            intercept: None,
            line: None,
            capacity: None,
            disagreements: 0,
            seen_at: now,
        }
    }

    /// Returns true if every saved value is valid.
    fn is_sound(&self) -> bool {
        self.readings.len() <= READINGS_MAX
            && self.readings.iter().all(|it| it.kv.is_finite() && it.itl.is_finite())
            && self.readings.is_sorted_by(|a, b| a.at <= b.at)
            && self.intercept.is_none_or(f64::is_finite)
            && self.line.is_none_or(CurveLine::is_sound)
    }

    /// The known parts of the curve, in the order of their worth.
    const fn extent(&self) -> (bool, bool, usize) {
        (self.intercept.is_some(), self.line.is_some(), self.readings.len())
    }

    /// Drops the readings. The line stays, and new readings start another.
    pub fn shorten(&mut self) {
        self.readings.clear();
    }

    /// The last fitted line.
    #[must_use]
    pub const fn line(&self) -> Option<CurveLine> {
        self.line
    }

    /// Tokens/s that a full replica generates.
    #[must_use]
    pub const fn capacity(&self) -> Option<TokenRate> {
        self.capacity
    }

    /// The mean request of the last observation.
    #[must_use]
    pub const fn shape(&self) -> RequestShape {
        self.shape
    }

    /// KV tokens that a request holds on average.
    #[must_use]
    pub fn held(&self) -> Option<Tokens> {
        let RequestShape { prompt, output, prefix_hits } = self.shape;
        let hits = prefix_hits.unwrap_or_default().fraction();
        let held = prompt?.tokens() * (1.0 - hits) + output?.tokens() / 2.0;
        Tokens::new(held).filter(|held| *held > Tokens::ZERO)
    }

    /// The spread of the readings, as a share of the KV cache.
    #[must_use]
    pub fn spread(&self) -> Fraction {
        let kv = self.readings.iter().map(|reading| reading.kv);
        let (low, high) = kv.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), kv| {
            (low.min(kv), high.max(kv))
        });
        Fraction::new((high - low).max(0.0)).unwrap_or_default()
    }

    /// Returns true if the last measured rate disagreed with the line's prediction.
    #[must_use]
    pub const fn disagrees(&self) -> bool {
        self.disagreements > 0
    }

    /// Learns from one observation of the variant's replicas.
    pub(super) fn observe(&mut self, now: Timestamp, replicas: &[ReplicaPace]) {
        if now.duration_since(self.seen_at) > CURVE_AGE_MAX {
            *self = Self::new(now);
        }

        self.seen_at = now;
        let usable = replicas.iter().filter_map(CompleteReading::of);
        if let Some(shape) = mean_shape(usable.clone()) {
            self.take_shape(shape);
        }
        for CompleteReading { kv, itl, .. } in usable.filter(|usable| DOMAIN.contains(&usable.kv)) {
            if self.readings.len() == READINGS_MAX {
                self.readings.remove(0);
            }
            self.readings.push(CurveReading { at: now, kv, itl });
        }

        // The readings are in the order in which they were taken.
        let old = self
            .readings
            .iter()
            .take_while(|reading| now.duration_since(reading.at) >= READING_AGE_MAX)
            .count();
        self.readings.drain(..old);
    }

    /// Fits a line through the readings, and compares its prediction with the measured rates.
    pub(super) fn conclude(&mut self, replicas: &[ReplicaPace]) {
        let usable = replicas.iter().filter_map(CompleteReading::of);
        if let Some(line) = self.fit(usable.clone()) {
            self.line = Some(line);
            self.capacity = self.mean_rate(line, replicas);
            self.compare(line, usable);
        }
    }

    /// Records a shape, and drops the readings of requests with a different shape.
    fn take_shape(&mut self, shape: RequestShape) {
        let changed = self.reference.is_some_and(|reference| {
            differs(reference.prompt, shape.prompt) || differs(reference.output, shape.output)
        });
        if changed {
            self.readings.clear();
            self.disagreements = 0;
        }

        // A comparison with the last shape would never detect a slow drift.
        if changed || self.reference.is_none() {
            self.reference = Some(shape);
        }

        self.shape = shape;
    }

    fn fit<'a>(&mut self, usable: impl Iterator<Item = CompleteReading<'a>>) -> Option<CurveLine> {
        let apart = self.spread().fraction() >= SPREAD_MIN;
        if self.readings.len() >= READINGS_MIN
            && apart
            && let Some(line) = least_squares(&self.readings)
        {
            self.intercept = Some(line.intercept);
            return Some(line);
        }

        let (fit, intercept) = match self.intercept {
            Some(intercept) => (LineFit::InterceptKept, intercept),
            None => (LineFit::InterceptAssumed, INTERCEPT_ASSUMED),
        };
        let mut product = 0.0;
        let mut square = 0.0;
        for CompleteReading { kv, itl, .. } in usable {
            product += (itl - intercept) * kv;
            square += kv * kv;
        }

        let line = CurveLine { fit, slope: product / square, intercept };
        line.is_sound().then_some(line)
    }

    /// The mean rate of a full replica, over the replicas.
    fn mean_rate(&self, line: CurveLine, replicas: &[ReplicaPace]) -> Option<TokenRate> {
        let held = self.held()?;
        let mut sum = 0.0;
        let mut number = 0_u32;
        for kv_capacity in replicas.iter().filter_map(|replica| replica.kv_capacity) {
            sum += line.rate(full(), kv_capacity, held)?.tokens_per_second();
            number += 1;
        }

        TokenRate::new(sum / f64::from(number))
    }

    /// Compares measured rates with predicted rates, for the replicas that have both.
    fn compare<'a>(&mut self, line: CurveLine, usable: impl Iterator<Item = CompleteReading<'a>>) {
        let Some(held) = self.held() else { return };
        let mut compared = false;
        let mut failed = false;
        for CompleteReading { replica, kv, .. } in
            usable.filter(|usable| usable.kv >= RATE_COMPARED_FROM)
        {
            let seen = replica.generation.map_or(0.0, TokenRate::tokens_per_second);
            let predicted = Fraction::new(kv)
                .zip(replica.kv_capacity)
                .and_then(|(kv, kv_capacity)| line.rate(kv, kv_capacity, held));
            let Some(predicted) = predicted.filter(|_| seen > 0.0) else { continue };
            compared = true;
            failed |= (predicted.tokens_per_second() - seen).abs() / seen > RATE_TOLERANCE;
        }

        if failed {
            self.disagreements += 1;
        } else if compared {
            self.disagreements = 0;
        }

        // The count goes on, so that this tick still counts as a mismatch.
        if failed && self.disagreements.is_multiple_of(DISAGREEMENTS_MAX) {
            self.readings.clear();
        }
    }
}

/// Returns true if a length has changed by more than the tolerance. Lengths are above zero here.
fn differs(before: Option<Tokens>, after: Option<Tokens>) -> bool {
    before.zip(after).is_some_and(|(before, after)| {
        (after.tokens() - before.tokens()).abs() / before.tokens() > SHAPE_TOLERANCE
    })
}

impl<'a> CompleteReading<'a> {
    /// The measured pace of a replica; `None` if a required value is absent or out of range. That
    /// includes a replica that generates no tokens, a mean output of at most one token, and a KV
    /// cache usage above 1.
    fn of(replica: &'a ReplicaPace) -> Option<Self> {
        let itl = replica.itl.map(Seconds::seconds).filter(|time| *time > 0.0)?;
        let prompt = usable_length(replica.requests.prompt)?;
        let output = usable_length(replica.requests.output)?;
        replica.kv_capacity.filter(|capacity| *capacity > Tokens::ZERO)?;

        let kv = replica.kv_usage.filter(|usage| *usage <= Fraction::ONE)?.fraction();
        let hits = replica.requests.prefix_hits.unwrap_or_default().min(Fraction::ONE).fraction();
        Some(Self { replica, kv, itl, prompt, output, hits })
    }

    /// Requests that the replica finishes per second; zero if unknown.
    fn finishing(&self) -> f64 {
        self.replica.completions.map_or(0.0, RequestRate::requests_per_second)
    }
}

fn usable_length(length: Option<Tokens>) -> Option<f64> {
    length.map(Tokens::tokens).filter(|tokens| *tokens > OUTPUT_MIN)
}

/// The mean request, weighted by finished requests. If no request finishes, each replica has the
/// same weight.
fn mean_shape<'a>(
    usable: impl Iterator<Item = CompleteReading<'a>> + Clone,
) -> Option<RequestShape> {
    let weighted = usable.clone().any(|replica| replica.finishing() > 0.0);
    let mut prompt = 0.0;
    let mut output = 0.0;
    let mut hits = 0.0;
    let mut weights = 0.0;
    for replica in usable {
        let weight = if weighted { replica.finishing() } else { 1.0 };
        prompt += replica.prompt * weight;
        output += replica.output * weight;
        hits += replica.hits * weight;
        weights += weight;
    }

    Some(RequestShape {
        prompt: Some(Tokens::new(prompt / weights)?),
        output: Some(Tokens::new(output / weights)?),
        prefix_hits: Some(Fraction::new(hits / weights)?),
    })
}

/// The line with the least sum of squared distances; `None` if the line is not a valid pace.
fn least_squares(readings: &[CurveReading]) -> Option<CurveLine> {
    let number = readings.len() as f64;
    let kv = readings.iter().map(|reading| reading.kv).sum::<f64>() / number;
    let itl = readings.iter().map(|reading| reading.itl).sum::<f64>() / number;

    let mut product = 0.0;
    let mut square = 0.0;
    for reading in readings {
        product += (reading.kv - kv) * (reading.itl - itl);
        square += (reading.kv - kv) * (reading.kv - kv);
    }

    let slope = product / square;
    let line = CurveLine { fit: LineFit::Window, slope, intercept: itl - slope * kv };
    line.is_sound().then_some(line)
}

/// The KV cache usage of a full replica.
fn full() -> Fraction {
    Fraction::new(FULL).unwrap_or(Fraction::ONE)
}

// === impl CurveLine, LineFit ===

impl CurveLine {
    /// Returns true if the time grows with cache usage and is positive at a full replica.
    fn is_sound(self) -> bool {
        let Self { fit: _, slope, intercept } = self;
        slope.is_finite()
            && slope > SLOPE_MIN
            && intercept.is_finite()
            && slope * full().fraction() + intercept > 0.0
    }

    /// The time between tokens with this share of the cache in use; `None` outside the domain.
    #[must_use]
    pub fn at(self, kv: Fraction) -> Option<Seconds> {
        Seconds::new(self.slope * kv.fraction() + self.intercept).filter(|itl| *itl > Seconds::ZERO)
    }

    /// Tokens/s that a replica generates with this share of its cache in use.
    #[must_use]
    pub fn rate(self, kv: Fraction, kv_capacity: Tokens, held: Tokens) -> Option<TokenRate> {
        let batch = Tokens::new(kv.fraction() * kv_capacity.tokens() / held.tokens())?;
        batch.per(self.at(kv)?)
    }
}
