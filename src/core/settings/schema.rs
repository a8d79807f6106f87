//! The JSON Schema of a section: its keys with their descriptions, defaults and ranges.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use crate::settings::allowed::Allowed;

/// The keyword of the shortest duration or smallest size. JSON Schema has none for text.
pub const MINIMUM: &str = "x-minimum";

/// The keyword of the longest duration or largest size.
pub const MAXIMUM: &str = "x-maximum";

/// The keyword of a key whose change needs a restart of the daemon.
pub const RESTART: &str = "x-restart";

/// The flag of a declaration that becomes [`RESTART`].
const RESTART_FLAG: &str = "restart";

/// The flag of a declaration for a mandatory key, and the keyword that lists such keys.
const REQUIRED: &str = "required";

/// The keys of a section, collected one by one.
#[derive(Debug)]
pub struct SectionKeys {
    schema: Schema,
    properties: Schema,
    required: Vec<String>,
}

impl SectionKeys {
    /// Creates a section with this description and without keys.
    #[must_use]
    pub fn of(description: &[&str]) -> Self {
        let schema = json_schema!({
            "type": "object",
            "description": prose(description),
            "additionalProperties": false,
        });
        Self { schema, properties: json_schema!({}), required: Vec::new() }
    }

    /// Adds the key that switches the section on and off.
    pub fn add_switch(&mut self, name: &str) {
        let schema = json_schema!({ "type": ["boolean", "null"] });
        self.add(name, &["Enables this term."], &[], schema);
    }

    /// Adds a key.
    pub fn add(&mut self, name: &str, description: &[&str], flags: &[&str], mut schema: Schema) {
        if schema.get("type").and_then(|it| it.as_str()) == Some("object") {
            insert(&mut schema, "type", ["object", "null"]);
        }

        let mut text = prose(description);
        if flags.contains(&REQUIRED) {
            schema.remove("default");
            text.push_str(" Required.");
            self.required.push(name.to_owned());
        }

        insert(&mut schema, "description", text);
        if flags.contains(&RESTART_FLAG) {
            schema.insert(RESTART.to_owned(), true.into());
        }

        self.properties.insert(name.to_owned(), schema.into());
    }

    /// The schema of the section.
    #[must_use]
    pub fn schema(mut self) -> Schema {
        self.schema.insert("properties".to_owned(), self.properties.into());
        if !self.required.is_empty() {
            insert(&mut self.schema, REQUIRED, self.required);
        }
        self.schema
    }

    /// The schema of a single value, with its default and range.
    pub fn value<W, P>(
        usual: Option<W>,
        allowed: Option<&Allowed<P>>,
        generator: &mut SchemaGenerator,
    ) -> Schema
    where
        W: JsonSchema + Serialize + From<P>,
        P: Clone,
    {
        let mut schema = generator.subschema_for::<Option<W>>();
        if let Some(usual) = usual {
            insert(&mut schema, "default", usual);
        }
        let Some(Allowed { minimum, maximum, is_above }) = allowed else { return schema };

        // They replace the type's own bounds, which only exclude negative values.
        schema.remove("minimum");
        schema.remove("maximum");
        let lower = if *is_above { "exclusiveMinimum" } else { "minimum" };
        insert_bound(&mut schema, [lower, MINIMUM], W::from(minimum.clone()));
        insert_bound(&mut schema, ["maximum", MAXIMUM], W::from(maximum.clone()));
        schema
    }

    /// The schema of a list.
    #[must_use]
    pub fn list(items: Schema, usual: Option<impl Serialize>) -> Schema {
        let mut schema = json_schema!({ "type": ["array", "null"] });
        schema.insert("items".to_owned(), items.into());
        if let Some(usual) = usual {
            insert(&mut schema, "default", usual);
        }
        schema
    }

    /// The schema of a value that has the same form in a file.
    #[must_use]
    pub fn plain<T: JsonSchema + Serialize>(
        usual: Option<&T>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        let mut schema = generator.subschema_for::<Option<T>>();
        if let Some(usual) = usual {
            insert(&mut schema, "default", usual);
        }
        schema
    }

    /// The schema of a section that can be switched off, with the default of its switch, if it has
    /// one.
    #[must_use]
    pub fn switched(mut section: Schema, switches: &[&str], is_on: bool) -> Schema {
        for switch in switches {
            let found = section.pointer_mut(&format!("/properties/{switch}"));
            if let Some(keywords) = found.and_then(|it| it.as_object_mut()) {
                keywords.insert("default".to_owned(), is_on.into());
            }
        }
        section
    }
}

/// Inserts a bound under the first keyword if it is a number, otherwise under the second.
fn insert_bound(schema: &mut Schema, [of_number, of_text]: [&str; 2], bound: impl Serialize) {
    insert(schema, of_number, bound);
    if schema.get(of_number).is_some_and(|it| !it.is_number())
        && let Some(text) = schema.remove(of_number)
    {
        schema.insert(of_text.to_owned(), text);
    }
}

/// Inserts a value under a keyword.
fn insert(schema: &mut Schema, keyword: &str, value: impl Serialize) {
    let mut made = json_schema!({ "value": value });
    if let Some(value) = made.remove("value") {
        schema.insert(keyword.to_owned(), value);
    }
}

/// A description without the line breaks of the source; an empty line starts a paragraph.
fn prose(lines: &[&str]) -> String {
    let trimmed: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    let paragraphs = trimmed.split(|line| line.is_empty());
    paragraphs.map(|lines| lines.join(" ")).collect::<Vec<_>>().join("\n\n")
}
