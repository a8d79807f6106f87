//! The JSON API's data other than decisions, and the tasks that render its answers.

use std::sync::Arc;

use hyper::StatusCode;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::collect::cluster::Registration;
use crate::collect::scrape::TargetBoard;
use crate::config;
use crate::daemon::context::DaemonContext;
use crate::daemon::reload::{ConfigStatus, Reloader};
use crate::publish::api::{ApiSurface, Vitals};
use crate::publish::external_metrics::state::DecisionAges;
use crate::server::admin::DocumentHook;
use crate::server::readiness::Readiness;

/// The maximum answers that are rendered at once. One takes milliseconds, or tens of milliseconds
/// for a thousand variants, and its length in memory. With two, a person still gets an answer while
/// a script polls.
const ANSWERS_MAX: usize = 2;

/// The API, with all the data that it shows.
pub(crate) fn surface(
    common: &DaemonContext,
    ages: DecisionAges,
    reloader: &Arc<Reloader>,
    board: TargetBoard,
    registration: Option<watch::Receiver<Option<Registration>>>,
    ready: Readiness,
) -> ApiSurface {
    let reloader = Arc::clone(reloader);
    let started = common.clock.elapsed();
    let cards = common.cards.subscribe();

    ApiSurface {
        published: common.published.clone(),
        history: Arc::clone(&common.history),
        clock: common.clock,
        ages,
        details: Box::new(move || {
            let failed = board.snapshot().into_iter();
            failed.filter_map(|(replica, it)| Some((replica, it.failure?.detail))).collect()
        }),
        cards: Box::new(move || {
            let known = Arc::clone(&cards.borrow());
            config::cards(known.iter())
        }),
        vitals: Box::new(move || {
            let ConfigStatus { config, tick_interval } = reloader.shown();
            Vitals {
                version: env!("CARGO_PKG_VERSION"),
                started,
                tick_interval,
                checks: ready.checks(),
                config,
                api_service: registration.as_ref().map(|it| said(it.borrow().as_ref())),
            }
        }),
    }
}

/// Renders answers away from the threads that scrape and decide.
pub(crate) fn answers(surface: ApiSurface, tasks: TaskTracker) -> DocumentHook {
    let shared = Arc::new(surface);
    let permits = Arc::new(Semaphore::new(ANSWERS_MAX));

    Box::new(move |path, query| {
        let surface = Arc::clone(&shared);
        let permits = Arc::clone(&permits);
        let tasks = tasks.clone();

        Box::pin(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            let answer = tasks.spawn_blocking(move || surface.answer(&path, query.as_deref()));
            answer.await.unwrap_or_else(|ended| {
                let error = serde_json::json!({"error": ended.to_string()});
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            })
        })
    })
}

fn said(registration: Option<&Registration>) -> (&'static str, Option<String>) {
    let Some(registration) = registration else {
        return ("unknown", Some("the cluster has not said yet".to_owned()));
    };
    let problem = match registration {
        Registration::Ours => None,
        Registration::Absent => Some("no API is registered, so no HPA can ask".to_owned()),
        Registration::ForeignService { namespace, name } => {
            Some(format!("it belongs to another provider, the Service {namespace}/{name}"))
        }
        Registration::ForeignCaBundle => {
            Some("its caBundle is not the authority of our certificate".to_owned())
        }
        Registration::Unavailable { reason } => {
            Some(format!("the API server does not reach us: {reason}"))
        }
    };

    (registration.label(), problem)
}
