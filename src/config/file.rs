//! The configuration file as written.
