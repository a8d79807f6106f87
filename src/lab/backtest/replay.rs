//! A trace, decided again by the pipeline of this release, and what differs from what it said then.
//!
//! From the start of a process everything is known, and every tick is compared. A part whose
//! predecessor is not there begins with what was known by then, without the windows; it is followed
//! for [`SETTLING`] with the numbers that were in force, and compared from then on.
//!
//! Where a decision differs, the number that was in force stays so: it is what the replicas
//! followed. What comes after is so judged by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::backtest::BacktestError;
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::{Number, Pipeline, Policy};
use plimsoll_daemon::config::{self, Files, Surroundings};
use plimsoll_daemon::publish::state::Saved;
use plimsoll_daemon::trace::{Begins, End, Reader, Record, Said, Tick, Why};

/// How long a trace is followed before it is compared, where its beginning is not there: the longest
/// window that a configuration may have, and the hour of a flap budget.
const SETTLING: SignedDuration = SignedDuration::from_hours(1);

/// Decides again.
pub(crate) struct Replay {
    pipeline: Option<Pipeline>,
    /// Run and part of the file before, if it was read to its end.
    before: Option<(Timestamp, u32)>,
    /// What the next record is to the pipeline, where it is what was known at a beginning.
    checkpoint: Checkpoint,
    restored: Vec<Saved>,
    settles: Settles,
    report: Report,
    shown_max: usize,
}

/// What is known at the beginning of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checkpoint {
    /// There is none to come.
    Passed,
    /// It comes, and is known already.
    Known,
    /// It comes, and is all that is known.
    Needed,
}

/// Whether ticks are compared yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settles {
    /// They are.
    No,
    /// From some time after the first one on.
    Soon,
    /// From then on.
    Until(Timestamp),
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Ticks that were read.
    pub(crate) ticks: u64,
    /// The instants of the first and the last.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// Decisions that were compared.
    pub(crate) compared: u64,
    /// Of those, how many differ.
    pub(crate) changed: u64,
    /// Decisions of ticks that were only followed.
    pub(crate) followed: u64,
    /// What is worth to know of the files.
    notes: Vec<String>,
    differences: Vec<Difference>,
}

/// A decision that is not what it was.
#[derive(Clone, Debug)]
struct Difference {
    tick: u64,
    at: Timestamp,
    variant: VariantKey,
    then: Option<Said>,
    now: Option<Said>,
}

// === impl Replay ===

impl Replay {
    /// A replay that keeps so many differences to show.
    pub(crate) fn new(shown_max: usize) -> Self {
        Self {
            pipeline: None,
            before: None,
            checkpoint: Checkpoint::Passed,
            restored: Vec::new(),
            settles: Settles::No,
            report: Report::default(),
            shown_max,
        }
    }

    /// A file begins.
    pub(crate) fn begin(&mut self, reader: &Reader) {
        let began = reader.began();
        let follows = self.before == Some((began.run, began.part.saturating_sub(1)));
        let (name, by) = (reader.path().display(), &began.by);
        match began.begins {
            Begins::Rotation if follows => {
                self.checkpoint = Checkpoint::Known;
                return;
            }
            Begins::Process => {
                self.checkpoint = Checkpoint::Passed;
                self.settles = Settles::No;
                self.note(format!("{name}: from the start of {by}"));
            }
            Begins::Rotation | Begins::Gap => {
                self.checkpoint = Checkpoint::Needed;
                self.settles = Settles::Soon;
                self.note(format!(
                    "{name}: what was before is not there, so the first hour is followed and not \
                     compared"
                ));
            }
        }
        self.pipeline = None;
        self.restored.clear();
    }

    /// A file has been read to its end.
    pub(crate) fn end(&mut self, reader: &Reader) {
        let began = reader.began();
        self.before = Some((began.run, began.part)).filter(|_| reader.end() == Some(End::Whole));
        if let Some(End::Truncated(offset)) = reader.end() {
            self.note(format!(
                "{}: ends inside the block that begins at byte {offset}; it was read up to its last \
                 whole record",
                reader.path().display()
            ));
        }
    }

