//! The samples of one scrape, as lines of the text format.
//!
//! The `prometheus` crate keeps a map entry and several copies of the labels for each sample. These
//! took 30 KB per variant for each /metrics response, and the lines take 7 KB.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A metric family: its name, labels and help text.
#[derive(Clone, Copy, Debug)]
pub struct GaugeFamily {
    /// The name.
    pub name: &'static str,
    /// The labels.
    pub labels: &'static [&'static str],
    /// The help text, with the unit.
    pub help: &'static str,
}

/// The metrics of one scrape, by the name of their family.
#[derive(Default)]
pub(super) struct MetricSheet {
    families: BTreeMap<&'static str, FamilyLines>,
}

/// The samples of one family.
struct FamilyLines {
    family: &'static GaugeFamily,
    /// The labels in the order of their names, with their places in the family.
    labels: Vec<(&'static str, usize)>,
    /// The lines of a family with a label for the variant, which are set once each.
    lines: String,
    /// The samples of any other family by their labels. Several variants of a model set the same
    /// one.
    shared: BTreeMap<String, f64>,
}

// === impl MetricSheet ===

impl MetricSheet {
    /// Sets the value of a series. An absent value has no sample.
    pub(super) fn set(
        &mut self,
        family: &'static GaugeFamily,
        labels: &[&str],
        value: Option<f64>,
    ) {
        let Some(value) = value else { return };
        let lines = self.families.entry(family.name).or_insert_with(|| FamilyLines::new(family));
        lines.set(labels, value);
    }

    /// Appends all families in text format 0.0.4, in the order of their names.
    pub(super) fn write(self, page: &mut String) {
        page.reserve(self.families.values().map(|family| family.lines.len()).sum());
        for (_, family) in self.families {
            family.write(page);
        }
    }
}

// === impl FamilyLines ===

impl FamilyLines {
    fn new(family: &'static GaugeFamily) -> Self {
        let mut labels: Vec<(&str, usize)> = family.labels.iter().copied().zip(0..).collect();
        labels.sort_unstable();
        Self { family, labels, lines: String::new(), shared: BTreeMap::new() }
    }

    fn set(&mut self, values: &[&str], value: f64) {
        if self.family.labels.contains(&"variant") {
            self.lines.push_str(self.family.name);
            write_labels(&mut self.lines, &self.labels, values);
            write_value(&mut self.lines, value);
        } else {
            let mut labels = String::new();
            write_labels(&mut labels, &self.labels, values);
            self.shared.insert(labels, value);
        }
    }

    fn write(self, page: &mut String) {
        let Self { family: GaugeFamily { name, help, .. }, labels: _, lines, shared } = self;
        page.push_str("# HELP ");
        page.push_str(name);
        page.push(' ');
        page.push_str(help);
        page.push_str("\n# TYPE ");
        page.push_str(name);
        page.push_str(" gauge\n");

        page.push_str(&lines);
        for (labels, value) in shared {
            page.push_str(name);
            page.push_str(&labels);
            write_value(page, value);
        }
    }
}

fn write_value(text: &mut String, value: f64) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, " {value}");
}

/// Writes `{name="value",...}`.
fn write_labels(text: &mut String, labels: &[(&str, usize)], values: &[&str]) {
    let mut separator = '{';
    for (name, place) in labels {
        let Some(value) = values.get(*place) else { continue };
        text.push(separator);
        text.push_str(name);
        text.push_str("=\"");
        write_escaped(text, value);
        text.push('"');
        separator = ',';
    }
    text.push('}');
}

/// Writes a label value. Most need no escapes.
fn write_escaped(text: &mut String, value: &str) {
    for part in value.split_inclusive(['\\', '\n', '"']) {
        let plain = part.trim_end_matches(['\\', '\n', '"']);
        text.push_str(plain);
        match part.as_bytes().get(plain.len()) {
            Some(b'\\') => text.push_str("\\\\"),
            Some(b'\n') => text.push_str("\\n"),
            Some(_) => text.push_str("\\\""),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_VARIANT: GaugeFamily =
        GaugeFamily { name: "a_ratio", labels: &["variant", "model"], help: "A ratio." };
    const OF_MODEL: GaugeFamily =
        GaugeFamily { name: "a_need", labels: &["model"], help: "A need." };

    fn written(sheet: MetricSheet) -> String {
        let mut page = String::new();
        sheet.write(&mut page);
        page
    }

    #[test]
    fn families_and_labels_are_in_the_order_of_their_names_and_an_absent_value_has_no_line() {
        let mut sheet = MetricSheet::default();
        sheet.set(&OF_VARIANT, &["b", "m"], Some(0.25));
        sheet.set(&OF_VARIANT, &["c", "m"], None);
        sheet.set(&OF_MODEL, &["m"], Some(1e9));
        assert_eq!(
            written(sheet),
            "# HELP a_need A need.\n# TYPE a_need gauge\na_need{model=\"m\"} 1000000000\n\
             # HELP a_ratio A ratio.\n# TYPE a_ratio gauge\n\
             a_ratio{model=\"m\",variant=\"b\"} 0.25\n",
        );
    }

    #[test]
    fn what_several_variants_of_a_model_set_is_one_sample_with_the_last_value() {
        let mut sheet = MetricSheet::default();
        for value in [1.0, 2.0] {
            sheet.set(&OF_MODEL, &["m"], Some(value));
        }
        assert_eq!(written(sheet).lines().nth(2), Some("a_need{model=\"m\"} 2"));
    }

    #[test]
    fn label_values_are_escaped_as_prometheus_reads_them() {
        let mut text = String::new();
        write_escaped(&mut text, "a\\\\b\nc\"\"");
        assert_eq!(text, r#"a\\\\b\nc\"\""#);
    }
}
