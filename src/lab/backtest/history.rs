//! Creates a trace from a Prometheus, for a fleet without a recorded trace.
//!
//! The past is queried in consecutive spans. Each span is made into ticks, decided, and written
//! before the next query. So memory is bounded by one span, and an interrupted run continues after
//! the last written tick.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};

use crate::backtest::args::SourceArgs;
use crate::backtest::error::BacktestError;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::replay::surroundings;
use crate::backtest::screen::Progress;
use crate::backtest::tally::Tally;
use plimsoll_core::fleet::{Fleet, ReplicaKey, ReplicaName, VariantKey};
use plimsoll_core::observe::{Inputs, ReplicaListing, Scale, Scrape, ScrapeRoute};
use plimsoll_core::pipeline::Pipeline;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::collect::prometheus::{
    PastReadings, PrometheusHistory, PrometheusSettings, QueryFailure, QueryOutcome,
    SeriesSelection, VariantQuery,
};
use plimsoll_daemon::collect::targets::TargetSource;
use plimsoll_daemon::config::{self, Config, Files, VariantConfig, VariantTargets};
use plimsoll_daemon::publish::state::SavedDecision;
use plimsoll_daemon::trace::{
    self, FileEnd, FileStart, RecordedResult, TraceError, TraceFiles, TraceLimits, TraceReader,
    TraceRecord, TraceTick, TraceWriter,
};

/// The span of one query; halved if the response is too large.
const SPAN: SignedDuration = SignedDuration::from_mins(10);

/// The attempts of a query whose failure may be temporary, and the wait before the second one: one
/// second, doubled each time. Together half a minute.
const TRIES: u32 = 6;
const WAIT: Duration = Duration::from_secs(1);

/// The trace keeps all fetched data.
const LIMITS: TraceLimits = TraceLimits { file_size: u64::MAX, files: usize::MAX };

/// The parameters of the queries.
pub(crate) struct HistoryQuery {
    from: Timestamp,
    to: Timestamp,
    step: SignedDuration,
    settings: PrometheusSettings,
    wanted: Vec<VariantQuery>,
    fleet: Arc<Fleet>,
    /// The configuration file, and the effective configuration as YAML.
    file: PathBuf,
    config: String,
    lookback: SignedDuration,
    /// The folder to keep the trace in.
    save: Option<PathBuf>,
}

/// The state of the trace so far.
struct TraceProgress {
    pipeline: Pipeline,
    writer: TraceWriter,
    /// The time of the last tick.
    reached: Timestamp,
    /// The results of the last tick, if an earlier run has made it.
    said: BTreeMap<VariantKey, RecordedResult>,
    /// The time at which each replica was last seen.
    seen: BTreeMap<ReplicaKey, Timestamp>,
    tally: Tally,
}

/// Fetches the past from a Prometheus and writes it as a trace into a folder. Returns a tally of
/// the readings.
///
/// # Errors
///
/// The folder cannot be used, Prometheus does not respond or has no data, or an interrupt ends it.
pub(crate) fn fetch(
    asked: &HistoryQuery,
    folder: &Path,
    clock: Clock,
    interrupt: &Interrupt,
) -> anyhow::Result<Tally> {
    let mut made = TraceProgress::go_on(asked, folder, interrupt)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = download(asked, &mut made, clock) => Some(done),
            () = interrupt.wait() => None,
        }
    });

    done.unwrap_or_else(|| Err(asked.interrupted(made.reached).into()))?;
    if made.tally.is_empty() {
        let from = asked.from;
        let to = made.reached;
        return Err(BacktestError::Nothing { from, to, tally: made.tally.to_string() }.into());
    }

    Ok(made.tally)
}

async fn download(
    asked: &HistoryQuery,
    made: &mut TraceProgress,
    clock: Clock,
) -> anyhow::Result<()> {
    let total = asked.to.duration_since(made.reached).as_secs().max(0).unsigned_abs();
    let progress = Progress::new(total);
    let began = made.reached;
    let mut history = PrometheusHistory::new(asked.settings.clone());
    let mut span = SPAN;
    // A remainder shorter than a step is left out, because no tick may be in the future.
    while asked.to.duration_since(made.reached) >= asked.step {
        let latest = made.reached.saturating_add(span).unwrap_or(asked.to).min(asked.to);
        // Ticks are one step apart, so a span ends with a tick.
        let steps = whole_steps(latest.duration_since(made.reached), asked.step);
        let end = made.reached.saturating_add(asked.step.saturating_mul(steps)).unwrap_or(latest);

        let past = match ask(asked, &mut history, (made.reached, end), clock).await {
            Err(failure) if is_too_large(failure.outcome) && span > asked.step => {
                span = (span / 2).max(asked.step);
                continue;
            }
            past => past.map_err(|failure| BacktestError::Prometheus {
                reached: made.reached,
                why: format!("{}: {}", failure.outcome.label(), failure.detail),
            })?,
        };

        if let Some(missing) = &past.missing {
            progress.say(&format!("from {} to {end}: {missing}", made.reached));
        }

        made.tally.take(&past.scrapes, past.details);
        made.take(asked, past.scrapes, end)?;
        progress.reached(made.reached.duration_since(began).as_secs().unsigned_abs());
    }

    made.writer.end()?;
    progress.end();
    Ok(())
}

