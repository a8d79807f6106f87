//! `ConfigMap`s: the parts of them that determine how containers start their engine.
//!
//! A pod template refers to `ConfigMap`s without including their contents: single variables
//! (`env.valueFrom.configMapKeyRef`), all variables of one (`envFrom`), and mounted files. Of the
//! files, only the one that `--config` names matters. [`ContainerTemplate`] is a container as its
//! template defines it. [`ContainerTemplate::maps`] lists the `ConfigMap`s that are needed to read
//! its command line. [`ContainerTemplate::container`] inserts their contents.
//!
//! Secrets are never read, because they are meant only for the container. A variable that may come
//! from one therefore has no known value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use plimsoll_core::observe::template::{
    Container, EXPANSION_MAX, VLLM_GENERATION, expand_references,
};

/// The longest text that is kept of a `ConfigMap`. It is many times the size of an engine's
/// configuration, and a small part of the megabyte that a `ConfigMap` may hold.
const TEXT_MAX: usize = 64 * 1024;

/// The flag, in both engines, that names a file of arguments.
const FILE_FLAG: &str = "--config";

/// The texts of a `ConfigMap`, by key.
pub(crate) type Texts = BTreeMap<String, String>;

/// A container as its pod template defines it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContainerTemplate {
    image: String,
    command: Vec<String>,
    args: Vec<String>,
    /// The sources of its variables, in the order in which Kubernetes applies them.
    variables: Vec<Variable>,
    mounts: Vec<Mount>,
    /// The folder of relative paths, with a trailing slash. `None` if the template does not set it,
    /// and the image decides.
    working_folder: Option<String>,
}

/// A source of a container's variables.
#[derive(Clone, Debug, PartialEq)]
enum Variable {
    /// A text, which may refer to earlier variables.
    Text { name: String, value: String },
    /// A key of a `ConfigMap`.
    Key { name: String, map: String, key: String },
    /// All keys of a `ConfigMap`, with this prefix before their names.
    All { prefix: String, map: String },
    /// A variable whose value is not available to Plimsoll.
    Hidden { name: String },
    /// A source that may set any variable to a value that is not available to Plimsoll.
    AllHidden,
}

/// A part of a `ConfigMap` that is mounted as files.
#[derive(Clone, Debug, PartialEq)]
enum Mount {
    /// One key.
    File { path: String, map: String, key: String },
    /// Each key, in this folder.
    Folder { path: String, map: String },
}

/// Extracts the texts to keep of a `ConfigMap`.
pub(crate) fn texts(object: core::ConfigMap) -> Arc<Texts> {
    let texts = object.data.unwrap_or_default().into_iter();
    Arc::new(texts.filter(|(_, text)| text.len() <= TEXT_MAX).collect())
}

// === impl ContainerTemplate ===

impl ContainerTemplate {
    /// Reads a container of a pod.
    pub(crate) fn new(pod: &core::PodSpec, from: &core::Container) -> Self {
        let every = from.env_from.iter().flatten().map(all_of);
        let each = from.env.iter().flatten().map(one_of);
        let mounts = from.volume_mounts.iter().flatten().flat_map(|mount| files(pod, mount));

        Self {
            image: from.image.clone().unwrap_or_default(),
            command: from.command.clone().unwrap_or_default(),
            args: from.args.clone().unwrap_or_default(),
            // Variables by name override those from `envFrom`.
            variables: every.chain(each).collect(),
            mounts: mounts.collect(),
            working_folder: from.working_dir.as_deref().map(|folder| joined(folder, "")),
        }
    }

    /// Returns the `ConfigMap`s that are needed to read the command line.
    pub(crate) fn maps(&self) -> BTreeSet<String> {
        let mut maps = BTreeSet::new();
        let mut texts: Vec<&str> = self.words().collect();
        // A text refers only to earlier variables, so later variables are settled first.
        for variable in self.variables.iter().rev() {
            match variable {
                Variable::Text { name, value } if any_refers_to(&texts, name) => texts.push(value),
                Variable::Key { name, map, key: _ }
                    if any_refers_to(&texts, name) || name == VLLM_GENERATION =>
                {
                    maps.insert(map.clone());
                }
                Variable::All { map, .. } if texts.iter().any(|text| text.contains('$')) => {
                    maps.insert(map.clone());
                }
                Variable::Text { .. }
                | Variable::Key { .. }
                | Variable::All { .. }
                | Variable::Hidden { .. }
                | Variable::AllHidden => {}
            }
        }

        if self.names_file() {
            maps.extend(self.mounts.iter().filter_map(|mount| match mount {
                Mount::File { path, map, .. } => {
                    self.is_mentioned(path, &texts).then(|| map.clone())
                }
                Mount::Folder { path, map } => {
                    let is_needed = self.is_mentioned(path, &texts) || self.works_below(path);
                    is_needed.then(|| map.clone())
                }
            }));
        }

        maps
    }

