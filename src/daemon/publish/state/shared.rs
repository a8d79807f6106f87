//! The document in which the leader shares its decisions: desired replicas with their ages and
//! reasons.
//!
//! Unlike the state file, it contains everything that the surfaces show of a decision. So every
//! replica shows the same.
//!
//! # Shape
//!
//! ```json
//! {"version":2,"generation":812,"written":"2026-11-21T09:30:01Z","decisions":[{
//!   "variant":{"namespace":"shop","variant":"llama-l4"},"model":"meta/llama",
//!   "at":"2026-11-21T09:30:00Z","age":0.4,"basis":"fresh","current":2,"bounds":{"min":1,"max":8},
//!   "steps":[{"stage":"analyze","before":2,"after":3,"code":"spare_low",
//!             "reason":{"load":{"spare_low":{"kv":[0.045,0.1],"queue":null}}}}]}]}
//! ```
//!
//! If this release does not know a stage or a reason, the decision remains usable. An unknown stage
//! is replaced by the stage before it, and its name moves to the text. If only the code of a reason
//! is readable, the text names the replica that decided.
//!
//! A decision may also contain the `memory` of its variant, from which a newly started replica
//! continues. It has the shape of the state file, without the observations behind the learned
//! coefficients.
//!
//! `undecided` has the pins and pauses of variants without a decision, each as the `memory` of its
//! variant. Releases that do not know the list skip it.
//!
//! The document is written compressed ([`packed`]). If it is too large, parts of it are left out,
//! first from the namespaces that take most ([`fit`]).

mod error;
mod fit;
mod line;
mod packed;
mod receipt;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::PublishedDecision;
use crate::publish::state::shared::error::VERSION;
use crate::publish::state::shared::line::{SharedLine, SharedStep};
use crate::publish::state::{DecodedMemory, SavedDecision};
use plimsoll_core::decide::Decision;
use plimsoll_core::fleet::{ModelKey, ModelName, VariantKey};
use plimsoll_core::pipeline::saved::{MemoryLength, VariantMemory};
use plimsoll_core::units::Replicas;

pub use crate::publish::state::shared::error::SharedError;
pub use crate::publish::state::shared::fit::{PackedDecisions, ShareEntry};
pub use crate::publish::state::shared::line::ShareDetail;
pub use crate::publish::state::shared::receipt::{DocumentArrival, DocumentReceipt};

/// The decisions of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedDecisions {
    /// The generation of the decisions.
    pub generation: u64,
    /// The age of the document when it arrived. The desired replicas were in effect when it was
    /// written.
    pub lain: Duration,
    /// The decisions, with their ages on this replica's monotonic clock.
    pub decided: BTreeMap<VariantKey, PublishedDecision>,
    /// The memories of the writer. Of variants without a decision, it shares only overrides.
    pub memories: SharedMemories,
    /// Names that only the writer's release knows: words in its memories, and stages and reasons in
    /// its steps. `memories` does not contain these words.
    pub strange: BTreeSet<String>,
}

/// The memory of each variant, with its model.
pub type SharedMemories = BTreeMap<VariantKey, (ModelKey, VariantMemory)>;

impl SavedDecision {
    /// Creates the state of a variant from shared memories; `None` if they have none of it. Its
    /// desired replicas were in effect until `written`, on data of the instant `at`.
    pub(crate) fn shared(
        variant: VariantKey,
        desired: Replicas,
        at: Timestamp,
        written: Timestamp,
        memories: &SharedMemories,
    ) -> Option<Self> {
        let (model, memory) = memories.get(&variant)?.clone();
        let strange = Vec::new();
        Some(Self { variant, model, desired, at, written, memory: Some(memory), strange })
    }
}

#[derive(Serialize, Deserialize)]
struct SharedDocument {
    version: u32,
    generation: u64,
    written: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    undecided: Vec<UndecidedLine>,
    /// The last field, because lines are written into its end.
    decisions: Vec<SharedLine>,
}

/// The override of a variant without a decision.
#[derive(Serialize, Deserialize)]
struct UndecidedLine {
    variant: VariantKey,
    model: ModelName,
    memory: Value,
}

// === writing ===

