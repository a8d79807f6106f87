//! Cumulative histograms: their difference, mean and quantiles.

/// A cumulative histogram as a page reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Sum of all observations.
    pub sum: f64,
    /// Number of observations.
    pub count: f64,
    /// Upper edge and number of observations up to it, edges ascending; the last edge is `+Inf`.
    /// Empty when a relabelling rule drops the buckets.
    pub buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// x
    #[must_use]
    pub fn difference(&self, earlier: &Self) -> Option<Self> {
        Some(Self {
            sum: self.sum - earlier.sum,
            count: self.count - earlier.count,
            buckets: vec![],
        })
    }
}
