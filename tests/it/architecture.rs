//! What the source must look like for the design to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use plimsoll::observe::engine::Engine;
use regex::Regex;

/// The core: it must not know where its inputs come from.
const CORE: &[&str] = &["units", "settings", "fleet", "observe", "analyze", "decide", "pipeline"];

/// The crates below `src`, with the modules of each. Cargo holds their order: the core depends on
/// none of the others, and the daemon on the core alone.
const CRATES: &[(&str, &[&str])] = &[
    ("core", CORE),
    (
        "daemon",
        &[
            "clock",
            "telemetry",
            "config",
            "collect",
            "leader",
            "publish",
            "server",
            "trace",
            "daemon",
            "fixtures",
        ],
    ),
    ("lab", &["output", "simulate", "study", "backtest", "advise", "report", "demo", "engine"]),
];

/// The modules that put others together, and may name all of the core and the daemon.
const PROGRAMS: &[&str] =
    &["advise", "backtest", "daemon", "demo", "engine", "report", "study", "cli"];

/// Each module at the top of a crate, and the modules that it may name in addition to itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("settings", &["units"]),
    ("fleet", &["units", "settings"]),
    ("observe", &["fleet", "units", "settings"]),
    ("analyze", &["observe", "fleet", "units", "settings"]),
    ("decide", &["analyze", "observe", "fleet", "units", "settings"]),
    ("pipeline", &["decide", "analyze", "observe", "fleet", "units", "settings"]),
    ("clock", &[]),
    ("telemetry", &[]),
    (
        "config",
        &[
            "pipeline", "decide", "analyze", "observe", "collect", "fleet", "units", "trace",
            "settings",
        ],
    ),
    ("collect", &["observe", "fleet", "units", "clock", "telemetry", "settings"]),
    ("leader", &["clock"]),
    ("server", &["clock", "telemetry"]),
    (
        "publish",
        &[
            "pipeline",
            "decide",
            "observe",
            "fleet",
            "units",
            "clock",
            "telemetry",
            "server",
            "settings",
        ],
    ),
    ("trace", &["publish", "pipeline", "decide", "observe", "fleet", "units", "settings"]),
    (
        "simulate",
        &["pipeline", "decide", "analyze", "observe", "fleet", "units", "clock", "settings"],
    ),
    ("daemon", &[]),
    ("fixtures", &["publish", "decide", "fleet", "units"]),
    ("demo", &["simulate", "study"]),
    ("engine", &["simulate", "study"]),
    ("output", &[]),
    ("study", &["simulate", "output"]),
    ("backtest", &["simulate", "output"]),
    ("advise", &["backtest", "simulate", "output"]),
    ("report", &["backtest", "simulate", "study", "output"]),
    ("cli", &["advise", "backtest", "demo", "engine", "report", "study", "output"]),
];

/// Of another module, what a module may name only in part: the module, the other, and the paths.
const ONLY: &[(&str, &str, &[&str])] = &[
    (
        "config",
        "collect",
        &[
            "collect::cluster::discovery::Annotation;",
            "collect::cluster::is_server;",
            "collect::demand",
            "collect::prometheus",
            "collect::scrape::",
            "collect::targets::",
        ],
    ),
    ("config", "trace", &["trace::TraceLimits"]),
    ("collect", "telemetry", &["telemetry::registrar::"]),
    ("publish", "telemetry", &["telemetry::registrar::"]),
    ("server", "telemetry", &["telemetry::registrar::"]),
    (
        "publish",
        "pipeline",
        &[
            "pipeline::Decisions;",
            "pipeline::counterfactual::",
            "pipeline::repeat::TickScene;",
            "pipeline::saved::",
        ],
    ),
    ("trace", "publish", &["publish::state"]),
];

/// The most lines of a file before its tests.
const LINES_MAX: usize = 600;

