//! The plain HTTP port: metrics, health, logging.
