//! Capacity cards through the pipeline, the configuration, the command line and a running daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::foresight::card::{Card, EngineKind, EngineProfile};
use plimsoll::analyze::foresight::pace::IterationCost;
use plimsoll::config::{
    Config, ConfigSources, Files, LoadError, Surroundings, cards, cards_text, load_noting, parse,
    read_cards,
};
use plimsoll::decide::Stage;
use plimsoll::fleet::{Accelerator, VariantSpec};
use plimsoll::pipeline::Policy;
use plimsoll::units::{Requests, Tokens};
use proptest::prelude::*;
use serde_json::json;

use crate::daemon::{self, Running, text};
use crate::foresight::quick;
use crate::pipeline::{desired, of, spec};
use crate::sizing::sized;
use crate::working::{Engine, Work};

const LOADED: &str = "plimsoll_config_last_reload_success_timestamp_seconds";
const SUCCESSFUL: &str = "plimsoll_config_last_reload_successful";

/// What an iteration of the [engine](Engine) costs, about.
const TRUTH: IterationCost = IterationCost { alpha: 0.006, beta: 4e-5, delta: 7.3e-5 };

pub(crate) fn on_l4(mut spec: VariantSpec) -> VariantSpec {
    spec.accelerator = Accelerator::new("L4");
    spec
}

/// The truth, off by a factor.
fn card(off: f64) -> Arc<Card> {
    let IterationCost { alpha, beta, delta } = TRUTH;
    let tokens = |count| Tokens::new(count).unwrap();
    Arc::new(Card {
        kind: EngineKind::of(&on_l4(spec("a", 1.0, (1, 9))), None).unwrap(),
        learned: EngineProfile {
            iteration: IterationCost { alpha: alpha * off, beta: beta * off, delta: delta * off },
            lessons: 40,
            content: Some([210.5, 17.25]),
            prompt: tokens(500.0),
            output: tokens(100.0),
            held: Tokens::new(551.0),
            full_at: None,
            most_running: Requests::new(40.0).unwrap(),
            busiest: tokens(300.0),
        },
        from: None,
        at: None,
    })
}

pub(crate) fn with_card(mut policy: Policy, off: f64) -> Policy {
    let sizing = policy.sizing.as_mut().unwrap();
    sizing.cards = Arc::from([card(off)]);
    policy
}

#[test]
fn a_first_minute_with_a_card_asks_for_what_carries_the_load_and_says_whose_card_it_is() {
    let policy = || sized(&[Analyzer::Foresight]);
    let specs = || vec![on_l4(spec("a", 1.0, (1, 30)))];
    // Within the first lesson, at a load that one replica does not carry.
    let mut without = Work::with(policy(), specs(), Engine::default());
    let mut with = Work::with(with_card(policy(), 1.0), specs(), Engine::default());
    let _ = without.run(1, 60.0, 12);
    let found = with.run(1, 60.0, 12);
    let decision = of(&found, "a");
    let why = &decision.steps[0].reason;
    assert!(decision.desired().count() > 1, "{why}");
    let said = why.to_string();
    let of_card = "; capacity per replica taken from the card of m on L4 for requests of 500 + 100 tokens until measured";
    assert!(said.ends_with(of_card), "{said}");
    // Its own replicas have shown it, and nobody speaks of the card any more.
    let later = with.run(3, 60.0, 60);
    let said = of(&later, "a").steps[0].reason.to_string();
    assert!(said.contains("capacity per replica") && !said.contains("card"), "{said}");
}

#[test]
fn a_card_alone_without_a_fresh_page_moves_nothing() {
    let mut work = Work::with(
        with_card(quick(), 0.1),
        vec![on_l4(spec("a", 1.0, (1, 30)))],
        Engine::default(),
    );
    work.failing.insert("a".to_owned(), 8);
    for _ in 0..400 {
        let found = work.run(8, 10.0, 1);
        assert!(found.decisions.is_empty(), "{found:?}");
    }
}

