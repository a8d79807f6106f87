//! Lists of targets in files, in the format of Prometheus' `file_sd_configs`.
//!
//! ```json
//! [{"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": {"__scheme__": "https"}}]
//! ```
//!
//! YAML in the same structure is accepted if the file's name does not end in `.json`. The labels
//! `__scheme__` and `__metrics_path__` determine the metrics URL. All other labels and fields are
//! ignored. A writer must replace a file atomically instead of writing into it. A YAML file of
//! which only the first half is written looks complete.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::collect::file;
use crate::collect::targets::address::Address;
use crate::collect::targets::source::{ListError, parse};

/// The largest file. Ten thousand targets with their labels take a tenth of it.
const FILE_LIMIT: u64 = 16 << 20;

/// Files, and their contents when last read.
#[derive(Debug)]
pub(crate) struct TargetFiles {
    paths: Vec<PathBuf>,
    /// Contents, in the order of the paths, and their addresses.
    last: Option<(Vec<Vec<u8>>, Vec<Address>)>,
}

/// Targets that share labels.
#[derive(Debug, Deserialize)]
struct Group {
    targets: Vec<String>,
    labels: Option<Labels>,
}

/// The labels that determine a metrics URL.
#[derive(Debug, Default, Deserialize)]
struct Labels {
    #[serde(rename = "__scheme__")]
    scheme: Option<String>,
    #[serde(rename = "__metrics_path__")]
    path: Option<String>,
}

impl TargetFiles {
    pub(crate) const fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, last: None }
    }

    /// Returns the addresses in all files.
    ///
    /// # Errors
    ///
    /// One of the files cannot be read or parsed. The addresses of the others are not returned.
    pub(crate) async fn read(&mut self) -> Result<Vec<Address>, ListError> {
        let mut contents = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            contents.push(file::read(path, FILE_LIMIT).await?);
        }

        if let Some((old, addresses)) = &self.last
            && *old == contents
        {
            return Ok(addresses.clone());
        }

        let mut addresses = Vec::new();
        for (path, content) in self.paths.iter().zip(&contents) {
            addresses.extend(addresses_in(path, content)?);
        }

        self.last = Some((contents, addresses.clone()));
        Ok(addresses)
    }
}

/// Returns the addresses in one file.
pub(crate) fn addresses_in(path: &Path, content: &[u8]) -> Result<Vec<Address>, ListError> {
    let groups = groups(path, content)
        .map_err(|detail| ListError::Malformed { path: path.to_owned(), detail })?;

    let mut addresses = Vec::new();
    for Group { targets, labels } in groups {
        let Labels { scheme, path } = labels.unwrap_or_default();
        for target in targets {
            let mut address = Ok(parse(&target)?);
            if let Some(scheme) = &scheme {
                address = address.and_then(|address| address.with_scheme(scheme));
            }
            if let Some(path) = &path {
                address = address.and_then(|address| address.with_path(path));
            }

            let sound = address.map_err(|source| ListError::Address { text: target, source })?;
            addresses.push(sound);
        }
    }

    Ok(addresses)
}

fn groups(path: &Path, content: &[u8]) -> Result<Vec<Group>, String> {
    let text = str::from_utf8(content).map_err(|error| error.to_string())?;
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        let mut json = serde_json::Deserializer::from_str(text);
        let groups =
            serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())?;
        json.end().map_err(|error| error.to_string())?;
        return Ok(groups);
    }

    // A YAML reader treats an empty document as an empty list. Such a file was created but not
    // written yet, so it is rejected.
    let groups: Option<Vec<Group>> =
        serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())?;
    groups.ok_or_else(|| "it is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::targets::endpoint::{Endpoint, Scheme};

    /// Returns the URLs of the targets in a file, or its error.
    fn check(name: &str, content: &str) -> Result<Vec<String>, String> {
        let endpoint = Endpoint { scheme: Scheme::Http, port: 8000, path: "/metrics".to_owned() };
        let addresses = addresses_in(Path::new(name), content.as_bytes());
        match addresses {
            Ok(addresses) => Ok(addresses.iter().map(|it| it.url(&endpoint)).collect()),
            Err(error) => Err(crate::collect::chain(&error)),
        }
    }

    #[test]
    fn json_and_yaml_say_the_same() {
        let json = r#"[
            {"targets": ["10.0.0.1:9000", "b"], "labels": {"model": "m", "rank": 3}},
            {"targets": ["c:1"], "labels": {"__scheme__": "https", "__metrics_path__": "/m/"},
             "source": "ours"},
            {"targets": []}
        ]"#;
        let yaml = "# Comment\n\
            - targets: ['10.0.0.1:9000', b]\n  labels: {model: m, rank: 3}\n\
            - targets:\n  - c:1\n  source: ours\n  labels:\n    __scheme__: https\n    \
            __metrics_path__: /m/\n\
            - targets: []\n  labels:\n";

        let want = ["http://10.0.0.1:9000/metrics", "http://b:8000/metrics", "https://c:1/m/"];
        assert_eq!(check("a.json", json).unwrap(), want);
        assert_eq!(check("a.yml", yaml).unwrap(), want);
        assert_eq!(check("a.yaml", json).unwrap(), want, "YAML includes JSON");
    }

    #[test]
    fn an_explicitly_empty_list_is_a_list_and_an_empty_file_is_not() {
        for name in ["a.json", "a.yaml"] {
            assert_eq!(check(name, "[]\n"), Ok(Vec::new()));
            for empty in ["", "\n", "null\n"] {
                assert!(check(name, empty).is_err(), "{name}: {empty:?}");
            }
        }

        for empty in ["---\n", "# Nothing yet\n", "~\n"] {
            assert!(check("a.yaml", empty).is_err(), "{empty:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_place() {
        let cases = [
            (
                "a.json",
                r#"[{"targets": ["a:1"]"#,
                "[0].?: EOF while parsing an object at line 1 column 20",
            ),
            ("a.json", r#"[{"target": ["a:1"]}]"#, "[0]: missing field `targets`"),
            ("a.json", r#"[{"targets": ["a:1"]}] []"#, "trailing characters"),
            ("a.json", r#"{"targets": ["a:1"]}"#, "invalid type: map, expected a sequence"),
            ("a.json", r#"[{"targets": ["a:x"]}]"#, r#""a:x" is not a target: "x" is not a port"#),
            ("a.yml", "- targets: [a:1\n", "line 1, column 12"),
            ("a.yml", "- target: [a:1]\n", "missing field `targets`"),
            ("a.yml", "- targets: [a]\n  labels: {__scheme__: ftp}\n", "neither http nor https"),
            ("a.yml", "- targets: [a]\n  labels: {__metrics_path__: m}\n", "not a URL path"),
        ];

        for (name, content, want) in cases {
            let error = check(name, content).unwrap_err();
            assert!(error.contains(want), "{content}: {error}");
        }
        assert!(addresses_in(Path::new("a.json"), b"[\xff]").is_err());
    }
}
