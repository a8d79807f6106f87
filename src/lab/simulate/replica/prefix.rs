//! The prefix cache: which blocks of a prompt an engine still has.
//!
//! # Model
//!
//! A prompt is a chain of pages, each with a name that stands for its tokens and all before them, as
//! the `hash_ids` of Mooncake's traces. What a chain begins with and the engine has need not be
//! computed; all but the last token, at most, because a step must compute something. Requests that
//! have a page in common hold it once.
//!
//! A block that nobody holds is free and keeps its tokens until it is handed out again. Blocks are
//! handed out in the order in which they became free, those of one request from its end on, so that
//! beginnings, which others may share, stay longest. What follows the pages of a prompt is the
//! request's own: it finds that again after a preemption, and nobody else does.
//!
//! Where a page is partly gone, what is left of it counts, in whole blocks.
//!
//! # Source
//!
//! vLLM 0.33: `KVCacheManager.get_computed_blocks` and `free`, `BlockPool.get_new_blocks`, which
//! evicts, and `touch`.
//!
//! # Limits
//!
//! Answers are not found again by the prompts of later turns, which contain them. The block that is
//! computed again for the last token of a prompt takes the place of the one that was there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::simulate::Micros;
use crate::simulate::replica::{Replica, Request, Unservable, count};

/// What prompts consist of, for many of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Tokens of a page.
    page_tokens: u32,
    /// The names of all pages of all prompts, one prompt after another.
    names: Vec<u32>,
    /// Where in `names` each prompt ends.
    ends: Vec<usize>,
}

/// A prompt: its place among the [`Prompts`], and which of several worlds it belongs to. Pages of
/// different worlds have nothing in common whatever their names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptId {
    /// Its place.
    pub place: u32,
    /// Its world.
    pub world: u32,
}

/// What an engine has of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Tokens that need not be computed, in whole blocks.
    pub(super) tokens: u32,
    /// Of these blocks, those that another request holds, so that no free one is needed for them.
    pub(super) held: u32,
}

/// Whether a request that leaves the batch will look for its own blocks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    Later,
    Never,
}

/// The blocks of one engine's cache, those that are free included.
#[derive(Clone, Debug)]
pub(super) struct PrefixCache {
    prompts: Option<Arc<Prompts>>,
    block_size: u32,
    pages: BTreeMap<Name, Page>,
    /// Free blocks, in the order in which they are handed out.
    free: VecDeque<Free>,
    /// Times that a page became free.
    stamps: u64,
    /// The requests that have not finished and whose prompts are known.
    requests: BTreeMap<u64, Chain>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// World and name.
    Page(u32, u32),
    /// What a request has to itself.
    Own(u64),
}

#[derive(Clone, Copy, Debug)]
struct Page {
    /// Blocks of it that the engine has, from its beginning on.
    blocks: u32,
    holders: u32,
    /// When it became free last.
    stamp: u64,
}

#[derive(Clone, Copy, Debug)]
enum Free {
    /// Blocks whose tokens nobody asks for.
    Blank(u32),
    /// A page, if it still has this stamp.
    Page(Name, u64),
}

/// A request whose prompt is known.
#[derive(Clone, Copy, Debug)]
struct Chain {
    prompt: PromptId,
    /// Tokens of its prompt.
    tokens: u32,
    /// How many of its pages it holds, from the first on.
    held: usize,
}

// === impl Prompts ===

impl Prompts {
    /// No prompts, whose pages have so many tokens; at least one in effect.
    #[must_use]
    pub fn new(page_tokens: u32) -> Self {
        Self { page_tokens: page_tokens.max(1), ..Self::default() }
    }

    /// Adds a prompt and returns its place; `None` when there are too many.
    pub fn add(&mut self, names: &[u32]) -> Option<u32> {
        let place = u32::try_from(self.ends.len()).ok()?;
        self.names.extend_from_slice(names);
        self.ends.push(self.names.len());
        Some(place)
    }

    /// Tokens of a page.
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

// === impl Replica ===

impl Replica {
    /// The same engine with a prefix cache, for prompts of which these are known.
    #[must_use]
    pub fn with_prefix_cache(self, prompts: Option<Arc<Prompts>>) -> Self {
        let cache = PrefixCache::new(prompts, self.settings.block_size, self.settings.kv_blocks);
        Self { prefix: Some(Box::new(cache)), ..self }
    }

