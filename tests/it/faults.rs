//! The list of faults, their scripts and docs/faults.md agree.

#[path = "../faults/list.rs"]
mod list;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use list::{FAULTS, Played, Suite};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The text of all files with this ending below a folder.
fn all(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all(&path, text);
        } else if path.extension().is_some_and(|it| it == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn the_document_has_a_row_for_each_of_a_hundred_faults_and_none_is_broken() {
    let document = read("docs/faults.md");
    let rows: Vec<Vec<&str>> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").collect())
        .filter(|cells: &Vec<&str>| cells.len() == 5 && cells[0] != "name")
        .collect();
    assert_eq!(rows.len(), FAULTS.len(), "make faults writes the table");
    for (row, fault) in rows.iter().zip(FAULTS) {
        assert_eq!(row[..3], [fault.name, fault.fault, fault.invariant]);
        assert!(!row[3].contains("broken**"), "{row:?}");
        if let Played::Test(suite, test) = fault.played {
            let name = test.rsplit("::").next().unwrap();
            let start = format!("`{}` test `{name}` passes", suite.label());
            assert!(row[3].starts_with(&start), "{row:?}");
        }
    }
}

#[test]
fn every_fault_has_a_name_of_its_own_an_invariant_and_a_script_or_a_test() {
    let names: BTreeSet<&str> = FAULTS.iter().map(|fault| fault.name).collect();
    assert_eq!(names.len(), FAULTS.len(), "a name is used twice");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts = String::new();
    all(&root.join("tests/faults/scripts"), &mut scripts);
    for fault in FAULTS {
        assert!(!fault.invariant.is_empty() && !fault.fault.is_empty(), "{fault:?}");
        match fault.played {
            Played::Live => {
                assert!(scripts.contains(&format!("\"{}\"", fault.name)), "no script: {fault:?}");
            }
            Played::Test(suite, test) => {
                let folder = match suite {
                    Suite::It => "tests/it",
                    Suite::Core => "src/core",
                    Suite::EndToEnd => "tests/e2e",
                };
                let mut code = String::new();
                all(&root.join(folder), &mut code);
                let name = test.rsplit("::").next().unwrap();
                assert!(code.contains(&format!("fn {name}()")), "no test {test}");
            }
        }
    }
}
