//! Assembles an engine: the replica that a scenario describes, its load, and its socket.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::args::EngineArgs;
use crate::engine::http::EngineServer;
use crate::engine::served::{BackgroundLoad, ServedReplica};
use crate::simulate::page::EngineIdentity;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::replica::Replica;
use crate::simulate::scenario::{Prefix, Scenario, Startup, Variant};
use crate::simulate::workload::load::{Load, Sizes};
use crate::study::{self, PlanError};
use plimsoll_daemon::clock::Clock;

/// Time for requests in progress after a signal. It is below the default grace period of a pod.
const DRAIN_MAX: Duration = Duration::from_secs(25);

/// Serves a replica until SIGTERM or SIGINT, and then answers the requests in progress.
///
/// # Errors
///
/// The scenario is not valid, or the address is not available.
pub fn run(args: &EngineArgs) -> anyhow::Result<()> {
    let scenario = study::scenario(args.scenario.as_deref(), &args.set)?;
    let variant = find(&scenario, args.variant.as_deref())?;
    let seed = args.seed.unwrap_or_else(rand::random);
    let served = replica(&scenario, variant, args, seed)?;
    let loads = args.startup.unwrap_or_else(|| startup(&variant.startup, seed));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;

    let model = &scenario.models[variant.model];
    let name = args.model.clone().unwrap_or_else(|| model.key.model.to_string());

    runtime.block_on(perform(args, served, loads, name))
}

async fn perform(
    args: &EngineArgs,
    served: ServedReplica,
    startup: Duration,
    model: String,
) -> anyhow::Result<()> {
    let tracker = TaskTracker::new();
    let stop = stop_on_signals(&tracker)?;
    let clock = Clock::start();
    let started = clock.now();
    let soon = if startup.is_zero() { String::new() } else { format!(" in {startup:?}") };
    say(&format!("{model} starts, and listens{soon}"));
    if stop.run_until_cancelled(tokio::time::sleep(startup)).await.is_none() {
        return Ok(());
    }

    // An engine that loads weights does not listen.
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr().context("the socket has no address")?;

    let identity = EngineIdentity { model: model.clone(), started, ready: clock.now() };
    say(&format!("{model} is served at http://{address}"));

    EngineServer::new(served, identity, clock, stop).serve(listener, DRAIN_MAX).await;
    Ok(())
}

/// The variant with this name; the first without a name.
fn find<'s>(scenario: &'s Scenario, name: Option<&str>) -> anyhow::Result<&'s Variant> {
    let mut variants = scenario.variants.iter();
    let found = match name {
        Some(name) => variants.find(|variant| variant.spec.key.variant.as_str() == name),
        None => variants.next(),
    };

    found.ok_or_else(|| {
        let names: Vec<&str> =
            scenario.variants.iter().map(|it| it.spec.key.variant.as_str()).collect();

        let message = format!(
            "--variant: the scenario has no variant {:?}; it has {}",
            name.unwrap_or_default(),
            names.join(", ")
        );
        PlanError(message).into()
    })
}

/// A replica of the variant under the background load.
fn replica(
    scenario: &Scenario,
    variant: &Variant,
    args: &EngineArgs,
    seed: u64,
) -> anyhow::Result<ServedReplica> {
    let engine = Replica::new(variant.engine)?
        .with_options(variant.options, generator(seed, Purpose::Steps, 0));
    let cached = match variant.prefix {
        Prefix::Share(share) => engine.with_prefix_hits(share),
        Prefix::Blocks => engine.with_prefix_cache(None),
    };

    let lengths = sizes(&scenario.models[variant.model].load)?;
    let random = generator(seed, Purpose::Times, 0);
    Ok(ServedReplica::new(cached, BackgroundLoad::new(args.load, lengths, random)))
}

/// The request lengths of a workload.
fn sizes(load: &Load) -> Result<Sizes, PlanError> {
    match load {
        Load::Drawn(drawn) => Ok(drawn.sizes.clone()),
        Load::Closed(closed) => Ok(closed.sizes.clone()),
        Load::Replay(_) | Load::Described(_) => Err(PlanError(
            "an engine needs request lengths: the workload of its model must be drawn or closed"
                .to_owned(),
        )),
    }
}

/// Draws the time until an engine listens.
fn startup(startup: &Startup, seed: u64) -> Duration {
    let mut random = generator(seed, Purpose::Starts, 0);
    let load = startup.draw(startup.load, &mut random);
    (load + startup.draw(startup.warmup, &mut random)).duration()
}

fn stop_on_signals(tracker: &TaskTracker) -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).context("cannot listen to signals")?;
        let signalled = stop.clone();
        tracker.spawn(async move {
            signals.recv().await;
            signalled.cancel();
        });
    }

    Ok(stop)
}

fn say(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}
