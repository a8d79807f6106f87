//! What the vectors of WVA write as: an absent number is 0, an absent text and list are empty.

use plimsoll::fleet::{Namespace, VariantKey, VariantName};
use plimsoll::units::Amount;
use serde_json::Value;

pub(super) fn note(case: &Value) -> &str {
    case["note"].as_str().unwrap_or_default()
}

pub(super) fn list<'a>(from: &'a Value, name: &str) -> &'a [Value] {
    from[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn text(from: &Value, name: &str) -> String {
    from[name].as_str().unwrap_or_default().to_owned()
}

/// A number; those that JSON has no word for are texts.
pub(super) fn number(from: &Value, name: &str) -> f64 {
    match &from[name] {
        Value::Null => 0.0,
        Value::String(text) => text.parse().unwrap(),
        other => other.as_f64().unwrap(),
    }
}

pub(super) fn whole(value: &Value) -> u32 {
    if value.is_null() { 0 } else { u32::try_from(value.as_u64().unwrap()).unwrap() }
}

pub(super) fn amount(from: &Value, name: &str) -> Amount {
    Amount::new(number(from, name)).unwrap()
}

pub(super) fn variant_key(namespace: &str, variant: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new(namespace).unwrap(),
        variant: VariantName::new(variant).unwrap(),
    }
}
