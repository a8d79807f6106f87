//! The words of a command line, as the engine's process receives them.
//!
//! A container's command may be a shell with a script. It may also refer to its environment in two
//! syntaxes, and it may name a file with more arguments. This module resolves each of these as far
//! as possible without running anything. It splits a script into commands and words, and handles
//! quotes, escapes, comments, assignments, variables and the script's own arguments. It ignores the
//! rest of the shell language. Text that depends on more than that (a substituted command, an unset
//! variable) stays as written, and no number can be read from it.

use std::collections::{BTreeMap, VecDeque};

use crate::observe::template::{Container, EXPANSION_MAX, expand_references, split_name};

/// The shells whose scripts are parsed.
const SHELLS: [&str; 5] = ["sh", "bash", "ash", "dash", "zsh"];

/// Variables and their values.
type Environment = BTreeMap<String, String>;

/// A word of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandWord {
    pub(super) text: String,
    /// True if the word has unknown text that a shell splits into words.
    pub(super) splits: bool,
}

/// The commands of a container, each with its words. Only a script has several.
pub(super) fn commands(container: &Container) -> Vec<Vec<CommandWord>> {
    let written = container.command.iter().chain(&container.args);
    let mut room = EXPANSION_MAX;
    let words: Vec<String> =
        written.map(|word| expand_references(word, &container.environment, &mut room)).collect();

    match script_of(&words) {
        Some(script) => {
            let arguments = words.get(script + 2..).unwrap_or_default();
            let reader = ScriptReader {
                rest: &words[script],
                arguments,
                room,
                takes_arrays: true,
                ..ScriptReader::default()
            };
            reader.commands(&container.environment)
        }
        None => vec![words.into_iter().map(|text| CommandWord { text, splits: false }).collect()],
    }
}

/// The words of all these commands.
pub(super) fn words(commands: &[Vec<CommandWord>]) -> Vec<String> {
    commands.iter().flatten().map(|word| word.text.clone()).collect()
}

/// Returns true if a word is the name or the path of a shell.
pub(super) fn is_shell(word: &str) -> bool {
    SHELLS.contains(&word.rsplit('/').next().unwrap_or(word))
}

/// The position of the script that a shell runs, if the command is a shell.
fn script_of(words: &[String]) -> Option<usize> {
    let shell = words.iter().position(|word| is_shell(word))?;
    let flag = words[shell..].iter().position(|word| is_script_flag(word))?;
    let script = shell + flag + 1;

    (script < words.len()).then_some(script)
}

/// Returns true if a shell takes the word after this flag as its script, such as `-c` or `-ec`.
fn is_script_flag(flag: &str) -> bool {
    flag.starts_with('-') && !flag.starts_with("--") && flag.ends_with('c')
}

/// Reads a script word by word.
#[derive(Default)]
struct ScriptReader<'a> {
    rest: &'a str,
    /// The arguments of the script.
    arguments: &'a [String],
    /// The arrays that the script has set.
    arrays: BTreeMap<String, Vec<CommandWord>>,
    /// True outside of an array, which cannot contain another one.
    takes_arrays: bool,
    /// Bytes that values may still add.
    room: usize,
    /// The word being read. `Some` of an empty text is also a word, such as `''`.
    word: Option<CommandWord>,
    /// The parts that have been read and not returned.
    whole: VecDeque<ScriptPart>,
}

/// A part of a script.
enum ScriptPart {
    Word(CommandWord),
    /// The end of a command.
    End,
}

