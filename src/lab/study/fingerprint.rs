//! The fingerprint of a study: its scenario, its options, and the content of its files.
//!
//! Shards are simulated on several machines, each with its own files. Runs with different traces or
//! cards of the same name must not be merged. Therefore the fingerprint includes the content of
//! every file under a key for file names (`file`, `card_files`, `…_file`), instead of its name. That
//! applies to the scenario, to its sweep and to `--set`. Of a folder of clients, all files count.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use aws_lc_rs::digest::{Context, Digest, SHA256};
use serde_json::Value;

use crate::study::traces;

/// Bytes of a hash that distinguish studies and files.
const BYTES: usize = 8;

/// A text that is equal for equal options and for values that are equal except for the names of
/// files with the same content. Relative names start from the folder.
pub(crate) fn fingerprint(
    options: &str,
    values: &[(&str, &Value)],
    folder: &Path,
) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    add(&mut context, options.as_bytes());
    for (path, value) in values {
        let mut hashed = (*value).clone();
        hash_files(path, &mut hashed, folder)?;
        add(&mut context, path.as_bytes());
        add(&mut context, hashed.to_string().as_bytes());
    }

    Ok(written(&context.finish()))
}

/// The first hexadecimal digits of a hash.
pub(crate) fn written(hash: &Digest) -> String {
    let mut text = String::new();
    for byte in &hash.as_ref()[..BYTES] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Adds a part with its length, so that no two lists of parts have the same bytes.
fn add(context: &mut Context, part: &[u8]) {
    context.update(&(part.len() as u64).to_le_bytes());
    context.update(part);
}

/// Replaces the file names below a key, which may be a path, with the hashes of the files.
fn hash_files(key: &str, value: &mut Value, folder: &Path) -> io::Result<()> {
    match value {
        Value::String(name) if names_files(key) => {
            let path = folder.join(&*name);
            // A missing file is reported by the code that reads the scenario.
            if path.exists() {
                *name = contents(&path)?;
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| hash_files(key, item, folder)),
        Value::Object(map) => {
            map.iter_mut().try_for_each(|(key, value)| hash_files(key, value, folder))
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn names_files(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    let name = last.split('[').next().unwrap_or(last);
    name == "file" || name.ends_with("_file") || name.ends_with("_files")
}

/// The hash of a file, which may be larger than the memory, or of a folder of clients.
fn contents(path: &Path) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    if path.is_dir() {
        context.update(&traces::bytes(path)?);
        return Ok(written(&context.finish()));
    }

    let mut file = BufReader::new(File::open(path)?);
    loop {
        let part = file.fill_buf()?;
        if part.is_empty() {
            return Ok(written(&context.finish()));
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

    fn print(options: &str, values: &[(&str, &Value)], folder: &TempDir) -> String {
        fingerprint(options, values, folder.path()).unwrap()
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

        let first = print("a", &values, &one);
        assert_eq!(first, print("a", &values, &other));
        for file in ["t.csv", "u.csv", "w.csv", "cards.yaml"] {
            fs::write(other.path().join(file), "2").unwrap();
            assert_ne!(first, print("a", &values, &other), "{file} has other contents");
            write([&one, &other], file, "1");
        }

        assert_ne!(first, print("b", &values, &one));
    }

    #[test]
    fn a_folder_of_clients_counts_with_its_files_and_no_location_does() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for folder in [&one, &other] {
            fs::create_dir(folder.path().join("clients")).unwrap();
            write([folder; 2], "clients/chunk-0-trace.csv", "1");
        }

        let [first, second] = [&one, &other].map(|folder| {
            let clients = folder.path().join("clients");
            json!({"models": [{"workload": {"trace": {"file": clients}}}]})
        });

        let at_first = print("", &[("", &first)], &one);
        assert_eq!(at_first, print("", &[("", &second)], &other));

        write([&other; 2], "clients/chunk-0-trace.csv", "2");
        assert_ne!(at_first, print("", &[("", &second)], &other));
    }
}