#[test]
fn a_card_that_promises_too_much_takes_nothing_away_before_replicas_have_shown_it() {
    // A tenth of the truth an iteration: ten times as much seems to be carried. The history that the
    // policy asks for is thirty seconds.
    let specs = || vec![on_l4(spec("a", 1.0, (1, 30)))];
    let first_drop = |policy: Policy, rate: f64| {
        let mut work = Work::with(policy, specs(), Engine::default());
        (1..240).find(|_| {
            let found = work.run(8, rate, 1);
            let number = desired(&found, "a");
            let decision = of(&found, "a");
            let by_card = decision.steps[0].reason.to_string().contains("from the card");
            assert!(!(by_card && number < 8), "{decision:?}");
            number < 8
        })
    };
    for rate in [1.0, 40.0, 160.0] {
        let (with, without) =
            (first_drop(with_card(quick(), 0.1), rate), first_drop(quick(), rate));
        assert!(with >= without || with.is_none(), "{rate}: {with:?} and not before {without:?}");
    }
}

#[test]
fn a_card_on_replicas_that_never_get_a_request_may_take_away_after_an_hour() {
    let mut work = Work::with(
        with_card(quick(), 1.0),
        vec![on_l4(spec("a", 1.0, (1, 30)))],
        Engine::default(),
    );
    for _ in 0..59 {
        assert_eq!(desired(&work.run(20, 0.0, 60), "a"), 20, "less than an hour");
    }
    let mut launched = work.clone();
    let found = work.run(20, 0.0, 120);
    assert!(desired(&found, "a") <= 2, "{:?}", of(&found, "a").steps);

    // The card counts as before for what is asked.
    let grown = launched.run(1, 60.0, 12);
    assert!(desired(&grown, "a") > 1, "{:?}", of(&grown, "a").steps);
}

#[test]
fn a_dearer_fleet_is_not_given_up_for_one_that_only_a_card_knows() {
    // The card is of `b`, which is cheap and has no replicas; `a` has shown what it carries.
    let mut b = on_l4(spec("b", 0.1, (0, 30)));
    b.accelerator = Accelerator::new("L4");
    let mut policy = with_card(quick(), 0.05);
    policy.sizing.as_mut().unwrap().foresight.history_min = plimsoll::units::Seconds::literal(30);
    let mut work = Work::with(policy, vec![spec("a", 5.0, (1, 30)), b], Engine::default());
    let mut found = work.run_all(&[("a", 6, 20.0), ("b", 0, 0.0)], 120);
    assert!(desired(&found, "b") > 0, "it is cheaper: {:?}", of(&found, "b").steps);
    // While the replicas of `b` say nothing that teaches, those of `a` stay.
    for _ in 0..25 {
        found = work.run_all(&[("a", 6, 20.0), ("b", 1, 0.01)], 1);
        assert!(of(&found, "b").steps[0].reason.to_string().contains("from the card"));
        assert!(desired(&found, "a") >= 6, "{:?}", of(&found, "a").steps);
    }
    assert!(of(&found, "a").steps.iter().all(|step| step.stage != Stage::Check));
}

// === files ===

fn with_file() -> Config {
    let text = "capacity: {card_files: [cards.yaml]}\n\
                variants: [{name: a, model: m, accelerator: L4, targets: {static: ['127.0.0.1:1']}}]";
    loaded(text, &folder_with("cards.yaml", &cards_text([&card(1.0)]))).unwrap()
}

fn folder_with(name: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), text).unwrap();
    folder
}

fn loaded(text: &str, folder: &tempfile::TempDir) -> Result<Config, LoadError> {
    let surroundings = Surroundings {
        origin: "test".to_owned(),
        base: folder.path().to_owned(),
        environment: std::collections::BTreeMap::new(),
        files: Files::MustExist,
    };
    parse(text, &surroundings).map(|loaded| loaded.config)
}

