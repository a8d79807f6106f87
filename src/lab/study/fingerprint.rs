//! What tells studies apart: the scenario, what was asked of it, and what is in its files.
//!
//! Shards are simulated on several machines, each with files of its own. Of two traces or cards of
//! one name with other contents, the runs must not be put together. So every text under a key that
//! names files (`file`, `card_files`, `…_file`) counts with what it names, in the scenario, in its
//! sweep and in `--set`; a file is told by its contents and not by where it lies.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::Value;

/// Digits of a hash that tell studies apart.
const DIGITS: usize = 16;

/// A text that is the same for the same texts and the same contents of the files that these values
/// name, from a folder on where they are relative.
pub(crate) fn fingerprint(
    texts: &[String],
    values: &[(&str, &Value)],
    folder: &Path,
) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    let mut told = |bytes: &[u8]| {
        // With their lengths, no two lists of parts are the same bytes.
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    for text in texts {
        told(text.as_bytes());
    }
    let mut names = BTreeSet::new();
    for (path, value) in values {
        collect(path, value, &mut names);
    }
    for name in names {
        let path = folder.join(name);
        // Whoever reads the scenario says what is missing.
        if path.is_file() {
            told(name.as_bytes());
            told(&contents(&path)?);
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

/// The names of files below a key, which may be a path.
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
    let last = last.split('[').next().unwrap_or(last);
    last == "file" || last.ends_with("_file") || last.ends_with("_files")
}

/// The hash of a file, which may be larger than memory has room for.
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

    use super::*;

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
        let write = |file: &str, text: &str| {
            for folder in [&one, &other] {
                fs::write(folder.path().join(file), text).unwrap();
            }
        };
        // What is named by no key for files is no file of the study.
        fs::write(one.path().join("v"), "beside").unwrap();
        let print = |folder: &tempfile::TempDir| {
            fingerprint(&["a".to_owned()], &values, folder.path()).unwrap()
        };
        for file in ["t.csv", "u.csv", "w.csv", "cards.yaml"] {
            write(file, "1");
        }
        assert_eq!(print(&one), print(&other));
        for file in ["t.csv", "u.csv", "w.csv", "cards.yaml"] {
            fs::write(other.path().join(file), "2").unwrap();
            assert_ne!(print(&one), print(&other), "{file} has other contents");
            write(file, "1");
        }
        let texts = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            fingerprint(&texts, &[], one.path()).unwrap()
        };
        assert_ne!(texts(&["ab", "c"]), texts(&["a", "bc"]));
    }
}