/// Writes the decisions at `now` on the wall clock and `elapsed` on the monotonic clock. Includes
/// the memories of the variants and the data of the reasons, as far as they fit into `bytes_max`.
/// `undecided` are the overrides of variants without a decision.
///
/// # Errors
///
/// Not even a document without decisions fits.
pub fn encode<'a>(
    now: Timestamp,
    elapsed: Duration,
    generation: u64,
    decided: impl IntoIterator<Item = ShareEntry<'a>>,
    undecided: &SharedMemories,
    bytes_max: usize,
) -> Result<PackedDecisions, SharedError> {
    let mut lines = Vec::with_capacity(undecided.len());
    for (variant, (model, memory)) in undecided {
        lines.push(UndecidedLine::told(variant, model, memory)?);
    }

    let document = SharedDocument {
        version: VERSION,
        generation,
        written: now,
        undecided: lines,
        decisions: Vec::new(),
    };
    let empty = serde_json::to_string(&document).map_err(SharedError::Shape)?;

    fit::fit(elapsed, decided, &empty, bytes_max)
}

impl UndecidedLine {
    fn told(
        variant: &VariantKey,
        model: &ModelKey,
        memory: &VariantMemory,
    ) -> Result<Self, SharedError> {
        let kept = DecodedMemory::new(memory, MemoryLength::Windows);
        Ok(Self {
            variant: variant.clone(),
            model: model.model.clone(),
            memory: serde_json::to_value(kept).map_err(SharedError::Shape)?,
        })
    }
}

// === reading ===

/// Reads the decisions from a compressed document.
///
/// # Errors
///
/// The bytes are not such a document, or contain an invalid decision. In that case none of it is
/// used.
pub fn decode_packed(
    packed: &[u8],
    receipt: DocumentReceipt<'_>,
) -> Result<SharedDecisions, SharedError> {
    let text = packed::unpack(packed).map_err(SharedError::Unpacking)?;
    let document = serde_json::from_slice(&text).map_err(SharedError::Shape)?;
    read(document, receipt)
}

/// Reads the decisions from a document that is not compressed, as earlier releases write it.
///
/// # Errors
///
/// The text is not such a document, or contains an invalid decision. In that case none of it is
/// used.
pub fn decode(text: &str, receipt: DocumentReceipt<'_>) -> Result<SharedDecisions, SharedError> {
    let document = serde_json::from_str(text).map_err(SharedError::Shape)?;
    read(document, receipt)
}

fn read(
    document: SharedDocument,
    receipt: DocumentReceipt<'_>,
) -> Result<SharedDecisions, SharedError> {
    let SharedDocument { version, generation, written, undecided, decisions } = document;
    if version != VERSION {
        return Err(SharedError::Content(format!("version {version}, not {VERSION}")));
    }
    let lain = match receipt.arrival {
        DocumentArrival::Prompt => Duration::ZERO,
        // If the writer's clock is ahead, the difference is negative and counts as zero.
        DocumentArrival::Late => {
            Duration::try_from(receipt.now.duration_since(written)).unwrap_or_default()
        }
    };

    let mut shared = SharedDecisions { generation, lain, ..SharedDecisions::default() };
    for UndecidedLine { variant, model: name, memory } in undecided {
        let Some(known) = remembered(memory, &mut shared.strange) else { continue };
        let model = ModelKey { namespace: variant.namespace.clone(), model: name };
        shared.memories.insert(variant, (model, known));
    }

    for (index, mut line) in decisions.into_iter().enumerate() {
        let told = line.memory.take();
        let memory = told.and_then(|value| remembered(value, &mut shared.strange));
        shared.strange.extend(line.steps.iter().flat_map(SharedStep::strange));

        let decided = line.decided(receipt, lain).ok_or_else(|| {
            SharedError::Content(format!("decisions[{index}] has no steps or an impossible age"))
        })?;
        let Decision { variant, model, .. } = &decided.decision;
        shared.memories.extend(memory.map(|memory| (variant.clone(), (model.clone(), memory))));
        shared.decided.insert(variant.clone(), decided);
    }

    Ok(shared)
}

