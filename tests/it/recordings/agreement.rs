//! What the pipeline derives from the pages, held against what the clients saw.

use std::fmt::Write as _;

use plimsoll::units::{RequestRate, Seconds, TokenRate};

use crate::recordings::clients::{Clients, Span};
use crate::recordings::recording::{End, Page, Recording, Request, Server, looked_at, recordings};
use crate::recordings::replay::{Replay, Tick};
use crate::recordings::show;

/// Length of the window, short enough for phases of twenty seconds.
const WINDOW: f64 = 15.0;

/// What stands for all phases together.
const WHOLE: &str = "(all)";

/// The quantities that are compared.
const QUANTITIES: [&str; 6] =
    ["arrivals/s", "prompt tok/s", "output tok/s", "TTFT s", "ITL ms", "in flight"];

/// The last of them.
const IN_FLIGHT: usize = QUANTITIES.len() - 1;

/// Tokens of an answer below which a request ends in its first iterations.
const SHORT: f64 = 5.0;

/// One window as one side sees it; what nobody can say is absent.
type Sample = [Option<f64>; QUANTITIES.len()];

/// How far the mean over a phase may be off, as a share of what the clients saw, plus an amount in
/// the quantity's unit: first in any phase, then in one in which clients hang up. The sum never
/// exceeds [`TOLERANCE_MAX`], so that a number counted twice, or half of it, never passes.
///
/// - Arrivals: an engine that is busy with its very first request shows the others only when it is
///   done with it, so windows at the start gain two requests in 15 s. Of a request for two
///   completions that ends while others hang up, one completion is missed.
/// - Prompt tokens: those of a prompt that takes several iterations are counted with its last. Only
///   the server knows whether the prompt of a request that was not streamed and hung up had been
///   processed.
/// - Tokens generated: the clients' side assumes that a request's tokens come evenly.
/// - Time to first token: the clients measure the way there and back as well, some 10 ms on an
///   idle machine and 40 ms on a busy one; and they know it of streamed requests only, 30 to 70 % of
///   all.
/// - Time between tokens: the clients know it of streamed requests only, 30 to 70 % of all. As with
///   tokens generated, and some gaps that the server saw reach the client as one.
/// - In flight: an engine shows hardly any request that ends in its first iterations, so runs with
///   answers of a few tokens are left out. A request that the server has not taken in yet, or whose
///   last bytes are on their way, is open only for its client.
const TOLERANCES: [[(f64, f64); 2]; QUANTITIES.len()] = [
    [(0.01, 0.15), (0.05, 0.1)],
    [(0.03, 0.0), (0.10, 0.0)],
    [(0.02, 0.0), (0.03, 0.0)],
    [(0.11, 0.05), (0.11, 0.05)],
    [(0.09, 0.0), (0.09, 0.0)],
    [(0.03, 0.5), (0.03, 0.5)],
];

/// The largest tolerance, as a share.
const TOLERANCE_MAX: f64 = 0.35;

/// Below this many windows, a mean says nothing.
const WINDOWS_MIN: usize = 5;

/// How far one window in twenty may be off at most, as a share of the mean over the run.
const STRAY_MAX: [f64; QUANTITIES.len()] = [0.2, 0.2, 0.15, 0.3, 0.25, 0.2];

/// Both sides' samples of the windows of one phase and server.
struct Compared<'a> {
    recording: &'a Recording,
    server: &'a Server,
    phase: &'a str,
    /// Whether clients hang up in it.
    hangs_up: bool,
    /// Ours and the clients', window by window.
    samples: Vec<(Sample, Sample)>,
}

impl Compared<'_> {
    /// The mean of both sides over the windows for which both have a number.
    fn means(&self, quantity: usize) -> Option<(f64, f64)> {
        let pairs: Vec<_> = self.pairs(quantity).collect();
        let count = pairs.len() as f64;
        let sum = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        (pairs.len() >= WINDOWS_MIN).then(|| (sum.0 / count, sum.1 / count))
    }

    fn pairs(&self, quantity: usize) -> impl Iterator<Item = (f64, f64)> {
        self.samples.iter().filter_map(move |(ours, theirs)| ours[quantity].zip(theirs[quantity]))
    }

    /// By how much the mean may be off.
    fn allowed(&self, quantity: usize, theirs: f64) -> f64 {
        let (_, amount) = TOLERANCES[quantity][usize::from(self.hangs_up)];
        if theirs > 0.0 { self.tolerance(quantity, theirs) * theirs } else { amount }
    }

    /// By how much the mean may be off, as a share of what the clients saw.
    fn tolerance(&self, quantity: usize, theirs: f64) -> f64 {
        let (share, amount) = TOLERANCES[quantity][usize::from(self.hangs_up)];
        (share + amount / theirs).min(TOLERANCE_MAX)
    }

    /// By how much half of the windows, and all but one in twenty, are off at most, as a share of
    /// the mean over them.
    fn strays(&self, quantity: usize) -> Option<(f64, f64)> {
        let (_, mean) = self.means(quantity)?;
        let mut off: Vec<f64> = self.pairs(quantity).map(|(a, b)| (a - b).abs() / mean).collect();
        off.sort_by(f64::total_cmp);
        Some((off[off.len() / 2], off[off.len() * 95 / 100]))
    }

    fn place(&self) -> String {
        format!("{:4} {:10} {:14}", self.recording.name, self.server.name, self.phase)
    }
}

