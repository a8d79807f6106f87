//! The table of `top`: rows, sort keys, a filter, and the state of the connection.

use std::ops::ControlFlow;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as TableRow, Table, Widget};
use serde_json::Value;

use crate::cli::args::TopSort;
use crate::cli::top::row::Row;

/// The titles of the columns.
const TITLES: [&str; 11] = [
    "VARIANT",
    "WANT",
    "HAVE",
    "READY",
    "BOUNDS",
    "REQ/S",
    "KV%",
    "WAIT",
    "COST/H",
    "AGE",
    "STATE   WHY",
];

/// The widths of the columns between the first and the last.
const WIDTHS: [u16; 9] = [5, 5, 6, 8, 8, 5, 6, 8, 5];

/// The widest column of variants.
const NAME_MAX: u16 = 40;

/// The age from which shown data is old.
const OLD: Duration = Duration::from_secs(10);

/// Rows that a page key moves.
const PAGE: usize = 10;

/// The longest filter.
const FILTER_MAX: usize = 200;

/// The table and everything that keys change.
#[derive(Clone, Debug)]
pub struct TopTable {
    url: String,
    rows: Vec<Row>,
    decided_by: Option<String>,
    sort: TopSort,
    reversed: bool,
    filter: String,
    typing: bool,
    first: usize,
    connection: Connection,
}

/// The state of the connection to the daemon.
#[derive(Clone, Debug, PartialEq)]
enum Connection {
    /// The daemon has not answered yet.
    Connecting,
    /// The daemon answered at this instant.
    Live(Duration),
    /// The daemon does not answer. It last did at this instant, if ever.
    Lost { why: String, answered: Option<Duration> },
}

/// A key that the table knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A letter, or another character.
    Letter(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// Ctrl-C.
    Interrupt,
}

// === impl TopTable ===

impl TopTable {
    /// Creates a table without rows.
    #[must_use]
    pub const fn new(url: String, sort: TopSort, filter: String) -> Self {
        Self {
            url,
            rows: Vec::new(),
            decided_by: None,
            sort,
            reversed: false,
            filter,
            typing: false,
            first: 0,
            connection: Connection::Connecting,
        }
    }

    /// Takes an answer of the daemon, or the reason why there is none. Rows stay until the next
    /// answer.
    pub fn show(&mut self, now: Duration, answer: Result<Value, String>) {
        match answer {
            Ok(document) => {
                let variants = document["variants"].as_array().map(Vec::as_slice);
                self.rows = variants.unwrap_or_default().iter().map(Row::new).collect();
                self.decided_by = document["decided_by"].as_str().map(str::to_owned);
                self.connection = Connection::Live(now);
            }
            Err(why) => {
                let answered = match &self.connection {
                    Connection::Connecting => None,
                    Connection::Live(at) => Some(*at),
                    Connection::Lost { answered, .. } => *answered,
                };
                self.connection = Connection::Lost { why, answered };
            }
        }
    }

    /// Handles a key. Breaks if the user ends the program.
    pub fn press(&mut self, key: Key) -> ControlFlow<()> {
        match (self.typing, key) {
            (_, Key::Interrupt) | (false, Key::Letter('q') | Key::Escape) => {
                return ControlFlow::Break(());
            }
            (true, Key::Letter(letter)) => {
                if self.filter.len() < FILTER_MAX {
                    self.filter.push(letter);
                }
            }
            (true, Key::Backspace) => {
                self.filter.pop();
            }
            (true, Key::Enter) => self.typing = false,
            (true, Key::Escape) => {
                self.typing = false;
                self.filter.clear();
            }
            (false, Key::Letter('/')) => self.typing = true,
            (false, Key::Letter('r')) => self.reversed = !self.reversed,
            (false, Key::Letter(letter)) => {
                self.sort = TopSort::of_key(letter).unwrap_or(self.sort);
            }
            (_, Key::Up) => self.first = self.first.saturating_sub(1),
            (_, Key::Down) => self.first += 1,
            (_, Key::PageUp) => self.first = self.first.saturating_sub(PAGE),
            (_, Key::PageDown) => self.first += PAGE,
            (false, Key::Enter | Key::Backspace) => {}
        }

        self.first = self.first.min(self.shown().len().saturating_sub(1));
        ControlFlow::Continue(())
    }

