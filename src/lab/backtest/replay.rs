//! Decides a trace again with the pipeline of this release, and reports the differences.
//!
//! A trace from the start of a process is complete, so every tick is compared. A part whose
//! predecessor is missing begins with the state saved at that point, without the windows. Then the
//! replay follows the recorded desired replicas for [`SETTLING`], and compares from then on.
//!
//! If a decision differs, the replay continues with the recorded one, because the replicas
//! followed it. So each later decision is judged on its own.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::backtest::error::BacktestError;
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::repeat::TickScene;
use plimsoll_core::pipeline::{DesiredReplicas, Pipeline, Policy};
use plimsoll_daemon::config::{self, Files, Surroundings};
use plimsoll_daemon::publish::state::SavedDecision;
use plimsoll_daemon::trace::{
    FileEnd, FileStart, RecordedResult, ResultReason, TraceReader, TraceRecord, TraceTick,
};

/// The time that a trace without its beginning is followed before it is compared: the longest
/// configurable window, and the hour of a flap budget.
const SETTLING: SignedDuration = SignedDuration::from_hours(1);

/// The replay of a trace.
pub(crate) struct TraceReplay {
    pipeline: Option<Pipeline>,
    /// Run and part of the previous file, if it was read to its end.
    before: Option<(Timestamp, u32)>,
    /// The use of the next record, if it is the saved state at the beginning of a file.
    checkpoint: Checkpoint,
    restored: Vec<SavedDecision>,
    settles: Settles,
    report: ReplayReport,
    shown_max: usize,
    wanted: Option<Timestamp>,
    scene: Option<Box<TickScene>>,
}

/// The saved state at the beginning of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checkpoint {
    /// No saved state follows.
    Passed,
    /// It follows, and is already known.
    Known,
    /// It follows, and is the only known state.
    Needed,
}

/// The point from which ticks are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settles {
    /// Now.
    No,
    /// Some time after the first tick.
    Soon,
    /// This instant.
    Until(Timestamp),
}

/// The result of the replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayReport {
    /// Ticks read.
    pub(crate) ticks: u64,
    /// The times of the first and the last tick.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// Decisions compared.
    pub(crate) compared: u64,
    /// Compared decisions that differ.
    pub(crate) changed: u64,
    /// Decisions of ticks that were not compared.
    pub(crate) followed: u64,
    /// Notes about the files.
    notes: Vec<String>,
    differences: Vec<Difference>,
}

/// A decision that differs from the recorded one.
#[derive(Clone, Debug)]
struct Difference {
    tick: u64,
    at: Timestamp,
    variant: VariantKey,
    then: Option<RecordedResult>,
    now: Option<RecordedResult>,
}

// === impl TraceReplay ===

impl TraceReplay {
    /// A replay that keeps at most this many differences.
    pub(crate) fn new(shown_max: usize) -> Self {
        Self {
            pipeline: None,
            before: None,
            checkpoint: Checkpoint::Passed,
            restored: Vec::new(),
            settles: Settles::No,
            report: ReplayReport::default(),
            shown_max,
            wanted: None,
            scene: None,
        }
    }

    /// A replay that keeps the first tick at or after an instant.
    pub(crate) fn until(at: Timestamp) -> Self {
        Self { wanted: Some(at), ..Self::new(0) }
    }

    /// The tick that was looked for, once it was read.
    pub(crate) fn scene(&mut self) -> Option<TickScene> {
        self.scene.take().map(|scene| *scene)
    }

    /// Begins a file.
    pub(crate) fn begin(&mut self, reader: &TraceReader) {
        let began = reader.began();
        let follows = self.before == Some((began.run, began.part.saturating_sub(1)));
        let name = reader.path().display();
        let by = &began.by;
        match began.begins {
            FileStart::Rotation if follows => {
                self.checkpoint = Checkpoint::Known;
                return;
            }
            FileStart::Process => {
                self.checkpoint = Checkpoint::Passed;
                self.settles = Settles::No;
                self.note(format!("{name}: from the start of {by}"));
            }
            FileStart::Rotation | FileStart::Gap => {
                self.checkpoint = Checkpoint::Needed;
                self.settles = Settles::Soon;
                self.note(format!(
                    "{name}: earlier records are missing, so the first hour is replayed and not \
                     compared"
                ));
            }
        }

        self.pipeline = None;
        self.restored.clear();
    }

    /// Ends a file.
    pub(crate) fn end(&mut self, reader: &TraceReader) {
        let began = reader.began();
        self.before =
            Some((began.run, began.part)).filter(|_| reader.end() == Some(FileEnd::Whole));

        if let Some(FileEnd::Truncated(offset)) = reader.end() {
            self.note(format!(
                "{}: ends inside the block that begins at byte {offset}; it was read up to its \
                 last complete record",
                reader.path().display()
            ));
        }
    }

