//! Parts of a command line that may hold arguments and are only known inside the container.
//!
//! The value of a flag that Plimsoll reads is checked where the flag is read. Here it is about the
//! other words: a variable that holds whole flags, the output of a command, or a start script.

use crate::analyze::engine_args::names_engine;
use crate::analyze::engine_args::serving::is_valued;
use crate::analyze::engine_args::syntax::EngineSyntax;
use crate::analyze::engine_args::words::{CommandWord, is_shell};
use crate::observe::template::Container;

/// The words that may hold arguments of the engine and are unknown.
pub(super) fn unknown_words(syntax: &EngineSyntax, commands: &[Vec<CommandWord>]) -> Vec<String> {
    let engines: Vec<&Vec<CommandWord>> =
        commands.iter().filter(|command| runs_engine(command)).collect();
    // If no command runs the engine, each may be a script that does.
    let own = if engines.is_empty() { commands.iter().collect() } else { engines };

    own.into_iter().flat_map(|command| unknown_of(syntax, command)).collect()
}

fn runs_engine(command: &[CommandWord]) -> bool {
    let words: Vec<String> = command.iter().map(|word| word.text.clone()).collect();
    names_engine(&Container::default(), &words)
}

fn unknown_of(syntax: &EngineSyntax, command: &[CommandWord]) -> Vec<String> {
    let is_run_by_shell = command.first().is_some_and(|word| is_shell(&word.text));
    let script = command
        .iter()
        .find(|word| !is_shell(&word.text) && !word.text.starts_with('-'))
        .filter(|word| is_run_by_shell || word.text.rsplit('.').next() == Some("sh"));
    let unknown = command.iter().enumerate().filter(|(at, word)| {
        let before = at.checked_sub(1).map(|index| command[index].text.as_str());
        let is_last = at + 1 == command.len();
        word.text.contains(['$', '`']) && may_be_arguments(syntax, before, word, is_last)
    });

    script.into_iter().chain(unknown.map(|(_, word)| word)).map(|word| word.text.clone()).collect()
}

/// Returns true if an unknown word may hold arguments instead of the value of the flag before it, or
/// of the model's name.
fn may_be_arguments(
    syntax: &EngineSyntax,
    before: Option<&str>,
    word: &CommandWord,
    is_last: bool,
) -> bool {
    if word.text.starts_with('-') {
        return false;
    }

    match before {
        Some("serve") => is_last,
        Some(flag) if flag.starts_with('-') && !flag.contains('=') => {
            let name = flag.trim_start_matches('-').replace('_', "-");
            match (syntax.setting)(&name) {
                Some(setting) => setting.is_switch(),
                // A flag that Plimsoll does not read takes a value or none.
                None => word.splits && !is_valued(&name),
            }
        }
        _ => true,
    }
}
