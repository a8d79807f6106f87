//! WVA's throughput analyzer: the time between tokens as a line over the share of the KV cache in use,
//! fitted by least squares, and the decode rate of a full replica that follows from it.
//!
//! The model is that of [`plimsoll::analyze::throughput`]. Here readings are compared with the shape
//! of the last observation, a variant without a line now is left out, an unknown arrival rate is
//! none, and waiting requests are added to tokens per second.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::capacity::{
    CapacityReport, Confidence, Totals, Unit, Utilization, VariantCapacity,
};
use plimsoll::analyze::throughput::{FrontDemand, ReplicaPace, VariantPace};
use plimsoll::analyze::tokens::capacity::RequestShape;
use plimsoll::fleet::{Role, VariantKey};
use plimsoll::units::{Amount, Fraction, Replicas, RequestRate, Seconds, TokenRate, Tokens};

const READINGS_MAX: usize = 20;
const READINGS_MIN: usize = 10;
const SPREAD_MIN: f64 = 0.30;
const READING_AGE_MAX: SignedDuration = SignedDuration::from_mins(30);
const CURVE_AGE_MAX: SignedDuration = SignedDuration::from_mins(60);
const DOMAIN: std::ops::RangeInclusive<f64> = 0.15..=0.85;
const INTERCEPT_ASSUMED: f64 = 0.006;
const SLOPE_MIN: f64 = 1e-12;
const SHAPE_TOLERANCE: f64 = 0.20;
const LENGTH_MIN: f64 = 1.0;
const RATE_TOLERANCE: f64 = 0.15;
const RATE_COMPARED_FROM: f64 = 0.30;
const DISAGREEMENTS_MAX: u32 = 3;

/// The share of the KV cache in use of a full replica.
const FULL: f64 = 0.85;

/// Steps in which a waiting request is to be worked off.
const DRAIN_STEPS: f64 = 2.0;

/// Mean output tokens above which a rate is read from the cache in use.
const OUTPUT_MIN: f64 = 20.0;

/// The curves of all variants.
#[derive(Default)]
pub(crate) struct Curves(BTreeMap<VariantKey, Curve>);

/// The learned pace of one variant.
pub(crate) struct Curve {
    shape: Option<Shape>,
    readings: Vec<Reading>,
    /// The intercept of the last line through enough readings.
    intercept: Option<f64>,
    line: Option<(Fit, Line)>,
    /// Whether the line is of the last observation.
    line_is_new: bool,
    capacity: Option<f64>,
    disagreements: u32,
    /// What the replicas of the last observation lacked.
    unusable: BTreeSet<WhyUnusable>,
    seen_at: Timestamp,
}

/// The mean request.
#[derive(Clone, Copy)]
struct Shape {
    prompt: f64,
    output: f64,
    hits: f64,
}

struct Reading {
    at: Timestamp,
    kv: f64,
    itl: f64,
}

/// Time between tokens over the share of the KV cache in use.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) slope: f64,
    pub(crate) intercept: f64,
}

/// How a line was fitted.
#[derive(Clone, Copy)]
pub(crate) enum Fit {
    /// Through readings that lie apart.
    Window,
    /// Through present readings and the intercept of an earlier fit.
    InterceptKept,
    /// Through present readings and an assumed intercept.
    InterceptAssumed,
}

/// A missing part of a replica's readings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WhyUnusable {
    Itl,
    Shape,
    KvCapacity,
    KvUsage,
}

/// The report of a model, and the fit of each of its variants.
pub(crate) struct Analysis {
    pub(crate) report: CapacityReport,
    pub(crate) fits: Vec<Option<Fit>>,
}

/// A replica that shows everything.
struct Usable<'a> {
    replica: &'a ReplicaPace,
    kv: f64,
    itl: f64,
    shape: Shape,
}

// === impl Curves ===

impl Curves {
    pub(crate) fn get(&self, variant: &VariantKey) -> Option<&Curve> {
        self.0.get(variant)
    }

