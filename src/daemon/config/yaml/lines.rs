//! Where in a YAML text each path is.

use std::collections::BTreeMap;

use yaml_rust2::parser::{Event, MarkedEventReceiver, Parser};
use yaml_rust2::scanner::Marker;

use crate::config::problem::join;

/// The line of each path of a text, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(BTreeMap<String, usize>);

impl Lines {
    /// Reads a text; of one that is not YAML, what comes before the mistake.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut walk = Walk::default();
        // Whoever reads the values says what is wrong with the text.
        let _ = Parser::new_from_str(text).load(&mut walk, false);
        Self(walk.lines)
    }

    /// Whether a path is there.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The line of a path, or of the nearest path above it that is there.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            let cut = path.rfind(['.', '['])?;
            path = &path[..cut];
        }
    }
}

#[derive(Default)]
struct Walk {
    lines: BTreeMap<String, usize>,
    open: Vec<Open>,
}

/// A mapping or a list that has begun and not ended.
enum Open {
    Map { path: String, key: Option<String> },
    List { path: String, next: usize },
}

impl Walk {
    /// The path of the value that begins now; `None` when it is a key.
    fn begin(&mut self, scalar: Option<&str>, line: usize) -> Option<String> {
        let path = match self.open.last_mut() {
            None => return Some(String::new()),
            Some(Open::List { path, next }) => {
                let element = format!("{path}[{next}]");
                *next += 1;
                element
            }
            Some(Open::Map { path, key }) => {
                if let Some(name) = key.take() {
                    return Some(join(path, &name));
                }
                let name = scalar.unwrap_or_default();
                self.lines.entry(join(path, name)).or_insert(line);
                *key = Some(name.to_owned());
                return None;
            }
        };
        self.lines.entry(path.clone()).or_insert(line);
        Some(path)
    }
}

impl MarkedEventReceiver for Walk {
    fn on_event(&mut self, event: Event, mark: Marker) {
        let line = mark.line();
        match event {
            Event::Scalar(text, ..) => {
                self.begin(Some(&text), line);
            }
            Event::Alias(_) => {
                self.begin(None, line);
            }
            Event::MappingStart(..) => {
                let path = self.begin(None, line).unwrap_or_default();
                self.open.push(Open::Map { path, key: None });
            }
            Event::SequenceStart(..) => {
                let path = self.begin(None, line).unwrap_or_default();
                self.open.push(Open::List { path, next: 0 });
            }
            Event::MappingEnd | Event::SequenceEnd => {
                self.open.pop();
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart
            | Event::DocumentEnd => {}
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
    }
}
