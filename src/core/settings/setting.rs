//! The trait of all types that a key can have: from a file to a value, and back.

use std::fmt::Debug;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::settings::problem::Problems;

/// A value that a key of the configuration sets.
pub trait Setting: Clone + Sized {
    /// The form in a file.
    type Written: Clone + Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema;
    /// The form in a declaration, such as a bare number.
    type Plain;
    /// The values that a declaration can allow.
    type Allowed;

    /// The declared default.
    fn declared(plain: Self::Plain) -> Self;

    /// Reads a written value. `None` if it is rejected, or switches the section off.
    fn read(
        written: &Self::Written,
        usual: Option<&Self>,
        allowed: Option<&Self::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self>;

    /// The form in a file that reads back as this value; `None` if it is left out.
    fn written(&self) -> Option<Self::Written>;

    /// The form in a file that switches an optional section off.
    #[must_use]
    fn off() -> Option<Self::Written> {
        None
    }

    /// Reads a written value, or takes the usual value.
    fn resolve(
        written: Option<&Self::Written>,
        usual: &Self,
        allowed: Option<&Self::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Self {
        let read = written.and_then(|it| Self::read(it, Some(usual), allowed, path, problems));
        read.unwrap_or_else(|| usual.clone())
    }

    /// Adds the problems of a missing required key.
    fn ask_for(path: &str, rule: &str, problems: &mut Problems) {
        problems.missing(path, rule);
    }

    /// The JSON Schema of the key, with its default and range.
    fn schema(
        usual: Option<&Self>,
        allowed: Option<&Self::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema;

    /// The JSON Schema for a value that may be absent.
    fn optional_schema(
        usual: Option<&Self>,
        allowed: Option<&Self::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        Self::schema(usual, allowed, generator)
    }
}

/// The form of a section in a file: every key is optional.
pub type Written<S> = <S as Setting>::Written;

impl<T: Setting> Setting for Option<T> {
    type Written = T::Written;
    type Plain = Self;
    type Allowed = T::Allowed;

    fn declared(plain: Self) -> Self {
        plain
    }

    fn read(
        written: &T::Written,
        usual: Option<&Self>,
        allowed: Option<&T::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        Some(T::read(written, usual.and_then(Option::as_ref), allowed, path, problems))
    }

    fn written(&self) -> Option<T::Written> {
        self.as_ref().map_or_else(T::off, T::written)
    }

    fn schema(
        usual: Option<&Self>,
        allowed: Option<&T::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        T::optional_schema(usual.and_then(Option::as_ref), allowed, generator)
    }
}