    /// Skips a file without a whole record.
    pub(crate) fn skip(&mut self, path: &Path) {
        self.note(format!(
            "{}: ends before its first complete record, so it was skipped",
            path.display()
        ));
    }

    fn note(&mut self, note: String) {
        self.report.notes.push(note);
    }

    /// Takes the next record of a file.
    ///
    /// # Errors
    ///
    /// The configuration in the record is invalid, or missing before a tick.
    pub(crate) fn take(&mut self, path: &Path, record: TraceRecord) -> Result<(), BacktestError> {
        match record {
            TraceRecord::Config(yaml) => {
                let policy = policy(path, &yaml)?;
                match &mut self.pipeline {
                    Some(pipeline) => pipeline.set_policy(policy),
                    None => self.pipeline = Some(Pipeline::new(policy)),
                }
            }
            TraceRecord::Restored(saved) => {
                let checkpoint = std::mem::replace(&mut self.checkpoint, Checkpoint::Passed);
                if checkpoint != Checkpoint::Known {
                    self.restored.extend(saved);
                }
            }
            TraceRecord::Tick(tick) => self.tick(path, *tick)?,
        }

        Ok(())
    }

    fn tick(&mut self, path: &Path, tick: TraceTick) -> Result<(), BacktestError> {
        let pipeline = self
            .pipeline
            .as_mut()
            .ok_or_else(|| BacktestError::Headless { path: path.to_owned() })?;
        let TraceTick { now, inputs, follows, said } = tick;
        for saved in self.restored.drain(..) {
            saved.resume(now, pipeline);
        }
        if self.wanted.is_some_and(|wanted| now >= wanted) {
            self.wanted = None;
            let pipeline = pipeline.clone();
            self.scene = Some(Box::new(TickScene { pipeline, now, inputs, follows }));
            return Ok(());
        }

        let found = match &follows {
            Some(numbers) => pipeline.follow(now, &inputs, numbers),
            None => pipeline.tick(now, &inputs),
        };
        let again = RecordedResult::of(&found);
        if follows.is_none() {
            pipeline.take_over(now, &corrected(&said, &again));
        }

        self.report.ticks += 1;
        let first = self.report.span.map_or(now, |span| span.0);
        self.report.span = Some((first, now));
        if self.settles == Settles::Soon {
            self.settles = Settles::Until(now.saturating_add(SETTLING).unwrap_or(now));
        }
        match self.settles {
            Settles::Until(until) if now < until => {
                self.report.followed += said.len() as u64;
            }
            Settles::Until(_) | Settles::Soon | Settles::No => {
                self.settles = Settles::No;
                self.compare(now, said, again);
            }
        }

        Ok(())
    }

    fn compare(
        &mut self,
        at: Timestamp,
        then: BTreeMap<VariantKey, RecordedResult>,
        mut now: BTreeMap<VariantKey, RecordedResult>,
    ) {
        let tick = self.report.ticks;
        self.report.compared += then.len() as u64;
        for (variant, then) in then {
            let again = now.remove(&variant);
            if again.as_ref() != Some(&then) {
                self.differs(Difference { tick, at, variant, then: Some(then), now: again });
            }
        }

        for (variant, new) in now {
            self.differs(Difference { tick, at, variant, then: None, now: Some(new) });
        }
    }

    /// Counts a difference, and keeps it for the report if there is room.
    fn differs(&mut self, difference: Difference) {
        self.report.changed += 1;
        if self.report.differences.len() < self.shown_max {
            self.report.differences.push(difference);
        }
    }

    /// The result of the replay.
    pub(crate) fn finish(self) -> ReplayReport {
        self.report
    }
}

/// The recorded desired replicas that differ from the new decisions.
fn corrected(
    then: &BTreeMap<VariantKey, RecordedResult>,
    again: &BTreeMap<VariantKey, RecordedResult>,
) -> BTreeMap<VariantKey, DesiredReplicas> {
    let mut numbers = BTreeMap::new();
    for (key, said) in then {
        let (Some(desired), Some(inputs_at)) = (said.desired, said.inputs_at) else { continue };
        if again.get(key).and_then(|it| it.desired) != Some(desired) {
            numbers.insert(key.clone(), DesiredReplicas { desired, inputs_at, packed: None });
        }
    }

    numbers
}

/// The policy of a configuration in a trace.
fn policy(path: &Path, yaml: &str) -> Result<Policy, BacktestError> {
    config::parse(yaml, &surroundings(path))
        .map(|loaded| loaded.config.policy)
        .map_err(|source| BacktestError::Config { path: path.to_owned(), source })
}

/// The surroundings for parsing the configuration of a trace: it comes from another machine and is
/// complete.
pub(crate) fn surroundings(path: &Path) -> Surroundings {
    Surroundings {
        origin: format!("the configuration in {}", path.display()),
        base: "/".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    }
}

