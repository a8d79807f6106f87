//! Three ways to write a view: a live table, a line of text, and a line of JSON.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use serde_json::json;

use crate::demo::args::DemoOutput;
use crate::demo::view::{ModelView, PoolView, ReplicaChange, VariantLine, View, WavePhase};
use crate::simulate::Micros;

/// The eighths of a character cell, from the bottom.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The eighths of a character cell, from the left.
const LEFT_EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// Cells of the KV cache usage bar.
const KV_CELLS: usize = 10;
/// The largest width of a chart, in cells.
const CHART_MAX: usize = 60;
/// Cells next to a chart.
const CHART_MARGIN: usize = 40;
/// The default width, if the terminal's is unknown.
const WIDTH: u16 = 100;

/// The output for views.
#[derive(Debug)]
pub enum Screen {
    /// A live table. The terminal is restored when this is dropped, even by a panic.
    Table(Box<RawTerminal>),
    /// Lines of text on standard output.
    Text,
    /// Lines of JSON on standard output.
    Json,
}

/// A terminal in raw mode, on its alternate screen.
#[derive(Debug)]
pub struct RawTerminal {
    terminal: DefaultTerminal,
}

/// The request of the user at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Continue the demo.
    Continue,
    /// End the demo.
    Quit,
}

// === impl Screen ===

impl Screen {
    /// Prepares the output.
    ///
    /// # Errors
    ///
    /// The terminal mode cannot be changed.
    pub fn open(output: DemoOutput) -> io::Result<Self> {
        match output {
            DemoOutput::Auto if io::stdout().is_terminal() => {
                let terminal = ratatui::try_init()?;
                Ok(Self::Table(Box::new(RawTerminal { terminal })))
            }
            DemoOutput::Auto | DemoOutput::Lines => Ok(Self::Text),
            DemoOutput::Json => Ok(Self::Json),
        }
    }

    /// The interval between two views.
    #[must_use]
    pub const fn period(&self) -> Duration {
        match self {
            Self::Table(_) => Duration::from_millis(100),
            Self::Text | Self::Json => Duration::from_secs(1),
        }
    }

    /// Writes a view.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn show(&mut self, view: &View) -> io::Result<()> {
        match self {
            Self::Table(table) => {
                table.terminal.draw(|frame| {
                    let area = frame.area();
                    frame.render_widget(Text::from(table_lines(view, area.width)), area);
                })?;
                Ok(())
            }
            Self::Text => writeln!(io::stdout().lock(), "{}", text_line(view)),
            Self::Json => writeln!(io::stdout().lock(), "{}", json_line(view)),
        }
    }

    /// Returns the user's request: to quit with `q`, Escape or Ctrl-C, which is an ordinary key
    /// while the terminal is in raw mode.
    ///
    /// # Errors
    ///
    /// The terminal cannot be read.
    pub fn wish(&self) -> io::Result<Wish> {
        if !matches!(self, Self::Table(_)) {
            return Ok(Wish::Continue);
        }
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(Wish::Quit),
                    KeyCode::Char('c') if control => return Ok(Wish::Quit),
                    _ => {}
                }
            }
        }

        Ok(Wish::Continue)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

// === the table ===

/// The whole table for a width.
#[must_use]
pub fn table_lines(view: &View, width: u16) -> Vec<Line<'static>> {
    let columns = if width == 0 { WIDTH } else { width };
    let chart = usize::from(columns).saturating_sub(CHART_MARGIN).clamp(10, CHART_MAX);
    let mut lines = vec![title(view, columns), Line::default()];
    let most = view.models.iter().flat_map(|model| &model.variants).map(|line| line.max).max();
    for model in &view.models {
        lines.push(model_line(model, view, chart));
        for line in &model.variants {
            let max = f64::from(line.max);
            let desired = sparkline(&line.desired_past, max, view, chart).cyan();
            let ready = sparkline(&line.ready_past, max, view, chart).green();
            let price = format!("{} ${:.2}/h", line.accelerator, line.cost);
            lines.push(variant_line(line, most.unwrap_or(0)));
            lines.push(chart_line(&price, "desired", desired));
            lines.push(chart_line(&format!("{:.1} req/s", line.rate), "ready", ready));
            lines.push(why_line(line));
        }

        lines.push(Line::default());
    }

    lines.extend(footer(view));
    // Changes come last, because a small terminal cuts off the end of the table.
    lines.push(Line::default());
    lines.extend(view.changes.iter().map(|ReplicaChange { at, variant, headline }| {
        Line::from(vec![
            format!(" {:>5} ", clock(*at)).dark_gray(),
            format!("{variant:<12}").cyan(),
            headline.clone().into(),
        ])
    }));
    lines
}

