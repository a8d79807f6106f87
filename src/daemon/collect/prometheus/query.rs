//! The queries: selectors of raw samples.
//!
//! ```text
//! {__name__=~"up|…|(?:vllm:|vllm_)(?:num_requests_running|…)",namespace=~"llm",pod=~"a|b"}[45s]
//! ```
//!
//! A range selector, evaluated at one instant, returns the samples as they were scraped, each with
//! its own time. A function such as `rate` or an instant selector would return the time of the
//! query.
//!
//! Each kind of label to match on has one selector for all replicas of that kind. Each selector is
//! queried twice, once for the numbers and once for the buckets, which are four fifths of the
//! series. Each half thus stays below the limits that servers and proxies have for one answer. The
//! number of queries therefore depends on neither models nor replicas. Excess series that a
//! selector returns are dropped after the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::collect::prometheus::selection::{LabelNames, SeriesSelection, VariantQuery};
use crate::collect::prometheus::settings::PrometheusSettings;
use plimsoll_core::observe::engine::{Engine, Samples, common};

/// The name of the series that shows whether a target responded to its scrape.
pub(crate) const UP: &str = "up";

/// The longest selector. `VictoriaMetrics` refuses queries of more than 16 KiB.
const SELECTOR_MAX: usize = 12 << 10;

/// The longest selector in a URL. Proxies refuse URLs from 8 KiB on, and escapes may double the
/// length.
const SELECTOR_MAX_GET: usize = 4 << 10;

/// The kind of label to match on. Series of one kind share a query.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MatchKind {
    /// Pods that the cluster lists.
    Pods,
    /// Instances that a source outside the cluster lists.
    Instances,
    /// All series that have these labels.
    Match(BTreeSet<String>),
}

impl MatchKind {
    /// Returns the kind of label that a variant is matched on.
    pub(crate) fn of(which: &SeriesSelection) -> Self {
        match which {
            SeriesSelection::Pods(_) => Self::Pods,
            SeriesSelection::Instances(_) => Self::Instances,
            SeriesSelection::Match(labels) => Self::Match(labels.keys().cloned().collect()),
        }
    }
}

/// Groups the variants by kind. A kind without a listed replica is not queried.
pub(crate) fn kinds(wanted: &[VariantQuery]) -> BTreeMap<MatchKind, Vec<&VariantQuery>> {
    let mut kinds: BTreeMap<MatchKind, Vec<&VariantQuery>> = BTreeMap::new();
    for one in wanted {
        match &one.which {
            SeriesSelection::Pods(replicas) | SeriesSelection::Instances(replicas)
                if replicas.is_empty() => {}
            SeriesSelection::Pods(_)
            | SeriesSelection::Instances(_)
            | SeriesSelection::Match(_) => {
                kinds.entry(MatchKind::of(&one.which)).or_default().push(one);
            }
        }
    }

    kinds
}

/// The part of the request that contains a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryPlacement {
    /// The body.
    Body,
    /// The URL.
    Url,
}

/// Returns the selector for these samples of all replicas of one kind, over the last `range`.
pub(crate) fn selector(
    wanted: &[&VariantQuery],
    samples: Samples,
    settings: &PrometheusSettings,
    range: Duration,
    room: QueryPlacement,
) -> String {
    let common = settings.matched.iter().map(|(name, value)| equality(name, value));
    let names = format!("__name__=~\"{}\"{}", escaped(&names(samples)), common.collect::<String>());
    let most = match room {
        QueryPlacement::Body => SELECTOR_MAX,
        QueryPlacement::Url => SELECTOR_MAX_GET,
    };

    let [narrow, wide] = matchers(wanted, &settings.labels);
    // If there are too many names to list, excess series are dropped after the answer.
    let matchers = if names.len() + narrow.len() < most { narrow } else { wide };
    let seconds = range.as_secs() + u64::from(range.subsec_nanos() > 0);
    format!("{{{names}{matchers}}}[{seconds}s]")
}

/// Returns a regular expression that matches the names of the samples.
fn names(samples: Samples) -> String {
    let mut names = match samples {
        Samples::Numbers => std::iter::once(UP).chain(common()).collect::<Vec<_>>().join("|") + "|",
        Samples::Buckets => String::new(),
    };
    for (at, engine) in Engine::ALL.into_iter().enumerate() {
        let bar = if at > 0 { "|" } else { "" };
        let prefixes = engine.spellings().join("|");
        let own = engine.names(samples).join("|");
        let _infallible = write!(names, "{bar}(?:{prefixes})(?:{own})");
    }

    names
}

