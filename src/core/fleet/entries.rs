//! Maps with structures as keys, serialized as lists of pairs, because JSON allows only strings as
//! keys.
//!
//! For `#[serde(with = "crate::fleet::entries")]`. A key that appears twice is an error.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes `[[key, value], ...]` in the order of the keys.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map)
}

/// Reads `[[key, value], ...]`.
///
/// # Errors
///
/// Those of the deserializer, and a key that appears twice.
pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let entries = Vec::<(K, V)>::deserialize(deserializer)?;
    let mut map = BTreeMap::new();

    for (key, value) in entries {
        if map.insert(key, value).is_some() {
            return Err(D::Error::custom("a key appears twice"));
        }
    }
    Ok(map)
}
