//! Parses request paths into routes.
//!
//! A path is first split at its slashes, and then each segment is decoded once. So an encoded slash
//! never becomes a separator, and nothing is decoded twice.

use percent_encoding::percent_decode_str;

use plimsoll_core::fleet::Namespace;

/// The API group.
pub const GROUP: &str = "external.metrics.k8s.io";

/// The only version of the group that HPA controllers request.
pub const VERSION: &str = "v1beta1";

/// The placeholder resource, which stands for all metrics: the only one that discovery lists.
pub(crate) const PLACEHOLDER: &str = "externalmetrics";

/// The API group of Object metrics.
pub const OBJECT_GROUP: &str = "custom.metrics.k8s.io";

/// The version of that group that HPA controllers prefer.
pub const OBJECT_VERSION: &str = "v1beta2";

/// The object that a metric is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DescribedObject {
    /// Its resource, with its group: `deployments.apps`.
    pub resource: String,
    /// Its name.
    pub name: String,
}

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/livez`, `/readyz`, `/healthz`, or one of their checks.
    Health(HealthProbe, Option<String>),
    /// A static document.
    Page(StaticPage),
    /// `/apis/<group>/<version>/namespaces/<namespace>/<metric>`, or for all metrics of all
    /// namespaces `/apis/<group>/<version>/externalmetrics`.
    Metric(MetricScope, String),
    /// `/apis/<object group>/<version>/namespaces/<namespace>/<resource>/<name>/<metric>`.
    ObjectMetric(Namespace, DescribedObject, String),
    /// An invalid path, with the reason.
    Malformed(&'static str),
    /// Any other path.
    Unknown,
}

/// The namespaces that a path is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricScope {
    /// One namespace.
    Namespace(Namespace),
    /// All namespaces, as `kubectl get externalmetrics -A` asks for.
    AllNamespaces,
}

/// A static document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticPage {
    /// `/version`.
    Version,
    /// `/apis`: all groups.
    Groups,
    /// `/apis/<group>`: all versions of this API group.
    Group,
    /// `/apis/<group>/<version>`: the resources of this API group.
    Resources,
    /// `/apis/<object group>`: all versions of the group of Object metrics.
    ObjectGroup,
    /// `/apis/<object group>/<version>`: the resources of that group.
    ObjectResources,
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`.
    OpenApiV3Index,
    /// `/openapi/v3/apis/<group>/<version>`.
    OpenApiV3,
}

/// The check that a health path requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthProbe {
    /// Checks that the process runs.
    Live,
    /// Checks that the process should get traffic.
    Ready,
}

impl MetricScope {
    /// The namespace in the form that authorization reviews have: empty for all.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Namespace(namespace) => namespace.as_str(),
            Self::AllNamespaces => "",
        }
    }
}

impl Route {
    /// Parses a path. Paths of discovery documents may end with a slash.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        let Some(path) = path.strip_prefix('/') else { return Self::Unknown };
        let mut decoded = Vec::new();
        for segment in path.split('/') {
            match percent_decode_str(segment).decode_utf8() {
                Ok(text) => decoded.push(text),
                Err(_) => return Self::Malformed("the path is not UTF-8"),
            }
        }

        let segments: Vec<&str> = decoded.iter().map(AsRef::as_ref).collect();
        match segments.as_slice() {
            ["livez" | "healthz"] => Self::Health(HealthProbe::Live, None),
            ["readyz"] => Self::Health(HealthProbe::Ready, None),
            ["livez" | "healthz", check] => {
                Self::Health(HealthProbe::Live, Some((*check).to_owned()))
            }
            ["readyz", check] => Self::Health(HealthProbe::Ready, Some((*check).to_owned())),
            ["version"] => Self::Page(StaticPage::Version),
            ["apis"] | ["apis", ""] => Self::Page(StaticPage::Groups),
            ["apis", GROUP] | ["apis", GROUP, ""] => Self::Page(StaticPage::Group),
            ["apis", GROUP, VERSION] | ["apis", GROUP, VERSION, ""] => {
                Self::Page(StaticPage::Resources)
            }
            ["apis", GROUP, VERSION, "namespaces", namespace, metric] => {
                Self::metric(namespace, metric)
            }
            // Only to show it: a sum over all namespaces scales nothing.
            ["apis", GROUP, VERSION, PLACEHOLDER] => {
                Self::Metric(MetricScope::AllNamespaces, PLACEHOLDER.to_owned())
            }
            ["apis", OBJECT_GROUP, rest @ ..] => Self::of_objects(rest),
            ["openapi", "v2"] => Self::Page(StaticPage::OpenApiV2),
            ["openapi", "v3"] => Self::Page(StaticPage::OpenApiV3Index),
            ["openapi", "v3", "apis", GROUP, VERSION] => Self::Page(StaticPage::OpenApiV3),
            _ => Self::Unknown,
        }
    }

    fn metric(namespace: &str, metric: &str) -> Self {
        if is_forbidden(namespace) || is_forbidden(metric) {
            return Self::Malformed("a name is . or .., or has a slash or a percent sign in it");
        }
        match Namespace::new(namespace) {
            Some(namespace) if !metric.is_empty() => {
                Self::Metric(MetricScope::Namespace(namespace), metric.to_owned())
            }
            _ => Self::Unknown,
        }
    }

    /// Parses the segments after the API group of Object metrics.
    fn of_objects(rest: &[&str]) -> Self {
        match rest {
            [] | [""] => Self::Page(StaticPage::ObjectGroup),
            [OBJECT_VERSION] | [OBJECT_VERSION, ""] => Self::Page(StaticPage::ObjectResources),
            [OBJECT_VERSION, "namespaces", namespace, resource, name, metric] => {
                Self::object_metric(namespace, resource, name, metric)
            }
            _ => Self::Unknown,
        }
    }

    fn object_metric(namespace: &str, resource: &str, name: &str, metric: &str) -> Self {
        if name == "*" {
            return Self::Malformed("metrics are only served for single objects");
        }
        if is_forbidden(resource) || is_forbidden(name) || resource.is_empty() || name.is_empty() {
            return Self::Malformed("the resource or the name of the object is invalid");
        }

        match Self::metric(namespace, metric) {
            Self::Metric(MetricScope::Namespace(namespace), metric) => {
                let object =
                    DescribedObject { resource: resource.to_owned(), name: name.to_owned() };
                Self::ObjectMetric(namespace, object, metric)
            }
            other => other,
        }
    }

    /// Returns true if only an API with Object metrics has this route.
    pub(crate) const fn is_of_objects(&self) -> bool {
        matches!(
            self,
            Self::ObjectMetric(..)
                | Self::Page(StaticPage::ObjectGroup | StaticPage::ObjectResources)
        )
    }

    /// Returns the route as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Health(..) => "health",
            Self::Page(StaticPage::Version) => "version",
            Self::Page(
                StaticPage::Groups
                | StaticPage::Group
                | StaticPage::Resources
                | StaticPage::ObjectGroup
                | StaticPage::ObjectResources,
            ) => "discovery",
            Self::Page(
                StaticPage::OpenApiV2 | StaticPage::OpenApiV3Index | StaticPage::OpenApiV3,
            ) => "openapi",
            Self::Metric(..) => "metric",
            Self::ObjectMetric(..) => "object_metric",
            Self::Malformed(_) | Self::Unknown => "other",
        }
    }
}

