//! Label selectors.

use std::collections::BTreeMap;

use plimsoll::publish::selector::Selector;

/// Labels to match a selector against.
const LABELS: [&[(&str, &str)]; 4] = [
    &[],
    &[("variant", "a"), ("namespace", "shop"), ("size", "10")],
    &[("variant", ""), ("in", "out"), ("example.com/role", "both")],
    &[("a", "a"), ("b", "-1"), ("c", "9223372036854775807")],
];

/// Parses a selector; its canonical text means the same.
pub fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let selector: Selector = match text.parse() {
        Ok(selector) => selector,
        Err(error) => {
            assert!(!format!("{error}").is_empty());
            return;
        }
    };
    let canonical = selector.to_string();
    let again: Selector = canonical.parse().unwrap_or_else(|error| {
        panic!("{text:?} is a selector and its canonical text {canonical:?} is none: {error}")
    });
    assert_eq!(again, selector, "the canonical text {canonical:?} means something else");
    assert_eq!(again.to_string(), canonical, "the canonical text is not canonical");
    for labels in LABELS {
        let labels: BTreeMap<&str, String> =
            labels.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        if !selector.matches(&labels) {
            continue;
        }
        for (key, value) in &labels {
            if let Some(only) = selector.only_value(key) {
                assert_eq!(only, value, "{text:?} matches {labels:?}, whose {key} is another");
            }
        }
    }
}
