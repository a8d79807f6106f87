//! The document of a report.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::backtest::BacktestError;
use crate::report::held::HeldDirection;
use crate::report::ledger::{WeekFigures, WeekLedger};
use crate::simulate::scenario::Slo;
use plimsoll_core::fleet::ModelKey;
use plimsoll_core::observe::histogram::Histogram;

/// The version of the JSON output.
const VERSION: u32 = 1;

/// The report of a time.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this format.
    pub(crate) version: u32,
    /// The start of the reported time.
    pub(crate) from: Timestamp,
    /// The end of the reported time.
    pub(crate) to: Timestamp,
    /// The objective for the time to first token, in seconds.
    pub(crate) slo_ttft: f64,
    /// The objective for the time between tokens, in seconds.
    pub(crate) slo_itl: f64,
    /// All variants together.
    pub(crate) total: WeekSummary,
    /// Each day, in UTC.
    pub(crate) days: Vec<DayRow>,
    /// Each model.
    pub(crate) models: Vec<ModelRow>,
    /// What the report leaves out.
    pub(crate) notes: Vec<String>,
}

/// A day.
#[derive(Debug, Serialize)]
pub(crate) struct DayRow {
    /// The date.
    pub(crate) date: String,
    /// Its figures.
    #[serde(flatten)]
    pub(crate) summary: WeekSummary,
}

/// A model and its variants.
#[derive(Debug, Serialize)]
pub(crate) struct ModelRow {
    /// The namespace.
    pub(crate) namespace: String,
    /// The model.
    pub(crate) model: String,
    /// The figures of all its variants.
    #[serde(flatten)]
    pub(crate) summary: WeekSummary,
    /// Each variant.
    pub(crate) variants: Vec<VariantRow>,
}

/// A variant.
#[derive(Debug, Serialize)]
pub(crate) struct VariantRow {
    /// The variant.
    pub(crate) variant: String,
    /// The accelerator; null if not known.
    pub(crate) accelerator: Option<String>,
    /// Its figures.
    #[serde(flatten)]
    pub(crate) summary: WeekSummary,
}

/// The figures of a time.
#[derive(Debug, Serialize)]
pub(crate) struct WeekSummary {
    /// Requests that finished.
    pub(crate) requests: f64,
    /// The share of first tokens within the objective; null if no histogram shows it.
    pub(crate) ttft_within: Option<f64>,
    /// The share of times between tokens within the objective; null if no histogram shows it.
    pub(crate) itl_within: Option<f64>,
    /// The cost of the replicas, in the unit of `cost`.
    pub(crate) cost: f64,
    /// Hours of replicas.
    pub(crate) replica_hours: f64,
    /// The most replicas of one variant at once.
    pub(crate) peak_replicas: u32,
    /// Changes of desired replicas to a higher number.
    pub(crate) scale_ups: u32,
    /// Changes of desired replicas to a lower number.
    pub(crate) scale_downs: u32,
    /// Hours of variants in which no desired replicas were known.
    pub(crate) undecided_hours: f64,
    /// Hours of variants in which replicas could not be counted; they are not in the cost.
    pub(crate) unknown_hours: f64,
    /// Reasons that kept desired replicas from what the load asks for, the longest first.
    pub(crate) held: Vec<HeldRow>,
}

/// A reason that kept desired replicas.
#[derive(Debug, Serialize)]
pub(crate) struct HeldRow {
    /// The code of the reason.
    pub(crate) reason: &'static str,
    /// The meaning of the reason.
    pub(crate) meaning: &'static str,
    /// The direction: `higher` or `lower` than the load asks for, or `unchanged`.
    pub(crate) kept: HeldDirection,
    /// Hours of variants for which it lasted.
    pub(crate) hours: f64,
    /// How often it began.
    pub(crate) times: u32,
}

// === impl Report ===