fn whole_steps(span: SignedDuration, step: SignedDuration) -> i32 {
    let steps = span.as_nanos() / step.as_nanos().max(1);
    i32::try_from(steps).unwrap_or(i32::MAX).max(1)
}

/// Sends a query, and retries it if the failure may be temporary.
async fn ask(
    asked: &HistoryQuery,
    history: &mut PrometheusHistory,
    span: (Timestamp, Timestamp),
    clock: Clock,
) -> Result<PastReadings, QueryFailure> {
    let mut wait = WAIT;
    let mut tries = 1;

    loop {
        match history.between(&asked.wanted, span.0, span.1, clock.elapsed()).await {
            Err(failure) if tries < TRIES && may_pass(failure.outcome) => {
                tokio::time::sleep(wait).await;
                tries += 1;
                wait *= 2;
            }
            answer => return answer,
        }
    }
}

/// Returns true if a retry of the same query may succeed.
const fn may_pass(outcome: QueryOutcome) -> bool {
    matches!(
        outcome,
        QueryOutcome::Refused
            | QueryOutcome::Timeout
            | QueryOutcome::Connection
            | QueryOutcome::RateLimited
            | QueryOutcome::ServerError
            | QueryOutcome::Truncated
            // The server may reject the first query because it is a POST; the next one is a GET.
            | QueryOutcome::Rejected
    )
}

/// Returns true if a shorter span may succeed.
const fn is_too_large(outcome: QueryOutcome) -> bool {
    matches!(
        outcome,
        QueryOutcome::TooLarge | QueryOutcome::TooManySeries | QueryOutcome::QueryError
    )
}

// === impl HistoryQuery ===

impl HistoryQuery {
    /// The parameters from the command line; a folder may already have the beginning of the trace.
    ///
    /// # Errors
    ///
    /// The arguments, the configuration or the folder cannot be used.
    pub(crate) fn new(
        args: &SourceArgs,
        url: &str,
        folder: &Path,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let file = args.config.as_ref().ok_or_else(|| unusable("--prometheus needs --config"))?;
        // The daemon's paths for state, traces and certificates do not matter for a backtest.
        let config = config::load(file, Files::OfPolicy)?.config;
        let said = args.from.as_ref().ok_or_else(|| unusable("--prometheus needs --from"))?;
        let from = match when(said, now).map_err(|why| unusable(&format!("--from {why}")))? {
            When::At(instant) => instant,
            // A later run of the same command keeps the start of the first run, and adds the time
            // since.
            When::Ago(instant) => began(folder)?.unwrap_or(instant),
        };
        let to = match &args.to {
            Some(given) => {
                match when(given, now).map_err(|why| unusable(&format!("--to {why}")))? {
                    When::At(instant) | When::Ago(instant) => instant,
                }
            }
            None => now,
        };

        let step = SignedDuration::try_from(args.step).unwrap_or(SignedDuration::MAX);
        if to.duration_since(from) < step {
            return Err(unusable("--to must be at least one step later than --from").into());
        }

        let known = config.prometheus.clone().ok_or_else(|| {
            unusable("the configuration has no section prometheus, which is needed for queries")
        })?;
        let settings = PrometheusSettings { url: url.trim_end_matches('/').to_owned(), ..known };
        let lookback = SignedDuration::try_from(settings.lookback).unwrap_or(SPAN);
        let wanted = config.variants.iter().map(wanted).collect::<Result<_, _>>()?;
        let fleet = Arc::new(Fleet::new(config.variants.iter().map(|it| it.spec.clone())));

        Ok(Self {
            from,
            to,
            step,
            settings,
            wanted,
            fleet,
            file: file.clone(),
            config: config.print(),
            lookback,
            save: args.save.clone(),
        })
    }

    /// The error for an interrupt after this instant was reached.
    fn interrupted(&self, reached: Timestamp) -> BacktestError {
        BacktestError::Interrupted(match &self.save {
            Some(folder) => format!(
                "; data up to {reached:.0} is kept in {}, and the same command resumes there",
                folder.display()
            ),
            None => "; nothing is kept without --save".to_owned(),
        })
    }

