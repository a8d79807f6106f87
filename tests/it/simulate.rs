//! The simulator against reference runs and against its own rules.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use plimsoll::simulate::Micros;
use plimsoll::simulate::replica::{
    Admission, Event, Finished, Replica, Request, Settings, StepTime,
};
use serde_json::Value;

/// What a reference run says of one request.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    id: u64,
    replica: usize,
    queue: Option<u64>,
    ttft: Option<u64>,
    e2e: Option<u64>,
    preemptions: u64,
    first_ever: Option<u64>,
}

fn read(path: &Path) -> String {
    if let Ok(text) = fs::read_to_string(path) {
        return text;
    }
    let packed = PathBuf::from(format!("{}.gz", path.display()));
    let bytes = fs::read(&packed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    text
}

fn rows(text: &str) -> impl Iterator<Item = Vec<Option<u64>>> {
    text.lines().skip(1).map(|line| line.split(',').map(|field| field.parse().ok()).collect())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a whole number"))
}

fn settings(config: &Value) -> Settings {
    let step = |index: usize| config["step_us"][index].as_f64().unwrap();
    let small = |name: &str| u32::try_from(number(&config[name])).unwrap();
    let whole = config["reserve_full_input"] == Value::Bool(true);
    assert_eq!(config["preemption_keeps_tokens"], Value::Bool(whole), "the profiles couple these");
    Settings {
        step: StepTime { alpha: step(0), beta: step(1), delta: step(2), gamma: 0.0 },
        max_num_seqs: small("max_num_seqs"),
        max_num_batched_tokens: small("max_num_batched_tokens"),
        block_size: small("block_size"),
        kv_blocks: small("kv_blocks"),
        admission: if whole { Admission::WholePrompt } else { Admission::FirstChunk },
    }
}

fn expected(directory: &Path, name: &str) -> Vec<Row> {
    rows(&read(&directory.join(format!("runs/{name}.requests.csv"))))
        .map(|row| {
            let [id, replica, queue, ttft, e2e, ref rest @ ..] = row[..] else { panic!("{row:?}") };
            Row {
                id: id.unwrap(),
                replica: usize::try_from(replica.unwrap()).unwrap(),
                queue,
                ttft,
                e2e,
                preemptions: rest.first().copied().flatten().unwrap_or(0),
                first_ever: rest.get(1).copied().unwrap_or(ttft),
            }
        })
        .collect()
}

/// Replays one run and says what differs; `Ok` holds the number of requests that were compared.
fn replay(directory: &Path, name: &str) -> Result<usize, String> {
    let run: Value =
        serde_json::from_str(&read(&directory.join(format!("runs/{name}.json")))).unwrap();
    let (config, results) = (&run["config"], &run["results"]);
    let arrivals = rows(&read(&directory.join(config["arrivals"].as_str().unwrap())))
        .map(|row| row.into_iter().map(Option::unwrap).collect::<Vec<_>>())
        .collect::<Vec<_>>();
    let expected = expected(directory, name);
    let stop = Some(number(&config["stop_us"])).filter(|&stop| stop > 0);

    let replicas = usize::try_from(number(&config["replicas"])).unwrap();
    let mut fleet = vec![Replica::new(settings(config)).unwrap(); replicas];
    for row in &expected {
        let arrival = &arrivals[usize::try_from(row.id).unwrap()];
        let request = Request {
            id: row.id,
            prompt: u32::try_from(arrival[1]).unwrap(),
            output: u32::try_from(arrival[2]).unwrap(),
        };
        fleet[row.replica].submit(Micros::new(arrival[0]), request).unwrap();
    }

    let mut finished = vec![None; expected.len()];
    let mut first_tokens = vec![None; expected.len()];
    let mut preemptions = vec![0; expected.len()];
    for (index, replica) in fleet.iter_mut().enumerate() {
        let mut events = Vec::new();
        if let Some(stop) = stop {
            replica.advance_to(Micros::new(stop + 1), &mut events);
            // The step that is being computed runs to its end; none begins after it.
            if let Some(end) = replica.next_change() {
                replica.advance_to(end, &mut events);
            }
        } else {
            replica.advance_to(Micros::new(u64::MAX), &mut events);
            assert_eq!(replica.snapshot().kv_blocks_used, 0, "an empty engine holds nothing");
        }
        for event in events {
            match event {
                Event::FirstToken { id, ttft, .. } => {
                    first_tokens[usize::try_from(id).unwrap()] = Some(ttft.micros());
                }
                Event::Preempted { id, .. } => preemptions[usize::try_from(id).unwrap()] += 1,
                Event::Finished(life) => {
                    finished[usize::try_from(life.request.id).unwrap()] = Some(life);
                }
            }
        }
        let totals = &results["replicas"][index];
        let counters = replica.counters();
        for (what, ours, theirs) in [
            ("steps", counters.steps, &totals["steps"]),
            ("busy_us", counters.busy.micros(), &totals["busy_us"]),
            ("prefill", counters.prefill_tokens, &totals["prefill_tokens_computed"]),
            ("preemptions", counters.preemptions, &totals["preemptions"]),
            ("finished", counters.finished, &totals["finished"]),
        ] {
            // A stopped run counts the busy time only up to the stop.
            if ours != number(theirs) && (what != "busy_us" || stop.is_none()) {
                return Err(format!("replica {index}: {what} is {ours}, not {theirs}"));
            }
        }
    }
    for (index, theirs) in expected.iter().enumerate() {
        let life: Option<Finished> = finished[index];
        let ours = Row {
            id: theirs.id,
            replica: theirs.replica,
            // What did not finish before a stop reports nothing but its first token.
            queue: life.map_or(theirs.queue, |life| Some(life.queue.micros())),
            ttft: life.map_or(first_tokens[index], |life| Some(life.ttft.micros())),
            e2e: life.map(|life| life.e2e.micros()),
            preemptions: preemptions[index],
            first_ever: first_tokens[index],
        };
        if ours != *theirs {
            return Err(format!("{ours:?} should be {theirs:?}"));
        }
    }
    Ok(expected.len())
}

/// Replays all runs of the two exact profiles in a directory and returns how many there were.
fn replay_all(directory: &Path) -> usize {
    let mut names = fs::read_dir(directory.join("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect::<Vec<_>>();
    names.sort();
    let mut exact = 0;
    let mut wrong = Vec::new();
    for name in names {
        let run: Value =
            serde_json::from_str(&read(&directory.join(format!("runs/{name}.json")))).unwrap();
        if run["config"]["profile"] == "stock" {
            println!("{name}: not an exact profile");
            continue;
        }
        match replay(directory, &name) {
            Ok(requests) => {
                println!("{name}: {requests} requests, all equal to the microsecond");
                exact += 1;
            }
            Err(difference) => {
                println!("{name}: {difference}");
                wrong.push(format!("{name}: {difference}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    exact
}

#[test]
fn engine_vectors_are_reproduced_to_the_microsecond() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engine");
    assert_eq!(replay_all(&committed), 6, "every committed run is replayed");
    if let Some(vectors) = std::env::var_os("PLIMSOLL_VECTORS") {
        assert!(replay_all(&Path::new(&vectors).join("engine")) > 0, "there are runs to replay");
    }
}
