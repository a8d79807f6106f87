//! Content negotiation: chooses the form of a response that the client accepts.
//!
//! The form affects more than the appearance. The aggregator of an API server detects an aggregated
//! discovery document by the *response's* content type. HPA controllers ask for protobuf first and
//! also accept JSON.

/// The content type of an aggregated discovery document.
pub(crate) const DISCOVERY_V2: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The maximum number of clauses read from an `Accept` header; clients send three.
const CLAUSES_MAX: usize = 32;

/// A form that clients can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseForm {
    /// The plain JSON document.
    Json,
    /// A `meta.k8s.io/v1` table, which `kubectl get` displays.
    Table,
    /// An `apidiscovery.k8s.io/v2` document.
    DiscoveryV2,
}

/// One clause: a media range with its parameters.
struct AcceptClause<'a> {
    range: &'a str,
    group: Option<&'a str>,
    version: Option<&'a str>,
    kind: Option<&'a str>,
    quality: f32,
}

impl<'a> AcceptClause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut clause = Self {
            range: parts.next().unwrap_or_default(),
            group: None,
            version: None,
            kind: None,
            quality: 1.0,
        };

        for part in parts {
            let (key, quoted) = part.split_once('=').unwrap_or((part, ""));
            let value = quoted.trim().trim_matches('"');
            match key.trim() {
                "g" => clause.group = Some(value),
                "v" => clause.version = Some(value),
                "as" => clause.kind = Some(value),
                "q" => clause.quality = value.parse().unwrap_or(0.0),
                _ => {}
            }
        }

        clause
    }

    fn form(&self) -> Option<ResponseForm> {
        let json = self.is("application/json");

        match (self.kind, self.group, self.version) {
            (None, _, _) => {
                (json || self.is("application/*") || self.is("*/*")).then_some(ResponseForm::Json)
            }
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) => json.then_some(ResponseForm::Table),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                json.then_some(ResponseForm::DiscoveryV2)
            }
            _ => None,
        }
    }

    fn is(&self, range: &str) -> bool {
        self.range.eq_ignore_ascii_case(range)
    }
}

/// Returns the form in `offered` that the client prefers; JSON without an `Accept` header. Returns
/// `None` if the client accepts none of them.
#[must_use]
pub(crate) fn negotiate(accept: Option<&str>, offered: &[ResponseForm]) -> Option<ResponseForm> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return Some(ResponseForm::Json);
    };

    let mut acceptable: Vec<(f32, ResponseForm)> = accept
        .split(',')
        .take(CLAUSES_MAX)
        .map(AcceptClause::parse)
        .filter_map(|clause| Some((clause.quality, clause.form()?)))
        .filter(|(quality, form)| *quality > 0.0 && offered.contains(form))
        .collect();

    // The sort is stable, so the first of two equally preferred forms wins.
    acceptable.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    acceptable.first().map(|(_, form)| *form)
}

/// Returns true if an `If-None-Match` header names the entity tag.
#[must_use]
pub(crate) fn names_tag(if_none_match: Option<&str>, tag: &str) -> bool {
    if_none_match.is_some_and(|header| {
        header.split(',').map(str::trim).any(|candidate| {
            candidate == "*" || candidate.strip_prefix("W/").unwrap_or(candidate) == tag
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_liked_form_is_chosen() {
        let metric = [ResponseForm::Json, ResponseForm::Table].as_slice();
        let groups = [ResponseForm::Json, ResponseForm::DiscoveryV2].as_slice();
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";

        for (accept, offered, form) in [
            (None, metric, Some(ResponseForm::Json)),
            (Some(""), metric, Some(ResponseForm::Json)),
            (Some("application/vnd.kubernetes.protobuf, */*"), metric, Some(ResponseForm::Json)),
            (Some("application/vnd.kubernetes.protobuf"), metric, None),
            (Some("application/yaml, application/cbor"), metric, None),
            (Some("application/json; charset=utf-8"), metric, Some(ResponseForm::Json)),
            (Some("Application/JSON"), metric, Some(ResponseForm::Json)),
            (Some("application/*"), metric, Some(ResponseForm::Json)),
            (Some("text/*"), metric, None),
            (Some(table), metric, Some(ResponseForm::Table)),
            (
                Some(&format!("{table},{table};v=v1beta1,application/json")),
                metric,
                Some(ResponseForm::Table),
            ),
            (Some(&format!("application/json,{table}")), metric, Some(ResponseForm::Json)),
            (Some(&format!("application/json;q=0.5,{table}")), metric, Some(ResponseForm::Table)),
            (Some("application/json;q=0"), metric, None),
            (Some("application/json;q=0,*/*;q=0.1"), metric, Some(ResponseForm::Json)),
            (Some("application/json;q=x"), metric, None),
            (Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io"), metric, None),
            (
                Some("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
                metric,
                None,
            ),
            (Some(DISCOVERY_V2), groups, Some(ResponseForm::DiscoveryV2)),
            (
                Some(&format!("{DISCOVERY_V2};profile=nopeer,application/json")),
                groups,
                Some(ResponseForm::DiscoveryV2),
            ),
            (Some(&DISCOVERY_V2.replace("v=v2", "v=v2beta1")), groups, None),
            (Some(&format!("{DISCOVERY_V2},application/json")), metric, Some(ResponseForm::Json)),
            (Some(&format!("{},application/json", "a/b,".repeat(40))), metric, None),
        ] {
            assert_eq!(negotiate(accept, offered), form, "{accept:?}");
        }
    }

    #[test]
    fn entity_tags_are_compared_weakly() {
        for (header, named) in [
            (None, false),
            (Some("\"a\""), true),
            (Some("W/\"a\""), true),
            (Some("\"b\", \"a\""), true),
            (Some("*"), true),
            (Some("\"b\""), false),
            (Some("a"), false),
        ] {
            assert_eq!(names_tag(header, "\"a\""), named, "{header:?}");
        }
    }
}
