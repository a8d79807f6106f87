//! The JSON API's data other than decisions, and the tasks that render its answers.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::collect::cluster::ClusterState;
use crate::collect::scrape::TargetBoard;
use crate::config;
use crate::daemon::autoscalers;
use crate::daemon::context::DaemonContext;
use crate::daemon::kubernetes::identity;
use crate::daemon::registration::FollowedRegistration;
use crate::daemon::reload::{ConfigStatus, Reloader};
use crate::daemon::ticks::scenes::{self, SceneRequest};
use crate::leader::Leadership;
use crate::publish::api::{ApiSurface, ElectionStatus, Vitals};
use crate::publish::external_metrics::state::DecisionAges;
use crate::server::admin::DocumentHook;
use crate::server::document::{DocumentRequest, DocumentResponse};
use crate::server::readiness::Readiness;

/// The maximum answers that are rendered at once. One takes milliseconds, or tens of milliseconds
/// for a thousand variants, and its length in memory. With two, a person still gets an answer while
/// a script polls.
const ANSWERS_MAX: usize = 2;

/// The time for which a request for an explanation waits for the one before it.
const TURN_MAX: Duration = Duration::from_secs(10);

/// The path of explanations, which are computed one at a time. They decide a tick many times, and
/// must not keep other requests from their permits.
const EXPLAIN: &str = "/api/v1/explain";

/// The sources of the API other than the shared state.
pub(crate) struct ApiSources {
    pub(crate) board: TargetBoard,
    pub(crate) registration: Option<FollowedRegistration>,
    pub(crate) ready: Readiness,
    pub(crate) cluster: Option<watch::Receiver<Arc<ClusterState>>>,
    pub(crate) scenes: mpsc::Sender<SceneRequest>,
    pub(crate) leadership: Option<watch::Receiver<Leadership>>,
}

/// The API, with all the data that it shows.
pub(crate) fn surface(
    common: &DaemonContext,
    ages: DecisionAges,
    reloader: &Arc<Reloader>,
    sources: ApiSources,
) -> ApiSurface {
    let ApiSources { board, registration, ready, cluster, scenes, leadership } = sources;
    let clock = common.clock;
    let reloader = Arc::clone(reloader);
    let started = common.clock.elapsed();
    let cards = common.cards.subscribe();
    let published = common.published.clone();

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
        scene: Box::new(move || scenes::next(&scenes)),
        autoscaler: Box::new(move |key, desired, asked_for| {
            let cluster = cluster.as_ref()?.borrow().clone();
            let problems = published.borrow().findings.get(key).cloned().unwrap_or_default();
            Some(autoscalers::reaction(&cluster, key, desired, asked_for, problems))
        }),
        vitals: Box::new(move || {
            let ConfigStatus { config, tick_interval } = reloader.shown();
            Vitals {
                version: env!("CARGO_PKG_VERSION"),
                started,
                tick_interval,
                checks: ready.checks(),
                config,
                api_service: registration.as_ref().map(FollowedRegistration::vitals),
                election: leadership.as_ref().map(|it| election(&it.borrow(), clock.elapsed())),
            }
        }),
    }
}

/// Renders answers away from the threads that scrape and decide.
pub(crate) fn answers(surface: ApiSurface, tasks: TaskTracker) -> DocumentHook {
    let shared = Arc::new(surface);
    let permits = Arc::new(Semaphore::new(ANSWERS_MAX));
    let explanations = Arc::new(Semaphore::new(1));

    Box::new(move |request: DocumentRequest| {
        let surface = Arc::clone(&shared);
        let explains = request.path == EXPLAIN;
        let permits = Arc::clone(if explains { &explanations } else { &permits });
        let tasks = tasks.clone();

        Box::pin(async move {
            // The semaphore is never closed.
            let turn = permits.acquire_owned();
            let taken = if explains {
                match timeout(TURN_MAX, turn).await {
                    Ok(permit) => permit,
                    Err(_) => return busy(),
                }
            } else {
                turn.await
            };
            // The work goes on when the client is gone, and so does its turn.
            let answer = tasks.spawn_blocking(move || {
                let _permit = taken;
                surface.respond(&request)
            });
            answer.await.unwrap_or_else(|ended| {
                let error = serde_json::json!({"error": ended.to_string()});
                DocumentResponse::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            })
        })
    })
}

/// The answer to a request for an explanation while others are computed.
fn busy() -> DocumentResponse {
    let error = "other explanations are being computed; try again in some seconds";
    let body = serde_json::json!({"error": error});
    DocumentResponse::plain(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
}

fn election(leadership: &Leadership, elapsed: Duration) -> ElectionStatus {
    ElectionStatus {
        holder: leadership.holder.clone(),
        identity: identity(),
        leads: leadership.leads(elapsed),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use futures_util::FutureExt as _;
    use serde_json::Value;

    use super::*;
    use crate::clock::Clock;
    use crate::publish::Published;
    use crate::publish::history::RecentHistory;
    use crate::server::document::ContentEncoding;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_answer_keeps_its_turn_after_its_client_is_gone() {
        let (release, released) = mpsc::channel::<()>();
        let waiting = std::sync::Mutex::new(released);
        let surface = ApiSurface {
            published: watch::channel(Arc::new(Published::default())).1,
            history: Arc::new(RecentHistory::default()),
            clock: Clock::start(),
            ages: DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) },
            details: Box::new(BTreeMap::new),
            vitals: Box::new(|| unreachable!()),
            cards: Box::new(move || {
                let _ended = waiting.lock().unwrap().recv();
                Value::Null
            }),
            scene: Box::new(|| None),
            autoscaler: Box::new(|_, _, _| None),
        };

        let tasks = TaskTracker::new();
        let answer = answers(surface, tasks.clone());
        for _ in 0..10 {
            let request = DocumentRequest {
                path: "/api/v1/cards".to_owned(),
                query: None,
                known: None,
                accepted: ContentEncoding::default(),
            };
            assert!(answer(request).now_or_never().is_none(), "it waits");
        }

        assert_eq!(tasks.len(), ANSWERS_MAX);

        drop(release);
        tasks.close();
        tasks.wait().await;
    }
}
