//! `ConfigMap`s: what containers take from them of how their engine is started.
//!
//! A pod template names `ConfigMap`s and does not have what is in them: variables by name
//! (`env.valueFrom.configMapKeyRef`), all of one (`envFrom`), and files that are mounted, of which
//! the one that `--config` names matters. [`Draft`] is a container as it is written;
//! [`Draft::maps`] are the `ConfigMap`s without which its command line cannot be read, and
//! [`Draft::container`] puts in what they say.
//!
//! Secrets are never read: what is in one is nobody's business but the container's, so a variable
//! that may come from one has no known value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::keys::{TargetKey, WatchKey};
use crate::collect::cluster::template::Written;
use crate::collect::cluster::world::{Feed, World};
use plimsoll_core::fleet::Namespace;
use plimsoll_core::observe::template::{Container, Template, VLLM_GENERATION, expand_references};

/// The longest text that is kept of a `ConfigMap`: many times an engine's configuration, and a small
/// part of the megabyte that a `ConfigMap` may hold.
const TEXT_MAX: usize = 64 * 1024;

/// The flag of both engines that names a file of arguments.
const FILE_FLAG: &str = "--config";

/// What a `ConfigMap` says, by its keys.
pub(crate) type Texts = BTreeMap<String, String>;

/// A container as its pod's template writes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draft {
    image: String,
    command: Vec<String>,
    args: Vec<String>,
    /// What gives variables, in the order in which Kubernetes goes through them.
    variables: Vec<Variable>,
    mounts: Vec<Mount>,
    /// Where paths start that do not start at the root, with a slash at its end; the image decides
    /// where it is not written.
    working_folder: Option<String>,
}

/// What gives a container variables.
#[derive(Clone, Debug, PartialEq)]
enum Variable {
    /// A text, which may refer to variables before it.
    Text { name: String, value: String },
    /// A key of a `ConfigMap`.
    Key { name: String, map: String, key: String },
    /// All keys of a `ConfigMap`, with this before their names.
    All { prefix: String, map: String },
    /// Something of which nobody here may know the value.
    Hidden { name: String },
    /// Something that may give any variable a value that nobody here may know.
    AllHidden,
}

/// What of a `ConfigMap` is a file.
#[derive(Clone, Debug, PartialEq)]
enum Mount {
    /// One key.
    File { path: String, map: String, key: String },
    /// Each key, in this folder.
    Folder { path: String, map: String },
}

/// What is kept of a `ConfigMap`.
pub(crate) fn texts(object: core::ConfigMap) -> Arc<Texts> {
    let texts = object.data.unwrap_or_default().into_iter();
    Arc::new(texts.filter(|(_, text)| text.len() <= TEXT_MAX).collect())
}

// === impl Draft ===

impl Draft {
    /// Reads a container of a pod.
    pub(crate) fn new(pod: &core::PodSpec, from: &core::Container) -> Self {
        let every = from.env_from.iter().flatten().map(all_of);
        let each = from.env.iter().flatten().map(one_of);
        let mounts = from.volume_mounts.iter().flatten().flat_map(|mount| files(pod, mount));
        Self {
            image: from.image.clone().unwrap_or_default(),
            command: from.command.clone().unwrap_or_default(),
            args: from.args.clone().unwrap_or_default(),
            // What is named wins over what comes with all the rest.
            variables: every.chain(each).collect(),
            mounts: mounts.collect(),
            working_folder: from.working_dir.as_deref().map(|folder| joined(folder, "")),
        }
    }

