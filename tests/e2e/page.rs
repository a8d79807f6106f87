//! The page of a vLLM replica that carries a given load: the simulator's own page, with the gauges
//! that the load makes.

use jiff::Timestamp;
use plimsoll::simulate::page::{self, EngineIdentity};
use plimsoll::simulate::replica::Replica;
use plimsoll::simulate::replica::settings::{Admission, Settings, StepTime};
use plimsoll::simulate::replica::stats::Stats;

/// The `Content-Type` of the page.
pub(crate) const CONTENT_TYPE: &str = page::CONTENT_TYPE;

/// The model that every engine serves.
pub(crate) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// Requests that a full replica has in its batch.
const BATCH: f64 = 50.0;

/// Blocks of the cache: enough for a usage to be told to a hundredth of a per cent.
const BLOCKS: u32 = 20_000;

/// An engine with room for so many requests in its batch.
pub(crate) fn settings(max_num_seqs: u32) -> Settings {
    Settings {
        step: StepTime::dense(10_000.0, 20.0, 20.0, 0.0),
        max_num_seqs,
        max_num_batched_tokens: 2_048,
        block_size: 16,
        kv_blocks: BLOCKS,
        admission: Admission::WholePrompt,
    }
}

/// Writes the page of a replica whose share of the load would fill `share` replicas. What does not
/// fit into the cache waits.
pub(crate) fn render(share: f64) -> String {
    render_of(MODEL, share)
}

/// The same of a replica that serves another model.
pub(crate) fn render_of(model: &str, share: f64) -> String {
    let (usage, overflow) = (share.clamp(0.0, 1.0), (share - 1.0).max(0.0));
    let idle = Replica::new(settings(64)).unwrap().snapshot();
    let stats = Stats {
        running: whole(usage * BATCH),
        waiting: whole(overflow * BATCH),
        kv_blocks_used: whole(usage * f64::from(BLOCKS)),
        ..idle
    };
    let started = Timestamp::UNIX_EPOCH;
    page::render(&EngineIdentity { model: model.to_owned(), started, ready: started }, &stats)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number that is not negative"
)]
fn whole(number: f64) -> u32 {
    number.round() as u32
}
