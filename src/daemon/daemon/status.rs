//! What the JSON API says beside the numbers, and where its answers are made.

use std::sync::Arc;

use hyper::StatusCode;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::collect::cluster::Registration;
use crate::collect::scrape::Board;
use crate::config;
use crate::daemon::reload::{Reloader, Shown};
use crate::daemon::{Common, Readiness};
use crate::publish::api::{Surface, Vitals};
use crate::server::admin::Documents;

/// Answers that are made at one time. One takes milliseconds, or tens of them for a thousand
/// variants, and as much memory as it is long; two leave one for a person while a script polls.
const ANSWERS_MAX: usize = 2;

/// The API, with all that it shows.
pub(crate) fn surface(
    common: &Common,
    reloader: &Arc<Reloader>,
    board: Board,
    registration: Option<watch::Receiver<Option<Registration>>>,
    ready: Readiness,
) -> Surface {
    let reloader = Arc::clone(reloader);
    let started = common.clock.elapsed();
    Surface {
        published: common.published.clone(),
        history: Arc::clone(&common.history),
        clock: common.clock,
        details: Box::new(move || {
            let failed = board.snapshot().into_iter();
            failed.filter_map(|(replica, it)| Some((replica, it.failure?.detail))).collect()
        }),
        cards: {
            let cards = common.cards.subscribe();
            Box::new(move || {
                let known = Arc::clone(&cards.borrow());
                config::cards(known.iter())
            })
        },
        vitals: Box::new(move || {
            let Shown { config, tick_interval } = reloader.shown();
            Vitals {
                version: env!("CARGO_PKG_VERSION"),
                started,
                tick_interval,
                checks: ready(),
                config,
                api_service: registration.as_ref().map(|it| said(it.borrow().as_ref())),
            }
        }),
    }
}

/// Makes answers away from the threads that scrape and decide.
pub(crate) fn answers(surface: Surface, tasks: TaskTracker) -> Documents {
    let (surface, permits) = (Arc::new(surface), Arc::new(Semaphore::new(ANSWERS_MAX)));
    Box::new(move |path, query| {
        let (surface, permits, tasks) = (Arc::clone(&surface), Arc::clone(&permits), tasks.clone());
        Box::pin(async move {
            // Nothing closes the semaphore.
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
