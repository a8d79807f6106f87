//! The section about the trace, and policies that are evaluated beside the one in force.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::Saturation;
use crate::config::file::{Analysis, Capacity, Limits, Pool, ScaleToZero};
use crate::config::written::WrittenSize;
use crate::decide::enforce::Behavior;
use crate::observe::policy::Observe;
use crate::settings::Written;

sections! {
    /// What the pipeline gets and decides, written for `plimsoll backtest`.
    Trace {
        /// The folder. Required; it is made where it is not there.
        dir: PathBuf,
        /// The size from which a file is ended and another is begun.
        max_file_size: WrittenSize,
        /// How many files there may be; the oldest is removed for the next one.
        max_files: u32,
    }

    /// A policy that is evaluated beside the one in force, on the same inputs. A section that is
    /// here takes the place of the whole section of that name; the others hold here too.
    Shadow {
        /// What metrics and pages call it. Required.
        name: String,
        /// How values over time are seen.
        observe: Written<Observe>,
        /// When a replica is saturated, and how much spare capacity a model keeps.
        saturation: Written<Saturation>,
        /// What decides how many replicas a model needs.
        analysis: Analysis,
        /// Analyzers that size a model, and what they judge by.
        capacity: Capacity,
        /// How fast numbers may move.
        enforce: Written<Behavior>,
        /// Which models may have no replicas, and when. Its signals are not read.
        scale_to_zero: ScaleToZero,
        /// Variants whose replicas each serve several adapters.
        pools: BTreeMap<String, Option<Pool>>,
        /// What all variants together may use.
        limits: Limits,
    }
}
