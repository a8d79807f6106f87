//! Creates metrics and registers them in the same call.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry, Result,
};

/// Creates metrics in a registry. It rejects a metric whose name is already registered.
pub(crate) struct Registrar<'a>(pub(crate) &'a Registry);

impl Registrar<'_> {
    pub(crate) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(crate) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        self.add(Gauge::new(name, help)?)
    }

    pub(crate) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Creates an integer gauge.
    pub(crate) fn int_gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    pub(crate) fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Result<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?)
    }

    pub(crate) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> Result<HistogramVec> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?)
    }

    fn add<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}
