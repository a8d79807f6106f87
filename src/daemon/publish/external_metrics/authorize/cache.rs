//! The cache of authorization: answers by user and scope, bounded in time and in size.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::external_metrics::authorize::access::{AnswerScope, ReviewAnswer};
use crate::server::auth::UserIdentity;

/// The maximum number of cached answers. At this limit, the least recently used tenth is removed.
const ENTRIES_MAX: usize = 10_000;

/// The lifetimes of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLifetimes {
    /// Permission to read all metrics.
    pub everything_allowed: Duration,
    /// No permission to read all metrics. On its own this denies nothing; the review of the single
    /// metric follows.
    pub everything_denied: Duration,
    /// Permission to read one metric.
    pub metric_allowed: Duration,
    /// No permission to read one metric.
    pub metric_denied: Duration,
    /// Any permission, while no review is possible.
    pub stale_allowed: Duration,
    /// A failed review.
    pub failure: Duration,
}

impl Default for AnswerLifetimes {
    fn default() -> Self {
        Self {
            everything_allowed: Duration::from_mins(5),
            everything_denied: Duration::from_mins(1),
            metric_allowed: Duration::from_mins(1),
            // A newly granted permission should take effect soon.
            metric_denied: Duration::from_secs(10),
            stale_allowed: Duration::from_mins(10),
            failure: Duration::from_secs(1),
        }
    }
}

/// The cached facts about one question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedAnswers {
    /// An answer within its lifetime.
    pub(crate) fresh: Option<ReviewAnswer>,
    /// True if access was allowed recently enough to count while no review is possible.
    pub(crate) lately_allowed: bool,
    /// True if the last review failed a moment ago.
    pub(crate) failing: bool,
}

#[derive(Debug, Default)]
struct CacheEntry {
    answer: Option<(Duration, ReviewAnswer)>,
    failed: Option<Duration>,
    used: Duration,
}

/// Answers by user and scope. All times are on the monotonic clock.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    lifetimes: AnswerLifetimes,
    entries: BTreeMap<UserIdentity, BTreeMap<AnswerScope, CacheEntry>>,
    count: usize,
}

impl AnswerCache {
    pub(crate) fn new(lifetimes: AnswerLifetimes) -> Self {
        Self { lifetimes, entries: BTreeMap::new(), count: 0 }
    }

    /// Returns the facts cached at `now`.
    pub(crate) fn get(
        &mut self,
        now: Duration,
        identity: &UserIdentity,
        scope: &AnswerScope,
    ) -> CachedAnswers {
        let entry = self.entries.get_mut(identity).and_then(|scopes| scopes.get_mut(scope));
        let Some(entry) = entry else { return CachedAnswers::default() };
        entry.used = now;
        let failing =
            entry.failed.is_some_and(|at| now.saturating_sub(at) < self.lifetimes.failure);
        let Some((at, answer)) = &entry.answer else {
            return CachedAnswers { failing, ..CachedAnswers::default() };
        };

        let age = now.saturating_sub(*at);
        CachedAnswers {
            fresh: (age < self.lifetimes.of(scope, answer)).then(|| answer.clone()),
            lately_allowed: *answer == ReviewAnswer::Allowed && age < self.lifetimes.stale_allowed,
            failing,
        }
    }

    /// Caches an answer, or the failure to get one.
    pub(crate) fn put(
        &mut self,
        now: Duration,
        identity: UserIdentity,
        scope: AnswerScope,
        answer: Option<ReviewAnswer>,
    ) {
        let known = self.entries.get(&identity).is_some_and(|scopes| scopes.contains_key(&scope));
        if !known {
            if self.count >= ENTRIES_MAX {
                self.forget();
            }
            self.count += 1;
        }

        let entry = self.entries.entry(identity).or_default().entry(scope).or_default();
        entry.used = now;
        match answer {
            Some(answer) => {
                entry.answer = Some((now, answer));
                entry.failed = None;
            }
            None => entry.failed = Some(now),
        }
    }

    /// Removes the least recently used tenth of the entries.
    fn forget(&mut self) {
        let mut used: Vec<Duration> =
            self.entries.values().flat_map(BTreeMap::values).map(|entry| entry.used).collect();
        used.sort_unstable();
        let Some(limit) = used.get(used.len() / 10).copied() else { return };

        self.entries.retain(|_, scopes| {
            scopes.retain(|_, entry| entry.used > limit);
            !scopes.is_empty()
        });
        self.count = self.entries.values().map(BTreeMap::len).sum();
    }
}