/// Every phase of every recording, and after them each whole recording.
fn compared() -> Vec<Compared<'static>> {
    let mut all = Vec::new();
    for recording in recordings().iter().filter(|it| it.complete) {
        let ticks = Replay { recording, window: WINDOW, crash: None }.run();
        for server in &recording.servers {
            let requests = recording.requests_to(server);
            let clients = Clients::new(&requests);
            let wanted: f64 = requests.iter().map(|request| request.wanted).sum();
            let is_short = wanted < SHORT * requests.len() as f64;
            let phases = recording.phases.iter().map(|it| (&*it.name, it.start + WINDOW, it.end));
            for (phase, start, end) in phases.chain([(WHOLE, 0.0, f64::INFINITY)]) {
                let inside = |tick: &&Tick| start <= tick.now && tick.now < end;
                let both = |tick| {
                    let mut theirs = theirs(&clients, server, tick)?;
                    if is_short {
                        theirs[IN_FLIGHT] = None;
                    }
                    Some((ours(server, tick), theirs))
                };
                let samples = ticks.iter().filter(inside).filter_map(both).collect();
                let hung_up = |request: &&&Request| {
                    request.end == End::HungUp && start < request.ended && request.ended <= end
                };
                let hangs_up = requests.iter().any(|it| hung_up(&it));
                all.push(Compared { recording, server, phase, hangs_up, samples });
            }
        }
    }
    all
}

fn ours(server: &Server, tick: &Tick) -> Sample {
    let seen = tick.replica(server);
    let tokens = |rate: Option<TokenRate>| rate.map(TokenRate::tokens_per_second);
    let in_flight = seen.running.zip(seen.waiting);
    [
        seen.arrivals.map(RequestRate::requests_per_second),
        tokens(seen.prompt_rate),
        tokens(seen.generation_rate),
        seen.ttft_mean.map(Seconds::seconds),
        seen.itl_mean.map(|itl| itl.seconds() * 1e3),
        in_flight.map(|(running, waiting)| (running.last + waiting.last).requests()),
    ]
}

/// What the clients saw in the window that the rates of a tick are about: from the last page that
/// is as old as the window to the latest. `None` while the server does not answer.
fn theirs(clients: &Clients, server: &Server, tick: &Tick) -> Option<Sample> {
    let known = |page: &&Page| page.answered <= tick.now;
    let last = server.pages.iter().rfind(known)?;
    let reading = last.outcome.as_ref().ok()?;
    let same_life = |page: &&Page| {
        page.outcome.as_ref().is_ok_and(|earlier| earlier.started == reading.started)
    };
    let mut lives = server.pages.iter().filter(known).filter(same_life);
    let first = lives.clone().rfind(|page| tick.now - page.asked >= WINDOW).or(lives.next())?;
    let span = Span { from: first.asked, to: last.asked };
    let rate = |amount: f64| (span.length() > 0.0).then(|| amount / span.length());
    Some([
        rate(clients.arrivals(span)),
        rate(clients.prompt_tokens(span)),
        rate(clients.tokens(span)),
        clients.ttft(span).0,
        clients.itl(span).map(|itl| itl * 1e3),
        Some(clients.open(last.answered)),
    ])
}

#[test]
fn what_is_derived_from_pages_is_what_the_clients_saw() {
    let mut report =
        String::from("\nmeans over a phase, Plimsoll : clients, difference (tolerance) in %\n");
    write!(report, "{:30} {:>3}", "run  server     phase", "n").unwrap();
    report.extend(QUANTITIES.map(|quantity| format!(" {quantity:>26}")));
    let (mut wrong, mut judged) = (Vec::new(), 0);
    for it in compared() {
        write!(report, "\n{} {:3}", it.place(), it.samples.len()).unwrap();
        for (quantity, name) in QUANTITIES.iter().enumerate() {
            let Some((ours, theirs)) = it.means(quantity) else {
                write!(report, " {:>26}", "-").unwrap();
                continue;
            };
            let (off, tolerance) = (ours / theirs - 1.0, it.tolerance(quantity, theirs));
            let said =
                format!("{ours:8.2}:{theirs:8.2} {:5.1} ({:2.0})", off * 100.0, tolerance * 100.0);
            if (ours - theirs).abs() > it.allowed(quantity, theirs) {
                wrong.push(format!("{} {name}: {said}", it.place()));
            }
            judged += 1;
            write!(report, " {said}").unwrap();
        }
    }
    show(&(report + "\n"));
    looked_at(judged, "a phase that is longer than the window");
    assert!(wrong.is_empty(), "off by more than the tolerance:\n{}", wrong.join("\n"));
}

#[test]
fn single_windows_stray_little_from_what_the_clients_saw() {
    let mut report = String::from("\nsingle windows: half, and 19 of 20, are off by at most (%)\n");
    write!(report, "{:30} {:>3}", "run  server", "n").unwrap();
    report.extend(QUANTITIES.map(|quantity| format!(" {quantity:>14}")));
    let mut wrong = Vec::new();
    for it in compared().iter().filter(|it| it.phase == WHOLE) {
        write!(report, "\n{} {:3}", it.place(), it.samples.len()).unwrap();
        for (quantity, name) in QUANTITIES.iter().enumerate() {
            let Some((half, most)) = it.strays(quantity) else { continue };
            write!(report, " {:6.1} {:7.1}", half * 100.0, most * 100.0).unwrap();
            if most > STRAY_MAX[quantity] {
                wrong.push(format!("{} {name}: {most}", it.place()));
            }
        }
    }
    show(&(report + "\n"));
    assert!(wrong.is_empty(), "windows stray too far:\n{}", wrong.join("\n"));
}
