//! Estimates with an interval.

use serde::Serialize;

/// Two-sided 95% quantiles of Student's t distribution, from one degree of freedom on.
const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// A mean with its 95% interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Estimate {
    /// The mean.
    pub(crate) mean: f64,
    /// The lower end of the interval; null with a single part.
    pub(crate) low: Option<f64>,
    /// The upper end of the interval; null with a single part.
    pub(crate) high: Option<f64>,
}

impl Estimate {
    /// The mean of values from equal parts of the time, and its interval by Student's t
    /// distribution; `None` without a value.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }

        let mean = values.iter().sum::<f64>() / count;
        if values.len() < 2 {
            return Some(Self { mean, low: None, high: None });
        }

        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        let reach = quantile(values.len() - 1) * error;
        Some(Self { mean, low: Some(mean - reach), high: Some(mean + reach) })
    }

    /// The estimate of a multiple of the value.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            mean: self.mean * factor,
            low: self.low.map(|it| it * factor),
            high: self.high.map(|it| it * factor),
        }
    }

    /// Returns true if the whole interval is below zero.
    pub(crate) fn is_negative(&self) -> bool {
        self.high.is_some_and(|high| high < 0.0)
    }

    /// Returns true if the whole interval is above zero.
    pub(crate) fn is_positive(&self) -> bool {
        self.low.is_some_and(|low| low > 0.0)
    }
}

/// The quantile for so many degrees of freedom. Beyond the table, an approximation within 1%.
fn quantile(freedom: usize) -> f64 {
    let beyond = 1.96 + 2.5 / freedom.max(1) as f64;
    T.get(freedom.saturating_sub(1)).copied().unwrap_or(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_students_t_distribution() {
        // Mean 3, standard deviation 1.581, five values: 3 +- 2.776 * 0.707.
        let found = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((found.mean - 3.0).abs() < 1e-12);
        assert!((found.low.unwrap() - 1.037).abs() < 1e-3, "{found:?}");
        assert!((found.high.unwrap() - 4.963).abs() < 1e-3, "{found:?}");
        assert!(found.is_positive() && !found.is_negative());
        assert!(
            (quantile(30) / 2.042 - 1.0).abs() < 0.01 && (quantile(11) / 2.201 - 1.0).abs() < 0.01
        );
    }

    #[test]
    fn a_single_part_has_no_interval_and_proves_nothing() {
        assert_eq!(Estimate::of(&[]), None);
        let one = Estimate::of(&[-7.0]).unwrap();
        assert!(!one.is_negative() && one.low.is_none(), "{one:?}");
    }
}
