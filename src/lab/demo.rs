//! The demo: a simulated fleet under load, the real daemon, and a model of the stock HPA.
//!
//! What is simulated: the engines ([`crate::simulate::replica`]), the requests that arrive for them,
//! and the HPA's arithmetic. What is real: the daemon and its configuration, the pages that it
//! scrapes over HTTP, the files from which it learns the targets, and the HTTPS request, with client
//! certificate, by which the HPA reads the number. So what works here works for the same reasons as
//! in a cluster, and takes as long.
//!
//! [`run`] puts it together: it opens the [`stage::Stage`], starts a daemon that reads the stage's target
//! files and serves the external metrics API with the [`pki::Pki`], and then calls [`drive`].

pub mod actuator;
pub mod args;
mod choice;
pub mod fleet;
pub mod pki;
pub mod scenario;
pub mod score;
pub mod screen;
pub mod stage;
pub mod summary;
pub mod view;
mod wiring;

pub use crate::demo::wiring::run;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::demo::actuator::Actuator;
use crate::demo::pki::Pki;
use crate::demo::screen::{Output, Screen, Wish};
use crate::demo::stage::Stage;
use crate::demo::summary::Summary;
use crate::demo::view::Observer;
use crate::simulate::Micros;
use plimsoll_daemon::publish::Published;

/// How often sockets and target files follow the fleet.
const FOLLOW: Duration = Duration::from_millis(100);

/// What a person may choose.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When to end; `None` runs until somebody ends it.
    pub length: Option<Micros>,
    /// How often the HPA reads the metric; a controller's default is 15 s.
    pub sync_period: Duration,
    /// How to write what happens.
    pub output: Output,
}

/// Everything that the demo needs from outside.
#[derive(Debug)]
pub struct DemoParts {
    /// The fleet on its sockets.
    pub stage: Stage,
    /// What the daemon publishes.
    pub published: watch::Receiver<Arc<Published>>,
    /// Where the daemon serves the external metrics API.
    pub api: SocketAddr,
    /// The certificates with which it serves, and with which it is asked.
    pub pki: Pki,
    /// What a person has chosen.
    pub options: Options,
    /// Keeps track of the tasks.
    pub tracker: TaskTracker,
    /// Ends the demo from outside.
    pub cancel: CancellationToken,
}

/// Plays the demo to its end and says what it came to. The fleet's servers run on until the stage's
/// own token is cancelled.
///
/// # Errors
///
/// Ports, files, certificates or the terminal cannot be had.
pub async fn drive(parts: DemoParts) -> anyhow::Result<Summary> {
    let DemoParts { mut stage, published, api, pki, options, tracker, cancel } = parts;
    let shared = stage.shared();
    let scenario = Arc::clone(shared.fleet().scenario());
    let (actuator, followed) = Actuator::new(&scenario, api, &pki)?;
    let mut observer = Observer::new(Arc::clone(&scenario), options.length);
    let mut screen = Screen::open(options.output).context("cannot open the screen")?;

    let stop = cancel.child_token();
    let _stop_on_return = stop.clone().drop_guard();
    tracker.spawn(actuator.run(shared.clone(), options.sync_period, stop.clone()));
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
                let view = {
                    let fleet = shared.fleet();
                    observer.look(&fleet, &published.borrow(), &followed.borrow())
                };
                screen.show(&view)?;
                if options.length.is_some_and(|length| view.elapsed >= length) {
                    break;
                }
            }
        }
    }
    drop(screen);
    let (elapsed, score) = {
        let fleet = shared.fleet();
        (fleet.now(), fleet.score())
    };
    Ok(Summary::new(scenario, elapsed, score, &followed.borrow())?)
}
