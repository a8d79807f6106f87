//! The words of a command line, as the engine's process receives them.
//!
//! A container's command may be a shell with a script. It may also refer to its environment in two
//! syntaxes, and it may name a file with more arguments. This module resolves each of these as far
//! as possible without running anything. It splits a script into words, and handles quotes,
//! escapes, comments, assignments and variables. It ignores the rest of the shell language. Text
//! that depends on more than that (a substituted command, an unset variable) stays as written, and
//! no number can be read from it.

use std::collections::BTreeMap;

use crate::observe::template::{Container, expand_references};

/// The shells whose scripts are parsed.
const SHELLS: [&str; 5] = ["sh", "bash", "ash", "dash", "zsh"];

/// Variables and their values.
type Environment = BTreeMap<String, String>;

/// The words of a container's command line.
pub(super) fn words(container: &Container) -> Vec<String> {
    let written = container.command.iter().chain(&container.args);
    let words: Vec<String> =
        written.map(|word| expand_references(word, &container.environment)).collect();

    match script_of(&words) {
        Some(script) => split_script(script, &container.environment),
        None => words,
    }
}

/// The script that a shell runs, if the command is a shell.
fn script_of(words: &[String]) -> Option<&str> {
    let shell = words.iter().position(|word| {
        let program = word.rsplit('/').next().unwrap_or(word);
        SHELLS.contains(&program)
    })?;
    let flag = words[shell..].iter().position(|word| is_script_flag(word))?;

    words.get(shell + flag + 1).map(String::as_str)
}

/// Returns true if a shell takes the word after this flag as its script, such as `-c` or `-ec`.
fn is_script_flag(flag: &str) -> bool {
    flag.starts_with('-') && !flag.starts_with("--") && flag.ends_with('c')
}

/// The words of a script, across all its commands.
fn split_script(script: &str, environment: &Environment) -> Vec<String> {
    let mut variables = environment.clone();
    let mut words = Vec::new();
    let mut reader = ScriptReader { rest: script, word: None };
    while let Some(word) = reader.next_word(&variables) {
        match word.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, value)) => {
                variables.insert(name.to_owned(), value.to_owned());
            }
            None => words.push(word),
        }
    }

    words
}

/// Reads a script word by word.
struct ScriptReader<'a> {
    rest: &'a str,
    /// The word being read. `Some` of an empty text is also a word, such as `''`.
    word: Option<String>,
}

impl ScriptReader<'_> {
    fn next_word(&mut self, environment: &Environment) -> Option<String> {
        while let Some(character) = self.take() {
            match character {
                // A line continuation.
                '\\' if self.rest.starts_with('\n') => {
                    self.take();
                }
                '\\' => {
                    let escaped = self.take();
                    self.push(escaped.unwrap_or('\\'));
                }
                '\'' => self.quoted(),
                '"' => self.double_quoted(environment),
                '$' => {
                    let value = self.variable(environment);
                    self.word.get_or_insert_default().push_str(&value);
                }
                '#' if self.word.is_none() => {
                    self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
                }
                ';' | '&' | '|' | '(' | ')' => {
                    if self.word.is_some() {
                        break;
                    }
                }
                space if space.is_whitespace() => {
                    if self.word.is_some() {
                        break;
                    }
                }
                other => self.push(other),
            }
        }

        self.word.take()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }

    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().push(character);
    }

    /// Reads the rest of a single-quoted text, which has no special characters.
    fn quoted(&mut self) {
        let (inner, behind) = self.rest.split_once('\'').unwrap_or((self.rest, ""));
        self.word.get_or_insert_default().push_str(inner);
        self.rest = behind;
    }

    /// Reads the rest of a double-quoted text, in which variables and escapes are expanded.
    fn double_quoted(&mut self, environment: &Environment) {
        self.word.get_or_insert_default();

        while let Some(character) = self.take() {
            match character {
                '"' => return,
                '\\' if self.rest.starts_with(['"', '\\', '$', '`', '\n']) => {
                    if let Some(escaped) = self.take().filter(|escaped| *escaped != '\n') {
                        self.push(escaped);
                    }
                }
                '$' => {
                    let value = self.variable(environment);
                    self.word.get_or_insert_default().push_str(&value);
                }
                other => self.push(other),
            }
        }
    }

    /// The value of the variable whose `$` has been read: `$NAME`, `${NAME}` or `${NAME:-default}`.
    /// Returns the text itself if it has another form or the variable has no value.
    fn variable(&mut self, environment: &Environment) -> String {
        if let Some(inner) = self.rest.strip_prefix('{')
            && let Some((inside, behind)) = inner.split_once('}')
        {
            self.rest = behind;
            let (name, default) = match inside.split_once(":-").or(inside.split_once('-')) {
                Some((name, default)) => (name, Some(default)),
                None => (inside, None),
            };
            let value = environment.get(name).filter(|text| !text.is_empty());
            return value
                .map(String::as_str)
                .or(default)
                .map_or_else(|| format!("${{{inside}}}"), ToOwned::to_owned);
        }

        let length = self.rest.find(|c: char| !is_name_character(c)).unwrap_or(self.rest.len());
        let (name, behind) = self.rest.split_at(length);
        self.rest = behind;
        environment.get(name).cloned().unwrap_or_else(|| format!("${name}"))
    }
}

/// The arguments of a configuration file: one `key: value` per line, as both engines read it.
///
/// A value below a key becomes `key.value`, as on the command line. Settings in lists or at deeper
/// levels don't affect capacity and are skipped.
pub(super) fn file_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut above = String::new();
    for line in text.lines() {
        let content = line.split(" #").next().unwrap_or(line).trim_end();
        let is_top_level = content.starts_with(|first: char| first.is_ascii_alphabetic());
        let Some((before, after)) = content.split_once(':') else { continue };
        let key = before.trim();
        let value = after.trim();
        if is_top_level {
            above = if value.is_empty() { format!("{key}.") } else { String::new() };
        } else if above.is_empty() || key.starts_with(['#', '-']) {
            continue;
        }

        let flag = if is_top_level { key.to_owned() } else { format!("{above}{key}") };
        let unquoted = value
            .strip_prefix(['"', '\''])
            .and_then(|inner| inner.strip_suffix(['"', '\'']))
            .unwrap_or(value);
        if !unquoted.is_empty() {
            words.push(format!("--{flag}={unquoted}"));
        }
    }

    words
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(is_name_character)
        && !text.starts_with(|first: char| first.is_ascii_digit())
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}
