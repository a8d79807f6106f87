//! The section about the trace, and policies that are evaluated alongside the one in effect.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::file::capacity::{Analysis, CapacityKeys};
use crate::config::file::limits::LimitKeys;
use crate::config::file::pools::PoolKeys;
use crate::config::file::zero::ScaleToZeroKeys;
use crate::config::names;
use plimsoll_core::analyze::saturation::Saturation;
use plimsoll_core::decide::enforce::Behavior;
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::settings;
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{Written, text};

settings! {
    /// Inputs and decisions of the pipeline, written for `plimsoll backtest`.
    #[derive(Eq)]
    pub struct Trace {
        /// The folder. It is created if it does not exist.
        dir: PathBuf, required;

        /// Size from which a file is ended and another is begun.
        // One hour of a hundred replicas that are scraped once per second.
        max_file_size: Bytes = 64 << 20, in (1 << 20)..=(1 << 40);

        /// Most files; the oldest is removed for the next one.
        // Together one gibibyte, which is below the usual write limit of a pod.
        max_files: usize = 16, in 2..=100_000;
    }

    /// A policy that is evaluated alongside the one in effect, on the same inputs. A section that
    /// it has takes the place of the whole section of that name; the others hold here as well. Wake
    /// signals and gateways of pools have no effect here.
    pub struct ShadowKeys {
        /// Its name in metrics and on the status page.
        name: String, in text(names::is_dns_label, names::DNS_LABEL), required;

        /// Windows and ages of observed values.
        observe: Option<Observe>;

        /// Saturation thresholds of replicas, and the headroom that a model keeps.
        saturation: Option<Saturation>;

        /// Method that decides the number of replicas of a model.
        analysis: Option<Analysis>;

        /// Analyzers that size a model, and their parameters.
        capacity: Option<CapacityKeys>;

        /// Speed of changes to numbers.
        enforce: Option<Behavior>;

        /// Models that may have no replicas, and when. Its signals are not read.
        scale_to_zero: Option<ScaleToZeroKeys>;

        /// Variants whose replicas each serve several adapters or models.
        pools: Option<BTreeMap<String, Option<Written<PoolKeys>>>>;

        /// Limits of all variants together.
        limits: Option<LimitKeys>;
    }
}
