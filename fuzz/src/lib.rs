//! Invariants of code that reads bytes from outside, for any bytes.
//!
//! Each module has one function, `check`, that takes any bytes and panics if a rule is broken. The
//! fuzzer calls it with generated inputs. `tests/it/corpus.rs` calls it with the inputs found so
//! far, in every test run.

pub mod admin;
pub mod cards;
pub mod configuration;
pub mod exposition;
pub mod external_metrics;
pub mod external_scaler;
pub mod prometheus_answer;
pub mod quantity;
pub mod request;
pub mod selector;
pub mod state_file;
pub mod target_file;

/// A check of any bytes.
pub type Check = fn(&[u8]);

/// Every check by its name, which is also the name of its folder in `fuzz/corpus`.
pub const ALL: [(&str, Check); 11] = [
    ("admin", admin::check),
    ("cards", cards::check),
    ("configuration", configuration::check),
    ("exposition", exposition::check),
    ("external_metrics", external_metrics::check),
    ("external_scaler", external_scaler::check),
    ("prometheus_answer", prometheus_answer::check),
    ("quantity", quantity::check),
    ("selector", selector::check),
    ("state_file", state_file::check),
    ("target_file", target_file::check),
];
