//! `top`: a live table of all variants of a running daemon.
//!
//! A thread of its own asks the daemon, so that keys are answered while the daemon is not. The
//! table and its keys are in [`table`], which knows neither a terminal nor a network.

mod row;
pub mod table;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use crate::cli::args::TopArgs;
use crate::cli::ask::{self, AskError};
use crate::cli::top::table::{Key, TopTable};
use plimsoll_daemon::clock::Clock;
use plimsoll_lab::output::print;

/// The time between two looks at the keyboard and the daemon.
const LOOK: Duration = Duration::from_millis(100);

/// The answer to a poll, or the reason why there is none.
type Poll = Result<Value, String>;

/// Shows the table until the user ends it; prints it once if the output is no terminal.
///
/// # Errors
///
/// The terminal cannot be used. If the table is printed once: the daemon does not answer.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let TopArgs { url, interval, sort, filter, once } = args;
    let mut table = TopTable::new(url.clone(), *sort, filter.clone().unwrap_or_default());
    let clock = Clock::start();
    if *once || !io::stdout().is_terminal() {
        let (status, text) = ask::get(url, "/api/v1/decisions")?;
        if !status.is_success() {
            return Err(AskError::answer(url, status.to_string()).into());
        }

        table.show(clock.elapsed(), Ok(serde_json::from_str(&text)?));
        return print(&table.text(clock.elapsed()));
    }

    let polls = poll(url.clone(), *interval);
    let mut terminal = ratatui::try_init()?;
    let ended = live(&mut terminal, &mut table, &polls, clock);
    ratatui::restore();
    ended
}

/// Draws until the user ends it.
fn live(
    terminal: &mut ratatui::DefaultTerminal,
    table: &mut TopTable,
    polls: &Receiver<Poll>,
    clock: Clock,
) -> anyhow::Result<()> {
    loop {
        if let Ok(poll) = polls.try_recv() {
            table.show(clock.elapsed(), poll);
        }
        terminal.draw(|frame| table.draw(clock.elapsed(), frame.area(), frame.buffer_mut()))?;

        if event::poll(LOOK)?
            && let Event::Key(pressed) = event::read()?
            && pressed.kind == KeyEventKind::Press
            && let Some(key) = key(pressed)
            && table.press(key).is_break()
        {
            return Ok(());
        }
    }
}

/// The key of the table that was pressed; `None` for others.
const fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        return if matches!(pressed.code, KeyCode::Char('c')) {
            Some(Key::Interrupt)
        } else {
            None
        };
    }

    match pressed.code {
        KeyCode::Char(letter) => Some(Key::Letter(letter)),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Backspace => Some(Key::Backspace),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::PageUp => Some(Key::PageUp),
        KeyCode::PageDown => Some(Key::PageDown),
        KeyCode::Home => Some(Key::Home),
        KeyCode::End => Some(Key::End),
        _ => None,
    }
}

/// Polls the daemon on a thread of its own, until the receiver is gone.
fn poll(url: String, interval: Duration) -> Receiver<Poll> {
    let (polls, received) = sync_channel(1);
    thread::spawn(move || {
        while send(&polls, &url).is_ok() {
            thread::sleep(interval);
        }
    });
    received
}

fn send(polls: &SyncSender<Poll>, url: &str) -> Result<(), ()> {
    let answer = match ask::get(url, "/api/v1/decisions") {
        Ok((status, text)) if status.is_success() => {
            serde_json::from_str(&text).map_err(|error| error.to_string())
        }
        Ok((status, _)) => Err(format!("it answers with {status}")),
        Err(error) => Err(format!("{:#}", error.root_cause())),
    };

    polls.send(answer).map_err(drop)
}