/// Returns the matchers that name each replica, and shorter ones without those names.
fn matchers(wanted: &[&VariantQuery], labels: &LabelNames) -> [String; 2] {
    let LabelNames { namespace, pod, instance } = labels;
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut listed = None;
    for one in wanted {
        match &one.which {
            SeriesSelection::Pods(replicas) => {
                listed = Some(pod);
                values.entry(namespace).or_default().insert(one.variant.namespace.as_str());
                for key in replicas {
                    values.entry(pod).or_default().insert(key.replica.as_str());
                }
            }
            SeriesSelection::Instances(replicas) => {
                listed = Some(instance);
                for key in replicas {
                    values.entry(instance).or_default().insert(key.replica.as_str());
                }
            }
            SeriesSelection::Match(matched) => {
                for (name, value) in matched {
                    values.entry(name).or_default().insert(value);
                }
            }
        }
    }

    let narrow: String = values.iter().map(|(name, values)| matcher(name, values)).collect();
    let others = values.iter().filter(|(name, _)| listed.is_none_or(|listed| listed != **name));
    let short: String = others.map(|(name, values)| matcher(name, values)).collect();
    // A series without the label belongs to no replica.
    let wide = match listed {
        Some(listed) => format!("{short},{listed}!=\"\""),
        None => short,
    };
    [narrow, wide]
}

/// Returns a matcher of a label with one of these values.
fn matcher(name: &str, values: &BTreeSet<&str>) -> String {
    let literals: Vec<String> = values.iter().map(|value| literal(value)).collect();
    format!(",{name}=~\"{}\"", escaped(&literals.join("|")))
}

/// Returns a matcher of a label with this value.
fn equality(name: &str, value: &str) -> String {
    format!(",{name}=\"{}\"", escaped(value))
}

/// Returns a regular expression that matches only this text.
fn literal(text: &str) -> String {
    let mut literal = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            literal.push('\\');
        }
        literal.push(c);
    }

    literal
}

/// Escapes text for the quotes of a matcher.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::fleet::{Namespace, ReplicaKey, ReplicaName, VariantKey, VariantName};

    fn wanted(name: &str, which: impl FnOnce(&VariantKey) -> SeriesSelection) -> VariantQuery {
        let variant = VariantKey {
            namespace: Namespace::new("llm").unwrap(),
            variant: VariantName::new(name).unwrap(),
        };
        let which = which(&variant);
        VariantQuery { variant, models: Vec::new(), which }
    }

    fn replicas(variant: &VariantKey, names: &[String]) -> Vec<ReplicaKey> {
        let keys = names.iter().map(|name| ReplicaKey {
            variant: variant.clone(),
            replica: ReplicaName::new(name).unwrap(),
            incarnation: None,
        });
        keys.collect()
    }

    fn pods(variant: &str, count: usize) -> VariantQuery {
        let names: Vec<String> = (0..count).map(|at| format!("{variant}-{at}")).collect();
        wanted(variant, |key| SeriesSelection::Pods(replicas(key, &names)))
    }

    fn settings(matched: &[(&str, &str)]) -> PrometheusSettings {
        let pairs = matched.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        PrometheusSettings { matched: pairs.collect(), ..PrometheusSettings::unused() }
    }

    fn matched(variant: &str, labels: &[(&str, &str)]) -> VariantQuery {
        let pairs = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        wanted(variant, |_| SeriesSelection::Match(pairs.collect()))
    }

    fn select(wanted: &[&VariantQuery], room: QueryPlacement) -> String {
        let range = Duration::from_millis(44_500);
        let text = selector(wanted, Samples::Buckets, &settings(&[]), range, room);
        let (names, rest) = text.split_once(")\"").unwrap();
        assert!(names.starts_with("{__name__=~\"(?:vllm:|vllm_)(?:"), "{names}");
        rest.to_owned()
    }

    #[test]
    fn labels_that_all_series_must_have_stand_beside_those_of_a_variant() {
        let pod = pods("a", 1);
        let other = matched("b", &[("cluster", "there")]);
        let here = settings(&[("cluster", "here"), ("region", "\"x\"")]);
        for (variant, want) in [
            (pod, r#",cluster="here",region="\"x\"",namespace=~"llm",pod=~"a-0"}[1s]"#),
            (other, r#",cluster="here",region="\"x\"",cluster=~"there"}[1s]"#),
        ] {
            let range = Duration::from_secs(1);
            let body = QueryPlacement::Body;
            let text = selector(&[&variant], Samples::Numbers, &here, range, body);
            assert!(text.ends_with(want), "{text}");
        }
    }

    #[test]
    fn pods_are_named_while_there_is_room_and_their_namespaces_always() {
        let a = pods("a", 2);
        let b = pods("b", 1);
        assert_eq!(
            select(&[&a, &b], QueryPlacement::Body),
            ",namespace=~\"llm\",pod=~\"a-0|a-1|b-0\"}[45s]"
        );

        let many = pods("many", 2000);
        assert_eq!(select(&[&many], QueryPlacement::Body), ",namespace=~\"llm\",pod!=\"\"}[45s]");

        let some = pods("some", 600);
        assert!(select(&[&some], QueryPlacement::Body).contains("some-599"));
        assert!(!select(&[&some], QueryPlacement::Url).contains("some-599"));
    }

    #[test]
    fn what_labels_hold_is_taken_literally() {
        let odd = matched("odd", &[("job", "a.b|\"c\\"), ("zone", "1")]);
        let want = r#",job=~"a\\.b\\|\"c\\\\",zone=~"1"}[45s]"#;
        assert_eq!(select(&[&odd], QueryPlacement::Body), want);
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
