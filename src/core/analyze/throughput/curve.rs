//! The time between tokens of a variant, as a line over the share of its KV cache in use.
//!
//! A [`Curve`] keeps the readings that a line is fitted through, and gives them up when they are no
//! longer readings of the same thing. Least squares rather than anything more clever: within the
//! domain the relation is straight to a few per cent, and readings that lie apart pin a line well.

use std::collections::BTreeMap;

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::analyze::throughput::{ReplicaPace, full};
use crate::analyze::tokens::capacity::RequestShape;
use crate::fleet::VariantKey;
use crate::units::{Fraction, RequestRate, Seconds, TokenRate, Tokens};

/// Readings that are kept.
const READINGS_MAX: usize = 20;

/// Readings without which a line has no intercept of its own.
const READINGS_MIN: usize = 10;

/// How far apart the readings must lie for that: a line through one point is no line.
const SPREAD_MIN: f64 = 0.30;

/// How long a reading counts.
const READING_AGE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// How long the curve of a variant without readings is kept.
const CURVE_AGE_MAX: SignedDuration = SignedDuration::from_mins(60);

/// The domain of the line, both included.
const DOMAIN: std::ops::RangeInclusive<f64> = 0.15..=0.85;

/// Time between tokens of an idle engine, where nothing better is known: of 7 to 70 billion
/// parameters on present accelerators it is 4 to 12 milliseconds.
const INTERCEPT_ASSUMED: f64 = 0.006;

/// A slope not above this is no slope.
const SLOPE_MIN: f64 = 1e-12;

/// How much the length of prompts or outputs may change before readings are of something else.
const SHAPE_TOLERANCE: f64 = 0.20;

/// Requests with no more output tokens than this have no time between tokens.
const OUTPUT_MIN: f64 = 1.0;

/// How far the rate that is seen may be from the predicted one.
const RATE_TOLERANCE: f64 = 0.15;

/// The cache in use from which the two are compared: below, noise dominates.
const RATE_COMPARED_FROM: f64 = 0.30;

/// Comparisons in a row that must fail before the readings are dropped.
const DISAGREEMENTS_MAX: u32 = 3;

/// The curves of all variants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    curves: BTreeMap<VariantKey, Curve>,
}

/// What has been learned of one variant's pace; it is said as it is to whoever goes on with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The requests of the last reading.
    shape: RequestShape,
    /// The requests that the readings are compared with.
    reference: Option<RequestShape>,
    /// Its readings, the oldest first. Without them the line stays, and new ones begin another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) readings: Vec<Reading>,
    /// The intercept of the last line through enough readings, in seconds.
    intercept: Option<f64>,
    /// The last line.
    line: Option<Line>,
    /// What a full replica generates.
    capacity: Option<TokenRate>,
    /// Comparisons in a row that have failed.
    disagreements: u32,
    /// When the variant was seen last.
    #[serde(with = "crate::units::instants")]
    seen_at: Timestamp,
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reading {
    /// When.
    #[serde(with = "crate::units::instants")]
    at: Timestamp,
    /// The share of the cache in use.
    kv: f64,
    /// The time between tokens, in seconds.
    itl: f64,
}

/// Time between tokens over the share of the KV cache in use.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{:.1} ms + {:.1} ms * KV usage between tokens", intercept * 1e3, slope * 1e3)]
pub struct Line {
    /// How it was fitted.
    pub fit: Fit,
    /// Seconds that a full cache adds.
    slope: f64,
    /// Seconds at an empty cache.
    intercept: f64,
}

/// How a line was fitted.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// Through readings that lie apart.
    #[display("fitted to readings that lie apart")]
    Window,
    /// Through present readings and the intercept of an earlier fit.
    #[display("fitted to present readings with the intercept of earlier ones")]
    InterceptKept,
    /// Through present readings and an assumed intercept.
    #[display("fitted to present readings with an assumed intercept")]
    InterceptAssumed,
}

/// A replica that shows everything.
#[derive(Clone, Copy)]
struct Usable<'a> {
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

    /// The curve of a variant, made if there is none.
    pub(super) fn of(&mut self, variant: &VariantKey, now: Timestamp) -> &mut Curve {
        // To share a name costs less than to look it up twice.
        self.curves.entry(variant.clone()).or_insert_with(|| Curve::new(now))
    }

    /// Goes on from what was saved of a variant; says whether it could be.
    pub fn restore(&mut self, variant: VariantKey, saved: &Curve) -> bool {
        let sound = saved.is_sound();
        self.curves.extend(sound.then(|| (variant, saved.clone())));
        sound
    }

    /// Drops the curves of variants that have not been seen for an hour.
    pub fn forget(&mut self, now: Timestamp) {
        self.curves.retain(|_, curve| now.duration_since(curve.seen_at) <= CURVE_AGE_MAX);
    }
}

