//! The effective configuration: a file with a value for every key.
//!
//! The printed values are the values in use, not the written ones. The keys of a [`Config`] have
//! their effective values, so a printed default is the default in use.

pub(crate) mod cards;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::config::effective::Config;
use crate::config::file::{ConfigFile, ExternalMetrics, ExternalScalerKeys};
use crate::config::yaml;
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::{RESTART, Setting, Written};

/// Sections whose absent keys come from another section, so that they have no defaults of their
/// own.
const OVERLAYS: [&str; 5] = [
    "/properties/saturation/properties/overrides/additionalProperties",
    "/properties/scale_to_zero/properties/overrides/additionalProperties",
    "/properties/shadow/items/properties/saturation/properties/overrides/additionalProperties",
    "/properties/shadow/items/properties/scale_to_zero/properties/overrides/additionalProperties",
    "/properties/variants/items/properties/scrape",
];

// === impl Config ===

impl Config {
    /// The effective configuration as YAML, with every default. Reading it gives this value again.
    #[must_use]
    pub fn print(&self) -> String {
        print(self)
    }

    /// A short text that is equal for equal effective configurations, on any machine and in any
    /// run. It is almost certainly different for different configurations.
    #[must_use]
    pub fn hash(&self) -> String {
        // FNV-1a with 64 bits, by its published constants: it need not withstand an attacker.
        let hash = self.print().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// The configuration as YAML.
fn print(config: &Config) -> String {
    yaml::write(&value(config)).expect("writing to memory does not fail")
}

/// The configuration as a file represents it.
pub(crate) fn value(config: &Config) -> Value {
    serde_json::to_value(file(config)).expect("a file has text keys and finite numbers")
}

/// Adds the keys below a path that need a restart and differ.
pub(crate) fn restart_keys(schema: &Value, path: &str, files: [&Value; 2], keys: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let at = join(path, name);
        let [old, new] = files.map(|file| file.get(name).unwrap_or(&Value::Null));

        if property.get(RESTART).is_none() {
            restart_keys(property, &at, [old, new], keys);
        } else if old != new {
            keys.push(at);
        }
    }
}

/// The JSON Schema of the file, with the defaults of the global sections.
pub(crate) fn schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    // Without references, each section can have the defaults of its own place.
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<ConfigFile>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), "Configuration of Plimsoll".into());
    }
    for pointer in OVERLAYS {
        schema.pointer_mut(pointer).into_iter().for_each(remove_defaults);
    }

    schema
}

/// Removes the defaults of a section.
fn remove_defaults(schema: &mut Value) {
    if let Some(keywords) = schema.as_object_mut() {
        keywords.shift_remove("default");
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(|it| it.values_mut()).for_each(remove_defaults);
}

fn file(config: &Config) -> ConfigFile {
    let Config { keys, .. } = config;
    let mut file = keys.written().unwrap_or_default();
    if keys.external_metrics.is_none() {
        let off = Written::<ExternalMetrics> { enabled: Some(false), ..Default::default() };
        file.external_metrics = Some(off);
    }

    if keys.external_scaler.is_none() {
        let off = Written::<ExternalScalerKeys> { enabled: Some(false), ..Default::default() };
        file.external_scaler = Some(off);
    }

    if let Some(section) = file.kubernetes.as_mut().filter(|_| !keys.kubernetes.enabled) {
        section.events = None;
        section.leader_election = None;
    }

    file
}
