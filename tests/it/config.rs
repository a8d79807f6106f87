//! The configuration: what is refused, what it becomes, and that it prints what it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::foresight::policy::{ScaleDownWindow, Steps};
use plimsoll::collect::targets::{Record, Scheme, TargetSource};
use plimsoll::config::{
    Authorization, Files, LoadError, LoadedConfig, Problem, ReadBy, SelfManaged, ServerTls,
    Severity, Surroundings, VariantTargets, load, parse, schema,
};
use plimsoll::decide::zero::ZeroPolicy;
use plimsoll::fleet::{ModelKey, ModelName, Namespace};
use plimsoll::observe::SignalQuantity;
use plimsoll::pipeline::zero::Zero;
use plimsoll::settings::values::Bytes;
use plimsoll::units::Seconds;
use proptest::prelude::*;
use serde_json::{Value, json};

/// One variant, for tests of everything else.
const VARIANT: &str = "variants: [{name: a, model: m, targets: {static: [\"h:1\"]}}]\n";

/// One variant with keys that a test adds.
fn variant(keys: &str) -> String {
    format!("variants: [{{name: a, model: m, targets: {{static: [\"h:1\"]}}, {keys}}}]\n")
}

/// One variant with targets that a test chooses, in a cluster.
fn targets(keys: &str) -> String {
    format!(
        "kubernetes: {{enabled: true}}\nvariants: [{{name: a, model: m, targets: {{{keys}}}}}]\n"
    )
}

fn surroundings(files: Files) -> Surroundings {
    Surroundings {
        origin: "test.yaml".to_owned(),
        base: PathBuf::from("/base"),
        environment: BTreeMap::new(),
        files,
    }
}

fn read(text: &str) -> Result<LoadedConfig, LoadError> {
    parse(text, &surroundings(Files::NotChecked))
}