// === impl Curve ===

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

    /// Whether all of it can be.
    fn is_sound(&self) -> bool {
        self.readings.len() <= READINGS_MAX
            && self.readings.iter().all(|it| it.kv.is_finite() && it.itl.is_finite())
            && self.readings.is_sorted_by(|a, b| a.at <= b.at)
            && self.intercept.is_none_or(f64::is_finite)
            && self.line.is_none_or(Line::is_sound)
    }

    /// Leaves out its readings: the line stays, and new ones begin another.
    pub fn shorten(&mut self) {
        self.readings.clear();
    }

    /// The last line.
    #[must_use]
    pub const fn line(&self) -> Option<Line> {
        self.line
    }

    /// What a full replica generates.
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

    /// How far apart the readings lie, as shares of the KV cache.
    #[must_use]
    pub fn spread(&self) -> Fraction {
        let kv = self.readings.iter().map(|reading| reading.kv);
        let (low, high) = kv.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), kv| {
            (low.min(kv), high.max(kv))
        });
        Fraction::new((high - low).max(0.0)).unwrap_or_default()
    }

    /// Whether the rate that was seen last is not the one that the line predicts.
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
        let usable = || replicas.iter().filter_map(usable);
        if let Some(shape) = mean_shape(usable) {
            self.take_shape(shape);
        }
        for Usable { kv, itl, .. } in usable().filter(|usable| DOMAIN.contains(&usable.kv)) {
            if self.readings.len() == READINGS_MAX {
                self.readings.remove(0);
            }
            self.readings.push(Reading { at: now, kv, itl });
        }
        // They are in the order in which they were taken.
        let old = self
            .readings
            .iter()
            .take_while(|reading| now.duration_since(reading.at) >= READING_AGE_MAX)
            .count();
        self.readings.drain(..old);
    }

    /// Fits a line through what has been observed, and holds it against what is seen.
    pub(super) fn conclude(&mut self, replicas: &[ReplicaPace]) {
        let usable = || replicas.iter().filter_map(usable);
        if let Some(line) = self.fit(usable) {
            self.line = Some(line);
            self.capacity = self.mean_rate(line, replicas);
            self.compare(line, usable);
        }
    }

    /// Takes a shape, and drops readings of requests that looked otherwise.
    fn take_shape(&mut self, shape: RequestShape) {
        let changed = self.reference.is_some_and(|reference| {
            differs(reference.prompt, shape.prompt) || differs(reference.output, shape.output)
        });
        if changed {
            self.readings.clear();
            self.disagreements = 0;
        }
        // Compared with the last shape, a slow drift would never be seen.
        if changed || self.reference.is_none() {
            self.reference = Some(shape);
        }
        self.shape = shape;
    }

    fn fit<'a, I: Iterator<Item = Usable<'a>>>(&mut self, usable: impl Fn() -> I) -> Option<Line> {
        let apart = self.spread().fraction() >= SPREAD_MIN;
        if self.readings.len() >= READINGS_MIN
            && apart
            && let Some(line) = least_squares(&self.readings)
        {
            self.intercept = Some(line.intercept);
            return Some(line);
        }
        let (fit, intercept) = match self.intercept {
            Some(intercept) => (Fit::InterceptKept, intercept),
            None => (Fit::InterceptAssumed, INTERCEPT_ASSUMED),
        };
        let (mut product, mut square) = (0.0, 0.0);
        for Usable { kv, itl, .. } in usable() {
            product += (itl - intercept) * kv;
            square += kv * kv;
        }
        let line = Line { fit, slope: product / square, intercept };
        line.is_sound().then_some(line)
    }

    /// The mean over the replicas of what each generates when it is full.
    fn mean_rate(&self, line: Line, replicas: &[ReplicaPace]) -> Option<TokenRate> {
        let held = self.held()?;
        let (mut sum, mut number) = (0.0, 0_u32);
        for kv_capacity in replicas.iter().filter_map(|replica| replica.kv_capacity) {
            sum += line.rate(full(), kv_capacity, held)?.tokens_per_second();
            number += 1;
        }
        TokenRate::new(sum / f64::from(number))
    }

    /// Compares the rates that are seen with the predicted ones, where both can be told.
    fn compare<'a, I: Iterator<Item = Usable<'a>>>(&mut self, line: Line, usable: impl Fn() -> I) {
        let Some(held) = self.held() else { return };
        let (mut compared, mut failed) = (false, false);
        for Usable { replica, kv, .. } in usable().filter(|usable| usable.kv >= RATE_COMPARED_FROM)
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
        if self.disagreements >= DISAGREEMENTS_MAX {
            self.readings.clear();
            self.disagreements = 0;
        }
    }
}