impl ScriptReader<'_> {
    /// Reads the commands to the end.
    fn commands(mut self, environment: &Environment) -> Vec<Vec<CommandWord>> {
        let mut variables = environment.clone();
        let mut commands = Vec::new();
        let mut command = Vec::new();
        while let Some(part) = self.next_part(&variables) {
            let ScriptPart::Word(word) = part else {
                commands.push(std::mem::take(&mut command));
                continue;
            };
            match word.text.split_once('=').filter(|(name, _)| is_name(name)) {
                Some((name, value)) => {
                    variables.insert(name.to_owned(), value.to_owned());
                }
                None => command.push(word),
            }
        }

        commands.push(command);
        commands.retain(|command| !command.is_empty());
        commands
    }

    fn next_part(&mut self, environment: &Environment) -> Option<ScriptPart> {
        if self.whole.is_empty() {
            self.read_word(environment);
        }
        self.whole.pop_front()
    }

    /// Reads at least one word or the end of a command, unless the script has ended.
    fn read_word(&mut self, environment: &Environment) {
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
                '$' if self.list() => {}
                '$' => match self.variable(environment) {
                    Ok(value) => self.split(&value),
                    Err(unknown) => {
                        let word = self.word.get_or_insert_default();
                        word.text.push_str(&unknown);
                        word.splits = true;
                    }
                },
                '`' => {
                    let (inner, behind) = self.rest.split_once('`').unwrap_or((self.rest, ""));
                    let word = self.word.get_or_insert_default();
                    word.text.extend(["`", inner, "`"]);
                    word.splits = true;
                    self.rest = behind;
                }
                '#' if self.word.is_none() => {
                    self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
                }
                '(' if self.array(environment) => {}
                ';' | '&' | '|' | '(' | ')' | '\n' => {
                    self.end_word();
                    self.whole.push_back(ScriptPart::End);
                    return;
                }
                space if space.is_whitespace() => {
                    self.end_word();
                    if !self.whole.is_empty() {
                        return;
                    }
                }
                other => self.push(other),
            }
        }

        self.end_word();
    }

    fn end_word(&mut self) {
        self.whole.extend(self.word.take().map(ScriptPart::Word));
    }

    /// Adds the value of a variable that is not quoted. Its words are words of the command.
    fn split(&mut self, value: &str) {
        for (at, part) in value.split(char::is_whitespace).enumerate() {
            if at > 0 {
                self.end_word();
            }

            if !part.is_empty() {
                self.word.get_or_insert_default().text.push_str(part);
            }
        }
    }

    /// Adds all arguments of the script, or all words of an array, after a `$`. Returns false if
    /// there is something else.
    fn list(&mut self) -> bool {
        let (words, behind) = if let Some(behind) = self.rest.strip_prefix(['@', '*']) {
            let given = self.arguments.iter().cloned();
            (given.map(|text| CommandWord { text, splits: false }).collect(), behind)
        } else {
            let braced = self.rest.strip_prefix('{').and_then(|text| split_name(text, b'}'));
            let Some((inside, behind)) = braced else { return false };
            let array = inside.strip_suffix("[@]").or_else(|| inside.strip_suffix("[*]"));
            let Some(words) = array.and_then(|name| self.arrays.get(name)) else { return false };
            (words.clone(), behind)
        };

        let size: usize = words.iter().map(|word| word.text.len() + 1).sum();
        if !self.makes_room(size) {
            return false;
        }

        self.rest = behind;
        for (at, CommandWord { text, splits }) in words.into_iter().enumerate() {
            if at > 0 {
                self.end_word();
            }

            let word = self.word.get_or_insert_default();
            word.text.push_str(&text);
            word.splits |= splits;
        }
        true
    }

    /// Reads the words of an array whose `(` has been read: `NAME=(…)` or `NAME+=(…)`. Returns false
    /// if there is something else.
    fn array(&mut self, environment: &Environment) -> bool {
        let Some(before) = self.word.as_ref().and_then(|word| word.text.strip_suffix('=')) else {
            return false;
        };
        let (name, adds) = before.strip_suffix('+').map_or((before, false), |start| (start, true));
        if !is_name(name) || !self.takes_arrays {
            return false;
        }

        let end = end_of_substitution(self.rest);
        let inner = self.rest[..end].trim_end_matches(')');
        let mut reader = ScriptReader {
            rest: inner,
            arguments: self.arguments,
            room: self.room,
            ..ScriptReader::default()
        };
        let mut words = Vec::new();
        while let Some(part) = reader.next_part(environment) {
            if let ScriptPart::Word(word) = part {
                words.push(word);
            }
        }

        self.room = reader.room;
        let array = self.arrays.entry(name.to_owned()).or_default();
        if !adds {
            array.clear();
        }

        array.extend(words);
        self.rest = &self.rest[end..];
        self.word = None;
        true
    }

    fn take(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }

    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().text.push(character);
    }

    /// Reads the rest of a single-quoted text, which has no special characters.
    fn quoted(&mut self) {
        let (inner, behind) = self.rest.split_once('\'').unwrap_or((self.rest, ""));
        self.word.get_or_insert_default().text.push_str(inner);
        self.rest = behind;
    }

    /// Reads the rest of a double-quoted text, in which variables and escapes are expanded.
    fn double_quoted(&mut self, environment: &Environment) {
        if let Some(behind) = self.rest.strip_prefix('$') {
            let rest = std::mem::replace(&mut self.rest, behind);
            if self.list() {
                self.rest = self.rest.strip_prefix('"').unwrap_or(self.rest);
                return;
            }
            self.rest = rest;
        }
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
                    let value = self.variable(environment).unwrap_or_else(|unknown| unknown);
                    self.word.get_or_insert_default().text.push_str(&value);
                }
                other => self.push(other),
            }
        }
    }

    /// The value of the variable whose `$` has been read: `$NAME`, `${NAME}` or `${NAME:-default}`.
    /// Fails with the text itself if it has another form, such as the output of a command, or if the
    /// variable has no value.
    fn variable(&mut self, environment: &Environment) -> Result<String, String> {
        if let Some(inner) = self.rest.strip_prefix('(') {
            let end = end_of_substitution(inner);
            let unknown = format!("$({}", &inner[..end]);

            self.rest = &inner[end..];
            return Err(unknown);
        }

        if let Some(inner) = self.rest.strip_prefix('{')
            && let Some((inside, behind)) = split_name(inner, b'}')
        {
            self.rest = behind;
            let (name, default) = match inside.split_once(":-").or(inside.split_once('-')) {
                Some((name, default)) => (name, Some(default)),
                None => (inside, None),
            };
            let value = environment.get(name).filter(|text| !text.is_empty());
            let known = value.map(String::as_str).or(default);
            let fits = known.filter(|text| self.makes_room(text.len()));
            return fits.map(ToOwned::to_owned).ok_or_else(|| format!("${{{inside}}}"));
        }

        let length = self.rest.find(|c: char| !is_name_character(c)).unwrap_or(self.rest.len());
        let (name, behind) = self.rest.split_at(length);
        self.rest = behind;
        let known = environment.get(name).filter(|text| self.makes_room(text.len()));
        known.cloned().ok_or_else(|| format!("${name}"))
    }

    /// Takes this number of bytes from those that values may still add; false if there are fewer.
    fn makes_room(&mut self, size: usize) -> bool {
        let left = self.room.checked_sub(size);
        self.room = left.unwrap_or(self.room);
        left.is_some()
    }
}

/// The position behind the parenthesis that ends a substituted command.
fn end_of_substitution(text: &str) -> usize {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }

    text.len()
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
