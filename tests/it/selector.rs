//! Label selectors against the grammar and the matching rules of Kubernetes.

use std::collections::BTreeMap;

use plimsoll::publish::selector::Selector;
use proptest::prelude::*;

fn labels(pairs: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
    pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

/// The labels that the table below is about.
fn subject() -> BTreeMap<&'static str, String> {
    labels(&[
        ("variant", "a"),
        ("zone", "z1"),
        ("size", "10"),
        ("empty", ""),
        ("in", "out"),
        ("example.com/role", "both"),
    ])
}

#[test]
fn every_operator_matches_as_kubernetes_does() {
    for (text, wanted) in [
        ("", true),
        (" \t\r\n", true),
        ("variant=a", true),
        ("variant==a", true),
        ("variant = a", true),
        ("variant=b", false),
        ("variant!=a", false),
        ("variant!=b", true),
        ("missing!=b", true),
        ("missing=b", false),
        ("missing=", false),
        ("empty=", true),
        ("empty=,variant=a", true),
        ("variant", true),
        ("missing", false),
        ("!missing", true),
        ("! missing", true),
        ("!variant", false),
        ("variant in (a)", true),
        ("variant in (b,a)", true),
        ("variant in ( b , c )", false),
        ("variant in(a)", true),
        ("missing in (a)", false),
        ("variant notin (a)", false),
        ("variant notin (b)", true),
        ("missing notin (b)", true),
        ("empty in ()", true),
        ("variant in ()", false),
        ("empty in (,)", true),
        ("empty in (a,)", true),
        ("empty in (,a)", true),
        ("empty in (a,,b)", true),
        ("variant in (a,)", true),
        ("size>9", true),
        ("size > 10", false),
        ("size<11", true),
        ("size<10", false),
        ("variant>1", false),
        ("missing<1", false),
        ("in", true),
        ("in=out", true),
        ("in in (out,in,notin)", true),
        ("in notin (in)", true),
        ("!notin", true),
        ("example.com/role=both", true),
        ("variant=a,zone in (z1,z2),!missing,size>9", true),
        ("variant=a,zone in (z1,z2),missing,size>9", false),
        ("variant,!missing,zone notin (x),variant=a,zone in (z1,z2)", true),
    ] {
        let selector = text.parse::<Selector>().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(selector.matches(&subject()), wanted, "{text}");
    }
}

#[test]
fn malformed_selectors_are_refused() {
    let long = "a".repeat(64);
    let long_prefix = format!("{}/a", "a".repeat(254));
    for text in [
        ",",
        "a,",
        ",a",
        "a,,b",
        "a b",
        "a=b c",
        "=a",
        "!",
        "!!a",
        "!a=b",
        "!a in (b)",
        "a=!b",
        "a===b",
        "a=(b)",
        "a in",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (b))",
        "a in ((b)",
        "a in (b=c)",
        "a notin",
        "a isin (b)",
        "a>",
        "a>b",
        "a>-1",
        "a>1.5",
        "a>99999999999999999999",
        "a<(1)",
        "(a)",
        "a)",
        "-a",
        "a-",
        "a=-b",
        "a=b-",
        "a=b/c",
        "a=b@c",
        "a=\u{e9}",
        "\u{e9}=a",
        "/a",
        "a/",
        "a/b/c",
        "A.com/b",
        "a..b/c",
        "-a.com/b",
        "a\u{0}=b",
        "a=b\u{a0}",
        &long,
        &format!("a={long}"),
        &long_prefix,
    ] {
        assert!(text.parse::<Selector>().is_err(), "{text:?} must be refused");
    }
}

#[test]
fn the_longest_names_and_values_are_accepted() {
    let name = "a".repeat(63);
    let prefix = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    assert_eq!(prefix.len(), 253);
    assert!(format!("{prefix}/{name}={name}").parse::<Selector>().is_ok());
}

#[test]
fn the_canonical_text_is_what_an_hpa_writes() {
    let text = "zone in (z2,z1), variant == a,!e2,env notin (x),e1";
    let selector: Selector = text.parse().unwrap();
    assert_eq!(selector.to_string(), "e1,!e2,env notin (x),variant=a,zone in (z1,z2)");
}

#[test]
fn the_only_value_is_known_when_there_is_one() {
    for (text, wanted) in [
        ("variant=a", Some("a")),
        ("zone,variant in (a)", Some("a")),
        ("variant in (a,b)", None),
        ("variant!=a", None),
        ("zone=a", None),
        ("", None),
    ] {
        let selector: Selector = text.parse().unwrap();
        assert_eq!(selector.only_value("variant"), wanted, "{text}");
    }
}

fn requirement() -> impl Strategy<Value = String> {
    let key = "(in|notin|[a-c]|x\\.y/[a-c])";
    let value = "(in|notin|[a-c0-9]{0,2})";
    prop_oneof![
        key.prop_map(|key| key),
        key.prop_map(|key| format!("!{key}")),
        (key, "(=|==|!=)", value).prop_map(|(key, op, value)| format!("{key}{op}{value}")),
        (key, "(in|notin)", proptest::collection::vec(value, 0..4))
            .prop_map(|(key, op, values)| format!("{key} {op} ({})", values.join(","))),
        (key, "[<>]", 0_i64..100).prop_map(|(key, op, bound)| format!("{key}{op}{bound}")),
    ]
}

proptest! {
    #[test]
    fn the_canonical_text_reads_back_as_the_same_selector(
        requirements in proptest::collection::vec(requirement(), 0..6),
    ) {
        let selector: Selector = requirements.join(",").parse().unwrap();
        prop_assert_eq!(&selector.to_string().parse::<Selector>().unwrap(), &selector);
    }

    #[test]
    fn a_conjunction_matches_when_each_part_does(
        requirements in proptest::collection::vec(requirement(), 1..6),
        value in "[a-c0-9]{0,2}",
    ) {
        let subject = labels(&[("a", &value), ("in", "c"), ("x.y/b", "10")]);
        let all: Selector = requirements.join(",").parse().unwrap();
        let each = requirements
            .iter()
            .all(|part| part.parse::<Selector>().unwrap().matches(&subject));
        prop_assert_eq!(all.matches(&subject), each);
    }

    #[test]
    fn what_matches_has_the_only_value(
        requirements in proptest::collection::vec(requirement(), 1..3),
        value in "[a-c0-9]{0,1}",
    ) {
        let selector: Selector = requirements.join(",").parse().unwrap();
        let subject = labels(&[("a", &value), ("in", "c")]);
        if selector.matches(&subject) && let Some(only) = selector.only_value("a") {
            prop_assert_eq!(only, value);
        }
    }

    #[test]
    fn no_text_makes_reading_panic(text in "[a-c!=(), ><\\-/.in\u{e9}]{0,40}") {
        let _ = text.parse::<Selector>();
    }
}
