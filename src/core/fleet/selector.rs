//! Kubernetes label selectors, parsed into a predicate over labels.
//!
//! Selectors arrive as text. In the `labelSelector` parameter, they come from HPA controllers (which
//! write `e1,!e2,env notin (x),variant=a`), from `kubectl` and from users. In a scale subresource,
//! they select the pods of the target. The parser accepts the whole grammar. A selector that is only
//! partly understood would match the wrong variants or pods:
//!
//! ```text
//! selector    = "" | requirement *("," requirement)
//! requirement = ["!"] KEY | KEY ("=" | "==" | "!=") [VALUE]
//!             | KEY ("in" | "notin") "(" [VALUE] *("," [VALUE]) ")" | KEY (">" | "<") INTEGER
//! ```
//!
//! `in` and `notin` are keywords only in the operator position, so a label may have one of these
//! names.
//!
//! # Source
//!
//! `apimachinery/pkg/labels/selector.go`; the character rules follow
//! `apimachinery/pkg/util/validation`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// The maximum length of a label name and of a label value.
const NAME_MAX: usize = 63;

/// The maximum length of the prefix of a label key.
const PREFIX_MAX: usize = 253;

/// A predicate over labels: all of its requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The requirements, sorted by key.
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    Absent,
    Equals(String),
    NotEquals(String),
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

/// The reason why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSelectorError {
    /// An unexpected token at this position.
    #[error("found {found}, expected {expected}")]
    Unexpected {
        /// The token found.
        found: String,
        /// The tokens allowed at this position.
        expected: &'static str,
    },
    /// An invalid label key.
    #[error("{0:?} is not a valid label key")]
    Key(String),
    /// An invalid label value.
    #[error("{0:?} is not a valid label value")]
    Value(String),
    /// A bound that is not an integer.
    #[error("{0:?} is not an integer")]
    Integer(String),
}

impl Selector {
    /// Returns true if the labels satisfy every requirement. A selector without requirements
    /// matches all labels.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<&str, String>) -> bool {
        self.accepts(|key| labels.get(key).map(String::as_str))
    }

    /// Returns true if the labels of a function from keys to values satisfy every requirement.
    pub fn accepts<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|Requirement { key, operator }| operator.accepts(label(key)))
    }

    /// Returns the keys that its requirements name, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|requirement| requirement.key.as_str())
    }

    /// Returns the selector with only the requirements on some keys.
    #[must_use]
    pub fn on_keys(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        let requirements = self.requirements.iter().filter(|it| is_kept(&it.key));
        Self { requirements: requirements.cloned().collect() }
    }

    /// Returns the values that matching labels can have for a key, if a requirement lists them.
    #[must_use]
    pub fn listed_values(&self, key: &str) -> Option<Vec<&str>> {
        self.requirements.iter().filter(|requirement| requirement.key == key).find_map(
            |Requirement { key: _, operator }| match operator {
                Operator::Equals(value) => Some(vec![value.as_str()]),
                Operator::In(values) => Some(values.iter().map(String::as_str).collect()),
                Operator::NotIn(_)
                | Operator::NotEquals(_)
                | Operator::Exists
                | Operator::Absent
                | Operator::Above(_)
                | Operator::Below(_) => None,
            },
        )
    }

    /// Returns the only value that matching labels can have for a key, if there is only one.
    #[must_use]
    pub fn only_value(&self, key: &str) -> Option<&str> {
        self.requirements.iter().filter(|requirement| requirement.key == key).find_map(
            |Requirement { key: _, operator }| match operator {
                Operator::Equals(value) => Some(value.as_str()),
                Operator::In(values) if values.len() == 1 => values.first().map(String::as_str),
                Operator::In(_)
                | Operator::NotIn(_)
                | Operator::NotEquals(_)
                | Operator::Exists
                | Operator::Absent
                | Operator::Above(_)
                | Operator::Below(_) => None,
            },
        )
    }
}

impl Operator {
    fn accepts(&self, value: Option<&str>) -> bool {
        match self {
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Equals(wanted) => value == Some(wanted),
            Self::NotEquals(unwanted) => value != Some(unwanted),
            Self::In(wanted) => value.is_some_and(|value| wanted.contains(value)),
            Self::NotIn(unwanted) => value.is_none_or(|value| !unwanted.contains(value)),
            Self::Above(bound) => integer(value).is_some_and(|value| value > *bound),
            Self::Below(bound) => integer(value).is_some_and(|value| value < *bound),
        }
    }
}

fn integer(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

// === impl FromStr ===

impl FromStr for Selector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut tokens = Tokens { rest: text };
        let mut requirements = Vec::new();
        if tokens.peek() == Token::End {
            return Ok(Self::default());
        }
        loop {
            requirements.push(requirement(&mut tokens)?);
            match tokens.next() {
                Token::End => break,
                Token::Symbol(",") => {}
                other => return Err(unexpected(&other, "',' or the end")),
            }
        }

        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }
}

