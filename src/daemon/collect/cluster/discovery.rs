//! Discovery: variants that objects of the cluster declare by their annotations.
//!
//! An HPA, a KEDA `ScaledObject` or a workload that names a model in its annotations is a variant:
//! nothing of it needs to be in the configuration. [`variant`] reads one object, and is pure; which
//! of several objects is in force, and what becomes of one that can no longer be read, is
//! [`ledger`]'s part. docs/discovery.md has the annotations in a table.
//!
//! An object speaks one of two vocabularies: ours (`plimsoll.dev/model`), or that of the workload
//! variant autoscaler (`llm-d.ai/managed`), so that what was annotated for it goes on under Plimsoll
//! as it is. They differ in the default name and in the default cost, and in nothing else: with
//! either, all annotations of ours are read.

pub(crate) mod ledger;
mod read;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::collect::cluster::WantedTarget;
pub use crate::collect::cluster::discovery::ledger::{
    Cause, Claimant, Discovery, Kept, Objection, Standing,
};
use crate::collect::cluster::discovery::read::Read;
use crate::collect::targets::Scheme;
use plimsoll_core::fleet::{Accelerator, Bounds, ModelName, Namespace, Role, VariantKey, ZeroWish};
use plimsoll_core::units::{CostPerHour, Fraction, Gpus, Seconds};

/// What all annotations of ours begin with.
pub(crate) const PREFIX: &str = "plimsoll.dev/";

/// Marks an object for the workload variant autoscaler when it is `"true"`.
const WVA_MANAGED: &str = "llm-d.ai/managed";
/// The model in its vocabulary.
const WVA_MODEL: &str = "llm-d.ai/model-id";
/// The cost of a replica in its vocabulary.
const WVA_COST: &str = "llm-d.ai/variant-cost";
/// The label with the accelerator in its vocabulary.
const WVA_ACCELERATOR: &str = "inference.optimization/acceleratorName";
/// The label of pods with their role in its vocabulary.
pub(crate) const WVA_ROLE: &str = "llm-d.ai/role";

/// Annotations of a namespace whose objects are left alone when one of them is `"true"`.
const EXCLUDE: [&str; 2] = ["plimsoll.dev/exclude", "wva.llmd.ai/exclude"];

/// What a replica costs where nothing says it: as in the configuration.
const COST: f64 = 1.0;
/// The same in the other vocabulary.
const WVA_DEFAULT_COST: f64 = 10.0;
/// As in the configuration.
const COSTS: RangeInclusive<f64> = 0.0..=1e9;

/// As in the configuration.
const MISMATCHES: RangeInclusive<f64> = 1.0..=1000.0;

/// What is looked for, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Discover {
    /// The namespaces that are looked at; all of the cluster's where there are none.
    pub namespaces: Vec<Namespace>,
    /// Which objects are looked at, by their labels.
    pub filter: Filter,
    /// Whether the annotations of the workload variant autoscaler count too.
    pub wva: Vocabulary,
}

/// Which vocabularies are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Ours.
    Own,
    /// Ours, and that of the workload variant autoscaler.
    WithWva,
}

/// A predicate over labels.
#[derive(Clone)]
pub struct Filter {
    text: Option<String>,
    accepts: Arc<Predicate>,
}

type Predicate = dyn Fn(&BTreeMap<String, String>) -> bool + Send + Sync;

/// An object of the cluster, as events refer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its API version, such as `autoscaling/v2`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from another object of that name; `None` where the API server has not said.
    pub uid: Option<String>,
}

/// What an object is to a variant. Of two on one target, the lesser one here is in force: who scales
/// knows the bounds, and a `ScaledObject` makes the HPA beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A KEDA `ScaledObject`, which scales the target.
    ScaledObject,
    /// An HPA, which scales the target.
    Hpa,
    /// The target itself.
    Workload,
}