/// Reads a memory, and adds the words that only another release knows to `strange`; `None` if this
/// release cannot read it.
fn remembered(value: Value, strange: &mut BTreeSet<String>) -> Option<VariantMemory> {
    let read: DecodedMemory = serde_json::from_value(value).ok()?;
    strange.extend(read.strange);
    Some(read.memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::publish::Published;
    use crate::publish::PublishedVariant;
    use plimsoll_core::decide::{Basis, NoData, Reason, Stage, Step};
    use plimsoll_core::fleet::{Namespace, VariantName};
    use plimsoll_core::observe::Observation;
    use plimsoll_core::pipeline::saved::{
        OutputLength, Recommendation, SavedAnalyzers, SavedHistory, SavedKnowledge, SavedLimit,
    };
    use plimsoll_core::units::Tokens;

    const NOW: Duration = Duration::from_secs(5000);

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn step(stage: Stage, before: u32, after: u32, reason: Reason) -> Step {
        Step { stage, before: n(before), after: n(after), reason }
    }

    fn published_variant(index: u32) -> PublishedVariant {
        published_in("shop", index)
    }

    fn published_in(namespace: &str, index: u32) -> PublishedVariant {
        let mut spec = fixtures::variant(&format!("variant-{index}"));
        spec.key.namespace = Namespace::new(namespace).unwrap();
        let decision = Decision {
            variant: spec.key.clone(),
            model: spec.model_key(),
            current: Some(n(2)),
            bounds: spec.bounds,
            steps: vec![
                step(Stage::Hold, 2, 2, Reason::NoData(NoData::NoFreshReplica)),
                step(Stage::Bounds, 2, 3, Reason::BelowMin(n(3))),
            ],
            inputs_at: at(-7),
            basis: Basis::Held,
            admissible: None,
            sizing: None,
        };

        let elapsed = NOW.saturating_sub(Duration::from_secs(7));
        let decided = Some(PublishedDecision { decision, at: at(-7), elapsed });
        let observation = Observation::of_nothing(spec.bounds);
        PublishedVariant { spec, observation, report: None, decided, undecided: None }
    }

    fn published(count: u32) -> Published {
        let variants = (0..count)
            .map(published_variant)
            .map(|variant| (variant.spec.key.clone(), variant))
            .collect();
        Published { generation: 12, variants, ..Published::default() }
    }

    /// Decodes a document that arrives at once.
    fn read(text: &str) -> SharedDecisions {
        decode(text, receipt(DocumentArrival::Prompt, 0)).unwrap()
    }

    fn receipt(arrival: DocumentArrival, clock: i64) -> DocumentReceipt<'static> {
        DocumentReceipt { elapsed: Duration::from_hours(25), now: at(clock), arrival, holder: "a" }
    }

    fn said(decision: &Decision) -> Vec<(String, &'static str)> {
        decision.steps.iter().map(|it| (it.to_string(), it.reason.label())).collect()
    }

    /// Encodes all decisions without memories, as the text that is compressed.
    fn written(published: &Published) -> String {
        text(&packed(published, None, usize::MAX).unwrap().packed)
    }

    fn text(packed: &[u8]) -> String {
        String::from_utf8(packed::unpack(packed).unwrap()).unwrap()
    }

    /// Encodes all decisions, each with this memory. Those of `shop` are in effect.
    fn packed(
        published: &Published,
        memory: Option<&VariantMemory>,
        bytes_max: usize,
    ) -> Result<PackedDecisions, SharedError> {
        let entries = published.variants.iter().filter_map(|(key, variant)| {
            let decided = variant.decided.as_ref()?;
            let in_effect = key.namespace.as_str() == "shop";
            Some(ShareEntry { decided, memory, in_effect })
        });
        let undecided = SharedMemories::new();
        encode(at(0), NOW, published.generation, entries, &undecided, bytes_max)
    }

    #[test]
    fn what_is_read_shows_what_was_written() {
        let before = published(3);
        let packed = packed(&before, None, usize::MAX).unwrap().packed;
        let shared = decode_packed(&packed, receipt(DocumentArrival::Prompt, 0)).unwrap();
        assert_eq!(shared, read(&text(&packed)), "an earlier release wrote it as text");
        assert_eq!((shared.generation, shared.decided.len()), (12, 3));

        for (key, decided) in &shared.decided {
            let original = before.variants[key].decided.as_ref().unwrap();
            let read = &decided.decision;
            let wrote = &original.decision;
            assert_eq!(read.desired(), wrote.desired());
            assert_eq!(read.unconstrained(), wrote.unconstrained());
            assert_eq!((read.basis, read.bounds), (wrote.basis, wrote.bounds));
            assert_eq!((read.current, read.inputs_at), (wrote.current, wrote.inputs_at));
            assert_eq!((decided.at, said(read)), (original.at, said(wrote)));
        }
    }

    /// Returns the age, in seconds, of the first decision in the document.
    fn age(text: &str, arrival: DocumentArrival, clock: i64) -> u64 {
        let receipt = receipt(arrival, clock);
        let shared = decode(text, receipt).unwrap();
        let decided = shared.decided.into_values().next().unwrap();
        receipt.elapsed.saturating_sub(decided.elapsed).as_secs()
    }

    #[test]
    fn an_age_never_depends_on_two_clocks_when_the_document_came_at_once() {
        let text = written(&published(1));
        for clock in [-3600, 0, 3600] {
            assert_eq!(
                age(&text, DocumentArrival::Prompt, clock),
                7,
                "our clock is {clock} s ahead"
            );
        }

        assert_eq!(
            age(&text, DocumentArrival::Late, 600),
            607,
            "it has lain there for ten minutes"
        );
        assert_eq!(age(&text, DocumentArrival::Late, -600), 7, "an age is never made smaller");
    }

    /// Encodes these decisions into one byte less than their packed size until nothing is left.
    fn shrink(published: &Published, memory: &VariantMemory) -> Vec<PackedDecisions> {
        let mut all = vec![packed(published, Some(memory), usize::MAX).unwrap()];
        while let Some(last) = all.last()
            && let Ok(next) = packed(published, Some(memory), last.packed.len() - 1)
        {
            all.push(next);
        }
        all
    }

    #[test]
    fn what_is_too_large_is_shortened_and_loses_numbers_last() {
        let all = shrink(&published(100), &memory());
        let details: Vec<_> = all.iter().flat_map(|it| it.variants.iter()).collect();
        // These reasons have no ranking, so a document without any is not shorter.
        for detail in ShareDetail::ALL.into_iter().filter(|it| *it != ShareDetail::Unranked) {
            assert!(details.contains(&(&detail, &100)), "{detail:?} is tried: {details:?}");
        }

        for next in &all {
            let shared = decode_packed(&next.packed, receipt(DocumentArrival::Prompt, 0)).unwrap();
            assert_eq!(shared.decided.len() + next.left_out.len(), 100);
            assert_eq!(shared.decided.len(), next.variants.values().sum::<usize>());
            if !next.left_out.is_empty() {
                assert!(next.variants.iter().all(|(it, n)| *it == ShareDetail::Codes || *n == 0));
            }
            for decided in shared.decided.values() {
                assert_eq!(decided.decision.desired(), n(3));
                assert_eq!(decided.decision.because().unwrap().reason.label(), "below_min");
            }
        }
        let most = all.iter().map(|it| it.left_out.len()).max();
        assert!(most >= Some(90), "to the end: {most:?}");
    }

    #[test]
    fn a_large_namespace_takes_nothing_from_a_small_one() {
        let mut fleet = published(3);
        for index in 0..500 {
            let variant = published_in("large", index);
            fleet.variants.insert(variant.spec.key.clone(), variant);
        }

        let all = shrink(&fleet, &memory());
        let halved = all.iter().find(|it| it.left_out.len() > 200).unwrap();
        let shared = decode_packed(&halved.packed, receipt(DocumentArrival::Prompt, 0)).unwrap();
        let small = |key: &&VariantKey| key.namespace.as_str() == "shop";
        assert_eq!(shared.decided.keys().filter(small).count(), 3);

        let first = all.iter().find(|it| it.variants[&ShareDetail::Whole] < 503).unwrap();
        assert_eq!(first.variants[&ShareDetail::Whole], 3, "the large one alone is shortened");
        let shared = decode_packed(&first.packed, receipt(DocumentArrival::Prompt, 0)).unwrap();
        assert_eq!(shared.memories.values().filter(|(_, it)| *it == memory()).count(), 3);
    }

    #[test]
    fn what_is_in_effect_is_left_out_after_what_is_new() {
        let fleet = published(200);
        let old = VariantName::new("variant-7").unwrap();
        let entries = || {
            fleet.variants.iter().map(|(key, variant)| {
                let decided = variant.decided.as_ref().unwrap();
                ShareEntry { decided, memory: None, in_effect: key.variant == old }
            })
        };

        let mut room = usize::MAX;
        let mut cut = 0;
        while let Ok(PackedDecisions { packed, left_out, .. }) =
            encode(at(0), NOW, 1, entries(), &SharedMemories::new(), room)
        {
            assert!(left_out.len() == 200 || left_out.iter().all(|key| key.variant != old));
            cut += usize::from((1..200).contains(&left_out.len()));
            room = packed.len() - 1;
        }
        assert!(cut > 0, "some documents leave out a part");
    }

    #[test]
    fn a_document_that_has_no_room_for_anything_is_refused() {
        let refused = packed(&published(100), None, 10).unwrap_err().to_string();
        assert!(refused.contains("the maximum is 10"), "{refused}");
    }

    fn memory() -> VariantMemory {
        let mut pieces = Vec::new();
        for second in 0..10 {
            pieces.push((at(second), Tokens::new(1000.5).unwrap()));
        }

        let accelerator = None;
        let gpus = None;
        let output = OutputLength::Short;
        let limit = SavedLimit { accelerator, gpus, output, pieces };
        let span = Recommendation { first: at(-300), last: at(-7), replicas: n(2) };
        VariantMemory {
            history: SavedHistory { recommended: vec![span], ..SavedHistory::default() },
            learned: SavedAnalyzers {
                tokens: Some(SavedKnowledge { record: None, limits: vec![limit] }),
                ..SavedAnalyzers::default()
            },
            ..VariantMemory::default()
        }
    }

    fn known(shared: &SharedDecisions) -> Option<VariantMemory> {
        shared.memories.values().next().map(|(_, it)| it.clone())
    }

    #[test]
    fn what_is_remembered_is_shared_and_left_out_before_anything_that_is_shown() {
        let published = published(20);
        let memory = memory();
        let whole = text(&packed(&published, Some(&memory), usize::MAX).unwrap().packed);
        assert_eq!(known(&read(&whole)), Some(memory.clone()));

        for shorter in shrink(&published, &memory) {
            let text = text(&shorter.packed);
            let known = known(&read(&text));
            let in_detail = |detail| shorter.variants[&detail] > 0;
            if in_detail(ShareDetail::Windows) {
                assert_eq!(known, Some(memory.clone().told(MemoryLength::Windows)));
            }
            if in_detail(ShareDetail::Facts) {
                assert_eq!(known, None);
                assert_eq!(text, written(&published));
            }
        }
        // Another release may remember something else; the desired replicas stay the same.
        let foreign = whole.replace("\"recommended\"", "\"foreseen\"");
        let shared = read(&foreign);
        let mut rest = memory.clone();
        rest.history.recommended.clear();
        assert_eq!((shared.decided.len(), known(&shared)), (20, Some(rest)));
        assert_eq!(shared.strange, ["foreseen".to_owned()].into());
        let impossible = whole.replace("\"recommended\":[{", "\"recommended\":[-1e99,{");
        let shared = read(&impossible);
        assert_eq!((shared.decided.len(), known(&shared)), (20, None));
    }

    #[test]
    fn what_only_another_release_knows_costs_no_number_and_is_shown_as_it_is() {
        let before = published(1);
        let text = written(&before)
            .replacen("\"stage\":\"bounds\"", "\"stage\":\"quota\"", 1)
            .replacen("\"code\":\"below_min\"", "\"code\":\"over_quota\"", 1)
            .replacen("{\"below_min\":3}", "{\"over_quota\":[3]}", 1)
            .replacen("\"generation\"", "\"added\":[1],\"generation\"", 1);

        let shared = decode(&text, receipt(DocumentArrival::Prompt, 0)).unwrap();
        assert_eq!(shared.strange, ["over_quota".to_owned(), "quota".to_owned()].into());
        let decided = shared.decided.into_values().next().unwrap();
        assert_eq!(decided.decision.desired(), n(3));
        let said = said(&decided.decision);
        let (quota, label) = said.last().unwrap();
        assert_eq!(quota, "hold: 2 -> 3, quota: over_quota, decided by a");
        assert_eq!(*label, "told");

        let first = text.replacen("\"stage\":\"hold\"", "\"stage\":\"sense\"", 1);
        let shared = decode(&first, receipt(DocumentArrival::Prompt, 0)).unwrap();
        let decided = shared.decided.into_values().next().unwrap();
        assert!(decided.decision.because().is_some());
        assert_eq!(decided.decision.desired(), n(3));
    }

    #[test]
    fn what_cannot_be_is_refused_as_a_whole() {
        let good = written(&published(2));
        let bad = [
            "{}".to_owned(),
            "[".to_owned(),
            good.replacen("\"version\":2", "\"version\":1", 1),
            good.replacen("\"after\":3", "\"after\":3000000", 1),
            good.replacen("\"age\":7.0", "\"age\":-7.0", 1),
            good.replacen("\"min\":1", "\"min\":9", 1),
        ];

        for text in bad {
            assert_ne!(text, good, "the test has changed something");
            assert!(decode(&text, receipt(DocumentArrival::Prompt, 0)).is_err(), "{text}");
        }
    }
}
