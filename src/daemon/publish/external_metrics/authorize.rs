//! Whether a user may read a metric.
//!
//! The API server of the cluster has already asked that before it forwarded the request, but the
//! contract between it and us says that this must not be relied on. [`SubjectAccessReviews`] asks
//! it again. Asking for every metric anew would cost one review for each HPA at each of its syncs,
//! from a priority level at which they are throttled, and a throttled review is a scale-up that
//! does not happen. So the first question about a user is the coarsest: may they read *all* metrics
//! everywhere? HPA controllers may, and then one review in five minutes is all that they cost. This
//! is sound because in RBAC only a rule for `*` allows `*`. Only users who may not are asked about
//! metric by metric.
//!
//! When no review can be made, a permission that was given in the last ten minutes still holds:
//! losing the API server must not lose the metrics. A user about whom nothing is known gets an
//! error, never a permission.

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
use crate::publish::external_metrics::authorize::cache::{Answer, Cache, Scope};
use crate::publish::external_metrics::route::{GROUP, VERSION};
use crate::server::auth::Identity;

pub use crate::publish::external_metrics::authorize::cache::Lifetimes;

/// Its members may do everything, so there is nothing to ask.
const MASTERS: &str = "system:masters";

/// How long a request waits for reviews, which leaves it time to answer within its second.
const WAIT_MAX: Duration = Duration::from_millis(800);

/// How long a review may take. It goes on when the request that wanted it has given up, so that
/// the next one finds the answer.
const REVIEW_MAX: Duration = Duration::from_secs(10);

/// Reviews under way at one time; one more than that is refused.
const REVIEWS_MAX: usize = 256;

/// What a user wants to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Where.
    pub namespace: String,
    /// Which metric.
    pub metric: String,
}

/// Where a permission comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The front proxy is believed, or the user may do everything.
    Trusted,
    /// It was remembered.
    Cached,
    /// The API server was asked.
    Asked,
    /// It was remembered for longer than usual, because the API server cannot be asked.
    Stale,
}

/// Whether the user may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Allowed(Source),
    /// No, and what the API server says about it.
    Denied(String),
    /// Nobody can say, and why.
    Unavailable(String),
}

impl Verdict {
    fn remembered(answer: Answer) -> Self {
        match answer {
            Answer::Allowed => Self::Allowed(Source::Cached),
            Answer::Denied(reason) => Self::Denied(reason),
        }
    }

    /// The verdict as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Allowed(Source::Trusted) => "allowed_trusted",
            Self::Allowed(Source::Cached) => "allowed_cached",
            Self::Allowed(Source::Asked) => "allowed_asked",
            Self::Allowed(Source::Stale) => "allowed_stale",
            Self::Denied(_) => "denied",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// Decides whether a user may read a metric.
pub trait Authorize: Send + Sync {
    /// The verdict on one access.
    fn authorize<'a>(
        &'a self,
        identity: &'a Identity,
        access: &'a Access,
    ) -> BoxFuture<'a, Verdict>;
}

/// Believes that the front proxy has authorized what it forwards.
#[derive(Clone, Copy, Debug)]
pub struct TrustFrontProxy;

impl Authorize for TrustFrontProxy {
    fn authorize<'a>(&'a self, _: &'a Identity, _: &'a Access) -> BoxFuture<'a, Verdict> {
        std::future::ready(Verdict::Allowed(Source::Trusted)).boxed()
    }
}

/// Asks the API server, and remembers what it said.
pub struct SubjectAccessReviews {
    client: kube::Client,
    clock: Clock,
    tracker: TaskTracker,
    memory: Arc<Mutex<Memory>>,
}

struct Memory {
    cache: Cache,
    flights: BTreeMap<(Identity, Scope), Flight>,
}

/// A review that is under way, to be awaited by everybody who needs it.
type Flight = Shared<BoxFuture<'static, Result<Answer, String>>>;

impl SubjectAccessReviews {
    /// Asks through `client`, on tasks of `tracker`.
    #[must_use]
    pub fn new(
        client: kube::Client,
        clock: Clock,
        lifetimes: Lifetimes,
        tracker: TaskTracker,
    ) -> Self {
        let memory = Memory { cache: Cache::new(lifetimes), flights: BTreeMap::new() };
        Self { client, clock, tracker, memory: Arc::new(Mutex::new(memory)) }
    }

    async fn verdict(&self, deadline: Duration, identity: &Identity, scope: Scope) -> Verdict {
        let now = self.clock.elapsed();
        let known = lock(&self.memory).cache.get(now, identity, &scope);
        if let Some(answer) = known.fresh {
            return Verdict::remembered(answer);
        }
        let outcome = if known.failing {
            Err("the last review failed a moment ago".to_owned())
        } else {
            let review = self.review(identity, scope);
            timeout(deadline.saturating_sub(now), review)
                .await
                .unwrap_or_else(|_| Err("the API server has not answered in time".to_owned()))
        };
        match outcome {
            Ok(Answer::Allowed) => Verdict::Allowed(Source::Asked),
            Ok(Answer::Denied(reason)) => Verdict::Denied(reason),
            Err(_) if known.lately_allowed => Verdict::Allowed(Source::Stale),
            Err(error) => Verdict::Unavailable(error),
        }
    }