    /// Returns the container, completed from these `ConfigMap`s. Only the variables that the
    /// command line refers to and the files that it names are kept.
    pub(crate) fn container<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Container {
        let mut environment = self.environment(of);
        let mut files = BTreeMap::new();
        if self.names_file() {
            let mut room = EXPANSION_MAX;
            let words: Vec<String> =
                self.words().map(|word| expand_references(word, &environment, &mut room)).collect();
            let texts: Vec<&String> = words.iter().chain(environment.values()).collect();
            for (path, text) in self.mounts.iter().flat_map(|mount| mount.files(of)) {
                let spellings = [Some(path.as_str()), self.below_working_folder(&path)];
                let mut names = spellings.into_iter().flatten();
                let used = names.find(|it| texts.iter().any(|text| text.contains(*it)));
                if let Some(name) = used {
                    files.insert(name.to_owned(), text.clone());
                }
            }
        }

        environment.retain(|name, _| {
            name == VLLM_GENERATION || self.words().any(|word| refers_to(word, name))
        });
        let Self { image, command, args, .. } = self.clone();
        Container { image, command, args, environment, files }
    }

    /// Returns all variables whose values are known.
    fn environment<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Texts {
        let mut environment = Texts::new();
        let mut room = EXPANSION_MAX;
        for variable in &self.variables {
            match variable {
                Variable::Text { name, value } => {
                    let expanded = expand_references(value, &environment, &mut room);
                    environment.insert(name.clone(), expanded);
                }
                Variable::Key { name, map, key } => {
                    match of(map).and_then(|texts| texts.get(key)) {
                        Some(text) => environment.insert(name.clone(), text.clone()),
                        None => environment.remove(name),
                    };
                }
                Variable::All { prefix, map } => match of(map) {
                    Some(texts) => {
                        for (key, text) in texts {
                            environment.insert(format!("{prefix}{key}"), text.clone());
                        }
                    }
                    // This `ConfigMap` may override any earlier variable.
                    None => environment.clear(),
                },
                Variable::Hidden { name } => {
                    environment.remove(name);
                }
                Variable::AllHidden => environment.clear(),
            }
        }

        environment
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        self.command.iter().chain(&self.args).map(String::as_str)
    }

    /// Returns a path relative to the working folder, if it is below it.
    fn below_working_folder<'a>(&self, path: &'a str) -> Option<&'a str> {
        let below = path.strip_prefix(self.working_folder.as_deref()?)?;
        Some(below).filter(|below| !below.is_empty())
    }

    /// Returns true if a text contains a mount's path, whole or relative to the working folder.
    fn is_mentioned(&self, path: &str, texts: &[&str]) -> bool {
        let trimmed = path.trim_end_matches('/');
        let written = [Some(trimmed), self.below_working_folder(trimmed)];
        texts.iter().any(|text| written.iter().flatten().any(|path| text.contains(path)))
    }

    /// Returns true if the working folder is this folder or below it.
    fn works_below(&self, path: &str) -> bool {
        self.working_folder.as_ref().is_some_and(|at| at.starts_with(&joined(path, "")))
    }

    /// Returns true if arguments are read from a file.
    fn names_file(&self) -> bool {
        self.words().any(|word| word.contains(FILE_FLAG))
    }
}

// === impl Mount ===

impl Mount {
    /// Returns the mounted files, with their texts.
    fn files<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Vec<(String, &'a String)> {
        match self {
            Self::File { path, map, key } => {
                let text = of(map).and_then(|texts| texts.get(key));
                text.map(|text| (path.clone(), text)).into_iter().collect()
            }
            Self::Folder { path, map } => {
                let texts = of(map).into_iter().flatten();
                texts.map(|(key, text)| (joined(path, key), text)).collect()
            }
        }
    }
}

