//! The trace, and `plimsoll backtest` as its users see it.

mod cluster;
mod history;
mod roles;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll::config::{self, Config, Files, Surroundings};
use plimsoll::daemon::{Daemon, DaemonOptions};
use plimsoll::fleet::{Fleet, ReplicaKey, VariantKey, VariantSpec};
use plimsoll::observe::{Inputs, ReplicaListing, Scale, Scrape, ScrapeFailure, ScrapeRoute};
use plimsoll::pipeline::{DesiredReplicas, Pipeline};
use plimsoll::publish::state::SavedDecision;
use plimsoll::simulate::Micros;
use plimsoll::simulate::reading::{self, Names};
use plimsoll::simulate::replica::settings::{Admission, Settings, StepTime};
use plimsoll::simulate::replica::{Replica, Request};
use plimsoll::trace::{
    self, FileEnd, FileStart, RecordedResult, ResultReason, TraceLimits, TraceReader, TraceRecord,
    TraceTick, TraceWriter,
};
use plimsoll::units::Replicas;
use serde_json::json;
use tempfile::TempDir;

use crate::daemon::{Engine, Running, stats, text};
use crate::pipeline::{BUSY, IDLE, World, at, key, n, replica, spec};
use crate::study::simulate;

const BOUNDS: TraceLimits = TraceLimits { file_size: 64 << 20, files: 16 };