/// An object with annotations that may declare a variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Marked {
    /// Which object.
    pub object: ObjectRef,
    /// What it is to the variant.
    pub source: Source,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// What is scaled.
    pub target: WantedTarget,
    /// Its annotations, as far as they belong to a vocabulary.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A variant that an object declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovered {
    /// Which object.
    pub object: ObjectRef,
    /// The variant's key.
    pub key: VariantKey,
    /// What is scaled.
    pub target: WantedTarget,
    /// The model that it serves.
    pub model: ModelName,
    /// Other names under which its engines' pages may know the model.
    pub aliases: Vec<ModelName>,
    /// What it runs on, if the object says so.
    pub accelerator: Option<Accelerator>,
    /// Accelerators that one replica takes, if the object says so.
    pub gpus: Option<Gpus>,
    /// Whether its model may have no replicas, as far as the object says it.
    pub zero: ZeroWish,
    /// What part of a request it serves; `None` where its pods say it.
    pub role: Option<Role>,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// What it costs without a discount, if the object says that it is something else.
    pub list_price: Option<CostPerHour>,
    /// Factor on its rank for something scarce that the model does not need, if the object has one.
    pub mismatch: Option<Fraction>,
    /// How long one replica takes from being asked for to serving, if the object says so.
    pub start_time: Option<Seconds>,
    /// Between which counts it is scaled where nothing that scales it has bounds.
    pub bounds: Bounds,
    /// The scheme of a page's URL, if the object says so.
    pub scheme: Option<Scheme>,
    /// The port of a page's URL, if the object says so.
    pub port: Option<u16>,
    /// The path of a page's URL, if the object says so.
    pub path: Option<String>,
    /// That the replicas are scraped here although there is a Prometheus, if the object says so.
    pub scraped: Option<Scraped>,
    /// What has no effect, and was probably meant to.
    pub doubts: Vec<Problem>,
}

/// What an object may say of who reads its replicas. Prometheus is the default wherever there is
/// one, and nothing that an object could ask for where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scraped;

/// What is wrong with one annotation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The annotation.
    pub annotation: String,
    /// What must hold of it.
    pub rule: String,
    /// What is there instead; `None` when nothing is, or the rule says it all.
    pub found: Option<String>,
}

macro_rules! annotations {
    ($($(#[$doc:meta])* $id:ident = $name:literal,)*) => {
        /// An annotation of ours.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Annotation {
            $($(#[$doc])* $id,)*
        }

        impl Annotation {
            /// All of them, in the order of their documentation.
            pub const ALL: &[Self] = &[$(Self::$id),*];

            /// Its name on an object.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$id => concat!("plimsoll.dev/", $name),)*
                }
            }
        }
    };
}

annotations! {
    /// The model, as its engines call it; it marks the object.
    Model = "model",
    /// The variant's name.
    Variant = "variant",
    /// Other names under which the engines' pages may know the model.
    ModelAliases = "model-aliases",
    /// What one replica costs for an hour.
    Cost = "cost",
    /// What it costs without a discount.
    ListPrice = "list-price",
    /// Factor on its rank for something scarce that the model does not need.
    Mismatch = "mismatch",
    /// How long one replica takes from being asked for to serving.
    StartTime = "start-time",
    /// The kind of accelerator.
    Accelerator = "accelerator",
    /// What part of a request the variant serves.
    Role = "role",
    /// The port of a page's URL.
    Port = "port",
    /// The path of a page's URL.
    Path = "path",
    /// The scheme of a page's URL.
    Scheme = "scheme",
    /// Who reads the replicas' metrics.
    Source = "source",
    /// The lower bound of a workload.
    MinReplicas = "min-replicas",
    /// The upper bound of a workload.
    MaxReplicas = "max-replicas",
    /// Accelerators that one replica takes.
    Gpus = "gpus",
    /// Whether the model may have no replicas.
    ScaleToZero = "scale-to-zero",
    /// How long it must be proved to be idle.
    ScaleToZeroAfter = "scale-to-zero-after",
}

// === impl Filter ===

impl Filter {
    /// Accepts every object.
    #[must_use]
    pub fn all() -> Self {
        Self { text: None, accepts: Arc::new(|_| true) }
    }

    /// Accepts the objects whose labels the predicate accepts, which this selector stands for.
    pub fn new(
        text: &str,
        accepts: impl Fn(&BTreeMap<String, String>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { text: Some(text.to_owned()), accepts: Arc::new(accepts) }
    }

    pub(crate) fn accepts(&self, labels: &BTreeMap<String, String>) -> bool {
        (self.accepts)(labels)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({:?})", self.text)
    }
}

// === impl ObjectRef ===

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_version: _, kind, namespace, name, uid: _ } = self;
        write!(f, "{kind} {namespace}/{name}")
    }
}

