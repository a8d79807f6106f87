//! The words of a command line, as the engine's process gets them.
//!
//! A container's command may be a shell with a script, may refer to its environment in two
//! syntaxes, and may name a file with more arguments. Each is undone here, as far as it can be
//! without running anything: a script is read as words, with quotes, escapes, comments, assignments
//! and variables, and nothing else of the shell's language. What depends on more than that (a
//! substituted command, a variable that nobody sets) stays as it is written, and no number can be
//! read from it.

use std::collections::BTreeMap;

use crate::analyze::engine_args::Container;
use crate::observe::template::expand_references;

/// The shells whose scripts are read.
const SHELLS: [&str; 5] = ["sh", "bash", "ash", "dash", "zsh"];

/// Variables with their values.
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

/// The script that a shell is given, if a shell is what is run.
fn script_of(words: &[String]) -> Option<&str> {
    let shell = words.iter().position(|word| {
        let program = word.rsplit('/').next().unwrap_or(word);
        SHELLS.contains(&program)
    })?;
    let is_script_flag =
        |flag: &String| flag.starts_with('-') && !flag.starts_with("--") && flag.ends_with('c');
    let flag = words[shell..].iter().position(is_script_flag)?;
    words.get(shell + flag + 1).map(String::as_str)
}

/// The words of a script, of all its commands in turn.
fn split_script(script: &str, environment: &Environment) -> Vec<String> {
    let mut environment = environment.clone();
    let mut words = Vec::new();
    let mut reader = Reader { rest: script, word: None };
    while let Some(word) = reader.next_word(&environment) {
        match word.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, value)) => {
                environment.insert(name.to_owned(), value.to_owned());
            }
            None => words.push(word),
        }
    }
    words
}

/// Reads a script word by word.
struct Reader<'a> {
    rest: &'a str,
    /// The word that is being read; `Some` of an empty text is a word too, such as `''`.
    word: Option<String>,
}

impl Reader<'_> {
    fn next_word(&mut self, environment: &Environment) -> Option<String> {
        while let Some(character) = self.take() {
            match character {
                // A line that goes on.
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

    /// The rest of a text in single quotes, in which nothing has a meaning.
    fn quoted(&mut self) {
        let (inner, behind) = self.rest.split_once('\'').unwrap_or((self.rest, ""));
        self.word.get_or_insert_default().push_str(inner);
        self.rest = behind;
    }

    /// The rest of a text in double quotes, in which variables and escapes have one.
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

    /// The value of the variable whose `$` has been read: `$NAME`, `${NAME}` or `${NAME:-default}`;
    /// the text itself when it is none of these or has no value.
    fn variable(&mut self, environment: &Environment) -> String {
        if let Some(inner) = self.rest.strip_prefix('{')
            && let Some((inside, behind)) = inner.split_once('}')
        {
            self.rest = behind;
            let (name, default) = match inside.split_once(":-").or(inside.split_once('-')) {
                Some((name, default)) => (name, Some(default)),
                None => (inside, None),
            };
            let value = environment.get(name).filter(|value| !value.is_empty());
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

/// The arguments of a configuration file: one `key: value` a line, as both engines read it.
///
/// A value below a key is `key.value`, as on the command line. What is in a list, or deeper, is none
/// of the settings that matter here.
pub(super) fn file_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut above = String::new();
    for line in text.lines() {
        let line = line.split(" #").next().unwrap_or(line).trim_end();
        let is_top_level = line.starts_with(|first: char| first.is_ascii_alphabetic());
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if is_top_level {
            above = if value.is_empty() { format!("{key}.") } else { String::new() };
        } else if above.is_empty() || key.starts_with(['#', '-']) {
            continue;
        }
        let key = if is_top_level { key.to_owned() } else { format!("{above}{key}") };
        let unquoted = value
            .strip_prefix(['"', '\''])
            .and_then(|inner| inner.strip_suffix(['"', '\'']))
            .unwrap_or(value);
        if !unquoted.is_empty() {
            words.push(format!("--{key}={unquoted}"));
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