/// The configuration of the fleets that are traced here.
fn configuration(more: &str) -> Config {
    let text = format!(
        "analysis: saturation\nobserve: {{window: 10s, stale_after: 5s}}\nscrape: {{interval: 1s}}\n\
         {more}variants:\n\
         - {{name: a, namespace: shop, model: m, cost: 2, replicas: {{max: 9}}, \
         targets: {{static: ['h:1']}}}}\n"
    );
    let surroundings = Surroundings {
        origin: "the test".to_owned(),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    config::parse(&text, &surroundings).unwrap().config
}

/// A world whose ticks go into a trace.
struct Traced {
    folder: TempDir,
    writer: TraceWriter,
    config: Config,
    world: World,
    ticks: Vec<TraceTick>,
}

impl Traced {
    fn new(limits: TraceLimits) -> Self {
        let (folder, config) = (TempDir::new().unwrap(), configuration(""));
        let mut writer = TraceWriter::new(folder.path().join("trace"), limits, at(0));
        writer.begin(FileStart::Process).unwrap();
        writer.write(TraceRecord::Config(config.print())).unwrap();
        let world = World::with(config.policy.clone(), vec![spec("a", 2.0, (1, 9))]);
        Self { folder, writer, config, world, ticks: Vec::new() }
    }

    fn tick(&mut self) {
        let (now, inputs) = (at(self.world.second), self.world.inputs());
        let said = RecordedResult::of(&self.world.tick());
        let tick = TraceTick { now, inputs, follows: None, said };
        self.ticks.push(tick.clone());
        self.writer.write(TraceRecord::Tick(Box::new(tick))).unwrap();
    }

    /// A day in the life of a fleet: it grows, loses data, and shrinks.
    fn live(&mut self) {
        for (seconds, count, load) in [(20, 2, IDLE), (20, 3, BUSY), (30, 4, (0.5, 0.3))] {
            self.world.set("a", count, load);
            for _ in 0..seconds {
                self.tick();
            }
        }
        let failing = &mut self.world.variants.get_mut("a").unwrap().failing;
        failing.extend(ScrapeFailure::ALL.into_iter().zip([0, 1, 2, 3]).map(|(why, at)| (at, why)));
        for _ in 0..20 {
            self.tick();
        }
        self.world.set("a", 4, IDLE);
        for _ in 0..400 {
            self.tick();
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("trace")
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Begins another file, as a daemon does.
    fn begin(&mut self, begins: FileStart) {
        let key = key("a");
        let last = self.ticks.last().unwrap();
        let said = &last.said[&key];
        let model = spec("a", 2.0, (1, 9)).model_key();
        let memory = self.world.pipeline.memory(&model, &key);
        let saved = SavedDecision {
            variant: key,
            model,
            desired: said.desired.unwrap(),
            at: said.inputs_at.unwrap(),
            written: last.now,
            memory,
            strange: Vec::new(),
        };
        self.writer.begin(begins).unwrap();
        self.writer.write(TraceRecord::Config(self.config.print())).unwrap();
        self.writer.write(TraceRecord::Restored(vec![saved])).unwrap();
    }
}

fn backtest(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("backtest")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

/// What a backtest printed and said, of one that ended with this code.
fn ends(code: i32, arguments: &[&str]) -> (String, String) {
    let Output { status, stdout, stderr } = backtest(arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert_eq!(status.code(), Some(code), "{stdout}\n{stderr}");
    (stdout, stderr)
}

/// The numbers of a line of the table.
fn row(said: &str, name: &str) -> Vec<f64> {
    let line = said.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{said}"));
    let cells = line[name.len()..].split_whitespace().map(|cell| cell.trim_end_matches('%'));
    cells.filter_map(|cell| cell.parse().ok()).collect()
}

fn ticks_of(path: &Path) -> (Vec<TraceTick>, Option<FileEnd>) {
    let mut reader = TraceReader::open(path).unwrap();
    let mut ticks = Vec::new();
    while let Some(record) = reader.record().unwrap() {
        if let TraceRecord::Tick(tick) = record {
            ticks.push(*tick);
        }
    }
    (ticks, reader.end())
}

#[test]
fn a_trace_comes_back_as_it_was_and_decides_the_same_again() {
    let mut traced = Traced::new(BOUNDS);
    traced.live();
    traced.writer.end().unwrap();
    let [file] = &traced.files()[..] else { panic!("one file is enough") };
    let (read, end) = ticks_of(file);
    assert_eq!(end, Some(FileEnd::Whole));
    assert!(read == traced.ticks, "every input and every decision, to the bit");
    let (said, _) = ends(0, &[traced.path().to_str().unwrap()]);
    assert!(said.contains("490 ticks from"), "{said}");
    assert!(said.contains("490 decisions, all match"), "{said}");
}

#[test]
fn numbers_that_another_replica_has_decided_are_followed_again() {
    let mut traced = Traced::new(BOUNDS);
    traced.world.set("a", 2, BUSY);
    for second in 0..40 {
        let (now, inputs) = (at(traced.world.second), traced.world.inputs());
        let desired = if second < 20 { n(2) } else { n(4) };
        let numbers: BTreeMap<_, _> =
            [(key("a"), DesiredReplicas { desired, inputs_at: now, packed: None })].into();
        let said = RecordedResult::of(&traced.world.pipeline.follow(now, &inputs, &numbers));
        traced.world.second += 1;
        let tick = TraceTick { now, inputs, follows: Some(numbers), said };
        traced.ticks.push(tick.clone());
        traced.writer.write(TraceRecord::Tick(Box::new(tick))).unwrap();
    }
    traced.writer.end().unwrap();
    assert!(ticks_of(&traced.files()[0]).0 == traced.ticks);
    let (said, _) = ends(0, &[traced.path().to_str().unwrap()]);
    assert!(said.contains("40 decisions, all match"), "{said}");
}

#[test]
fn a_decision_that_is_not_what_it_was_is_shown_and_ends_with_1() {
    let mut traced = Traced::new(BOUNDS);
    traced.world.set("a", 2, BUSY);
    for _ in 0..5 {
        traced.tick();
    }
    let (now, inputs) = (at(traced.world.second), traced.world.inputs());
    let mut said = RecordedResult::of(&traced.world.tick());
    let told = said.get_mut(&key("a")).unwrap();
    told.desired = Replicas::new(7);
    told.why = vec![ResultReason::Strange(json!({"stage": "dream", "before": 2, "after": 7}))];
    let tick = TraceTick { now, inputs, follows: None, said };
    traced.writer.write(TraceRecord::Tick(Box::new(tick))).unwrap();
    traced.writer.end().unwrap();
    let (said, error) = ends(1, &[traced.path().to_str().unwrap()]);
    assert!(said.contains("shop/a, tick 6: 7 then, 3 now\n"), "{said}");
    // Another release may give reasons that this one has no sentence for.
    assert!(said.contains("\n  - {\"stage\":\"dream\",\"before\":2,\"after\":7}\n"), "{said}");
    assert!(said.contains("\n  + analyze: 2 -> 3, low KV-cache headroom"), "{said}");
    assert!(error.contains("1 of 6 decisions differ"), "{error}");
}

#[test]
fn a_truncated_file_is_read_up_to_its_last_whole_record_wherever_it_ends() {
    let mut traced = Traced::new(BOUNDS);
    traced.live();
    traced.writer.end().unwrap();
    let file = traced.files().remove(0);
    let whole = fs::read(&file).unwrap();
    let mut counts = Vec::new();
    for share in [3, 5, 7, 9] {
        fs::write(&file, &whole[..whole.len() * share / 10]).unwrap();
        let (read, end) = ticks_of(&file);
        assert!(matches!(end, Some(FileEnd::Truncated(_))), "{end:?}");
        assert!(read == traced.ticks[..read.len()]);
        counts.push(read.len());
    }
    assert!(counts.is_sorted() && counts[0] < counts[3], "{counts:?}");
    let (said, _) = ends(0, &[file.to_str().unwrap()]);
    assert!(said.contains("it was read up to its last complete record"), "{said}");
    assert!(said.contains("decisions, all match"), "{said}");
}

#[test]
fn a_last_file_that_has_barely_begun_is_skipped_and_that_is_said() {
    let mut traced = Traced::new(BOUNDS);
    traced.world.set("a", 2, BUSY);
    for _ in 0..30 {
        traced.tick();
    }
    traced.begin(FileStart::Rotation);
    traced.tick();
    traced.writer.end().unwrap();
    let last = traced.files().pop().unwrap();
    let (name, whole) = (last.to_str().unwrap(), fs::read(&last).unwrap());
    for length in [0, 1, 5, 100] {
        fs::write(&last, &whole[..length]).unwrap();
        let (said, _) = ends(0, &[traced.path().to_str().unwrap()]);
        let skipped = format!("{name}: ends before its first complete record, so it was skipped\n");
        assert!(said.contains(&skipped), "{length} bytes: {said}");
        assert!(said.contains("30 decisions, all match"), "{length} bytes: {said}");
        let (_, error) = ends(64, &[name]);
        assert!(error.contains("it ends before its first complete record, so it has"), "{error}");
    }
}

#[test]
fn what_is_no_sound_trace_is_named_with_its_path_and_the_place() {
    let mut traced = Traced::new(BOUNDS);
    traced.live();
    traced.writer.end().unwrap();
    let file = traced.files().remove(0);
    let name = file.to_str().unwrap().to_owned();
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    let middle = whole.len() / 2;
    flipped[middle] ^= 0x55;
    fs::write(&file, flipped).unwrap();
    let (_, error) = ends(64, &[&name]);
    assert!(error.contains(&name) && error.contains("block that begins at byte "), "{error}");
    fs::write(&file, "no trace at all").unwrap();
    let (_, error) = ends(64, &[&name]);
    assert!(error.contains("not a trace of Plimsoll (it is not compressed with zstd)"), "{error}");
    fs::write(&file, [0x1f, 0x8b, 0x08, 0x00]).unwrap();
    let (_, error) = ends(64, &[&name]);
    assert!(error.contains("compressed with gzip, like traces of version 1"), "{error}");
    let later = r#"{"began":{"version":7,"by":"plimsoll 9.0.0","shape":"unknown"}}"#;
    fs::write(&file, packed(later)).unwrap();
    let (_, error) = ends(64, &[&name]);
    assert!(error.contains("version 7 of the format, written by plimsoll 9.0.0"), "{error}");
    let empty = TempDir::new().unwrap();
    let (_, error) = ends(64, &[empty.path().to_str().unwrap()]);
    assert!(error.contains("there are no trace files in this folder"), "{error}");
    let (_, error) = ends(69, &[empty.path().join("absent").to_str().unwrap()]);
    assert!(error.contains("cannot be read"), "{error}");
}

fn packed(text: &str) -> Vec<u8> {
    zstd::encode_all(format!("{text}\n").as_bytes(), 1).unwrap()
}

#[test]
fn a_block_that_asks_for_too_much_memory_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("greedy.trace.zst");
    let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
    packer.window_log(28).unwrap();
    packer.write_all(b"{\"began\":{\"version\":2}}\n").unwrap();
    packer.flush().unwrap();
    fs::write(&file, packer.finish().unwrap()).unwrap();
    let (_, error) = ends(64, &[file.to_str().unwrap()]);
    assert!(error.contains("damaged in the block that begins at byte 0"), "{error}");
    assert!(error.contains("too much memory"), "{error}");
}

#[test]
fn no_change_of_a_byte_makes_the_reader_panic() {
    let mut traced = Traced::new(BOUNDS);
    traced.world.set("a", 2, BUSY);
    for _ in 0..4 {
        traced.tick();
    }
    traced.begin(FileStart::Rotation);
    traced.tick();
    traced.writer.end().unwrap();
    let path = traced.files().pop().unwrap();
    let text = zstd::decode_all(fs::File::open(&path).unwrap()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let mut refused = 0;
    for at in (0..text.len()).step_by(11) {
        for other in ["9", "-", "\"", "}"] {
            let mut changed = text.clone();
            changed.replace_range(at..=at, other);
            fs::write(&path, packed(changed.trim_end())).unwrap();
            let read = TraceReader::open(&path).and_then(|mut reader| {
                while reader.record()?.is_some() {}
                Ok(())
            });
            refused += usize::from(read.is_err());
        }
    }
    assert!(refused > text.len() / 11, "{refused} changes were noticed");
}

#[test]
fn a_trace_of_several_files_is_one_and_one_without_its_beginning_is_followed_first() {
    let mut traced = Traced::new(TraceLimits { files: 3, ..BOUNDS });
    traced.world.set("a", 2, BUSY);
    for part in 0..5 {
        for _ in 0..30 {
            traced.tick();
        }
        if part < 4 {
            traced.begin(FileStart::Rotation);
        }
    }
    traced.writer.end().unwrap();
    assert_eq!(traced.files().len(), 3, "the oldest are gone");
    let (said, _) = ends(0, &[traced.path().to_str().unwrap()]);
    assert!(said.contains("the first hour is replayed and not compared"), "{said}");
    assert!(said.contains("nothing was compared; 90 were replayed"), "{said}");
    // For long enough, it is compared again.
    traced.begin(FileStart::Gap);
    for _ in 0..3700 {
        traced.tick();
    }
    traced.writer.end().unwrap();
    let newest = traced.files().pop().unwrap();
    let (said, _) = ends(0, &[newest.to_str().unwrap()]);
    assert!(said.contains("100 decisions, all match; 3600 were replayed"), "{said}");
}

#[tokio::test]
async fn what_a_daemon_decided_is_decided_the_same_again() {
    let (engine, folder) = (Engine::start().await, TempDir::new().unwrap());
    let trace = folder.path().join("trace");
    let state = folder.path().join("state.json");
    let more = format!(
        "trace: {{dir: {}}}\nstate_file: {}\nshadow: [{{name: bold, saturation: \
         {{kv_cache_threshold: 0.3}}}}]\n",
        trace.display(),
        state.display()
    );
    let written = text(&[("a", engine.address)], &more);
    let daemon = Running::start_in(folder, &written).await;
    daemon.until_desired("a", Some(1.0)).await;
    engine.show(stats(950));
    daemon.until_desired("a", Some(2.0)).await;
    fs::write(daemon.file(), written.replace("name: bold", "name: brave")).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    let shadows = "plimsoll_shadow_desired_replicas{model=\"m\",namespace=\"default\",\
                   policy=\"brave\",variant=\"a\"}";
    daemon.until_sample(shadows, 2.0).await;
    let folder = daemon.end().await;
    let daemon = Running::start_in(folder, &written).await;
    daemon.until_desired("a", Some(2.0)).await;
    let written = "plimsoll_trace_ticks_total{outcome=\"written\"}";
    assert!(daemon.until(written, |ticks| ticks >= 5.0).await);
    assert_eq!(daemon.sample("plimsoll_trace_ticks_total{outcome=\"lost\"}").await, Some(0.0));
    let folder = daemon.end().await;
    let (said, _) = ends(0, &[trace.to_str().unwrap()]);
    assert!(said.contains("all match"), "{said}");
    assert_eq!(said.matches("from the start of plimsoll").count(), 2, "{said}");
    drop(folder);
}

#[tokio::test]
async fn a_trace_that_cannot_be_written_is_counted_and_decisions_go_on() {
    let (engine, folder) = (Engine::start().await, TempDir::new().unwrap());
    let trace = folder.path().join("trace");
    let more = format!("trace: {{dir: {}}}\n", trace.display());
    let file = folder.path().join("plimsoll.yaml");
    fs::write(&file, text(&[("a", engine.address)], &more)).unwrap();
    let loaded = config::load(&file, Files::MustExist).unwrap();
    // What was free when the configuration was checked is taken by a file since.
    fs::write(&trace, "in the way").unwrap();
    let daemon = Box::pin(Daemon::start(loaded.config, DaemonOptions::default())).await.unwrap();
    let mut published = daemon.published();
    let decided = published.wait_for(|it| {
        it.generation > 20 && it.variants.values().all(|variant| variant.decided.is_some())
    });
    tokio::time::timeout(Duration::from_mins(1), decided).await.unwrap().unwrap();
    let page = reqwest::get(format!("http://{}/metrics", daemon.admin())).await.unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("plimsoll_trace_failures_total 1"), "{page}");
    assert!(page.contains("plimsoll_trace_ticks_total{outcome=\"written\"} 0"), "{page}");
    daemon.shutdown().await;
}

/// Ten minutes of one variant whose load rises and falls, with engines that count as vLLM does.
fn loaded_trace(folder: &Path) {
    loaded_trace_beside(folder, None);
}

/// The same, with another variant of which one replica stands idle.
fn loaded_trace_beside(folder: &Path, idle: Option<&VariantSpec>) {
    let config = configuration("");
    let step = StepTime::dense(7_000.0, 20.0, 30.0, 0.0);
    let settings = Settings {
        step,
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        block_size: 16,
        kv_blocks: 20_000,
        admission: Admission::WholePrompt,
    };
    let mut engines: Vec<Replica> = (0..2).map(|_| Replica::new(settings).unwrap()).collect();
    let keys: Vec<ReplicaKey> = (0..2).map(|index| replica("a", index)).collect();
    let names = Names { models: vec![spec("a", 2.0, (1, 9)).model], adapters: Vec::new() };
    let busy = spec("a", 2.0, (1, 9));
    let fleet = Arc::new(Fleet::new([busy].into_iter().chain(idle.cloned())));
    let mut pipeline = Pipeline::new(config.policy.clone());
    let mut writer = TraceWriter::new(folder.to_owned(), BOUNDS, at(0));
    writer.begin(FileStart::Process).unwrap();
    writer.write(TraceRecord::Config(config.print())).unwrap();
    let (mut id, mut events) = (0, Vec::new());
    for second in 0_i64..600 {
        let rate = if (200..400).contains(&second) { 16 } else { 8 };
        let now: Timestamp = at(second);
        for one in 0..rate {
            let micros = u64::try_from(second).unwrap() * 1_000_000 + one * 1_000_000 / rate;
            let request = Request { id, prompt: 300 + (id % 7) as u32 * 60, output: 120 };
            engines[(id % 2) as usize].submit(Micros::new(micros), request).unwrap();
            id += 1;
        }
        let until = Micros::from_secs(u64::try_from(second).unwrap() + 1);
        let scrapes = engines.iter_mut().zip(&keys).map(|(engine, key)| {
            engine.advance_to(until, &mut events);
            let outcome = Ok(reading::read(&names, at(0), now, engine));
            Scrape { replica: key.clone(), at: now, outcome }
        });
        let mut scrapes: Vec<Scrape> = scrapes.collect();
        let listing = |replicas| ReplicaListing {
            replicas,
            unready: Vec::new(),
            scale: Scale::Targets,
            way: ScrapeRoute::Scraped,
            as_of: now,
        };
        let mut listings: BTreeMap<VariantKey, ReplicaListing> =
            [(key("a"), listing(keys.clone()))].into();
        if let Some(idle) = idle {
            let mut engine = Replica::new(settings).unwrap();
            engine.advance_to(until, &mut events);
            let replica = replica("b", 0);
            listings.insert(idle.key.clone(), listing(vec![replica.clone()]));
            let outcome = Ok(reading::read(&names, at(0), now, &engine));
            scrapes.push(Scrape { replica, at: now, outcome });
        }
        let inputs = Inputs { fleet: fleet.clone(), listings, scrapes, ..Inputs::default() };
        let said = RecordedResult::of(&pipeline.tick(now, &inputs));
        let tick = TraceTick { now, inputs, follows: None, said };
        writer.write(TraceRecord::Tick(Box::new(tick))).unwrap();
    }
    writer.end().unwrap();
}

#[test]
fn policies_are_scored_side_by_side_on_the_recorded_load() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    loaded_trace(&trace);
    let policy = folder.path().join("generous.yaml");
    fs::write(&policy, "saturation: {kv_cache_threshold: 0.05, kv_spare_trigger: 0.02}\n").unwrap();
    let examples = ["examples/policy-cautious.yaml", "examples/policy-foresight.yaml"];
    let mut arguments = vec![trace.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
    arguments.extend(examples.iter().flat_map(|example| ["--policy", example]));
    let (said, _) = ends(0, &arguments);
    assert_eq!(ends(0, &arguments).0, said, "one trace and one seed have one result");
    let row = |name: &str| -> Vec<f64> {
        let line = said.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{said}"));
        line[name.len()..].split_whitespace().filter_map(|cell| cell.parse().ok()).collect()
    };
    // Two replicas for ten minutes are a third of a replica-hour, at 2 an hour.
    assert_eq!(row("as it was")[..2], [0.33, 0.67], "{said}");
    assert!(row("policy-cautious").len() > 3 && row("policy-foresight").len() > 3, "{said}");
    assert!(row("generous")[1] > row("recorded")[1], "{said}");
    assert!(said.contains("shop/a: an iteration takes "), "{said}");
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, "saturation: {kv_cash_threshold: 0.5}\n").unwrap();
    let (_, error) = ends(64, &[arguments[0], "--policy", wrong.to_str().unwrap()]);
    assert!(error.contains("wrong.yaml") && error.contains("kv_cache_threshold"), "{error}");
}

/// A file with a policy, in a folder.
fn policy(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn all_that_is_wrong_with_policies_is_said_by_line_before_anything_is_decided() {
    let folder = TempDir::new().unwrap();
    let mut traced = Traced::new(BOUNDS);
    traced.world.set("a", 2, BUSY);
    for _ in 0..30 {
        traced.tick();
    }
    // A later configuration is the one that policies are laid over.
    traced
        .writer
        .write(TraceRecord::Config(configuration("shutdown: {delay: 1s}\n").print()))
        .unwrap();
    traced.writer.end().unwrap();
    let trace = traced.path().to_str().unwrap().to_owned();
    let one = "saturation:\n  kv_cash_threshold: 0.5\nenforce:\n  flap_budget: -1\n";
    let one = policy(&folder, "one.yaml", one);
    let two = policy(&folder, "two.yaml", "capacity:\n  slo: [\n");
    let three = policy(&folder, "three.yaml", "capacity:\n  slo:\n    itl: -5ms\n");
    let given = |files: &[&String]| -> Vec<String> {
        let policies = files.iter().flat_map(|file| ["--policy".to_owned(), (*file).clone()]);
        [trace.clone()].into_iter().chain(policies).collect()
    };
    let refused = |files: &[&String]| -> Vec<String> {
        let arguments = given(files);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (said, error) = ends(64, &arguments);
        assert_eq!(said, "", "nothing has been decided");
        error.lines().skip(1).map(ToOwned::to_owned).collect()
    };
    let lines = refused(&[&one, &three]);
    let begins = [
        format!("{one}:4: error: enforce.flap_budget must be "),
        format!("{one}:2: error: saturation.kv_cash_threshold is not a known key; did you mean"),
        format!("{three}:3: error: capacity.slo.itl must be "),
    ];
    for begin in &begins {
        assert_eq!(lines.iter().filter(|line| line.starts_with(begin)).count(), 1, "{lines:#?}");
    }
    assert_eq!(lines.len(), begins.len(), "{lines:#?}");
    let cards = "capacity:\n  analyzers: [foresight]\n  card_files: [cards.yaml]\n";
    let cards = policy(&folder, "cards.yaml", cards);
    let lines = refused(&[&cards]);
    assert!(lines[0].starts_with(&format!("{cards}:3: error: capacity.card_files ")), "{lines:#?}");
    let absent = folder.path().join("absent.yaml").to_str().unwrap().to_owned();
    let lines = refused(&[&absent]);
    assert!(lines[0].starts_with(&format!("{absent}: error: cannot be read (")), "{lines:#?}");
    let lines = refused(&[&two]);
    assert!(lines.len() == 1 && lines[0].contains("two.yaml:"), "{lines:#?}");
    assert!(lines[0].contains(": error: is not YAML: "), "{lines:#?}");
}

#[test]
fn of_a_whole_configuration_the_sections_that_decisions_depend_on_count() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    loaded_trace(&trace);
    let sections = "saturation: {kv_cache_threshold: 0.05, kv_spare_trigger: 0.02}\n";
    let others = "server: {listen: \"127.0.0.1:9\"}\nkubernetes: {enabled: true}\n";
    let plain = policy(&folder, "plain.yaml", sections);
    let whole = policy(&folder, "whole.yaml", &format!("{others}{sections}"));
    let trace = trace.to_str().unwrap();
    let (said, _) = ends(0, &[trace, "--policy", &plain, "--policy", &whole]);
    let line = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{said}")).to_owned()
    };
    assert_eq!(line("whole"), line("plain"), "{said}");
    assert_ne!(line("plain").trim(), line("recorded").trim(), "{said}");
    let nothing = policy(&folder, "nothing.yaml", others);
    let (_, error) = ends(64, &[trace, "--policy", &nothing]);
    assert!(error.contains("nothing.yaml:1: error: must have a section that"), "{error}");
    let misspelt = policy(&folder, "misspelt.yaml", &format!("{others}capacitee: {{}}\n"));
    let (_, error) = ends(64, &[trace, "--policy", &misspelt]);
    assert!(error.contains("misspelt.yaml:3: error: capacitee is not a known key"), "{error}");
}

#[test]
fn a_variant_that_cannot_be_simulated_is_in_no_line_of_the_table() {
    let folder = TempDir::new().unwrap();
    let [alone, beside] = ["alone", "beside"].map(|name| folder.path().join(name));
    loaded_trace(&alone);
    loaded_trace_beside(&beside, Some(&spec("b", 3.0, (1, 1))));
    let policy = policy(&folder, "plain.yaml", "{}\n");
    let table = |trace: &Path| ends(0, &[trace.to_str().unwrap(), "--policy", &policy]).0;
    let (alone, beside) = (table(&alone), table(&beside));
    assert!(beside.contains("shop/b is left out: its metrics don't show"), "{beside}");
    let line = |said: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix("as it was"));
        line.unwrap_or_else(|| panic!("no such line in\n{said}")).to_owned()
    };
    assert_eq!(line(&beside), line(&alone), "b was at its maximum all the time, and costs");
}