#[test]
fn modules_only_use_what_they_may() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let Some(module) = top_module(&file) else { continue };
        // Tests and their fixtures are not part of the program.
        if file.ends_with("tests.rs") || file.ends_with("fixtures.rs") {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{} belongs to no module in the table", file.display()));
            continue;
        };
        for path in crate_paths(&text) {
            let name = |c: char| c.is_alphanumeric() || c == '_';
            let used = path.split(|c| !name(c)).next().unwrap_or_default();
            let any = PROGRAMS.contains(&module.as_str()) && is_below_the_lab(used);
            let parts = ONLY.iter().find(|(name, other, _)| *name == module && *other == used);
            let whole = used == module || any || allowed.contains(&used);
            let part = parts
                .is_none_or(|(_, _, starts)| starts.iter().any(|start| path.starts_with(start)));
            if !whole || !part {
                wrong.push(format!("{} must not use crate::{path}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_module_of_the_table_exists() {
    let modules: BTreeSet<String> = sources().keys().filter_map(|file| top_module(file)).collect();
    let table: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(modules, table);
    let members = CRATES.iter().flat_map(|(_, modules)| *modules).copied().chain(["cli"]);
    assert_eq!(members.map(str::to_owned).collect::<BTreeSet<_>>(), table);
}

#[test]
fn every_source_file_is_part_of_the_program() {
    let sources = sources();
    let mut reached: BTreeSet<PathBuf> = [root("src/lib.rs"), root("src/main.rs")].into();
    reached.extend(CRATES.iter().map(|(name, _)| root("src").join(name).join("lib.rs")));
    let mut open: Vec<PathBuf> = reached.iter().cloned().collect();
    while let Some(file) = open.pop() {
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "main.rs") => file.parent().unwrap().to_owned(),
            _ => file.with_extension(""),
        };
        for line in sources[&file].lines() {
            let Some(name) = declared_module(line) else { continue };
            let child = folder.join(format!("{name}.rs"));
            if sources.contains_key(&child) && reached.insert(child.clone()) {
                open.push(child);
            }
        }
    }
    let lost: Vec<_> = sources.keys().filter(|file| !reached.contains(*file)).collect();
    assert!(lost.is_empty(), "no `mod` leads to {lost:?}");
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    for (name, _) in CRATES {
        let files: ImportsByModule = sources()
            .iter()
            .filter(|(file, _)| !file.ends_with("tests.rs"))
            .filter_map(|(file, text)| {
                let path = file.strip_prefix(root("src").join(name)).ok()?.with_extension("");
                let module: Vec<String> =
                    path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                Some((module.clone(), imports(&module, text)))
            })
            .collect();

        let cycles = on_cycles(&files);
        assert!(cycles.is_empty(), "in {name}:\n{}", cycles.join("\n"));
    }
}

#[test]
fn no_file_is_longer_than_one_can_read() {
    let long: Vec<String> = sources()
        .iter()
        .map(|(file, text)| (file, before_tests(text).lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(file, lines)| format!("{} has {lines} lines before its tests", file.display()))
        .collect();
    assert!(long.is_empty(), "more than {LINES_MAX}:\n{}", long.join("\n"));
}

#[test]
fn the_core_does_no_io_and_knows_no_wire_format() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        if !top_module(&file).is_some_and(|module| CORE.contains(&module.as_str())) {
            continue;
        }
        for (at, line) in before_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in ["async ", "tokio", "tracing", "serde_json", "std::fs", "std::net"] {
                if code.contains(word) {
                    wrong.push(format!("{}:{} has {word:?}", file.display(), at + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_dialects_know_the_names_of_engine_metrics() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let path = below_crate(&file).to_string_lossy().into_owned();
        // Tests are not part of the program, and images of engines have names, too.
        let known = ["observe/engine", "simulate"].iter().any(|it| path.starts_with(it));
        if known || path.ends_with("/tests.rs") {
            continue;
        }
        for (at, line) in before_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default().replace("::", "");
            if Engine::ALL.iter().any(|engine| code.contains(engine.prefix())) {
                wrong.push(format!("{path}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_document_about_the_architecture_stays_short() {
    let text = include_str!("../../ARCHITECTURE.md");
    assert!(text.lines().count() <= 200, "merge rows, or move details into a module's doc");
}

#[test]
fn the_tests_of_the_architecture_see_what_they_should() {
    let text = "use crate::a::B;\nlet x = plimsoll_core::c::d();\n//! [`crate::doc::Link`]\nuse crate::{e};\n";
    let paths: Vec<String> = crate_paths(text).collect();
    assert_eq!(paths, ["a::B;", "c::d();", "{e};"]);
    assert_eq!(declared_module("pub(crate) mod names;"), Some("names"));
    assert_eq!(declared_module("mod tests {"), None);
    assert_eq!(before_tests("a\n#[cfg(test)]\nb\n"), "a\n");
}

#[test]
fn the_test_of_cycles_sees_every_form_of_import() {
    let module = ["a".to_owned(), "b".to_owned()];
    let text = "use crate::a::{self, c::{D, e}, f};\nuse super::g::H;\nlet x = self::i::j();\n\
        use std::fmt;\n//! [`crate::doc::Link`]\n#[cfg(test)]\nuse crate::test;\n";
    let found: Vec<String> = imports(&module, text).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a", "a::b::i::j", "a::c::D", "a::c::e", "a::f", "a::g::H"]);

    let file = |module: &str, import: &str| {
        (vec![module.to_owned()], BTreeSet::from([vec![import.to_owned(), "T".to_owned()]]))
    };
    let chain = [file("x", "y"), file("y", "z")];
    assert_eq!(on_cycles(&chain.clone().into()), Vec::<String>::new());
    let [first, second] = chain;
    let circle = [first, second, file("z", "x"), file("w", "x")];
    assert_eq!(on_cycles(&circle.into()), ["x imports y", "y imports z", "z imports x"]);
}

/// The paths that a module names in code, from the root of its crate.
fn imports(module: &[String], text: &str) -> BTreeSet<Vec<String>> {
    let code: String = before_tests(text)
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let statement = Regex::new(r"\buse ([^;]+);").unwrap();
    let inline = Regex::new(r"\b(?:crate|super|self)(?:::\w+)+").unwrap();

    let uses = statement.captures_iter(&code).flat_map(|it| leaves(&it[1]));
    let rest = statement.replace_all(&code, "");
    let named = inline.find_iter(&rest).map(|it| it.as_str().to_owned());
    uses.chain(named).filter_map(|path| from_root(module, &path)).collect()
}

/// The single paths of a `use` tree.
fn leaves(tree: &str) -> Vec<String> {
    let group = Regex::new(r"([\w:]+::)\{([^{}]*)\}").unwrap();
    let mut flat = tree.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(found) = group.captures(&flat) {
        let parts = found[2].split(',').map(str::trim).filter(|part| !part.is_empty());
        let whole: Vec<String> = parts.map(|part| format!("{}{part}", &found[1])).collect();
        flat = flat.replace(&found[0], &whole.join(", "));
    }

    let paths = flat.split(',').map(|path| path.split(" as ").next().unwrap_or_default());
    paths.map(|path| path.trim().trim_end_matches("::self").to_owned()).collect()
}

/// The path from the root of the crate; `None` for a path into another crate.
fn from_root(module: &[String], path: &str) -> Option<Vec<String>> {
    let supers = path.split("::").filter(|part| *part == "super").count();
    let base = match path.split("::").next()? {
        "crate" => &[],
        "self" => module,
        "super" => &module[..module.len().checked_sub(supers)?],
        _ => return None,
    };

    let rest = path.split("::").filter(|part| !["crate", "self", "super"].contains(part));
    Some(base.iter().cloned().chain(rest.map(str::to_owned)).collect())
}

/// The files of a crate by their modules, and the paths that each imports.
type ImportsByModule = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// The module of the file that a path leads to: the longest one.
fn owner<'a>(files: &ImportsByModule, path: &'a [String]) -> Option<&'a [String]> {
    (0..=path.len()).rev().map(|end| &path[..end]).find(|it| files.contains_key(*it))
}

/// The imports that are part of a cycle.
fn on_cycles(files: &ImportsByModule) -> Vec<String> {
    let edges: BTreeMap<&[String], BTreeSet<&[String]>> = files
        .iter()
        .map(|(module, imports)| {
            let to =
                imports.iter().filter_map(|path| owner(files, path)).filter(|to| *to != module);
            (module.as_slice(), to.collect())
        })
        .collect();

    let mut cycles = Vec::new();
    for (from, to) in edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
        let mut reached = BTreeSet::new();
        let mut open = vec![*to];
        while let Some(next) = open.pop() {
            open.extend(edges[next].iter().filter(|it| reached.insert(**it)));
        }

        if reached.contains(from) {
            cycles.push(format!("{} imports {}", from.join("::"), to.join("::")));
        }
    }
    cycles
}

/// The text after `crate::`, or after the name of one of our crates, in code, up to a space;
/// documentation may link anywhere.
fn crate_paths(text: &str) -> impl Iterator<Item = String> {
    let code = before_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"));
    let starts = ["crate::", "plimsoll_core::", "plimsoll_daemon::", "plimsoll_lab::"];
    code.flat_map(|line| {
        starts.into_iter().flat_map(|start| line.split(start).skip(1)).map(|rest| {
            let end = rest.find(|c: char| c.is_whitespace()).unwrap_or(rest.len());
            rest[..end].to_owned()
        })
    })
    .collect::<Vec<_>>()
    .into_iter()
}

fn is_below_the_lab(module: &str) -> bool {
    CRATES.iter().any(|(name, modules)| *name != "lab" && modules.contains(&module))
}

fn before_tests(text: &str) -> &str {
    text.find("#[cfg(test)]").map_or(text, |at| &text[..at])
}

fn declared_module(line: &str) -> Option<&str> {
    let rest = line.trim().strip_suffix(';')?;
    let visible = ["pub(crate) ", "pub(super) ", "pub "];
    let bare = visible.iter().find_map(|prefix| rest.strip_prefix(prefix)).unwrap_or(rest);
    bare.strip_prefix("mod ")
}

/// The module at the top of its crate that a file belongs to; the roots have none.
fn top_module(file: &Path) -> Option<String> {
    let path = below_crate(file);
    let first = Path::new(path.components().next().unwrap().as_os_str()).with_extension("");
    let name = first.to_string_lossy().into_owned();
    (name != "lib" && name != "main").then_some(name)
}

/// The path of a file from the root of its crate.
fn below_crate(file: &Path) -> &Path {
    let path = file.strip_prefix(root("src")).unwrap();
    let mut names = CRATES.iter().map(|(name, _)| *name);
    names.find_map(|name| path.strip_prefix(name).ok()).unwrap_or(path)
}

fn sources() -> BTreeMap<PathBuf, String> {
    let mut sources = BTreeMap::new();
    let mut folders = vec![root("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                sources.insert(path, text);
            }
        }
    }
    sources
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
