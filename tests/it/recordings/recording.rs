//! The files of a recording.

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::read::GzDecoder;
use jiff::{SignedDuration, Timestamp};
use plimsoll::collect::exposition::read;
use plimsoll::fleet::ModelName;
use plimsoll::observe::{Reading, ScrapeFailure};

use crate::recordings::show;

/// One run: some servers of one model, and their clients.
pub(crate) struct Recording {
    /// The folder's name.
    pub(crate) name: String,
    /// In the order of their names.
    pub(crate) servers: Vec<Server>,
    /// In the order in which they were sent.
    pub(crate) requests: Vec<Request>,
    /// In the order of time.
    pub(crate) phases: Vec<Phase>,
    /// Whether every request was written down; those that nobody answered may be missing.
    pub(crate) complete: bool,
    /// What its servers were told, where that was written down.
    pub(crate) told: Option<Told>,
}

/// What servers were told that bounds what they do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// Requests in a batch.
    pub(crate) seats: f64,
    /// Tokens in an iteration.
    pub(crate) budget: f64,
    /// Tokens in a block of the KV cache.
    pub(crate) block: f64,
}

/// One server, through all its lives.
pub(crate) struct Server {
    /// What the files' names say after the dash; empty when there is only one.
    pub(crate) name: String,
    /// One scrape each, in the order of time.
    pub(crate) pages: Vec<Page>,
    /// What another parser read from the pages.
    pub(crate) rows: Vec<Row>,
}

/// One scrape.
pub(crate) struct Page {
    /// When the page was asked for, as the recording writes it.
    pub(crate) stamp: String,
    /// The same in seconds of Unix time.
    pub(crate) asked: f64,
    /// When the page was there.
    pub(crate) answered: f64,
    /// The body as it was received.
    pub(crate) body: Bytes,
    /// What the page says.
    pub(crate) outcome: Result<Reading, ScrapeFailure>,
}

/// A line of a table.
pub(crate) struct Row {
    header: &'static [String],
    fields: Vec<String>,
}

/// A request as its client saw it. Times are seconds of Unix time.
pub(crate) struct Request {
    /// The host and port that it was sent to.
    pub(crate) target: String,
    /// Whether it was meant to be answered; the others ask for what does not exist.
    pub(crate) sound: bool,
    /// Completions that it asked for; an engine runs each as a request of its own.
    pub(crate) completions: f64,
    /// When it was sent.
    pub(crate) sent: f64,
    /// When its first token arrived, of a streamed one.
    pub(crate) first: Option<f64>,
    /// When its last token arrived, or its client hung up.
    pub(crate) ended: f64,
    /// How it ended.
    pub(crate) end: End,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: f64,
    /// Tokens that each completion was to have; the end of the answer was ignored.
    pub(crate) wanted: f64,
    /// Tokens that it got.
    pub(crate) tokens: f64,
    /// The number and the sum of the times between its tokens, of a streamed one. With speculation,
    /// they are between the tokens of one iteration and those of the next, as vLLM measures it.
    pub(crate) gaps: (f64, f64),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the whole answer.
    Complete,
    /// Its client hung up.
    HungUp,
    /// The server refused or reset the connection.
    Lost,
}

/// A part of the run with one arrival rate.
#[derive(Clone)]
pub(crate) struct Phase {
    /// What it is called.
    pub(crate) name: String,
    /// When it began, in seconds of Unix time.
    pub(crate) start: f64,
    /// When the next one began, or the last answer had come.
    pub(crate) end: f64,
}

/// A variable that names the folder of other recordings than those of this repository.
const FOLDER: &str = "PLIMSOLL_RECORDINGS";

/// Every recording of the folder that is asked for, read once for all tests.
pub(crate) fn recordings() -> &'static [Recording] {
    static RECORDINGS: OnceLock<Vec<Recording>> = OnceLock::new();
    RECORDINGS.get_or_init(|| {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/recordings");
        let root = env::var_os(FOLDER).map_or(own, PathBuf::from);
        let mut folders = vec![root.clone()];
        folders.extend(fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()));
        folders.retain(|folder| folder.join("events.csv").is_file());
        folders.sort();
        assert!(!folders.is_empty(), "there is no recording in {}", root.display());
        folders.iter().map(|folder| Recording::load(folder)).collect()
    })
}