fn valid(text: &str) -> LoadedConfig {
    read(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn problems(result: Result<LoadedConfig, LoadError>) -> Vec<Problem> {
    match result {
        Ok(loaded) => loaded.warnings,
        Err(LoadError::Invalid { problems, .. }) => problems,
        Err(other) => panic!("{other}"),
    }
}

/// Asserts that the only errors are these: path and a part of what is said, in any order.
fn check_errors(text: &str, want: &[(&str, &str)]) {
    let problems = problems(read(text));
    let errors: Vec<&Problem> =
        problems.iter().filter(|one| one.severity == Severity::Error).collect();
    assert_eq!(errors.len(), want.len(), "{text}\n{errors:#?}");
    for (path, said) in want {
        assert!(
            errors.iter().any(|one| one.path == *path && one.to_string().contains(said)),
            "no {said:?} at {path} for\n{text}\n{errors:#?}"
        );
    }
}

/// What is said about a text that is refused.
fn refused(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn check_warning(text: &str, path: &str, said: &str) {
    let loaded = valid(text);
    assert!(
        loaded.warnings.iter().any(|one| one.path == path && one.rule.contains(said)),
        "no {said:?} at {path} for\n{text}\n{:#?}",
        loaded.warnings
    );
}

#[test]
fn an_unknown_key_is_refused_and_the_likely_one_is_named() {
    for (text, path, said) in [
        ("tick_intervall: 1s\n", "tick_intervall", "`tick_interval`"),
        ("scrape: {timeuot: 1s}\n", "scrape.timeuot", "`timeout`"),
        ("server: {colour: red}\n", "server.colour", "valid keys are listen"),
        ("a.b: 1\n", "[\"a.b\"]", "not a known key"),
        ("5: 1\n", "5", "not a known key"),
    ] {
        check_errors(&format!("{text}{VARIANT}"), &[(path, said)]);
    }
    check_errors(&variant("scrap: {}"), &[("variants[0].scrap", "`scrape`")]);
    // The number of scrapes at the same time is not a variant's.
    check_errors(&variant("scrape: {concurrency: 3}"), &[("variants[0].scrape.concurrency", "")]);
}

#[test]
fn a_wrong_type_is_refused_with_what_was_found() {
    for (text, path, said) in [
        ("server: 5\n", "server", "must be a mapping; found 5"),
        ("server: {listen: 8080}\n", "server.listen", "must be text; found 8080"),
        ("kubernetes: {enabled: yes}\n", "kubernetes.enabled", "true or false; found \"yes\""),
        ("scrape: {port: \"80\"}\n", "scrape.port", "from 0 to 65535; found \"80\""),
        ("scrape: {port: 70000}\n", "scrape.port", "from 0 to 65535; found 70000"),
        ("scrape: {port: -1}\n", "scrape.port", "found -1"),
        ("scrape: {concurrency: 1.5}\n", "scrape.concurrency", "a whole number"),
        ("scrape: {scheme: ftp}\n", "scrape.scheme", "http"),
        ("saturation: {kv_cache_threshold: high}\n", "saturation.kv_cache_threshold", "a number"),
        ("saturation: {transition: never}\n", "saturation.transition", "pending_only"),
        ("saturation: {overrides: [1]}\n", "saturation.overrides", "a mapping"),
        ("enforce: {scale_up: {policies: 3}}\n", "enforce.scale_up.policies", "a list"),
    ] {
        check_errors(&format!("{text}{VARIANT}"), &[(path, said)]);
    }
    check_errors("variants: {a: 1}\n", &[("variants", "must be a list")]);
    check_errors("variants: [1]\n", &[("variants[0]", "must be a mapping; found 1")]);
    check_errors(&variant("model_aliases: [3]"), &[("variants[0].model_aliases[0]", "text")]);
    check_errors(&variant("model_aliases: [~]"), &[("variants[0].model_aliases[0]", "empty")]);
    check_errors("- 1\n", &[("", "mapping"), ("variants", "add a variant")]);
}

#[test]
fn a_duration_or_size_needs_a_unit_and_a_range() {
    for (text, path, said) in [
        ("tick_interval: 30\n", "tick_interval", "a duration in d, h, m, s or ms"),
        ("tick_interval: \"30\"\n", "tick_interval", "found \"30\""),
        ("tick_interval: 5 parsecs\n", "tick_interval", "found \"5 parsecs\""),
        ("tick_interval: -1s\n", "tick_interval", "found \"-1s\""),
        ("tick_interval: 0s\n", "tick_interval", "must be from 100ms to 1m; found 0s"),
        ("observe: {window: 2h}\n", "observe.window", "from 1s to 1h; found 2h"),
        ("shutdown: {drain: 2h}\n", "shutdown.drain", "to 1h"),
        ("saturation: {transition_patience: 0s}\n", "saturation.transition_patience", "1s"),
        (
            "enforce: {scale_down: {stabilization_window: 61m}}\n",
            "enforce.scale_down.stabilization_window",
            "from 0s to 1h; found 1h1m",
        ),
        ("enforce: {min_dwell: {after_scale_up: 2h}}\n", "enforce.min_dwell.after_scale_up", "1h"),
        ("enforce: {panic: {window: 0s}}\n", "enforce.panic.window", "from 1s to 1h; found 0s"),
        (
            "enforce: {panic: {window: 1m, stable_window: 30s}}\n",
            "enforce.panic.window",
            "shorter than enforce.panic.stable_window, which is 30s",
        ),
        ("scrape: {body_limit: 8}\n", "scrape.body_limit", "a size with a unit"),
        ("scrape: {body_limit: 8 miles}\n", "scrape.body_limit", "found \"8 miles\""),
        ("scrape: {body_limit: 1B}\n", "scrape.body_limit", "from 1KiB to 1GiB; found 1B"),
    ] {
        check_errors(&format!("{text}{VARIANT}"), &[(path, said)]);
    }
}

#[test]
fn a_number_is_finite_and_in_its_range() {
    for number in [".nan", ".inf", "-.inf", "-0.5", "0", "1.5", "1e999"] {
        let text = format!("saturation: {{kv_cache_threshold: {number}}}\n{VARIANT}");
        check_errors(&text, &[("saturation.kv_cache_threshold", "")]);
    }
    for cost in [".nan", "-1", ".inf", "1e10"] {
        check_errors(&variant(&format!("cost: {cost}")), &[("variants[0].cost", "")]);
    }
}

#[test]
fn thresholds_that_make_no_sense_together_are_refused() {
    for (keys, key, said) in [
        ("kv_spare_trigger: 0", "kv_spare_trigger", "above 0"),
        ("queue_spare_trigger: 0", "queue_spare_trigger", "above 0"),
        ("kv_spare_trigger: 0.8", "kv_spare_trigger", "always scale up; found 0.8"),
        ("kv_cache_threshold: 0.1", "kv_spare_trigger", "which is 0.1"),
        ("queue_spare_trigger: 6", "queue_spare_trigger", "which is 5"),
        ("queue_length_threshold: 2", "queue_spare_trigger", "which is 2"),
    ] {
        let section = format!("saturation: {{{keys}}}\n{VARIANT}");
        check_errors(&section, &[(&format!("saturation.{key}"), said)]);
        let single = format!("saturation: {{overrides: {{\"m#default\": {{{keys}}}}}}}\n{VARIANT}");
        check_errors(&single, &[(&format!("saturation.overrides[\"m#default\"].{key}"), said)]);
    }
    // A queue whose trigger is the threshold fires with the first request that waits.
    valid(&format!("saturation: {{queue_spare_trigger: 5}}\n{VARIANT}"));
}

#[test]
fn a_model_goes_to_zero_only_where_it_is_allowed_to() {
    let off = valid(VARIANT).config.policy.zero;
    let idle = |seconds| ZeroPolicy::AfterIdle(Seconds::new(seconds).unwrap());
    assert_eq!(off.default.policy, ZeroPolicy::KeepOne);
    let text = "scale_to_zero: {after: 1h, overrides: {\"m#default\": {enabled: true}}}\n";
    let model = valid(&variant("replicas: {min: 0}")).config.variants[0].spec.model_key();
    let one = valid(&format!("{text}{}", variant("replicas: {min: 0}"))).config.policy.zero;
    assert_eq!((one.default.policy, one.of(&model).policy), (ZeroPolicy::KeepOne, idle(3600.0)));
    check_warning(
        &format!("scale_to_zero: {{enabled: true}}\n{VARIANT}"),
        "variants[0].replicas.min",
        "keeps the model from going to zero",
    );
    let section = |keys: &str| format!("scale_to_zero: {{{keys}}}\n{VARIANT}");
    check_errors(&section("after: 1s"), &[("scale_to_zero.after", "from 10s to 168h")]);
    check_errors(&section("overrides: {m: {}}"), &[("scale_to_zero.overrides.m", "MODEL#NAME")]);
    let other = "overrides: {\"other#default\": {enabled: true}}";
    let path = "scale_to_zero.overrides[\"other#default\"]";
    check_warning(&section(other), path, "no variant serves");
}

#[test]
fn a_wake_signal_is_one_of_three_and_says_for_which_models() {
    let known = "models: [\"m#default\"]";
    let section =
        |signal: &str| format!("scale_to_zero: {{wake: [{{name: s, {signal}}}]}}\n{VARIANT}");
    let at = |key: &str| format!("scale_to_zero.wake[0]{key}");
    for (signal, path, said) in [
        (known.to_owned(), "", "needs a url of metrics, or a query"),
        ("url: \"http://h/m\", query: x".to_owned(), "", "either url or query"),
        (format!("query: x, {known}"), ".query", "needs the section prometheus"),
        ("url: \"http://h/m\", metric: q".to_owned(), ".models", "is missing"),
        ("url: \"http://h/m\", labels: {a: b}".to_owned(), ".labels", "needs metric"),
        ("url: \"h/m\"".to_owned(), ".url", "must be a URL"),
        ("url: \"http://u:p@h/m\"".to_owned(), ".url", "must not have credentials"),
        (format!("url: \"http://h/m\", metric: 1q, {known}"), ".metric", "name of a metric"),
        ("url: \"http://h/m\", models: [m]".to_owned(), ".models[0]", "must be MODEL#NAMESPACE"),
        ("url: \"http://h/m\", interval: 1m".to_owned(), ".interval", "to 10s"),
        (
            "url: \"http://h/m\", counts_rejected: true".to_owned(),
            ".counts_rejected",
            "single number",
        ),
    ] {
        check_errors(&section(&signal), &[(&at(path), said)]);
    }
    let twice =
        "scale_to_zero: {wake: [{name: s, url: \"http://h/m\"}, {name: s, url: \"http://h/n\"}]}\n";
    check_errors(&format!("{twice}{VARIANT}"), &[("scale_to_zero.wake[1].name", "unique")]);
    check_errors(
        &format!("scale_to_zero: {{wake: [{{url: \"http://h/m\"}}]}}\n{VARIANT}"),
        &[("scale_to_zero.wake[0].name", "is missing")],
    );
    let allowed = format!("scale_to_zero: {{enabled: true}}\n{}", variant("replicas: {min: 0}"));
    check_warning(&allowed, "scale_to_zero.wake", "Plimsoll can't wake a model from zero");
    let counts = |keys: &str| {
        let of = format!("scale_to_zero: {{wake: [{{name: s, url: \"http://h/m\", {keys}}}]}}\n");
        valid(&format!("{of}{VARIANT}")).config.signals.wake[0].counts
    };
    let metric = "metric: held, models: [\"m#default\"]";
    assert_eq!(
        counts("interval: 1s"),
        SignalQuantity::Requests,
        "an endpoint picker says how many wait"
    );
    assert_eq!(counts("counts_requests: false"), SignalQuantity::Something);
    assert_eq!(
        counts(metric),
        SignalQuantity::Something,
        "any number may be above 0 while some wait"
    );
    assert_eq!(counts(&format!("{metric}, counts_requests: true")), SignalQuantity::Requests);
    assert_eq!(counts(&format!("{metric}, counts_rejected: true")), SignalQuantity::Rejected);
}

#[test]
fn a_gateway_of_a_pool_has_a_url_and_no_name_of_a_wake_signal() {
    let pool = |keys: &str| format!("pools: {{default/a: {{gateway: {{{keys}}}}}}}\n{VARIANT}");
    let at = |key: &str| format!("pools[\"default/a\"].gateway{key}");
    for (keys, path, said) in [
        ("interval: 1s", ".url", "is missing"),
        ("url: \"h/m\"", ".url", "must be a URL"),
        ("url: \"http://u:p@h/m\"", ".url", "must not have credentials"),
        ("url: \"http://h/m\", interval: 1m", ".interval", "to 10s"),
    ] {
        check_errors(&pool(keys), &[(&at(path), said)]);
    }
    let read = &valid(&pool("url: \"http://h/m\"")).config.signals;
    assert_eq!(read.reads().len(), 1);
    let taken =
        "scale_to_zero: {wake: [{name: 'pools[\"default/a\"].gateway', url: \"http://h/m\"}]}\n";
    check_errors(
        &format!("{taken}{VARIANT}"),
        &[("scale_to_zero.wake[0].name", "does not start with pools[")],
    );
}

#[test]
fn an_override_is_for_a_model_that_is_served() {
    let overrides =
        |name: &str| format!("saturation: {{overrides: {{\"{name}\": {{}}}}}}\n{VARIANT}");
    let path = |name: &str| format!("saturation.overrides[\"{name}\"]");
    for name in ["m#", "#default", "m#Default"] {
        check_errors(&overrides(name), &[(&path(name), "MODEL#NAMESPACE")]);
    }
    check_errors(&overrides("m"), &[("saturation.overrides.m", "MODEL#NAMESPACE")]);
    check_warning(&overrides("m#other"), &path("m#other"), "no variant serves this model");
    assert_eq!(valid(&overrides("m#default")).warnings, []);
}

#[test]
fn limits_are_possible_and_of_what_is_there() {
    let limits = |keys: &str| format!("{}limits: {{{keys}}}\n", variant("gpus: 4"));
    check_errors(&variant("gpus: 5000"), &[("variants[0].gpus", "must be from 0 to 4096")]);
    check_errors(
        &limits(
            "accelerators: {H100: 1, NVIDIA-H100-PCIE: 2, h100: 3, L4: null}, \
             budget_per_hour: -1, models: {m: {weight: 0}}, nodes: true",
        ),
        &[
            ("limits.accelerators.NVIDIA-H100-PCIE", "is H100, which is already in the list"),
            ("limits.accelerators.h100", "is in the list as H100, and names match exactly"),
            ("limits.accelerators.L4", "must be a number of accelerators"),
            ("limits.budget_per_hour", "must be from 0 to"),
            ("limits.nodes", "needs kubernetes.enabled"),
            ("limits.models.m", "must be named MODEL#NAMESPACE"),
            ("limits.models.m.weight", "must be from 0.001 to 1000"),
        ],
    );
    for (keys, path, said) in [
        ("namespaces: {other: {}}", "limits.namespaces.other", "it has no variants"),
        (
            "models: {\"x#default\": {}}",
            "limits.models[\"x#default\"]",
            "no variant serves this model",
        ),
    ] {
        check_warning(&limits(keys), path, said);
    }
}

#[test]
fn times_must_fit_together() {
    for (text, path, said) in [
        ("scrape: {timeout: 2s}\n", "scrape.timeout", "scrape.interval, which is 1s"),
        ("scrape: {interval: 500ms}\n", "scrape.timeout", "which is 500ms; found 900ms"),
        ("observe: {window: 1s}\n", "observe.window", "twice the longest scrape interval"),
        ("observe: {stale_after: 500ms}\n", "observe.stale_after", "must not be shorter"),
    ] {
        check_errors(&format!("{text}{VARIANT}"), &[(path, said)]);
    }
    check_errors(
        &variant("scrape: {interval: 40s}"),
        &[("observe.window", "which is 40s"), ("observe.stale_after", "which is 40s")],
    );
    check_errors(
        &variant("scrape: {timeout: 2s}"),
        &[("variants[0].scrape.timeout", "variants[0].scrape.interval, which is 1s")],
    );
    let tight = format!("observe: {{stale_after: 1500ms}}\n{VARIANT}");
    check_warning(&tight, "observe.stale_after", "one missed scrape");
}

/// A Prometheus with keys that a test adds, and a variant that is read there.
fn prometheus(keys: &str) -> String {
    format!("prometheus: {{url: \"http://p:9090\"{keys}}}\n{VARIANT}")
}

#[test]
fn variants_are_read_in_prometheus_where_there_is_one_unless_they_say_otherwise() {
    let read_by = |text: &str| valid(text).config.variants[0].read_by;
    assert_eq!(read_by(VARIANT), ReadBy::Scrape);
    assert_eq!(read_by(&prometheus("")), ReadBy::Prometheus);
    let scraped = format!("prometheus: {{url: \"http://p\"}}\n{}", variant("source: scrape"));
    assert_eq!(read_by(&scraped), ReadBy::Scrape);
    check_errors(&variant("source: prometheus"), &[("variants[0].source", "needs the section")]);
    let matched = "variants: [{name: a, model: m, targets: {prometheus: {match: {job: v}}}}]\n";
    check_errors(matched, &[("variants[0].targets.prometheus", "needs the section prometheus")]);
    let with = format!("prometheus: {{url: \"http://p\"}}\n{matched}");
    assert_eq!(read_by(&with), ReadBy::Prometheus);
    check_errors(
        &with.replace("targets:", "source: scrape, targets:"),
        &[("variants[0].source", "must be prometheus")],
    );
    let twice =
        with.replace("]\n", ", {name: b, model: m, targets: {prometheus: {match: {job: v}}}}]\n");
    check_errors(
        &twice,
        &[("variants[1].targets.prometheus.match", "which variants[0].targets.prometheus.match")],
    );
    for (labels, path, said) in [
        ("{}", "", "must have at least one label"),
        ("{job: \"\"}", ".job", "must not be empty"),
        ("{a-b: c}", ".a-b", "must be the name of a label"),
    ] {
        let text = with.replace("{job: v}", labels);
        check_errors(&text, &[(&format!("variants[0].targets.prometheus.match{path}"), said)]);
    }
}

#[test]
fn data_from_prometheus_has_an_age_of_its_own() {
    let policy = valid(&prometheus("")).config.policy;
    assert_eq!(Some(policy.stale_after), Seconds::new(10.0));
    assert_eq!(Some(policy.stale_after_relayed), Seconds::new(60.0));
    // The interval of scrapes of our own says nothing about such a variant.
    valid(&(prometheus("") + "scrape: {interval: 40s}\n"));
    for (keys, path, said) in [
        (", stale_after: 15s", "prometheus.stale_after", "at least 20s"),
        (", lookback: 1m, stale_after: 2m", "prometheus.lookback", "which is 2m"),
        (", interval: 10m", "prometheus.interval", "must be from"),
    ] {
        check_errors(&prometheus(keys), &[(path, said)]);
    }
}

#[test]
fn a_url_of_prometheus_has_no_secret_and_no_path_of_the_api() {
    for (url, said) in [
        ("http://user:sesame@p:9090", "must not have credentials"),
        ("p:9090", "must be a URL with http or https"),
        ("ftp://p", "must be a URL with http or https"),
        ("http://p/api/v1/query", "must end before /api/v1"),
        ("http://p?dedup=true", "prometheus.parameters"),
    ] {
        let text = format!("prometheus: {{url: \"{url}\"}}\n{VARIANT}");
        check_errors(&text, &[("prometheus.url", said)]);
        let said = refused(&text);
        assert!(!said.contains("sesame"), "{said}");
    }
    check_errors(&format!("prometheus: {{}}\n{VARIANT}"), &[("prometheus.url", "is missing")]);
    let trailing = format!("prometheus: {{url: \"https://p/select/0/prometheus/\"}}\n{VARIANT}");
    let url = valid(&trailing).config.prometheus.unwrap().url;
    assert_eq!(url, "https://p/select/0/prometheus");
}

#[test]
fn secrets_for_prometheus_belong_into_files_and_are_not_repeated() {
    for (keys, path, said) in [
        (", headers: {Authorization: sesame}", "prometheus.headers.Authorization", "in a file"),
        (", headers: {Cookie: sesame}", "prometheus.headers.Cookie", "in a file"),
        (", headers: {\"a b\": c}", "prometheus.headers[\"a b\"]", "not a valid header name"),
        (", headers: {X: \"sesame\\n\"}", "prometheus.headers.X", "must be a valid header value"),
        (", parameters: {query: up}", "prometheus.parameters.query", "by Plimsoll itself"),
        (", basic_auth: {username: u}", "prometheus.basic_auth.password_file", "is missing"),
        (", labels: {pod: a-b}", "prometheus.labels.pod", "must be the name of a label"),
    ] {
        check_errors(&prometheus(keys), &[(path, said)]);
        assert!(!refused(&prometheus(keys)).contains("sesame"));
    }
    check_errors(
        &prometheus(", bearer_token_file: t, basic_auth: {username: u, password_file: p}"),
        &[("prometheus.basic_auth", "must not be set with")],
    );
    check_warning(
        &prometheus(", bearer_token_file: t"),
        "prometheus.bearer_token_file",
        "unencrypted",
    );
    let shown = valid(&prometheus(", headers: {X-Scope-OrgID: sesame}")).config;
    assert!(!shown.print().contains("sesame"), "{}", shown.print());
    assert!(shown.print().contains("X-Scope-OrgID: (hidden)"), "{}", shown.print());
}

/// The external metrics API with keys that a test adds.
fn external(keys: &str) -> String {
    format!(
        "kubernetes: {{enabled: true}}\n\
         external_metrics: {{tls: {{cert_file: c, key_file: k}}, {keys}}}\n{VARIANT}"
    )
}

#[test]
fn the_external_scaler_has_an_address_of_its_own_and_a_whole_certificate() {
    let scaler = |keys: &str| format!("external_scaler: {{{keys}}}\n{VARIANT}");
    let listen = "external_scaler.listen";
    check_errors(&scaler("listen: \"127.0.0.1:8080\""), &[(listen, "server.listen")]);
    let both = external("listen: \"0.0.0.0:6444\"");
    let both = both.replace(VARIANT, &scaler(""));
    check_errors(&both, &[(listen, "external_metrics.listen")]);
    check_errors(
        &scaler("tls: {}"),
        &[
            ("external_scaler.tls.cert_file", "is missing"),
            ("external_scaler.tls.key_file", "is missing"),
        ],
    );
}

#[test]
fn the_external_metrics_api_needs_what_it_is_served_with() {
    check_errors(&external("fresh: 6m"), &[("external_metrics.fresh", "which is 5m; found 6m")]);
    check_errors(
        &format!("tick_interval: 1m\n{}", external("")),
        &[("external_metrics.fresh", "longer than tick_interval")],
    );
    for listen in ["\"0.0.0.0:8080\"", "\"127.0.0.1:8080\""] {
        let text = external(&format!("listen: {listen}"));
        check_errors(&text, &[("external_metrics.listen", "server.listen")]);
    }
    check_errors(&external("listen: here"), &[("external_metrics.listen", "IP address")]);
    let without_cluster = external("authorization: subject_access_review").replace("true", "false");
    check_errors(&without_cluster, &[("external_metrics.authorization", "trust_front_proxy")]);
    check_errors(
        &format!("kubernetes: {{enabled: true}}\nexternal_metrics: {{}}\n{VARIANT}"),
        &[
            ("external_metrics.tls.cert_file", "is missing"),
            ("external_metrics.tls.key_file", "is missing"),
        ],
    );
    // What is not served needs nothing.
    let off = valid(&format!("external_metrics: {{enabled: false, hold: 1m}}\n{VARIANT}"));
    assert_eq!(off.config.keys.external_metrics, None);
    let warnings: Vec<_> = off.warnings.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(warnings, ["external_metrics.hold"], "{:?}", off.warnings);
    let trusting = valid(&external("authorization: trust_front_proxy").replace("true", "false"));
    let served = trusting.config.keys.external_metrics.unwrap();
    assert_eq!(served.authorization, Authorization::TrustFrontProxy);
    let files = ServerTls {
        cert_file: Some("/base/c".into()),
        key_file: Some("/base/k".into()),
        ca_file: None,
        self_managed: None,
    };
    assert_eq!(served.tls, files);
}

#[test]
fn a_certificate_of_its_own_needs_a_cluster_a_secret_a_service_and_no_files() {
    let own = |keys: &str| {
        format!(
            "kubernetes: {{enabled: true}}\n\
             external_metrics: {{tls: {{self_managed: {{{keys}}}}}}}\n{VARIANT}"
        )
    };
    let path = "external_metrics.tls.self_managed";
    let named = "secret: s, service: v";
    let config = valid(&own(named)).config;
    let year = Duration::from_hours(24 * 365);
    assert_eq!(
        config.keys.external_metrics.as_ref().unwrap().tls.self_managed,
        Some(SelfManaged {
            secret: "s".to_owned(),
            service: "v".to_owned(),
            namespace: None,
            leaf_lifetime: year,
            ca_lifetime: 10 * year,
        })
    );
    assert_eq!(valid(&config.print()).config, config, "{}", config.print());
    let written = own("secret: s, service: v, namespace: n, leaf_lifetime: 1m, ca_lifetime: 3m");
    let config = valid(&written).config;
    assert_eq!(valid(&config.print()).config, config, "{}", config.print());

    let below = |key: &str| format!("{path}.{key}");
    check_errors(&own(""), &[(&below("secret"), "is missing"), (&below("service"), "is missing")]);
    check_errors(
        &own("secret: S, service: a.b, namespace: \"\""),
        &[
            (&below("secret"), "name of a Secret"),
            (&below("service"), "name of a Service"),
            (&below("namespace"), "name of a namespace"),
        ],
    );
    check_errors(
        &own(&format!("{named}, leaf_lifetime: 1s")),
        &[(&below("leaf_lifetime"), "must be from 1m")],
    );
    check_errors(
        &own(&format!("{named}, leaf_lifetime: 1h, ca_lifetime: 2h")),
        &[(&below("leaf_lifetime"), "a third of")],
    );
    let text = own(named);
    check_errors(
        &text.replace("tls: {", "tls: {cert_file: c, "),
        &[("external_metrics.tls.cert_file", "next to external_metrics.tls.self_managed")],
    );
    check_errors(
        &text.replace("true}", "false}").replace("{tls", "{authorization: trust_front_proxy, tls"),
        &[(path, "needs kubernetes.enabled")],
    );
}

#[test]
fn a_leader_must_give_up_before_the_others_take_over() {
    let election = |keys: &str| {
        format!(
            "kubernetes: {{enabled: true, leader_election: {{enabled: true, {keys}}}}}\n\
             external_metrics: {{enabled: false}}\n{VARIANT}"
        )
    };
    let at = |key: &str| format!("kubernetes.leader_election.{key}");
    for (keys, path, said) in [
        ("renew_deadline: 15s", "renew_deadline", "shorter than lease_duration, which is 15s"),
        ("lease_duration: 8s", "renew_deadline", "shorter than lease_duration, which is 8s"),
        ("retry_period: 9s", "retry_period", "five sixths of renew_deadline, which is 10s"),
        ("lease_duration: 1h", "lease_duration", "from 1s to 5m"),
        ("name: Big", "name", "name of a Lease"),
        ("namespace: a.b", "namespace", "namespace"),
        ("identity: \" a\"", "identity", "without spaces"),
    ] {
        check_errors(&election(keys), &[(&at(path), said)]);
    }
    let state = format!("state_file: s\n{}", election("name: l"));
    check_warning(&state, "state_file", "share their decisions");
    let off = valid(&election("name: l").replace("{enabled: true, name", "{enabled: false, name"));
    assert_eq!(off.config.keys.kubernetes.leader_election(), None);
}

#[test]
fn files_that_are_named_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("there"), "").unwrap();
    let read = |file: &str| {
        let text = format!(
            "state_file: {file}/state\n\
             scrape: {{scheme: https, bearer_token_file: {file}, \
             tls: {{ca_file: {file}, cert_file: {file}, key_file: {file}}}}}\n\
             kubernetes: {{enabled: true, kubeconfig: {file}}}\n\
             external_metrics: {{tls: {{cert_file: {file}, key_file: {file}}}}}\n{VARIANT}"
        );
        let base = folder.path().to_owned();
        problems(parse(&text, &Surroundings { base, ..surroundings(Files::MustExist) }))
    };
    let paths = |file| read(file).into_iter().map(|one| one.path).collect::<Vec<String>>();
    // A file is no folder for the state, and a folder is no file for anything else.
    assert_eq!(paths("there"), ["state_file"]);
    assert!(paths("absent").contains(&"state_file".to_owned()));
    for missing in ["absent", "."] {
        let mut paths = paths(missing);
        paths.retain(|path| path != "state_file");
        assert_eq!(
            paths,
            [
                "external_metrics.tls.cert_file",
                "external_metrics.tls.key_file",
                "kubernetes.kubeconfig",
                "scrape.bearer_token_file",
                "scrape.tls.ca_file",
                "scrape.tls.cert_file",
                "scrape.tls.key_file",
            ]
        );
    }
    check_errors(
        &format!("scrape: {{scheme: https, tls: {{cert_file: c}}}}\n{VARIANT}"),
        &[("scrape.tls.key_file", "needs its key")],
    );
}

#[test]
fn credentials_that_do_not_protect_are_warned_of() {
    for (keys, path, said) in [
        ("bearer_token_file: t", "scrape.bearer_token_file", "unencrypted"),
        ("tls: {ca_file: c}", "scrape.tls", "no effect"),
        (
            "scheme: https, tls: {insecure_skip_verify: true}",
            "scrape.tls.insecure_skip_verify",
            "lets any server pose",
        ),
    ] {
        check_warning(&format!("scrape: {{{keys}}}\n{VARIANT}"), path, said);
    }
    let context = format!("kubernetes: {{context: c}}\n{VARIANT}");
    check_warning(&context, "kubernetes.context", "no effect");
    let events = format!("kubernetes: {{events: true}}\n{VARIANT}");
    check_warning(&events, "kubernetes.events", "no effect");
}

#[test]
fn names_must_be_possible_in_kubernetes() {
    for (keys, key) in [
        ("name: Llama, model: m", "name"),
        ("name: a_b, model: m", "name"),
        ("name: \"\", model: m", "name"),
        ("name: -a, model: m", "name"),
        ("name: a, model: \"m#x\"", "model"),
        ("name: a, model: \"\"", "model"),
        ("name: a, model: m, namespace: A", "namespace"),
        ("name: a, model: m, namespace: a.b", "namespace"),
        ("name: a, model: m, accelerator: \"\"", "accelerator"),
        ("name: a, model: m, model_aliases: [\"\"]", "model_aliases[0]"),
    ] {
        let text = format!("variants: [{{{keys}, targets: {{static: [\"h:1\"]}}}}]\n");
        check_errors(&text, &[(&format!("variants[0].{key}"), "must")]);
    }
    let long = "a".repeat(64);
    let text = format!("variants: [{{name: {long}, model: m, targets: {{static: [h]}}}}]\n");
    check_errors(&text, &[("variants[0].name", "1 to 63")]);
}

#[test]
fn without_variants_there_is_only_discovery() {
    let on = "kubernetes: {enabled: true, discovery: {enabled: true}}\n";
    for variants in ["", "variants: []\n", "variants: null\n"] {
        let config = valid(&format!("{on}{variants}")).config;
        let discovery = config.keys.kubernetes.discovery().unwrap().clone();
        assert_eq!((discovery.namespaces, discovery.selector), (Vec::new(), None));
        assert!(discovery.wva, "on by default");
    }
    let off = "kubernetes: {enabled: true, discovery: {enabled: false}}\nvariants: []\n";
    check_errors(off, &[("variants", "add a variant, or set kubernetes.discovery")]);
    let no_cluster = format!("kubernetes: {{discovery: {{enabled: true}}}}\n{VARIANT}");
    check_errors(&no_cluster, &[("kubernetes.discovery.enabled", "needs kubernetes.enabled")]);
    let wrong = "kubernetes: {enabled: true, discovery: {enabled: true, namespaces: [a, A_b], \
                 selector: \"a in b\"}}\n";
    check_errors(
        wrong,
        &[
            ("kubernetes.discovery.namespaces[1]", "1 to 63"),
            ("kubernetes.discovery.selector", "must be a label selector"),
        ],
    );
    let idle = format!("kubernetes: {{enabled: true, discovery: {{wva: false}}}}\n{VARIANT}");
    check_warning(&idle, "kubernetes.discovery.wva", "no effect");
    // Which models there are is not known, so thresholds of one that is not listed are no mistake.
    let overrides = "saturation: {overrides: {\"m#n\": {queue_length_threshold: 7}}}\n";
    assert_eq!(valid(&format!("{on}{overrides}")).warnings, []);
}

#[test]
fn what_is_required_is_missed() {
    check_errors("", &[("variants", "add a variant")]);
    check_errors("variants: []\n", &[("variants", "add a variant")]);
    check_errors(
        "variants: [{}]\n",
        &[
            ("variants[0].name", "missing"),
            ("variants[0].model", "missing"),
            ("variants[0].targets", "exactly one"),
        ],
    );
    check_errors(
        &format!("enforce: {{scale_up: {{policies: [{{}}]}}}}\n{VARIANT}"),
        &[
            ("enforce.scale_up.policies[0].type", "missing"),
            ("enforce.scale_up.policies[0].value", "missing"),
            ("enforce.scale_up.policies[0].period", "missing"),
        ],
    );
    // What is there and wrong is not missing as well.
    check_errors(
        "variants: [{name: [], model: 5, targets: {static: 3}}]\n",
        &[
            ("variants[0].name", "must be text"),
            ("variants[0].model", "must be text"),
            ("variants[0].targets.static", "must be a list"),
        ],
    );
}

#[test]
fn bounds_are_not_inverted() {
    check_errors(
        &variant("replicas: {min: 3, max: 2}"),
        &[("variants[0].replicas.max", "variants[0].replicas.min, which is 3; found 2")],
    );
    check_errors(&variant("replicas: {max: 0}"), &[("variants[0].replicas.max", "from 1")]);
    check_errors(
        &variant("replicas: {min: 2000000}"),
        &[("variants[0].replicas.min", "to 1000000")],
    );
}

#[test]
fn targets_must_be_possible() {
    let at = |key: &str| format!("variants[0].targets{key}");
    for (keys, key, said) in [
        ("", "", "exactly one"),
        ("static: [h], selector: a", "", "found static, selector"),
        ("static: []", ".static", "at least one"),
        ("static: [\"http://h:1\"]", ".static[0]", "HOST:PORT"),
        ("static: [\"h:x\"]", ".static[0]", "HOST:PORT"),
        ("static: [h, h]", ".static[1]", "targets.static[0] also claims"),
        ("file: {}", ".file.paths", "at least one"),
        ("file: {paths: [f], refresh: 0s}", ".file.refresh", "from 1s"),
        ("dns: {}", ".dns.names", "at least one"),
        ("dns: {names: [\"a b\"]}", ".dns.names[0]", "DNS name"),
        ("dns: {names: [a], type: MX}", ".dns.type", "SRV"),
        ("dns: {names: [a], type: SRV, port: 1}", ".dns.port", "SRV records have one"),
        ("scale_target: {api_version: apps/v1, kind: Deployment}", ".scale_target.name", "missing"),
        ("scale_target: {api_version: apps/, kind: D, name: a}", ".scale_target.api_version", "v1"),
        ("scale_target: {api_version: v1, kind: d, name: a}", ".scale_target.kind", "Deployment"),
        (
            "scale_target: {api_version: apps/v1, kind: Deploymnet, name: a}",
            ".scale_target.kind",
            "Deployment, StatefulSet, ReplicaSet",
        ),
        ("scale_target: {api_version: v1, kind: D, name: A}", ".scale_target.name", "lower-case"),
        ("selector: \"a in b\"", ".selector", "label selector"),
    ] {
        check_errors(&targets(keys), &[(&at(key), said)]);
    }
    for keys in ["selector: app=a", "scale_target: {api_version: v1, kind: D, name: a}"] {
        let text = targets(keys).replace("true", "false");
        let key = keys.split(':').next().unwrap();
        check_errors(&text, &[(&at(&format!(".{key}")), "needs kubernetes.enabled")]);
    }
}

#[test]
fn no_two_variants_claim_the_same() {
    for (first, second, path) in [
        ("static: [h]", "static: [g, \"h:8000\"]", "targets.static[1]"),
        ("file: {paths: [f]}", "file: {paths: [/base/f]}", "targets.file.paths[0]"),
        ("dns: {names: [n]}", "dns: {names: [n]}", "targets.dns.names[0]"),
        ("selector: app=a", "selector: app=a", "targets.selector"),
        (
            "scale_target: {api_version: apps/v1, kind: Deployment, name: a}",
            "scale_target: {api_version: apps/v2, kind: Deployment, name: a}",
            "targets.scale_target",
        ),
    ] {
        let text = format!(
            "kubernetes: {{enabled: true}}\nvariants:\n\
             - {{name: a, model: m, targets: {{{first}}}}}\n\
             - {{name: b, model: m, targets: {{{second}}}}}\n"
        );
        check_errors(&text, &[(&format!("variants[1].{path}"), "also claims")]);
    }
    let twice = "variants:\n\
                 - {name: a, model: m, targets: {static: [h]}}\n\
                 - {name: a, namespace: other, model: m, targets: {static: [i]}}\n\
                 - {name: a, model: n, targets: {static: [j]}}\n";
    check_errors(twice, &[("variants[2].name", "default/a, which variants[0].name also claims")]);
}

#[test]
fn all_problems_are_reported_at_once_and_in_order() {
    let text = "\
tick_intervall: 1s
server: {listen: 8080}
observe: {window: 5 parsecs, stale_after: 10ms}
saturation: {kv_cache_threshold: .nan, kv_spare_trigger: 0.9}
external_metrics: {fresh: 10m, hold: 5m}
variants:
- 5
- name: Bad
  model: \"a#b\"
  replicas: {min: 5, max: 2}
  targets: {static: [\"h:1\", \"h:1\", x y]}
- {name: good, model: m, cost: -1, scrap: {}, targets: {static: [\"h:1\"]}}
";
    let error = read(text).unwrap_err();
    insta::assert_snapshot!("all_problems_at_once", error);
}

#[test]
fn a_syntax_error_says_line_and_column() {
    let error = read("server:\n  listen: \"0.0.0.0:8080\n").unwrap_err();
    assert!(
        matches!(&error, LoadError::Syntax { line: Some(_), column: Some(_), .. }),
        "{error:?}"
    );
    assert!(error.to_string().starts_with("test.yaml:"), "{error}");
    let error = read("tick_interval: 1s\ntick_interval: 2s\n").unwrap_err();
    assert!(error.to_string().starts_with("test.yaml:2:"), "{error}");
}

#[test]
fn a_file_that_cannot_be_a_configuration_is_not_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.yaml");
    std::fs::File::create(&file).unwrap().set_len(5 << 20).unwrap();
    assert!(matches!(load(&file, Files::MustExist), Err(LoadError::TooLarge { .. })));
    assert!(matches!(load(folder.path(), Files::MustExist), Err(LoadError::Read { .. })));
}

#[test]
fn the_environment_is_a_layer_over_the_file() {
    let with = |variables: &[(&str, &str)]| {
        let environment =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = environment.collect();
        let text = format!("tick_interval: 2s\n{VARIANT}");
        parse(&text, &Surroundings { environment, ..surroundings(Files::NotChecked) })
    };
    let config = with(&[
        ("PLIMSOLL__SERVER__LISTEN", "[::]:9999"),
        ("PLIMSOLL__TICK_INTERVAL", "3s"),
        ("PLIMSOLL__COMPATIBILITY__WVA_METRICS", "true"),
        ("PLIMSOLL__SCRAPE__PORT", "7000"),
        ("PLIMSOLL__VARIANTS__0__COST", "2.5"),
        ("PLIMSOLL__STATE_FILE", ""),
        ("PLIMSOLL_PORT", "tcp://10.0.0.1:80"),
        ("HOME", "/root"),
    ]);
    let config = config.unwrap().config;
    assert_eq!(config.keys.server.listen, "[::]:9999".parse().unwrap());
    assert_eq!(config.keys.tick_interval, Duration::from_secs(3));
    assert!(config.keys.compatibility.wva_metrics);
    assert_eq!(config.scrape.endpoint.port, 7000);
    assert_eq!(config.keys.state_file, None);
    assert_eq!(config.variants.len(), 1);
    assert_eq!(config.variants[0].spec.cost.per_hour().to_string(), "2.5");

    let wrong = problems(with(&[
        ("PLIMSOLL__SERVER__LISTN", "x"),
        ("PLIMSOLL__OBSERVE", "5"),
        ("PLIMSOLL__VARIANTS__2__NAME", "c"),
        ("PLIMSOLL__A[", "x"),
    ]));
    let paths: Vec<&str> = wrong.iter().map(|one| one.path.as_str()).collect();
    for path in ["server.listn", "observe", "variants[1]", "variants[2].model", "[\"a[\"]"] {
        assert!(paths.contains(&path), "{path} is not among {paths:?}");
    }
    let place = |path: &str| wrong.iter().find(|one| one.path == path)?.place.as_deref();
    assert_eq!(place("server.listn"), Some("PLIMSOLL__SERVER__LISTN"));
    assert_eq!(place("variants[2].model"), Some("test.yaml:2"));
}

#[test]
fn a_variant_overrides_single_keys_of_the_scrape_section() {
    let text = "\
scrape: {interval: 2s, timeout: 1s, port: 1, path: /m, scheme: https, tls: {ca_file: ca}}
variants:
- {name: a, model: m, targets: {static: [h]}}
- {name: b, model: m, targets: {static: [h]}, scrape: {port: 2, tls: {insecure_skip_verify: true}}}
- {name: c, model: m, targets: {dns: {names: [n]}}, scrape: {scheme: http, interval: 3s}}
";
    let config = valid(text).config;
    let [a, b, c] = config.variants.as_slice() else { panic!("three variants") };
    assert_eq!(a.targets, VariantTargets::Listed(TargetSource::Static(vec!["h:1".to_owned()])));
    assert_eq!(b.targets, VariantTargets::Listed(TargetSource::Static(vec!["h:2".to_owned()])));
    let VariantTargets::Listed(TargetSource::Dns { record: Record::A, port, .. }) = &c.targets
    else {
        panic!("{:?}", c.targets)
    };
    assert_eq!(*port, Some(1));
    assert_eq!((c.endpoint.scheme, b.endpoint.scheme), (Scheme::Http, Scheme::Https));
    assert_eq!((c.scrape.interval, c.scrape.timeout), (secs(3), secs(1)));
    assert_eq!(b.scrape.client.ca_file, Some(PathBuf::from("/base/ca")));
    assert!(b.scrape.client.insecure_skip_verify && !a.scrape.client.insecure_skip_verify);
    assert!(std::sync::Arc::ptr_eq(&a.scrape, &config.scrape.settings));
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn every_example_is_valid_and_prints_what_it_is() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root("examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("plimsoll") || path.extension().is_none_or(|it| it != "yaml") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let loaded = valid(&text);
        assert_eq!(loaded.warnings, [], "{name}");
        let printed = valid(&loaded.config.print());
        assert_eq!(printed.config, loaded.config, "{name}");
        assert_eq!(printed.config.hash(), loaded.config.hash(), "{name}");
    }
    assert!(seen >= 2, "{seen} examples");
}

/// A configuration beside a mounted `ConfigMap` with these entries.
fn with_wva(entries: &[(&str, &str)], keys: &str) -> Result<LoadedConfig, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("wva")).unwrap();
    for (name, text) in entries {
        std::fs::write(folder.path().join("wva").join(name), text).unwrap();
    }
    let file = folder.path().join("plimsoll.yaml");
    let text = format!("compatibility: {{wva_config: wva}}\n{keys}{VARIANT}");
    std::fs::write(&file, text).unwrap();
    load(&file, Files::MustExist)
}

#[test]
fn thresholds_of_wva_lie_under_the_section_and_the_nearer_key_wins() {
    let entries = [
        ("default", "kvCacheThreshold: 0.75\nqueueLengthThreshold: 10\nkvSpareTrigger: 0.2\n"),
        ("one", "model_id: m\nnamespace: default\nkvCacheThreshold: 0.6\nqueueSpareTrigger: 2\n"),
        ("two", "model_id: other\nnamespace: lab\nqueueLengthThreshold: 7\n"),
    ];
    let written = "saturation: {queue_length_threshold: 8, overrides: {\"m#default\": \
                   {queue_spare_trigger: 1}}}\n";
    let config = with_wva(&entries, written).unwrap().config;
    let numbers = |thresholds: &plimsoll::analyze::saturation::Thresholds| {
        let plimsoll::analyze::saturation::Thresholds {
            kv_cache,
            queue_length,
            kv_spare,
            queue_spare,
        } = thresholds;
        [kv_cache.fraction(), queue_length.requests(), kv_spare.fraction(), queue_spare.requests()]
            .map(|number| number.to_string())
            .join(" ")
    };
    assert_eq!(numbers(&config.policy.thresholds), "0.75 8 0.2 3");
    let overrides: Vec<_> = config
        .policy
        .overrides
        .iter()
        .map(|(key, thresholds)| (key.to_string(), numbers(thresholds)))
        .collect();
    // An entry changes what it has. In WVA, the other keys of `one` would be the built-in defaults.
    let want = [("m#default", "0.6 8 0.2 1"), ("other#lab", "0.75 7 0.2 3")];
    assert_eq!(overrides, want.map(|(key, numbers)| (key.to_owned(), numbers.to_owned())));
    // What is printed needs the folder no more.
    assert_eq!(valid(&config.print()).config, config);
}

#[test]
fn what_wva_says_of_scaling_to_zero_lies_under_the_section() {
    let entries = [
        ("default", "scaleToZero: {enabled: true}\n"),
        ("m", "model_id: m\nnamespace: default\nscaleToZero: {enabled: false}\n"),
    ];
    let none = "scale_to_zero: {wake: []}\n";
    let zero = with_wva(&entries, none).unwrap().config.policy.zero;
    let rule = |zero: &Zero, model: &str| {
        let namespace = Namespace::new("default").unwrap();
        zero.of(&ModelKey { namespace, model: ModelName::new(model).unwrap() }).policy
    };
    let idle = ZeroPolicy::AfterIdle(Seconds::new(900.0).unwrap());
    assert_eq!((rule(&zero, "m"), rule(&zero, "other")), (ZeroPolicy::KeepOne, idle));
    let written = "scale_to_zero: {wake: [], overrides: {\"m#default\": {enabled: true}}}\n";
    let zero = with_wva(&entries, written).unwrap().config.policy.zero;
    assert_eq!(rule(&zero, "m"), idle, "what is written here wins");
    let wrong = with_wva(&[("default", "scaleToZero: {enabled: 1}\n")], none).unwrap_err();
    let said = "compatibility.wva_config/default:1 scaleToZero must be a mapping with enabled";
    assert!(wrong.to_string().contains(said), "{wrong}");
}

#[test]
fn what_is_wrong_with_the_thresholds_of_wva_is_told_with_entry_and_line() {
    let entries = [("default", "kvCacheThreshold: 7\nenableLimiter: true\n")];
    let mut problems = problems(with_wva(&entries, ""));
    for problem in &mut problems {
        assert!(problem.place.take().is_some_and(|it| it.ends_with("plimsoll.yaml:1")));
    }
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "error: compatibility.wva_config/default:1 kvCacheThreshold must be above 0 and at most \
             1; found 7",
            "warning: compatibility.wva_config/default:2 enableLimiter is ignored: Plimsoll does not read WVA's GPU limiter",
        ]
    );
    let together = with_wva(&[("default", "kvSpareTrigger: 0.9\n")], "").unwrap_err().to_string();
    assert!(together.contains("kv_spare_trigger must be below kv_cache_threshold"), "{together}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.yaml");
    std::fs::write(&file, format!("compatibility: {{wva_config: none}}\n{VARIANT}")).unwrap();
    let missing = load(&file, Files::MustExist).unwrap_err().to_string();
    assert!(missing.contains("compatibility.wva_config must be a readable folder"), "{missing}");
}

#[test]
fn what_is_printed_round_trips_for_every_kind_of_target_and_setting() {
    let text = "\
tick_interval: 1500ms
kubernetes:
  enabled: true
  kubeconfig: k
  context: \"123\"
  events: false
  discovery: {enabled: true, namespaces: [\"1\", b], selector: \"a in (b, c)\", wva: false}
  leader_election:
    {enabled: true, namespace: n, name: l, identity: i, lease_duration: 9s, renew_deadline: 7s, retry_period: 1s}
external_metrics: {listen: \"[::1]:7\", authorization: trust_front_proxy, tls: {cert_file: c, key_file: d}}
compatibility: {wva_metrics: true}
state_file: s
saturation:
  transition: model_wide
  kv_cache_threshold: 0.7
  overrides: {\"m#n\": {queue_length_threshold: 7}}
pools:
  n/a: {max_loras: 4, copies: {max: 3}, adapters: {x: {copies: 2}, \"1\": {min: 1, max: 9}, z: }}
  n/b: {idle_after: 20m, packing: {enabled: false, window: 90s}}
  default/c: {packing: {interval: 1h, max_moved: 3}}
enforce:
  scale_up: {select_policy: disabled, policies: []}
  scale_down: {select_policy: min}
  min_dwell: {after_scale_up: 7m}
  flap_budget: 4
  panic: {threshold: 2.5}
  defer_to_hpa: false
scale_to_zero:
  enabled: true
  after: 20m
  overrides: {\"m#n\": {enabled: false, awake_for: 1m}}
  wake:
  - {name: e, url: \"https://epp:9090/metrics\", tls: {ca_file: c}, bearer_token_file: t}
  - {name: g, url: \"http://h/m\", metric: q, labels: {a: \"1\"}, models: [\"m#n\"], interval: 2s}
  - {name: p, query: \"sum(x)\", models: [\"m#n\"]}
limits:
  accelerators: {H100: 8, A100-MIG-1g.10gb: 0}
  nodes: true
  quotas: true
  names: {NVIDIA-A100-SXM4-40GB: A100-40GB}
  namespaces: {n: {accelerators: {}}, default: {budget_per_hour: 0}}
  models: {\"m#n\": {priority: 3, weight: 0.5, guaranteed: 2}}
scrape: {body_limit: 1500kB, tls: {cert_file: a, key_file: b}, scheme: https}
prometheus:
  url: https://thanos.example:9091/prefix/
  method: get
  stale_after: 90s
  header_files: {X-Tenant: t}
  basic_auth: {username: u, password_file: p}
  tls: {ca_file: c}
  parameters: {dedup: \"true\"}
  labels: {pod: kubernetes_pod_name}
variants:
- {name: a, namespace: n, model: m, targets: {static: [h, \"[::1]\"]}, role: decode, gpus: 8, cost: 2, list_price: 5, mismatch: 3, start_time: 12s}
- {name: b, namespace: n, model: m, targets: {file: {paths: [f], refresh: 90s}}, replicas: {min: 0}}
- {name: c, model: \"no\", targets: {dns: {names: [n], type: AAAA}}, model_aliases: [\"1\", \"~\"]}
- {name: d, model: \"1e3\", targets: {dns: {names: [_x._tcp.n], type: SRV}}, accelerator: \"0x1\"}
- {name: e, model: m, targets: {scale_target: {api_version: apps/v1, kind: Deployment, name: e}}}
- {name: f, model: m, targets: {selector: \"a in (b, c)\"}, scrape: {scheme: http, path: /x?y=z}}
- {name: g, model: m, targets: {prometheus: {match: {job: vllm, zone: \"1\"}}}}
- {name: h, model: m, targets: {static: [\"h:9\"]}, source: scrape}
";
    let config = valid(text).config;
    let printed = config.print();
    assert_eq!(valid(&printed).config, config, "{printed}");
    assert_eq!(valid(&printed).config.print(), printed);
    let other = valid(&text.replace("1500ms", "1600ms")).config;
    assert_ne!(other.hash(), config.hash());
    assert_eq!(config.hash().len(), 16);
}

/// Those that size models, if any does.
fn analyzers(loaded: &LoadedConfig) -> Option<Vec<Analyzer>> {
    loaded.config.policy.sizing.as_ref().map(|sizing| sizing.analyzers.clone())
}

#[test]
fn a_long_prompt_may_have_more_time_and_says_what_it_depends_on() {
    let foresight = |slo: &str| {
        let loaded = valid(&format!("capacity: {{slo: {slo}}}\n{VARIANT}"));
        assert_eq!(valid(&loaded.config.print()).config, loaded.config, "{slo}");
        let warned = loaded.warnings.iter().map(ToString::to_string).collect::<String>();
        let foresight = loaded.config.policy.sizing.unwrap().foresight;
        (foresight.ttft_per_token.seconds(), foresight.long_prompt.tokens(), warned)
    };
    assert_eq!(foresight("{ttft: 1s}"), (0.0, 4000.0, String::new()));
    let all = foresight("{ttft_per_token: 1ms, long_prompt: 8000}");
    assert_eq!(all, (0.001, 8000.0, String::new()));
    let (_, _, warned) = foresight("{long_prompt: 8000}");
    assert!(
        warned.contains("long_prompt has no effect without capacity.slo.ttft_per_token"),
        "{warned}"
    );
}

#[test]
fn foresight_sizes_models_unless_only_thresholds_are_given() {
    let foresight = Some(vec![Analyzer::Foresight]);
    for (text, want) in [
        ("", foresight.clone()),
        ("observe: {window: 2m}", foresight.clone()),
        ("saturation: {}", foresight.clone()),
        ("capacity: {slo: {itl: 50ms}}", foresight.clone()),
        ("analysis: capacity\nsaturation: {kv_cache_threshold: 0.7}", foresight),
        ("analysis: saturation", None),
        ("saturation: {kv_cache_threshold: 0.7}", None),
        ("saturation: {transition: model_wide}", None),
        ("saturation: {overrides: {\"m#default\": {kv_spare_trigger: 0.2}}}", None),
    ] {
        let loaded = valid(&format!("{text}\n{VARIANT}"));
        assert_eq!(analyzers(&loaded), want, "{text}");
        let printed = valid(&loaded.config.print());
        assert_eq!(printed.config, loaded.config, "{text}");
    }
    let mounted = with_wva(&[("default", "kvCacheThreshold: 0.75\n")], "").unwrap();
    assert_eq!(analyzers(&mounted), None);
    let said = with_wva(&[("default", "kvCacheThreshold: 0.75\n")], "analysis: capacity\n");
    assert_eq!(analyzers(&said.unwrap()), Some(vec![Analyzer::Foresight]));
    check_warning(
        &format!("saturation: {{kv_cache_threshold: 0.7}}\ncapacity: {{}}\n{VARIANT}"),
        "capacity",
        "has no effect, because thresholds are given, and analysis is not",
    );
}

#[test]
fn every_constant_of_foresight_is_a_key_and_every_term_can_be_switched_off() {
    let with = |keys: &str| format!("capacity: {{foresight: {{{keys}}}}}\n{VARIANT}");
    let print =
        |text: &str| yaml_to_json(&valid(text).config.print())["capacity"]["foresight"].clone();
    assert_eq!(print(VARIANT)["error_budget"]["enabled"], json!(false), "unless it is written");
    let default = print(VARIANT);
    let sections = default.as_object().unwrap().iter();
    let terms: Vec<&String> = sections
        .filter(|(_, section)| section.get("enabled").is_some())
        .map(|(term, _)| term)
        .collect();
    assert!(terms.len() >= 12, "{terms:?}");
    let on: Vec<String> = terms.iter().map(|term| format!("{term}: {{}}")).collect();
    let usual = print(&with(&on.join(", ")));
    for term in terms {
        let text = with(&format!("{term}: {{enabled: false}}"));
        let off = print(&text);
        for (key, value) in off[term].as_object().unwrap() {
            assert_eq!(*value, if key == "enabled" { json!(false) } else { Value::Null }, "{key}");
        }
        assert_eq!(valid(&valid(&text).config.print()).config, valid(&text).config);
        let (key, value) = usual[term].as_object().unwrap().iter().nth(1).unwrap();
        check_warning(
            &with(&format!("{term}: {{enabled: false, {key}: {value}}}")),
            &format!("capacity.foresight.{term}"),
            "is not enabled, so its other keys have no effect",
        );
    }
    let mut changed = 0;
    let mut change = |path: &str, value: &Value| {
        let other = match value {
            Value::Number(number) => {
                let number = number.as_f64().unwrap();
                json!(if number < 1.0 { number / 2.0 } else { number * 1.25 })
            }
            Value::String(text) if text == "5m" => json!("4m"),
            Value::String(text) => json!(format!("{text}1s").replace("s1s", "s500ms")),
            Value::Bool(_) => return,
            other => panic!("{path}: {other}"),
        };
        let keys = match path.split_once('.') {
            None => format!("{path}: {other}"),
            Some((term, key)) => format!("{term}: {{{key}: {other}}}"),
        };
        let config = valid(&with(&keys)).config;
        assert_ne!(config.policy, valid(VARIANT).config.policy, "{keys}");
        assert_eq!(valid(&config.print()).config, config, "{keys}");
        changed += 1;
    };
    for (key, value) in usual.as_object().unwrap() {
        match value.as_object() {
            None => change(key, value),
            Some(map) => {
                for (inner, value) in map {
                    change(&format!("{key}.{inner}"), value);
                }
            }
        }
    }
    assert!(changed > 25, "{changed} keys");
}

#[test]
fn what_foresight_cannot_judge_by_is_refused() {
    let with = |keys: &str| format!("capacity: {{foresight: {{{keys}}}}}\n{VARIANT}");
    check_errors(
        &with("growth: {quantile: 2}, bursts: {over: 1h}, hold: {starts: -1}"),
        &[
            ("capacity.foresight.growth.quantile", "must be from 0 to 1"),
            ("capacity.foresight.bursts.over", "must be from 1m to 5m"),
            ("capacity.foresight.hold.starts", "must be from 0 to 10"),
        ],
    );
    check_warning(
        &format!("capacity: {{analyzers: [tokens], foresight: {{look_back: 5m}}}}\n{VARIANT}"),
        "capacity.foresight",
        "has no effect, because capacity.analyzers does not name foresight",
    );
    check_warning(
        &format!("capacity: {{slo: {{ttft: 1s, ttft_percentile: 90}}}}\n{VARIANT}"),
        "capacity.slo.ttft_percentile",
        "has no effect, because capacity.analyzers does not name queueing",
    );
    for key in ["scale_up_threshold: 0.9", "scale_down_boundary: 0.6"] {
        let name = key.split(':').next().unwrap();
        check_warning(
            &format!("capacity: {{{key}}}\n{VARIANT}"),
            &format!("capacity.{name}"),
            "has no effect, because capacity.analyzers names neither tokens nor throughput",
        );
    }
}

#[test]
fn a_configured_selection_of_policies_also_limits_foresight() {
    for (written, steps) in [
        ("", Steps::Unlimited),
        ("enforce: {scale_up: {select_policy: disabled}}", Steps::Limited),
        ("enforce: {scale_up: {policies: []}}", Steps::Limited),
        ("enforce: {scale_down: {select_policy: disabled}}", Steps::Unlimited),
    ] {
        let policy = valid(&format!("{written}\n{VARIANT}")).config.policy;
        let found = policy.sizing.map(|sizing| sizing.foresight.replaces_steps);
        assert_eq!(found, Some(steps), "{written}");
    }
}

#[test]
fn a_configured_window_is_waited_for_in_addition_to_the_hold_of_foresight() {
    let window = |text: &str| {
        let policy = valid(&format!("{text}\n{VARIANT}")).config.policy;
        let hold =
            policy.sizing.and_then(|sizing| sizing.foresight.hold).map(|hold| hold.replaces_window);
        (hold, policy.behavior.scale_down.stabilization_window.seconds())
    };
    assert_eq!(window(""), (Some(ScaleDownWindow::Replaced), 300.0));
    let written = "enforce: {scale_down: {stabilization_window: 2m}}";
    assert_eq!(window(written), (Some(ScaleDownWindow::Waited), 120.0));
    let both = format!("{written}\ncapacity: {{foresight: {{hold: {{replaces_window: true}}}}}}");
    assert_eq!(window(&both), (Some(ScaleDownWindow::Replaced), 120.0));
}

#[test]
fn a_trace_and_shadows_are_printed_as_they_are_read() {
    let text = "\
trace: {dir: t, max_file_size: 1500kB, max_files: 3}
shadow:
- name: bold
  saturation: {kv_cache_threshold: 0.9, overrides: {\"m#n\": {queue_length_threshold: 8}}}
  observe: {window: 2m}
  pools: {n/a: {max_loras: 2}}
- name: wise
  analysis: capacity
  capacity: {analyzers: [foresight, tokens], slo: {ttft: 1s, ttft_percentile: 90}}
  enforce: {flap_budget: 2}
  limits: {budget_per_hour: 7}
  scale_to_zero: {enabled: true, after: 1h}
variants: [{name: a, namespace: n, model: m, targets: {static: [\"h:1\"]}}]
";
    let config = valid(text).config;
    assert_eq!(config.shadows.len(), 2);
    let printed = config.print();
    assert_eq!(valid(&printed).config, config, "{printed}");
}

#[test]
fn a_trace_needs_a_folder_and_room_for_two_files() {
    let text = |keys: &str| format!("trace: {{{keys}}}\n{VARIANT}");
    check_errors(&text("max_files: 3"), &[("trace.dir", "is required")]);
    check_errors(&text("dir: t, max_files: 1"), &[("trace.max_files", "from 2 to")]);
    check_errors(&text("dir: t, max_file_size: 1kB"), &[("trace.max_file_size", "from 1MiB")]);
    let trace = valid(&text("dir: t")).config.keys.trace.unwrap();
    assert_eq!((trace.max_file_size, trace.max_files), (Bytes(64 << 20), 16));
    let read = |dir: &str| parse(&text(&format!("dir: {dir}")), &surroundings(Files::MustExist));
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().display().to_string();
    assert!(read(&there).is_ok() && read(&format!("{there}/new")).is_ok());
    assert!(read(&format!("{there}/new/below")).is_err());
}

#[test]
fn a_shadow_has_sections_of_its_own_and_the_others_of_the_policy_in_force() {
    let text = |keys: &str| format!("enforce: {{flap_budget: 7}}\nshadow: [{{{keys}}}]\n{VARIANT}");
    let config = valid(&text("name: a, saturation: {kv_cache_threshold: 0.7}")).config;
    let [shadow] = &config.shadows[..] else { panic!("one is written") };
    assert_eq!(shadow.policy.behavior, config.policy.behavior);
    assert!(shadow.policy.thresholds.kv_cache < config.policy.thresholds.kv_cache);
    check_errors(&text("observe: {window: 2m}"), &[("shadow[0].name", "is required")]);
    check_errors(
        &text("name: a, saturation: {kv_cache_threshold: 7}"),
        &[("shadow[0].saturation.kv_cache_threshold", "must be")],
    );
    check_errors(
        &text("name: a, saturation: {kv_cash_threshold: 7}"),
        &[("shadow[0].saturation.kv_cash_threshold", "did you mean `kv_cache_threshold`?")],
    );
    check_errors(&text("name: a}, {name: a"), &[("shadow[1].name", "must be unique")]);
    check_warning(
        &text("name: a, analysis: saturation, capacity: {analyzers: [tokens]}"),
        "shadow[0].capacity",
        "has no effect, because analysis is not capacity",
    );
}

#[test]
fn the_defaults_are_as_documented() {
    let document = std::fs::read_to_string(root("docs/configuration.md")).unwrap();
    let blocks: Vec<&str> =
        document.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    // The first block writes every key with its default, the second is the same left out.
    let [full, short, ..] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
    assert_eq!(valid(full).config, valid(short).config);
    // Every key of the schema is explained there.
    let mut keys = Vec::new();
    collect_keys(&schema(), &mut keys);
    let lost: Vec<&String> = keys.iter().filter(|key| !document.contains(key.as_str())).collect();
    assert!(lost.is_empty(), "docs/configuration.md does not name {lost:?}");
}

fn collect_keys(schema: &Value, keys: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            map.values().for_each(|value| collect_keys(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_keys(value, keys)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_schema_that_is_committed_is_the_one_that_holds() {
    let path = root("docs/config.schema.json");
    let held = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == held, "write it anew: cargo run -- schema > docs/config.schema.json");
    for (pointer, default) in [
        ("/properties/tick_interval/default", json!("1s")),
        ("/properties/scrape/properties/port/default", json!(8000)),
        ("/properties/external_metrics/properties/hold/default", json!("5m")),
    ] {
        assert_eq!(schema().pointer(pointer), Some(&default), "{pointer}");
    }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

// === Properties ===

/// The printed form of an example: a configuration that has every key.
fn complete() -> Value {
    let text = std::fs::read_to_string(root("examples/plimsoll-kubernetes.yaml")).unwrap();
    let with_all = text.replace(
        "scale_target: {api_version: apps/v1, kind: Deployment, name: llama-70b-a100}",
        "dns: {names: [a.b], type: A}",
    );
    // JSON is YAML, so the value that the tests change can be written as JSON.
    yaml_to_json(&valid(&with_all).config.print())
}

fn yaml_to_json(text: &str) -> Value {
    let documents = yaml_rust2::YamlLoader::load_from_str(text).unwrap();
    convert(&documents[0])
}

fn convert(yaml: &yaml_rust2::Yaml) -> Value {
    use yaml_rust2::Yaml;
    match yaml {
        Yaml::Real(text) => json!(text.parse::<f64>().unwrap()),
        Yaml::Integer(number) => json!(number),
        Yaml::String(text) => json!(text),
        Yaml::Boolean(flag) => json!(flag),
        Yaml::Array(items) => items.iter().map(convert).collect(),
        Yaml::Hash(map) => map
            .iter()
            .map(|(key, value)| (key.as_str().unwrap().to_owned(), convert(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        _ => Value::Null,
    }
}

/// The pointers of all keys in mappings that have fixed keys, with the path that messages use.
fn fixed_keys(value: &Value, pointer: &str, path: &str, keys: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            for (key, item) in map {
                if pointer == "/saturation/overrides" {
                    continue;
                }
                let pointer = format!("{pointer}/{key}");
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                fixed_keys(item, &pointer, &path, keys);
                keys.push((pointer, path));
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                fixed_keys(item, &format!("{pointer}/{at}"), &format!("{path}[{at}]"), keys);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Puts another value in the place of a key, or gives the key another name.
fn change(value: &mut Value, pointer: &str, rename: bool) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let map = value.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if rename {
        let item = map.remove(key).unwrap();
        map.insert(format!("{key}x"), item);
    } else {
        // Not even a list of lists takes this.
        map.insert(key.to_owned(), json!([[{"not": "this"}]]));
    }
}

proptest! {
    #[test]
    fn every_key_that_is_changed_is_reported(
        picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..6),
    ) {
        let complete = complete();
        let mut keys = Vec::new();
        fixed_keys(&complete, "", "", &mut keys);
        // One change must not take away the place of another.
        let mut chosen: Vec<(String, String, bool)> = Vec::new();
        for (pick, rename) in &picks {
            let (pointer, path) = pick.get(&keys).clone();
            let apart = chosen.iter().all(|(other, ..)| {
                !pointer.starts_with(other.as_str()) && !other.starts_with(&pointer)
            });
            if apart {
                chosen.push((pointer, path, *rename));
            }
        }
        let mut changed = complete;
        for (pointer, _, rename) in &chosen {
            change(&mut changed, pointer, *rename);
        }
        let found = problems(read(&changed.to_string()));
        for (_, path, rename) in &chosen {
            let path = if *rename { format!("{path}x") } else { path.clone() };
            prop_assert!(
                found.iter().any(|one| {
                    one.severity == Severity::Error && one.path.starts_with(&path)
                }),
                "{} is not among {:#?}", path, found
            );
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[-a-z0-9:\\[\\]{}#&*!|>%@\"', \n\t~.]{0,120}") {
        // Whether it is refused is another test's matter; an empty list of variants always is.
        prop_assert!(read(&text).is_err());
    }

    #[test]
    fn no_change_of_a_byte_makes_the_reader_panic(
        at in any::<prop::sample::Index>(),
        with in any::<char>(),
    ) {
        let text = std::fs::read_to_string(root("examples/plimsoll.yaml")).unwrap();
        let letters: Vec<char> = text.chars().collect();
        let at = at.index(letters.len());
        let changed: String = letters[..at].iter().chain([&with]).chain(&letters[at + 1..]).collect();
        if let Ok(loaded) = read(&changed) {
            prop_assert_eq!(valid(&loaded.config.print()).config, loaded.config);
        }
    }
}

#[test]
fn a_ranking_says_what_is_wrong_with_it() {
    for (rank, message) in [
        ("preferred_replicas: 0", "capacity.rank.preferred_replicas must be from 1 to 100"),
        ("weight: -1", "capacity.rank.weight must be from 0 to 2"),
        ("unfitness_max: 0.5", "capacity.rank.unfitness_max must be from 1 to 1000"),
        ("damper: 0", "capacity.rank.damper must be from 0.01 to 100"),
        ("cold: .nan", "capacity.rank.cold must be a number"),
        ("sizes: 3", "sizes"),
    ] {
        let capacity =
            format!("analysis: capacity\ncapacity: {{optimizer: rank, rank: {{{rank}}}}}");
        let said = refused(&format!("{capacity}\n{VARIANT}"));
        assert!(said.contains(message), "{rank}: {said}");
    }
    let all = "preferred_replicas: 3, weight: 0.5, unfitness_max: 9, damper: 2, cold: 1";
    let capacity = format!("analysis: capacity\ncapacity: {{optimizer: rank, rank: {{{all}}}}}");
    let config = valid(&format!("{capacity}\n{VARIANT}")).config;
    assert_eq!(valid(&config.print()).config, config, "{}", config.print());
    let capacity = "analysis: capacity\ncapacity: {rank: {weight: 1}}";
    let warnings = valid(&format!("{capacity}\n{VARIANT}")).warnings;
    let message = "capacity.rank has no effect, because capacity.optimizer is not rank";
    assert!(warnings.iter().any(|it| it.to_string().contains(message)), "{warnings:?}");
}

#[test]
fn a_pool_says_what_is_wrong_with_it() {
    for (pools, message) in [
        ("{a: {}}", "pools.a must be NAMESPACE/VARIANT, such as default/llama-lora"),
        ("{default/other: {}}", "is not a variant of this configuration"),
        ("{default/a: {max_loras: 0}}", "max_loras must be from 1 to 4096"),
        ("{default/a: {copies: {min: 3, max: 2}}}", ".min, which is 3"),
        ("{default/a: {adapters: {x: {max: 0}}}}", "adapters.x.max must be from 1"),
        (
            "{default/a: {idle_after: 30s}}",
            "must not be shorter than observe.window, which is 60 s",
        ),
        ("{default/a: {packing: {max_moved: 0}}}", "packing.max_moved must be from 1 to 10000"),
        ("{default/a: {slots: 2}}", "slots"),
    ] {
        let said = refused(&format!("pools: {pools}\n{VARIANT}"));
        assert!(said.contains(message), "{pools}: {said}");
    }
    for (pool, message) in [
        ("packing: {enabled: false, interval: 1h}", "interval has no effect, because"),
        ("adapters: {x: {copies: 2, min: 1}}", "x.min has no effect, because copies sets"),
    ] {
        let warnings = valid(&format!("pools: {{default/a: {{{pool}}}}}\n{VARIANT}")).warnings;
        assert!(warnings.iter().any(|it| it.to_string().contains(message)), "{warnings:?}");
    }
}
