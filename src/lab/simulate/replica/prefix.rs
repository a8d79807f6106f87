//! The prefix cache: the blocks of a prompt that an engine still holds.
//!
//! # Model
//!
//! A prompt is a chain of pages. The name of a page stands for its tokens and all tokens before
//! them, as the `hash_ids` of Mooncake's traces do. The engine need not compute the leading pages
//! that it holds. At least the last token is always computed, because a step must compute
//! something. Requests that have a page in common hold it once.
//!
//! A block without a holder is free and keeps its tokens until it is handed out again. Blocks are
//! handed out in the order in which they became free. A request's blocks become free from its end
//! on, so that beginnings, which other requests may share, stay longest. Blocks after the pages of
//! a prompt are the request's own: only this request finds them again, after a preemption.
//!
//! If a page is partly gone, its remaining whole blocks count.
//!
//! # Source
//!
//! vLLM 0.33: `KVCacheManager.get_computed_blocks` and `free`, `BlockPool.get_new_blocks`, which
//! evicts, and `touch`.
//!
//! # Limits
//!
//! The prompts of later turns contain earlier answers, but do not find their blocks. The block that
//! is computed again for the last token of a prompt replaces the cached one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::simulate::replica::request::Request;
use crate::simulate::replica::stats::count;

/// The contents of prompts, as lists of page names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Tokens per page.
    page_tokens: u32,
    /// The names of all pages of all prompts, one prompt after another.
    names: Vec<u32>,
    /// The index in `names` at which each prompt ends.
    ends: Vec<usize>,
}

/// A prompt: its place among the [`Prompts`], and the world that it belongs to. Pages of different
/// worlds have nothing in common, even if their names are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptId {
    /// Its place.
    pub place: u32,
    /// Its world.
    pub world: u32,
}

/// The part of a prompt that an engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CachedPrefix {
    /// Tokens that need not be computed, in whole blocks.
    pub(super) tokens: u32,
    /// The blocks of these tokens that another request holds, so that they need no free block.
    pub(super) held: u32,
}

/// The future of a request that leaves the batch: it looks for its own blocks again, or never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    Later,
    Never,
}

/// The blocks of one engine's cache, including free ones.
#[derive(Clone, Debug)]
pub(super) struct PrefixCache {
    prompts: Option<Arc<Prompts>>,
    block_size: u32,
    pages: BTreeMap<Name, PrefixPage>,
    /// Free blocks, in the order in which they are handed out.
    free: VecDeque<FreeBlocks>,
    /// The number of times that a page became free.
    stamps: u64,
    /// The unfinished requests whose prompts are known.
    requests: BTreeMap<u64, Chain>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// The world and the name of a page.
    Page(u32, u32),
    /// The blocks that belong to a single request.
    Own(u64),
}

#[derive(Clone, Copy, Debug)]
struct PrefixPage {
    /// Blocks of the page that the engine holds, from its beginning on.
    blocks: u32,
    holders: u32,
    /// The value of `stamps` when it last became free.
    stamp: u64,
}

#[derive(Clone, Copy, Debug)]
enum FreeBlocks {
    /// Blocks without reusable tokens.
    Blank(u32),
    /// A page, if it still has this stamp.
    Page(Name, u64),
}

/// A request whose prompt is known.
#[derive(Clone, Copy, Debug)]
struct Chain {
    prompt: PromptId,
    /// Its prompt tokens.
    tokens: u32,
    /// The number of pages that it holds, from the first on.
    held: usize,
}

// === impl Prompts ===

impl Prompts {
    /// An empty set of prompts whose pages have this many tokens, at least one.
    #[must_use]
    pub fn new(page_tokens: u32) -> Self {
        Self { page_tokens: page_tokens.max(1), ..Self::default() }
    }

    /// Adds a prompt and returns its place; `None` if there are too many.
    pub fn add(&mut self, names: &[u32]) -> Option<u32> {
        let place = u32::try_from(self.ends.len()).ok()?;
        self.names.extend_from_slice(names);
        self.ends.push(self.names.len());
        Some(place)
    }

