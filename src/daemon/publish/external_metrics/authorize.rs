//! Decides whether a user may read a metric.
//!
//! The cluster's API server checks this before it forwards a request, but the aggregation contract
//! forbids relying on that check. So [`SubjectAccessReviews`] asks again. Asking for each metric
//! separately would cost one review per HPA sync. The API server throttles reviews at their
//! priority level, and a throttled review is a scale-up that does not happen. So the first review
//! of a user is the broadest: may the user read *all* metrics everywhere? HPA controllers may, so
//! they cost only one review per five minutes. This is sound, because in RBAC only a rule for `*`
//! allows `*`. For users without this permission, each metric is reviewed separately.
//!
//! If no review is possible, a permission granted in the last ten minutes still holds. An outage of
//! the API server must not make the metrics unavailable. An unknown user gets an error, never a
//! permission.

mod access;
pub(crate) mod cache;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug_span, warn};

use crate::clock::Clock;
use crate::publish::external_metrics::authorize::access::{AnswerScope, ReviewAnswer};
use crate::publish::external_metrics::authorize::cache::AnswerCache;
use crate::publish::external_metrics::route::{
    DescribedObject, GROUP, OBJECT_GROUP, OBJECT_VERSION, VERSION,
};
use crate::server::auth::UserIdentity;

pub use crate::publish::external_metrics::authorize::access::Access;
pub use crate::publish::external_metrics::authorize::cache::AnswerLifetimes;

/// Members of this group may do everything, so no review is needed.
const MASTERS: &str = "system:masters";

/// The time that a request waits for reviews. It leaves the request time to respond within its
/// limit of one second.
const WAIT_MAX: Duration = Duration::from_millis(800);

/// Time limit for a review. A review continues after its request has given up, so the next request
/// finds the result.
const REVIEW_MAX: Duration = Duration::from_secs(10);

/// The maximum number of concurrent reviews. Further reviews are rejected.
const REVIEWS_MAX: usize = 256;

/// The source of a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionSource {
    /// The front proxy is trusted, or the user may do everything.
    Trusted,
    /// The permission is cached.
    Cached,
    /// A review by the API server.
    Asked,
    /// The permission is cached for longer than usual, because no review is possible.
    Stale,
}

/// The result of an authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// Allowed.
    Allowed(PermissionSource),
    /// Denied, with the reason from the API server.
    Denied(String),
    /// Unknown, with the reason.
    Unavailable(String),
}

impl AccessVerdict {
    fn remembered(answer: ReviewAnswer) -> Self {
        match answer {
            ReviewAnswer::Allowed => Self::Allowed(PermissionSource::Cached),
            ReviewAnswer::Denied(reason) => Self::Denied(reason),
        }
    }

    /// Returns the verdict as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Allowed(PermissionSource::Trusted) => "allowed_trusted",
            Self::Allowed(PermissionSource::Cached) => "allowed_cached",
            Self::Allowed(PermissionSource::Asked) => "allowed_asked",
            Self::Allowed(PermissionSource::Stale) => "allowed_stale",
            Self::Denied(_) => "denied",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// Decides whether a user may read a metric.
pub trait Authorize: Send + Sync {
    /// Returns the verdict for one access.
    fn authorize<'a>(
        &'a self,
        identity: &'a UserIdentity,
        access: &'a Access,
    ) -> BoxFuture<'a, AccessVerdict>;
}

/// Trusts that the front proxy has authorized the requests that it forwards.
#[derive(Clone, Copy, Debug)]
pub struct TrustFrontProxy;

impl Authorize for TrustFrontProxy {
    fn authorize<'a>(&'a self, _: &'a UserIdentity, _: &'a Access) -> BoxFuture<'a, AccessVerdict> {
        std::future::ready(AccessVerdict::Allowed(PermissionSource::Trusted)).boxed()
    }
}

/// Requests reviews from the API server and caches the results.
pub struct SubjectAccessReviews {
    client: kube::Client,
    clock: Clock,
    tracker: TaskTracker,
    memory: Arc<Mutex<ReviewMemory>>,
}

