//! The command lines of all engines.

mod sglang;
mod vllm;

use crate::analyze::engine_args::syntax::EngineSyntax;
use crate::observe::engine::Engine;

impl Engine {
    pub(super) const fn syntax(self) -> &'static EngineSyntax {
        match self {
            Self::Vllm => &vllm::SYNTAX,
            Self::Sglang => &sglang::SYNTAX,
        }
    }
}