impl Report {
    /// The report of a ledger.
    ///
    /// # Errors
    ///
    /// The trace has no tick.
    pub(crate) fn new(ledger: &WeekLedger, slo: &Slo) -> Result<Self, BacktestError> {
        let (from, to) =
            ledger.span.ok_or_else(|| BacktestError::Unscored("it has no ticks".to_owned()))?;
        let mut total = WeekFigures::default();
        let mut days: BTreeMap<String, WeekFigures> = BTreeMap::new();
        let mut variants: BTreeMap<_, WeekFigures> = BTreeMap::new();
        for (hour, of_hour) in &ledger.hours {
            let date = Timestamp::from_second(hour * 3600).unwrap_or(from).to_string();
            let day = days.entry(date.chars().take(10).collect()).or_default();
            for (key, figures) in of_hour {
                total.add(figures);
                day.add(figures);
                variants.entry(key.clone()).or_default().add(figures);
            }
        }

        let mut models: BTreeMap<ModelKey, (WeekFigures, Vec<VariantRow>)> = BTreeMap::new();
        for (key, spec) in &ledger.specs {
            let Some(figures) = variants.get(key) else { continue };
            let (all, rows) = models.entry(spec.model_key()).or_default();
            all.add(figures);
            rows.push(VariantRow {
                variant: key.variant.to_string(),
                accelerator: spec.accelerator.as_ref().map(ToString::to_string),
                summary: WeekSummary::new(figures, slo),
            });
        }

        let row =
            |(key, (figures, variants)): (ModelKey, (WeekFigures, Vec<VariantRow>))| ModelRow {
                namespace: key.namespace.to_string(),
                model: key.model.to_string(),
                summary: WeekSummary::new(&figures, slo),
                variants,
            };
        let mut rows: Vec<ModelRow> = models.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.summary.cost.total_cmp(&a.summary.cost));
        let day = |(date, figures): (String, WeekFigures)| DayRow {
            date,
            summary: WeekSummary::new(&figures, slo),
        };
        Ok(Self {
            version: VERSION,
            from,
            to,
            slo_ttft: slo.ttft.seconds(),
            slo_itl: slo.itl.seconds(),
            total: WeekSummary::new(&total, slo),
            days: days.into_iter().map(day).collect(),
            models: rows,
            notes: notes(ledger, &total),
        })
    }
}

fn notes(ledger: &WeekLedger, total: &WeekFigures) -> Vec<String> {
    let mut notes = vec![
        "Shares within objectives come from the histograms of the engines, with linear \
         interpolation inside a bucket. They don't include requests that no engine got."
            .to_owned(),
    ];
    if total.unknown > 0.0 {
        notes.push(format!(
            "For {:.1} hours of variants, replicas could not be counted. They are not in the cost.",
            total.unknown / 3600.0
        ));
    }
    if ledger.is_cut {
        notes.push("The trace has more variants than a report may have.".to_owned());
    }

    notes
}

// === impl WeekSummary ===

impl WeekSummary {
    fn new(figures: &WeekFigures, slo: &Slo) -> Self {
        let held = figures.held.iter().map(|((code, kept), (seconds, times))| HeldRow {
            reason: code.label(),
            meaning: code.meaning(),
            kept: *kept,
            hours: seconds / 3600.0,
            times: *times,
        });
        let mut held: Vec<HeldRow> = held.collect();
        held.sort_by(|a, b| b.hours.total_cmp(&a.hours));
        Self {
            requests: figures.requests,
            ttft_within: within(&figures.ttft, slo.ttft.seconds()),
            itl_within: within(&figures.itl, slo.itl.seconds()),
            cost: figures.cost,
            replica_hours: figures.replicas / 3600.0,
            peak_replicas: figures.peak,
            scale_ups: figures.ups,
            scale_downs: figures.downs,
            undecided_hours: figures.undecided / 3600.0,
            unknown_hours: figures.unknown / 3600.0,
            held,
        }
    }
}

/// The share of observations up to a limit; `None` if the histogram does not show it.
fn within(histogram: &Histogram, limit: f64) -> Option<f64> {
    histogram.share_above(limit).map(|above| 1.0 - above)
}