    /// Tokens per page.
    #[must_use]
    pub const fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    fn names(&self, place: u32) -> &[u32] {
        let Ok(place) = usize::try_from(place) else { return &[] };
        let end = self.ends.get(place).copied().unwrap_or_default();
        let start = place.checked_sub(1).and_then(|before| self.ends.get(before).copied());
        self.names.get(start.unwrap_or_default()..end).unwrap_or_default()
    }
}

// === impl PrefixCache ===

impl PrefixCache {
    pub(super) fn new(prompts: Option<Arc<Prompts>>, block_size: u32, kv_blocks: u32) -> Self {
        Self {
            prompts,
            block_size,
            pages: BTreeMap::new(),
            free: VecDeque::from([FreeBlocks::Blank(kv_blocks)]),
            stamps: 0,
            requests: BTreeMap::new(),
        }
    }

    /// Records the prompt of a request that was submitted.
    pub(super) fn expect(&mut self, request: &Request, prompt: PromptId) {
        let chain = Chain { prompt, tokens: request.prompt, held: 0 };
        self.requests.insert(request.id, chain);
    }

    /// Blocks per page.
    fn page_blocks(&self) -> u32 {
        self.prompts.as_ref().map_or(1, |it| it.page_tokens / self.block_size).max(1)
    }

    /// The names of the pages of a request.
    fn names(&self, chain: &Chain) -> &[u32] {
        self.prompts.as_ref().map_or(&[], |prompts| prompts.names(chain.prompt.place))
    }

    /// The number of whole blocks in a request's first tokens that belong to pages.
    fn paged(&self, chain: Option<&Chain>, tokens: u32) -> u32 {
        let Some(chain) = chain else { return 0 };
        let pages = count(self.names(chain).len());
        (tokens.min(chain.tokens) / self.block_size).min(self.page_blocks().saturating_mul(pages))
    }

    /// The cached part of the `target` tokens that a request needs.
    pub(super) fn find(&self, request: u64, target: u32) -> CachedPrefix {
        let mut limit = target.saturating_sub(1) / self.block_size;
        let mut blocks = 0;
        let mut held = 0;
        let mut whole = true;
        if let Some(chain) = self.requests.get(&request) {
            let mut left = self.paged(Some(chain), target);
            for &name in self.names(chain) {
                let most = left.min(self.page_blocks());
                let page = self.pages.get(&Name::Page(chain.prompt.world, name));
                let found = page.map_or(0, |page| page.blocks).min(most).min(limit);
                blocks += found;
                limit -= found;
                left -= most;
                held += page.filter(|page| page.holders > 0).map_or(0, |_| found);
                whole = found == most;
                if !whole || left == 0 {
                    break;
                }
            }
        }

        if whole && let Some(own) = self.pages.get(&Name::Own(request)) {
            blocks += own.blocks.min(limit);
        }

        CachedPrefix { tokens: blocks * self.block_size, held }
    }

    /// Hands out free blocks, whose contents are lost.
    pub(super) fn take(&mut self, mut blocks: u32) {
        while blocks > 0 {
            match self.free.front_mut() {
                None => return,
                Some(FreeBlocks::Blank(left)) => {
                    let taken = blocks.min(*left);
                    *left -= taken;
                    blocks -= taken;
                    if *left == 0 {
                        self.free.pop_front();
                    }
                }
                Some(&mut FreeBlocks::Page(name, stamp)) => {
                    let known = self.pages.get_mut(&name);
                    let idle = known.filter(|page| page.holders == 0 && page.stamp == stamp);
                    let Some(page) = idle else {
                        self.free.pop_front();
                        continue;
                    };
                    let taken = blocks.min(page.blocks);
                    page.blocks -= taken;
                    blocks -= taken;
                    if page.blocks == 0 {
                        self.pages.remove(&name);
                        self.free.pop_front();
                    }
                }
            }
        }
    }