    /// The `ConfigMap`s without which the command line cannot be read.
    pub(crate) fn maps(&self) -> BTreeSet<String> {
        let mut maps = BTreeSet::new();
        let mut texts: Vec<&str> = self.words().collect();
        let refers = |texts: &[&str], name: &str| texts.iter().any(|text| refers_to(text, name));
        // A text refers to variables before it, so those after it are settled first.
        for variable in self.variables.iter().rev() {
            match variable {
                Variable::Text { name, value } if refers(&texts, name) => texts.push(value),
                Variable::Key { name, map, key: _ }
                    if refers(&texts, name) || name == VLLM_GENERATION =>
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
            let mentioned = |path: &str| {
                let path = path.trim_end_matches('/');
                let written = [Some(path), self.below_working_folder(path)];
                texts.iter().any(|text| written.iter().flatten().any(|path| text.contains(path)))
            };
            let holds_working_folder = |path: &str| {
                self.working_folder.as_ref().is_some_and(|at| at.starts_with(&joined(path, "")))
            };
            maps.extend(self.mounts.iter().filter_map(|mount| match mount {
                Mount::File { path, map, .. } => mentioned(path).then(|| map.clone()),
                Mount::Folder { path, map } => {
                    (mentioned(path) || holds_working_folder(path)).then(|| map.clone())
                }
            }));
        }
        maps
    }

    /// The container, with what these `ConfigMap`s say. Of variables only those are kept that the
    /// command line refers to, and of files those that it names.
    pub(crate) fn container<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Container {
        let mut environment = self.environment(of);
        let wanted =
            |name: &str| name == VLLM_GENERATION || self.words().any(|word| refers_to(word, name));
        let mut files = BTreeMap::new();
        if self.names_file() {
            let words: Vec<String> =
                self.words().map(|word| expand_references(word, &environment)).collect();
            let texts: Vec<&String> = words.iter().chain(environment.values()).collect();
            let mentioned = |path: &str| texts.iter().any(|word| word.contains(path));
            for (path, text) in self.mounts.iter().flat_map(|mount| mount.files(of)) {
                if mentioned(&path) {
                    files.insert(path, text.clone());
                } else if let Some(path) =
                    self.below_working_folder(&path).filter(|it| mentioned(it))
                {
                    files.insert(path.to_owned(), text.clone());
                }
            }
        }
        environment.retain(|name, _| wanted(name));
        let Self { image, command, args, .. } = self.clone();
        Container { image, command, args, environment, files }
    }

    /// All variables whose values are known.
    fn environment<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Texts {
        let mut environment = Texts::new();
        for variable in &self.variables {
            match variable {
                Variable::Text { name, value } => {
                    let value = expand_references(value, &environment);
                    environment.insert(name.clone(), value);
                }
                Variable::Key { name, map, key } => {
                    match of(map).and_then(|texts| texts.get(key)) {
                        Some(text) => environment.insert(name.clone(), text.clone()),
                        None => environment.remove(name),
                    };
                }
                Variable::All { prefix, map } => match of(map) {
                    Some(texts) => {
                        let named = |(key, text): (&String, &String)| {
                            (format!("{prefix}{key}"), text.clone())
                        };
                        environment.extend(texts.iter().map(named));
                    }
                    // It may say anything of what came before it.
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

    /// How a path is written that starts where the container does.
    fn below_working_folder<'a>(&self, path: &'a str) -> Option<&'a str> {
        let path = path.strip_prefix(self.working_folder.as_deref()?)?;
        Some(path).filter(|path| !path.is_empty())
    }

    /// Whether arguments are read from a file.
    fn names_file(&self) -> bool {
        self.words().any(|word| word.contains(FILE_FLAG))
    }
}

// === impl Mount ===

impl Mount {
    /// The files that it is, with their texts.
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

// === impl World ===

impl World {
    /// The watches of the `ConfigMap`s that a target's pods take something from.
    pub(crate) fn borrowed(&self, key: &TargetKey) -> impl Iterator<Item = WatchKey> {
        let feed = self.targets.get(&key.watch(self.reach));
        let written = feed.and_then(|feed| feed.get(&key.object())?.template.as_ref());
        let maps = written.into_iter().flat_map(Written::maps);
        maps.map(|map| watch_of(&key.namespace, map))
    }

    /// The template with what its `ConfigMap`s say; `None` while one of them has never been heard of:
    /// a template that is out of sight has not changed.
    pub(crate) fn template(&self, key: &TargetKey, written: &Written) -> Option<Arc<Template>> {
        let feed = |map: &str| self.config_maps.get(&watch_of(&key.namespace, map));
        let object =
            |map: &str| ObjectName { namespace: key.namespace.to_string(), name: map.to_owned() };
        let texts = |map: &str| feed(map)?.get(&object(map)).map(Arc::as_ref);
        let is_answered = |map| feed(map).is_some_and(Feed::is_answered);
        written.maps().all(is_answered).then(|| written.template(&texts))
    }
}

fn watch_of(namespace: &Namespace, name: &str) -> WatchKey {
    WatchKey::ConfigMap { namespace: namespace.clone(), name: name.to_owned() }
}

// === what is written in a template ===

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
        // Without either the variable is empty.
        None => Variable::Text { name, value: from.value.clone().unwrap_or_default() },
        Some(Some(key)) => Variable::Key { name, map: key.name.clone(), key: key.key.clone() },
        Some(None) => Variable::Hidden { name },
    }
}

/// What a mount shows of `ConfigMap`s.
fn files(pod: &core::PodSpec, mount: &core::VolumeMount) -> Vec<Mount> {
    let Some(volume) = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name) else {
        return Vec::new();
    };
    let alone = volume.config_map.iter().map(|source| (&source.name, &source.items));
    let projected = volume.projected.iter().flat_map(|it| it.sources.iter().flatten());
    let projected = projected.filter_map(|source| source.config_map.as_ref());
    let projected = projected.map(|source| (&source.name, &source.items));
    let sources: Vec<_> = alone.chain(projected).collect();
    let inside = match (&mount.sub_path, &mount.sub_path_expr) {
        (_, Some(_)) => return Vec::new(),
        (Some(path), None) => path.trim_matches('/'),
        (None, None) => "",
    };
    sources.into_iter().flat_map(|(map, items)| shown(mount, inside, map, items.as_ref())).collect()
}

/// What a mount of a part of a volume, all of it where the part has no name, shows of one source.
fn shown(
    mount: &core::VolumeMount,
    inside: &str,
    map: &str,
    items: Option<&Vec<core::KeyToPath>>,
) -> Vec<Mount> {
    let (map, path) = (map.to_owned(), mount.mount_path.clone());
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        // A key is a file at the top, so the part is the file of that key.
        let file = || Mount::File { path: path.clone(), map: map.clone(), key: inside.to_owned() };
        let whole = || Mount::Folder { path: path.clone(), map: map.clone() };
        return vec![if inside.is_empty() { whole() } else { file() }];
    };
    let file = |item: &core::KeyToPath| {
        let below = item.path.strip_prefix(inside)?;
        let path = match (inside, below) {
            (_, "") => path.clone(),
            ("", below) => joined(&path, below),
            (_, below) => joined(&path, below.strip_prefix('/')?),
        };
        Some(Mount::File { path, map: map.clone(), key: item.key.clone() })
    };
    items.iter().filter_map(file).collect()
}

