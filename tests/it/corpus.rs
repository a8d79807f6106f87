//! What the fuzzer has found, in every run of the tests: `fuzz/corpus` has a folder for each check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the same files are a library of the fuzzer")]
mod fuzz;

/// All that is committed. A corpus is for coverage; what one file can show, a second need not.
const BYTES_MAX: u64 = 520_000;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name)
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Puts every file of the corpus through its check, and says which it was that failed.
fn replay(name: &str) {
    let (_, check) = fuzz::ALL.iter().find(|(known, _)| *known == name).unwrap();
    let files = files(&folder(name));
    assert!(!files.is_empty(), "fuzz/corpus/{name} is empty, so nothing was checked");
    for file in files {
        let input = fs::read(&file).unwrap();
        let outcome = std::panic::catch_unwind(|| check(&input));
        assert!(outcome.is_ok(), "{} breaks a rule, see above", file.display());
    }
}

#[test]
fn every_folder_of_the_corpus_has_a_check_and_every_check_a_folder() {
    let known: Vec<PathBuf> = fuzz::ALL.iter().map(|(name, _)| folder(name)).collect();
    assert_eq!(files(&folder("")), known);
}

#[test]
fn the_corpus_is_small_enough_to_be_committed() {
    let all = fuzz::ALL.iter().flat_map(|(name, _)| files(&folder(name)));
    let bytes: u64 = all.map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(bytes <= BYTES_MAX, "{bytes} bytes; fuzz/run minimises");
}

/// The routes and status codes of all answers to the inputs of a folder.
fn reached(name: &str, answers: fn(&[u8]) -> Vec<(String, u16)>) -> BTreeSet<(String, u16)> {
    files(&folder(name)).iter().flat_map(|file| answers(&fs::read(file).unwrap())).collect()
}

/// Every status code of every route.
fn all(routes: &[(&[&str], &[u16])]) -> BTreeSet<(String, u16)> {
    let each = routes.iter().flat_map(|(names, codes)| {
        names.iter().flat_map(|name| codes.iter().map(|code| ((*name).to_owned(), *code)))
    });
    each.collect()
}

#[test]
fn the_corpus_has_a_request_for_every_answer_of_every_route_of_the_metrics_api() {
    let pages = ["Version", "Groups", "Group", "Resources", "OpenApiV2", "OpenApiV3Index"];
    let metrics = [
        "plimsoll_desired_replicas",
        "wva_desired_replicas",
        "plimsoll_admissible_requests_per_second",
        "externalmetrics",
    ];
    let expected = all(&[
        (&["Live"], &[200, 404, 405]),
        (&["Ready"], &[200, 404, 405, 500]),
        (&pages, &[200, 304, 401, 405, 406, 503]),
        (&["OpenApiV3"], &[200, 304, 400, 401, 405, 406, 503]),
        (&metrics, &[200, 400, 401, 403, 404, 405, 406, 503]),
        (&["another metric"], &[401, 404, 405, 503]),
        (&["malformed"], &[400, 401, 503]),
        (&["unknown"], &[401, 404, 503]),
    ]);
    assert_eq!(reached("external_metrics", fuzz::external_metrics::answers), expected);
}

#[test]
fn the_corpus_has_a_request_for_every_answer_of_every_route_of_the_plain_port() {
    let expected = all(&[
        (&["/livez", "/healthz", "/readyz"], &[200, 405, 500]),
        (&["/metrics"], &[200, 403, 405, 500]),
        (&["/", "/help"], &[200, 403, 405]),
        (&["/runbooks"], &[200, 403, 404, 405]),
        (&["/api"], &[200, 403, 405, 503]),
        (&["/-/reload"], &[200, 400, 403, 405]),
        (&["/-/log"], &[200, 400, 403, 405, 413]),
        (&["/-/override"], &[200, 403, 405, 413, 503]),
        (&["unknown"], &[403, 404]),
    ]);
    assert_eq!(reached("admin", fuzz::admin::answers), expected);
}

#[test]
fn every_seed_of_a_request_is_read_as_one() {
    for name in ["admin", "external_metrics"] {
        for file in files(&folder(name)) {
            let title = file.file_name().unwrap().to_string_lossy().into_owned();
            let is_found = title.len() == 40 && title.bytes().all(|it| it.is_ascii_hexdigit());
            let read = fuzz::request::read(&fs::read(&file).unwrap());
            assert!(is_found || read.is_some(), "{} is skipped", file.display());
        }
    }
}

macro_rules! replays {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            replay($name);
        }
    )*

        #[test]
        fn every_check_is_replayed() {
            assert_eq!([$($name),*], fuzz::ALL.map(|(name, _)| name));
        }
    };
}

replays! {
    requests_to_the_plain_port_are_answered_by_their_method: "admin",
    what_is_written_of_cards_is_read_as_the_same_cards: "cards",
    what_is_printed_of_a_configuration_is_the_same_configuration: "configuration",
    shortcuts_of_the_page_reader_never_show: "exposition",
    requests_for_metrics_get_what_is_published_or_an_error: "external_metrics",
    calls_of_scalers_get_the_number_of_their_own_namespace_or_an_error: "external_scaler",
    answers_of_prometheus_say_what_their_json_says: "prometheus_answer",
    quantities_are_written_as_the_number_that_they_are: "quantity",
    selectors_mean_what_their_canonical_text_means: "selector",
    what_is_read_of_a_state_file_can_be_written: "state_file",
    every_target_that_is_listed_can_be_scraped: "target_file",
}