/// Whether the recordings are not those of this repository.
pub(crate) fn is_foreign() -> bool {
    env::var_os(FOLDER).is_some()
}

/// Says that a test has looked at so many cases. The recordings of this repository have some for
/// every test; others need not, and then it is said which rule they could not be held to.
pub(crate) fn looked_at(cases: usize, what: &str) {
    if cases == 0 && is_foreign() {
        return show(&format!("\nnot run: no recording has {what}\n"));
    }
    assert!(cases > 0, "no recording has {what}");
}

impl Recording {
    fn load(folder: &Path) -> Self {
        let files = files(folder);
        let named = |prefix: &str, suffix: &str| -> Vec<(String, &PathBuf)> {
            let rest = |path: &PathBuf| {
                let name = path.file_name()?.to_str()?.strip_prefix(prefix)?;
                let name = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(suffix)?;
                Some(name.trim_start_matches('-').to_owned())
            };
            files.iter().filter_map(|path| Some((rest(path)?, path))).collect()
        };
        let series = named("series", ".csv");
        let servers = named("pages", ".txt.zst").into_iter().map(|(name, path)| {
            let rows = series.iter().find(|(server, _)| *server == name).map(|(_, path)| path);
            Server { rows: table(rows.unwrap()), pages: pages(path), name }
        });
        let servers: Vec<Server> = servers.collect();
        let mut last_rows = servers.iter().filter_map(|server| server.rows.last());
        let speculates = last_rows.any(|row| row.has("spec_drafts"));
        let mut requests: Vec<Request> = named("requests", ".csv")
            .iter()
            .flat_map(|(_, path)| table(path))
            .map(|row| Request::read(&row, speculates))
            .collect();
        requests.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        let events = table(&folder.join("events.csv"));
        let unanswered = |row: &Row| {
            let pending = row.text("detail").strip_prefix("pending=");
            row.text("event") == "drained" && pending.is_some_and(|pending| pending != "0")
        };
        Self {
            complete: !events.iter().any(unanswered),
            name: folder.file_name().unwrap().to_str().unwrap().to_owned(),
            servers,
            requests,
            phases: phases(&events),
            told: told(&folder.join("server.csv")),
        }
    }

    /// The phase of this name.
    pub(crate) fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// The model that the first page names.
    pub(crate) fn model(&self) -> ModelName {
        let pages = self.servers.iter().flat_map(|server| &server.pages);
        let mut models = pages.filter_map(|page| page.outcome.as_ref().ok()?.models.first());
        models.next().expect("a page names its model").clone()
    }

    /// The requests that were sent to this server.
    pub(crate) fn requests_to(&self, server: &Server) -> Vec<&Request> {
        let host = format!("//{}:", server.name);
        let all = server.name.is_empty();
        self.requests.iter().filter(|request| all || request.target.contains(&host)).collect()
    }
}

impl Request {
    /// Tokens after the first of each completion.
    pub(crate) fn later_tokens(&self) -> f64 {
        (self.tokens - self.completions).max(0.0)
    }

    fn read(row: &Row, speculates: bool) -> Self {
        let number = |name| row.number(name);
        let sent = number("t_send").unwrap();
        let end = match (row.text("error"), row.text("status")) {
            ("client_abort", _) => End::HungUp,
            (error, "") if error.starts_with("Client") => End::Lost,
            _ => End::Complete,
        };
        let completions = number("n").unwrap();
        let tokens = number("usage_completion").or(number("chunks")).unwrap_or(0.0);
        // Several tokens may reach the client as one chunk; of a whole answer the gaps are known.
        let gaps = match (number("itl_n"), end) {
            (Some(_), End::Complete) if !speculates => (tokens - completions).max(0.0),
            (seen, _) => seen.unwrap_or(0.0),
        };
        Self {
            target: row.text("target").to_owned(),
            sound: row.text("kind") == "ok",
            completions,
            sent,
            first: number("ttft").map(|ttft| sent + ttft),
            ended: sent + number("e2e").unwrap_or(0.0),
            end,
            prompt_tokens: number("prompt_tokens").unwrap(),
            wanted: number("max_tokens").unwrap(),
            tokens,
            gaps: (gaps, number("itl_sum").unwrap_or(0.0)),
        }
    }
}