fn joined(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// Whether a word has this variable in it, as Kubernetes (`$(NAME)`) or a shell writes it.
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
    fn draft(container: &Value, volumes: &Value) -> Draft {
        let mut all = json!({"name": "engine", "image": "vllm/vllm-openai"});
        all.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({"containers": [all], "volumes": volumes});
        let pod: core::PodSpec = serde_json::from_value(pod).unwrap();
        Draft::new(&pod, &pod.containers[0])
    }

    fn maps(maps: &[(&str, &[(&str, &str)])]) -> BTreeMap<String, Texts> {
        let texts = |texts: &[(&str, &str)]| {
            texts.iter().map(|&(key, text)| (key.to_owned(), text.to_owned())).collect()
        };
        maps.iter().map(|&(map, of)| (map.to_owned(), texts(of))).collect()
    }

    fn container(draft: &Draft, maps: &BTreeMap<String, Texts>) -> Container {
        draft.container(&|map| maps.get(map))
    }

    fn pairs(of: &Texts) -> Vec<(&str, &str)> {
        of.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect()
    }

    #[test]
    fn a_file_of_arguments_is_found_however_its_config_map_is_mounted() {
        let file = |path: &str, mount: Value, volume: Value| {
            let mut mount = mount;
            mount["name"] = json!("settings");
            let mut volume = volume;
            volume["name"] = json!("settings");
            let container = json!({"args": ["--config", path], "volumeMounts": [mount]});
            (draft(&container, &json!([volume])), path.to_owned())
        };
        let items = json!([{"key": "engine", "path": "v1/engine.yaml"}]);
        let alone = json!({"configMap": {"name": "engine"}});
        let placed = json!({"configMap": {"name": "engine", "items": items}});
        let projected = json!({"projected": {"sources": [
            {"secret": {"name": "token"}}, {"configMap": {"name": "engine", "items": items}}]}});
        let at = |path: &str| json!({"mountPath": path});
        let part = |path: &str, part: &str| json!({"mountPath": path, "subPath": part});
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
            // Another file than the one that is named; one whose name the container makes up.
            file("/etc/vllm/engine", at("/etc/sglang"), alone.clone()),
            file("/x", json!({"mountPath": "/x", "subPathExpr": "$(POD)"}), alone),
            file("/etc/vllm/engine", at("/etc/vllm"), json!({"secret": {"secretName": "engine"}})),
        ] {
            assert!(draft.maps().is_empty(), "{draft:?}");
        }
        // What is mounted for something else is none of our business.
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

    #[test]
    fn a_path_that_does_not_start_at_the_root_starts_where_the_container_does() {
        let found = |working_folder: Option<&str>, path: &str| {
            let written = json!({"args": ["serve", "m", "--config", path],
                                 "workingDir": working_folder,
                                 "volumeMounts": [{"name": "s", "mountPath": "/etc/vllm"}]});
            let draft = draft(&written, &json!([{"name": "s", "configMap": {"name": "engine"}}]));
            let known = maps(&[("engine", &[("engine.yaml", "max-num-seqs: 8"), ("b", "y")])]);
            let files = container(&draft, &known).files;
            assert_eq!(draft.maps().is_empty(), files.is_empty(), "{written}");
            files.into_iter().next().map(|(path, _)| path)
        };
        assert_eq!(found(Some("/etc/vllm"), "engine.yaml").as_deref(), Some("engine.yaml"));
        assert_eq!(found(Some("/etc/"), "vllm/engine.yaml").as_deref(), Some("vllm/engine.yaml"));
        assert_eq!(found(Some("/etc/vllm"), "./engine.yaml").as_deref(), Some("engine.yaml"));
        assert_eq!(
            found(Some("/"), "etc/vllm/engine.yaml").as_deref(),
            Some("etc/vllm/engine.yaml")
        );
        // The image says where it starts, and nobody here can ask it.
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
        let environment = |sources: &[&Value]| {
            let written = json!({"args": ["$(A) $(B)"], "envFrom": sources, "env": [
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]});
            container(&draft(&written, &json!([])), &known).environment
        };
        assert_eq!(pairs(&environment(&[&secret, &map])), [("A", "1")], "what comes later wins");
        assert_eq!(pairs(&environment(&[&map, &secret])), []);
    }

    #[test]
    fn of_a_config_map_only_texts_are_kept_that_could_be_a_configuration() {
        let data = json!({"data": {"a": "b", "long": "x".repeat(TEXT_MAX + 1)}});
        let object: core::ConfigMap = serde_json::from_value(data).unwrap();
        assert_eq!(pairs(&texts(object)), [("a", "b")]);
        assert_eq!(pairs(&texts(core::ConfigMap::default())), []);
    }
}
