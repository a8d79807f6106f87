//! Drives the demo: its sockets and target files follow the fleet, and its screen shows views.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::demo::actuator::HpaActuator;
use crate::demo::args::DemoOutput;
use crate::demo::pki::Pki;
use crate::demo::scenario::DemoSetup;
use crate::demo::screen::{Screen, Wish};
use crate::demo::stage::DemoStage;
use crate::demo::summary::Summary;
use crate::demo::view::Observer;
use crate::simulate::Micros;
use plimsoll_daemon::publish::Published;

/// The interval at which sockets and target files follow the fleet.
const FOLLOW: Duration = Duration::from_millis(100);

/// The external parts of the demo.
#[derive(Debug)]
pub struct DemoParts {
    /// The scenario and its daemon.
    pub played: DemoSetup,
    /// The fleet on its sockets.
    pub stage: DemoStage,
    /// The published state of the daemon.
    pub published: watch::Receiver<Arc<Published>>,
    /// The address of the external metrics API.
    pub api: SocketAddr,
    /// The certificates of the API's server and client.
    pub pki: Pki,
    /// The time at which to end; `None` to run until `cancel`.
    pub length: Option<Micros>,
    /// The output form of views.
    pub output: DemoOutput,
    /// Tracks the tasks.
    pub tracker: TaskTracker,
    /// Ends the demo from another task.
    pub cancel: CancellationToken,
}

/// Runs the demo to its end and returns a summary. The fleet's servers end with it.
///
/// # Errors
///
/// Ports, files, certificates or the terminal are unavailable.
pub async fn drive(parts: DemoParts) -> anyhow::Result<Summary> {
    let DemoParts { played, mut stage, published, api, pki, tracker, cancel, .. } = parts;
    let shared = stage.shared();
    let (actuator, followed) = HpaActuator::new(played.scenario, api, &pki)?;
    let mut observer = Observer::new(played.clone(), parts.length);
    let mut screen = Screen::open(parts.output).context("cannot open the screen")?;

    let stop = cancel.child_token();
    let _stop_on_return = stop.clone().drop_guard();
    tracker.spawn(actuator.run(shared.clone(), stop.clone()));
    let mut follow = tokio::time::interval(FOLLOW);
    let mut show = tokio::time::interval(screen.period());
    follow.set_missed_tick_behavior(MissedTickBehavior::Delay);
    show.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            _ = follow.tick() => {
                stage.follow()?;
                if screen.wish()? == Wish::Quit {
                    break;
                }
            }
            _ = show.tick() => {
                let view =
                    observer.look(&shared.fleet(), &published.borrow(), &followed.borrow());
                screen.show(&view)?;
                if parts.length.is_some_and(|length| view.elapsed >= length) {
                    break;
                }
            }
        }
    }

    drop(screen);
    let outcome = shared.fleet().score();
    Ok(Summary::new(&played, &outcome)?)
}
