//! One variant in the table.

use std::cmp::Ordering;

use serde_json::Value;

use crate::cli::args::TopSort;

/// The number of columns.
pub(super) const COUNT: usize = 12;

/// The most characters of a number.
const SHORT: usize = 5;

/// The most characters of bounds.
const BOUNDS: usize = 9;

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

    /// The cells of the row, in the order of the columns, with a name of at most `width` characters.
    pub(super) fn cells(&self, width: usize) -> [String; COUNT] {
        [
            middle_cut(&self.variant, width),
            count(self.desired),
            count(self.current),
            count(self.ready),
            bounds(self.min, self.max),
            short(self.arrivals, 1),
            short(self.kv.map(|kv| 100.0 * kv), 0),
            short(self.waiting, 0),
            short(self.cost, 2),
            short(self.age, 0),
            self.state.clone(),
            self.because.clone(),
        ]
    }
}

fn count(count: Option<u64>) -> String {
    short(count.map(|it| it as f64), 0)
}

/// Bounds of at most nine characters, in thousands if they are long.
fn bounds(min: Option<u64>, max: Option<u64>) -> String {
    let plain = format!("{}..{}", count(min), count(max));
    if plain.len() <= BOUNDS {
        return plain;
    }
    let thousands =
        |of: Option<u64>| of.map_or_else(|| "-".to_owned(), |it| format!("{}k", it / 1000));
    format!("{}..{}", thousands(min), thousands(max))
}

/// A number of at most five characters with these decimals, or with a unit if it is long: a number
/// that a column cuts would be another number.
fn short(number: Option<f64>, digits: usize) -> String {
    let Some(number) = number else { return "-".to_owned() };
    let plain = format!("{number:.digits$}");
    if plain.len() <= SHORT {
        return plain;
    }

    let whole = format!("{number:.0}");
    if whole.len() <= SHORT {
        return whole;
    }
    let units = ["k", "M", "G", "T", "P"];
    let mut scaled =
        (1_i32..).zip(units).map(|(power, unit)| (number / 1000_f64.powi(power), unit));
    let fits = scaled.find(|(scaled, _)| scaled.abs() < 999.5);
    let (scaled, unit) = fits.unwrap_or((f64::INFINITY, ""));
    let digits = usize::from(scaled.abs() < 99.95);
    format!("{scaled:.digits$}{unit}")
}

/// A name of at most `width` characters. Names often differ only at their ends, so the middle goes.
fn middle_cut(name: &str, width: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= width || width < 3 {
        return name.to_owned();
    }

    let end = (width - 1) * 2 / 3;
    let start = width - 1 - end;
    let head = letters.iter().take(start);
    let tail = letters.iter().skip(letters.len() - end);
    head.chain(['…'].iter()).chain(tail).collect()
}