// === impl ReplayReport ===

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticks, span, compared, changed, followed, notes, differences } = self;
        for note in notes {
            writeln!(f, "{note}")?;
        }
        for difference in differences {
            write!(f, "{difference}")?;
        }

        let shown = differences.len() as u64;
        if *changed > shown {
            writeln!(f, "and {} more; --differences shows more of them", changed - shown)?;
        }

        let Some((first, last)) = span else { return writeln!(f, "The trace has no ticks") };
        write!(f, "{ticks} ticks from {first:.0} to {last:.0}: ")?;
        let verdict = match (compared, changed) {
            (0, _) => "nothing was compared".to_owned(),
            (_, 0) => format!("{compared} decisions, all match"),
            (_, _) => format!("{changed} of {compared} decisions differ"),
        };
        f.write_str(&verdict)?;
        if *followed > 0 {
            write!(f, "; {followed} were replayed and not compared")?;
        }

        writeln!(f)?;
        if *followed > 0 && *changed > 0 {
            writeln!(
                f,
                "The beginning of the trace is missing, so differences may come from values \
                 learned before it"
            )?;
        }

        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tick, at, variant, then, now } = self;
        let number_then = number(then.as_ref());
        let number_now = number(now.as_ref());
        writeln!(f, "{at} {variant}, tick {tick}: {number_then} then, {number_now} now")?;

        let old = parts(then.as_ref());
        let new = parts(now.as_ref());
        for part in &old {
            let mark = if new.contains(part) { ' ' } else { '-' };
            writeln!(f, "  {mark} {}", part.line_beside(&new))?;
        }

        for part in new.iter().filter(|part| !old.contains(part)) {
            writeln!(f, "  + {}", part.line_beside(&old))?;
        }

        Ok(())
    }
}

/// A part of the explanation of a variant's decision.
#[derive(PartialEq)]
enum SaidPart<'s> {
    /// The reason for the desired replicas.
    Why(&'s ResultReason),
    /// The desired replicas are held.
    Held,
    /// The time of the data behind it.
    DataOf(Timestamp),
}

/// The desired replicas of a decision, in words.
fn number(said: Option<&RecordedResult>) -> String {
    match said.map(|said| said.desired) {
        None => "not there".to_owned(),
        Some(None) => "no number".to_owned(),
        Some(Some(desired)) => desired.to_string(),
    }
}

/// The explanation of a variant's decision, in parts.
fn parts(said: Option<&RecordedResult>) -> Vec<SaidPart<'_>> {
    let Some(RecordedResult { desired: _, held, inputs_at, why }) = said else { return Vec::new() };
    let mut parts: Vec<SaidPart<'_>> = why.iter().map(SaidPart::Why).collect();
    parts.extend(held.then_some(SaidPart::Held));
    parts.extend(inputs_at.map(SaidPart::DataOf));
    parts
}

impl SaidPart<'_> {
    /// The part as a line. Adds its codes and values if another part has the same sentence.
    fn line_beside(&self, others: &[Self]) -> String {
        let line = self.to_string();
        let is_ambiguous = others.iter().any(|other| other != self && other.to_string() == line);
        match self {
            Self::Why(why) if is_ambiguous => format!("{line} {}", why.data()),
            Self::Why(_) | Self::Held | Self::DataOf(_) => line,
        }
    }
}

impl fmt::Display for SaidPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Why(why) => why.fmt(f),
            Self::Held => f.write_str("kept from before"),
            Self::DataOf(at) => write!(f, "on data of {at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use plimsoll_core::decide::{Reason, Stage, Step};
    use plimsoll_core::units::{Replicas, Seconds};

    /// A decision of one replica that is held for so many seconds.
    fn said(seconds: f64) -> RecordedResult {
        let reason = Reason::Settling { remaining: Seconds::new(seconds).unwrap() };
        let number = Replicas::ONE;
        let step = Step { stage: Stage::Guard, before: number, after: number, reason };
        let why = vec![ResultReason::Step(Box::new(step))];
        RecordedResult { desired: Some(number), held: true, inputs_at: None, why }
    }

    #[test]
    fn values_that_differ_are_shown_where_their_sentences_are_the_same() {
        let difference = Difference {
            tick: 6,
            at: Timestamp::UNIX_EPOCH,
            variant: fixtures::variant("a").key,
            then: Some(said(9.25)),
            now: Some(said(9.5)),
        };

        let sentence = "guard: 1, scale-down blocked for 10 s, until these replicas have been measured for long enough";
        let shown = [
            "1970-01-01T00:00:00Z shop/a, tick 6: 1 then, 1 now".to_owned(),
            format!("  - {sentence} {}", said(9.25).why[0].data()),
            "    kept from before".to_owned(),
            format!("  + {sentence} {}", said(9.5).why[0].data()),
        ];
        assert_eq!(difference.to_string().lines().collect::<Vec<_>>(), shown);
        assert!(shown[1].contains("9.25") && shown[3].contains("9.5"), "{shown:?}");
    }
}
