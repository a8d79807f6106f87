//! The fingerprint of a study: its scenario, its options, and the content of its files.
//!
//! Shards are simulated on several machines, each with its own files. Runs with different traces or
//! cards of the same name must not be merged. Therefore the fingerprint includes the content of
//! every file under a key for file names (`file`, `card_files`, `…_file`). That applies to the
//! scenario, to its sweep and to `--set`. A file is identified by its content and not by its
//! location.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::Value;

/// Digits of a hash that distinguish studies.
const DIGITS: usize = 16;

/// A text that is equal for equal texts and equal contents of the files that these values name.
/// Relative names start from the folder.
pub(crate) fn fingerprint(
    texts: &[String],
    values: &[(&str, &Value)],
    folder: &Path,
) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    for text in texts {
        add(&mut context, text.as_bytes());
    }

    let mut names = BTreeSet::new();
    for (path, value) in values {
        collect(path, value, &mut names);
    }
    for name in names {
        let path = folder.join(name);
        // A missing file is reported by the code that reads the scenario.
        if path.is_file() {
            add(&mut context, name.as_bytes());
            add(&mut context, &contents(&path)?);
        }
    }

    let mut text = String::new();
    for byte in context.finish().as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }

    text.truncate(DIGITS);
    Ok(text)
}

/// Adds a part with its length, so that no two lists of parts have the same bytes.
fn add(context: &mut Context, part: &[u8]) {
    context.update(&(part.len() as u64).to_le_bytes());
    context.update(part);
}

/// Collects the file names below a key, which may be a path.
fn collect<'v>(key: &str, value: &'v Value, names: &mut BTreeSet<&'v str>) {
    match value {
        Value::String(name) if names_files(key) => {
            names.insert(name);
        }
        Value::Array(items) => items.iter().for_each(|item| collect(key, item, names)),
        Value::Object(map) => map.iter().for_each(|(key, value)| collect(key, value, names)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn names_files(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    let name = last.split('[').next().unwrap_or(last);
    name == "file" || name.ends_with("_file") || name.ends_with("_files")
}

/// The hash of a file, which may be larger than the memory.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut context = Context::new(&SHA256);
    let mut file = BufReader::new(File::open(path)?);
    loop {
        let part = file.fill_buf()?;
        if part.is_empty() {
            return Ok(context.finish().as_ref().to_vec());
        }

        context.update(part);
        let length = part.len();
        file.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn write(folders: [&TempDir; 2], file: &str, text: &str) {
        for folder in folders {
            fs::write(folder.path().join(file), text).unwrap();
        }
    }

    fn print(texts: &[&str], values: &[(&str, &Value)], folder: &TempDir) -> String {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        fingerprint(&texts, values, folder.path()).unwrap()
    }

    #[test]
    fn studies_are_one_where_their_texts_and_the_contents_of_their_files_are() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let scenario = json!({
            "models": [{"name": "v", "workload": {"trace": {"file": "t.csv"}}}],
            "policy": {"capacity": {"card_files": ["cards.yaml", "none.yaml"]}},
            "sweep": {"models[0].workload.trace.file": ["t.csv", "u.csv"]},
        });
        let set = json!({"file": "w.csv"});
        let values = [("", &scenario), ("models[0].workload.drawn.lengths", &set)];
        // A value under a key that is not for files is not a file of the study.
        fs::write(one.path().join("v"), "beside").unwrap();
        for file in ["t.csv", "u.csv", "w.csv", "cards.yaml"] {
            write([&one, &other], file, "1");
        }

        let first = print(&["a"], &values, &one);
        assert_eq!(first, print(&["a"], &values, &other));
        for file in ["t.csv", "u.csv", "w.csv", "cards.yaml"] {
            fs::write(other.path().join(file), "2").unwrap();
            assert_ne!(first, print(&["a"], &values, &other), "{file} has other contents");
            write([&one, &other], file, "1");
        }

        assert_ne!(print(&["ab", "c"], &[], &one), print(&["a", "bc"], &[], &one));
    }
}