    /// Lets a request occupy the blocks of its first `after` tokens, of which it already has those
    /// of `before`. Returns the change of the blocks in use, which is negative if the request now
    /// shares blocks that it had on its own.
    pub(super) fn occupy(&mut self, request: u64, before: u32, after: u32) -> i64 {
        let chain = self.requests.get(&request).copied();
        let PageBlocks { held, idle } = self.share(request, before, after);
        let growth = i64::from(after.div_ceil(self.block_size))
            - i64::from(before.div_ceil(self.block_size))
            - i64::from(held);
        // Its own blocks that it finds again come from the free blocks, like all others.
        let kept = if before == 0 { self.pages.remove(&Name::Own(request)) } else { None };
        let own = kept.map_or(0, |page| page.blocks);
        let private = after.div_ceil(self.block_size) - self.paged(chain.as_ref(), after);
        let found = own.min(private);
        self.blank(own - found);
        let fresh = growth - i64::from(idle) - i64::from(found);
        match u32::try_from(fresh) {
            Ok(fresh) => self.take(fresh),
            Err(_) => self.blank(u32::try_from(-fresh).unwrap_or_default()),
        }

        growth
    }

    /// Lets a request hold the pages of its first `after` tokens.
    fn share(&mut self, request: u64, before: u32, after: u32) -> PageBlocks {
        let mut shared = PageBlocks::default();
        let Some(mut chain) = self.requests.get(&request).copied() else { return shared };
        let each = self.page_blocks();
        let [had, wanted] = [before, after].map(|tokens| self.paged(Some(&chain), tokens));
        for at in had / each..wanted.div_ceil(each) {
            let place = usize::try_from(at).unwrap_or(usize::MAX);
            let Some(&name) = self.names(&chain).get(place) else { break };
            let mine = had.saturating_sub(at * each);
            let needed = (wanted - at * each).min(each);
            let new = PrefixPage { blocks: 0, holders: 0, stamp: 0 };
            let page = self.pages.entry(Name::Page(chain.prompt.world, name)).or_insert(new);
            let there = page.blocks.min(needed);
            let mut left = 0;
            if page.holders > 0 {
                shared.held += there.saturating_sub(mine);
            } else {
                shared.idle += there;
                left = page.blocks - there;
                page.blocks = there;
            }

            page.blocks = page.blocks.max(needed);
            if place >= chain.held {
                page.holders += 1;
                chain.held = place + 1;
            }

            self.blank(left);
        }

        self.requests.insert(request, chain);
        shared
    }

    /// Releases the blocks of a request's first tokens, and returns how many become free.
    pub(super) fn release(&mut self, request: u64, tokens: u32, back: Return) -> u32 {
        let chain = self.requests.get(&request).copied();
        let mut freed = tokens.div_ceil(self.block_size) - self.paged(chain.as_ref(), tokens);
        let own = match back {
            Return::Later => tokens / self.block_size - self.paged(chain.as_ref(), tokens),
            Return::Never => 0,
        };
        self.append(FreeBlocks::Blank(freed - own));
        if own > 0 {
            self.retire(Name::Own(request), own);
        }
        if let Some(mut chain) = chain {
            let names: Vec<u32> = self.names(&chain)[..chain.held].to_vec();
            for name in names.into_iter().rev().map(|it| Name::Page(chain.prompt.world, it)) {
                let Some(page) = self.pages.get_mut(&name) else { continue };
                page.holders -= 1;
                if page.holders == 0 {
                    let blocks = page.blocks;
                    freed += blocks;
                    self.retire(name, blocks);
                }
            }

            chain.held = 0;
            self.requests.insert(request, chain);
        }

        if back == Return::Never {
            self.requests.remove(&request);
        }

        freed
    }

    /// Puts a page without holders at the end of the free list.
    fn retire(&mut self, name: Name, blocks: u32) {
        self.stamps += 1;
        self.pages.insert(name, PrefixPage { blocks, holders: 0, stamp: self.stamps });
        self.free.push_back(FreeBlocks::Page(name, self.stamps));
    }

    fn append(&mut self, free: FreeBlocks) {
        if !matches!(free, FreeBlocks::Blank(0)) {
            self.free.push_back(free);
        }
    }

