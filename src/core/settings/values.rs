//! The types that a key can have, each with its form in a file and in a declaration.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::settings::allowed::TextRule;
use crate::settings::problem::Problems;
use crate::settings::schema::SectionKeys;
use crate::settings::setting::Setting;
use crate::settings::written::{WrittenDuration, WrittenSize};
use crate::units::{CostPerHour, Fraction, Gpus, Replicas, Requests, Seconds, Tokens, Weight};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct Bytes(pub u64);

/// Milliseconds, for declarations.
#[must_use]
pub const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Seconds, for declarations.
#[must_use]
pub const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Minutes, for declarations.
#[must_use]
pub const fn minutes(count: u64) -> Duration {
    Duration::from_mins(count)
}

/// Hours, for declarations.
#[must_use]
pub const fn hours(count: u64) -> Duration {
    Duration::from_hours(count)
}

settings! {
    value:
    f64: f64 as f64, Some, |it| it;
    u8: u32 as u32, |it| Self::try_from(it).ok(), u32::from;
    u16: u16 as u16, Some, |it| it;
    u32: u32 as u32, Some, |it| it;
    u64: u64 as u64, Some, |it| it;
    Bytes: u64 as WrittenSize, |it| Some(Self(it)), |it| it.0;
    usize: u32 as u32, |it| usize::try_from(it).ok(), |it| u32::try_from(it).unwrap_or(u32::MAX);
    Fraction: f64 as f64, Self::new, Self::fraction;
    Requests: f64 as f64, Self::new, Self::requests;
    Tokens: f64 as f64, Self::new, Self::tokens;
    CostPerHour: f64 as f64, Self::new, Self::per_hour;
    Weight: f64 as f64, Self::new, Self::weight;
    Replicas: u32 as u32, Self::new, Self::count;
    Gpus: u32 as u32, |it| Some(Self::new(it)), Self::count;
    Duration: Duration as WrittenDuration, Some, |it| it;
    Seconds: Duration as WrittenDuration, |it| Self::new(it.as_secs_f64()), |it| WrittenDuration::of(it).0;
}

/// Elements of lists and maps.
pub trait Plain: Clone + Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema {}

impl<T: Clone + Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema> Plain for T {}

settings! {
    plain:
    bool;
    @T BTreeMap<String, Option<T>>;
}

impl Setting for SocketAddr {
    type Written = String;
    type Plain = Self;
    type Allowed = Infallible;

    fn declared(plain: Self) -> Self {
        plain
    }

    fn read(
        written: &String,
        _: Option<&Self>,
        _: Option<&Infallible>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        let address = written.parse().ok();
        if address.is_none() {
            let rule = "must be an IP address with a port, such as 0.0.0.0:8080 or [::]:8080";
            problems.error(path, rule, format!("{written:?}"));
        }
        address
    }

    fn written(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn schema(
        usual: Option<&Self>,
        _: Option<&Infallible>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        SectionKeys::plain(usual.and_then(Self::written).as_ref(), generator)
    }
}

/// A path. If it is relative, it starts from the folder of the file.
impl Setting for PathBuf {
    type Written = Self;
    type Plain = Self;
    type Allowed = Infallible;

    fn declared(plain: Self) -> Self {
        plain
    }

    fn read(
        written: &Self,
        _: Option<&Self>,
        _: Option<&Infallible>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        problems.path(path, written)
    }

    fn written(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn schema(
        usual: Option<&Self>,
        _: Option<&Infallible>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        SectionKeys::plain(usual, generator)
    }
}

/// A list. An element that cannot be read is skipped, and the others keep their index in problems.
impl<T: Setting> Setting for Vec<T> {
    type Written = Vec<Option<T::Written>>;
    type Plain = Self;
    type Allowed = T::Allowed;

    fn declared(plain: Self) -> Self {
        plain
    }

    fn read(
        written: &Self::Written,
        _: Option<&Self>,
        allowed: Option<&T::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        let read = written.iter().enumerate().filter_map(|(at, item)| {
            T::read(item.as_ref()?, None, allowed, &format!("{path}[{at}]"), problems)
        });
        Some(read.collect())
    }

    fn written(&self) -> Option<Self::Written> {
        Some(self.iter().map(T::written).collect())
    }

    fn schema(
        usual: Option<&Self>,
        _: Option<&T::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        let items = generator.subschema_for::<T::Written>();
        SectionKeys::list(items, usual.and_then(Self::written))
    }
}

impl Setting for String {
    type Written = Self;
    type Plain = &'static str;
    type Allowed = TextRule;

    fn declared(plain: &'static str) -> Self {
        plain.to_owned()
    }

    fn read(
        written: &Self,
        _: Option<&Self>,
        allowed: Option<&TextRule>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        if let Some(TextRule { accepts, rule }) = allowed
            && !accepts(written)
        {
            problems.error(path, *rule, format!("{written:?}"));
            return None;
        }
        Some(written.clone())
    }

    fn written(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn schema(
        usual: Option<&Self>,
        _: Option<&TextRule>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        SectionKeys::plain(usual, generator)
    }
}
