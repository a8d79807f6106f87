//! What is published of a namespace, as metric values.
//!
//! A reader sums all values that it is given. So a question that matches several variants is
//! answered with all of them or not at all: a sum with a part missing is a scale-down.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;

use crate::publish::external_metrics::state::{Ages, State};
use crate::publish::quantity::Quantity;
use crate::publish::selector::{Selector, is_label_value};
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::fleet::{Namespace, VariantKey, VariantName, VariantSpec};
use plimsoll_core::observe::{Freshness, Observation};

/// Longest label value in Kubernetes.
const LABEL_MAX: usize = 63;

/// Names that a message lists before it says how many there are beside them.
const NAMES_MAX: usize = 20;

/// A metric that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// The desired replica count, under our name.
    Desired,
    /// The same number under the name and the labels of the workload-variant-autoscaler, for HPAs
    /// that were written for it.
    Wva,
    /// The requests per second that a gateway may admit.
    Admissible,
}

impl Metric {
    /// The metric's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Desired => "plimsoll_desired_replicas",
            Self::Wva => "wva_desired_replicas",
            Self::Admissible => "plimsoll_admissible_requests_per_second",
        }
    }

    /// The label that a variant's name is under.
    const fn variant_label(self) -> &'static str {
        match self {
            Self::Desired | Self::Admissible => "variant",
            Self::Wva => "variant_name",
        }
    }

    /// The labels by which a variant's value is selected. What is not known has no label.
    fn labels(self, spec: &VariantSpec) -> BTreeMap<&'static str, String> {
        let variant = unique_label_value(spec.key.variant.as_str());
        let accelerator = spec.accelerator.as_ref().map(|name| label_value(name.as_str()));
        let namespace = || label_value(spec.key.namespace.as_str());
        match self {
            Self::Desired | Self::Admissible => {
                [(self.variant_label(), variant), ("model", label_value(spec.model.as_str()))]
                    .into_iter()
                    .chain([("role", spec.role.label().to_owned())])
                    .chain(accelerator.map(|name| ("accelerator", name)))
                    .collect()
            }
            Self::Wva => [(self.variant_label(), variant), ("namespace", namespace())]
                .into_iter()
                .chain([("exported_namespace", namespace())])
                .chain(accelerator.map(|name| ("accelerator_type", name)))
                .collect(),
        }
    }
}

/// One variant under one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Which metric.
    pub metric: Metric,
    /// Which variant.
    pub variant: VariantName,
    /// The labels that select it.
    pub labels: BTreeMap<&'static str, String>,
    /// What its decision's age makes of it.
    pub state: State,
    /// The value, or why there is none.
    pub value: Result<Value, String>,
}

/// A number that may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The number.
    pub quantity: Quantity,
    /// When the data that it rests on was current.
    pub at: Timestamp,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Where.
    pub namespace: &'a Namespace,
    /// Which metrics.
    pub metrics: &'a [Metric],
    /// Which variants.
    pub selector: &'a Selector,
}

/// All variants that the question is about, in the order of metrics and names, usable or not.
#[must_use]
pub fn readings(
    now: Duration,
    published: &Published,
    ages: Ages,
    question: Question<'_>,
) -> Vec<Reading> {
    let Question { namespace, metrics, selector } = question;
    let mut readings = Vec::new();
    for metric in metrics {
        for (key, variant) in
            candidates(published, namespace, selector.only_value(metric.variant_label()))
        {
            let labels = metric.labels(&variant.spec);
            if selector.matches(&labels) {
                let decided = variant.decided.as_ref().map(|decided| decided.elapsed);
                let state = State::at(now, decided, ages);
                readings.push(Reading {
                    metric: *metric,
                    variant: key.variant.clone(),
                    labels,
                    state,
                    value: value(*metric, key, variant, state, ages),
                });
            }
        }
    }
    readings
}

/// The variants of a namespace that can have this value of the variant's label, or all of them.
///
/// HPAs name their variant, and looking at all others would take most of the time. A name that is
/// no label value goes under one that ends in a hash; any other goes under itself.
fn candidates<'a>(
    published: &'a Published,
    namespace: &'a Namespace,
    label: Option<&str>,
) -> Vec<(&'a VariantKey, &'a PublishedVariant)> {
    match label {
        Some(name) if !ends_in_hash(name) => VariantName::new(name)
            .map(|variant| VariantKey { namespace: namespace.clone(), variant })
            .and_then(|key| published.variants.get_key_value(&key))
            .into_iter()
            .collect(),
        Some(_) | None => variants(published, namespace).collect(),
    }
}

/// The variants of one namespace.
fn variants<'a>(
    published: &'a Published,
    namespace: &'a Namespace,
) -> impl Iterator<Item = (&'a VariantKey, &'a PublishedVariant)> {
    // No name comes before this one, because none is empty.
    let first =
        VariantName::new("\0").map(|variant| VariantKey { namespace: namespace.clone(), variant });
    first
        .into_iter()
        .flat_map(|first| published.variants.range(first..))
        .take_while(move |(key, _)| key.namespace == *namespace)
}