// === reading of templates ===

fn all_of(from: &core::EnvFromSource) -> Variable {
    let prefix = from.prefix.clone().unwrap_or_default();
    match &from.config_map_ref {
        Some(map) => Variable::All { prefix, map: map.name.clone() },
        None => Variable::AllHidden,
    }
}

fn one_of(from: &core::EnvVar) -> Variable {
    let name = from.name.clone();
    let key = from.value_from.as_ref().map(|source| source.config_map_key_ref.as_ref());

    match key {
        // Without either, the variable is empty.
        None => Variable::Text { name, value: from.value.clone().unwrap_or_default() },
        Some(Some(key)) => Variable::Key { name, map: key.name.clone(), key: key.key.clone() },
        Some(None) => Variable::Hidden { name },
    }
}

/// Returns the `ConfigMap` files that a mount contains.
fn files(pod: &core::PodSpec, mount: &core::VolumeMount) -> Vec<Mount> {
    let Some(volume) = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name) else {
        return Vec::new();
    };

    let alone = volume.config_map.iter().map(|source| (&source.name, &source.items));
    let projections = volume.projected.iter().flat_map(|it| it.sources.iter().flatten());
    let projected = projections
        .filter_map(|projection| projection.config_map.as_ref())
        .map(|source| (&source.name, &source.items));
    let sources: Vec<_> = alone.chain(projected).collect();

    let inside = match (&mount.sub_path, &mount.sub_path_expr) {
        (_, Some(_)) => return Vec::new(),
        (Some(path), None) => path.trim_matches('/'),
        (None, None) => "",
    };
    sources.into_iter().flat_map(|(map, items)| shown(mount, inside, map, items.as_ref())).collect()
}

/// Returns the files from one source in a mount. The mount shows one part of the volume, or all of
/// it if the part's name is empty.
fn shown(
    mount: &core::VolumeMount,
    inside: &str,
    map: &str,
    items: Option<&Vec<core::KeyToPath>>,
) -> Vec<Mount> {
    let root = &mount.mount_path;
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        // Each key is a file at the top level, so the part is the file of that key.
        return vec![if inside.is_empty() {
            Mount::Folder { path: root.clone(), map: map.to_owned() }
        } else {
            Mount::File { path: root.clone(), map: map.to_owned(), key: inside.to_owned() }
        }];
    };

    let files = items.iter().filter_map(|item| {
        let below = item.path.strip_prefix(inside)?;
        let path = match (inside, below) {
            (_, "") => root.clone(),
            ("", below) => joined(root, below),
            (_, below) => joined(root, below.strip_prefix('/')?),
        };
        Some(Mount::File { path, map: map.to_owned(), key: item.key.clone() })
    });

    files.collect()
}

