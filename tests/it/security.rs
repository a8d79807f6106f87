//! The security policy against the tests and the permissions that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the tables below a heading of SECURITY.md, as cells.
fn rows(policy: &str, heading: &str) -> Vec<Vec<String>> {
    let start = format!("\n## {heading}\n");
    let section = policy.split(&start).nth(1).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n## ").next().unwrap();
    section
        .split("\n\n")
        .filter(|block| block.starts_with('|'))
        .flat_map(|table| table.lines().skip(2))
        .map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// The words in backticks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Verbs that change objects, by resource, in rules of RBAC as templates have them.
fn granted_writes(template: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut granted = BTreeMap::<String, BTreeSet<String>>::new();
    let mut resources = "";
    for line in template.lines().map(|line| line.trim_start_matches([' ', '-'])) {
        if let Some(list) = line.strip_prefix("resources: ") {
            resources = list;
        }

        let Some(verbs) = line.strip_prefix("verbs: ") else { continue };
        for verb in list(verbs).filter(|verb| !["get", "list", "watch"].contains(verb)) {
            for resource in list(resources) {
                granted.entry(resource.to_owned()).or_default().insert(verb.to_owned());
            }
        }
    }
    granted
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.trim_matches(['[', ']']).split(", ")
}

/// The test of documents looks for tests with these names.
#[test]
fn every_threat_names_the_test_of_its_defense() {
    let policy = read("SECURITY.md");
    let threats = rows(&policy, "Threats");
    assert!(threats.len() >= 20, "the tables are found");
    for threat in threats {
        let tests = code(&threat[3]);
        assert!(!tests.is_empty(), "{threat:?}");
        for test in tests {
            assert!(test.matches('_').count() >= 4, "{test}: documents.rs does not look for it");
        }
    }
}

/// All that the chart's values can switch on counts as granted.
#[test]
fn the_security_policy_lists_everything_that_may_be_written_to_a_cluster() {
    let policy = read("SECURITY.md");
    let listed: BTreeMap<String, BTreeSet<String>> = rows(&policy, "Writes and secrets")
        .iter()
        .map(|row| (code(&row[0])[0].to_owned(), list(&row[1]).map(str::to_owned).collect()))
        .collect();
    assert_eq!(listed, granted_writes(&read("charts/plimsoll/templates/rbac.yaml")));
}