    /// Takes a request as [`Replica::submit`] does, whose prompt is known. Its number must be no
    /// other request's.
    ///
    /// # Errors
    ///
    /// A request that could never finish is refused.
    pub fn submit_prompt(
        &mut self,
        at: Micros,
        request: Request,
        prompt: PromptId,
    ) -> Result<(), Unservable> {
        self.submit(at, request)?;
        if let Some(prefix) = &mut self.prefix {
            let chain = Chain { prompt, tokens: request.prompt, held: 0 };
            prefix.requests.insert(request.id, chain);
        }
        Ok(())
    }
}

// === impl PrefixCache ===

impl PrefixCache {
    fn new(prompts: Option<Arc<Prompts>>, block_size: u32, kv_blocks: u32) -> Self {
        Self {
            prompts,
            block_size,
            pages: BTreeMap::new(),
            free: VecDeque::from([Free::Blank(kv_blocks)]),
            stamps: 0,
            requests: BTreeMap::new(),
        }
    }

    /// Blocks of a page.
    fn page_blocks(&self) -> u32 {
        self.prompts.as_ref().map_or(1, |it| it.page_tokens / self.block_size).max(1)
    }

    /// The names of the pages of a request.
    fn names(&self, chain: &Chain) -> &[u32] {
        self.prompts.as_ref().map_or(&[], |prompts| prompts.names(chain.prompt.place))
    }

    /// How many of the whole blocks of its first tokens a request has in pages.
    fn paged(&self, chain: Option<&Chain>, tokens: u32) -> u32 {
        let Some(chain) = chain else { return 0 };
        let pages = count(self.names(chain).len());
        (tokens.min(chain.tokens) / self.block_size).min(self.page_blocks().saturating_mul(pages))
    }

    /// What there is of the `target` tokens that a request is to compute.
    pub(super) fn find(&self, request: u64, target: u32) -> Found {
        let mut limit = target.saturating_sub(1) / self.block_size;
        let (mut blocks, mut held, mut whole) = (0, 0, true);
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
        Found { tokens: blocks * self.block_size, held }
    }

