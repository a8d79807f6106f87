//! Discovery: variants that cluster objects declare through annotations.
//!
//! An HPA, a KEDA `ScaledObject` or a workload that names a model in its annotations is a variant.
//! It needs no entry in the configuration. [`variant()`] reads one object and is pure. [`ledger`]
//! decides which of several objects is in effect, and keeps the last valid reading of an object
//! that has become invalid. docs/annotations.md has a table of the annotations.
//!
//! An object uses one of two vocabularies: Plimsoll's (`plimsoll.dev/model`), or that of the
//! workload variant autoscaler (`llm-d.ai/managed`). Objects that were annotated for that
//! autoscaler therefore work with Plimsoll unchanged. The vocabularies differ only in the default
//! name and the default cost. All Plimsoll annotations are read with either.

pub(crate) mod annotation;
pub(crate) mod credentials;
pub(crate) mod ledger;
pub(crate) mod object;
mod read;
pub(crate) mod scope;
mod variant;

pub use crate::collect::cluster::discovery::annotation::{
    Annotation, AnnotationProblem, AnnotationRules, ScrapeRequest, Vocabulary,
};
pub use crate::collect::cluster::discovery::credentials::CredentialRefusal;
pub use crate::collect::cluster::discovery::ledger::{
    Claimant, Discovery, Objection, ObjectionCause, ReadingFallback, Standing,
};
pub use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
pub use crate::collect::cluster::discovery::scope::{DiscoveryScope, Filter};
pub use crate::collect::cluster::discovery::variant::{DiscoveredVariant, variant};
