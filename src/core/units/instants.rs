//! Instants, serialized as milliseconds since the epoch, which take half as much space as text.
//!
//! For `#[serde(with = "crate::units::instants")]` on an instant, and on options, lists and maps of
//! instants. The microseconds are lost.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant, or several.
pub trait Instants: Sized {
    /// The same in milliseconds.
    type Millis: Serialize + DeserializeOwned;

    /// Returns the milliseconds.
    fn to_millis(&self) -> Self::Millis;

    /// Returns the instants of these milliseconds.
    ///
    /// # Errors
    ///
    /// One of them is not a valid instant.
    fn from_millis(millis: Self::Millis) -> Result<Self, jiff::Error>;
}

/// Writes milliseconds.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<T: Instants, S: Serializer>(
    instants: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    instants.to_millis().serialize(serializer)
}

/// Reads milliseconds.
///
/// # Errors
///
/// Those of the deserializer, and a number that is not a valid instant.
pub fn deserialize<'de, T: Instants, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::from_millis(T::Millis::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl Instants for Timestamp {
    type Millis = i64;

    fn to_millis(&self) -> i64 {
        self.as_millisecond()
    }

    fn from_millis(millis: i64) -> Result<Self, jiff::Error> {
        Self::from_millisecond(millis)
    }
}

impl<T: Instants> Instants for Option<T> {
    type Millis = Option<T::Millis>;

    fn to_millis(&self) -> Self::Millis {
        self.as_ref().map(T::to_millis)
    }

    fn from_millis(millis: Self::Millis) -> Result<Self, jiff::Error> {
        millis.map(T::from_millis).transpose()
    }
}

impl<T: Instants> Instants for Vec<T> {
    type Millis = Vec<T::Millis>;

    fn to_millis(&self) -> Self::Millis {
        self.iter().map(T::to_millis).collect()
    }

    fn from_millis(millis: Self::Millis) -> Result<Self, jiff::Error> {
        millis.into_iter().map(T::from_millis).collect()
    }
}

/// An instant with its associated value.
impl<T: Instants, U: Clone + Serialize + DeserializeOwned> Instants for (T, U) {
    type Millis = (T::Millis, U);

    fn to_millis(&self) -> Self::Millis {
        (self.0.to_millis(), self.1.clone())
    }

    fn from_millis(pair: Self::Millis) -> Result<Self, jiff::Error> {
        let (millis, rest) = pair;
        Ok((T::from_millis(millis)?, rest))
    }
}

impl<K: Clone + Ord + Serialize + DeserializeOwned, T: Instants> Instants for BTreeMap<K, T> {
    type Millis = BTreeMap<K, T::Millis>;

    fn to_millis(&self) -> Self::Millis {
        self.iter().map(|(key, instant)| (key.clone(), instant.to_millis())).collect()
    }

    fn from_millis(millis: Self::Millis) -> Result<Self, jiff::Error> {
        millis.into_iter().map(|(key, millis)| Ok((key, T::from_millis(millis)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Times {
        #[serde(with = "crate::units::instants")]
        one: Option<Timestamp>,
        #[serde(with = "crate::units::instants")]
        pairs: Vec<(Timestamp, f64)>,
        #[serde(with = "crate::units::instants")]
        named: BTreeMap<String, Timestamp>,
    }

    #[test]
    fn instants_are_milliseconds_wherever_they_are() {
        let written = json!({"one": null, "pairs": [[1500, 0.5]], "named": {"a": -1}});
        let times: Times = from_value(written.clone()).unwrap();
        assert_eq!(times.pairs, [(Timestamp::from_millisecond(1500).unwrap(), 0.5)]);
        assert_eq!(to_value(times).unwrap(), written);
    }

    #[test]
    fn a_number_that_is_no_instant_is_refused() {
        let written = json!({"one": i64::MAX, "pairs": [], "named": {}});
        assert!(from_value::<Times>(written).is_err());
    }
}