fn joined(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

fn any_refers_to(words: &[&str], name: &str) -> bool {
    words.iter().any(|word| refers_to(word, name))
}

/// Returns true if a word refers to this variable, as Kubernetes (`$(NAME)`) or a shell writes it.
fn refers_to(word: &str, name: &str) -> bool {
    word.match_indices(name).any(|(at, _)| {
        let before = word[..at].trim_end_matches(['(', '{']);
        before.ends_with('$')
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The only container of a pod with these volumes.
    fn draft(container: &Value, volumes: &Value) -> ContainerTemplate {
        let mut all = json!({"name": "engine", "image": "vllm/vllm-openai"});
        all.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let written = json!({"containers": [all], "volumes": volumes});
        let pod: core::PodSpec = serde_json::from_value(written).unwrap();
        ContainerTemplate::new(&pod, &pod.containers[0])
    }

    fn maps(maps: &[(&str, &[(&str, &str)])]) -> BTreeMap<String, Texts> {
        maps.iter().map(|&(map, of)| (map.to_owned(), owned(of))).collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|&(key, text)| (key.to_owned(), text.to_owned())).collect()
    }

    fn container(draft: &ContainerTemplate, maps: &BTreeMap<String, Texts>) -> Container {
        draft.container(&|map| maps.get(map))
    }

    fn pairs(of: &Texts) -> Vec<(&str, &str)> {
        of.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect()
    }

    /// Returns a container that reads its arguments from a file in this mount, and the file's path.
    fn file(path: &str, mut mount: Value, mut volume: Value) -> (ContainerTemplate, String) {
        mount["name"] = json!("settings");
        volume["name"] = json!("settings");
        let container = json!({"args": ["--config", path], "volumeMounts": [mount]});
        (draft(&container, &json!([volume])), path.to_owned())
    }

    #[test]
    fn variables_that_double_each_other_have_a_bound() {
        let variables: Vec<Value> = (0_i32..60)
            .map(|at| {
                let before = format!("$(V{})$(V{})", at - 1, at - 1);
                let value = if at == 0 { "a".repeat(16) } else { before };
                json!({"name": format!("V{at}"), "value": value})
            })
            .collect();
        let draft = draft(&json!({"args": ["$(V59)"], "env": variables}), &json!([]));
        let found = container(&draft, &BTreeMap::new());
        let size: usize = found.environment.values().map(String::len).sum();
        assert!(size <= EXPANSION_MAX, "{size}");
        assert!(found.environment["V59"].contains("$(V58)"));
    }

    fn at(path: &str) -> Value {
        json!({"mountPath": path})
    }

    fn part(path: &str, part: &str) -> Value {
        json!({"mountPath": path, "subPath": part})
    }

    #[test]
    fn a_file_of_arguments_is_found_however_its_config_map_is_mounted() {
        let items = json!([{"key": "engine", "path": "v1/engine.yaml"}]);
        let alone = json!({"configMap": {"name": "engine"}});
        let placed = json!({"configMap": {"name": "engine", "items": items}});
        let projected = json!({"projected": {"sources": [
            {"secret": {"name": "token"}}, {"configMap": {"name": "engine", "items": items}}]}});

        for (draft, path) in [
            file("/etc/vllm/engine", at("/etc/vllm"), alone.clone()),
            file("/etc/vllm/engine", at("/etc/vllm/"), alone.clone()),
            file("/engine.yaml", part("/engine.yaml", "engine"), alone.clone()),
            file("/etc/vllm/v1/engine.yaml", at("/etc/vllm"), placed.clone()),
            file("/etc/vllm/engine.yaml", part("/etc/vllm", "v1"), placed.clone()),
            file("/engine.yaml", part("/engine.yaml", "v1/engine.yaml"), placed),
            file("/etc/vllm/v1/engine.yaml", at("/etc/vllm"), projected),
        ] {
            assert_eq!(draft.maps(), ["engine".to_owned()].into(), "{draft:?}");
            let known = maps(&[("engine", &[("engine", "max-num-seqs: 8"), ("other", "x")])]);
            let found = container(&draft, &known).files;
            assert_eq!(pairs(&found), [(path.as_str(), "max-num-seqs: 8")], "{draft:?}");
            assert!(container(&draft, &maps(&[])).files.is_empty());
            assert!(container(&draft, &maps(&[("engine", &[])])).files.is_empty());
        }

        for (draft, _) in [
            // A file that `--config` does not name, and one with a name that the container
            // computes.
            file("/etc/vllm/engine", at("/etc/sglang"), alone.clone()),
            file("/x", json!({"mountPath": "/x", "subPathExpr": "$(POD)"}), alone),
            file("/etc/vllm/engine", at("/etc/vllm"), json!({"secret": {"secretName": "engine"}})),
        ] {
            assert!(draft.maps().is_empty(), "{draft:?}");
        }

        // Files that are mounted for another purpose are ignored.
        let template = json!({"args": ["--chat-template", "/chat/llama"],
                              "volumeMounts": [{"name": "chat", "mountPath": "/chat"}]});
        let draft = draft(&template, &json!([{"name": "chat", "configMap": {"name": "chat"}}]));
        assert!(draft.maps().is_empty());
    }

    #[test]
    fn the_name_of_the_file_may_be_a_variable() {
        let written = json!({
            "command": ["sh", "-c", "exec vllm serve m --config=${FILE}"],
            "env": [{"name": "FOLDER", "value": "/etc/vllm"}, {"name": "FILE", "value": "$(FOLDER)/a"}],
            "volumeMounts": [{"name": "s", "mountPath": "/etc/vllm"}],
        });
        let draft = draft(&written, &json!([{"name": "s", "configMap": {"name": "engine"}}]));
        assert_eq!(draft.maps(), ["engine".to_owned()].into());

        let found = container(&draft, &maps(&[("engine", &[("a", "x"), ("b", "y")])]));
        assert_eq!(pairs(&found.files), [("/etc/vllm/a", "x")]);
    }

    /// Returns the name of the file that a container in this folder finds at the path.
    fn found(working_folder: Option<&str>, path: &str) -> Option<String> {
        let written = json!({"args": ["serve", "m", "--config", path],
                             "workingDir": working_folder,
                             "volumeMounts": [{"name": "s", "mountPath": "/etc/vllm"}]});
        let draft = draft(&written, &json!([{"name": "s", "configMap": {"name": "engine"}}]));
        let known = maps(&[("engine", &[("engine.yaml", "max-num-seqs: 8"), ("b", "y")])]);
        let files = container(&draft, &known).files;
        assert_eq!(draft.maps().is_empty(), files.is_empty(), "{written}");

        files.into_iter().next().map(|(path, _)| path)
    }

    #[test]
    fn a_path_that_does_not_start_at_the_root_starts_where_the_container_does() {
        assert_eq!(found(Some("/etc/vllm"), "engine.yaml").as_deref(), Some("engine.yaml"));
        assert_eq!(found(Some("/etc/"), "vllm/engine.yaml").as_deref(), Some("vllm/engine.yaml"));
        assert_eq!(found(Some("/etc/vllm"), "./engine.yaml").as_deref(), Some("engine.yaml"));
        assert_eq!(
            found(Some("/"), "etc/vllm/engine.yaml").as_deref(),
            Some("etc/vllm/engine.yaml")
        );

        // The image determines the working folder, and Plimsoll cannot read it.
        assert_eq!(found(None, "engine.yaml"), None);
        assert_eq!(found(Some("/srv"), "engine.yaml"), None);
    }

    #[test]
    fn variables_come_from_config_maps_in_the_order_that_kubernetes_has() {
        let written = json!({
            "args": ["$(A)", "$(B)", "$(C)", "$(M_D)", "$(E)", "$(F)"],
            "envFrom": [
                {"configMapRef": {"name": "first"}},
                {"prefix": "M_", "configMapRef": {"name": "second"}},
            ],
            "env": [
                {"name": "B", "value": "from env"},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "third", "key": "k"}}},
                {"name": "E", "value": "$(A) and $(C)"},
                {"name": "F", "valueFrom": {"configMapKeyRef": {"name": "third", "key": "none"}}},
                {"name": "UNUSED", "valueFrom": {"configMapKeyRef": {"name": "fourth", "key": "k"}}},
            ],
        });

        let draft = draft(&written, &json!([]));
        let needed: Vec<String> = draft.maps().into_iter().collect();
        assert_eq!(needed, ["first", "second", "third"]);
        let known = maps(&[
            ("first", &[("A", "1"), ("B", "2"), ("F", "hidden"), ("NOBODY", "9")]),
            ("second", &[("D", "4")]),
            ("third", &[("k", "3")]),
        ]);
        let found = container(&draft, &known);
        let want = [("A", "1"), ("B", "from env"), ("C", "3"), ("E", "1 and 3"), ("M_D", "4")];
        assert_eq!(pairs(&found.environment), want);
        let found = container(&draft, &maps(&[]));
        assert_eq!(pairs(&found.environment), [("B", "from env"), ("E", "$(A) and $(C)")]);
    }

    #[test]
    fn what_may_come_from_a_secret_has_no_known_value() {
        let secret = json!({"secretRef": {"name": "s"}});
        let map = json!({"configMapRef": {"name": "m"}});
        let known = maps(&[("m", &[("A", "1"), ("B", "2")])]);

        for (sources, want) in [([&secret, &map], &[("A", "1")][..]), ([&map, &secret], &[])] {
            let written = json!({"args": ["$(A) $(B)"], "envFrom": sources, "env": [
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]});
            let found = container(&draft(&written, &json!([])), &known);
            assert_eq!(pairs(&found.environment), want, "what comes later wins");
        }
    }

    #[test]
    fn of_a_config_map_only_texts_are_kept_that_could_be_a_configuration() {
        let data = json!({"data": {"a": "b", "long": "x".repeat(TEXT_MAX + 1)}});
        let object: core::ConfigMap = serde_json::from_value(data).unwrap();
        assert_eq!(pairs(&texts(object)), [("a", "b")]);
        assert_eq!(pairs(&texts(core::ConfigMap::default())), []);
    }
}