#[test]
fn cards_of_a_file_are_part_of_the_policy_and_of_what_is_printed() {
    let config = with_file();
    let known = &config.policy.sizing.as_ref().unwrap().cards;
    assert_eq!(known.as_ref(), [card(1.0)]);
    assert!(
        config.keys.capacity.as_ref().unwrap().card_files.as_ref().unwrap()[0]
            .ends_with("cards.yaml")
    );
    // What is printed has the cards themselves, so that a trace is decided again without the file.
    let surroundings = Surroundings {
        origin: "printed".to_owned(),
        base: PathBuf::from("/"),
        environment: std::collections::BTreeMap::new(),
        files: Files::NotChecked,
    };
    assert_eq!(parse(&config.print(), &surroundings).unwrap().config, config);
    assert!(config.print().contains("model: m"), "{}", config.print());
}

#[test]
fn everything_that_is_wrong_with_a_file_of_cards_is_said_with_its_line() {
    let text = "\
version: 1
cards:
- model: m
  accelerator: L4
  iteration: {alpha: -1, beta: 4.0e-5, delta: 7.0e-5}
  requests:
    prompt: 500
    output: .nan
  lesons: {count: 1}
- model: m
  engine: {name: vlm}
  learned_at: yesterday
  learned_from: nobody
";
    let folder = folder_with("cards.yaml", text);
    let config = "capacity: {card_files: [cards.yaml, none.yaml]}\n\
                  variants: [{name: a, model: m, targets: {static: ['127.0.0.1:1']}}]";
    let error = loaded(config, &folder).unwrap_err().to_string();
    let file = folder.path().join("cards.yaml").display().to_string();
    for says in [
        ":5 cards[0].iteration.alpha must be from 0.00001 to 10; found -1",
        ":8 cards[0].requests.output must be a number; found \".nan\"",
        ":9 cards[0].lesons is not a known key; did you mean `lessons`?",
        ":10 cards[1].accelerator is required",
        ":10 cards[1].iteration.alpha is required",
        ":11 cards[1].engine.name must be ",
        ":12 cards[1].learned_at must be an instant",
        ":13 cards[1].learned_from must be NAMESPACE/VARIANT",
    ] {
        let says = format!("capacity.card_files[0] {file}{says}");
        assert!(error.contains(&says), "{says} in\n{error}");
    }
    assert!(error.contains("capacity.card_files[1] must be a readable file"), "{error}");
}

#[test]
fn another_version_of_the_file_is_refused_and_nothing_is_guessed_of_it() {
    let error = read_cards("cards.yaml", "version: 2\nkinds: []\n").unwrap_err().to_string();
    let says = "cards.yaml:1 version must be 1, the supported version of capacity cards; \
                found 2";
    assert!(error.contains(says) && !error.contains("kinds"), "{error}");
    let error = read_cards("cards.yaml", "cards: []\n").unwrap_err().to_string();
    assert!(error.contains("version is required"), "{error}");
    let error = read_cards("cards.yaml", "- 1\n").unwrap_err().to_string();
    assert!(error.contains("must be a mapping"), "{error}");
    let error = read_cards("cards.yaml", "version: [1\n").unwrap_err().to_string();
    assert!(error.contains("is not YAML"), "{error}");
}

#[test]
fn of_two_cards_of_one_kind_the_first_counts_and_the_other_is_told() {
    let both = [card(1.0), card(2.0), card(1.0)];
    let (known, warnings) = read_cards("cards.yaml", &cards_text(&both)).unwrap();
    assert_eq!(known, [card(1.0)]);
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.to_string().contains("cards[1] has no effect"), "{warning}");
}

