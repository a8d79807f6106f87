//! What is known of a variant's workload beside its load: what a replica takes, and how its engine
//! is started.

use std::sync::Arc;

use derive_more::Display;

use crate::analyze::engine_args::{EngineArguments, Unread};
use crate::units::{Gpus, Tokens};

/// What is known of one variant's workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadReport {
    /// Accelerators that one replica counts with.
    pub gpus: Gpus,
    /// Who says so.
    pub said_by: SaidBy,
    /// How its engine is started; `None` where nobody shows a pod template.
    pub engine: Option<EngineReport>,
}

/// Who says how many accelerators a replica takes. Of several, the first holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidBy {
    /// The configuration, or an annotation.
    Declared,
    /// The pod template of the scale target.
    Template,
    /// Pods that were seen.
    Pods,
    /// Nobody; it counts with one.
    Nobody,
}

/// How an engine is started, as far as its pod template says it.
#[derive(Clone, Debug, Display, PartialEq)]
pub enum EngineReport {
    /// By these arguments.
    Read(Arc<EngineArguments>),
    /// Nobody can say.
    Unread(Unread),
    /// By some, but its pages say something else.
    Contradicted(Contradiction),
}

/// A pod template and a page that do not agree on the size of the KV cache of a replica.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display(
    "the pod template prescribes {prescribed} KV tokens a replica and a page reports {reported}, \
     which is what counts"
)]
pub struct Contradiction {
    /// What follows from the arguments.
    pub prescribed: Tokens,
    /// What a page says.
    pub reported: Tokens,
}

// === impl SaidBy ===

impl SaidBy {
    /// The word for it, in labels and answers.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Template => "template",
            Self::Pods => "pods",
            Self::Nobody => "nobody",
        }
    }
}

// === impl EngineReport ===

impl EngineReport {
    /// The word for it, in labels and answers.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Unread(Unread::NoEngine) => "no_engine",
            Self::Unread(Unread::Elsewhere(_)) => "elsewhere",
            Self::Contradicted(_) => "contradicted",
        }
    }

    /// Whether somebody could mend it. A workload without an engine that is known may be as it
    /// should be.
    #[must_use]
    pub const fn is_doubtful(&self) -> bool {
        match self {
            Self::Read(_) | Self::Unread(Unread::NoEngine) => false,
            Self::Unread(Unread::Elsewhere(_)) | Self::Contradicted(_) => true,
        }
    }
}