    /// What can be said without asking.
    fn recall(&self, identity: &Identity, scope: &Scope) -> Option<Verdict> {
        let known = lock(&self.memory).cache.get(self.clock.elapsed(), identity, scope);
        let stale = known.lately_allowed.then_some(Verdict::Allowed(Source::Stale));
        known.fresh.map(Verdict::remembered).or(stale)
    }

    /// The review of this key: the one that is under way, or else a new one.
    fn review(&self, identity: &Identity, scope: Scope) -> Flight {
        let key = (identity.clone(), scope);
        let mut memory = lock(&self.memory);
        if let Some(flight) = memory.flights.get(&key)
            && flight.peek().is_none()
        {
            return flight.clone();
        }
        if memory.flights.len() >= REVIEWS_MAX {
            let busy = Err("too many reviews are under way".to_owned());
            return std::future::ready(busy).boxed().shared();
        }
        let task = review_and_remember(
            self.client.clone(),
            self.clock,
            Arc::clone(&self.memory),
            key.clone(),
        );
        let span = debug_span!("subject_access_review", user = %key.0.user, scope = ?key.1);
        let task = self.tracker.spawn(task.instrument(span));
        let flight = task
            .map(|joined| joined.unwrap_or_else(|_| Err("the review was cancelled".to_owned())))
            .boxed()
            .shared();
        memory.flights.insert(key, flight.clone());
        flight
    }
}

impl Authorize for SubjectAccessReviews {
    fn authorize<'a>(
        &'a self,
        identity: &'a Identity,
        access: &'a Access,
    ) -> BoxFuture<'a, Verdict> {
        async move {
            if identity.groups.iter().any(|group| group == MASTERS) {
                return Verdict::Allowed(Source::Trusted);
            }
            let deadline = self.clock.elapsed() + WAIT_MAX;
            let coarse = self.verdict(deadline, identity, Scope::Everything).await;
            let exact = Scope::Metric(access.clone());
            match coarse {
                Verdict::Allowed(_) => coarse,
                Verdict::Denied(_) => self.verdict(deadline, identity, exact).await,
                // Another question would fail as well, but the answer may be known.
                Verdict::Unavailable(_) => self.recall(identity, &exact).unwrap_or(coarse),
            }
        }
        .boxed()
    }
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    // A panic while it was held cannot have left half an entry behind.
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn review_and_remember(
    client: kube::Client,
    clock: Clock,
    memory: Arc<Mutex<Memory>>,
    (identity, scope): (Identity, Scope),
) -> Result<Answer, String> {
    let outcome = timeout(REVIEW_MAX, ask(client, &identity, &scope))
        .await
        .unwrap_or_else(|_| Err("the API server does not answer".to_owned()));
    if let Err(error) = &outcome {
        warn!(%error, "Cannot ask whether a user may read metrics");
    }
    let mut memory = lock(&memory);
    let key = (identity, scope);
    memory.flights.remove(&key);
    memory.cache.put(clock.elapsed(), key, outcome.clone().ok());
    outcome
}

async fn ask(client: kube::Client, identity: &Identity, scope: &Scope) -> Result<Answer, String> {
    let review = SubjectAccessReview { spec: spec(identity, scope), ..Default::default() };
    let answered = kube::Api::<SubjectAccessReview>::all(client)
        .create(&PostParams::default(), &review)
        .await
        .map_err(|error| error.to_string())?;
    answer(answered.status.unwrap_or_default())
}

fn spec(identity: &Identity, scope: &Scope) -> SubjectAccessReviewSpec {
    let Identity { user, groups, uid, extra } = identity.clone();
    let (namespace, resource) = match scope {
        Scope::Everything => (String::new(), "*".to_owned()),
        Scope::Metric(Access { namespace, metric }) => (namespace.clone(), metric.clone()),
    };
    SubjectAccessReviewSpec {
        user: Some(user),
        groups: Some(groups),
        uid,
        extra: (!extra.is_empty()).then_some(extra),
        resource_attributes: Some(ResourceAttributes {
            namespace: Some(namespace),
            verb: Some("list".to_owned()),
            group: Some(GROUP.to_owned()),
            version: Some(VERSION.to_owned()),
            resource: Some(resource),
            ..Default::default()
        }),
        non_resource_attributes: None,
    }
}

fn answer(status: SubjectAccessReviewStatus) -> Result<Answer, String> {
    let SubjectAccessReviewStatus { allowed, denied, evaluation_error, reason } = status;
    match (allowed, denied.unwrap_or_default()) {
        (true, true) => Err("the API server both allows and denies it".to_owned()),
        (true, false) => Ok(Answer::Allowed),
        (false, _) => {
            let said = [reason, evaluation_error].into_iter().flatten();
            let said: Vec<String> = said.filter(|text| !text.is_empty()).collect();
            Ok(Answer::Denied(said.join(", ")))
        }
    }
}