    /// The configuration of the trace, and its source.
    pub(crate) fn config(&self) -> (&Path, &str) {
        (&self.file, &self.config)
    }
}

fn unusable(problem: &str) -> BacktestError {
    BacktestError::Unusable(problem.to_owned())
}

/// A time from the command line.
enum When {
    /// A fixed instant, independent of the time at which the command runs.
    At(Timestamp),
    /// An instant relative to the time at which the command runs.
    Ago(Timestamp),
}

fn when(text: &str, now: Timestamp) -> Result<When, String> {
    if text == "now" {
        return Ok(When::Ago(now));
    }
    if let Some(duration) = config::duration(text) {
        let ago = SignedDuration::try_from(duration).map_err(|error| error.to_string())?;
        return now.checked_sub(ago).map(When::Ago).map_err(|error| error.to_string());
    }

    text.parse().map(When::At).map_err(|_| {
        format!(
            "{text:?} is neither an instant such as 2026-11-21T09:00:00Z nor a time ago such as 6h"
        )
    })
}

/// The start of an earlier run into this folder; `None` if there was none.
fn began(folder: &Path) -> anyhow::Result<Option<Timestamp>> {
    if !fs::exists(folder)? {
        return Ok(None);
    }
    let readers = files(folder)?;
    Ok(readers.first().map(|reader| reader.began().run))
}

/// The selector for the series of a variant's replicas.
fn wanted(variant: &VariantConfig) -> Result<VariantQuery, BacktestError> {
    let key = &variant.spec.key;
    let which = match &variant.targets {
        VariantTargets::Prometheus(labels) => SeriesSelection::Match(labels.clone()),
        VariantTargets::Listed(TargetSource::Static(addresses)) => {
            let replicas = addresses.iter().filter_map(|address| ReplicaName::new(address));
            SeriesSelection::Instances(replicas.map(|replica| replica_key(key, replica)).collect())
        }
        VariantTargets::Listed(_)
        | VariantTargets::ScaleTarget(_)
        | VariantTargets::Selector(_) => {
            return Err(BacktestError::Unusable(format!(
                "the past targets of the variant {key} are unknown; give it targets by their \
                 labels, such as targets: {{prometheus: {{match: {{job: {}}}}}}}",
                key.variant
            )));
        }
    };

    let mut models = vec![variant.spec.model.clone()];
    models.extend(variant.aliases.iter().cloned());
    Ok(VariantQuery { variant: key.clone(), models, which })
}

fn replica_key(variant: &VariantKey, replica: ReplicaName) -> ReplicaKey {
    ReplicaKey { variant: variant.clone(), replica, incarnation: None }
}

// === impl TraceProgress ===

impl TraceProgress {
    /// Continues an earlier run, or starts a new one.
    fn go_on(asked: &HistoryQuery, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let config: Config = config::parse(&asked.config, &surroundings(folder))?.config;
        let mut made = Self {
            pipeline: Pipeline::new(config.policy),
            writer: TraceWriter::new(folder.to_owned(), LIMITS, asked.from),
            reached: asked.from,
            said: BTreeMap::new(),
            seen: BTreeMap::new(),
            tally: Tally::new(&asked.fleet),
        };

        let made_before = fs::exists(folder)?;
        if made_before {
            mend(folder)?;
        }

        let readers = if made_before { files(folder)? } else { Vec::new() };
        let mut parts = 0;
        for mut reader in readers {
            if reader.began().run != asked.from {
                return Err(other(folder).into());
            }
            while let Some(record) = reader.record()? {
                interrupt.check()?;
                match record {
                    TraceRecord::Config(yaml) if yaml != asked.config => {
                        return Err(other(folder).into());
                    }
                    TraceRecord::Tick(tick) => made.again(asked, &tick, folder)?,
                    TraceRecord::Config(_) | TraceRecord::Restored(_) => {}
                }
            }

            parts = reader.began().part;
        }

        made.writer.go_on_after(parts);
        let begins = if parts == 0 { FileStart::Process } else { FileStart::Rotation };
        made.writer.begin(begins)?;
        made.writer.write(TraceRecord::Config(asked.config.clone()))?;
        if begins == FileStart::Rotation {
            let known = made.known(asked);
            made.writer.write(TraceRecord::Restored(known))?;
        }

        made.writer.flush()?;
        Ok(made)
    }

    /// Takes a tick that is already in the folder.
    fn again(
        &mut self,
        asked: &HistoryQuery,
        tick: &TraceTick,
        folder: &Path,
    ) -> Result<(), BacktestError> {
        let expected = self.reached.saturating_add(asked.step).unwrap_or(self.reached);
        if tick.now != expected {
            return Err(other(folder));
        }

        self.tally.take(&tick.inputs.scrapes, BTreeMap::new());
        self.notice(&tick.inputs.scrapes);
        self.said = RecordedResult::of(&self.pipeline.tick(tick.now, &tick.inputs));
        self.reached = tick.now;
        Ok(())
    }

