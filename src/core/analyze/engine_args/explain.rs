//! Engine arguments as a sentence.

use std::fmt;

use crate::analyze::engine_args::arguments::EngineArguments;

impl fmt::Display for EngineArguments {
    /// Writes the configured settings that bound an engine's work. Unset settings are the engine's
    /// defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.engine.label())?;
        if let Some(sequences) = self.sequences {
            write!(f, ", {sequences} sequences at once")?;
        }
        if let Some(tokens) = self.step_tokens {
            write!(f, ", {tokens} tokens per step")?;
        }
        if let Some(tokens) = self.kv_capacity() {
            write!(f, ", {tokens} tokens in its KV cache")?;
        }

        let block = self.block_size.tokens();
        let memory = self.gpu_memory.fraction();
        write!(f, ", {block} tokens per block, {memory} of the memory")?;
        let data = self.parallel.data.get();
        if data > 1 {
            write!(f, ", {data} data-parallel ranks")?;
        }
        if let Some(drafts) = self.draft_tokens {
            write!(f, ", {drafts} draft tokens")?;
        }

        Ok(())
    }
}