#[test]
fn a_pool_is_scored_by_its_load_and_that_is_said() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    loaded_trace(&trace);
    let policies = ["plain", "pool"].map(|name| folder.path().join(name).with_extension("yaml"));
    fs::write(&policies[0], "{}\n").unwrap();
    fs::write(&policies[1], "pools: {shop/a: {adapters: {sql: {copies: 5}}}}\n").unwrap();
    let [plain, pool] = policies.each_ref().map(|path| path.to_str().unwrap());
    let arguments = [trace.to_str().unwrap(), "--policy", plain, "--policy", pool];
    let (said, _) = ends(0, &arguments);
    let line = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{said}")).trim().to_owned()
    };
    assert_eq!(line("pool"), line("plain"), "{said}");
    assert!(said.contains("shop/a is a pool: metrics don't show each request's adapter"), "{said}");
}

/// A model that is idle twice, for half an hour each.
const SLEEPY: &str = "\
seed: 1
length: 90m
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  gateway: {read: 1s}
  workload:
    drawn:
      steps:
      - {at: 0s, rate: 5}
      - {at: 10m, rate: 0}
      - {at: 40m, rate: 5}
      - {at: 50m, rate: 0}
      - {at: 80m, rate: 5}
      prompt: {fixed: 1000}
      output: {fixed: 100}
