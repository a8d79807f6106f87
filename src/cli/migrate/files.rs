//! Manifests in files and folders.
//!
//! All problems are reported at once, each with its file and line. Files that hold no Kubernetes
//! objects, such as values of a chart, are skipped.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::cli::migrate::object::{Manifest, Origin};
use plimsoll_daemon::config::yaml::{self, SyntaxError};

/// The largest file, and all of them together, in bytes.
const FILE_MAX: u64 = 4 << 20;
const ALL_MAX: u64 = 64 << 20;
/// The most files, and the most objects in them.
const FILES_MAX: usize = 10_000;
pub(super) const OBJECTS_MAX: usize = 50_000;
/// The deepest folder below the one that is given.
const DEPTH_MAX: usize = 16;

/// The endings of the files that are read.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// A problem with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileProblem {
    path: PathBuf,
    line: Option<usize>,
    problem: String,
}

/// The files and objects read so far.
struct FileReader<'a> {
    namespace: &'a str,
    files: usize,
    bytes: u64,
    objects: Vec<Manifest>,
    problems: Vec<FileProblem>,
}

/// Reads the objects in these files and folders. Objects without a namespace are in `namespace`.
///
/// # Errors
///
/// A file cannot be read, is not YAML, or exceeds a limit. All problems are listed.
pub(super) fn read(paths: &[PathBuf], namespace: &str) -> Result<Vec<Manifest>, Vec<FileProblem>> {
    let mut reader =
        FileReader { namespace, files: 0, bytes: 0, objects: Vec::new(), problems: Vec::new() };
    for path in paths {
        reader.visit(path, 0);
    }

    if reader.problems.is_empty() { Ok(reader.objects) } else { Err(reader.problems) }
}

// === impl FileReader ===

impl FileReader<'_> {
    fn refuse(&mut self, path: &Path, line: Option<usize>, problem: impl Into<String>) {
        self.problems.push(FileProblem { path: path.to_owned(), line, problem: problem.into() });
    }

    /// Reads a file, or the files of a folder in the order of their names.
    fn visit(&mut self, path: &Path, depth: usize) {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => return self.refuse(path, None, format!("cannot be read: {error}")),
        };

        if !metadata.is_dir() {
            let is_manifest =
                path.extension().is_some_and(|it| ENDINGS.iter().any(|end| it == *end));
            if depth == 0 || is_manifest {
                self.file(path);
            }
            return;
        }

        if depth > DEPTH_MAX {
            return self.refuse(path, None, format!("is more than {DEPTH_MAX} folders deep"));
        }

        let listed = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = match listed {
            Ok(entries) => entries,
            Err(error) => return self.refuse(path, None, format!("cannot be read: {error}")),
        };
        entries.sort_by_key(fs::DirEntry::file_name);

        for entry in entries {
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');

            if !is_hidden && self.files <= FILES_MAX {
                self.visit(&entry.path(), depth + 1);
            }
        }
    }

    fn file(&mut self, path: &Path) {
        self.files += 1;

        if self.files > FILES_MAX {
            return self.refuse(path, None, format!("is one of more than {FILES_MAX} files"));
        }

        let mut text = String::new();
        let opened = fs::File::open(path);
        let length = opened.and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text));
        let bytes = match length {
            Ok(length) => length as u64,
            Err(error) => return self.refuse(path, None, format!("cannot be read: {error}")),
        };
        self.bytes += bytes;

        if bytes > FILE_MAX {
            return self.refuse(path, None, format!("is larger than {FILE_MAX} bytes"));
        }

        if self.bytes > ALL_MAX {
            return self.refuse(path, None, format!("all files exceed {ALL_MAX} bytes together"));
        }

        let shared = Arc::new(path.to_owned());

        for (first, document) in documents(&text) {
            match yaml::read(&document) {
                Ok(value) => {
                    let line = first + leading(&document);
                    self.take(value, &Origin::File(Arc::clone(&shared), line));
                }
                Err(error) => {
                    let SyntaxError { line, message, .. } = error;
                    let hint = if document.contains("{{") {
                        "; a template of a chart must be rendered first, with helm template"
                    } else {
                        ""
                    };
                    let at = line.map(|line| first + line - 1);
                    self.refuse(path, at, format!("is not YAML: {message}{hint}"));
                }
            }
        }

        if self.objects.len() > OBJECTS_MAX {
            self.refuse(path, None, format!("more than {OBJECTS_MAX} objects"));
            self.files = FILES_MAX + 1;
        }
    }

    /// Takes an object, or those of a list.
    fn take(&mut self, mut value: Value, origin: &Origin) {
        let is_list =
            value.get("kind").and_then(Value::as_str).is_some_and(|it| it.ends_with("List"));
        if let Some(Value::Array(items)) = value.get_mut("items").filter(|_| is_list) {
            for item in std::mem::take(items) {
                self.objects.extend(Manifest::new(item, origin.clone(), self.namespace));
            }
            return;
        }

        self.objects.extend(Manifest::new(value, origin.clone(), self.namespace));
    }
}

