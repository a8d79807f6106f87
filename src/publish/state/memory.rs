//! The shape of what is remembered of a variant, in the state file and in the leader's document.
//!
//! # Shape
//!
//! Instants are milliseconds since the epoch. What is not there is left out.
//!
//! ```json
//! {"latest":1795253460000,"recommended":[[1795253400000,1795253460000,3]],"changes":[[1795253340000,2]],
//!  "moved":[1795253340000,"up"],"turned":[1795253340000],"burst":[1795253340000,6,2.5],
//!  "waits":[1795253430000,3],"informed":{"tokens":1795253460000},
//!  "record":{"accelerator":"L4","kv_capacity":16000.0,"capacity":12800.0,"source":["measured",1795253460000]},
//!  "limits":[{"accelerator":"L4","output":"short","pieces":[[1795253400000,9000.0]]}],
//!  "curve":{"shape":[500.0,100.0,null],"readings":[[1795253460000,0.5,0.02]],"intercept":0.006,
//!    "line":["window",0.03,0.006],"capacity":900.0,"disagreements":0,"seen":1795253460000},
//!  "tuner":{"filter":{"state":[-5.1,-9.2,-13.8],"began":[-5.0,-9.0,-14.0],
//!    "covariance":[[0.01,0.0,0.0],[0.0,0.02,0.0],[0.0,0.0,0.5]]},"points":[[1.5,500.0,100.0,1.0,0.2,0.02,256,3.0,true]],
//!    "accepted":12,"rejected":0,"at":1795253460000},"named":["epp"]}
//! ```
//!
//! [`foresight`] and [`silence`] have shapes of their own. About 200 bytes without what was learned,
//! some two thousand with its conclusions and at most ten thousand with the observations that they
//! came from.

mod foresight;
mod silence;

use std::num::NonZeroU32;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fleet::Accelerator;
use crate::pipeline::saved::{
    Agreed, Analyzer, Burst, Direction, Fit, Memory, Moved, OutputLength, RequestShape,
    SavedChange, SavedCurve, SavedFilter, SavedHistory, SavedKnowledge, SavedLimit, SavedLine,
    SavedPoint, SavedReading, SavedRecord, SavedSpan, SavedTuner, SavedWait, Source,
};
use crate::publish::state::memory::foresight::ForesightLine;
use crate::publish::state::memory::silence::SilenceLine;
use crate::units::{Fraction, Replicas, TokenRate, Tokens};

/// Milliseconds since the epoch.
type Millis = i64;

/// What is remembered of a variant, as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latest: Option<Millis>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    recommended: Vec<(Millis, Millis, u32)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    changes: Vec<(Millis, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved: Option<(Millis, DirectionWord)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    turned: Vec<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<(Millis, u32, f64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<(Millis, Option<u32>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    informed: Option<Informed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    record: Option<RecordLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    curve: Option<CurveLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tuner: Option<TunerLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    foresight: Option<ForesightLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    silence: Option<SilenceLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    named: Vec<String>,
}

/// What a memory may say. Whatever else is there is another release's.
const WORDS: [&str; 15] = [
    "latest",
    "recommended",
    "changes",
    "moved",
    "turned",
    "burst",
    "waits",
    "informed",
    "record",
    "limits",
    "curve",
    "tuner",
    "foresight",
    "silence",
    "named",
];

