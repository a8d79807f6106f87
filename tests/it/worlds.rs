//! Random worlds, from the command line.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A world that is small.
const WORLD: [&str; 4] = ["--worlds", "1", "--seed", "325"];

const POLICIES: [&str; 2] = ["--policy", "plimsoll,static:best"];

fn plimsoll(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a gate may say of a measurement.
const VERDICTS: [&str; 2] = ["holds", "missed"];

fn is_measured(word: &str) -> bool {
    word.chars().any(|c| c.is_ascii_digit()) || VERDICTS.contains(&word)
}

/// A text without its numbers and verdicts, and without the lengths that they have.
fn structure(text: &str) -> String {
    let mut structure = String::new();
    for line in text.lines() {
        let words = line.split_whitespace().map(|word| if is_measured(word) { "#" } else { word });
        structure.push_str(words.collect::<Vec<_>>().join(" ").trim_end());
        structure.push('\n');
    }
    structure
}

#[test]
fn worlds_are_played_and_reported_alike_on_any_number_of_cores_and_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let whole = [&["scoreboard"], &WORLD[..], &POLICIES, &["--out", "one"]].concat();
    let output = plimsoll(folder.path(), &whole);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "no world has a warning: {}", text(&output.stderr));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let (document, table) = (read("one.md"), read("one.csv"));
    insta::assert_snapshot!("terminal", structure(&text(&output.stdout)));
    let (head, _) = document.split_once("\n## By aspect\n").unwrap();
    insta::assert_snapshot!("document", structure(head));
    for part in ["\n## The ", "Worst minute", "\n$ plimsoll simulate <(plimsoll scoreboard"] {
        assert!(document.contains(part), "{part}\n{document}");
    }

    let again = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(whole)
        .current_dir(folder.path())
        .env_clear()
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert_eq!(again.stdout, output.stdout);
    assert_eq!((read("one.md"), read("one.csv")), (document, table.clone()));

    let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = rows.next().unwrap();
    let row = rows.next().unwrap();
    let cell = |name: &str| row[head.iter().position(|it| *it == name).unwrap()];
    let world =
        plimsoll(folder.path(), &["scoreboard", "--world", &format!("{}:{}", row[0], row[1])]);
    assert_eq!(world.status.code(), Some(0), "{}", text(&world.stderr));
    fs::write(folder.path().join("world.yaml"), &world.stdout).unwrap();
    let played = plimsoll(folder.path(), &["simulate", "world.yaml", "--json", "-"]);
    assert_eq!(played.status.code(), Some(0), "{}", text(&played.stderr));
    let results: Value = serde_json::from_slice(&played.stdout).unwrap();
    let run = &results["runs"][0];
    assert_eq!(run["within_slo"].to_string(), cell("plimsoll within_slo"));
    assert_eq!(run["actions"].to_string(), cell("plimsoll changes"));
}

#[test]
fn a_world_that_no_fixed_number_serves_is_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let worlds = ["--worlds", "1", "--seed", "7", "--out", "none"];
    let output = plimsoll(folder.path(), &[&["scoreboard"], &worlds[..], &POLICIES].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("0 played"), "{}", text(&output.stdout));
    let document = fs::read_to_string(folder.path().join("none.md")).unwrap();
    let (_, left_out) = document.split_once("\n## Left out\n").unwrap();
    assert!(left_out.contains("| 7:1 | World 1 of seed 7: "), "{document}");
    assert!(left_out.contains("the best that was tried serves"), "{document}");
    assert_eq!(fs::read_to_string(folder.path().join("none.csv")).unwrap().lines().count(), 1);
}

#[test]
fn several_seeds_are_drawn_from_alike_and_each_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    // The world of seed 7 is left out.
    let worlds = ["--worlds", "1", "--seed", "325,7,325", "--out", "both"];
    let output = plimsoll(folder.path(), &[&["scoreboard"], &worlds[..], &POLICIES].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.starts_with("2 worlds of seeds 325 and 7: 1 played"), "{shown}");
    let (_, by_seed) = shown.split_once("\nBy seed\n").unwrap();
    for row in ["325   smooth       1         0 ", "7     smooth       0         1 "] {
        assert!(by_seed.contains(row), "{row}\n{by_seed}");
    }

    let alone = ["--worlds", "1", "--seed", "325", "--out", "one"];
    let output = plimsoll(folder.path(), &[&["scoreboard"], &alone[..], &POLICIES].concat());
    assert!(!text(&output.stdout).contains("By seed"), "{}", text(&output.stdout));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("one.csv"), read("both.csv"), "its worlds are the same");
}

#[test]
fn worlds_say_what_each_term_is_worth() {
    let folder = tempfile::tempdir().unwrap();
    let small = ["--worlds", "1", "--seed", "3"];
    let arguments = ["--policy", "plimsoll", "--ablation"];
    let output = plimsoll(folder.path(), &[&["scoreboard"], &small[..], &arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    let document = fs::read_to_string(folder.path().join("worlds.md")).unwrap();
    let (_, table) = document.split_once("## Worth of each term").unwrap();
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with("| ")).skip(1).take(20).collect();
    assert!(rows[0].starts_with("| as it is |"), "{table}");
    for term in ["growth", "ramp", "bursts", "backlog", "hold"] {
        let name = format!("| without `{term}` |");
        assert!(rows.iter().any(|row| row.starts_with(&name)), "{name} in\n{table}");
    }
    let figures = |row: &str| row.split_once(" | ").unwrap().1.to_owned();
    assert!(rows.iter().any(|row| figures(row) != figures(rows[0])), "{table}");
}

#[test]
fn a_world_is_named_by_its_seed_and_its_number_and_stands_beside_no_scenario() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, said) in [
        (&["scoreboard", "--world", "7"][..], "--world 7 must be SEED:NUMBER, such as 1:37"),
        (&["scoreboard", "--worlds", "0"][..], "0 is not in 1..=100000"),
        (&["scoreboard", "--worlds", "2", "a.yaml"][..], "cannot be used with"),
        (&["scoreboard", "--world", "1:2", "--ablation"][..], "cannot be used with"),
        (&["scoreboard", "--worlds", "2", "--world", "1:2"][..], "cannot be used with"),
        (&["scoreboard"][..], "required arguments were not provided"),
    ] {
        let output = plimsoll(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
    }
}