fn value(
    metric: Metric,
    key: &VariantKey,
    variant: &PublishedVariant,
    state: State,
    ages: Ages,
) -> Result<Value, String> {
    let missing = missing(&variant.observation);
    let Some(decided) = &variant.decided else {
        let missing = missing.unwrap_or_else(|| "the first decision".to_owned());
        return Err(format!("no decision yet for {key}: waiting for data, {missing}"));
    };
    let desired = decided.decision.desired();
    if let Some(replicas) = state.serves(desired) {
        let quantity = match metric {
            Metric::Desired | Metric::Wva => Some(Quantity::from(replicas)),
            Metric::Admissible => decided.decision.admissible().map(|it| it.variant.into()),
        };
        return quantity.map(|quantity| Value { quantity, at: decided.at }).ok_or_else(|| {
            format!("no admissible rate of {key} is known: foresight has not sized its replicas")
        });
    }
    let age = short(state.age().unwrap_or_default());
    let limit = short(ages.hold.max(ages.fresh));
    let cause = missing.unwrap_or_else(|| "nothing newer has been decided".to_owned());
    Err(format!(
        "the decision for {key} ({desired} replicas) is {age} old (limit {limit}): {cause}"
    ))
}

/// What a variant lacks; `None` when nothing is missing.
fn missing(observation: &Observation) -> Option<String> {
    let Observation { scale_unknown, listed_at, replicas, .. } = observation;
    if let Some(why) = scale_unknown {
        return Some(why.to_string());
    }
    if listed_at.is_none() {
        return Some("the list of replicas has not arrived".to_owned());
    }
    if replicas.is_empty() {
        return Some("there are no replicas to measure".to_owned());
    }
    let silent = replicas.iter().filter(|replica| !replica.freshness.is_fresh()).count();
    let why = replicas.iter().find_map(|replica| match replica.freshness {
        Freshness::Fresh { .. } => None,
        Freshness::Stale { why, .. } | Freshness::Never { why } => why,
    });
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    (silent > 0).then(|| format!("{silent} of {} replicas have no fresh data{why}", replicas.len()))
}

/// Why a question matches nothing, with what there is instead.
#[must_use]
pub fn unmatched(published: &Published, namespace: &Namespace, selector: &Selector) -> String {
    let names: Vec<&str> =
        variants(published, namespace).map(|(key, _)| key.variant.as_str()).collect();
    if names.is_empty() {
        return format!("there is no variant in namespace {namespace}");
    }
    let mut message = format!(
        "no variant in namespace {namespace} matches the selector \"{selector}\"; there are: {}",
        names[..names.len().min(NAMES_MAX)].join(", ")
    );
    if names.len() > NAMES_MAX {
        let _ = write!(message, " and {} more", names.len() - NAMES_MAX);
    }
    message
}

/// The text, or something like it that labels can have as a value: characters that they cannot
/// have become dashes, and a text that is too long ends in a hash of the whole.
#[must_use]
pub fn label_value(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let replaced: String = text.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let trimmed = replaced.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if trimmed.len() <= LABEL_MAX { trimmed.to_owned() } else { with_hash(trimmed, text) }
}

/// As [`label_value`], but different for different texts: two variants under one label would be
/// summed.
fn unique_label_value(text: &str) -> String {
    if is_label_value(text) { text.to_owned() } else { with_hash(&label_value(text), text) }
}

/// Hexadecimal digits of a hash in a label value.
const HASH_DIGITS: usize = 16;

/// Whether [`with_hash`] may have made this value.
fn ends_in_hash(value: &str) -> bool {
    let bytes = value.as_bytes();
    let hash = bytes.last_chunk::<HASH_DIGITS>();
    hash.is_some_and(|hash| hash.iter().all(u8::is_ascii_hexdigit))
}

fn with_hash(value: &str, text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let hash = format!("{:0HASH_DIGITS$x}", hasher.finish());
    let room = LABEL_MAX - hash.len() - 1;
    let kept =
        value[..value.len().min(room)].trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    if kept.is_empty() { hash } else { format!("{kept}-{hash}") }
}

/// A length of time as people say it: `7m12s`.
#[must_use]
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes, seconds) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, 0) => format!("{minutes}m"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, 0, _) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_model_name_becomes_a_label_value() {
        for (text, label) in [
            ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama-Llama-3.1-8B-Instruct"),
            ("/models/qwen/", "models-qwen"),
            ("a b", "a-b"),
            ("é", ""),
        ] {
            assert_eq!(label_value(text), label);
        }
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (300, "5m"), (432, "7m12s"), (3600, "1h"), (3720, "1h2m")]
        {
            assert_eq!(short(Duration::from_secs(seconds)), text);
        }
    }

    proptest! {
        #[test]
        fn every_text_becomes_a_label_value(text: String, long in "[a-z/_.]{0,200}") {
            for text in [text, long] {
                let values = [label_value(&text), unique_label_value(&text)];
                for value in values {
                    prop_assert!(is_label_value(&value), "{:?} -> {:?}", text, value);
                }
            }
        }

        #[test]
        fn a_name_that_is_no_label_value_goes_under_one_that_ends_in_a_hash(name in "[a/_.é]{1,70}") {
            let label = unique_label_value(&name);
            prop_assert!(label == name || ends_in_hash(&label), "{:?} -> {:?}", name, label);
        }

        #[test]
        fn different_variants_have_different_labels(one in "[a/_.]{1,70}", two in "[a/_.]{1,70}") {
            prop_assert_eq!(one == two, unique_label_value(&one) == unique_label_value(&two));
        }
    }
}