/// Reads what is remembered. A word that is not known here costs what it says and nothing else, and
/// is told; a known one that says what cannot be costs all.
pub(super) fn read(line: Value) -> Option<(Memory, Vec<String>)> {
    let Value::Object(line) = line else { return None };
    let (known, strange): (serde_json::Map<_, _>, serde_json::Map<_, _>) =
        line.into_iter().partition(|(word, _)| WORDS.contains(&word.as_str()));
    let line: MemoryLine = serde_json::from_value(Value::Object(known)).ok()?;
    Some((line.memory()?, strange.into_iter().map(|(word, _)| word).collect()))
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DirectionWord {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Informed {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    throughput: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queueing: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    foresight: Option<Millis>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accelerator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpus: Option<NonZeroU32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv_capacity: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<f64>,
    source: (SourceWord, Millis),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SourceWord {
    Measured,
    Declared,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accelerator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpus: Option<NonZeroU32>,
    output: OutputWord,
    pieces: Vec<(Millis, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutputWord {
    Unknown,
    Short,
    Medium,
    Long,
}

/// Tokens of a prompt and of an answer, and the share of prompts that is in the prefix cache.
type ShapeLine = (Option<f64>, Option<f64>, Option<f64>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveLine {
    shape: ShapeLine,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference: Option<ShapeLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    readings: Vec<(Millis, f64, f64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    intercept: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<(FitWord, f64, f64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<f64>,
    disagreements: u32,
    seen: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FitWord {
    Window,
    InterceptKept,
    InterceptAssumed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TunerLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    filter: Option<FilterLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    points: Vec<PointLine>,
    accepted: u32,
    rejected: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<Millis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterLine {
    state: [f64; 3],
    began: [f64; 3],
    covariance: [[f64; 3]; 3],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    split: Option<f64>,
}

/// Requests a second, tokens in and out, the variation of prompts, seconds to the first token and
/// between tokens, places in the batch, observations, and whether the filter has agreed.
type PointLine = (f64, f64, f64, f64, f64, f64, NonZeroU32, f64, bool);

// === writing ===

impl From<&Memory> for MemoryLine {
    fn from(memory: &Memory) -> Self {
        let Memory { history, waits, informed, knowledge, curve, tuner, taught_at, .. } = memory;
        let Memory { foresight, silence, named, .. } = memory;
        let SavedHistory { recommended, changes, moved, turned, burst, latest } = history;
        let SavedKnowledge { record, limits } = knowledge;
        let at = |analyzer| {
            let known = informed.iter().find(|(known, _)| *known == analyzer);
            known.map(|(_, at)| at.as_millisecond())
        };
        let span = |it: &SavedSpan| {
            (it.first.as_millisecond(), it.last.as_millisecond(), it.replicas.count())
        };
        let moved = moved.map(|Moved { at, direction }| {
            let word = match direction {
                Direction::Up => DirectionWord::Up,
                Direction::Down => DirectionWord::Down,
            };
            (at.as_millisecond(), word)
        });
        Self {
            latest: latest.map(Timestamp::as_millisecond),
            recommended: recommended.iter().map(span).collect(),
            changes: changes.iter().map(|it| (it.at.as_millisecond(), it.before.count())).collect(),
            moved,
            turned: turned.iter().map(|at| at.as_millisecond()).collect(),
            burst: burst.map(|it| (it.at.as_millisecond(), it.asked.count(), it.mean)),
            waits: waits.map(|it| (it.since.as_millisecond(), it.wanted.map(Replicas::count))),
            informed: (!informed.is_empty()).then(|| Informed {
                tokens: at(Analyzer::Tokens),
                throughput: at(Analyzer::Throughput),
                queueing: at(Analyzer::Queueing),
                foresight: at(Analyzer::Foresight),
            }),
            record: record.as_ref().map(RecordLine::from),
            limits: limits.iter().map(LimitLine::from).collect(),
            curve: curve.as_ref().map(CurveLine::from),
            tuner: tuner.as_ref().map(|tuner| TunerLine::new(tuner, *taught_at)),
            foresight: foresight.as_ref().map(ForesightLine::from),
            silence: silence.as_ref().map(SilenceLine::from),
            named: named.clone(),
        }
    }
}

impl From<&SavedRecord> for RecordLine {
    fn from(record: &SavedRecord) -> Self {
        let SavedRecord { accelerator, gpus, kv_capacity, capacity, source } = record;
        Self {
            accelerator: accelerator.as_ref().map(|it| it.as_str().to_owned()),
            gpus: *gpus,
            kv_capacity: kv_capacity.map(Tokens::tokens),
            capacity: capacity.map(Tokens::tokens),
            source: match source {
                Source::Measured(at) => (SourceWord::Measured, at.as_millisecond()),
                Source::Declared(at) => (SourceWord::Declared, at.as_millisecond()),
            },
        }
    }
}

impl From<&SavedLimit> for LimitLine {
    fn from(limit: &SavedLimit) -> Self {
        let SavedLimit { accelerator, gpus, output, pieces } = limit;
        let piece = |(at, tokens): &(Timestamp, Tokens)| (at.as_millisecond(), tokens.tokens());
        Self {
            accelerator: accelerator.as_ref().map(|it| it.as_str().to_owned()),
            gpus: *gpus,
            output: match output {
                OutputLength::Unknown => OutputWord::Unknown,
                OutputLength::Short => OutputWord::Short,
                OutputLength::Medium => OutputWord::Medium,
                OutputLength::Long => OutputWord::Long,
            },
            pieces: pieces.iter().map(piece).collect(),
        }
    }
}

fn shape_line(shape: &RequestShape) -> ShapeLine {
    let RequestShape { prompt, output, prefix_hits } = shape;
    (prompt.map(Tokens::tokens), output.map(Tokens::tokens), prefix_hits.map(Fraction::fraction))
}

impl From<&SavedCurve> for CurveLine {
    fn from(curve: &SavedCurve) -> Self {
        let reading = |it: &SavedReading| (it.at.as_millisecond(), it.kv, it.itl);
        let line = |SavedLine { fit, slope, intercept }| {
            let word = match fit {
                Fit::Window => FitWord::Window,
                Fit::InterceptKept => FitWord::InterceptKept,
                Fit::InterceptAssumed => FitWord::InterceptAssumed,
            };
            (word, slope, intercept)
        };
        Self {
            shape: shape_line(&curve.shape),
            reference: curve.reference.as_ref().map(shape_line),
            readings: curve.readings.iter().map(reading).collect(),
            intercept: curve.intercept,
            line: curve.line.map(line),
            capacity: curve.capacity.map(TokenRate::tokens_per_second),
            disagreements: curve.disagreements,
            seen: curve.seen_at.as_millisecond(),
        }
    }
}

impl TunerLine {
    fn new(tuner: &SavedTuner, taught_at: Option<Timestamp>) -> Self {
        let SavedTuner { filter, points, accepted, rejected } = tuner;
        let filter = filter.map(|SavedFilter { state, began, covariance, split }| FilterLine {
            state,
            began,
            covariance,
            split,
        });
        let point = |point: &SavedPoint| {
            let [arrival, input, output, variation, ttft, itl] = point.numbers();
            let agreed = point.agreed == Agreed::Yes;
            (arrival, input, output, variation, ttft, itl, point.batch, point.count, agreed)
        };
        Self {
            filter,
            points: points.iter().map(point).collect(),
            accepted: *accepted,
            rejected: *rejected,
            at: taught_at.map(Timestamp::as_millisecond),
        }
    }
}

// === reading ===

impl MemoryLine {
    /// What is remembered; `None` where it says what cannot be.
    fn memory(self) -> Option<Memory> {
        let Self { informed, record, limits, curve, tuner, foresight, silence, named, .. } = &self;
        let Informed { tokens, throughput, queueing, foresight: foreseen } =
            informed.unwrap_or_default();
        let known = [
            (Analyzer::Tokens, tokens),
            (Analyzer::Throughput, throughput),
            (Analyzer::Queueing, queueing),
            (Analyzer::Foresight, foreseen),
        ];
        let known = known.into_iter().filter_map(|(analyzer, at)| Some((analyzer, at?)));
        let taught_at = tuner.as_ref().and_then(|tuner| tuner.at);
        Some(Memory {
            history: self.history()?,
            waits: match self.waits {
                Some((since, wanted)) => {
                    let wanted = match wanted {
                        Some(wanted) => Some(Replicas::new(wanted)?),
                        None => None,
                    };
                    Some(SavedWait { wanted, since: instant(since)? })
                }
                None => None,
            },
            informed: known
                .map(|(analyzer, at)| Some((analyzer, instant(at)?)))
                .collect::<Option<_>>()?,
            knowledge: SavedKnowledge {
                record: some(record.as_ref(), RecordLine::record).ok()?,
                limits: limits.iter().map(LimitLine::limit).collect::<Option<_>>()?,
            },
            curve: some(curve.as_ref(), CurveLine::curve).ok()?,
            tuner: some(tuner.as_ref(), TunerLine::tuner).ok()?,
            taught_at: some(taught_at, instant).ok()?,
            foresight: some(foresight.as_ref(), ForesightLine::foresight).ok()?,
            silence: some(silence.as_ref(), SilenceLine::silence).ok()?,
            named: named.clone(),
        })
    }

    fn history(&self) -> Option<SavedHistory> {
        let Self { latest, recommended, changes, moved, turned, burst, .. } = self;
        let span = |&(first, last, count): &(Millis, Millis, u32)| {
            let (first, last) = (instant(first)?, instant(last)?);
            Some(SavedSpan { first, last, replicas: Replicas::new(count)? })
        };
        let change = |&(at, before): &(Millis, u32)| {
            Some(SavedChange { at: instant(at)?, before: Replicas::new(before)? })
        };
        let moved = some(*moved, |(at, word)| {
            let direction = match word {
                DirectionWord::Up => Direction::Up,
                DirectionWord::Down => Direction::Down,
            };
            Some(Moved { at: instant(at)?, direction })
        });
        let burst = some(*burst, |(at, asked, mean)| {
            Some(Burst { at: instant(at)?, asked: Replicas::new(asked)?, mean })
        });
        Some(SavedHistory {
            recommended: recommended.iter().map(span).collect::<Option<_>>()?,
            changes: changes.iter().map(change).collect::<Option<_>>()?,
            moved: moved.ok()?,
            turned: turned.iter().map(|at| instant(*at)).collect::<Option<_>>()?,
            burst: burst.ok()?,
            latest: some(*latest, instant).ok()?,
        })
    }
}

impl RecordLine {
    fn record(&self) -> Option<SavedRecord> {
        Some(SavedRecord {
            accelerator: some(self.accelerator.as_deref(), Accelerator::new).ok()?,
            gpus: self.gpus,
            kv_capacity: some(self.kv_capacity, Tokens::new).ok()?,
            capacity: some(self.capacity, Tokens::new).ok()?,
            source: match self.source {
                (SourceWord::Measured, at) => Source::Measured(instant(at)?),
                (SourceWord::Declared, at) => Source::Declared(instant(at)?),
            },
        })
    }
}

impl LimitLine {
    fn limit(&self) -> Option<SavedLimit> {
        let piece = |&(at, tokens): &(Millis, f64)| Some((instant(at)?, Tokens::new(tokens)?));
        Some(SavedLimit {
            accelerator: some(self.accelerator.as_deref(), Accelerator::new).ok()?,
            gpus: self.gpus,
            output: match self.output {
                OutputWord::Unknown => OutputLength::Unknown,
                OutputWord::Short => OutputLength::Short,
                OutputWord::Medium => OutputLength::Medium,
                OutputWord::Long => OutputLength::Long,
            },
            pieces: self.pieces.iter().map(piece).collect::<Option<_>>()?,
        })
    }
}

fn shape((prompt, output, prefix_hits): ShapeLine) -> Option<RequestShape> {
    Some(RequestShape {
        prompt: some(prompt, Tokens::new).ok()?,
        output: some(output, Tokens::new).ok()?,
        prefix_hits: some(prefix_hits, Fraction::new).ok()?,
    })
}

impl CurveLine {
    fn curve(&self) -> Option<SavedCurve> {
        let reading =
            |&(at, kv, itl): &(Millis, f64, f64)| Some(SavedReading { at: instant(at)?, kv, itl });
        let line = |(word, slope, intercept)| {
            let fit = match word {
                FitWord::Window => Fit::Window,
                FitWord::InterceptKept => Fit::InterceptKept,
                FitWord::InterceptAssumed => Fit::InterceptAssumed,
            };
            SavedLine { fit, slope, intercept }
        };
        Some(SavedCurve {
            shape: shape(self.shape)?,
            reference: some(self.reference, shape).ok()?,
            readings: self.readings.iter().map(reading).collect::<Option<_>>()?,
            intercept: self.intercept,
            line: self.line.map(line),
            capacity: some(self.capacity, TokenRate::new).ok()?,
            disagreements: self.disagreements,
            seen_at: instant(self.seen)?,
        })
    }
}

impl TunerLine {
    fn tuner(&self) -> Option<SavedTuner> {
        let Self { filter, points, accepted, rejected, at: _ } = self;
        let filter = filter.map(|FilterLine { state, began, covariance, split }| SavedFilter {
            state,
            began,
            covariance,
            split,
        });
        let point =
            |&(arrival, input, output, variation, ttft, itl, batch, count, agreed): &PointLine| {
                let agreed = if agreed { Agreed::Yes } else { Agreed::NotYet };
                let numbers = [arrival, input, output, variation, ttft, itl];
                SavedPoint::of_numbers(numbers, batch, count, agreed)
            };
        Some(SavedTuner {
            filter,
            points: points.iter().map(point).collect::<Option<_>>()?,
            accepted: *accepted,
            rejected: *rejected,
        })
    }
}

fn instant(millis: Millis) -> Option<Timestamp> {
    Timestamp::from_millisecond(millis).ok()
}

/// What cannot be.
struct Impossible;

/// What may be missing, and what cannot be where it is there.
fn some<T, U>(
    value: Option<T>,
    read: impl FnOnce(T) -> Option<U>,
) -> Result<Option<U>, Impossible> {
    value.map(|value| read(value).ok_or(Impossible)).transpose()
}
