//! What authorization remembers: answers by user and scope, for a bounded time, in bounded space.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::external_metrics::authorize::Access;
use crate::server::auth::Identity;

/// Answers that are remembered. Beyond it the tenth that was not used for longest is forgotten.
const ENTRIES_MAX: usize = 10_000;

/// What an answer is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// All metrics in all namespaces.
    Everything,
    /// One metric in one namespace.
    Metric(Access),
}

/// What the API server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed,
    Denied(String),
}

/// For how long answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// That all metrics may be read.
    pub everything_allowed: Duration,
    /// That not all of them may. This denies nothing by itself: the exact question follows.
    pub everything_denied: Duration,
    /// That one metric may be read.
    pub metric_allowed: Duration,
    /// That it may not.
    pub metric_denied: Duration,
    /// Any permission, while the API server cannot be asked.
    pub stale_allowed: Duration,
    /// That the API server could not be asked about this.
    pub failure: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            everything_allowed: Duration::from_mins(5),
            everything_denied: Duration::from_mins(1),
            metric_allowed: Duration::from_mins(1),
            // Who was just granted a permission should not have to wait.
            metric_denied: Duration::from_secs(10),
            stale_allowed: Duration::from_mins(10),
            failure: Duration::from_secs(1),
        }
    }
}

/// What is remembered of one question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// An answer that still counts.
    pub(crate) fresh: Option<Answer>,
    /// Whether it was allowed lately enough to count while nobody can be asked.
    pub(crate) lately_allowed: bool,
    /// Whether asking has just failed.
    pub(crate) failing: bool,
}

#[derive(Debug, Default)]
struct Entry {
    answer: Option<(Duration, Answer)>,
    failed: Option<Duration>,
    used: Duration,
}

/// Answers by user and scope. All times are on the monotonic clock.
#[derive(Debug)]
pub(crate) struct Cache {
    lifetimes: Lifetimes,
    entries: BTreeMap<Identity, BTreeMap<Scope, Entry>>,
    count: usize,
}

impl Cache {
    pub(crate) fn new(lifetimes: Lifetimes) -> Self {
        Self { lifetimes, entries: BTreeMap::new(), count: 0 }
    }

    /// What is remembered at `now`.
    pub(crate) fn get(&mut self, now: Duration, identity: &Identity, scope: &Scope) -> Known {
        let entry = self.entries.get_mut(identity).and_then(|scopes| scopes.get_mut(scope));
        let Some(entry) = entry else { return Known::default() };
        entry.used = now;
        let since = |then: Duration| now.saturating_sub(then);
        let failing = entry.failed.is_some_and(|failed| since(failed) < self.lifetimes.failure);
        let Some((at, answer)) = &entry.answer else {
            return Known { failing, ..Known::default() };
        };
        let age = since(*at);
        Known {
            fresh: (age < self.lifetimes.of(scope, answer)).then(|| answer.clone()),
            lately_allowed: *answer == Answer::Allowed && age < self.lifetimes.stale_allowed,
            failing,
        }
    }

