//! The documentation site: its table of contents, and its reference pages that are generated from the
//! command line, the chart and the roles of the example.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use plimsoll::cli::args::Args;
use plimsoll::collect::cluster::discovery::Annotation;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

const CLI: &str = "docs/cli.md";
const CLI_HEAD: &str = "\
# Command line

Each command with its options, environment variables and exit codes. This page is generated from the
program; `plimsoll man FOLDER` writes the same as manual pages.

## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | `backtest`: decisions differ; `explain`: no desired replicas; `doctor`: a warning |
| 2 | `doctor`: something could not be read |
| 3 | `doctor`: a failure |
| 64 | the command line or an input is invalid, or a configuration, scenario, policy, manifest or result to merge cannot be read |
| 69 | a required service does not respond, or a trace, a state file or an output cannot be used |
| 70 | internal error; please report it |
| 130 | interrupted: `backtest`, `advise`, `report` and `explain --trace` at once, `simulate` and `scoreboard` by the second |

The daemon never exits because a replica or an API server does not respond.
";

const HELM_VALUES: &str = "docs/helm-values.md";
const HELM_VALUES_HEAD: &str = "\
# Helm values

Values of the [Helm chart](../charts/plimsoll/README.md) with their types and defaults. This page is
generated from the chart's schema and its `values.yaml`. The keys below `config` are those of the
[configuration reference](reference.md).

| value | type | default | description |
|---|---|---|---|
";

const ANNOTATIONS: &str = "docs/annotations.md";
const ANNOTATIONS_HEAD: &str = "\
# Annotations

Annotations of HPAs, ScaledObjects and workloads declare variants. An object with
`plimsoll.dev/model` is a variant. All values are text. This page is generated from the daemon's
declarations; [Discover variants by annotation](discovery.md) describes their use and the
permissions.

- An annotation with another value is refused. An Event on the object lists every error, and the
  object stays as it was when its annotations could last be read.