/// A word, or one of `= == != ! ( ) , > <`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'static str),
    End,
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// The symbols. A longer symbol comes before its prefixes.
    const SYMBOLS: [&'static str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

    fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if self.rest.is_empty() {
            return Token::End;
        }
        for symbol in Self::SYMBOLS {
            if let Some(rest) = self.rest.strip_prefix(symbol) {
                self.rest = rest;
                return Token::Symbol(symbol);
            }
        }

        let end = self
            .rest
            .find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<'])
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Token::Word(word)
    }

    fn peek(&self) -> Token<'a> {
        Self { rest: self.rest }.next()
    }
}

fn unexpected(token: &Token<'_>, expected: &'static str) -> ParseSelectorError {
    let found = match token {
        Token::Word(word) => format!("{word:?}"),
        Token::Symbol(symbol) => format!("'{symbol}'"),
        Token::End => "the end".to_owned(),
    };
    ParseSelectorError::Unexpected { found, expected }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, ParseSelectorError> {
    if tokens.peek() == Token::Symbol("!") {
        tokens.next();
        return Ok(Requirement { key: key(tokens)?, operator: Operator::Absent });
    }

    let key = key(tokens)?;
    if matches!(tokens.peek(), Token::End | Token::Symbol(",")) {
        return Ok(Requirement { key, operator: Operator::Exists });
    }

    let operator = match tokens.next() {
        Token::Symbol("=" | "==") => Operator::Equals(value(tokens)?),
        Token::Symbol("!=") => Operator::NotEquals(value(tokens)?),
        Token::Word("in") => Operator::In(values(tokens)?),
        Token::Word("notin") => Operator::NotIn(values(tokens)?),
        Token::Symbol(">") => Operator::Above(bound(tokens)?),
        Token::Symbol("<") => Operator::Below(bound(tokens)?),
        other => return Err(unexpected(&other, "=, ==, !=, in, notin, > or <")),
    };

    Ok(Requirement { key, operator })
}

fn key(tokens: &mut Tokens<'_>) -> Result<String, ParseSelectorError> {
    match tokens.next() {
        Token::Word(word) if is_label_key(word) => Ok(word.to_owned()),
        Token::Word(word) => Err(ParseSelectorError::Key(word.to_owned())),
        other => Err(unexpected(&other, "a label key")),
    }
}

/// Parses one value. An empty text before a `,` or the end is the empty value.
fn value(tokens: &mut Tokens<'_>) -> Result<String, ParseSelectorError> {
    match tokens.peek() {
        Token::End | Token::Symbol(",") => Ok(String::new()),
        Token::Word(word) => {
            tokens.next();
            valid_value(word)
        }
        other @ Token::Symbol(_) => Err(unexpected(&other, "a label value")),
    }
}

fn values(tokens: &mut Tokens<'_>) -> Result<BTreeSet<String>, ParseSelectorError> {
    match tokens.next() {
        Token::Symbol("(") => {}
        other => return Err(unexpected(&other, "'('")),
    }

    let mut values = BTreeSet::new();
    loop {
        match tokens.next() {
            Token::Word(word) => {
                values.insert(valid_value(word)?);
                match tokens.next() {
                    Token::Symbol(",") if tokens.peek() == Token::Symbol(")") => {
                        values.insert(String::new());
                    }
                    Token::Symbol(",") => {}
                    Token::Symbol(")") => return Ok(values),
                    other => return Err(unexpected(&other, "',' or ')'")),
                }
            }
            Token::Symbol(",") => {
                values.insert(String::new());
            }
            Token::Symbol(")") => {
                if values.is_empty() {
                    values.insert(String::new());
                }
                return Ok(values);
            }
            other => return Err(unexpected(&other, "a label value, ',' or ')'")),
        }
    }
}

fn valid_value(word: &str) -> Result<String, ParseSelectorError> {
    if is_label_value(word) {
        Ok(word.to_owned())
    } else {
        Err(ParseSelectorError::Value(word.to_owned()))
    }
}

fn bound(tokens: &mut Tokens<'_>) -> Result<i64, ParseSelectorError> {
    let word = value(tokens)?;
    word.parse().map_err(|_| ParseSelectorError::Integer(word))
}

/// Returns true if a text is a label key: a name, optionally after a DNS prefix and a slash.
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(p, n)| (Some(p), n));
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_dns_subdomain)
}

/// Returns true if a text is a label value. The empty text is valid.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= NAME_MAX
        && bytes.first().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.last().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_' | b'.'))
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= PREFIX_MAX && text.split('.').all(is_dns_label)
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|it| matches!(it, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

// === impl Display ===

impl fmt::Display for Selector {
    /// Writes the canonical text: requirements sorted by key, and values of sets sorted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, requirement) in self.requirements.iter().enumerate() {
            if place > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator } = self;

        match operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::Absent => write!(f, "!{key}"),
            Operator::Equals(value) => write!(f, "{key}={value}"),
            Operator::NotEquals(value) => write!(f, "{key}!={value}"),
            Operator::In(values) => write!(f, "{key} in ({})", list(values)),
            Operator::NotIn(values) => write!(f, "{key} notin ({})", list(values)),
            Operator::Above(bound) => write!(f, "{key}>{bound}"),
            Operator::Below(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

fn list(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}