    /// A file has nothing whole in it.
    pub(crate) fn skip(&mut self, path: &Path) {
        self.note(format!(
            "{}: ends before its first whole record, so it was skipped",
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
    /// The configuration in it is not valid, or there is none before a tick.
    pub(crate) fn take(&mut self, path: &Path, record: Record) -> Result<(), BacktestError> {
        match record {
            Record::Config(yaml) => {
                let policy = policy(path, &yaml)?;
                match &mut self.pipeline {
                    Some(pipeline) => pipeline.set_policy(policy),
                    None => self.pipeline = Some(Pipeline::new(policy)),
                }
            }
            Record::Restored(saved) => {
                let checkpoint = std::mem::replace(&mut self.checkpoint, Checkpoint::Passed);
                if checkpoint != Checkpoint::Known {
                    self.restored.extend(saved);
                }
            }
            Record::Tick(tick) => self.tick(path, *tick)?,
        }
        Ok(())
    }

    fn tick(&mut self, path: &Path, tick: Tick) -> Result<(), BacktestError> {
        let headless = || BacktestError::Headless { path: path.to_owned() };
        let pipeline = self.pipeline.as_mut().ok_or_else(headless)?;
        let Tick { now, inputs, follows, said } = tick;
        for saved in self.restored.drain(..) {
            saved.resume(now, pipeline);
        }
        let found = match &follows {
            Some(numbers) => pipeline.follow(now, &inputs, numbers),
            None => pipeline.tick(now, &inputs),
        };
        let again = Said::of(&found);
        if follows.is_none() {
            pipeline.take_over(now, &corrected(&said, &again));
        }
        self.report.ticks += 1;
        let first = self.report.span.map_or(now, |(first, _)| first);
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
        then: BTreeMap<VariantKey, Said>,
        mut now: BTreeMap<VariantKey, Said>,
    ) {
        let report = &mut self.report;
        let mut differs = |variant, then, now| {
            report.changed += 1;
            if report.differences.len() < self.shown_max {
                let tick = report.ticks;
                report.differences.push(Difference { tick, at, variant, then, now });
            }
        };
        report.compared += then.len() as u64;
        for (variant, then) in then {
            let now = now.remove(&variant);
            if now.as_ref() != Some(&then) {
                differs(variant, Some(then), now);
            }
        }
        for (variant, new) in now {
            differs(variant, None, Some(new));
        }
    }

    /// What came of it.
    pub(crate) fn finish(self) -> Report {
        self.report
    }
}

/// The numbers that were in force and are not what was decided again.
fn corrected(
    then: &BTreeMap<VariantKey, Said>,
    again: &BTreeMap<VariantKey, Said>,
) -> BTreeMap<VariantKey, Number> {
    let number = |(key, said): (&VariantKey, &Said)| {
        let desired = said.desired?;
        let same = again.get(key).is_some_and(|it| it.desired == Some(desired));
        let number = Number { desired, inputs_at: said.inputs_at? };
        (!same).then(|| (key.clone(), number))
    };
    then.iter().filter_map(number).collect()
}

/// The policy of a configuration that is in a trace.
fn policy(path: &Path, yaml: &str) -> Result<Policy, BacktestError> {
    let loaded = config::parse(yaml, &surroundings(path));
    let loaded =
        loaded.map_err(|source| BacktestError::Config { path: path.to_owned(), source })?;
    Ok(loaded.config.policy)
}

/// What the configuration in a trace is read in: another machine's, whole as it is.
pub(crate) fn surroundings(path: &Path) -> Surroundings {
    Surroundings {
        origin: format!("the configuration in {}", path.display()),
        base: "/".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    }
}

// === impl Report ===

impl fmt::Display for Report {
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
            (_, 0) => format!("{compared} decisions, all as they were"),
            (_, _) => format!("{changed} of {compared} decisions are not what they were"),
        };
        f.write_str(&verdict)?;
        if *followed > 0 {
            write!(f, "; {followed} were followed and not compared")?;
        }
        writeln!(f)?;
        if *followed > 0 && *changed > 0 {
            writeln!(
                f,
                "The beginning of the trace is not there, so what differs may come of what was \
                 learned before it"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tick, at, variant, then, now } = self;
        let number = |said: &Option<Said>| match said.as_ref().map(|said| said.desired) {
            None => "not there".to_owned(),
            Some(None) => "no number".to_owned(),
            Some(Some(desired)) => desired.to_string(),
        };
        writeln!(f, "{at} {variant}, tick {tick}: {} then, {} now", number(then), number(now))?;
        let then = parts(then.as_ref());
        let now = parts(now.as_ref());

        for part in &then {
            let mark = if now.contains(part) { ' ' } else { '-' };
            writeln!(f, "  {mark} {}", part.line_beside(&now))?;
        }
        for part in now.iter().filter(|part| !then.contains(part)) {
            writeln!(f, "  + {}", part.line_beside(&then))?;
        }
        Ok(())
    }
}

/// One part of what was said of a variant.
#[derive(PartialEq)]
enum SaidPart<'s> {
    /// Why it has its number.
    Why(&'s Why),
    /// It was kept from before.
    Held,
    /// When the data that it rests on was current.
    DataOf(Timestamp),
}

/// What was said of a variant, in parts.
fn parts(said: Option<&Said>) -> Vec<SaidPart<'_>> {
    let Some(Said { desired: _, held, inputs_at, why }) = said else { return Vec::new() };
    let mut parts: Vec<SaidPart<'_>> = why.iter().map(SaidPart::Why).collect();
    parts.extend(held.then_some(SaidPart::Held));
    parts.extend(inputs_at.map(SaidPart::DataOf));
    parts
}

impl SaidPart<'_> {
    /// The part as a line, with its codes and values where another has the same sentence for others.
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
    use plimsoll_core::decide::{Reason, Stage, Step};
    use plimsoll_core::fleet::{Namespace, VariantName};
    use plimsoll_core::units::{Replicas, Seconds};

    #[test]
    fn values_that_differ_are_shown_where_their_sentences_are_the_same() {
        let said = |seconds| {
            let reason = Reason::Settling { remaining: Seconds::new(seconds).unwrap() };
            let number = Replicas::ONE;
            let step = Step { stage: Stage::Guard, before: number, after: number, reason };
            let why = vec![Why::Step(Box::new(step))];
            Said { desired: Some(number), held: true, inputs_at: None, why }
        };
        let difference = Difference {
            tick: 6,
            at: Timestamp::UNIX_EPOCH,
            variant: VariantKey {
                namespace: Namespace::new("shop").unwrap(),
                variant: VariantName::new("a").unwrap(),
            },
            then: Some(said(9.25)),
            now: Some(said(9.5)),
        };

        let sentence = "guard: 1, not lowered: these replicas must be measured for another 10 s";
        let data = |seconds| said(seconds).why[0].data();
        let shown = [
            "1970-01-01T00:00:00Z shop/a, tick 6: 1 then, 1 now".to_owned(),
            format!("  - {sentence} {}", data(9.25)),
            "    kept from before".to_owned(),
            format!("  + {sentence} {}", data(9.5)),
        ];
        assert_eq!(difference.to_string().lines().collect::<Vec<_>>(), shown);
        assert!(shown[1].contains("9.25") && shown[3].contains("9.5"), "{shown:?}");
    }
}
