//! The line of each path in a YAML text.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Error, Location, MergeKeyPolicy, Options, Spanned};

use plimsoll_core::settings::problem::join;

/// The nesting limit. The reader recurses: without optimizations, a level takes up to 60 KiB of a
/// stack of 2 MiB. Deeper nesting is not a configuration.
pub(super) const DEPTH_MAX: usize = 24;

/// The limit on values, above that of any configuration. YAML's aliases can expand to far more than
/// their text, and all values are copied from layer to layer.
pub(super) const VALUES_MAX: usize = 200_000;

/// The line of each path of a text, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(BTreeMap<String, u64>);

/// Reads a text that holds one document; an empty text is an empty mapping.
pub(super) fn read(text: &str) -> Result<(Value, Lines), Error> {
    let document: Spanned<Element> = serde_saphyr::from_str_with_options(text, options())?;
    let mut lines = Lines::default();
    let empty = matches!(document.value, Element::Plain(Value::Null))
        && written(text, &document.defined).is_empty();
    let value = if empty { Value::Object(Map::new()) } else { lines.place(document, "", text) };
    Ok((value, lines))
}

/// Limits for a text, and booleans as in YAML 1.2.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: VALUES_MAX,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: VALUES_MAX },
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        emit_comments: false,
        with_snippet: false,
    }
}

/// The part of a text at a place.
fn written<'a>(text: &'a str, place: &Location) -> &'a str {
    let span = place.span();
    let range = span.byte_offset().zip(span.byte_len()).and_then(|(offset, length)| {
        let start = usize::try_from(offset).ok()?;
        text.get(start..start + usize::try_from(length).ok()?)
    });
    range.unwrap_or_default()
}

/// A value with the places of all its parts.
enum Element {
    Plain(Value),
    /// A number, if JSON has it.
    Number(Option<Number>),
    List(Vec<Spanned<Element>>),
    Map(Vec<(Spanned<String>, Spanned<Element>)>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Element, E> {
        Ok(Element::Plain(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Element, E> {
        Ok(Element::Plain(Value::Bool(flag)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Plain(Value::String(text.to_owned())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Element, E> {
        Ok(Element::Number(Some(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Element, E> {
        Ok(Element::Number(Some(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Element, E> {
        Ok(Element::Number(Number::from_f64(number)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Element, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Element::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Element, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Element::Map(map))
    }
}

// === impl Lines ===

impl Lines {
    /// Reads the lines of a text; a text that is not YAML has none.
    #[must_use]
    pub fn of(text: &str) -> Self {
        // The reader of the values reports the syntax error.
        read(text).map(|(_, lines)| lines).unwrap_or_default()
    }

    /// Returns true if the path exists.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The line of a path, or of its nearest existing parent.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<usize> {
        let mut nearest = path;
        loop {
            if let Some(line) = self.0.get(nearest) {
                return usize::try_from(*line).ok();
            }

            let cut = nearest.rfind(['.', '['])?;
            nearest = &nearest[..cut];
        }
    }

    /// Notes the lines of all parts of an element, and returns its value.
    fn place(&mut self, element: Spanned<Element>, path: &str, text: &str) -> Value {
        match element.value {
            Element::Plain(value) => value,
            Element::Number(number) => {
                let written = written(text, &element.defined);
                // Only YAML 1.1 has digit separators and binary numbers.
                let known = number.filter(|_| !written.contains('_') && !written.contains("0b"));
                known.map_or_else(|| Value::String(written.to_owned()), Value::Number)
            }
            Element::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    let line = item.referenced.line();
                    list.push(self.place(item, &path, text));
                    self.0.insert(path, line);
                }

                Value::Array(list)
            }
            Element::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    let at = join(path, &key.value);
                    let placed = self.place(value, &at, text);
                    self.0.insert(at, key.referenced.line());
                    map.insert(key.value, placed);
                }

                Value::Object(map)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_the_line_of_its_key_or_element() {
        let lines =
            Lines::of("a: 1\nb:\n  c: [1,\n    2]\n  d: {e: x,\n    f: y}\ng:\n- h: 1\n- i\n");
        for (path, line) in [
            ("a", 1),
            ("b", 2),
            ("b.c", 3),
            ("b.c[0]", 3),
            ("b.c[1]", 4),
            ("b.d.e", 5),
            ("b.d.f", 6),
            ("g[0].h", 8),
            ("g[1]", 9),
            ("g[1].not.there", 9),
        ] {
            assert_eq!(lines.get(path), Some(line), "{path}");
        }

        assert_eq!(lines.get("z"), None);
        assert_eq!(Lines::of("a: [1"), Lines::default());
    }

    #[test]
    fn what_an_alias_repeats_is_in_the_line_of_the_alias() {
        let lines = Lines::of("a: &a\n  b: [1]\nc: *a\nd: 2\n");
        for (path, line) in [("a.b[0]", 2), ("c", 3), ("c.b[0]", 3), ("d", 4)] {
            assert_eq!(lines.get(path), Some(line), "{path}");
        }
    }
}
