//! The published decisions of a namespace, as metric values.
//!
//! A client sums all values that it gets. So a question that matches several variants returns all
//! of them or an error. A sum with a missing part would cause a scale-down.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;

use crate::publish::external_metrics::route::MetricScope;
use crate::publish::external_metrics::state::{DecisionAges, DecisionState};
use crate::publish::quantity::Quantity;
use crate::publish::selector::{Selector, is_label_value};
use crate::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll_core::decide::{Basis, NoData, ReasonCode};
use plimsoll_core::fleet::{Namespace, VariantKey, VariantName, VariantSpec};
use plimsoll_core::observe::{Freshness, Observation};
use plimsoll_core::units::{NounCount, Replicas};

/// The maximum length of a label value in Kubernetes.
const LABEL_MAX: usize = 63;

/// The maximum number of names in a message; further names are only counted.
const NAMES_MAX: usize = 20;

/// A metric that the API serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServedMetric {
    /// The desired replicas, under Plimsoll's name.
    Desired,
    /// The desired replicas under the name and labels of the workload-variant-autoscaler, for HPAs
    /// that were written for it.
    Wva,
    /// The requests per second that a gateway may admit.
    Admissible,
}

impl ServedMetric {
    /// Returns the name of the metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Desired => "plimsoll_desired_replicas",
            Self::Wva => "wva_desired_replicas",
            Self::Admissible => "plimsoll_admissible_requests_per_second",
        }
    }

    /// Returns the label that holds the variant's name.
    const fn variant_label(self) -> &'static str {
        match self {
            Self::Desired | Self::Admissible => "variant",
            Self::Wva => "variant_name",
        }
    }

    /// Returns the labels that select a variant's value. Unknown values have no label.
    fn labels(self, spec: &VariantSpec) -> BTreeMap<&'static str, String> {
        let variant = unique_label_value(spec.key.variant.as_str());
        let accelerator = spec.accelerator.as_ref().map(|name| label_value(name.as_str()));

        match self {
            Self::Desired | Self::Admissible => {
                [(self.variant_label(), variant), ("model", label_value(spec.model.as_str()))]
                    .into_iter()
                    .chain([("role", spec.role.label().to_owned())])
                    .chain(accelerator.map(|name| ("accelerator", name)))
                    .collect()
            }
            Self::Wva => {
                let namespace = label_value(spec.key.namespace.as_str());
                [(self.variant_label(), variant), ("namespace", namespace.clone())]
                    .into_iter()
                    .chain([("exported_namespace", namespace)])
                    .chain(accelerator.map(|name| ("accelerator_type", name)))
                    .collect()
            }
        }
    }
}

/// One variant under one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricReading {
    /// The metric.
    pub metric: ServedMetric,
    /// The namespace of the variant.
    pub namespace: Namespace,
    /// The variant.
    pub variant: VariantName,
    /// The labels that select it.
    pub labels: BTreeMap<&'static str, String>,
    /// The state of its decision.
    pub state: DecisionState,
    /// The value, or the reason why it is missing.
    pub value: Result<ServedValue, String>,
}

/// A value that may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedValue {
    /// The value.
    pub quantity: Quantity,
    /// The time when the underlying data was current.
    pub at: Timestamp,
}

/// The desired replicas of one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredReading {
    /// The state of its decision.
    pub state: DecisionState,
    /// The desired replicas, or the reason why there are none to serve.
    pub replicas: Result<Replicas, String>,
}

/// A request for metric values.
#[derive(Clone, Copy, Debug)]
pub struct MetricRequest<'a> {
    /// The namespaces.
    pub scope: &'a MetricScope,
    /// The metrics.
    pub metrics: &'a [ServedMetric],
    /// The selector for variants.
    pub selector: &'a Selector,
}

/// A variant, and the state of its decision at one instant.
#[derive(Clone, Copy, Debug)]
struct VariantAnswer<'a> {
    key: &'a VariantKey,
    variant: &'a PublishedVariant,
    state: DecisionState,
    ages: DecisionAges,
    /// True if several replicas of the daemon share their decisions.
    is_shared: bool,
}

/// Returns all variants that match the question, usable or not, ordered by metric and name.
#[must_use]
pub fn readings(
    now: Duration,
    published: &Published,
    ages: DecisionAges,
    question: MetricRequest<'_>,
) -> Vec<MetricReading> {
    let MetricRequest { scope, metrics, selector } = question;
    let mut readings = Vec::new();
    for metric in metrics {
        for (key, variant) in
            candidates(published, scope, selector.only_value(metric.variant_label()))
        {
            let mut labels = metric.labels(&variant.spec);
            if *scope == MetricScope::AllNamespaces {
                labels.insert("namespace", label_value(key.namespace.as_str()));
            }
            if selector.matches(&labels) {
                let answer = VariantAnswer::new(now, published, ages, key, variant);
                readings.push(MetricReading {
                    metric: *metric,
                    namespace: key.namespace.clone(),
                    variant: key.variant.clone(),
                    labels,
                    state: answer.state,
                    value: answer.value(*metric),
                });
            }
        }
    }

    readings
}

