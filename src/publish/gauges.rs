//! The decisions and observations as Prometheus metrics.