fn title(view: &View, width: u16) -> Line<'static> {
    let (word, color) = match view.phase {
        WavePhase::Trough => ("▁ trough", Color::Blue),
        WavePhase::Rising => ("▲ rising", Color::Yellow),
        WavePhase::Crest => ("█ crest", Color::Yellow),
        WavePhase::Falling => ("▼ falling", Color::Blue),
        WavePhase::Burst => ("⚡ burst", Color::Red),
    };

    let length = view.length.map_or_else(String::new, |whole| format!(" of {}", clock(whole)));
    let note =
        if width >= WIDTH { "simulated: engines, load, HPA; real: the daemon, HTTP" } else { "" };
    Line::from(vec![
        " Plimsoll demo ".bold().reversed(),
        format!("  {}{length}  ", clock(view.elapsed)).into(),
        format!("{word:<11}").fg(color).bold(),
        note.dark_gray(),
    ])
}

fn model_line(model: &ModelView, view: &View, chart: usize) -> Line<'static> {
    let load = sparkline(&model.load, model.load_max, view, chart);
    Line::from(vec![
        format!(" {:<23}", model.name).bold(),
        format!("{:>7.1} req/s  ", model.rate).yellow(),
        load.yellow(),
    ])
}

/// Renders a variant. `most` is the largest maximum on the screen, to which the columns are
/// aligned.
fn variant_line(line: &VariantLine, most: u32) -> Line<'static> {
    let fleet = &line.fleet;
    let desired = line.desired.map_or_else(|| "–".to_owned(), |number| number.to_string());
    let mut spans = vec![format!("   {:<12}", line.name).bold().cyan()];
    spans.extend(dots(line, most));
    spans.push(format!("  want {desired:<2}").cyan().bold());
    spans.push(format!("have {:<2}", fleet.ready).green().bold());

    let starting = if fleet.starting > 0 { format!("+{}", fleet.starting) } else { String::new() };
    spans.push(format!("{starting:<3}").yellow());
    spans.push(format!(" run {:>3} wait {:>3}  KV ", fleet.running, fleet.waiting).into());

    let color = match fleet.kv {
        kv if kv >= 0.8 => Color::Red,
        kv if kv >= 0.6 => Color::Yellow,
        _ => Color::Green,
    };

    spans.push(Span::styled(bar(fleet.kv, KV_CELLS), Style::new().fg(color).bg(Color::Black)));
    spans.push(format!("{:>4.0}%", fleet.kv * 100.0).fg(color));
    Line::from(spans)
}

/// One symbol per possible replica: ready, starting, draining, or absent.
fn dots(line: &VariantLine, most: u32) -> Vec<Span<'static>> {
    let fleet = &line.fleet;
    let all = fleet.ready + fleet.starting + fleet.draining;
    let missing = line.max.saturating_sub(all);
    let padding = most.saturating_sub(all.max(line.max));

    vec![
        "●".repeat(fleet.ready as usize).green(),
        "◐".repeat(fleet.starting as usize).yellow(),
        "◌".repeat(fleet.draining as usize).magenta(),
        "·".repeat(missing as usize).dark_gray(),
        " ".repeat(padding as usize).into(),
    ]
}

fn chart_line(about: &str, label: &str, chart: Span<'static>) -> Line<'static> {
    Line::from(vec![format!("     {about:<20}{label:>13} ").dark_gray(), chart])
}

fn why_line(line: &VariantLine) -> Line<'static> {
    let text = line.headline.clone();
    let why = if line.held { text.yellow() } else { text.into() };
    let mut spans = vec!["     ".into(), why];
    spans.extend(line.trouble.iter().map(|trouble| format!("  [{trouble}]").red()));
    Line::from(spans)
}

