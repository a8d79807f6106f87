//! Capacity cards on the command line: export from a daemon or a state file, check, and schema.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::args::{CardCheckArgs, CardCommand, CardExportArgs, CardFormat};
use crate::cli::ask::{self, AskError};
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::analyze::foresight::cards;
use plimsoll_daemon::config::{self, Files, LoadError, LoadedConfig};
use plimsoll_daemon::publish::state::{self, SavedDecision, StateError};
use plimsoll_lab::output::print;

/// The path at which a daemon serves its cards.
const PATH: &str = "/api/v1/cards";

/// The largest file: some ten thousand cards.
const ANSWER_MAX: usize = 16 << 20;

/// The reason that there are no cards.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CardError {
    /// A file is too large to hold cards.
    #[error("{} is larger than {ANSWER_MAX} bytes, the maximum for a file of capacity cards", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// Runs the command.
///
/// # Errors
///
/// A file cannot be read or is not valid, or the daemon does not answer.
pub(crate) fn run(command: &CardCommand) -> anyhow::Result<()> {
    match command {
        CardCommand::Export(args) => export(args),
        CardCommand::Check(args) => check(args),
        CardCommand::Schema => {
            let schema = serde_json::to_string_pretty(&config::card_schema())?;
            print(&format!("{schema}\n"))
        }
    }
}

fn export(args: &CardExportArgs) -> anyhow::Result<()> {
    let CardExportArgs { url, state, config, format } = args;
    let cards = match (state, config) {
        (Some(state), Some(config)) => remembered(state, config)?,
        _ => ask(url)?,
    };
    if cards.is_empty() {
        let why = "there is no capacity to export yet: Plimsoll must have learned from replicas \
            for a minute, and their variants must name an accelerator";
        writeln!(io::stderr(), "{why}")?;
    }

    print(&match format {
        CardFormat::Yaml => config::cards_text(&cards),
        CardFormat::Json => serde_json::to_string_pretty(&config::cards(&cards))? + "\n",
    })
}

/// Fetches the cards of a running daemon.
fn ask(url: &str) -> anyhow::Result<Vec<Arc<Card>>> {
    let (status, text) = ask::get(url, PATH)?;
    if !status.is_success() {
        return Err(AskError::answer(url, status.to_string()).into());
    }

    let (cards, _) = config::read_cards(&format!("{url}{PATH}"), &text)?;
    Ok(cards)
}

/// Builds the cards from a state file.
fn remembered(state: &Path, config: &Path) -> anyhow::Result<Vec<Arc<Card>>> {
    let LoadedConfig { config, .. } = config::load(config, Files::NotChecked)?;
    let _there = fs::metadata(state).map_err(|source| StateError::Io {
        path: state.to_owned(),
        action: "read",
        source,
    })?;

    let mut cards: Vec<Arc<Card>> = Vec::new();
    for SavedDecision { variant, memory, .. } in state::load(state)? {
        let known = config.variants.iter().find(|it| it.spec.key == variant);
        let saved = memory.as_ref().and_then(|memory| memory.learned.foresight.as_ref());
        let Some((known, saved)) = known.zip(saved) else { continue };
        let Some(card) = cards::remembered(&known.spec, saved) else { continue };
        match cards.iter_mut().find(|other| other.kind == card.kind) {
            Some(other) if other.learned.lessons >= card.learned.lessons => {}
            Some(other) => *other = Arc::new(card),
            None => cards.push(Arc::new(card)),
        }
    }

    Ok(cards)
}

fn check(args: &CardCheckArgs) -> anyhow::Result<()> {
    let mut shown = Vec::new();
    for path in &args.files {
        let origin = path.display().to_string();
        let length = fs::metadata(path).map_err(|source| unread(path, source))?.len();
        if length > ANSWER_MAX as u64 {
            return Err(CardError::TooLarge { path: path.clone() }.into());
        }

        let text = fs::read_to_string(path).map_err(|source| unread(path, source))?;
        let (cards, warnings) = config::read_cards(&origin, &text)?;
        for warning in &warnings {
            writeln!(io::stderr(), "{warning}")?;
        }

        shown.push(format!("{origin} is valid: {}\n", config::counted(cards.len(), "card")));
        shown.extend(cards.iter().map(|card| format!("  {card}, for {}\n", card.kind)));
    }

    print(&shown.concat())
}

fn unread(path: &Path, source: io::Error) -> LoadError {
    LoadError::Read { path: path.to_owned(), source }
}