impl Row {
    /// The names of the columns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.header.iter().map(String::as_str)
    }

    /// Whether a column exists, and is not empty.
    fn has(&self, name: &str) -> bool {
        self.names().any(|column| column == name) && !self.text(name).is_empty()
    }

    /// A field as it is written.
    pub(crate) fn text(&self, name: &str) -> &str {
        let column = self.header.iter().position(|column| column == name);
        &self.fields[column.unwrap_or_else(|| panic!("there is no column {name}"))]
    }

    /// A field as a number; `None` when it is empty.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let text = self.text(name);
        (!text.is_empty()).then(|| text.parse().unwrap())
    }
}

/// An instant in the terms of the pipeline.
pub(crate) fn instant(unix_time: f64) -> Timestamp {
    Timestamp::from_duration(SignedDuration::from_secs_f64(unix_time)).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn phases(events: &[Row]) -> Vec<Phase> {
    let bounds = ["phase", "drained", "sigterm", "end"];
    let bounds: Vec<_> = events.iter().filter(|row| bounds.contains(&row.text("event"))).collect();
    let pairs = bounds.windows(2).filter(|pair| pair[0].text("event") == "phase");
    pairs
        .map(|pair| Phase {
            name: pair[0].text("detail").split(' ').next().unwrap().to_owned(),
            start: pair[0].number("t").unwrap(),
            end: pair[1].number("t").unwrap(),
        })
        .collect()
}

fn told(path: &Path) -> Option<Told> {
    let rows = path.is_file().then(|| table(path))?;
    let number = |name| rows.first()?.number(name);
    Some(Told {
        seats: number("max_num_seqs")?,
        budget: number("max_num_batched_tokens")?,
        block: number("block_size")?,
    })
}

/// Reads records one after the other: a line that says how many bytes follow, and the bytes.
fn pages(path: &Path) -> Vec<Page> {
    let mut rest = Bytes::from(zstd::decode_all(File::open(path).unwrap()).unwrap());
    let mut pages = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let line = rest.split_to(end + 1);
        let line = str::from_utf8(&line).unwrap().trim_end().strip_prefix("#@ ").unwrap();
        let field = |name: &str| {
            let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
            fields.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).unwrap()
        };
        let body = rest.split_to(field("bytes").parse().unwrap());
        let outcome = match field("status").as_str() {
            "200" => {
                let content_type = field("type").replace(';', "; ");
                Ok(read(&body, Some(&content_type)).unwrap())
            }
            "refused" => Err(ScrapeFailure::Refused),
            _ => Err(ScrapeFailure::Status),
        };
        let stamp = field("t");
        let asked: f64 = stamp.parse().unwrap();
        let answered = asked + field("ms").parse::<f64>().unwrap() / 1000.0;
        pages.push(Page { stamp, asked, answered, body, outcome });
    }
    pages
}

/// The lines of a table after its header.
fn table(path: &Path) -> Vec<Row> {
    let mut text = String::new();
    let file = File::open(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
    } else {
        let mut file = file;
        file.read_to_string(&mut text).unwrap();
    }
    let mut lines = text.lines();
    // A handful of headers that live as long as the tests.
    let header: &'static [String] = fields(lines.next().unwrap()).leak();
    lines.map(|line| Row { header, fields: fields(line) }).collect()
}

/// The fields of a line; a quoted one may hold commas, and a quote twice.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => fields.last_mut().unwrap().push(other),
        }
    }
    fields
}