fn footer(view: &View) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for model in &view.models {
        let ttft = model.ttft.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2} s"));
        let itl =
            model.itl.map_or_else(|| "–".to_owned(), |seconds| format!("{:.0} ms", seconds * 1e3));
        lines.push(Line::from(vec![
            format!(" {:<23}", model.name).into(),
            format!("within SLO {:>6}", percent(model.attainment)).bold(),
            format!("  TTFT p95 {ttft:>7}  ITL p95 {itl:>6}").into(),
        ]));
    }

    lines.push(Line::from(vec![
        format!(" {:<23}", "all").into(),
        format!("within SLO {:>6}", percent(view.attainment)).bold(),
        format!("  {} requests answered", view.finished).into(),
    ]));
    lines.push(Line::from(vec![
        format!(" {:<23}", "cost so far").into(),
        format!("${:.3}", view.cost).bold(),
        format!(
            "   largest fleet ${:.3}   decisions {}   q ends",
            view.cost_of_max, view.generation
        )
        .dark_gray(),
    ]));
    lines
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

/// A chart of one row over the view's span; the future stays empty.
fn sparkline(values: &[f64], max: f64, view: &View, cells: usize) -> String {
    let span = view.span.seconds().max(1.0);
    // One sample per second; a run that is longer than the span shows its end.
    let shown = &values[values.len().saturating_sub(whole(span))..];
    let per_cell = span / cells as f64;
    (0..cells)
        .map(|cell| {
            let from = whole(cell as f64 * per_cell);
            let to = whole((cell + 1) as f64 * per_cell).max(from + 1);
            let part = shown.get(from..to.min(shown.len())).unwrap_or_default();
            let peak = part.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if part.is_empty() || max <= 0.0 {
                return ' ';
            }

            // The lowest bar is always visible, so that zero differs from the future.
            EIGHTHS[whole((peak / max * 8.0).ceil()).clamp(1, 8)]
        })
        .collect()
}

fn bar(share: f64, cells: usize) -> String {
    let eighths = whole((share.clamp(0.0, 1.0) * 8.0 * cells as f64).round());
    (0..cells).map(|cell| LEFT_EIGHTHS[eighths.saturating_sub(cell * 8).min(8)]).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small lengths; the cast saturates and takes negatives to zero"
)]
fn whole(value: f64) -> usize {
    value as usize
}

