//! Paths into routes.
//!
//! A path is split at its slashes first and each segment is decoded once, so that an encoded slash
//! never becomes a separator and nothing is decoded twice.

use percent_encoding::percent_decode_str;

use plimsoll_core::fleet::Namespace;

/// The API group.
pub const GROUP: &str = "external.metrics.k8s.io";

/// The only version of it that HPA controllers ask for.
pub const VERSION: &str = "v1beta1";

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/livez`, `/readyz`, `/healthz`, or one of their checks.
    Health(Probe, Option<String>),
    /// A document that never changes.
    Page(Page),
    /// `/apis/<group>/<version>/namespaces/<namespace>/<metric>`.
    Metric(Namespace, String),
    /// A path that no client should ask for, and why.
    Malformed(&'static str),
    /// Any other path.
    Unknown,
}

/// A document that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// `/version`.
    Version,
    /// `/apis`: all groups.
    Groups,
    /// `/apis/<group>`: all versions of ours.
    Group,
    /// `/apis/<group>/<version>`: the resources of ours.
    Resources,
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`.
    OpenApiV3Index,
    /// `/openapi/v3/apis/<group>/<version>`.
    OpenApiV3,
}

/// What a health path asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether the process runs.
    Live,
    /// Whether it should get traffic.
    Ready,
}

impl Route {
    /// Reads a path, which may have a trailing slash where discovery documents are.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        let Some(path) = path.strip_prefix('/') else { return Self::Unknown };
        let mut segments = Vec::new();
        for segment in path.split('/') {
            match percent_decode_str(segment).decode_utf8() {
                Ok(decoded) => segments.push(decoded),
                Err(_) => return Self::Malformed("the path is not UTF-8"),
            }
        }
        let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        match segments.as_slice() {
            ["livez" | "healthz"] => Self::Health(Probe::Live, None),
            ["readyz"] => Self::Health(Probe::Ready, None),
            ["livez" | "healthz", check] => Self::Health(Probe::Live, Some((*check).to_owned())),
            ["readyz", check] => Self::Health(Probe::Ready, Some((*check).to_owned())),
            ["version"] => Self::Page(Page::Version),
            ["apis"] | ["apis", ""] => Self::Page(Page::Groups),
            ["apis", GROUP] | ["apis", GROUP, ""] => Self::Page(Page::Group),
            ["apis", GROUP, VERSION] | ["apis", GROUP, VERSION, ""] => Self::Page(Page::Resources),
            ["apis", GROUP, VERSION, "namespaces", namespace, metric] => {
                Self::metric(namespace, metric)
            }
            ["openapi", "v2"] => Self::Page(Page::OpenApiV2),
            ["openapi", "v3"] => Self::Page(Page::OpenApiV3Index),
            ["openapi", "v3", "apis", GROUP, VERSION] => Self::Page(Page::OpenApiV3),
            _ => Self::Unknown,
        }
    }

    fn metric(namespace: &str, metric: &str) -> Self {
        let forbidden = |text: &str| matches!(text, "." | "..") || text.contains(['/', '%']);
        if forbidden(namespace) || forbidden(metric) {
            return Self::Malformed("a name is . or .., or has a slash or a percent sign in it");
        }
        match Namespace::new(namespace) {
            Some(namespace) if !metric.is_empty() => Self::Metric(namespace, metric.to_owned()),
            _ => Self::Unknown,
        }
    }

    /// The route as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Health(..) => "health",
            Self::Page(Page::Version) => "version",
            Self::Page(Page::Groups | Page::Group | Page::Resources) => "discovery",
            Self::Page(Page::OpenApiV2 | Page::OpenApiV3Index | Page::OpenApiV3) => "openapi",
            Self::Metric(..) => "metric",
            Self::Malformed(_) | Self::Unknown => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metric(namespace: &str, metric: &str) -> Route {
        Route::Metric(Namespace::new(namespace).unwrap(), metric.to_owned())
    }

    #[test]
    fn paths_lead_where_kubernetes_says() {
        let base = "/apis/external.metrics.k8s.io/v1beta1";
        for (path, route) in [
            ("/apis".to_owned(), Route::Page(Page::Groups)),
            ("/apis/".to_owned(), Route::Page(Page::Groups)),
            ("/apis/external.metrics.k8s.io".to_owned(), Route::Page(Page::Group)),
            ("/apis/external.metrics.k8s.io/".to_owned(), Route::Page(Page::Group)),
            (base.to_owned(), Route::Page(Page::Resources)),
            (format!("{base}/"), Route::Page(Page::Resources)),
            (format!("{base}/namespaces/a/m"), metric("a", "m")),
            (format!("{base}/namespaces/a/a%7Cb"), metric("a", "a|b")),
            (format!("{base}/namespaces/a/x%40y:z%20w"), metric("a", "x@y:z w")),
            (format!("{base}/namespaces/a/m/"), Route::Unknown),
            (format!("{base}/namespaces/a/m/x"), Route::Unknown),
            (format!("{base}/namespaces/a"), Route::Unknown),
            (format!("{base}/namespaces//m"), Route::Unknown),
            (format!("{base}/namespaces/a/"), Route::Unknown),
            (format!("{base}/m"), Route::Unknown),
            (format!("{base}//"), Route::Unknown),
            (format!("/{base}"), Route::Unknown),
            ("/apis/external.metrics.k8s.io/v1".to_owned(), Route::Unknown),
            ("/apis/metrics.k8s.io/v1beta1".to_owned(), Route::Unknown),
            (
                "/openapi/v3/apis/external.metrics.k8s.io/v1beta1".to_owned(),
                Route::Page(Page::OpenApiV3),
            ),
            ("/".to_owned(), Route::Unknown),
            ("*".to_owned(), Route::Unknown),
            (String::new(), Route::Unknown),
        ] {
            assert_eq!(Route::parse(&path), route, "{path}");
        }
        for malformed in ["a/m%2fx", "a/m%252fx", "a/..", "a/%2e%2e", "../m", "a/%ff", "a%2fb/m"] {
            let route = Route::parse(&format!("{base}/namespaces/{malformed}"));
            assert!(matches!(route, Route::Malformed(_)), "{malformed} gave {route:?}");
        }
    }

    proptest! {
        #[test]
        fn every_path_leads_somewhere(path: String) {
            let _ = Route::parse(&path);
        }
    }
}
