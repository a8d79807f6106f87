//! The query parameters of a request.
//!
//! Unlike in a label selector, an unknown or repeated parameter is an error. Otherwise a misspelled
//! filter would look like a filter that matches everything.

use std::collections::BTreeMap;

use plimsoll_core::fleet::{ModelName, Namespace, VariantKey, VariantName};

/// The parameters of one request. Each parameter may occur once.
pub(crate) struct QueryParameters(BTreeMap<String, String>);

/// An invalid query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    /// The path does not accept this parameter.
    #[error("unknown parameter {name:?}; {}", takes(path, known))]
    Unknown {
        /// The path of the request.
        path: &'static str,
        /// The unknown parameter.
        name: String,
        /// The parameters that the path accepts.
        known: &'static [&'static str],
    },
    /// A parameter occurs more than once.
    #[error("parameter {name:?} is repeated; give it once")]
    Repeated {
        /// The name of the parameter.
        name: String,
    },
    /// A parameter has no value.
    #[error("parameter {name:?} has no value; omit it, or set a value")]
    Empty {
        /// The name of the parameter.
        name: String,
    },
    /// A required parameter is missing.
    #[error("parameter {name:?} is missing; {path} needs it")]
    Missing {
        /// The path of the request.
        path: &'static str,
        /// The name of the parameter.
        name: &'static str,
    },
    /// A parameter is not a number, or not in the allowed range.
    #[error("parameter {name:?} is {value:?}; give a number from 1 to {max}")]
    Number {
        /// The name of the parameter.
        name: &'static str,
        /// The given value.
        value: String,
        /// The largest allowed number.
        max: usize,
    },
}

/// A filter for variants. `None` matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VariantFilter {
    namespace: Option<String>,
    model: Option<String>,
    variant: Option<String>,
}

/// The parameters of a [`VariantFilter`].
pub(crate) const FILTER: &[&str] = &["namespace", "model", "variant"];

fn takes(path: &str, known: &[&str]) -> String {
    if known.is_empty() {
        format!("{path} takes none")
    } else {
        format!("{path} takes {}", known.join(", "))
    }
}

// === impl QueryParameters ===

impl QueryParameters {
    /// Parses the query of a request for `path`, which accepts the parameters `known`.
    ///
    /// # Errors
    ///
    /// A parameter is unknown, repeated or empty.
    pub(crate) fn parse(
        path: &'static str,
        known: &'static [&'static str],
        text: Option<&str>,
    ) -> Result<Self, QueryError> {
        let mut parameters = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            let name = key.into_owned();
            if !known.contains(&name.as_str()) {
                return Err(QueryError::Unknown { path, name, known });
            }
            if value.is_empty() {
                return Err(QueryError::Empty { name });
            }
            if parameters.insert(name.clone(), value.into_owned()).is_some() {
                return Err(QueryError::Repeated { name });
            }
        }

        Ok(Self(parameters))
    }

    /// Returns the filter for variants.
    pub(crate) fn filter(&self) -> VariantFilter {
        VariantFilter {
            namespace: self.0.get("namespace").cloned(),
            model: self.0.get("model").cloned(),
            variant: self.0.get("variant").cloned(),
        }
    }

    /// Returns the single variant that the query names.
    ///
    /// # Errors
    ///
    /// The namespace or the name is missing.
    pub(crate) fn variant(&self, path: &'static str) -> Result<VariantKey, QueryError> {
        let no_namespace = QueryError::Missing { path, name: "namespace" };
        let no_variant = QueryError::Missing { path, name: "variant" };
        let Some(namespace) = self.0.get("namespace") else { return Err(no_namespace) };
        let Some(variant) = self.0.get("variant") else { return Err(no_variant) };

        Ok(VariantKey {
            namespace: Namespace::new(namespace).ok_or(no_namespace)?,
            variant: VariantName::new(variant).ok_or(no_variant)?,
        })
    }

    /// Returns the maximum number of events to return, from 1 to `max`.
    ///
    /// # Errors
    ///
    /// The value is not a number in this range.
    pub(crate) fn limit(&self, default: usize, max: usize) -> Result<usize, QueryError> {
        let Some(value) = self.0.get("limit") else { return Ok(default) };
        let number = value.parse().ok().filter(|it| (1..=max).contains(it));
        number.ok_or_else(|| QueryError::Number { name: "limit", value: value.clone(), max })
    }
}

// === impl VariantFilter ===

impl VariantFilter {
    /// Returns true if the filter matches the variant.
    pub(crate) fn wants(&self, variant: &VariantKey, model: &ModelName) -> bool {
        let Self { namespace, model: named, variant: name } = self;
        namespace.as_ref().is_none_or(|it| it == variant.namespace.as_str())
            && named.as_ref().is_none_or(|it| it == model.as_str())
            && name.as_ref().is_none_or(|it| it == variant.variant.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<VariantFilter, QueryError> {
        QueryParameters::parse("/p", FILTER, Some(text)).map(|query| query.filter())
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    fn limit(text: &str) -> Result<usize, ()> {
        QueryParameters::parse("/p", &["limit"], Some(text)).unwrap().limit(5, 9).map_err(|error| {
            assert!(error.to_string().contains("from 1 to 9"), "{error}");
        })
    }

    #[test]
    fn a_query_is_read_or_refused_with_the_reason() {
        assert_eq!(
            QueryParameters::parse("/p", &[], None).unwrap().filter(),
            VariantFilter::default()
        );
        let both = parse("namespace=a+b&model=meta%2Fllama").unwrap();
        assert_eq!(both.namespace.as_deref(), Some("a b"));
        assert_eq!(both.model.as_deref(), Some("meta/llama"));
        let takes = "unknown parameter \"colour\"; /p takes namespace, model, variant";
        assert_eq!(error("colour=red"), takes);
        assert!(error("model=a&model=b").contains("is repeated"));
        assert!(error("model=").contains("has no value"));

        assert_eq!([limit(""), limit("limit=9")], [Ok(5), Ok(9)]);
        for refused in ["limit=0", "limit=10", "limit=-1", "limit=x"] {
            assert_eq!(limit(refused), Err(()), "{refused}");
        }
    }
}