variants:
- name: v
  cost: 3
  replicas: {min: 0, max: 10, initial: 1}
  engine: {alpha: 7.05ms, beta: 19.5us, delta: 25.4us, kv_tokens: 976000}
  startup: {load: 30s}
  autoscaler: {kind: keda}
policy:
  scale_to_zero: {enabled: true, after: 5m}
";

#[test]
fn a_fleet_that_scales_to_zero_wakes_in_a_backtest() {
    let folder = TempDir::new().unwrap();
    let scenario = policy(&folder, "sleepy.yaml", SLEEPY);
    let same = policy(&folder, "same.yaml", "{}\n");
    let trace = folder.path().join("trace").display().to_string();
    let run = [scenario.as_str(), "--policy", "plimsoll", "--trace", trace.as_str()];
    let Output { status, stderr, .. } = simulate(&run);
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&stderr));

    // The requests that wake it wait for a start, and are computed all at once.
    let patient = ["--slo-ttft", "5m", "--slo-itl", "1s", "--policy", same.as_str()];
    let (said, _) = ends(0, &[&[trace.as_str()][..], &patient[..]].concat());
    assert!(said.contains("m#default: a wake signal every 5 s is assumed"), "{said}");
    let recorded = row(&said, "recorded");
    // Within the objectives, replica-hours, cost, and changes.
    assert!(recorded[0] > 99.0 && recorded[3] >= 3.0, "{said}");
}

#[test]
fn a_folder_holds_as_many_files_as_it_may() {
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("another.gz");
    fs::write(&other, "stays").unwrap();
    let mut writer =
        TraceWriter::new(folder.path().to_owned(), TraceLimits { files: 2, ..BOUNDS }, at(0));
    for _ in 0..5 {
        writer.begin(FileStart::Gap).unwrap();
        writer.end().unwrap();
    }
    assert!(other.exists(), "what is no trace is left alone");
    assert_eq!(trace::files(&[folder.path().to_owned()]).unwrap().readers.len(), 2);
}
