//! Facts about a variant's workload other than its load: accelerators per replica, and the
//! arguments of its engine.

use std::sync::Arc;

use derive_more::Display;

use crate::analyze::engine_args::{EngineArguments, UnknownArguments};
use crate::units::{Gpus, Tokens};

/// The known facts about one variant's workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadReport {
    /// Accelerators per replica.
    pub gpus: Gpus,
    /// The source of the accelerator count.
    pub said_by: GpusSource,
    /// The engine's arguments; `None` if no pod template is available.
    pub engine: Option<EngineReport>,
}

/// The source of the accelerators per replica. If there are several, the first one applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpusSource {
    /// The configuration, or an annotation.
    Declared,
    /// The pod template of the scale target.
    Template,
    /// Pods that were observed.
    Pods,
    /// None; one accelerator per replica is assumed.
    Assumed,
}

/// The arguments of an engine, as far as its pod template shows them.
#[derive(Clone, Debug, Display, PartialEq)]
pub enum EngineReport {
    /// The template shows these arguments.
    Read(Arc<EngineArguments>),
    /// The arguments cannot be determined.
    Unread(UnknownArguments),
    /// The template shows arguments, and a scrape contradicts them.
    Contradicted(Contradiction),
}

/// A pod template and a scrape that disagree on the KV-cache size of a replica.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display(
    "the pod template implies {prescribed} KV tokens per replica, but the engine reports \
     {reported}, which is used"
)]
pub struct Contradiction {
    /// The size that follows from the arguments.
    pub prescribed: Tokens,
    /// The size that the scrape reports.
    pub reported: Tokens,
}

// === impl GpusSource ===

impl GpusSource {
    /// The word used in labels and API responses.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Template => "template",
            Self::Pods => "pods",
            Self::Assumed => "assumed",
        }
    }
}

// === impl EngineReport ===

impl EngineReport {
    /// The word used in labels and API responses.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Unread(UnknownArguments::NoEngine) => "no_engine",
            Self::Unread(UnknownArguments::Elsewhere(_)) => "elsewhere",
            Self::Contradicted(_) => "contradicted",
        }
    }

    /// Returns true if a user could fix it. A workload without a known engine may be correct.
    #[must_use]
    pub const fn is_doubtful(&self) -> bool {
        match self {
            Self::Read(_) | Self::Unread(UnknownArguments::NoEngine) => false,
            Self::Unread(UnknownArguments::Elsewhere(_)) | Self::Contradicted(_) => true,
        }
    }
}
