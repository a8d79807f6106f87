//! A trace of what a Prometheus has seen, of a fleet that nobody traced.
//!
//! The past is asked for in spans that follow each other, each made into ticks, decided, and written
//! before the next is asked for. So memory is bounded by a span, and what has been written is where
//! an interrupted run goes on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};

use crate::backtest::BacktestError;
use crate::backtest::args::BacktestArgs;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::replay::surroundings;
use crate::backtest::screen::Progress;
use crate::backtest::tally::Tally;
use plimsoll_core::fleet::{Fleet, ReplicaKey, ReplicaName, VariantKey};
use plimsoll_core::observe::{Inputs, Listing, Scale, Scrape, Way};
use plimsoll_core::pipeline::Pipeline;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::collect::prometheus::{
    Failure, History, Outcome, Past, Settings, Wanted, Which,
};
use plimsoll_daemon::collect::targets::Source;
use plimsoll_daemon::config::{self, Config, Files, Targets, Variant};
use plimsoll_daemon::publish::state::Saved;
use plimsoll_daemon::trace::{
    self, Begins, End, Found, Limits, Reader, Record, Said, Tick, TraceError, Writer,
};

/// A span that is asked for at once; halved where the answer is too large.
const SPAN: SignedDuration = SignedDuration::from_mins(10);

/// How often a question is asked again that fails for a reason that may pass, and how long is
/// waited before: one second, then twice as long each time. Together half a minute.
const TRIES: u32 = 6;
const WAIT: Duration = Duration::from_secs(1);

/// Nothing is removed of what was asked for.
const LIMITS: Limits = Limits { file_size: u64::MAX, files: usize::MAX };

/// What is asked for.
pub(crate) struct Asked {
    from: Timestamp,
    to: Timestamp,
    step: SignedDuration,
    settings: Settings,
    wanted: Vec<Wanted>,
    fleet: Arc<Fleet>,
    /// The file of the configuration, and the effective one as YAML.
    file: PathBuf,
    config: String,
    lookback: SignedDuration,
    /// The folder that is kept.
    save: Option<PathBuf>,
}

/// What has been made of it so far.
struct Made {
    pipeline: Pipeline,
    writer: Writer,
    /// The last tick.
    reached: Timestamp,
    /// What that said, of one that an earlier run has made.
    said: BTreeMap<VariantKey, Said>,
    /// When each replica was last seen.
    seen: BTreeMap<ReplicaKey, Timestamp>,
    tally: Tally,
}

/// Asks a Prometheus for the past and writes it as a trace into a folder. Says what it had.
///
/// # Errors
///
/// The folder cannot be used, Prometheus does not answer or has nothing, or somebody interrupts it.
pub(crate) fn fetch(
    asked: &Asked,
    folder: &Path,
    clock: Clock,
    interrupt: &Interrupt,
) -> anyhow::Result<Tally> {
    let mut made = Made::go_on(asked, folder, interrupt)?;
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
        let (from, to) = (asked.from, made.reached);
        return Err(BacktestError::Nothing { from, to, tally: made.tally.to_string() }.into());
    }
    Ok(made.tally)
}