fn is_forbidden(name: &str) -> bool {
    matches!(name, "." | "..") || name.contains(['/', '%'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metric(namespace: &str, metric: &str) -> Route {
        let scope = MetricScope::Namespace(Namespace::new(namespace).unwrap());
        Route::Metric(scope, metric.to_owned())
    }

    #[test]
    fn paths_lead_where_kubernetes_says() {
        let base = "/apis/external.metrics.k8s.io/v1beta1";
        for (path, route) in [
            ("/apis".to_owned(), Route::Page(StaticPage::Groups)),
            ("/apis/".to_owned(), Route::Page(StaticPage::Groups)),
            ("/apis/external.metrics.k8s.io".to_owned(), Route::Page(StaticPage::Group)),
            ("/apis/external.metrics.k8s.io/".to_owned(), Route::Page(StaticPage::Group)),
            (base.to_owned(), Route::Page(StaticPage::Resources)),
            (format!("{base}/"), Route::Page(StaticPage::Resources)),
            (format!("{base}/namespaces/a/m"), metric("a", "m")),
            (format!("{base}/namespaces/a/a%7Cb"), metric("a", "a|b")),
            (format!("{base}/namespaces/a/x%40y:z%20w"), metric("a", "x@y:z w")),
            ("/apis/custom.metrics.k8s.io/".to_owned(), Route::Page(StaticPage::ObjectGroup)),
            (
                "/apis/custom.metrics.k8s.io/v1beta2".to_owned(),
                Route::Page(StaticPage::ObjectResources),
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta2/namespaces/a/deployments.apps/b/m".to_owned(),
                Route::ObjectMetric(
                    Namespace::new("a").unwrap(),
                    DescribedObject { resource: "deployments.apps".into(), name: "b".into() },
                    "m".to_owned(),
                ),
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta2/namespaces/a/metrics/m".to_owned(),
                Route::Unknown,
            ),
            ("/apis/custom.metrics.k8s.io/v1beta2/nodes/a/m".to_owned(), Route::Unknown),
            (format!("{base}/namespaces/a/m/"), Route::Unknown),
            (format!("{base}/namespaces/a/m/x"), Route::Unknown),
            (format!("{base}/namespaces/a"), Route::Unknown),
            (format!("{base}/namespaces//m"), Route::Unknown),
            (format!("{base}/namespaces/a/"), Route::Unknown),
            (format!("{base}/m"), Route::Unknown),
            (
                format!("{base}/externalmetrics"),
                Route::Metric(MetricScope::AllNamespaces, PLACEHOLDER.to_owned()),
            ),
            (format!("{base}//"), Route::Unknown),
            (format!("/{base}"), Route::Unknown),
            ("/apis/external.metrics.k8s.io/v1".to_owned(), Route::Unknown),
            ("/apis/metrics.k8s.io/v1beta1".to_owned(), Route::Unknown),
            (
                "/openapi/v3/apis/external.metrics.k8s.io/v1beta1".to_owned(),
                Route::Page(StaticPage::OpenApiV3),
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

    #[test]
    fn an_object_metric_is_of_one_object() {
        let base = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/a";
        for malformed in ["pods/*/m", "pods/%2e%2e/m", "a%2fb/c/m", "pods//m", "pods/b/a%2fm"] {
            let route = Route::parse(&format!("{base}/{malformed}"));
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