/// Returns the desired replicas of one variant, judged as all metrics are; `None` if the variant does
/// not exist.
#[must_use]
pub fn desired(
    now: Duration,
    published: &Published,
    ages: DecisionAges,
    key: &VariantKey,
) -> Option<DesiredReading> {
    let variant = published.variants.get(key)?;
    let answer = VariantAnswer::new(now, published, ages, key, variant);
    let replicas = answer.served().map(|(_, served)| served);
    Some(DesiredReading { state: answer.state, replicas })
}

/// Returns the variants of the namespaces that can have this label value for their name; without a
/// label, all of them.
///
/// HPAs select their variant by name, and scanning all other variants would take most of the time.
/// A name that is a valid label value is its own label. The label of any other name ends in a hash,
/// so only such a label requires a scan.
fn candidates<'a>(
    published: &'a Published,
    scope: &'a MetricScope,
    label: Option<&str>,
) -> Vec<(&'a VariantKey, &'a PublishedVariant)> {
    match (scope, label) {
        (MetricScope::Namespace(namespace), Some(name)) if !ends_in_hash(name) => {
            VariantName::new(name)
                .map(|variant| VariantKey { namespace: namespace.clone(), variant })
                .and_then(|key| published.variants.get_key_value(&key))
                .into_iter()
                .collect()
        }
        (MetricScope::Namespace(namespace), _) => variants(published, namespace).collect(),
        (MetricScope::AllNamespaces, _) => published.variants.iter().collect(),
    }
}

/// Returns the variants of one namespace.
fn variants<'a>(
    published: &'a Published,
    namespace: &'a Namespace,
) -> impl Iterator<Item = (&'a VariantKey, &'a PublishedVariant)> {
    // No name sorts before this one, because no name is empty.
    let first =
        VariantName::new("\0").map(|variant| VariantKey { namespace: namespace.clone(), variant });
    first
        .into_iter()
        .flat_map(|first| published.variants.range(first..))
        .take_while(move |(key, _)| key.namespace == *namespace)
}

impl<'a> VariantAnswer<'a> {
    fn new(
        now: Duration,
        published: &Published,
        ages: DecisionAges,
        key: &'a VariantKey,
        variant: &'a PublishedVariant,
    ) -> Self {
        let decided = variant.decided.as_ref().map(|it| it.elapsed);
        let state = DecisionState::at(now, decided, ages);
        Self { key, variant, state, ages, is_shared: published.decided_by.is_some() }
    }

    /// Returns the decision with the desired replicas to serve, or the reason why there are none.
    fn served(&self) -> Result<(&'a PublishedDecision, Replicas), String> {
        let Self { variant, state, .. } = *self;
        variant
            .decided
            .as_ref()
            .and_then(|decided| Some((decided, state.serves(decided.decision.desired())?)))
            .ok_or_else(|| self.refusal())
    }

    fn value(&self, metric: ServedMetric) -> Result<ServedValue, String> {
        let (decided, replicas) = self.served()?;
        let quantity = match metric {
            ServedMetric::Desired | ServedMetric::Wva => Some(Quantity::from(replicas)),
            ServedMetric::Admissible => decided.decision.admissible.map(|it| it.variant.into()),
        };

        quantity.map(|quantity| ServedValue { quantity, at: decided.at }).ok_or_else(|| {
            let key = self.key;
            format!("the admissible rate of {key} is unknown: foresight has not sized its replicas")
        })
    }

    /// Returns the reason that a variant has no desired replicas to serve in its state.
    fn refusal(&self) -> String {
        let Self { key, variant, state, ages, .. } = *self;
        let Some(decided) = &variant.decided else {
            return format!("no decision yet for {key}: {}", self.cold());
        };

        let age = short(state.age().unwrap_or_default());
        let limit = short(ages.hold.max(ages.fresh));
        let number = decided.decision.desired().counted();
        let cause = self.expired(decided);
        format!("the decision for {key} ({number}) is {age} old (limit {limit}): {cause}")
    }