    /// Learns from the replicas of a model, without judging it. Drops the curves of variants that
    /// have not been seen for an hour; one that is seen again at this moment keeps its curve.
    pub(crate) fn observe(&mut self, now: Timestamp, variants: &[VariantPace<'_>]) {
        for variant in variants.iter().filter(|variant| !variant.replicas.is_empty()) {
            self.of(&variant.spec.key, now).observe(now, variant.replicas);
        }

        self.0.retain(|_, curve| now.duration_since(curve.seen_at) <= CURVE_AGE_MAX);
    }

    /// Learns from the replicas of a model, and judges it.
    pub(crate) fn analyze(
        &mut self,
        now: Timestamp,
        utilization: Utilization,
        variants: &[VariantPace<'_>],
        arrivals: FrontDemand,
    ) -> Analysis {
        self.observe(now, variants);
        for variant in variants.iter().filter(|variant| !variant.replicas.is_empty()) {
            self.of(&variant.spec.key, now).conclude(variant.replicas);
        }

        let mut capacities = Vec::new();
        let mut fits = Vec::new();
        let mut asked = Asked::default();
        for variant in variants {
            let Some(curve) = self.get(&variant.spec.key) else { continue };
            let Some((capacity, fit)) = curve.as_capacity(variant) else { continue };
            if variant.spec.role != Role::Prefill {
                asked.include(&capacity, curve, fit.is_some());
            }
            capacities.push(capacity);
            fits.push(fit);
        }

        Analysis { report: report(capacities, asked.demand(arrivals), utilization), fits }
    }

    fn of(&mut self, variant: &VariantKey, now: Timestamp) -> &mut Curve {
        self.0.entry(variant.clone()).or_insert_with(|| Curve::new(now))
    }
}

/// The report of these variants; the demand is split evenly over the roles that generate.
fn report(variants: Vec<VariantCapacity>, demand: f64, utilization: Utilization) -> CapacityReport {
    let judged = |totals: Totals, share: f64| {
        let demand = Amount::new(demand * share).unwrap_or_default();
        Totals { demand, ..totals }.judged(utilization)
    };
    let roles = Totals::by_role(&variants);
    let generating = roles.keys().filter(|role| **role != Role::Prefill).count();
    let share = |role: Role| if role == Role::Prefill { 0.0 } else { 1.0 / generating as f64 };

    CapacityReport {
        unit: Unit::OutputTokensPerSecond,
        total: judged(Totals::of(&variants), 1.0),
        roles: roles.into_iter().map(|(role, it)| (role, judged(it, share(role)))).collect(),
        variants,
    }
}

/// The sums over generating variants that the demand of a model is made of.
#[derive(Default)]
struct Asked {
    /// Output tokens weighted by replicas, and the weights.
    output: f64,
    weight: f64,
    /// Time between tokens of full replicas, and the number of variants in it.
    itl: f64,
    variants: f64,
}

impl Asked {
    fn include(&mut self, capacity: &VariantCapacity, curve: &Curve, has_line: bool) {
        let weight = f64::from(capacity.replicas.count());
        if let Some(shape) = curve.shape {
            self.output += shape.output * weight;
            self.weight += weight;
        }
        if let Some(itl) = curve.line.and_then(|(_, line)| line.at(FULL)).filter(|_| has_line) {
            self.itl += itl;
            self.variants += 1.0;
        }
    }

    /// Arrivals times output tokens, and the waiting requests per drain time.
    fn demand(&self, arrivals: FrontDemand) -> f64 {
        let rate = arrivals.rate.unwrap_or_default().requests_per_second();
        let output = if self.weight > 0.0 { self.output / self.weight } else { 0.0 };
        let waiting = if self.variants > 0.0 {
            arrivals.waiting.requests() / (DRAIN_STEPS * self.itl / self.variants)
        } else {
            0.0
        };
        rate * output + waiting
    }
}

// === impl Curve ===

impl Curve {
    fn new(now: Timestamp) -> Self {
        Self {
            shape: None,
            readings: Vec::new(),
            intercept: None,
            line: None,
            line_is_new: false,
            capacity: None,
            disagreements: 0,
            unusable: BTreeSet::new(),
            seen_at: now,
        }
    }

    pub(crate) fn line(&self) -> Option<Line> {
        self.line.map(|(_, line)| line)
    }

    /// KV tokens that a request holds on average.
    pub(crate) fn held(&self) -> Option<f64> {
        let Shape { prompt, output, hits } = self.shape?;
        Some(prompt * (1.0 - hits) + output / 2.0).filter(|held| *held > 0.0)
    }

    pub(crate) const fn unusable(&self) -> &BTreeSet<WhyUnusable> {
        &self.unusable
    }

    /// The number of readings.
    pub(crate) fn readings(&self) -> usize {
        self.readings.len()
    }

    /// How far apart the readings lie, as shares of the KV cache.
    pub(crate) fn spread(&self) -> f64 {
        let kv = || self.readings.iter().map(|reading| reading.kv);
        let low = kv().fold(f64::INFINITY, f64::min);
        let high = kv().fold(f64::NEG_INFINITY, f64::max);
        (high - low).max(0.0)
    }

    /// The capacity of a variant, and the fit of its line; `None` when there is no line now.
    fn as_capacity(&self, variant: &VariantPace<'_>) -> Option<(VariantCapacity, Option<Fit>)> {
        let mut capacity = VariantCapacity {
            key: variant.spec.key.clone(),
            role: variant.spec.role,
            cost: variant.spec.cost,
            replicas: Replicas::ZERO,
            pending: Replicas::ZERO,
            per_replica: self.capacity.and_then(Amount::new),
            demand: Amount::ZERO,
            confidence: Confidence::Assumed,
        };
        if variant.replicas.is_empty() {
            self.capacity?;
            return Some((capacity, None));
        }

        let (fit, line) = self.line.filter(|_| self.line_is_new)?;
        let sized = variant.replicas.iter().filter(|it| it.kv_capacity.is_some()).count();
        capacity.replicas = Replicas::saturating(u32::try_from(sized).unwrap());
        capacity.pending = variant.pending;
        capacity.demand = Amount::new(self.demand(variant.replicas, line)).unwrap_or_default();
        Some((capacity, Some(fit)))
    }

    /// The demand of a variant's replicas, stale ones included: arrivals, else completions, else the
    /// predicted rate of the cache in use. A share above the whole cache is no reading of it.
    fn demand(&self, replicas: &[ReplicaPace], line: Line) -> f64 {
        let by = |rate: fn(&ReplicaPace) -> Option<RequestRate>| -> f64 {
            let each = |replica: &ReplicaPace| {
                let output = replica.requests.output.unwrap_or_default().tokens();
                rate(replica).unwrap_or_default().requests_per_second() * output
            };
            replicas.iter().map(each).sum()
        };
        let counted = [by(|replica| replica.arrivals), by(|replica| replica.completions)];
        if let Some(rate) = counted.into_iter().find(|rate| *rate > 0.0) {
            return rate;
        }

        let output = self.shape.map_or(0.0, |shape| shape.output);
        let predict = |replica: &ReplicaPace| {
            let kv = replica.kv_usage.map(Fraction::fraction).filter(|kv| *kv <= 1.0)?;
            line.rate(kv, replica.kv_capacity?, self.held()?)
        };
        if output > OUTPUT_MIN { replicas.iter().filter_map(predict).sum() } else { 0.0 }
    }

    /// Learns from one observation of the variant's replicas. Without a replica that shows
    /// everything, what is known stays as it is, however old.
    fn observe(&mut self, now: Timestamp, replicas: &[ReplicaPace]) {
        self.seen_at = now;
        self.unusable = replicas.iter().flat_map(lacking).collect();
        self.line_is_new = false;

        let usable: Vec<Usable<'_>> = replicas.iter().filter_map(usable).collect();
        let Some(shape) = mean_shape(&usable) else { return };
        let is_other = self.shape.is_some_and(|before| {
            differs(before.prompt, shape.prompt) || differs(before.output, shape.output)
        });
        if is_other {
            self.readings.clear();
            self.disagreements = 0;
        }
        self.shape = Some(shape);

        for Usable { kv, itl, .. } in usable.iter().filter(|it| DOMAIN.contains(&it.kv)) {
            if self.readings.len() == READINGS_MAX {
                self.readings.remove(0);
            }
            self.readings.push(Reading { at: now, kv: *kv, itl: *itl });
        }

        // Only from the front: a clock that was set back leaves old readings behind newer ones.
        let is_old = |reading: &&Reading| now.duration_since(reading.at) >= READING_AGE_MAX;
        let old = self.readings.iter().take_while(is_old).count();
        self.readings.drain(..old);
    }

    /// Fits a line through the observations, and holds it against the measured rates. A variant
    /// without a replica of known size keeps what was concluded before.
    fn conclude(&mut self, replicas: &[ReplicaPace]) {
        let usable: Vec<Usable<'_>> = replicas.iter().filter_map(usable).collect();
        let Some((fit, line)) = self.fit(&usable) else { return };
        let Some(capacity) = self.full_rate(line, replicas) else { return };
        self.line = Some((fit, line));
        self.line_is_new = true;
        self.capacity = Some(capacity);
        self.compare(line, &usable);
    }

    fn fit(&mut self, usable: &[Usable<'_>]) -> Option<(Fit, Line)> {
        if self.readings.len() >= READINGS_MIN
            && self.spread() >= SPREAD_MIN
            && let Some(line) = least_squares(&self.readings)
        {
            self.intercept = Some(line.intercept);
            return Some((Fit::Window, line));
        }

        let fit = match self.intercept {
            Some(_) => Fit::InterceptKept,
            None => Fit::InterceptAssumed,
        };
        let intercept = self.intercept.unwrap_or(INTERCEPT_ASSUMED);
        let product: f64 = usable.iter().map(|it| (it.itl - intercept) * it.kv).sum();
        let square: f64 = usable.iter().map(|it| it.kv * it.kv).sum();
        let line = Line { slope: product / square, intercept };
        line.is_sound().then_some((fit, line))
    }

    /// The mean rate of full replicas.
    fn full_rate(&self, line: Line, replicas: &[ReplicaPace]) -> Option<f64> {
        let held = self.held()?;
        let rates: Option<Vec<f64>> = replicas
            .iter()
            .filter_map(|replica| replica.kv_capacity)
            .map(|kv_capacity| line.rate(FULL, kv_capacity, held))
            .collect();
        let rates = rates.filter(|rates| !rates.is_empty())?;
        Some(rates.iter().sum::<f64>() / rates.len() as f64)
    }

    /// Compares measured rates with the predicted ones, where both can be told. Only disagreements
    /// that follow each other count, so a moment without a comparison begins anew.
    fn compare(&mut self, line: Line, usable: &[Usable<'_>]) {
        let Some(held) = self.held() else { return };
        let mut failed = false;
        for Usable { replica, kv, .. } in usable.iter().filter(|it| it.kv >= RATE_COMPARED_FROM) {
            let measured = replica.generation.map_or(0.0, TokenRate::tokens_per_second);
            let predicted =
                replica.kv_capacity.and_then(|kv_capacity| line.rate(*kv, kv_capacity, held));
            let Some(predicted) = predicted.filter(|_| measured > 0.0) else { continue };
            failed |= (predicted - measured).abs() / measured > RATE_TOLERANCE;
        }

        self.disagreements = if failed { self.disagreements + 1 } else { 0 };
        if self.disagreements >= DISAGREEMENTS_MAX {
            self.readings.clear();
            self.disagreements = 0;
        }
    }
}

/// Whether a length has changed by more than the tolerance.
fn differs(before: f64, after: f64) -> bool {
    (after - before).abs() / before > SHAPE_TOLERANCE
}

/// The readings of a replica that shows everything.
fn usable(replica: &ReplicaPace) -> Option<Usable<'_>> {
    if !lacking(replica).is_empty() {
        return None;
    }

    let RequestShape { prompt, output, prefix_hits } = replica.requests;
    let hits = prefix_hits.unwrap_or_default().fraction();
    let shape = Shape { prompt: prompt?.tokens(), output: output?.tokens(), hits };
    let kv = replica.kv_usage?.fraction();
    Some(Usable { replica, kv, itl: replica.itl?.seconds(), shape })
}

/// What a replica does not show.
fn lacking(replica: &ReplicaPace) -> Vec<WhyUnusable> {
    let is_length =
        |length: Option<Tokens>| length.is_some_and(|length| length.tokens() > LENGTH_MIN);
    let RequestShape { prompt, output, .. } = replica.requests;
    let shown = [
        (replica.itl.is_some_and(|itl| itl > Seconds::ZERO), WhyUnusable::Itl),
        (is_length(prompt) && is_length(output), WhyUnusable::Shape),
        (replica.kv_capacity.is_some_and(|size| size > Tokens::ZERO), WhyUnusable::KvCapacity),
        (replica.kv_usage.is_some_and(|kv| kv <= Fraction::ONE), WhyUnusable::KvUsage),
    ];
    shown.into_iter().filter(|(is_shown, _)| !is_shown).map(|(_, why)| why).collect()
}

/// The mean request, weighted by completions; each replica weighs the same where there are none.
fn mean_shape(usable: &[Usable<'_>]) -> Option<Shape> {
    let completing =
        |it: &Usable<'_>| it.replica.completions.map_or(0.0, RequestRate::requests_per_second);
    let is_weighted = usable.iter().any(|it| completing(it) > 0.0);
    let weight = |it: &Usable<'_>| if is_weighted { completing(it) } else { 1.0 };

    let weights: f64 = usable.iter().map(weight).sum();
    let mean = |of: fn(&Shape) -> f64| {
        usable.iter().map(|it| of(&it.shape) * weight(it)).sum::<f64>() / weights
    };
    (!usable.is_empty()).then(|| Shape {
        prompt: mean(|shape| shape.prompt),
        output: mean(|shape| shape.output),
        hits: mean(|shape| shape.hits).min(1.0),
    })
}

/// The line with the least sum of squared distances; `None` when it is no model of a pace.
fn least_squares(readings: &[Reading]) -> Option<Line> {
    let number = readings.len() as f64;
    let kv = readings.iter().map(|reading| reading.kv).sum::<f64>() / number;
    let itl = readings.iter().map(|reading| reading.itl).sum::<f64>() / number;
    let product: f64 = readings.iter().map(|it| (it.kv - kv) * (it.itl - itl)).sum();
    let square: f64 = readings.iter().map(|it| (it.kv - kv) * (it.kv - kv)).sum();
    let slope = product / square;
    let line = Line { slope, intercept: itl - slope * kv };
    line.is_sound().then_some(line)
}

// === impl Line ===

impl Line {
    fn is_sound(self) -> bool {
        let Self { slope, intercept } = self;
        slope.is_finite()
            && slope > SLOPE_MIN
            && intercept.is_finite()
            && slope * FULL + intercept > 0.0
    }

    /// Time between tokens with this share of the cache in use.
    fn at(self, kv: f64) -> Option<f64> {
        Some(self.slope * kv + self.intercept).filter(|itl| *itl > 0.0)
    }

    /// Tokens per second of a replica with this share of its cache in use.
    fn rate(self, kv: f64, kv_capacity: Tokens, held: f64) -> Option<f64> {
        Some(kv * kv_capacity.tokens() / held / self.at(kv)?)
    }
}