fn clock(time: Micros) -> String {
    let seconds = time.duration().as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

// === the lines ===

fn text_line(view: &View) -> String {
    let mut text = format!("{} {:<7}", clock(view.elapsed), view.phase.label());
    for line in view.models.iter().flat_map(|model| &model.variants) {
        let desired = line.desired.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let fleet = &line.fleet;
        let _ = write!(
            text,
            " | {} want {desired} have {}+{} {:.1}/s run {} wait {} kv {:.0}%",
            line.name,
            fleet.ready,
            fleet.starting,
            line.rate,
            fleet.running,
            fleet.waiting,
            fleet.kv * 100.0
        );
        if let Some(PoolView { adapters, copies, plan_loads }) = line.pool {
            let loads = fleet.adapter_loads;
            let _ = write!(text, " adapters {adapters} copies {copies} to load {plan_loads}");
            let _ = write!(text, " loaded {loads}");
        }

        if let Some(trouble) = &line.trouble {
            let _ = write!(text, " ({trouble})");
        }
    }

    text
}

fn json_line(view: &View) -> serde_json::Value {
    let models = view.models.iter().map(|model| {
        let variants = model.variants.iter().map(|line| {
            json!({
                "name": line.name,
                "desired": line.desired,
                "held": line.held,
                "why": line.why,
                "headline": line.headline,
                "trouble": line.trouble,
                "ready": line.fleet.ready,
                "starting": line.fleet.starting,
                "draining": line.fleet.draining,
                "requests_per_second": line.rate,
                "running": line.fleet.running,
                "waiting": line.fleet.waiting,
                "kv_usage": line.fleet.kv,
                "pool": line.pool.map(|PoolView { adapters, copies, plan_loads }| json!({
                    "adapters": adapters,
                    "copies": copies,
                    "plan_loads": plan_loads,
                    "loaded": line.fleet.adapter_loads,
                })),
            })
        });

        json!({
            "name": model.name,
            "requests_per_second": model.rate,
            "ttft_p95_seconds": model.ttft,
            "itl_p95_seconds": model.itl,
            "slo_attainment": model.attainment,
            "variants": variants.collect::<Vec<_>>(),
        })
    });

    json!({
        "elapsed_seconds": view.elapsed.seconds(),
        "phase": view.phase.label(),
        "generation": view.generation,
        "models": models.collect::<Vec<_>>(),
        "slo_attainment": view.attainment,
        "requests_finished": view.finished,
        "cost": view.cost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::score::VariantSample;

    fn line(name: &str) -> VariantLine {
        VariantLine {
            name: name.to_owned(),
            accelerator: "L40S".to_owned(),
            cost: 1.3,
            max: 4,
            fleet: VariantSample {
                ready: 2,
                starting: 1,
                draining: 0,
                running: 84,
                waiting: 2,
                kv: 0.64,
                sent: 100,
                ..VariantSample::default()
            },
            rate: 10.8,
            desired: Some(3),
            held: false,
            why: "analyze: 2 -> 3, KV spare low (0.050 < 0.100)".to_owned(),
            headline: "Scale up 2 -> 3: low headroom: KV 5% < 10%".to_owned(),
            pool: None,
            trouble: None,
            desired_past: vec![0.0, 1.0, 2.0, 3.0],
            ready_past: vec![1.0, 1.0, 1.0, 2.0],
        }
    }

    fn view() -> View {
        View {
            elapsed: Micros::from_secs(4),
            length: Some(Micros::from_secs(40)),
            span: Micros::from_secs(40),
            phase: WavePhase::Rising,
            generation: 4,
            models: vec![ModelView {
                name: "Llama-3.1-8B-Instruct".to_owned(),
                rate: 41.2,
                load: vec![10.0, 20.0, 30.0, 40.0],
                load_max: 80.0,
                ttft: Some(0.31),
                itl: Some(0.043),
                attainment: Some(0.998),
                variants: vec![line("llama-l40s")],
            }],
            attainment: Some(0.998),
            finished: 1234,
            cost: 0.045,
            cost_of_max: 0.147,
            changes: vec![ReplicaChange {
                at: Micros::from_secs(3),
                variant: "llama-l40s".to_owned(),
                headline: "Scale up 1 -> 2: low headroom: KV 2% < 10%".to_owned(),
            }],
        }
    }

    fn text(lines: &[Line<'_>]) -> String {
        lines.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_table_shows_what_is_wanted_what_there_is_and_why() {
        let text = text(&table_lines(&view(), 100));
        for part in [
            "0:04 of 0:40",
            "▲ rising",
            "41.2 req/s",
            "●●◐·",
            "want 3",
            "have 2",
            "+1",
            "run  84 wait   2",
            "64%",
            "Scale up 2 -> 3: low headroom: KV 5% < 10%",
            "within SLO  99.8%",
            "TTFT p95  0.31 s",
            "0:03 llama-l40s  Scale up 1 -> 2",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn a_chart_grows_to_the_right_and_leaves_the_future_empty() {
        // 40 s in 20 cells: four samples fill two cells, each with the larger of its two.
        assert_eq!(sparkline(&[10.0, 20.0, 30.0, 40.0], 80.0, &view(), 20), format!("▂▄{:18}", ""));
        assert_eq!(sparkline(&[0.0; 40], 80.0, &view(), 5), "▁▁▁▁▁", "zero is not the future");
        let long = [vec![80.0; 100], vec![0.0; 40]].concat();
        assert_eq!(sparkline(&long, 80.0, &view(), 5), "▁▁▁▁▁", "the span's end is shown");
        assert_eq!(sparkline(&[1.0, 2.0], 0.0, &view(), 3), "   ");
    }

    #[test]
    fn a_bar_is_empty_at_nothing_and_full_at_one() {
        for (share, want) in [(0.0, "    "), (0.5, "██  "), (1.0, "████"), (7.0, "████")]
        {
            assert_eq!(bar(share, 4), want);
        }
        assert_eq!(bar(0.28, 4), "█▏  ");
    }

    #[test]
    fn lines_say_when_the_hpa_holds() {
        let mut view = view();
        view.models[0].variants[0].trouble = Some("HPA holds: the API answered 503".to_owned());
        assert_eq!(
            text_line(&view),
            "0:04 rising  | llama-l40s want 3 have 2+1 10.8/s run 84 wait 2 kv 64% \
             (HPA holds: the API answered 503)"
        );

        let json = json_line(&view);
        assert_eq!(json["models"][0]["variants"][0]["trouble"], "HPA holds: the API answered 503");
        assert_eq!(json["models"][0]["variants"][0]["desired"], 3);
    }

    #[test]
    fn no_width_makes_the_table_panic() {
        for width in [0, 1, 20, 39, 40, 41, 80, 1000] {
            assert!(table_lines(&view(), width).len() > 10);
        }
    }
}
