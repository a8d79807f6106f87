//! The table of `top`: rows, sort keys, a filter, and the state of the connection.

use std::ops::ControlFlow;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row as TableRow, Table, Widget};
use serde_json::Value;

use crate::cli::args::TopSort;
use crate::cli::top::row::{COUNT, Row};
use plimsoll_core::units::NounCount;

/// A column: its title, its width, and whether its values are numbers.
struct Column {
    title: &'static str,
    width: u16,
    is_number: bool,
}

/// The columns, in the order of [`Row::cells`]. The first takes the width of the longest name, and the
/// last the rest of the line.
const COLUMNS: [Column; COUNT] = [
    Column { title: "VARIANT", width: NAME_SHORT, is_number: false },
    Column { title: "WANT", width: 5, is_number: true },
    Column { title: "HAVE", width: 5, is_number: true },
    Column { title: "READY", width: 5, is_number: true },
    Column { title: "BOUNDS", width: 9, is_number: true },
    Column { title: "REQ/S", width: 6, is_number: true },
    Column { title: "KV%", width: 4, is_number: true },
    Column { title: "WAIT", width: 5, is_number: true },
    Column { title: "COST/H", width: 6, is_number: true },
    Column { title: "AGE", width: 5, is_number: true },
    Column { title: "STATE", width: 7, is_number: false },
    Column { title: "WHY", width: 20, is_number: false },
];

/// The places of the columns, the most important first. A narrow terminal shows the first of them.
const IMPORTANCE: [usize; COUNT] = [0, 1, 10, 2, 3, 5, 7, 6, 9, 4, 8, 11];

/// The width of names that other columns make way for.
const NAME_SHORT: u16 = 24;

/// The least width of names, unless the terminal is narrower: that of their title.
const NAME_MIN: u16 = 8;

/// The widest column of variants.
const NAME_MAX: u16 = 40;

/// The age from which shown data is old.
const OLD: Duration = Duration::from_secs(10);

/// The width of a table that is printed.
const TEXT_WIDTH: u16 = 160;

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
    /// To the first row.
    Home,
    /// To the last row.
    End,
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
            (_, Key::Home) => self.first = 0,
            (_, Key::End) => self.first = usize::MAX,
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
        let below = usize::from(body.height.saturating_sub(1));
        Paragraph::new(self.heading(now, below)).render(head, buffer);
        self.table(now, area.width).render(body, buffer);
        Paragraph::new(self.keys()).render(foot, buffer);
    }

    /// The table as lines of text, for an output that is no terminal.
    #[must_use]
    pub fn text(&self, now: Duration) -> String {
        let rows = u16::try_from(self.shown().len()).unwrap_or(u16::MAX);
        let area = Rect::new(0, 0, TEXT_WIDTH, rows.saturating_add(1));
        let mut buffer = Buffer::empty(area);
        self.table(now, area.width).render(area, &mut buffer);
        lines_of(&buffer).iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// The state, and the rows of which `below` are visible.
    fn heading(&self, now: Duration, below: usize) -> Vec<Line<'static>> {
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
        let last = (self.first + below).min(shown);
        let place = if self.first > 0 || last < shown {
            format!(", rows {}-{last}", self.first + 1)
        } else {
            String::new()
        };
        let summary = format!(
            "{shown} of {}{place}, by {}{order}{filter}{}",
            NounCount(all, "variant", "variants"),
            self.sort.label(),
            leader.unwrap_or_default(),
        );

        let mut first = Line::from(format!("plimsoll {}  ", self.url));
        first.spans.extend(state.spans);
        first.style = state.style;
        vec![first, Line::from(summary)]
    }

    fn table(&self, now: Duration, width: u16) -> Table<'static> {
        let rows = self.shown();
        let letters = rows.iter().map(|row| row.variant.chars().count()).max().unwrap_or_default();
        let longest = u16::try_from(letters).unwrap_or(NAME_MAX).clamp(NAME_MIN, NAME_MAX);
        let least = longest.min(NAME_SHORT);
        let columns = columns(width, least);
        let others: u16 = columns.iter().skip(1).map(|at| COLUMNS[*at].width + 1).sum();
        let name = longest.min(width.saturating_sub(others).max(least)).min(width);
        let widths = columns.iter().map(|at| match *at {
            0 => Constraint::Length(name),
            at if at + 1 == COUNT => Constraint::Fill(1),
            at => Constraint::Length(COLUMNS[at].width),
        });

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
            table_row(&columns, &row.cells(usize::from(name))).style(style)
        });

        let titles = COLUMNS.map(|column| column.title.to_owned());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let header = table_row(&columns, &titles).style(bold);
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

/// A row of these columns.
fn table_row(columns: &[usize], cells: &[String; COUNT]) -> TableRow<'static> {
    let aligned = columns.iter().map(|at| {
        let is_number = COLUMNS[*at].is_number;
        let alignment = if is_number { Alignment::Right } else { Alignment::Left };
        Text::from(cells[*at].clone()).alignment(alignment)
    });

    TableRow::new(aligned.collect::<Vec<_>>())
}

/// The places of the columns that fit into a width next to names of this width, in their order.
fn columns(width: u16, name: u16) -> Vec<usize> {
    let mut left = width.saturating_sub(name);
    let others = IMPORTANCE.into_iter().skip(1).take_while(|at| {
        let needed = COLUMNS[*at].width + 1;
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    });
    let mut fitting: Vec<usize> = IMPORTANCE.into_iter().take(1).chain(others).collect();
    fitting.sort_unstable();

    fitting
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