    /// The state at the beginning of a part, for a reader that has only this part.
    fn known(&self, asked: &HistoryQuery) -> Vec<SavedDecision> {
        self.said.iter().filter_map(|(variant, said)| self.saved(asked, variant, said)).collect()
    }

    fn saved(
        &self,
        asked: &HistoryQuery,
        variant: &VariantKey,
        said: &RecordedResult,
    ) -> Option<SavedDecision> {
        let model = asked.fleet.get(variant)?.model_key();
        Some(SavedDecision {
            variant: variant.clone(),
            desired: said.desired?,
            at: said.inputs_at?,
            written: self.reached,
            memory: self.pipeline.memory(&model, variant),
            model,
            strange: Vec::new(),
        })
    }

    fn notice(&mut self, scrapes: &[Scrape]) {
        for scrape in scrapes {
            self.seen.insert(scrape.replica.clone(), scrape.at);
        }
    }

    /// Makes the ticks of a span.
    fn take(
        &mut self,
        asked: &HistoryQuery,
        scrapes: Vec<Scrape>,
        end: Timestamp,
    ) -> Result<(), TraceError> {
        let mut later = scrapes.into_iter().peekable();
        while self.reached < end {
            let now = self.reached.saturating_add(asked.step).unwrap_or(end);
            let mut own = Vec::new();
            while let Some(scrape) = later.next_if(|scrape| scrape.at <= now) {
                own.push(scrape);
            }

            self.notice(&own);
            own.sort_by(|a, b| (&a.replica, a.at).cmp(&(&b.replica, b.at)));
            let listings = self.listings(asked, now);
            let fleet = Arc::clone(&asked.fleet);
            let inputs = Inputs { fleet, listings, scrapes: own, ..Inputs::default() };
            let said = RecordedResult::of(&self.pipeline.tick(now, &inputs));
            let tick = TraceTick { now, inputs, follows: None, said };
            self.writer.write(TraceRecord::Tick(Box::new(tick)))?;
            self.reached = now;
        }

        self.writer.flush()
    }

    /// The replicas that were seen within the lookback.
    fn listings(
        &self,
        asked: &HistoryQuery,
        now: Timestamp,
    ) -> BTreeMap<VariantKey, ReplicaListing> {
        let mut listings: BTreeMap<VariantKey, ReplicaListing> = BTreeMap::new();
        for (replica, at) in &self.seen {
            if now.duration_since(*at) > asked.lookback {
                continue;
            }
            let listing =
                listings.entry(replica.variant.clone()).or_insert_with(|| ReplicaListing {
                    replicas: Vec::new(),
                    unready: Vec::new(),
                    scale: Scale::Targets,
                    way: ScrapeRoute::Relayed,
                    as_of: now,
                });

            listing.replicas.push(replica.clone());
        }

        listings
    }
}

fn other(folder: &Path) -> BacktestError {
    BacktestError::Unusable(format!(
        "{} has a trace of another time, step or configuration; name another folder",
        folder.display()
    ))
}

/// The files of an earlier run; an empty list for an empty folder. A file without a whole record is
/// removed, because the next part has its name.
fn files(folder: &Path) -> Result<Vec<TraceReader>, TraceError> {
    loop {
        match trace::files(&[folder.to_owned()]) {
            Ok(TraceFiles { readers, unbegun }) => {
                unbegun.iter().try_for_each(|path| remove(path))?;
                return Ok(readers);
            }
            Err(TraceError::Unbegun { path }) => remove(&path)?,
            Err(TraceError::Empty { .. }) => return Ok(Vec::new()),
            Err(problem) => return Err(problem),
        }
    }
}

/// Truncates records that an earlier run did not finish writing, which are fetched again.
fn mend(folder: &Path) -> Result<(), TraceError> {
    for mut reader in files(folder)? {
        while reader.record()?.is_some() {}
        let path = reader.path();
        match reader.end() {
            // Not even the first block is complete.
            Some(FileEnd::Truncated(0)) => remove(path)?,
            Some(FileEnd::Truncated(offset)) => {
                let file = File::options().write(true).open(path);
                let done = file.and_then(|file| file.set_len(offset));
                done.map_err(|source| failed(path, "mended", source))?;
            }
            Some(FileEnd::Whole) | None => {}
        }
    }

    Ok(())
}

fn remove(path: &Path) -> Result<(), TraceError> {
    fs::remove_file(path).map_err(|source| failed(path, "removed", source))
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> TraceError {
    TraceError::Io { path: path.to_owned(), action, source }
}