/// Splits a text into its documents, each with the line at which it starts.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut all = vec![(1, String::new())];

    for (index, line) in text.lines().enumerate() {
        let rest = line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with(' '));

        if let Some(rest) = rest {
            all.push((index + 1, format!("{rest}\n")));
        } else if line != "..."
            && let Some((_, document)) = all.last_mut()
        {
            document.push_str(line);
            document.push('\n');
        }
    }

    all
}

/// The lines of blanks and comments at the start of a document.
fn leading(document: &str) -> usize {
    let lines = document.lines().map(str::trim_start);
    lines.take_while(|line| line.is_empty() || line.starts_with('#')).count()
}

// === impl FileProblem ===

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, problem } = self;
        write!(f, "{}", path.display())?;

        match line {
            Some(line) => write!(f, ":{line} {problem}"),
            None => write!(f, " {problem}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn objects_are_found_with_the_line_at_which_they_start() {
        let object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "n"}}]}"#;
        let folder = written(&[
            ("sub/two.yml", &format!("# Comment\n\n{object}---\n# More\n{object}...\n---\n")),
            ("list.json", list),
            ("values.yaml", "replicas: 2\n"),
            ("notes.md", "a: b: c\n"),
            (".git/x.yaml", "a: b: c\n"),
        ]);

        let found = read(&[folder.path().to_owned()], "shop").unwrap();
        let places: Vec<String> = found
            .iter()
            .map(|one| {
                let Origin::File(path, line) = &one.origin else { panic!("no file") };
                let path = path.strip_prefix(folder.path()).unwrap();
                format!("{} {}/{} {}:{line}", one.kind(), one.namespace, one.name(), path.display())
            })
            .collect();
        assert_eq!(
            places,
            [
                "ConfigMap n/b list.json:1",
                "ConfigMap shop/a sub/two.yml:3",
                "ConfigMap shop/a sub/two.yml:8"
            ]
        );
    }

    #[test]
    fn all_problems_are_told_with_file_and_line() {
        let folder = written(&[
            ("a.yaml", "a: 1\n---\nb: 1\nc: d: e\n"),
            ("b.yaml", "name: {{ .Values.name }}-{{ .Release.Name }}\n"),
        ]);
        fs::write(folder.path().join("c.yaml"), vec![b'#'; 1 + (4 << 20)]).unwrap();
        let problems = read(&[folder.path().to_owned(), "no/such".into()], "shop").unwrap_err();
        let texts: Vec<String> = problems
            .iter()
            .map(|one| one.to_string().replace(&format!("{}/", folder.path().display()), ""))
            .collect();

        assert_eq!(texts.len(), 4, "{texts:#?}");
        assert!(texts[0].starts_with("a.yaml:4 is not YAML: "), "{texts:#?}");
        assert!(texts[1].starts_with("b.yaml:1 is not YAML: "), "{texts:#?}");
        assert!(texts[1].ends_with("with helm template"), "{texts:#?}");
        assert_eq!(texts[2], "c.yaml is larger than 4194304 bytes");
        assert!(texts[3].starts_with("no/such cannot be read: "), "{texts:#?}");
    }
}
