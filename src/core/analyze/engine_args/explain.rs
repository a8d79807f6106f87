//! Engine arguments as a sentence.

use std::fmt;

use crate::analyze::engine_args::{EngineArguments, Unread};

impl fmt::Display for EngineArguments {
    /// Of what bounds the work of an engine, what is written; the rest is the engine's default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.engine.label())?;
        if let Some(sequences) = self.sequences {
            write!(f, ", {} sequences at once", sequences.requests())?;
        }
        if let Some(tokens) = self.step_tokens {
            write!(f, ", {} tokens a step", tokens.tokens())?;
        }
        if let Some(tokens) = self.kv_capacity() {
            write!(f, ", {} tokens in its KV cache", tokens.tokens())?;
        }
        let (block, memory) = (self.block_size.tokens(), self.gpu_memory.fraction());
        write!(f, ", {block} tokens a block, {memory} of the memory")?;
        let data = self.parallel.data.get();
        if data > 1 {
            write!(f, ", {data} ranks side by side")?;
        }
        if let Some(drafts) = self.draft_tokens {
            write!(f, ", {drafts} draft tokens")?;
        }
        Ok(())
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEngine => f.write_str(
                "no container of the pod template names vLLM or SGLang in its image or command",
            ),
            Self::Elsewhere(what) => write!(
                f,
                "the engine's settings are not all written in the pod template: {} is only known \
                 where it runs",
                what.join(", ")
            ),
        }
    }
}
