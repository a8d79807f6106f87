//! What is asked: selectors of raw samples.
//!
//! ```text
//! {__name__=~"up|…|(?:vllm:|vllm_)(?:num_requests_running|…)",namespace=~"llm",pod=~"a|b"}[45s]
//! ```
//!
//! A range selector, evaluated at one instant, gives the samples as they were scraped, each with its
//! own time; a function such as `rate` or an instant selector would give the time of the question.
//!
//! The replicas that are asked for are told apart by their labels in as few selectors as there are
//! kinds of labels to match on, and each selector is asked twice, once for the numbers and once for
//! the buckets, which are four fifths of the series: each half stays below the limits that servers
//! and proxies have for one answer. The number of queries so depends on neither models nor
//! replicas. Series that a selector brings too many of are left out after the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::collect::prometheus::{LabelNames, Wanted, Which};
use plimsoll_core::observe::engine::{Engine, Samples, common};

/// The name of the series that says whether a target answered.
pub(crate) const UP: &str = "up";

/// The longest selector. `VictoriaMetrics` refuses queries of more than 16 KiB.
const SELECTOR_MAX: usize = 12 << 10;

/// The longest selector in a URL, which proxies refuse from 8 KiB on; escapes may double it.
const SELECTOR_MAX_GET: usize = 4 << 10;

/// Which series are asked for together: one kind of label to match on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Pods that the cluster lists.
    Pods,
    /// Instances that something else lists.
    Instances,
    /// Whatever has these labels.
    Match(BTreeSet<String>),
}

impl Kind {
    /// The kind of what a variant is matched on.
    pub(crate) fn of(which: &Which) -> Self {
        match which {
            Which::Pods(_) => Self::Pods,
            Which::Instances(_) => Self::Instances,
            Which::Match(labels) => Self::Match(labels.keys().cloned().collect()),
        }
    }
}

/// The variants by kind. A kind of which no replica is listed is not asked for.
pub(crate) fn kinds(wanted: &[Wanted]) -> BTreeMap<Kind, Vec<&Wanted>> {
    let mut kinds: BTreeMap<Kind, Vec<&Wanted>> = BTreeMap::new();
    for one in wanted {
        match &one.which {
            Which::Pods(replicas) | Which::Instances(replicas) if replicas.is_empty() => {}
            Which::Pods(_) | Which::Instances(_) | Which::Match(_) => {
                kinds.entry(Kind::of(&one.which)).or_default().push(one);
            }
        }
    }
    kinds
}

/// Whether a query goes into the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The query is in the body.
    Body,
    /// The query is in the URL.
    Url,
}

/// The selector of some samples of all replicas of one kind, over the last `range`.
pub(crate) fn selector(
    wanted: &[&Wanted],
    samples: Samples,
    labels: &LabelNames,
    range: Duration,
    room: Room,
) -> String {
    let names = format!("__name__=~\"{}\"", escaped(&names(samples)));
    let most = match room {
        Room::Body => SELECTOR_MAX,
        Room::Url => SELECTOR_MAX_GET,
    };
    let [narrow, wide] = matchers(wanted, labels);
    // Too many names to list them all: what is too much is left out after the answer.
    let matchers = if names.len() + narrow.len() < most { narrow } else { wide };
    let range = range.as_secs() + u64::from(range.subsec_nanos() > 0);
    format!("{{{names}{matchers}}}[{range}s]")
}

/// A regular expression that matches the names of the samples.
fn names(samples: Samples) -> String {
    let mut names = match samples {
        Samples::Numbers => std::iter::once(UP).chain(common()).collect::<Vec<_>>().join("|") + "|",
        Samples::Buckets => String::new(),
    };
    for (at, engine) in Engine::ALL.into_iter().enumerate() {
        let bar = if at > 0 { "|" } else { "" };
        let (prefixes, own) = (engine.spellings().join("|"), engine.names(samples).join("|"));
        let _infallible = write!(names, "{bar}(?:{prefixes})(?:{own})");
    }
    names
}