impl ObjectRef {
    /// The reference of an object of this kind.
    pub(crate) fn of(api_version: &str, kind: &str, metadata: &ObjectMeta) -> Self {
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
        }
    }
}

// === impl Marked ===

impl Marked {
    /// What matters of an object with annotations of any vocabulary; `None` for all others, which
    /// are most of a cluster and are not kept.
    pub(crate) fn new(
        object: ObjectRef,
        source: Source,
        target: WantedTarget,
        metadata: &ObjectMeta,
    ) -> Option<Self> {
        let annotations = metadata.annotations.iter().flatten();
        let annotations: BTreeMap<String, String> = annotations
            .filter(|(key, _)| {
                key.starts_with(PREFIX)
                    || [WVA_MANAGED, WVA_MODEL, WVA_COST].contains(&key.as_str())
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let ours = Annotation::ALL.iter().any(|one| annotations.contains_key(one.name()));
        (ours || annotations.contains_key(WVA_MANAGED)).then(|| Self {
            object,
            source,
            created: metadata.creation_timestamp.as_ref().map(|at| at.0),
            target,
            annotations,
            labels: metadata.labels.clone().unwrap_or_default(),
        })
    }

    /// Whether the object declares a variant, however badly, and in which vocabulary.
    fn speaks(&self, understood: Vocabulary) -> Option<Vocabulary> {
        if self.annotations.contains_key(Annotation::Model.name()) {
            return Some(Vocabulary::Own);
        }
        let managed = self.annotations.get(WVA_MANAGED).is_some_and(|value| value == "true");
        let scaler = self.source != Source::Workload;
        (understood == Vocabulary::WithWva && managed && scaler).then_some(Vocabulary::WithWva)
    }

    /// Whether there is anything to say about the object.
    pub(crate) fn concerns(&self, understood: Vocabulary) -> bool {
        let ours = Annotation::ALL.iter().any(|one| self.annotations.contains_key(one.name()));
        ours || self.speaks(understood).is_some()
    }

    /// Whether the object means to declare a variant. One that has lost its mark has taken it back,
    /// which is no mistake in it.
    pub(crate) fn declares(&self, understood: Vocabulary) -> bool {
        self.speaks(understood).is_some()
    }
}

/// Whether a namespace wants its objects left alone.
pub(crate) fn is_excluded(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    let is = |key: &&str| annotations.and_then(|all| all.get(*key)).is_some_and(|is| is == "true");
    EXCLUDE.iter().any(is)
}

/// Reads the variant that an object declares.
///
/// # Errors
///
/// An annotation is missing or has a value that is not allowed; all such problems are listed.
pub fn variant(marked: &Marked, understood: Vocabulary) -> Result<Discovered, Vec<Problem>> {
    let Some(spoken) = marked.speaks(understood) else {
        return Err(vec![missing(Annotation::Model.name(), "is missing: it names the model")]);
    };
    let mut read = Read { marked, spoken, problems: Vec::new(), doubts: Vec::new() };
    let model = read.model();
    let name = read.name();
    let namespace = Namespace::new(&marked.object.namespace);
    let aliases = read.aliases();
    let (cost, list_price, mismatch) = (read.cost(), read.list_price(), read.mismatch());
    let (start_time, accelerator, role) = (read.start_time(), read.accelerator(), read.role());
    let bounds = read.bounds();
    let (gpus, zero) = (read.gpus(), read.zero());
    let scheme = read.scheme();
    let port = read.number(Annotation::Port, &(1..=u16::MAX));
    let path = read.path();
    let scraped = read.scraped();
    read.doubt_unknown();
    let Read { problems, doubts, .. } = read;
    let (Some(model), Some(variant), Some(namespace), Some(cost), true) =
        (model, name, namespace, cost, problems.is_empty())
    else {
        return Err(problems);
    };
    Ok(Discovered {
        object: marked.object.clone(),
        key: VariantKey { namespace, variant },
        target: marked.target.clone(),
        model,
        aliases,
        accelerator,
        gpus,
        zero,
        role,
        cost,
        list_price,
        mismatch,
        start_time,
        bounds,
        scheme,
        port,
        path,
        scraped,
        doubts,
    })
}

fn missing(annotation: &str, rule: &str) -> Problem {
    Problem { annotation: annotation.to_owned(), rule: rule.to_owned(), found: None }
}

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { annotation, rule, found } = self;
        write!(f, "annotation {annotation} {rule}")?;
        match found {
            Some(found) => write!(f, "; found {found}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::collect::targets::Scheme;
    use plimsoll_core::fleet::Rest;
    use plimsoll_core::units::Seconds;

    fn marked(source: Source, metadata: Value) -> Option<Marked> {
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
        let target = WantedTarget::Scale {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: "llama".to_owned(),
        };
        let object = ObjectRef::of("v1", "Kind", &metadata);
        Marked::new(object, source, target, &metadata)
    }

    fn read(source: Source, annotations: &Value) -> Result<Discovered, Vec<Problem>> {
        let metadata = json!({
            "name": "scaler", "namespace": "shop", "annotations": annotations,
            "labels": {"inference.optimization/acceleratorName": "H100"},
        });
        variant(&marked(source, metadata).unwrap(), Vocabulary::WithWva)
    }

    fn with(name: &str, value: &str) -> Value {
        let mut annotations = json!({"plimsoll.dev/model": "m"});
        annotations[format!("plimsoll.dev/{name}")] = json!(value);
        annotations
    }

    #[test]
    fn a_model_is_enough_and_all_else_has_its_default() {
        let found = read(Source::Hpa, &json!({"plimsoll.dev/model": "meta/llama"})).unwrap();
        assert_eq!(found.key.to_string(), "shop/llama", "the target's name");
        assert_eq!(found.model.as_str(), "meta/llama");
        assert_eq!(found.cost, CostPerHour::new(1.0).unwrap());
        assert_eq!((found.list_price, found.mismatch), (None, None));
        assert_eq!(found.bounds, Bounds::default());
        assert_eq!((found.accelerator, found.role), (None, None));
        assert_eq!((found.scheme, found.port, found.path), (None, None, None));
        assert_eq!((found.scraped, found.gpus, found.zero), (None, None, ZeroWish::default()));
        assert_eq!((found.aliases, found.doubts), (Vec::new(), Vec::new()));
    }

    #[test]
    fn every_annotation_is_read() {
        let annotations = json!({
            "plimsoll.dev/model": "meta/llama",
            "plimsoll.dev/variant": "llama-h100",
            "plimsoll.dev/model-aliases": "llama, llama-3",
            "plimsoll.dev/cost": "2.5",
            "plimsoll.dev/list-price": "8",
            "plimsoll.dev/mismatch": "3.5",
            "plimsoll.dev/start-time": "12s",
            "plimsoll.dev/accelerator": "H100",
            "plimsoll.dev/role": "decode",
            "plimsoll.dev/port": "9000",
            "plimsoll.dev/path": "/m",
            "plimsoll.dev/scheme": "https",
            "plimsoll.dev/source": "scrape",
            "plimsoll.dev/min-replicas": "2",
            "plimsoll.dev/max-replicas": "9",
            "plimsoll.dev/gpus": "8",
            "plimsoll.dev/scale-to-zero": "true",
            "plimsoll.dev/scale-to-zero-after": "1h30m",
        });
        assert_eq!(annotations.as_object().unwrap().len(), Annotation::ALL.len());
        let found = read(Source::Workload, &annotations).unwrap();
        assert_eq!(found.key.variant.as_str(), "llama-h100");
        let aliases: Vec<&str> = found.aliases.iter().map(ModelName::as_str).collect();
        assert_eq!(aliases, ["llama", "llama-3"]);
        assert_eq!(found.cost, CostPerHour::new(2.5).unwrap());
        assert_eq!(found.list_price, CostPerHour::new(8.0));
        assert_eq!(found.mismatch, Fraction::new(3.5));
        assert_eq!(found.start_time, Seconds::new(12.0));
        assert_eq!(found.accelerator, Accelerator::new("H100"));
        assert_eq!(found.role, Some(Role::Decode));
        assert_eq!((found.scheme, found.port), (Some(Scheme::Https), Some(9000)));
        assert_eq!((found.path.as_deref(), found.scraped), (Some("/m"), Some(Scraped)));
        assert_eq!(found.bounds.to_string(), "2..9");
        let zero = ZeroWish { may: Some(Rest::Allowed), after: Seconds::new(5400.0) };
        assert_eq!((found.gpus, found.zero), (Some(Gpus::new(8)), zero));
        assert_eq!(found.doubts, []);
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_name_its_rule_and_what_is_there() {
        for (name, value, said) in [
            ("model", "", "must be 1 to 512 characters without `#`"),
            ("model", "a#b", "found \"a#b\""),
            ("variant", "Llama", "lower-case"),
            ("variant", "", "lower-case"),
            ("model-aliases", "a,,b", "none of them empty"),
            ("model-aliases", "", "none of them empty"),
            ("cost", "cheap", "must be a number from 0 to 1000000000; found \"cheap\""),
            ("cost", "NaN", "must be a number"),
            ("cost", "inf", "must be a number"),
            ("cost", "-1", "must be a number"),
            ("list-price", "8 EUR", "must be a number from 0 to 1000000000; found \"8 EUR\""),
            ("list-price", "NaN", "must be a number"),
            ("list-price", "-8", "must be a number"),
            ("mismatch", "scarce", "must be a number from 1 to 1000; found \"scarce\""),
            ("mismatch", "0.5", "must be a number from 1 to 1000"),
            ("mismatch", "1001", "must be a number from 1 to 1000"),
            ("accelerator", " H100", "spaces at the ends"),
            ("role", "both ", "must be both, prefill or decode"),
            ("port", "0", "from 1 to 65535"),
            ("port", "http", "from 1 to 65535"),
            ("path", "metrics", "must start with `/`"),
            ("path", "/a b", "must start with `/`"),
            ("scheme", "HTTP", "must be http or https"),
            ("source", "prometheus", "must be scrape, or absent"),
            ("min-replicas", "-1", "from 0 to 1000000"),
            ("max-replicas", "0", "from 1 to 1000000"),
            ("max-replicas", "1.5", "from 1 to 1000000"),
            ("gpus", "two", "from 0 to 4096"),
            ("scale-to-zero", "yes", "must be true or false"),
            ("start-time", "12", "must be a duration with a unit from 1s to 1h"),
            ("start-time", "2h", "from 1s to 1h"),
            ("scale-to-zero-after", "900", "must be a duration with a unit"),
            ("scale-to-zero-after", "1s", "from 10s to 168h"),
            ("scale-to-zero-after", "-15m", "from 10s to 168h"),
        ] {
            let problems = read(Source::Workload, &with(name, value)).unwrap_err();
            let [problem] = problems.as_slice() else { panic!("{name}={value}: {problems:?}") };
            let text = problem.to_string();
            let start = format!("annotation plimsoll.dev/{name} ");
            assert!(text.starts_with(&start) && text.contains(said), "{name}={value}: {text}");
        }
        let inverted = json!({"plimsoll.dev/model": "m", "plimsoll.dev/min-replicas": "3",
                              "plimsoll.dev/max-replicas": "2"});
        let problems = read(Source::Workload, &inverted).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "annotation plimsoll.dev/max-replicas must not be below plimsoll.dev/min-replicas, \
             which is 3; found \"2\""
        );
    }

    #[test]
    fn what_has_no_effect_is_said_and_refuses_nothing() {
        for (source, name, doubts) in [
            (Source::Workload, "min-replicas", 0),
            (Source::Hpa, "min-replicas", 1),
            (Source::ScaledObject, "max-replicas", 1),
            (Source::Hpa, "prot", 1),
        ] {
            let found = read(source, &with(name, "3")).unwrap();
            assert_eq!(found.doubts.len(), doubts, "{name} on {source:?}");
            if source != Source::Workload {
                assert_eq!(found.bounds, Bounds::default());
            }
        }
    }

    #[test]
    fn a_time_until_zero_that_the_switch_beside_it_forbids_is_said_to_have_no_effect() {
        let annotations = json!({"plimsoll.dev/model": "m", "plimsoll.dev/scale-to-zero": "false",
                                 "plimsoll.dev/scale-to-zero-after": "15m"});
        let found = read(Source::Hpa, &annotations).unwrap();
        assert_eq!(found.zero.may, Some(Rest::Forbidden));
        assert_eq!(
            found.doubts[0].to_string(),
            "annotation plimsoll.dev/scale-to-zero-after has no effect: \
             plimsoll.dev/scale-to-zero is false"
        );
    }

    #[test]
    fn the_other_vocabulary_marks_scalers_and_has_its_own_name_and_cost() {
        let managed = |more: Value| {
            let mut annotations = json!({"llm-d.ai/managed": "true", "llm-d.ai/model-id": "m"});
            annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            annotations
        };
        let cost = |number| CostPerHour::new(number).unwrap();
        for (more, name, costs, accelerator) in [
            (json!({}), "scaler", cost(10.0), Some("H100")),
            (json!({"llm-d.ai/variant-cost": "40.5"}), "scaler", cost(40.5), Some("H100")),
            (json!({"plimsoll.dev/cost": "2"}), "scaler", cost(2.0), Some("H100")),
            (json!({"plimsoll.dev/variant": "a"}), "a", cost(10.0), Some("H100")),
            (json!({"plimsoll.dev/accelerator": "L4"}), "scaler", cost(10.0), Some("L4")),
            // What names its model in our words is ours.
            (json!({"plimsoll.dev/model": "n"}), "llama", cost(1.0), None),
        ] {
            let found = read(Source::Hpa, &managed(more.clone())).unwrap();
            assert_eq!(found.key.variant.as_str(), name, "{more}");
            assert_eq!(found.cost, costs, "{more}");
            assert_eq!(found.accelerator, accelerator.and_then(Accelerator::new), "{more}");
        }
        for more in [
            json!({"llm-d.ai/model-id": ""}),
            json!({"llm-d.ai/variant-cost": "NaN"}),
            json!({"llm-d.ai/variant-cost": "Inf"}),
            json!({"llm-d.ai/variant-cost": "-1"}),
        ] {
            assert_eq!(read(Source::Hpa, &managed(more.clone())).unwrap_err().len(), 1, "{more}");
        }
        let one = |source, annotations: Value| {
            marked(source, json!({"name": "a", "namespace": "b", "annotations": annotations}))
                .is_some_and(|marked| marked.declares(Vocabulary::WithWva))
        };
        assert!(one(Source::ScaledObject, managed(json!({}))));
        assert!(!one(Source::Workload, managed(json!({}))), "only what scales");
        assert!(!one(Source::Hpa, managed(json!({"llm-d.ai/managed": "false"}))));
        assert!(!one(Source::Hpa, json!({"llm-d.ai/model-id": "m"})));
    }

    #[test]
    fn annotations_without_the_model_are_an_oversight_and_those_of_others_are_nothing() {
        let problems = read(Source::Hpa, &json!({"plimsoll.dev/cost": "1"})).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "annotation plimsoll.dev/model is missing: it names the model"
        );
        for annotations in [json!({}), json!({"a": "b"}), json!({"plimsoll.dev/else": "b"})] {
            let metadata = json!({"name": "a", "namespace": "b", "annotations": annotations});
            assert_eq!(marked(Source::Hpa, metadata), None, "{annotations}");
        }
    }

    #[test]
    fn a_target_whose_name_cannot_be_a_variants_needs_one() {
        let metadata = json!({"name": "a", "namespace": "b", "annotations": {
            "llm-d.ai/managed": "true", "llm-d.ai/model-id": "m"}});
        let mut marked = marked(Source::Hpa, metadata).unwrap();
        marked.object.name = "a".repeat(64);
        let problems = variant(&marked, Vocabulary::WithWva).unwrap_err();
        assert!(problems[0].to_string().starts_with("annotation plimsoll.dev/variant must be set"));
    }
}