/// Whether a length has changed by more than what is tolerated; lengths are above zero here.
fn differs(before: Option<Tokens>, after: Option<Tokens>) -> bool {
    before.zip(after).is_some_and(|(before, after)| {
        (after.tokens() - before.tokens()).abs() / before.tokens() > SHAPE_TOLERANCE
    })
}

/// What a replica shows of its pace; `None` where some of it is missing: it generates nothing, its
/// requests have no more than one output token, or its KV cache is fuller than full.
fn usable(replica: &ReplicaPace) -> Option<Usable<'_>> {
    let length =
        |length: Option<Tokens>| length.map(Tokens::tokens).filter(|length| *length > OUTPUT_MIN);
    let itl = replica.itl.map(Seconds::seconds).filter(|itl| *itl > 0.0)?;
    let prompt = length(replica.requests.prompt)?;
    let output = length(replica.requests.output)?;
    replica.kv_capacity.filter(|capacity| *capacity > Tokens::ZERO)?;
    let kv = replica.kv_usage.filter(|kv| *kv <= Fraction::ONE)?.fraction();
    let hits = replica.requests.prefix_hits.unwrap_or_default().min(Fraction::ONE).fraction();
    Some(Usable { replica, kv, itl, prompt, output, hits })
}

/// The mean request, weighted by the requests that finish; each replica weighs the same where none
/// does.
fn mean_shape<'a, I: Iterator<Item = Usable<'a>>>(usable: impl Fn() -> I) -> Option<RequestShape> {
    let finishing = |usable: &Usable<'_>| {
        usable.replica.completions.map_or(0.0, RequestRate::requests_per_second)
    };
    let weighted = usable().any(|usable| finishing(&usable) > 0.0);
    let (mut prompt, mut output, mut hits, mut weights) = (0.0, 0.0, 0.0, 0.0);
    for usable in usable() {
        let weight = if weighted { finishing(&usable) } else { 1.0 };
        prompt += usable.prompt * weight;
        output += usable.output * weight;
        hits += usable.hits * weight;
        weights += weight;
    }
    Some(RequestShape {
        prompt: Some(Tokens::new(prompt / weights)?),
        output: Some(Tokens::new(output / weights)?),
        prefix_hits: Some(Fraction::new(hits / weights)?),
    })
}

/// The line with the least sum of squared distances; `None` when it is no model of a pace.
fn least_squares(readings: &[Reading]) -> Option<Line> {
    let number = readings.len() as f64;
    let mean = |of: fn(&Reading) -> f64| readings.iter().map(of).sum::<f64>() / number;
    let (kv, itl) = (mean(|reading| reading.kv), mean(|reading| reading.itl));
    let (mut product, mut square) = (0.0, 0.0);
    for reading in readings {
        product += (reading.kv - kv) * (reading.itl - itl);
        square += (reading.kv - kv) * (reading.kv - kv);
    }
    let slope = product / square;
    let line = Line { fit: Fit::Window, slope, intercept: itl - slope * kv };
    line.is_sound().then_some(line)
}

// === impl Line, Fit ===

impl Line {
    /// Whether time grows with the cache in use, and is above zero where replicas are full.
    fn is_sound(self) -> bool {
        let Self { fit: _, slope, intercept } = self;
        slope.is_finite()
            && slope > SLOPE_MIN
            && intercept.is_finite()
            && slope * full().fraction() + intercept > 0.0
    }

    /// Time between tokens with this share of the cache in use; `None` outside the domain.
    #[must_use]
    pub fn at(self, kv: Fraction) -> Option<Seconds> {
        Seconds::new(self.slope * kv.fraction() + self.intercept).filter(|itl| *itl > Seconds::ZERO)
    }

    /// Tokens that a replica generates with this share of its cache in use.
    #[must_use]
    pub fn rate(self, kv: Fraction, kv_capacity: Tokens, held: Tokens) -> Option<TokenRate> {
        let batch = Tokens::new(kv.fraction() * kv_capacity.tokens() / held.tokens())?;
        batch.per(self.at(kv)?)
    }
}