struct ReviewMemory {
    cache: AnswerCache,
    flights: BTreeMap<(UserIdentity, AnswerScope), PendingReview>,
}

/// A review in progress, shared by all requests that wait for it.
type PendingReview = Shared<BoxFuture<'static, Result<ReviewAnswer, String>>>;

impl SubjectAccessReviews {
    /// Creates an authorizer that uses `client` and runs reviews on tasks of `tracker`.
    #[must_use]
    pub fn new(
        client: kube::Client,
        clock: Clock,
        lifetimes: AnswerLifetimes,
        tracker: TaskTracker,
    ) -> Self {
        let memory = ReviewMemory { cache: AnswerCache::new(lifetimes), flights: BTreeMap::new() };
        Self { client, clock, tracker, memory: Arc::new(Mutex::new(memory)) }
    }

    async fn verdict(
        &self,
        deadline: Duration,
        identity: &UserIdentity,
        scope: AnswerScope,
    ) -> AccessVerdict {
        let now = self.clock.elapsed();
        let known = lock(&self.memory).cache.get(now, identity, &scope);
        if let Some(answer) = known.fresh {
            return AccessVerdict::remembered(answer);
        }

        let outcome = if known.failing {
            Err("the last review failed a moment ago".to_owned())
        } else {
            let review = self.review(identity, scope);
            timeout(deadline.saturating_sub(now), review)
                .await
                .unwrap_or_else(|_| Err("the API server did not respond in time".to_owned()))
        };

        match outcome {
            Ok(ReviewAnswer::Allowed) => AccessVerdict::Allowed(PermissionSource::Asked),
            Ok(ReviewAnswer::Denied(reason)) => AccessVerdict::Denied(reason),
            Err(_) if known.lately_allowed => AccessVerdict::Allowed(PermissionSource::Stale),
            Err(error) => AccessVerdict::Unavailable(error),
        }
    }

    /// Returns the verdict that is possible without a review.
    fn recall(&self, identity: &UserIdentity, scope: &AnswerScope) -> Option<AccessVerdict> {
        let known = lock(&self.memory).cache.get(self.clock.elapsed(), identity, scope);
        let stale = known.lately_allowed.then_some(AccessVerdict::Allowed(PermissionSource::Stale));
        known.fresh.map(AccessVerdict::remembered).or(stale)
    }

    /// Returns the review of this key: the one in progress, or a new one.
    fn review(&self, identity: &UserIdentity, scope: AnswerScope) -> PendingReview {
        let key = (identity.clone(), scope);
        let mut memory = lock(&self.memory);
        if let Some(flight) = memory.flights.get(&key)
            && flight.peek().is_none()
        {
            return flight.clone();
        }
        if memory.flights.len() >= REVIEWS_MAX {
            let busy = Err("too many reviews are in progress".to_owned());
            return std::future::ready(busy).boxed().shared();
        }

        let review = review_and_remember(
            self.client.clone(),
            self.clock,
            Arc::clone(&self.memory),
            key.0.clone(),
            key.1.clone(),
        );
        let span = debug_span!("subject_access_review", user = %key.0.user, scope = ?key.1);
        let flight = self
            .tracker
            .spawn(review.instrument(span))
            .map(|joined| joined.unwrap_or_else(|_| Err("the review was canceled".to_owned())))
            .boxed()
            .shared();

        memory.flights.insert(key, flight.clone());
        flight
    }
}

impl Authorize for SubjectAccessReviews {
    fn authorize<'a>(
        &'a self,
        identity: &'a UserIdentity,
        access: &'a Access,
    ) -> BoxFuture<'a, AccessVerdict> {
        async move {
            if identity.groups.iter().any(|group| group == MASTERS) {
                return AccessVerdict::Allowed(PermissionSource::Trusted);
            }

            let deadline = self.clock.elapsed() + WAIT_MAX;
            let all = match access.object {
                None => AnswerScope::Everything,
                Some(_) => AnswerScope::EveryObject,
            };
            let coarse = self.verdict(deadline, identity, all).await;
            let exact = AnswerScope::Metric(access.clone());
            match coarse {
                AccessVerdict::Allowed(_) => coarse,
                AccessVerdict::Denied(_) => self.verdict(deadline, identity, exact).await,
                // Another review would fail as well, but its result may be cached.
                AccessVerdict::Unavailable(_) => self.recall(identity, &exact).unwrap_or(coarse),
            }
        }
        .boxed()
    }
}

