//! Logs and the metrics of the daemon itself.
