//! What the part of an address after `?` asks for.
//!
//! Unlike a label selector, an unknown or repeated parameter is an error: a filter that is spelt
//! wrong must not look like one that lets everything through.

use std::collections::BTreeMap;

use plimsoll_core::fleet::{ModelName, Namespace, VariantKey, VariantName};

/// The parameters of one request, of which each may be there once.
pub(crate) struct Query(BTreeMap<String, String>);

/// A query that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    /// The path takes no such parameter.
    #[error("unknown parameter {name:?}; {}", takes(path, known))]
    Unknown {
        /// Where it was asked.
        path: &'static str,
        /// What was asked with.
        name: String,
        /// What could have been.
        known: &'static [&'static str],
    },
    /// A parameter is there more than once.
    #[error("parameter {name:?} is there more than once; give it once")]
    Repeated {
        /// Which.
        name: String,
    },
    /// A parameter has no value.
    #[error("parameter {name:?} has no value; leave it out, or give it one")]
    Empty {
        /// Which.
        name: String,
    },
    /// A parameter that must be there is not.
    #[error("parameter {name:?} is missing; {path} needs it")]
    Missing {
        /// Where it was asked.
        path: &'static str,
        /// Which.
        name: &'static str,
    },
    /// A parameter is not a number, or not one that is allowed.
    #[error("parameter {name:?} is {value:?}; give a number from 1 to {max}")]
    Number {
        /// Which.
        name: &'static str,
        /// What was given.
        value: String,
        /// The largest that is allowed.
        max: usize,
    },
}

/// Which variants are wanted. What is `None` is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    namespace: Option<String>,
    model: Option<String>,
    variant: Option<String>,
}

/// The parameters of a [`Filter`].
pub(crate) const FILTER: &[&str] = &["namespace", "model", "variant"];

fn takes(path: &str, known: &[&str]) -> String {
    if known.is_empty() {
        format!("{path} takes none")
    } else {
        format!("{path} takes {}", known.join(", "))
    }
}

// === impl Query ===

impl Query {
    /// Reads the query of a request for `path`, which takes the parameters `known`.
    ///
    /// # Errors
    ///
    /// A parameter is unknown, there twice or empty.
    pub(crate) fn parse(
        path: &'static str,
        known: &'static [&'static str],
        text: Option<&str>,
    ) -> Result<Self, QueryError> {
        let mut parameters = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            let name = name.into_owned();
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

    /// Which variants are wanted.
    pub(crate) fn filter(&self) -> Filter {
        let of = |name: &str| self.0.get(name).cloned();
        Filter { namespace: of("namespace"), model: of("model"), variant: of("variant") }
    }

    /// The one variant that `path` is asked about.
    ///
    /// # Errors
    ///
    /// Its namespace or its name is missing.
    pub(crate) fn variant(&self, path: &'static str) -> Result<VariantKey, QueryError> {
        let of = |name: &'static str| {
            self.0.get(name).map(String::as_str).ok_or(QueryError::Missing { path, name })
        };
        let namespace = of("namespace")?;
        let variant = of("variant")?;
        let missing = |name| QueryError::Missing { path, name };
        Ok(VariantKey {
            namespace: Namespace::new(namespace).ok_or(missing("namespace"))?,
            variant: VariantName::new(variant).ok_or(missing("variant"))?,
        })
    }

    /// How many are wanted, from 1 to `max`.
    ///
    /// # Errors
    ///
    /// It is no such number.
    pub(crate) fn limit(&self, default: usize, max: usize) -> Result<usize, QueryError> {
        let Some(value) = self.0.get("limit") else { return Ok(default) };
        let number = value.parse().ok().filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| QueryError::Number { name: "limit", value: value.clone(), max })
    }
}

// === impl Filter ===

impl Filter {
    /// Whether the variant is wanted.
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

    #[test]
    fn a_query_is_read_or_refused_with_the_reason() {
        let parse = |text: &str| Query::parse("/p", FILTER, Some(text)).map(|query| query.filter());
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(Query::parse("/p", &[], None).unwrap().filter(), Filter::default());
        let both = parse("namespace=a+b&model=meta%2Fllama").unwrap();
        assert_eq!(both.namespace.as_deref(), Some("a b"));
        assert_eq!(both.model.as_deref(), Some("meta/llama"));
        let takes = "unknown parameter \"colour\"; /p takes namespace, model, variant";
        assert_eq!(error("colour=red"), takes);
        assert!(error("model=a&model=b").contains("more than once"));
        assert!(error("model=").contains("has no value"));
        let limit = |text: &str| {
            Query::parse("/p", &["limit"], Some(text)).unwrap().limit(5, 9).map_err(|error| {
                assert!(error.to_string().contains("from 1 to 9"), "{error}");
            })
        };
        assert_eq!([limit(""), limit("limit=9")], [Ok(5), Ok(9)]);
        for refused in ["limit=0", "limit=10", "limit=-1", "limit=x"] {
            assert_eq!(limit(refused), Err(()), "{refused}");
        }
    }
}
