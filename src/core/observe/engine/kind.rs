//! The inference engines whose responses can be read.
//!
//! The compiler names every `match` that a new engine needs. It does not name the comparisons with
//! one engine: `parse` and `names_engine` in `analyze/engine_args.rs`, and `conclude` in
//! `analyze/engine_args/flags.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings;

/// An inference engine whose page we can read.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// vLLM, V0 and V1, Python and Rust front ends.
    Vllm,
    /// `SGLang`.
    Sglang,
}

settings! { plain: Engine; }

impl Engine {
    /// Every engine.
    pub const ALL: [Self; 2] = [Self::Vllm, Self::Sglang];

    /// The engine as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}