fn lock(memory: &Mutex<ReviewMemory>) -> MutexGuard<'_, ReviewMemory> {
    // A panic while the lock was held cannot leave a partial entry behind.
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn review_and_remember(
    client: kube::Client,
    clock: Clock,
    memory: Arc<Mutex<ReviewMemory>>,
    identity: UserIdentity,
    scope: AnswerScope,
) -> Result<ReviewAnswer, String> {
    let outcome = timeout(REVIEW_MAX, ask(client, &identity, &scope))
        .await
        .unwrap_or_else(|_| Err("the API server does not respond".to_owned()));
    if let Err(error) = &outcome {
        warn!(%error, "Cannot check whether a user may read metrics");
    }

    let key = (identity, scope);
    let mut locked = lock(&memory);
    locked.flights.remove(&key);

    let (identity, scope) = key;
    locked.cache.put(clock.elapsed(), identity, scope, outcome.clone().ok());
    outcome
}

async fn ask(
    client: kube::Client,
    identity: &UserIdentity,
    scope: &AnswerScope,
) -> Result<ReviewAnswer, String> {
    let review = SubjectAccessReview { spec: spec(identity, scope), ..Default::default() };
    let answered = kube::Api::<SubjectAccessReview>::all(client)
        .create(&PostParams::default(), &review)
        .await
        .map_err(|error| error.to_string())?;
    answer(answered.status.unwrap_or_default())
}

fn spec(identity: &UserIdentity, scope: &AnswerScope) -> SubjectAccessReviewSpec {
    let UserIdentity { user, groups, uid, extra } = identity.clone();
    let attributes = match scope {
        AnswerScope::Everything => of_external("", "*"),
        AnswerScope::EveryObject => {
            let everything = DescribedObject { resource: "*".to_owned(), name: String::new() };
            of_object("", &everything, "*")
        }
        AnswerScope::Metric(Access { namespace, metric, object: None }) => {
            of_external(namespace, metric)
        }
        AnswerScope::Metric(Access { namespace, metric, object: Some(object) }) => {
            of_object(namespace, object, metric)
        }
    };

    SubjectAccessReviewSpec {
        user: Some(user),
        groups: Some(groups),
        uid,
        extra: (!extra.is_empty()).then_some(extra),
        resource_attributes: Some(attributes),
        non_resource_attributes: None,
    }
}

/// An external metric as the API server sees a request for it.
fn of_external(namespace: &str, metric: &str) -> ResourceAttributes {
    ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        verb: Some("list".to_owned()),
        group: Some(GROUP.to_owned()),
        version: Some(VERSION.to_owned()),
        resource: Some(metric.to_owned()),
        ..Default::default()
    }
}

/// The metric of an object as the API server sees a request for it: a subresource.
fn of_object(namespace: &str, object: &DescribedObject, metric: &str) -> ResourceAttributes {
    let DescribedObject { resource, name } = object;
    ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        verb: Some("get".to_owned()),
        group: Some(OBJECT_GROUP.to_owned()),
        version: Some(OBJECT_VERSION.to_owned()),
        resource: Some(resource.clone()),
        subresource: Some(metric.to_owned()),
        name: Some(name.clone()).filter(|name| !name.is_empty()),
        ..Default::default()
    }
}

fn answer(status: SubjectAccessReviewStatus) -> Result<ReviewAnswer, String> {
    let SubjectAccessReviewStatus { allowed, denied, evaluation_error, reason } = status;

    match (allowed, denied.unwrap_or_default()) {
        (true, true) => Err("the API server both allows and denies it".to_owned()),
        (true, false) => Ok(ReviewAnswer::Allowed),
        (false, _) => {
            let reasons: Vec<String> = [reason, evaluation_error]
                .into_iter()
                .flatten()
                .filter(|text| !text.is_empty())
                .collect();
            Ok(ReviewAnswer::Denied(reasons.join(", ")))
        }
    }
}
