//! A variant that an object declares through its annotations.

use crate::collect::cluster::discovery::annotation::{
    Annotation, AnnotationProblem, AnnotationRules, ScrapeRequest, missing,
};
use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef};
use crate::collect::cluster::discovery::read::ObjectReader;
use crate::collect::cluster::target::WantedTarget;
use crate::collect::targets::Scheme;
use plimsoll_core::fleet::{
    Accelerator, Bounds, ModelName, Namespace, Role, VariantKey, ZeroPreference,
};
use plimsoll_core::observe::overrides::Override;
use plimsoll_core::units::{CostPerHour, Fraction, Gpus, Seconds};

/// A variant that an object declares.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveredVariant {
    /// The object that declares it.
    pub object: ObjectRef,
    /// The variant's key.
    pub key: VariantKey,
    /// The scale target.
    pub target: WantedTarget,
    /// The model that it serves.
    pub model: ModelName,
    /// Other model names that its engines may report in their metrics.
    pub aliases: Vec<ModelName>,
    /// The accelerator it runs on, if the object sets it.
    pub accelerator: Option<Accelerator>,
    /// Accelerators per replica, if the object sets them.
    pub gpus: Option<Gpus>,
    /// Scale-to-zero settings, as far as the object sets them.
    pub zero: ZeroPreference,
    /// The part of a request that it serves; `None` to use the role that its pods report.
    pub role: Option<Role>,
    /// The cost of one replica.
    pub cost: CostPerHour,
    /// The cost without a discount, if the object sets a different one.
    pub list_price: Option<CostPerHour>,
    /// Factor on its rank for a scarce resource that the model does not need, if the object sets
    /// one.
    pub mismatch: Option<Fraction>,
    /// Time from requesting a replica until it serves, if the object sets it.
    pub start_time: Option<Seconds>,
    /// Replica bounds, used if no scaler of the target has any.
    pub bounds: Bounds,
    /// The scheme of the metrics URL, if the object sets it.
    pub scheme: Option<Scheme>,
    /// The port of the metrics URL, if the object sets it.
    pub port: Option<u16>,
    /// The path of the metrics URL, if the object sets it.
    pub path: Option<String>,
    /// Set if Plimsoll must scrape the replicas although a Prometheus is configured.
    pub scraped: Option<ScrapeRequest>,
    /// The pin or the pause of the object.
    pub overridden: Option<Override>,
    /// Annotations without effect that were probably meant to have one.
    pub doubts: Vec<AnnotationProblem>,
}

