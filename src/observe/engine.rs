//! Engine dialects: the only file that knows engines' metric names.

/// An inference engine whose page we can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    /// vLLM, V0 and V1, Python and Rust front ends.
    Vllm,
    /// `SGLang`.
    Sglang,
}

impl Engine {
    /// The engine as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}