proptest! {
    /// Numbers come back with the same bits, and arguments with the same meaning.
    #[test]
    fn what_is_written_is_read_again_as_it_was(
        alpha in 1e-5..1.0_f64,
        beta in 1e-8..1e-3_f64,
        prompt in 1.0..1e5_f64,
        shown in proptest::option::of(1.0..500.0_f64),
        sequences in proptest::option::of(1_u32..2048),
        named in any::<bool>(),
    ) {
        let mut one = Card::clone(&card(1.0));
        one.learned.iteration = IterationCost { alpha, beta, delta: beta * 1.5 };
        one.learned.prompt = Tokens::new(prompt).unwrap();
        one.learned.full_at = shown.and_then(Requests::new);
        one.learned.held = shown.and_then(Tokens::new);
        if named {
            let vllm = plimsoll::observe::engine::Engine::Vllm;
            let mut engine = plimsoll::analyze::engine_args::EngineArguments::default_of(vllm);
            engine.sequences = sequences.and_then(|it| Requests::new(f64::from(it)));
            one.kind.engine = Some(Arc::new(engine));
            one.from = Some(crate::pipeline::key("a"));
            one.at = Some(crate::pipeline::at(7));
        }
        let one = Arc::new(one);
        for text in [cards_text([&one]), cards([&one]).to_string()] {
            let (read, warnings) = read_cards("cards", &text).unwrap();
            prop_assert_eq!((read, warnings), (vec![Arc::clone(&one)], Vec::new()), "{}", text);
        }
    }
}

#[test]
fn the_committed_schema_of_cards_is_the_one_that_the_binary_prints() {
    let printed = plimsoll(&["card", "schema"]);
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/card.schema.json");
    let held = fs::read_to_string(&committed).unwrap_or_default();
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text == held, "write it anew: cargo run -- card schema > docs/card.schema.json");
}

#[tokio::test]
async fn a_file_of_cards_that_breaks_leaves_the_last_good_ones_in_force_and_says_so() {
    let engine = daemon::Engine::start().await;
    let folder = folder_with("cards.yaml", &cards_text([&card(1.0)]));
    let more = "analysis: capacity\ncapacity: {card_files: [cards.yaml]}\n";
    let running = Running::start_in(folder, &text(&[("a", engine.address)], more)).await;
    let file = running.file().with_file_name("cards.yaml");
    fs::write(&file, "version: 2\n").unwrap();
    let (status, said) = running.ask("POST", "/-/reload").await;
    assert_eq!(status, reqwest::StatusCode::BAD_REQUEST);
    assert!(said.contains("cards.yaml:1 version must be 1"), "{said}");
    running.until_sample("plimsoll_config_last_reload_successful", 0.0).await;
    assert_eq!(running.ask("GET", "/livez").await.0, reqwest::StatusCode::OK);
    fs::write(&file, cards_text([&card(2.0)])).unwrap();
    assert_eq!(running.ask("POST", "/-/reload").await.0, reqwest::StatusCode::OK);
    // What was imported was not learned here, and is not shown as if it were.
    let (_, shown) = running.ask("GET", "/api/v1/cards").await;
    assert_eq!(shown, json!({"version": 1, "cards": []}).to_string());
    let url = format!("http://{}/", running.daemon.admin());
    let export = move || plimsoll(&["card", "export", "--url", &url]);
    let exported = tokio::task::spawn_blocking(export).await.unwrap();
    assert_eq!(exported.status.code(), Some(0), "{}", self::said(&exported));
    let why = self::said(&exported);
    assert_eq!(String::from_utf8(exported.stdout).unwrap(), "version: 1\ncards: []\n");
    assert!(why.contains("there is no capacity to export yet"), "{why}");
    let _folder = running.end().await;
}

/// A configuration that names cards, and a way to read it again.
fn with_cards(
    folder: &tempfile::TempDir,
) -> (PathBuf, PathBuf, impl Fn() -> (bool, ConfigSources)) {
    let (file, cards) = (folder.path().join("plimsoll.yaml"), folder.path().join("cards.yaml"));
    fs::write(&file, format!("capacity: {{card_files: [cards.yaml]}}\n{VARIANT}")).unwrap();
    let read = {
        let file = file.clone();
        move || {
            let mut sources = ConfigSources::default();
            (load_noting(&file, Files::MustExist, &mut sources).is_ok(), sources)
        }
    };
    (file, cards, read)
}

const VARIANT: &str = "variants: [{name: a, model: m, targets: {static: ['127.0.0.1:1']}}]";

