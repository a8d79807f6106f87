//! Configuration: a file as written, resolved into values that are valid by construction.

pub mod file;