impl AnswerLifetimes {
    fn of(&self, scope: &AnswerScope, answer: &ReviewAnswer) -> Duration {
        match (scope, answer) {
            (AnswerScope::Everything | AnswerScope::EveryObject, ReviewAnswer::Allowed) => {
                self.everything_allowed
            }
            (AnswerScope::Everything | AnswerScope::EveryObject, ReviewAnswer::Denied(_)) => {
                self.everything_denied
            }
            (AnswerScope::Metric(_), ReviewAnswer::Allowed) => self.metric_allowed,
            (AnswerScope::Metric(_), ReviewAnswer::Denied(_)) => self.metric_denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::external_metrics::authorize::access::Access;

    fn identity(user: &str) -> UserIdentity {
        UserIdentity { user: user.to_owned(), ..UserIdentity::default() }
    }

    fn metric() -> AnswerScope {
        let (namespace, metric) = ("a".to_owned(), "m".to_owned());
        AnswerScope::Metric(Access { namespace, metric, object: None })
    }

    fn denied() -> ReviewAnswer {
        ReviewAnswer::Denied("no".to_owned())
    }

    #[test]
    fn each_answer_counts_for_its_own_time() {
        for (scope, answer, seconds) in [
            (AnswerScope::Everything, ReviewAnswer::Allowed, 300),
            (AnswerScope::Everything, denied(), 60),
            (metric(), ReviewAnswer::Allowed, 60),
            (metric(), denied(), 10),
        ] {
            let mut cache = AnswerCache::new(AnswerLifetimes::default());
            let put = Duration::from_secs(1000);
            cache.put(put, identity("u"), scope.clone(), Some(answer.clone()));
            let end = put + Duration::from_secs(seconds);
            let just_before = end.checked_sub(Duration::from_millis(1)).unwrap();
            let before = cache.get(just_before, &identity("u"), &scope);
            assert_eq!(before.fresh, Some(answer), "{scope:?} for {seconds} s");
            assert_eq!(cache.get(end, &identity("u"), &scope).fresh, None, "{scope:?}");
        }
    }

    #[test]
    fn a_permission_counts_ten_minutes_without_an_api_server_and_a_denial_never() {
        let mut cache = AnswerCache::new(AnswerLifetimes::default());
        cache.put(
            Duration::ZERO,
            identity("u"),
            AnswerScope::Everything,
            Some(ReviewAnswer::Allowed),
        );
        cache.put(Duration::ZERO, identity("u"), metric(), Some(denied()));

        for (seconds, lately) in [(0, true), (599, true), (600, false)] {
            let now = Duration::from_secs(seconds);
            let allowed = cache.get(now, &identity("u"), &AnswerScope::Everything);
            assert_eq!(allowed.lately_allowed, lately, "{seconds} s");
            assert!(!cache.get(now, &identity("u"), &metric()).lately_allowed);
        }
    }

    #[test]
    fn a_failure_is_remembered_for_a_second_and_keeps_the_answer() {
        let mut cache = AnswerCache::new(AnswerLifetimes::default());
        let user = identity("u");
        cache.put(
            Duration::ZERO,
            user.clone(),
            AnswerScope::Everything,
            Some(ReviewAnswer::Allowed),
        );
        cache.put(Duration::from_secs(400), user.clone(), AnswerScope::Everything, None);

        let known = cache.get(Duration::from_millis(400_999), &user, &AnswerScope::Everything);
        assert_eq!(known, CachedAnswers { fresh: None, lately_allowed: true, failing: true });
        assert!(!cache.get(Duration::from_secs(401), &user, &AnswerScope::Everything).failing);
    }

    #[test]
    fn users_who_differ_in_anything_share_nothing() {
        let base = UserIdentity {
            user: "u".to_owned(),
            groups: vec!["g".to_owned()],
            uid: Some("1".to_owned()),
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
        };

        let mut cache = AnswerCache::new(AnswerLifetimes::default());
        cache.put(
            Duration::ZERO,
            base.clone(),
            AnswerScope::Everything,
            Some(ReviewAnswer::Allowed),
        );
        for other in [
            UserIdentity { user: "U".to_owned(), ..base.clone() },
            UserIdentity { groups: vec![], ..base.clone() },
            UserIdentity { groups: vec!["g".to_owned(), "h".to_owned()], ..base.clone() },
            UserIdentity { uid: None, ..base.clone() },
            UserIdentity { extra: BTreeMap::new(), ..base.clone() },
        ] {
            let known = cache.get(Duration::ZERO, &other, &AnswerScope::Everything);
            assert_eq!(known, CachedAnswers::default(), "{other:?}");
        }
    }

    #[test]
    fn the_cache_stays_bounded_and_keeps_what_is_used() {
        let mut cache = AnswerCache::new(AnswerLifetimes::default());
        let hpa = identity("hpa");
        cache.put(
            Duration::ZERO,
            hpa.clone(),
            AnswerScope::Everything,
            Some(ReviewAnswer::Allowed),
        );
        for second in 1..25_000 {
            let now = Duration::from_millis(second);
            cache.put(now, identity(&second.to_string()), metric(), Some(ReviewAnswer::Allowed));
            assert!(cache.get(now, &hpa, &AnswerScope::Everything).fresh.is_some(), "{second}");
            assert!(cache.count <= ENTRIES_MAX);
        }

        assert_eq!(cache.count, cache.entries.values().map(BTreeMap::len).sum::<usize>());
    }
}
