//! One variant in the table.

use std::cmp::Ordering;

use serde_json::Value;

use crate::cli::args::TopSort;

/// One variant in the table. An unknown value is `None`, and shown as a dash.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) variant: String,
    pub(super) model: String,
    pub(super) desired: Option<u64>,
    pub(super) current: Option<u64>,
    pub(super) ready: Option<u64>,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    pub(super) arrivals: Option<f64>,
    pub(super) kv: Option<f64>,
    pub(super) waiting: Option<f64>,
    pub(super) cost: Option<f64>,
    pub(super) age: Option<f64>,
    pub(super) state: String,
    pub(super) because: String,
}

impl Row {
    /// Reads a variant of `/api/v1/decisions`.
    pub(super) fn new(variant: &Value) -> Self {
        let text = |name: &str| variant[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| variant[name].as_f64();
        let count = |name: &str| variant[name].as_u64();

        let state = match variant["override"]["kind"].as_str() {
            Some("pin") => "pinned".to_owned(),
            Some(_) => "paused".to_owned(),
            None => text("basis"),
        };
        let headline = variant["headline"].as_str().map(str::to_owned);
        Self {
            variant: format!("{}/{}", text("namespace"), text("variant")),
            model: text("model"),
            desired: count("desired"),
            current: count("current"),
            ready: count("ready"),
            min: count("min"),
            max: count("max"),
            arrivals: number("arrivals_per_second"),
            kv: number("kv_cache_usage"),
            waiting: number("waiting"),
            cost: number("cost_per_hour"),
            age: number("age_seconds"),
            state,
            because: headline.unwrap_or_else(|| text("because")),
        }
    }

    /// Returns true if every word of a filter is in the row.
    pub(super) fn matches(&self, filter: &str) -> bool {
        let Self { variant, model, state, .. } = self;
        let all = format!("{variant} {model} {state}").to_lowercase();
        filter.to_lowercase().split_whitespace().all(|word| all.contains(word))
    }

    /// The order by a key: names ascending, numbers descending, unknown ones last.
    pub(super) fn compare(&self, other: &Self, sort: TopSort) -> Ordering {
        let number = |row: &Self| match sort {
            TopSort::Name => None,
            TopSort::Desired => row.desired.map(|count| count as f64),
            TopSort::Load => row.arrivals,
            TopSort::Kv => row.kv,
            TopSort::Waiting => row.waiting,
            TopSort::Age => row.age,
            TopSort::Cost => row.cost,
        };
        let most = |row: &Self| number(row).unwrap_or(f64::NEG_INFINITY);
        most(other).total_cmp(&most(self)).then_with(|| self.variant.cmp(&other.variant))
    }

    /// The cells of the row, in the order of the columns.
    pub(super) fn cells(&self) -> [String; 11] {
        let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let number = |number: Option<f64>, digits: usize| {
            number.map_or_else(|| "-".to_owned(), |it| format!("{it:.digits$}"))
        };

        [
            self.variant.clone(),
            count(self.desired),
            count(self.current),
            count(self.ready),
            format!("{}..{}", count(self.min), count(self.max)),
            number(self.arrivals, 1),
            number(self.kv.map(|kv| 100.0 * kv), 0),
            number(self.waiting, 0),
            number(self.cost, 2),
            number(self.age, 0),
            format!("{:<7} {}", self.state, self.because),
        ]
    }
}