#[test]
fn another_content_of_a_file_of_cards_is_a_reason_to_load_again() {
    let folder = folder_with("cards.yaml", &cards_text([&card(1.0)]));
    let (_, cards, read) = with_cards(&folder);
    let (loaded, mut sources) = read();
    assert!(loaded && !sources.have_changed());
    fs::write(&cards, cards_text([&card(2.0)])).unwrap();
    assert!(sources.have_changed());
    fs::remove_file(&cards).unwrap();
    assert!(!sources.have_changed(), "a file that is being replaced has not changed");
    let (loaded, mut sources) = read();
    assert!(!loaded && !sources.have_changed());
    fs::write(&cards, cards_text([&card(1.0)])).unwrap();
    assert!(sources.have_changed(), "a file that was missing is there");
}

#[test]
fn a_configuration_that_changes_is_read_again_although_a_file_that_it_named_is_gone() {
    let folder = folder_with("cards.yaml", &cards_text([&card(1.0)]));
    let (file, cards, read) = with_cards(&folder);
    let (loaded, mut sources) = read();
    assert!(loaded && !sources.have_changed());
    // As an update of one mounted ConfigMap does it: the file and its key are gone at once.
    fs::remove_file(&cards).unwrap();
    fs::write(&file, VARIANT).unwrap();
    assert!(sources.have_changed());
    let (loaded, mut sources) = read();
    assert!(loaded && !sources.have_changed());
}

#[test]
fn a_file_that_stays_gone_is_a_reason_to_load_again_and_one_that_comes_back_is_none() {
    let folder = folder_with("cards.yaml", &cards_text([&card(1.0)]));
    let (_, cards, read) = with_cards(&folder);
    let (_, mut sources) = read();
    for _ in 0..2 {
        fs::remove_file(&cards).unwrap();
        assert!((0..3).all(|_| !sources.have_changed()), "it is being replaced");
        fs::write(&cards, cards_text([&card(1.0)])).unwrap();
        assert!(!sources.have_changed(), "it is what it was");
    }
    fs::remove_file(&cards).unwrap();
    assert!((0..3).all(|_| !sources.have_changed()));
    assert!(sources.have_changed(), "nobody replaces it any more");
    // It is refused once, and not at every look.
    let (loaded, mut sources) = read();
    assert!(!loaded && (0..9).all(|_| !sources.have_changed()));
}

#[tokio::test]
async fn a_file_of_cards_of_a_shadow_that_changes_is_taken_up_without_being_asked() {
    let engine = daemon::Engine::start().await;
    let folder = folder_with("cards.yaml", &cards_text([&card(1.0)]));
    let more = "shadow: [{name: sized, analysis: capacity, capacity: {analyzers: [foresight], \
                card_files: [cards.yaml]}}]\n";
    let running = Running::start_in(folder, &text(&[("a", engine.address)], more)).await;
    let before = running.sample(LOADED).await.unwrap();
    fs::write(running.file().with_file_name("cards.yaml"), cards_text([&card(2.0)])).unwrap();
    assert!(running.until(LOADED, |at| at > before).await, "it is not loaded again");
    assert_eq!(running.sample(SUCCESSFUL).await, Some(1.0));
    let _folder = running.end().await;
}

#[tokio::test]
async fn mending_a_file_of_cards_that_was_refused_is_enough_to_load_again() {
    let engine = daemon::Engine::start().await;
    let folder = folder_with("cards.yaml", "version: 2\n");
    let plain = text(&[("a", engine.address)], "");
    let running = Running::start_in(folder, &plain).await;
    let before = running.sample(LOADED).await.unwrap();
    // The configuration in force names no file of cards; the one that is refused does.
    let more = "analysis: capacity\ncapacity: {card_files: [cards.yaml]}\n";
    fs::write(running.file(), text(&[("a", engine.address)], more)).unwrap();
    running.until_sample(SUCCESSFUL, 0.0).await;
    fs::write(running.file().with_file_name("cards.yaml"), cards_text([&card(1.0)])).unwrap();
    running.until_sample(SUCCESSFUL, 1.0).await;
    assert!(running.sample(LOADED).await > Some(before));
    let _folder = running.end().await;
}

