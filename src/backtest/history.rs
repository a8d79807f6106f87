//! A trace of what a Prometheus has seen, of a fleet that nobody traced.
//!
//! The past is asked for in spans that follow each other, each made into ticks, decided, and written
//! before the next is asked for. So memory is bounded by a span, and what has been written is where
//! an interrupted run goes on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};

use crate::backtest::BacktestError;
use crate::backtest::replay::surroundings;
use crate::backtest::screen::Progress;
use crate::cli::BacktestArgs;
use crate::clock::Clock;
use crate::collect::prometheus::{Failure, History, Outcome, Past, Settings, Wanted, Which};
use crate::collect::targets::Source;
use crate::config::{self, Config, Files, Targets, Variant};
use crate::fleet::{Fleet, ReplicaKey, ReplicaName, VariantKey};
use crate::observe::{Inputs, Listing, Scale, Scrape, Way};
use crate::pipeline::Pipeline;
use crate::trace::{self, Begins, End, Limits, Reader, Record, Said, Tick, TraceError, Writer};

/// A span that is asked for at once; halved where the answer is too large.
const SPAN: SignedDuration = SignedDuration::from_mins(10);

/// How often a question is asked again that fails for a reason that may pass, and how long is
/// waited before: one second, then twice as long each time. Together a minute.
const TRIES: u32 = 6;
const WAIT: Duration = Duration::from_secs(1);

/// Nothing is removed of what was asked for.
const LIMITS: Limits = Limits { file_size: u64::MAX, files: usize::MAX };

/// What is asked for.
struct Asked {
    from: Timestamp,
    to: Timestamp,
    step: SignedDuration,
    settings: Settings,
    wanted: Vec<Wanted>,
    fleet: Arc<Fleet>,
    /// The configuration, as YAML.
    config: String,
    lookback: SignedDuration,
}

/// What has been made of it so far.
struct Made {
    pipeline: Pipeline,
    writer: Writer,
    /// The last tick.
    reached: Timestamp,
    /// When each replica was last seen.
    seen: BTreeMap<ReplicaKey, Timestamp>,
}

/// Asks a Prometheus for the past and writes it as a trace into a folder.
///
/// # Errors
///
/// The arguments, the configuration or the folder cannot be used, or Prometheus does not answer.
pub(crate) fn fetch(args: &BacktestArgs, url: &str, folder: &Path) -> anyhow::Result<()> {
    let clock = Clock::start();
    let asked = Asked::new(args, url, clock.now())?;
    let made = Made::go_on(&asked, folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(download(&asked, made, clock))
}

async fn download(asked: &Asked, mut made: Made, clock: Clock) -> anyhow::Result<()> {
    let total = asked.to.duration_since(made.reached).as_secs().unsigned_abs();
    let progress = Progress::new(total);
    let began = made.reached;
    let mut history = History::new(asked.settings.clone());
    let mut span = SPAN;
    while made.reached < asked.to {
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
    fn new(args: &BacktestArgs, url: &str, now: Timestamp) -> anyhow::Result<Self> {
        let unusable = |problem: &str| BacktestError::Unusable(problem.to_owned());
        let file = args.config.as_ref().ok_or_else(|| unusable("--prometheus needs --config"))?;
        let config = config::load(file, Files::MustExist)?.config;
        let from = args.from.as_ref().ok_or_else(|| unusable("--prometheus needs --from"))?;
        let from = instant(from, now).map_err(|why| unusable(&format!("--from {why}")))?;
        let to = match &args.to {
            Some(to) => instant(to, now).map_err(|why| unusable(&format!("--to {why}")))?,
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
        Ok(Self { from, to, step, settings, wanted, fleet, config: config.print(), lookback })
    }
}

/// An instant, or how long ago.
fn instant(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(ago) = config::duration(text) {
        let ago = SignedDuration::try_from(ago).map_err(|error| error.to_string())?;
        return now.checked_sub(ago).map_err(|error| error.to_string());
    }
    text.parse().map_err(|_| {
        format!(
            "{text:?} is neither an instant such as 2026-11-21T09:00:00Z nor a time ago such as 6h"
        )
    })
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
    fn go_on(asked: &Asked, folder: &Path) -> anyhow::Result<Self> {
        let config: Config = config::parse(&asked.config, &surroundings(folder))?.config;
        let mut made = Self {
            pipeline: Pipeline::new(config.policy),
            writer: Writer::new(folder.to_owned(), LIMITS, asked.from),
            reached: asked.from,
            seen: BTreeMap::new(),
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
            made.writer.write(Record::Restored(Vec::new()))?;
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
        self.notice(&tick.inputs.scrapes);
        let _as_before = self.pipeline.tick(tick.now, &tick.inputs);
        self.reached = tick.now;
        Ok(())
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

/// The files that an earlier run has made; none is as good as an empty folder.
fn files(folder: &Path) -> Result<Vec<Reader>, TraceError> {
    match trace::files(&[folder.to_owned()]) {
        Err(TraceError::Empty { .. }) => Ok(Vec::new()),
        readers => readers,
    }
}

/// Cuts off what an earlier run has not written to its end, which is asked for again.
fn mend(folder: &Path) -> Result<(), TraceError> {
    for mut reader in files(folder)? {
        while reader.record()?.is_some() {}
        if let Some(End::Truncated(offset)) = reader.end() {
            let path = reader.path();
            let failed =
                |source| TraceError::Io { path: path.to_owned(), action: "mended", source };
            let file = File::options().write(true).open(path);
            file.and_then(|file| file.set_len(offset)).map_err(failed)?;
        }
    }
    Ok(())
}
