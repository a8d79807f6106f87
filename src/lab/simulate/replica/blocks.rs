//! Blocks of the KV cache: allocation, release, and cached blocks.

use crate::simulate::replica::prefix::{CachedPrefix, Return};
use crate::simulate::replica::{PrefillAt, Replica};
use plimsoll_core::units::Fraction;

impl Replica {
    /// The cached part of a waiting request.
    pub(super) fn cached(&self, index: usize) -> CachedPrefix {
        let life = &self.lives[index];
        if self.prefill_at == PrefillAt::Elsewhere && life.preemptions == 0 {
            return CachedPrefix { tokens: life.request.prompt - 1, held: 0 };
        }
        if let Some(fetch) = self.fetch.filter(|_| life.preemptions == 0) {
            return CachedPrefix {
                tokens: self.share_of(life.request.prompt, fetch.share),
                held: 0,
            };
        }

        match &self.prefix {
            Some(prefix) => prefix.find(life.request.id, life.prefill_target()),
            None => CachedPrefix {
                tokens: self.share_of(life.request.prompt, self.prefix_hits),
                held: 0,
            },
        }
    }

    /// The tokens of a share of a prompt, in whole blocks and without the last token.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is not longer than it, and is cut to whole tokens"
    )]
    pub(super) fn share_of(&self, prompt: u32, share: Fraction) -> u32 {
        let tokens = (f64::from(prompt) * share.fraction()) as u32;
        let found = tokens.min(prompt.saturating_sub(1));
        found - found % self.settings.block_size
    }

    /// Takes free blocks for decoding tokens.
    pub(super) fn take(&mut self, blocks: u32) {
        self.kv_blocks_used += blocks;
        if let Some(prefix) = &mut self.prefix {
            prefix.take(blocks);
        }
    }

    /// Takes the blocks of a request's first `after` tokens, of which it already has those of
    /// `before`.
    pub(super) fn occupy(&mut self, index: usize, before: u32, after: u32) {
        if let Some(prefix) = &mut self.prefix {
            let more = prefix.occupy(self.lives[index].request.id, before, after);
            let used = i64::from(self.kv_blocks_used) + more;
            self.kv_blocks_used = u32::try_from(used).unwrap_or_default();
        } else {
            self.kv_blocks_used += self.settings.blocks(after) - self.settings.blocks(before);
        }
    }

    /// Releases the blocks of a request's tokens.
    pub(super) fn give_back(&mut self, request: u64, tokens: u32, back: Return) {
        self.kv_blocks_used -= match &mut self.prefix {
            Some(prefix) => prefix.release(request, tokens, back),
            None => self.settings.blocks(tokens),
        };
    }

    pub(super) const fn free(&self) -> u32 {
        self.settings.kv_blocks - self.kv_blocks_used - self.promised
    }
}