- The operator can [restrict annotations](discovery.md#several-tenants) in the configuration.
- An annotation without effect is named in an Event, and the object is used.

| annotation | meaning | value | default |
|---|---|---|---|
";
const ANNOTATIONS_TAIL: &str = "
`mismatch` and `list-price` are for [the rank of price](capacity.md#by-the-rank-of-price),
`start-time` is for [standby](foresight-reference.md#standby), `scale-to-zero` for
[scale to zero](zero.md), and `pin` and `pause` for [overrides](explain.md#pin-and-pause).

## Other annotations

| annotation | on | meaning |
|---|---|---|
| `plimsoll.dev/exclude` | namespace | `\"true\"` ignores the namespace ([discovery](discovery.md#annotations)) |
| `llm-d.ai/managed`, `llm-d.ai/model-id`, `llm-d.ai/variant-cost` | HPA, ScaledObject | the same in [WVA's vocabulary](discovery.md#annotations-for-the-workload-variant-autoscaler), with `wva: true` |
| `wva.llmd.ai/exclude` | namespace | as `plimsoll.dev/exclude`, also with `wva: false` |
| `autoscaling.keda.sh/paused` | ScaledObject | pauses KEDA; Plimsoll reports it |
";

const RBAC: &str = "docs/rbac.md";
const RBAC_HEAD: &str = "\
# RBAC permissions

Plimsoll never writes replica counts. The table shows the roles of
[examples/cluster.yaml](../examples/cluster.yaml), which the end-to-end tests use. The chart
only grants the permissions that its values need, among them those named below the list.

- `plimsoll-watch` is for variants that the configuration names. Bind it in each of their namespaces.
- `plimsoll-discovery` replaces it with [discovery](discovery.md#permissions).
- `plimsoll-limits` is for [limits](limits.md) by nodes and quotas.
- `plimsoll-engine-arguments` is for pods whose
  [engine arguments](capacity.md#how-engines-are-started) are in ConfigMaps.
- `plimsoll-leader-election` is for [leader election](high-availability.md#permissions).
- `plimsoll-registration` and `plimsoll-access-reviews` are for the
  [external metrics API](external-metrics.md#rbac-permissions).
- `plimsoll-external-metrics-view` is not Plimsoll's own. It lets the viewers of a namespace list
  its metrics. The HPA controller may read them by a role of Kubernetes,
  `system:controller:horizontal-pod-autoscaler`.

Both bind one more role of Kubernetes, `extension-apiserver-authentication-reader` in `kube-system`.
With `tls.mode: selfManaged`, the chart also grants reading and updating one Secret by name, and
reading and patching each of its APIServices by name. `rbac.scaleTargets` replaces the rules for
scale targets. [Seldon](seldon.md#permissions) and `rbac.extraRules` add rules of their own.

| role | API group | resources | names | verbs |
|---|---|---|---|---|
";

#[test]
fn the_summary_has_each_document_once() {
    let summary = read("docs/SUMMARY.md");
    let targets: Vec<&str> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    let pages: Vec<&str> = targets.iter().copied().filter(|it| !it.contains('#')).collect();
    let listed: BTreeSet<PathBuf> = pages.iter().map(|page| resolved("docs", page)).collect();
    assert_eq!(listed.len(), pages.len(), "a page is listed twice");

    let mut documents: BTreeSet<PathBuf> = markdown("docs").collect();
    documents.extend(markdown(""));
    documents.extend(markdown("docs/alerts"));
    documents.insert(PathBuf::from("charts/plimsoll/README.md"));
    documents.remove(Path::new("docs/SUMMARY.md"));
    assert_eq!(listed, documents);
}

/// A site has pages for files, and none for folders.
#[test]
fn links_of_the_site_lead_to_files() {
    let folders = ["docs", "", "docs/alerts"].into_iter().flat_map(markdown);
    let mut wrong = Vec::new();
    for file in folders.chain([PathBuf::from("charts/plimsoll/README.md")]) {
        let text = read(&file);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let is_relative = !target.contains("://") && !target.contains(['\n', ' ']);
            let folder = file.parent().unwrap();
            if is_relative && !path.is_empty() && !root(folder.join(path)).is_file() {
                wrong.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reference_of_the_command_line_is_its_help() {
    let mut text = CLI_HEAD.to_owned();
    let mut command = Args::command().term_width(100);
    command.build();
    append_help(&mut command, &mut text);
    compare(CLI, &text);
}

/// Adds the help of a command, and that of its subcommands.
fn append_help(command: &mut clap::Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or("plimsoll").to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end()).unwrap();
    for subcommand in command.get_subcommands_mut() {
        if subcommand.get_name() != "help" && !subcommand.is_hide_set() {
            append_help(subcommand, text);
        }
    }
}

#[test]
fn the_reference_of_helm_values_is_the_schema() {
    let schema: Value = serde_json::from_str(&read("charts/plimsoll/values.schema.json")).unwrap();
    let values = yaml("charts/plimsoll/values.yaml").remove(0);
    let mut text = HELM_VALUES_HEAD.to_owned();
    append_values(&schema, &schema, &values, "", &mut text);
    assert!(text.lines().count() > 60, "the values are found");
    compare(HELM_VALUES, &text);
}

/// Adds the values below a path. Those of the daemon's configuration have their own reference.
fn append_values(schema: &Value, document: &Value, values: &Yaml, path: &str, text: &mut String) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let property = match property["$ref"].as_str() {
            Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
            None => property,
        };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let value = &values[name.as_str()];
        let is_section = property["properties"].is_object() && path != "config";
        if is_section {
            append_values(property, document, value, &path, text);
        } else {
            let description = property["description"].as_str();
            let description = description.unwrap_or_else(|| panic!("{path} has no description"));
            let description = description.replace('|', "\\|");
            let default = default_of(value);
            let kind = kind(property);
            writeln!(text, "| `{path}` | {kind} | {default} | {description} |").unwrap();
        }
    }
}

fn kind(schema: &Value) -> String {
    if let Some(choices) = schema["enum"].as_array() {
        let choices: Vec<String> =
            choices.iter().filter_map(Value::as_str).map(|it| format!("`{it}`")).collect();
        return choices.join(", ");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        Value::String(kind) => vec![kind.as_str()],
        _ => Vec::new(),
    };
    kinds.into_iter().filter(|kind| *kind != "null").collect::<Vec<_>>().join(" or ")
}

/// A default in one line. Lists and mappings with content are in `values.yaml`.
fn default_of(value: &Yaml) -> String {
    match value {
        Yaml::BadValue | Yaml::Null => String::new(),
        Yaml::String(text) => format!("`\"{text}\"`"),
        Yaml::Integer(number) => format!("`{number}`"),
        Yaml::Boolean(value) => format!("`{value}`"),
        Yaml::Array(items) if items.is_empty() => "`[]`".to_owned(),
        Yaml::Hash(items) if items.is_empty() => "`{}`".to_owned(),
        _ => "see `values.yaml`".to_owned(),
    }
}

#[test]
fn the_reference_of_annotations_is_their_declaration() {
    let source = read("src/daemon/collect/cluster/discovery/annotation.rs");
    let (_, block) = source.split_once("\nannotations! {\n").unwrap();
    let (block, _) = block.split_once("\n}\n").unwrap();

    let mut text = ANNOTATIONS_HEAD.to_owned();
    let mut names = Vec::new();
    let mut comment = Vec::new();
    for line in block.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push(words.trim());
            continue;
        }
        let name = line.split('"').nth(1).unwrap();
        let comment = std::mem::take(&mut comment).join(" ");
        let (meaning, value) = comment.split_once("  Value: ").unwrap();
        let (value, default) = value.split_once(". Default: ").unwrap();
        let default = default.trim_end_matches('.');
        writeln!(text, "| `plimsoll.dev/{name}` | {meaning} | {value} | {default} |").unwrap();
        names.push(format!("plimsoll.dev/{name}"));
    }
    let declared: Vec<&str> = Annotation::ALL.iter().map(|it| it.name()).collect();
    assert_eq!(names, declared);

    text.push_str(ANNOTATIONS_TAIL);
    compare(ANNOTATIONS, &text);
}

#[test]
fn the_reference_of_permissions_is_the_example() {
    let mut text = RBAC_HEAD.to_owned();
    let mut roles = 0;
    for object in yaml("examples/cluster.yaml") {
        if !["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap_or_default()) {
            continue;
        }
        roles += 1;
        let name = object["metadata"]["name"].as_str().unwrap();
        for rule in object["rules"].as_vec().unwrap() {
            let cells =
                ["apiGroups", "resources", "resourceNames", "verbs"].map(|key| words(rule, key));
            writeln!(text, "| `{name}` | {} |", cells.join(" | ")).unwrap();
        }
    }
    assert!(roles >= 6, "the roles are found");
    compare(RBAC, &text);
}

/// The words of a list in a rule. The group of the core API has no name.
fn words(rule: &Yaml, key: &str) -> String {
    let words = rule[key].as_vec().into_iter().flatten().filter_map(Yaml::as_str);
    let words =
        words.map(|word| if word.is_empty() { "core".to_owned() } else { format!("`{word}`") });
    words.collect::<Vec<_>>().join(", ")
}

/// The figures of other pages are the means of the scoreboard.
#[test]
fn the_comparison_shows_the_means_of_the_scoreboard() {
    let scoreboard = read("docs/scoreboard.md");
    let (_, table) = scoreboard.split_once("\n## All workloads\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let (comparison, readme) = (read("docs/comparison.md"), read("README.md"));
    let mut compared = 0;
    for row in comparison.lines() {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, policy, within, cost] = cells[..] else { continue };
        let Some(policy) = policy.strip_prefix('`').and_then(|it| it.strip_suffix('`')) else {
            continue;
        };
        compared += 1;
        let row = table.lines().find(|row| row.starts_with(&format!("| {policy} |"))).unwrap();
        let mean = row.trim_matches(['|', ' ']).rsplit('|').next().unwrap().trim();
        assert_eq!(format!("{} / {cost}", within.trim_end_matches('%')), mean, "{policy}");
        let shown = format!("{within}   {cost}");
        assert!(policy == "plimsoll-only-up" || readme.contains(&shown), "README.md: {policy}");
    }
    assert!(compared >= 8, "the table is found");
}

/// Words that hide who or what is meant, or that people no longer use.
const AVOIDED: [&str; 7] = ["whoever", "nobody", "somebody", "everybody", "anew", "beside", "mend"];

/// The pages that are read first have none of these words. The others may not get more of them.
const READ_FIRST: [&str; 12] = [
    "README.md",
    "docs/capacity.md",
    "docs/comparison.md",
    "docs/concepts.md",
    "docs/demo.md",
    "docs/discovery.md",
    "docs/external-metrics.md",
    "docs/first-hour.md",
    "docs/install.md",
    "docs/keda.md",
    "docs/troubleshooting.md",
    "docs/without-kubernetes.md",
];

/// Occurrences in all other pages. Reduce it when you rewrite one.
const AVOIDED_ELSEWHERE: usize = 95;

#[test]
fn avoided_words_stay_out_of_the_pages_that_are_read_first() {
    let folders = ["docs", "", "docs/alerts"].into_iter().flat_map(markdown);
    let mut elsewhere = 0;
    for file in folders {
        let found = avoided(&read(&file));
        if READ_FIRST.iter().any(|page| Path::new(page) == file) {
            assert!(found.is_empty(), "{}: {found:?}", file.display());
        } else {
            elsewhere += found.len();
        }
    }
    assert!(
        elsewhere <= AVOIDED_ELSEWHERE,
        "{elsewhere} avoided words in the other pages, and at most {AVOIDED_ELSEWHERE} are allowed"
    );
}

/// The avoided words in the prose of a document, without code and links.
fn avoided(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            let prose: String = line.split('`').step_by(2).collect();
            let prose = prose.to_lowercase();
            let found = prose.split(|c: char| !c.is_ascii_alphanumeric() && !"-_#/".contains(c));
            words.extend(found.filter(|word| AVOIDED.contains(word)).map(str::to_owned));
        }
    }
    words
}

#[test]
fn avoided_words_are_found_in_prose_and_not_in_code() {
    let text = "Nobody mends it `anew`.\n```\nsomebody\n```\n[see](a.md#beside-it) beside\n";
    assert_eq!(avoided(text), ["nobody", "beside"]);
}

/// Compares a generated page with the committed one, or writes it.
fn compare(path: &str, text: &str) {
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(root(path), text).unwrap();
    }
    let committed = std::fs::read_to_string(root(path)).unwrap_or_default();
    let command = "INSTA_UPDATE=always cargo test --workspace --all-features --test it book";
    assert!(committed == text, "{path} is out of date; write it with `{command}`");
}

/// The Markdown files in a folder of the repository, by their paths in it.
fn markdown(folder: &str) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(root(folder)).unwrap();
    let paths = entries.map(move |entry| Path::new(folder).join(entry.unwrap().file_name()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
}

/// The path in the repository of a link in a folder.
fn resolved(folder: &str, link: &str) -> PathBuf {
    match link.strip_prefix("../") {
        Some(path) => PathBuf::from(path),
        None => Path::new(folder).join(link),
    }
}

fn yaml(path: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&read(path)).unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(root(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