// === the command line ===

fn plimsoll(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(args).env_remove("PLIMSOLL_CONFIG").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_prompt_token_costs_what_it_does_however_requests_come() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cards.yaml");
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/clusters.yaml");
    for variation in ["1.0", "2.5"] {
        let change = format!("models[0].workload.drawn.variation={variation}");
        let written = ["--cards", file.to_str().unwrap()];
        let ran = plimsoll(&[&["simulate", scenario, "--set", &change], &written[..]].concat());
        assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));

        let text = fs::read_to_string(&file).unwrap();
        let (learned, _) = read_cards("cards.yaml", &text).unwrap();
        let [card] = learned.as_slice() else { panic!("{text}") };
        let ratio = card.learned.iteration.beta / 20e-6;
        assert!((0.8..1.25).contains(&ratio), "{ratio} of the cost, variation {variation}");
    }
}

#[test]
fn the_example_of_cards_is_valid_and_says_what_it_is_for() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cards.yaml");
    let checked = plimsoll(&["card", "check", example.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.contains("is valid: 2 cards\n  the card of "), "{text}");
}

#[test]
fn what_cannot_be_exported_or_read_says_how_to_mend_it() {
    let nobody = plimsoll(&["card", "export", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(69), "{}", said(&nobody));
    assert!(said(&nobody).contains("set --url to its plain HTTP port"), "{}", said(&nobody));
    let folder = folder_with("cards.yaml", "version: 9\n");
    let file = folder.path().join("cards.yaml").display().to_string();
    let wrong = plimsoll(&["card", "check", &file]);
    assert_eq!(wrong.status.code(), Some(64));
    assert!(said(&wrong).contains("cards.yaml:1 version must be 1"), "{}", said(&wrong));
    let missing = plimsoll(&["card", "check", "/nowhere/cards.yaml"]);
    assert_eq!(missing.status.code(), Some(64));
    assert!(said(&missing).contains("/nowhere/cards.yaml"), "{}", said(&missing));
}

#[test]
fn a_state_file_gives_the_cards_of_what_it_remembers() {
    let folder = folder_with(
        "plimsoll.yaml",
        "variants: [{name: a, model: m, accelerator: L4, targets: {static: ['127.0.0.1:1']}}]",
    );
    let covariance = [[0.01, 0.0, 0.0], [0.0, 0.01, 0.0], [0.0, 0.0, 0.01]];
    let logarithms = [0.006_f64, 4e-5, 7e-5].map(f64::ln);
    let pace = json!({"logarithms": logarithms, "covariance": covariance, "lessons": 40});
    let seen = json!({"iteration": pace, "lengths": [50_000.0, 10_000.0, 100.0], "held": [5.5e6, 1e4],
        "ranks": 1, "kv": 16_000.0, "most_running": 31.0, "busiest": 300.0});
    let foresight = json!({"learned_at": 1_795_253_460_000_i64, "seen": seen});
    let state = json!({"version": 3, "written": "2026-11-21T09:31:01Z", "decisions": [{
        "namespace": "default", "variant": "a", "model": "m", "desired": 2,
        "at": "2026-11-21T09:31:00Z", "memory": {"learned": {"foresight": foresight}}}]});
    fs::write(folder.path().join("state.json"), state.to_string()).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (state, config) = (path("state.json"), path("plimsoll.yaml"));
    let export = ["card", "export", "--state", &state, "--config", &config];
    let exported = plimsoll(&export);
    assert_eq!(exported.status.code(), Some(0), "{}", said(&exported));
    let text = String::from_utf8(exported.stdout).unwrap();
    let (cards, _) = read_cards("exported", &text).unwrap();
    let [card] = cards.as_slice() else { panic!("{text}") };
    assert_eq!(
        card.to_string(),
        "the card of m on L4 that default/a taught at \
        2026-11-21T09:31:00Z for requests of 500 + 100 tokens"
    );
    assert_eq!(card.learned.lessons, 40);
}