    /// Hands out free blocks; what they held is gone.
    pub(super) fn take(&mut self, mut blocks: u32) {
        while blocks > 0 {
            match self.free.front_mut() {
                None => return,
                Some(Free::Blank(left)) => {
                    let taken = blocks.min(*left);
                    *left -= taken;
                    blocks -= taken;
                    if *left == 0 {
                        self.free.pop_front();
                    }
                }
                Some(&mut Free::Page(name, stamp)) => {
                    let idle = |page: &&mut Page| page.holders == 0 && page.stamp == stamp;
                    let Some(page) = self.pages.get_mut(&name).filter(idle) else {
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

    /// Lets a request have the blocks of its first `after` tokens, of which it had those of
    /// `before`. Returns how many more blocks are held then; fewer, where it shares what it had.
    pub(super) fn occupy(&mut self, request: u64, before: u32, after: u32) -> i64 {
        let chain = self.requests.get(&request).copied();
        let Shared { held, idle } = self.share(request, before, after);
        let growth = i64::from(after.div_ceil(self.block_size))
            - i64::from(before.div_ceil(self.block_size))
            - i64::from(held);
        // What it finds of its own takes free blocks as all others do.
        let own = if before == 0 { self.pages.remove(&Name::Own(request)) } else { None };
        let own = own.map_or(0, |page| page.blocks);
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
    fn share(&mut self, request: u64, before: u32, after: u32) -> Shared {
        let mut shared = Shared::default();
        let Some(mut chain) = self.requests.get(&request).copied() else { return shared };
        let each = self.page_blocks();
        let [had, wanted] = [before, after].map(|tokens| self.paged(Some(&chain), tokens));
        for at in had / each..wanted.div_ceil(each) {
            let place = usize::try_from(at).unwrap_or(usize::MAX);
            let Some(&name) = self.names(&chain).get(place) else { break };
            let mine = had.saturating_sub(at * each);
            let wanted = (wanted - at * each).min(each);
            let new = Page { blocks: 0, holders: 0, stamp: 0 };
            let page = self.pages.entry(Name::Page(chain.prompt.world, name)).or_insert(new);
            let there = page.blocks.min(wanted);
            let mut left = 0;
            if page.holders > 0 {
                shared.held += there.saturating_sub(mine);
            } else {
                shared.idle += there;
                left = page.blocks - there;
                page.blocks = there;
            }
            page.blocks = page.blocks.max(wanted);
            if place >= chain.held {
                page.holders += 1;
                chain.held = place + 1;
            }
            self.blank(left);
        }
        self.requests.insert(request, chain);
        shared
    }

    /// Takes back the blocks of a request's first tokens, and returns how many are free again.
    pub(super) fn release(&mut self, request: u64, tokens: u32, back: Return) -> u32 {
        let chain = self.requests.get(&request).copied();
        let mut freed = tokens.div_ceil(self.block_size) - self.paged(chain.as_ref(), tokens);
        let own = match back {
            Return::Later => tokens / self.block_size - self.paged(chain.as_ref(), tokens),
            Return::Never => 0,
        };
        self.append(Free::Blank(freed - own));
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

    /// Puts a page that nobody holds behind all that is free.
    fn retire(&mut self, name: Name, blocks: u32) {
        self.stamps += 1;
        self.pages.insert(name, Page { blocks, holders: 0, stamp: self.stamps });
        self.free.push_back(Free::Page(name, self.stamps));
    }

    fn append(&mut self, free: Free) {
        if !matches!(free, Free::Blank(0)) {
            self.free.push_back(free);
        }
    }

    /// Makes blocks the first to be handed out.
    fn blank(&mut self, blocks: u32) {
        if blocks > 0 {
            self.free.push_front(Free::Blank(blocks));
        }
    }
}

/// Blocks that were there when a request took hold of its pages.
#[derive(Clone, Copy, Debug, Default)]
struct Shared {
    /// Of pages that others hold.
    held: u32,
    /// Of pages that nobody held.
    idle: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulate::replica::settings::{Admission, Settings, StepTime};
    use crate::simulate::replica::{Event, Finished};

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

    /// All blocks are held or free, and nobody holds what nobody knows.
    fn check(engine: &Replica) {
        let cache = engine.prefix.as_ref().unwrap();
        let free = cache.free.iter().map(|free| match free {
            Free::Blank(blocks) => *blocks,
            Free::Page(name, stamp) => {
                let idle = |page: &&Page| page.holders == 0 && page.stamp == *stamp;
                cache.pages.get(name).filter(idle).map_or(0, |page| page.blocks)
            }
        });
        assert_eq!(free.sum::<u32>() + engine.kv_blocks_used, engine.settings.kv_blocks);
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
        // Three pages of four blocks and a fourth, and a block of the answer of each.
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
        // Two pages are blank, so one of the second prompt must go: the last.
        assert_eq!(ran(&mut engine, 3, 2, 192), 192);
        assert_eq!(ran(&mut engine, 4, 0, 128), 16);
        assert_eq!(ran(&mut engine, 5, 1, 128), 64, "its beginning was kept");
    }

    proptest! {
        #[test]
        fn no_block_is_lost_whoever_shares_it_and_whoever_is_preempted_or_leaves(
            kv_blocks in 24..80_u32,
            requests in prop::collection::vec(
                (0..60_000_u64, 0..6_u32, 1..300_u32, 1..60_u32, 0..12_u64),
                1..60,
            ),
        ) {
            let prompts: [&[u32]; 6] =
                [&[1, 2, 3, 4, 5], &[1, 2, 6, 7, 8], &[1, 9, 10], &[11], &[], &[1, 2, 3, 4, 12]];
            let mut engine = engine(kv_blocks, &prompts);
            let (mut at, mut finished, mut aborted) = (Micros::ZERO, 0, 0);
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
            finished += events.iter().filter(|it| matches!(it, Event::Finished(_))).count();
            prop_assert_eq!((finished + aborted, engine.kv_blocks_used), (submitted, 0));
        }

        #[test]
        fn prompts_that_have_nothing_in_common_are_served_as_without_a_cache(
            requests in prop::collection::vec((0..60_000_u64, 1..300_u32, 1..60_u32), 1..40),
        ) {
            // Without preemptions, after which a request finds its own blocks.
            let mut with = engine(1_000, &[]);
            let mut without = Replica::new(with.settings).unwrap();
            let mut at = Micros::ZERO;
            for ((gap, prompt, output), id) in requests.into_iter().zip(0..) {
                at += Micros::new(gap);
                let request = Request { id, prompt, output };
                with.submit(at, request).unwrap();
                without.submit(at, request).unwrap();
            }
            let lives = |mut engine: Replica| {
                let mut events = Vec::new();
                engine.advance_to(Micros::new(u64::MAX), &mut events);
                events.into_iter().filter_map(|event| match event {
                    Event::Finished(life) => Some(life),
                    Event::FirstToken { .. } | Event::Preempted { .. } => None,
                }).collect::<Vec<Finished>>()
            };
            prop_assert_eq!(lives(with), lives(without));
        }
    }
}