async fn download(asked: &Asked, made: &mut Made, clock: Clock) -> anyhow::Result<()> {
    let total = asked.to.duration_since(made.reached).as_secs().max(0).unsigned_abs();
    let progress = Progress::new(total);
    let began = made.reached;
    let mut history = History::new(asked.settings.clone());
    let mut span = SPAN;
    // What is less than a step before the end is left, because no tick may be in the future.
    while asked.to.duration_since(made.reached) >= asked.step {
        let end = made.reached.saturating_add(span).unwrap_or(asked.to).min(asked.to);
        // Ticks are a step apart, so a span ends with one.
        let steps = whole_steps(end.duration_since(made.reached), asked.step);
        let end = made.reached.saturating_add(asked.step.saturating_mul(steps)).unwrap_or(end);
        let past = ask(asked, &mut history, (made.reached, end), clock).await;
        let past = match past {
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

/// Asks, and again where the reason of a failure may pass.
async fn ask(
    asked: &Asked,
    history: &mut History,
    span: (Timestamp, Timestamp),
    clock: Clock,
) -> Result<Past, Failure> {
    let mut wait = WAIT;
    let mut tries = 1;
    loop {
        match history.between(&asked.wanted, span, clock.elapsed()).await {
            Err(failure) if tries < TRIES && may_pass(failure.outcome) => {
                tokio::time::sleep(wait).await;
                tries += 1;
                wait *= 2;
            }
            answer => return answer,
        }
    }
}

/// Whether the same question may be answered in a moment.
const fn may_pass(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Refused
            | Outcome::Timeout
            | Outcome::Connection
            | Outcome::RateLimited
            | Outcome::ServerError
            | Outcome::Truncated
            // The first query that is refused by POST; the next one is sent by GET.
            | Outcome::Rejected
    )
}

/// Whether a shorter span may be answered.
const fn is_too_large(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::TooLarge | Outcome::TooManySeries | Outcome::QueryError)
}

// === impl Asked ===

impl Asked {
    /// What the command line asks for, where a folder may have the beginning of it.
    ///
    /// # Errors
    ///
    /// The arguments, the configuration or the folder cannot be used.
    pub(crate) fn new(
        args: &BacktestArgs,
        url: &str,
        folder: &Path,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let unusable = |problem: &str| BacktestError::Unusable(problem.to_owned());
        let file = args.config.as_ref().ok_or_else(|| unusable("--prometheus needs --config"))?;
        // Where the state, a trace and certificates of a daemon are does not matter here.
        let config = config::load(file, Files::OfPolicy)?.config;
        let from = args.from.as_ref().ok_or_else(|| unusable("--prometheus needs --from"))?;
        let from = match when(from, now).map_err(|why| unusable(&format!("--from {why}")))? {
            When::At(instant) => instant,
            // The same command later is about the time with which it began, and what came since.
            When::Ago(instant) => began(folder)?.unwrap_or(instant),
        };
        let to = match &args.to {
            Some(to) => match when(to, now).map_err(|why| unusable(&format!("--to {why}")))? {
                When::At(instant) | When::Ago(instant) => instant,
            },
            None => now,
        };
        let step = SignedDuration::try_from(args.step).unwrap_or(SignedDuration::MAX);
        if to.duration_since(from) < step {
            return Err(unusable("--to must be later than --from, by a step at least").into());
        }
        let known = config.prometheus.clone();
        let settings = known.ok_or_else(|| {
            unusable("the configuration has no section prometheus, which says how to ask")
        })?;
        let settings = Settings { url: url.trim_end_matches('/').to_owned(), ..settings };
        let lookback = SignedDuration::try_from(settings.lookback).unwrap_or(SPAN);
        let wanted = config.variants.iter().map(wanted).collect::<Result<_, _>>()?;
        let fleet = Arc::new(Fleet::new(config.variants.iter().map(|it| it.spec.clone())));
        let (file, config, save) = (file.clone(), config.print(), args.save.clone());
        Ok(Self { from, to, step, settings, wanted, fleet, file, config, lookback, save })
    }

    /// What to say where it was interrupted after this instant was reached.
    fn interrupted(&self, reached: Timestamp) -> BacktestError {
        BacktestError::Interrupted(match &self.save {
            Some(folder) => format!(
                "; what there was up to {reached:.0} is kept in {}, and the same command goes on \
                 from there",
                folder.display()
            ),
            None => "; nothing is kept without --save".to_owned(),
        })
    }

    /// The configuration that the trace will have, and where it is from.
    pub(crate) fn config(&self) -> (&Path, &str) {
        (&self.file, &self.config)
    }
}

/// A time as the command line gives it.
enum When {
    /// An instant, which is the same whenever the command is given.
    At(Timestamp),
    /// The instant so long ago as it says.
    Ago(Timestamp),
}

fn when(text: &str, now: Timestamp) -> Result<When, String> {
    if text == "now" {
        return Ok(When::Ago(now));
    }
    if let Some(ago) = config::duration(text) {
        let ago = SignedDuration::try_from(ago).map_err(|error| error.to_string())?;
        return now.checked_sub(ago).map(When::Ago).map_err(|error| error.to_string());
    }
    text.parse().map(When::At).map_err(|_| {
        format!(
            "{text:?} is neither an instant such as 2026-11-21T09:00:00Z nor a time ago such as 6h"
        )
    })
}

/// The instant with which an earlier run into this folder began; `None` where there was none.
fn began(folder: &Path) -> anyhow::Result<Option<Timestamp>> {
    if !fs::exists(folder)? {
        return Ok(None);
    }
    let readers = files(folder)?;
    Ok(readers.first().map(|reader| reader.began().run))
}

/// By what the series of a variant's replicas are found.
fn wanted(variant: &Variant) -> Result<Wanted, BacktestError> {
    let key = &variant.spec.key;
    let replica = |address: &String| {
        let replica = ReplicaName::new(address)?;
        Some(ReplicaKey { variant: key.clone(), replica, incarnation: None })
    };
    let which = match &variant.targets {
        Targets::Prometheus(labels) => Which::Match(labels.clone()),
        Targets::Listed(Source::Static(addresses)) => {
            Which::Instances(addresses.iter().filter_map(replica).collect())
        }
        Targets::Listed(_) | Targets::ScaleTarget(_) | Targets::Selector(_) => {
            return Err(BacktestError::Unusable(format!(
                "the variant {key} has targets that nobody can list for the past; give it targets \
                 by their labels, such as targets: {{prometheus: {{match: {{job: {}}}}}}}",
                key.variant
            )));
        }
    };
    let mut models = vec![variant.spec.model.clone()];
    models.extend(variant.aliases.iter().cloned());
    Ok(Wanted { variant: key.clone(), models, which })
}

// === impl Made ===

impl Made {
    /// What an earlier run has made, or nothing.
    fn go_on(asked: &Asked, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let config: Config = config::parse(&asked.config, &surroundings(folder))?.config;
        let mut made = Self {
            pipeline: Pipeline::new(config.policy),
            writer: Writer::new(folder.to_owned(), LIMITS, asked.from),
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
                    Record::Config(yaml) if yaml != asked.config => {
                        return Err(other(folder).into());
                    }
                    Record::Tick(tick) => made.again(asked, &tick, folder)?,
                    Record::Config(_) | Record::Restored(_) => {}
                }
            }
            parts = reader.began().part;
        }
        made.writer.go_on_after(parts);
        let begins = if parts == 0 { Begins::Process } else { Begins::Rotation };
        made.writer.begin(begins)?;
        made.writer.write(Record::Config(asked.config.clone()))?;
        if begins == Begins::Rotation {
            let known = made.known(asked);
            made.writer.write(Record::Restored(known))?;
        }
        made.writer.flush()?;
        Ok(made)
    }

    /// A tick that is in the folder already.
    fn again(&mut self, asked: &Asked, tick: &Tick, folder: &Path) -> Result<(), BacktestError> {
        let expected = self.reached.saturating_add(asked.step).unwrap_or(self.reached);
        if tick.now != expected {
            return Err(other(folder));
        }
        self.tally.take(&tick.inputs.scrapes, BTreeMap::new());
        self.notice(&tick.inputs.scrapes);
        self.said = Said::of(&self.pipeline.tick(tick.now, &tick.inputs));
        self.reached = tick.now;
        Ok(())
    }

    /// What is known at the beginning of a part, for who has only that.
    fn known(&self, asked: &Asked) -> Vec<Saved> {
        let saved = |(variant, said): (&VariantKey, &Said)| {
            let model = asked.fleet.get(variant)?.model_key();
            Some(Saved {
                variant: variant.clone(),
                desired: said.desired?,
                at: said.inputs_at?,
                written: self.reached,
                memory: self.pipeline.memory(&model, variant),
                model,
                strange: Vec::new(),
            })
        };
        self.said.iter().filter_map(saved).collect()
    }

    fn notice(&mut self, scrapes: &[Scrape]) {
        for scrape in scrapes {
            self.seen.insert(scrape.replica.clone(), scrape.at);
        }
    }

    /// Makes ticks of a span.
    fn take(
        &mut self,
        asked: &Asked,
        scrapes: Vec<Scrape>,
        end: Timestamp,
    ) -> Result<(), TraceError> {
        let mut scrapes = scrapes.into_iter().peekable();
        while self.reached < end {
            let now = self.reached.saturating_add(asked.step).unwrap_or(end);
            let mut own = Vec::new();
            while let Some(scrape) = scrapes.next_if(|scrape| scrape.at <= now) {
                own.push(scrape);
            }
            self.notice(&own);
            own.sort_by(|a, b| (&a.replica, a.at).cmp(&(&b.replica, b.at)));
            let listings = self.listings(asked, now);
            let fleet = Arc::clone(&asked.fleet);
            let inputs = Inputs { fleet, listings, scrapes: own, ..Inputs::default() };
            let said = Said::of(&self.pipeline.tick(now, &inputs));
            let tick = Tick { now, inputs, follows: None, said };
            self.writer.write(Record::Tick(Box::new(tick)))?;
            self.reached = now;
        }
        self.writer.flush()
    }

    /// The replicas that were seen within the time for which one counts as there.
    fn listings(&self, asked: &Asked, now: Timestamp) -> BTreeMap<VariantKey, Listing> {
        let mut listings: BTreeMap<VariantKey, Listing> = BTreeMap::new();
        for (replica, at) in &self.seen {
            if now.duration_since(*at) > asked.lookback {
                continue;
            }
            let listing = listings.entry(replica.variant.clone()).or_insert_with(|| Listing {
                replicas: Vec::new(),
                unready: Vec::new(),
                scale: Scale::Targets,
                way: Way::Relayed,
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

/// The files that an earlier run has made; none is as good as an empty folder. One that was begun and
/// has nothing whole in it is removed, because the next part has its name.
fn files(folder: &Path) -> Result<Vec<Reader>, TraceError> {
    loop {
        match trace::files(&[folder.to_owned()]) {
            Ok(Found { readers, unbegun }) => {
                unbegun.iter().try_for_each(|path| remove(path))?;
                return Ok(readers);
            }
            Err(TraceError::Unbegun { path }) => remove(&path)?,
            Err(TraceError::Empty { .. }) => return Ok(Vec::new()),
            Err(problem) => return Err(problem),
        }
    }
}

/// Cuts off what an earlier run has not written to its end, which is asked for again.
fn mend(folder: &Path) -> Result<(), TraceError> {
    for mut reader in files(folder)? {
        while reader.record()?.is_some() {}
        let path = reader.path();
        match reader.end() {
            // Not even the first block is whole.
            Some(End::Truncated(0)) => remove(path)?,
            Some(End::Truncated(offset)) => {
                let failed =
                    |source| TraceError::Io { path: path.to_owned(), action: "mended", source };
                let file = File::options().write(true).open(path);
                file.and_then(|file| file.set_len(offset)).map_err(failed)?;
            }
            Some(End::Whole) | None => {}
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), TraceError> {
    let failed = |source| TraceError::Io { path: path.to_owned(), action: "removed", source };
    fs::remove_file(path).map_err(failed)
}