    /// Returns the cause that no decision can be shown.
    fn cold(&self) -> String {
        let missing = missing(&self.variant.observation);
        let why = self.variant.undecided.as_ref().map(|undecided| &undecided.0);
        match why {
            Some(NoData::Refused) => with_remedy(NoData::Refused.to_string(), &NoData::Refused),
            // The replica that leads may wait for the same data.
            Some(NoData::NotShared) => {
                let cause = format!("{}{}", NoData::NotShared, waiting_here(missing));
                with_remedy(cause, &NoData::NotShared)
            }
            Some(_) | None => {
                let told = missing.or_else(|| why.map(ToString::to_string));
                let cause = told.unwrap_or_else(|| "the first decision".to_owned());
                format!("waiting for data, {cause}")
            }
        }
    }

    /// Returns the cause that a decision has become too old.
    fn expired(&self, decided: &PublishedDecision) -> String {
        let binding = decided.decision.steps.last().map(|step| step.reason.code());
        if binding == Some(ReasonCode::Refused) {
            return with_remedy(NoData::Refused.to_string(), &NoData::Refused);
        }

        let missing = missing(&self.variant.observation);
        if !self.is_shared {
            return missing.unwrap_or_else(|| "nothing newer has been decided".to_owned());
        }

        let here = waiting_here(missing);
        let cause = match decided.decision.basis {
            Basis::Held => "the replica that leads had no newer data, or has shared none since",
            Basis::Fresh => "the replicas of Plimsoll have not shared a newer one",
        };
        with_remedy(format!("{cause}{here}"), &NoData::NotShared)
    }
}

/// Returns the end of a cause in shared decisions: the data that this replica of Plimsoll lacks.
fn waiting_here(missing: Option<String>) -> String {
    missing.map(|cause| format!("; this one is waiting for data, {cause}")).unwrap_or_default()
}

/// Appends the next step for a person to a cause.
fn with_remedy(cause: String, why: &NoData) -> String {
    match why.remedy() {
        Some(remedy) => format!("{cause}. {remedy}"),
        None => cause,
    }
}

/// Returns the data that a variant lacks; `None` if it is complete.
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
    let failure = replicas.iter().find_map(|replica| match replica.freshness {
        Freshness::Fresh { .. } => None,
        Freshness::Stale { why, .. } | Freshness::Never { why } => why,
    });
    let cause = failure.map(|why| format!(" ({why})")).unwrap_or_default();

    let all = NounCount(replicas.len(), "replica", "replicas");
    (silent > 0).then(|| format!("no fresh data from {silent} of {all}{cause}"))
}

/// Returns the reason that the variants are not known yet; `None` after the first tick.
#[must_use]
pub(crate) fn before_first_tick(published: &Published) -> Option<String> {
    let is_before = published.generation == 0 && published.variants.is_empty();
    is_before.then(|| "the variants are not known yet: the first tick has not ended".to_owned())
}

/// Returns a message that no variant matches, with the names that exist.
#[must_use]
pub fn unmatched(published: &Published, scope: &MetricScope, selector: &Selector) -> String {
    let place = match scope {
        MetricScope::Namespace(namespace) => format!("namespace {namespace}"),
        MetricScope::AllNamespaces => "any namespace".to_owned(),
    };

    match names(published, scope) {
        None => format!("there is no variant in {place}"),
        Some(names) => {
            format!(
                "no variant in {place} matches the selector \"{selector}\"; its variants: \
                {names}"
            )
        }
    }
}

/// Returns the first names of the variants in some namespaces, and the number of further ones;
/// `None` if there are no variants.
pub(crate) fn names(published: &Published, scope: &MetricScope) -> Option<String> {
    let names: Vec<&str> = candidates(published, scope, None)
        .into_iter()
        .map(|(key, _)| key.variant.as_str())
        .collect();
    let mut listed = names[..names.len().min(NAMES_MAX)].join(", ");
    if names.len() > NAMES_MAX {
        let _ = write!(listed, " and {} more", names.len() - NAMES_MAX);
    }

    (!names.is_empty()).then_some(listed)
}

/// Turns a text into a valid label value. Invalid characters become dashes, and a text that is too
/// long ends in a hash of the whole text.
#[must_use]
pub fn label_value(text: &str) -> String {
    let replaced =
        text.replace(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'), "-");
    let trimmed = replaced.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if trimmed.len() <= LABEL_MAX { trimmed.to_owned() } else { with_hash(trimmed, text) }
}

/// Like [`label_value`], but different for different texts. An autoscaler would sum two variants
/// with the same label.
fn unique_label_value(text: &str) -> String {
    if is_label_value(text) { text.to_owned() } else { with_hash(&label_value(text), text) }
}

/// The number of hexadecimal digits of a hash in a label value.
const HASH_DIGITS: usize = 16;

/// Returns true if [`with_hash`] may have created this value.
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

/// Formats a duration for people: `7m12s`.
#[must_use]
pub fn short(time: Duration) -> String {
    let total = time.as_secs();
    let hours = total / 3600;
    let minutes = total / 60 % 60;
    let seconds = total % 60;

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
