//! What a curve says to whoever goes on with it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::throughput::curve::{Curve, Curves, Fit, Line, READINGS_MAX, Reading};
use crate::analyze::tokens::capacity::RequestShape;
use crate::fleet::VariantKey;
use crate::units::TokenRate;

/// What a curve says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCurve {
    /// The requests of the last reading.
    pub shape: RequestShape,
    /// The requests that the readings are compared with.
    pub reference: Option<RequestShape>,
    /// Its readings, the oldest first. Without them the line stays, and new ones begin another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<SavedReading>,
    /// The intercept of the last line through enough readings, in seconds.
    pub intercept: Option<f64>,
    /// The last line.
    pub line: Option<SavedLine>,
    /// What a full replica generates.
    pub capacity: Option<TokenRate>,
    /// Comparisons in a row that have failed.
    pub disagreements: u32,
    /// When the variant was seen last.
    #[serde(with = "crate::units::instants")]
    pub seen_at: Timestamp,
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedReading {
    /// When.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The share of the cache in use.
    pub kv: f64,
    /// The time between tokens, in seconds.
    pub itl: f64,
}

/// A line and how it was fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedLine {
    /// How.
    pub fit: Fit,
    /// Seconds that a full cache adds.
    pub slope: f64,
    /// Seconds at an empty cache.
    pub intercept: f64,
}

impl Curves {
    /// Goes on from what was saved of a variant; says whether it could be.
    pub fn restore(&mut self, variant: VariantKey, saved: &SavedCurve) -> bool {
        let curve = Curve::restore(saved);
        let sound = curve.is_some();
        self.curves.extend(curve.map(|curve| (variant, curve)));
        sound
    }
}

impl Curve {
    /// What it says.
    #[must_use]
    pub fn save(&self) -> SavedCurve {
        let Self { shape, reference, readings, intercept, line, capacity, disagreements, seen_at } =
            self;
        let reading = |&Reading { at, kv, itl }: &Reading| SavedReading { at, kv, itl };
        let saved = |(fit, Line { slope, intercept })| SavedLine { fit, slope, intercept };
        SavedCurve {
            shape: *shape,
            reference: *reference,
            readings: readings.iter().map(reading).collect(),
            intercept: *intercept,
            line: line.map(saved),
            capacity: *capacity,
            disagreements: *disagreements,
            seen_at: *seen_at,
        }
    }

    fn restore(saved: &SavedCurve) -> Option<Self> {
        let SavedCurve {
            shape,
            reference,
            readings,
            intercept,
            line,
            capacity,
            disagreements,
            seen_at,
        } = saved;
        let line = line.map(|it| (it.fit, Line { slope: it.slope, intercept: it.intercept }));
        let sound = readings.len() <= READINGS_MAX
            && readings.iter().all(|it| it.kv.is_finite() && it.itl.is_finite())
            && readings.is_sorted_by(|a, b| a.at <= b.at)
            && intercept.is_none_or(f64::is_finite)
            && line.is_none_or(|(_, line)| line.is_sound());
        let mut curve = Self::new(*seen_at);
        let taken = |&SavedReading { at, kv, itl }: &SavedReading| Reading { at, kv, itl };
        curve.readings.extend(readings.iter().map(taken));
        let (shape, reference, intercept) = (*shape, *reference, *intercept);
        let (capacity, disagreements) = (*capacity, *disagreements);
        sound.then_some(Self {
            shape,
            reference,
            intercept,
            line,
            capacity,
            disagreements,
            ..curve
        })
    }
}