    /// Puts blocks at the front of the free list.
    fn blank(&mut self, blocks: u32) {
        if blocks > 0 {
            self.free.push_front(FreeBlocks::Blank(blocks));
        }
    }
}

/// Existing blocks of the pages that a request starts to hold.
#[derive(Clone, Copy, Debug, Default)]
struct PageBlocks {
    /// Blocks of pages that other requests hold.
    held: u32,
    /// Blocks of pages without holders.
    idle: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulate::Micros;
    use crate::simulate::replica::settings::{Admission, Settings, StepTime};
    use crate::simulate::replica::{EngineEvent, Finished, Replica};

    const PAGE: u32 = 64;

    fn engine(kv_blocks: u32, prompts: &[&[u32]]) -> Replica {
        let settings = Settings {
            step: StepTime::dense(10_000.0, 10.0, 0.0, 0.0),
            max_num_seqs: 8,
            max_num_batched_tokens: 256,
            block_size: 16,
            kv_blocks,
            admission: Admission::WholePrompt,
        };

        let mut known = Prompts::new(PAGE);
        for names in prompts {
            known.add(names).unwrap();
        }

        Replica::new(settings).unwrap().with_prefix_cache(Some(Arc::new(known)))
    }

    fn ask(engine: &mut Replica, at: Micros, id: u64, place: u32, prompt: u32, output: u32) {
        let request = Request { id, prompt, output };
        engine.submit_prompt(at, request, PromptId { place, world: 0 }).unwrap();
    }

    /// Serves all requests of an engine, and returns them.
    fn lives(mut engine: Replica) -> Vec<Finished> {
        let mut events = Vec::new();
        engine.advance_to(Micros::new(u64::MAX), &mut events);
        let finished = events.into_iter().filter_map(|event| match event {
            EngineEvent::Finished(life) => Some(life),
            EngineEvent::FirstToken { .. } | EngineEvent::Preempted { .. } => None,
        });
        finished.collect()
    }

    /// Checks that all blocks are in use or free, and that only known requests hold pages.
    fn check(engine: &Replica) {
        let cache = engine.prefix.as_ref().unwrap();
        let mut free = 0;
        for entry in &cache.free {
            match entry {
                FreeBlocks::Blank(blocks) => free += blocks,
                FreeBlocks::Page(name, stamp) => {
                    let idle = cache.pages.get(name).filter(|it| it.holders == 0);
                    free += idle.filter(|it| it.stamp == *stamp).map_or(0, |it| it.blocks);
                }
            }
        }

        assert_eq!(free + engine.kv_blocks_used, engine.settings.kv_blocks);
        if engine.outstanding() == 0 {
            assert!(cache.requests.is_empty(), "{:?}", cache.requests);
            assert!(cache.pages.values().all(|page| page.holders == 0), "{:?}", cache.pages);
        }
    }

    #[test]
    fn what_two_prompts_begin_with_is_computed_once_and_held_once() {
        let mut engine = engine(100, &[&[1, 2, 3], &[1, 2, 4]]);
        ask(&mut engine, Micros::ZERO, 0, 0, 192, 50);
        ask(&mut engine, Micros::new(20_000), 1, 1, 192, 50);
        engine.advance_to(Micros::new(100_000), &mut Vec::new());

        let counters = engine.counters();
        assert_eq!((counters.prefill_tokens, counters.prefix_hits), (192 + 64, 128));
        // Three pages of four blocks plus a fourth page, and one block for each answer.
        assert_eq!(engine.kv_blocks_used, 16 + 2);
        check(&engine);

        engine.advance_to(Micros::from_secs(10), &mut Vec::new());
        assert_eq!(engine.kv_blocks_used, 0);
        check(&engine);
    }