/// Reads the variant that an object declares.
///
/// # Errors
///
/// An annotation is missing or has an invalid value. The error lists all such problems.
pub fn variant(
    marked: &AnnotatedObject,
    rules: &AnnotationRules,
) -> Result<DiscoveredVariant, Vec<AnnotationProblem>> {
    let Some(spoken) = marked.speaks(rules.vocabulary) else {
        return Err(vec![missing(Annotation::Model.name(), "is missing: it names the model")]);
    };

    let mut read = ObjectReader::new(marked, spoken, rules);
    let model = read.model();
    let name = read.name();
    let namespace = Namespace::new(&marked.object.namespace);
    let aliases = read.aliases();
    let cost = read.cost();
    let list_price = read.list_price();
    let mismatch = read.mismatch();
    let start_time = read.start_time();
    let accelerator = read.accelerator();
    let role = read.role();
    let bounds = read.bounds();
    let gpus = read.gpus();
    let zero = read.zero();
    let scheme = read.scheme();
    let port = read.number(Annotation::Port, &(1..=u16::MAX));
    let path = read.path();
    let scraped = read.scraped();
    let overridden = read.overridden();
    read.doubt_unknown();

    let ObjectReader { problems, doubts, .. } = read;
    let (Some(model), Some(variant), Some(namespace), Some(cost), true) =
        (model, name, namespace, cost, problems.is_empty())
    else {
        return Err(problems);
    };

    Ok(DiscoveredVariant {
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
        overridden,
        doubts,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::{Value, json};

    use super::*;
    use crate::collect::cluster::discovery::annotation::{Vocabulary, WVA_DEFAULT_COST};
    use crate::collect::cluster::discovery::object::ObjectRole;
    use plimsoll_core::fleet::ZeroPermission;
    use plimsoll_core::observe::overrides::{Order, OverrideSource};
    use plimsoll_core::units::Replicas;

    fn marked(source: ObjectRole, written: Value) -> Option<AnnotatedObject> {
        let metadata: ObjectMeta = serde_json::from_value(written).unwrap();
        let target = WantedTarget::Scale {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: "llama".to_owned(),
        };

        let object = ObjectRef::of("v1", "Kind", &metadata);
        AnnotatedObject::new(object, source, target, &metadata)
    }

    fn read(
        source: ObjectRole,
        annotations: &Value,
    ) -> Result<DiscoveredVariant, Vec<AnnotationProblem>> {
        read_by(&AnnotationRules::of(Vocabulary::WithWva), source, annotations)
    }

    fn read_by(
        rules: &AnnotationRules,
        source: ObjectRole,
        annotations: &Value,
    ) -> Result<DiscoveredVariant, Vec<AnnotationProblem>> {
        let metadata = json!({
            "name": "scaler", "namespace": "shop", "annotations": annotations,
            "labels": {"inference.optimization/acceleratorName": "H100"},
        });
        variant(&marked(source, metadata).unwrap(), rules)
    }

    fn with(name: &str, value: &str) -> Value {
        let mut annotations = json!({"plimsoll.dev/model": "m"});
        annotations[format!("plimsoll.dev/{name}")] = json!(value);
        annotations
    }

    #[test]
    fn a_model_is_enough_and_all_else_has_its_default() {
        let found = read(ObjectRole::Hpa, &json!({"plimsoll.dev/model": "meta/llama"})).unwrap();
        assert_eq!(found.key.to_string(), "shop/llama", "the target's name");
        assert_eq!(found.model.as_str(), "meta/llama");
        assert_eq!(found.cost, CostPerHour::new(1.0).unwrap());

        assert_eq!((found.list_price, found.mismatch), (None, None));
        assert_eq!(found.bounds, Bounds::default());
        assert_eq!((found.accelerator, found.role), (None, None));
        assert_eq!((found.scheme, found.port, found.path), (None, None, None));
        assert_eq!(
            (found.scraped, found.gpus, found.zero),
            (None, None, ZeroPreference::default())
        );
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
            "plimsoll.dev/pin": "6 until 2026-11-27T06:00:00Z",
            "plimsoll.dev/pause": "until 2026-11-27T06:00:00Z",
        });

        assert_eq!(annotations.as_object().unwrap().len(), Annotation::ALL.len());
        let found = read(ObjectRole::Workload, &annotations).unwrap();
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
        assert_eq!((found.path.as_deref(), found.scraped), (Some("/m"), Some(ScrapeRequest)));
        assert_eq!(found.bounds.to_string(), "2..9");
        let zero =
            ZeroPreference { may: Some(ZeroPermission::Allowed), after: Seconds::new(5400.0) };
        assert_eq!((found.gpus, found.zero), (Some(Gpus::new(8)), zero));
        let until = "2026-11-27T06:00:00Z".parse().unwrap();
        let pin = Order::Pin(Replicas::saturating(6));
        let by = OverrideSource::Annotation;
        assert_eq!(found.overridden, Some(Override { order: pin, until, by }));
        let doubts: Vec<String> = found.doubts.iter().map(ToString::to_string).collect();
        assert_eq!(
            doubts,
            ["annotation plimsoll.dev/pause has no effect next to plimsoll.dev/pin"]
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_name_its_rule_and_what_is_there() {
        for (name, value, said) in [
            ("model", "", "must be 1 to 512 characters without `#`"),
            ("model", "a#b", "found \"a#b\""),
            ("variant", "Llama", "lower-case"),
            ("variant", "", "lower-case"),
            ("model-aliases", "a,,b", "at most 32 names"),
            ("model-aliases", "", "at most 32 names"),
            ("model-aliases", &["a"; 33].join(","), "at most 32 names"),
            ("accelerator", &"A".repeat(2000), "must have 1 to 1024 bytes"),
            ("pin", "6", "must be replicas, `until` and an instant"),
            ("pin", "-1 until 2026-11-27T06:00:00Z", "must be replicas"),
            ("pause", "true", "must be `until` and an instant"),
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
            ("start-time", "12", "must be a duration in h, m or s from 1s to 1h"),
            ("start-time", "2h", "from 1s to 1h"),
            ("scale-to-zero-after", "900", "must be a duration in h, m or s"),
            ("scale-to-zero-after", "1s", "from 10s to 168h"),
            ("scale-to-zero-after", "-15m", "from 10s to 168h"),
        ] {
            let problems = read(ObjectRole::Workload, &with(name, value)).unwrap_err();
            let [problem] = problems.as_slice() else { panic!("{name}={value}: {problems:?}") };
            let text = problem.to_string();
            let start = format!("annotation plimsoll.dev/{name} ");
            assert!(text.starts_with(&start) && text.contains(said), "{name}={value}: {text}");
        }

        let inverted = json!({"plimsoll.dev/model": "m", "plimsoll.dev/min-replicas": "3",
                              "plimsoll.dev/max-replicas": "2"});
        let problems = read(ObjectRole::Workload, &inverted).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "annotation plimsoll.dev/max-replicas must not be below plimsoll.dev/min-replicas, \
             which is 3; found \"2\""
        );
    }

    #[test]
    fn what_has_no_effect_is_said_and_refuses_nothing() {
        for (source, name, doubts) in [
            (ObjectRole::Workload, "min-replicas", 0),
            (ObjectRole::Hpa, "min-replicas", 1),
            (ObjectRole::ScaledObject, "max-replicas", 1),
            (ObjectRole::Hpa, "prot", 1),
        ] {
            let found = read(source, &with(name, "3")).unwrap();
            assert_eq!(found.doubts.len(), doubts, "{name} on {source:?}");
            if source != ObjectRole::Workload {
                assert_eq!(found.bounds, Bounds::default());
            }
        }
    }

    /// Returns the doubts about a variant that is read by these rules.
    fn doubts(rules: &AnnotationRules, annotations: &Value) -> (DiscoveredVariant, Vec<String>) {
        let found = read_by(rules, ObjectRole::Hpa, annotations).unwrap();
        let doubts = found.doubts.iter().map(ToString::to_string).collect();
        (found, doubts)
    }

    #[test]
    fn what_an_annotation_claims_is_moved_into_the_operators_bounds_and_said() {
        let own = AnnotationRules::of(Vocabulary::Own);
        let rules = AnnotationRules { gpus_max: Gpus::new(16), costs: 0.5..=20.0, ..own };

        for (written, gpus, amount, said) in [
            (["16", "0.5", "20"], 16, 0.5, Vec::new()),
            (["4096", "0.5", "20"], 16, 0.5, vec!["gpus counts as 16, which is"]),
            (["8", "0", "20"], 8, 0.5, vec!["cost counts as 0.5, which is"]),
            (["8", "1e9", "1e9"], 8, 20.0, vec!["cost counts as 20", "list-price counts as 20"]),
        ] {
            let [claimed, cost, list_price] = written;
            let annotations = json!({"plimsoll.dev/model": "m", "plimsoll.dev/gpus": claimed,
                                     "plimsoll.dev/cost": cost,
                                     "plimsoll.dev/list-price": list_price});
            let (found, doubts) = doubts(&rules, &annotations);
            assert_eq!(found.gpus, Some(Gpus::new(gpus)), "{written:?}");
            assert_eq!(found.cost, CostPerHour::new(amount).unwrap(), "{written:?}");
            assert_eq!(found.list_price, CostPerHour::new(20.0), "{written:?}");
            assert_eq!(doubts.len(), said.len(), "{doubts:?}");
            assert!(said.iter().all(|it| doubts.iter().any(|one| one.contains(it))), "{doubts:?}");
        }

        // The default cost is no claim of the tenant.
        let rules = AnnotationRules { costs: 2.0..=20.0, ..rules };
        let (found, doubts) = doubts(&rules, &json!({"plimsoll.dev/model": "m"}));
        assert_eq!(found.cost, CostPerHour::new(2.0).unwrap());
        assert!(doubts.is_empty(), "{doubts:?}");
    }

    #[test]
    fn an_annotation_that_the_operator_does_not_list_has_no_effect_and_that_is_said() {
        let usual = AnnotationRules::of(Vocabulary::WithWva);
        let rules = AnnotationRules { allowed: Some(vec![Annotation::Port]), ..usual };
        let annotations = json!({"plimsoll.dev/model": "m", "plimsoll.dev/port": "9000",
                                 "plimsoll.dev/gpus": "none", "plimsoll.dev/scheme": "http"});
        let (found, said) = doubts(&rules, &annotations);
        assert_eq!((found.port, found.gpus, found.scheme), (Some(9000), None, None));
        let rule = "has no effect: kubernetes.discovery.annotations does not list it";
        let expected = ["gpus", "scheme"].map(|it| format!("annotation plimsoll.dev/{it} {rule}"));
        assert_eq!(said, expected);

        // The other vocabulary's words for the same are no way around.
        let (found, said) = doubts(&rules, &managed(&json!({"llm-d.ai/variant-cost": "40"})));
        assert_eq!((found.cost, found.accelerator), (cost(WVA_DEFAULT_COST), None));
        assert_eq!(said, [format!("annotation llm-d.ai/variant-cost {rule}")]);
    }

    #[test]
    fn a_time_until_zero_that_the_switch_beside_it_forbids_is_said_to_have_no_effect() {
        let annotations = json!({"plimsoll.dev/model": "m", "plimsoll.dev/scale-to-zero": "false",
                                 "plimsoll.dev/scale-to-zero-after": "15m"});
        let found = read(ObjectRole::Hpa, &annotations).unwrap();

        assert_eq!(found.zero.may, Some(ZeroPermission::Forbidden));
        assert_eq!(
            found.doubts[0].to_string(),
            "annotation plimsoll.dev/scale-to-zero-after has no effect: \
             plimsoll.dev/scale-to-zero is false"
        );
    }

    /// Returns the annotations that declare a variant in WVA's vocabulary, and these.
    fn managed(more: &Value) -> Value {
        let mut annotations = json!({"llm-d.ai/managed": "true", "llm-d.ai/model-id": "m"});
        annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        annotations
    }

    fn cost(number: f64) -> CostPerHour {
        CostPerHour::new(number).unwrap()
    }

    fn declares(source: ObjectRole, annotations: &Value) -> bool {
        marked(source, json!({"name": "a", "namespace": "b", "annotations": annotations}))
            .is_some_and(|marked| marked.declares(Vocabulary::WithWva))
    }

    #[test]
    fn the_other_vocabulary_marks_scalers_and_has_its_own_name_and_cost() {
        for (more, name, costs, accelerator) in [
            (json!({}), "scaler", cost(10.0), Some("H100")),
            (json!({"llm-d.ai/variant-cost": "40.5"}), "scaler", cost(40.5), Some("H100")),
            (json!({"plimsoll.dev/cost": "2"}), "scaler", cost(2.0), Some("H100")),
            (json!({"plimsoll.dev/variant": "a"}), "a", cost(10.0), Some("H100")),
            (json!({"plimsoll.dev/accelerator": "L4"}), "scaler", cost(10.0), Some("L4")),
            // An object that names its model in Plimsoll's vocabulary uses that vocabulary.
            (json!({"plimsoll.dev/model": "n"}), "llama", cost(1.0), None),
        ] {
            let found = read(ObjectRole::Hpa, &managed(&more)).unwrap();
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
            assert_eq!(read(ObjectRole::Hpa, &managed(&more)).unwrap_err().len(), 1, "{more}");
        }

        let none = json!({});
        let unmanaged = json!({"llm-d.ai/managed": "false"});
        assert!(declares(ObjectRole::ScaledObject, &managed(&none)));
        assert!(!declares(ObjectRole::Workload, &managed(&none)), "only what scales");
        assert!(!declares(ObjectRole::Hpa, &managed(&unmanaged)));
        assert!(!declares(ObjectRole::Hpa, &json!({"llm-d.ai/model-id": "m"})));
    }

    #[test]
    fn annotations_without_the_model_are_an_oversight_and_those_of_others_are_nothing() {
        let problems = read(ObjectRole::Hpa, &json!({"plimsoll.dev/cost": "1"})).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "annotation plimsoll.dev/model is missing: it names the model"
        );

        for annotations in [json!({}), json!({"a": "b"}), json!({"plimsoll.dev/else": "b"})] {
            let metadata = json!({"name": "a", "namespace": "b", "annotations": annotations});
            assert_eq!(marked(ObjectRole::Hpa, metadata), None, "{annotations}");
        }
    }

    #[test]
    fn a_target_whose_name_cannot_be_a_variants_needs_one() {
        let metadata = json!({"name": "a", "namespace": "b", "annotations": {
            "llm-d.ai/managed": "true", "llm-d.ai/model-id": "m"}});
        let mut marked = marked(ObjectRole::Hpa, metadata).unwrap();
        marked.object.name = "a".repeat(64);
        let problems = variant(&marked, &AnnotationRules::of(Vocabulary::WithWva)).unwrap_err();
        assert!(problems[0].to_string().starts_with("annotation plimsoll.dev/variant must be set"));
    }
}