/// The matchers that name each replica, and those that stay short.
fn matchers(wanted: &[&Wanted], labels: &LabelNames) -> [String; 2] {
    let LabelNames { namespace, pod, instance } = labels;
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut add = |name, value| {
        values.entry(name).or_default().insert(value);
    };
    let mut listed = None;
    for one in wanted {
        match &one.which {
            Which::Pods(replicas) => {
                listed = Some(pod);
                add(namespace, one.variant.namespace.as_str());
                for key in replicas {
                    add(pod, key.replica.as_str());
                }
            }
            Which::Instances(replicas) => {
                listed = Some(instance);
                for key in replicas {
                    add(instance, key.replica.as_str());
                }
            }
            Which::Match(matched) => {
                for (name, value) in matched {
                    add(name, value);
                }
            }
        }
    }
    let matcher = |(name, values): (&&str, &BTreeSet<&str>)| {
        let literals: Vec<String> = values.iter().map(|value| literal(value)).collect();
        format!(",{name}=~\"{}\"", escaped(&literals.join("|")))
    };
    let narrow: String = values.iter().map(matcher).collect();
    let short = values.iter().filter(|(name, _)| listed.is_none_or(|listed| listed != **name));
    let wide: String = short.map(matcher).collect();
    // A series without the label belongs to no replica.
    let wide = match listed {
        Some(listed) => format!("{wide},{listed}!=\"\""),
        None => wide,
    };
    [narrow, wide]
}

/// A regular expression that matches this text and nothing else.
fn literal(text: &str) -> String {
    let special = |c: char| r"\.+*?()|[]{}^$".contains(c);
    text.chars().fold(String::new(), |mut literal, c| {
        if special(c) {
            literal.push('\\');
        }
        literal.push(c);
        literal
    })
}

/// Text as it stands between the quotes of a matcher.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::fleet::{Namespace, ReplicaKey, ReplicaName, VariantKey, VariantName};

    fn wanted(variant: &str, which: impl FnOnce(&VariantKey) -> Which) -> Wanted {
        let variant = VariantKey {
            namespace: Namespace::new("llm").unwrap(),
            variant: VariantName::new(variant).unwrap(),
        };
        let which = which(&variant);
        Wanted { variant, models: Vec::new(), which }
    }

    fn replicas(variant: &VariantKey, names: &[String]) -> Vec<ReplicaKey> {
        let key = |name: &String| ReplicaKey {
            variant: variant.clone(),
            replica: ReplicaName::new(name).unwrap(),
            incarnation: None,
        };
        names.iter().map(key).collect()
    }

    fn pods(variant: &str, count: usize) -> Wanted {
        let names: Vec<String> = (0..count).map(|at| format!("{variant}-{at}")).collect();
        wanted(variant, |key| Which::Pods(replicas(key, &names)))
    }

    fn matched(variant: &str, labels: &[(&str, &str)]) -> Wanted {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        wanted(variant, |_| Which::Match(labels.iter().map(own).collect()))
    }

    fn select(wanted: &[&Wanted], room: Room) -> String {
        let range = Duration::from_millis(44_500);
        let text = selector(wanted, Samples::Buckets, &LabelNames::default(), range, room);
        let (names, rest) = text.split_once(")\"").unwrap();
        assert!(names.starts_with("{__name__=~\"(?:vllm:|vllm_)(?:"), "{names}");
        rest.to_owned()
    }

    #[test]
    fn pods_are_named_while_there_is_room_and_their_namespaces_always() {
        let (a, b) = (pods("a", 2), pods("b", 1));
        assert_eq!(select(&[&a, &b], Room::Body), ",namespace=~\"llm\",pod=~\"a-0|a-1|b-0\"}[45s]");
        let many = pods("many", 2000);
        assert_eq!(select(&[&many], Room::Body), ",namespace=~\"llm\",pod!=\"\"}[45s]");
        let some = pods("some", 600);
        assert!(select(&[&some], Room::Body).contains("some-599"));
        assert!(!select(&[&some], Room::Url).contains("some-599"));
    }

    #[test]
    fn what_labels_hold_is_taken_literally() {
        let odd = matched("odd", &[("job", "a.b|\"c\\"), ("zone", "1")]);
        let want = r#",job=~"a\\.b\\|\"c\\\\",zone=~"1"}[45s]"#;
        assert_eq!(select(&[&odd], Room::Body), want);
    }

    #[test]
    fn the_number_of_selectors_follows_from_the_kinds_of_labels_alone() {
        let all = [
            pods("a", 3),
            pods("b", 30),
            matched("c", &[("job", "c")]),
            matched("d", &[("job", "d")]),
            matched("e", &[("job", "e"), ("zone", "1")]),
            pods("none", 0),
        ];
        let kinds = kinds(&all);
        let sizes: Vec<usize> = kinds.values().map(Vec::len).collect();
        assert_eq!(sizes, [2, 2, 1], "pods, {{job}}, {{job, zone}}");
    }

    #[test]
    fn all_names_fit_into_a_query_and_into_a_url() {
        for samples in [Samples::Numbers, Samples::Buckets] {
            let length = names(samples).len();
            assert!(length < SELECTOR_MAX_GET - 1000, "{length}");
        }
        assert!(names(Samples::Numbers).starts_with("up|process_start_time_seconds|"));
    }
}