    /// The rows that match the filter, sorted.
    fn shown(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> =
            self.rows.iter().filter(|row| row.matches(&self.filter)).collect();
        rows.sort_by(|a, b| a.compare(b, self.sort));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Draws the table.
    pub fn draw(&self, now: Duration, area: Rect, buffer: &mut Buffer) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
                .areas(area);
        Paragraph::new(self.heading(now)).render(head, buffer);
        self.table(now).render(body, buffer);
        Paragraph::new(self.keys()).render(foot, buffer);
    }

    /// The table as lines of text, for an output that is no terminal.
    #[must_use]
    pub fn text(&self, now: Duration, lines: u16) -> String {
        let rows = u16::try_from(self.shown().len()).unwrap_or(u16::MAX);
        let area = Rect::new(0, 0, 160, rows.saturating_add(1).min(lines));
        let mut buffer = Buffer::empty(area);
        self.table(now).render(area, &mut buffer);
        lines_of(&buffer).iter().fold(String::new(), |text, line| text + line + "\n")
    }

    fn heading(&self, now: Duration) -> Vec<Line<'static>> {
        let age = |at: Duration| now.saturating_sub(at).as_secs_f64();
        let bad = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        let state = match &self.connection {
            Connection::Connecting => Line::from("connecting"),
            Connection::Live(at) => Line::from(format!("live, {:.0} s ago", age(*at))),
            Connection::Lost { why, answered: Some(at) } => Line::styled(
                format!("not connected, data of {:.0} s ago: {why}; trying again", age(*at)),
                bad,
            ),
            Connection::Lost { why, answered: None } => {
                Line::styled(format!("not connected: {why}; trying again"), bad)
            }
        };

        let shown = self.shown().len();
        let all = self.rows.len();
        let leader = self.decided_by.as_ref().map(|it| format!(", decided by {it}"));
        let order = if self.reversed { ", reversed" } else { "" };
        let filter = if self.typing || !self.filter.is_empty() {
            format!(", filter: {}{}", self.filter, if self.typing { "_" } else { "" })
        } else {
            String::new()
        };
        let summary = format!(
            "{} of {all} variants{}, by {}{order}{filter}",
            shown,
            leader.unwrap_or_default(),
            self.sort.label()
        );

        let mut first = Line::from(format!("plimsoll {}  ", self.url));
        first.spans.extend(state.spans);
        first.style = state.style;
        vec![first, Line::from(summary)]
    }

    fn table(&self, now: Duration) -> Table<'static> {
        let rows = self.shown();
        let longest = rows.iter().map(|row| row.variant.len()).max().unwrap_or_default();
        let name = u16::try_from(longest).unwrap_or(NAME_MAX).clamp(8, NAME_MAX);
        let widths = std::iter::once(Constraint::Length(name))
            .chain(WIDTHS.map(Constraint::Length))
            .chain([Constraint::Fill(1)]);

        let old = match self.connection {
            Connection::Live(at) => now.saturating_sub(at) > OLD,
            Connection::Connecting | Connection::Lost { .. } => true,
        };
        let base = if old { Style::new().add_modifier(Modifier::DIM) } else { Style::new() };
        let lines = rows.iter().skip(self.first).map(|row| {
            let style = match row.state.as_str() {
                "fresh" => base,
                "pinned" | "paused" => base.fg(Color::Cyan),
                _ => base.fg(Color::Yellow),
            };
            TableRow::new(row.cells()).style(style)
        });
        let header = TableRow::new(TITLES).style(Style::new().add_modifier(Modifier::BOLD));
        Table::new(lines.collect::<Vec<_>>(), widths.collect::<Vec<_>>()).header(header)
    }

    fn keys(&self) -> Line<'static> {
        let keys = if self.typing {
            "Enter: keep the filter  Esc: clear it"
        } else {
            "q: quit  /: filter  r: reverse  sort by n: name  d: desired  l: load  k: KV  \
             w: waiting  c: cost  a: age"
        };
        Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
    }
}

/// The text of a buffer, without the spaces at the ends of its lines.
#[must_use]
pub fn lines_of(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let line = |y: u16| {
        let cells = (area.left()..area.right()).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (area.top()..area.bottom()).map(line).collect()
}