    /// Remembers an answer, or that there was none.
    pub(crate) fn put(
        &mut self,
        now: Duration,
        (identity, scope): (Identity, Scope),
        answer: Option<Answer>,
    ) {
        let known = self.entries.get(&identity).is_some_and(|known| known.contains_key(&scope));
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

    /// Makes room.
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

impl Lifetimes {
    fn of(&self, scope: &Scope, answer: &Answer) -> Duration {
        match (scope, answer) {
            (Scope::Everything, Answer::Allowed) => self.everything_allowed,
            (Scope::Everything, Answer::Denied(_)) => self.everything_denied,
            (Scope::Metric(_), Answer::Allowed) => self.metric_allowed,
            (Scope::Metric(_), Answer::Denied(_)) => self.metric_denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str) -> Identity {
        Identity { user: user.to_owned(), ..Identity::default() }
    }

    fn metric() -> Scope {
        Scope::Metric(Access { namespace: "a".to_owned(), metric: "m".to_owned() })
    }

    fn denied() -> Answer {
        Answer::Denied("no".to_owned())
    }

    #[test]
    fn each_answer_counts_for_its_own_time() {
        for (scope, answer, seconds) in [
            (Scope::Everything, Answer::Allowed, 300),
            (Scope::Everything, denied(), 60),
            (metric(), Answer::Allowed, 60),
            (metric(), denied(), 10),
        ] {
            let mut cache = Cache::new(Lifetimes::default());
            let put = Duration::from_secs(1000);
            cache.put(put, (identity("u"), scope.clone()), Some(answer.clone()));
            let end = put + Duration::from_secs(seconds);
            let just_before = end.checked_sub(Duration::from_millis(1)).unwrap();
            let before = cache.get(just_before, &identity("u"), &scope);
            assert_eq!(before.fresh, Some(answer), "{scope:?} for {seconds} s");
            assert_eq!(cache.get(end, &identity("u"), &scope).fresh, None, "{scope:?}");
        }
    }

    #[test]
    fn a_permission_counts_ten_minutes_while_nobody_can_be_asked_and_a_denial_never() {
        let mut cache = Cache::new(Lifetimes::default());
        cache.put(Duration::ZERO, (identity("u"), Scope::Everything), Some(Answer::Allowed));
        cache.put(Duration::ZERO, (identity("u"), metric()), Some(denied()));
        for (seconds, lately) in [(0, true), (599, true), (600, false)] {
            let now = Duration::from_secs(seconds);
            let allowed = cache.get(now, &identity("u"), &Scope::Everything);
            assert_eq!(allowed.lately_allowed, lately, "{seconds} s");
            assert!(!cache.get(now, &identity("u"), &metric()).lately_allowed);
        }
    }

    #[test]
    fn a_failure_is_remembered_for_a_second_and_keeps_the_answer() {
        let mut cache = Cache::new(Lifetimes::default());
        let key = (identity("u"), Scope::Everything);
        cache.put(Duration::ZERO, key.clone(), Some(Answer::Allowed));
        cache.put(Duration::from_secs(400), key.clone(), None);
        let known = cache.get(Duration::from_millis(400_999), &key.0, &key.1);
        assert_eq!(known, Known { fresh: None, lately_allowed: true, failing: true });
        assert!(!cache.get(Duration::from_secs(401), &key.0, &key.1).failing);
    }

    #[test]
    fn users_who_differ_in_anything_share_nothing() {
        let base = Identity {
            user: "u".to_owned(),
            groups: vec!["g".to_owned()],
            uid: Some("1".to_owned()),
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
        };
        let mut cache = Cache::new(Lifetimes::default());
        cache.put(Duration::ZERO, (base.clone(), Scope::Everything), Some(Answer::Allowed));
        for other in [
            Identity { user: "U".to_owned(), ..base.clone() },
            Identity { groups: vec![], ..base.clone() },
            Identity { groups: vec!["g".to_owned(), "h".to_owned()], ..base.clone() },
            Identity { uid: None, ..base.clone() },
            Identity { extra: BTreeMap::new(), ..base.clone() },
        ] {
            let known = cache.get(Duration::ZERO, &other, &Scope::Everything);
            assert_eq!(known, Known::default(), "{other:?}");
        }
    }

    #[test]
    fn the_cache_stays_bounded_and_keeps_what_is_used() {
        let mut cache = Cache::new(Lifetimes::default());
        let hpa = identity("hpa");
        cache.put(Duration::ZERO, (hpa.clone(), Scope::Everything), Some(Answer::Allowed));
        for second in 1..25_000 {
            let now = Duration::from_millis(second);
            let key = (identity(&second.to_string()), metric());
            cache.put(now, key, Some(Answer::Allowed));
            assert!(cache.get(now, &hpa, &Scope::Everything).fresh.is_some(), "{second}");
            assert!(cache.count <= ENTRIES_MAX);
        }
        assert_eq!(cache.count, cache.entries.values().map(BTreeMap::len).sum::<usize>());
    }
}