    #[test]
    fn all_of_a_prompt_is_found_again_but_what_its_last_token_takes() {
        let mut engine = engine(100, &[&[1, 2]]);
        ask(&mut engine, Micros::ZERO, 0, 0, 128, 1);
        engine.advance_to(Micros::from_secs(1), &mut Vec::new());
        ask(&mut engine, Micros::from_secs(1), 1, 0, 128, 1);
        engine.advance_to(Micros::from_secs(2), &mut Vec::new());
        assert_eq!(engine.counters().prefill_tokens, 128 + 16);

        let elsewhere = PromptId { place: 0, world: 1 };
        let request = Request { id: 2, prompt: 128, output: 1 };
        engine.submit_prompt(Micros::from_secs(2), request, elsewhere).unwrap();
        engine.advance_to(Micros::from_secs(3), &mut Vec::new());
        assert_eq!(engine.counters().prefill_tokens, 128 + 16 + 128, "another world's prompt");
        check(&engine);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_of_that_the_end() {
        // Room for six pages of four blocks.
        let mut engine = engine(24, &[&[1, 2], &[3, 4], &[5, 6, 7]]);
        let mut at = Micros::ZERO;
        let mut ran = |engine: &mut Replica, id, place, prompt| {
            let before = engine.counters().prefill_tokens;
            ask(engine, at, id, place, prompt, 1);
            at += Micros::from_secs(1);
            engine.advance_to(at, &mut Vec::new());
            check(engine);
            engine.counters().prefill_tokens - before
        };

        assert_eq!(ran(&mut engine, 0, 0, 128), 128);
        assert_eq!(ran(&mut engine, 1, 1, 128), 128);
        assert_eq!(ran(&mut engine, 2, 0, 128), 16, "which makes the first prompt the younger");
        // Two pages are blank, so one page of the second prompt must go: the last.
        assert_eq!(ran(&mut engine, 3, 2, 192), 192);
        assert_eq!(ran(&mut engine, 4, 0, 128), 16);
        assert_eq!(ran(&mut engine, 5, 1, 128), 64, "its beginning was kept");
    }

    proptest! {
        #[test]
        fn no_block_is_lost_by_sharing_preemption_or_leaving(
            kv_blocks in 24..80_u32,
            requests in prop::collection::vec(
                (0..60_000_u64, 0..6_u32, 1..300_u32, 1..60_u32, 0..12_u64),
                1..60,
            ),
        ) {
            let prompts: [&[u32]; 6] =
                [&[1, 2, 3, 4, 5], &[1, 2, 6, 7, 8], &[1, 9, 10], &[11], &[], &[1, 2, 3, 4, 12]];
            let mut engine = engine(kv_blocks, &prompts);
            let mut at = Micros::ZERO;
            let mut finished = 0;
            let mut aborted = 0;
            let mut events = Vec::new();
            let mut submitted = 0;
            for ((gap, place, prompt, output, leaves), id) in requests.into_iter().zip(0..) {
                at += Micros::new(gap);
                let request = Request { id, prompt, output };
                let known = PromptId { place, world: 0 };
                submitted += usize::from(engine.submit_prompt(at, request, known).is_ok());
                engine.advance_to(at, &mut events);
                check(&engine);
                aborted += usize::from(leaves > 8 && engine.abort(id.saturating_sub(leaves - 9)));
                check(&engine);
            }

            engine.advance_to(Micros::new(u64::MAX), &mut events);
            check(&engine);
            finished += events.iter().filter(|it| matches!(it, EngineEvent::Finished(_))).count();
            prop_assert_eq!((finished + aborted, engine.kv_blocks_used), (submitted, 0));
        }

        #[test]
        fn prompts_that_have_nothing_in_common_are_served_as_without_a_cache(
            requests in prop::collection::vec((0..60_000_u64, 1..300_u32, 1..60_u32), 1..40),
        ) {
            // Without preemptions, because a preempted request finds its own blocks again.
            let mut with = engine(1_000, &[]);
            let mut without = Replica::new(with.settings).unwrap();
            let mut at = Micros::ZERO;
            for ((gap, prompt, output), id) in requests.into_iter().zip(0..) {
                at += Micros::new(gap);
                let request = Request { id, prompt, output };
                with.submit(at, request).unwrap();
                without.submit(at, request).unwrap();
            }

            prop_assert_eq!(lives(with), lives(without));
        }
    }
}
