//! Where the serving certificate of the external metrics API comes from.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::check::{Checks, Durations};
use crate::config::file;
use crate::config::names;
use crate::config::problem::join;
use crate::config::written::WrittenDuration;
use crate::config::{SelfManaged, ServerCertificate};

const PATH: &str = "external_metrics.tls";

const YEAR: Duration = Duration::from_hours(24 * 365);
/// What public authorities have long given; it is renewed without anyone's help.
const LEAF_LIFETIME: Duration = YEAR;
const CA_LIFETIME: Duration = YEAR.saturating_mul(10);
/// Below the shortest, an API server that is away for a moment makes a certificate expire.
const LIFETIMES: Durations = Duration::from_mins(1)..=YEAR.saturating_mul(100);

/// What is written about the certificate; when it is not enough, that is a problem, and a
/// placeholder is returned.
pub(crate) fn resolve(
    tls: Option<&file::ServerTls>,
    cluster: bool,
    checks: &mut Checks<'_>,
) -> ServerCertificate {
    let file::ServerTls { cert_file, key_file, ca_file, self_managed } =
        tls.cloned().unwrap_or_default();
    if let Some(section) = self_managed {
        for (key, written) in
            [("cert_file", &cert_file), ("key_file", &key_file), ("ca_file", &ca_file)]
        {
            if let Some(written) = written {
                let rule = "cannot stand beside external_metrics.tls.self_managed: remove either";
                checks.problems.error(join(PATH, key), rule, written.display());
            }
        }
        return ServerCertificate::SelfManaged(resolve_self_managed(section, cluster, checks));
    }
    let mut required = |key: &str, written: &Option<PathBuf>| {
        let path = join(PATH, key);
        if written.is_none() {
            let rule = "is missing: the external metrics API is served over TLS only";
            checks.problems.missing(path.clone(), rule);
        }
        checks.file(&path, written.as_ref()).unwrap_or_default()
    };
    let cert_file = required("cert_file", &cert_file);
    let key_file = required("key_file", &key_file);
    let ca_file = checks.file(&join(PATH, "ca_file"), ca_file.as_ref());
    ServerCertificate::Files { cert_file, key_file, ca_file }
}

fn resolve_self_managed(
    section: file::SelfManaged,
    cluster: bool,
    checks: &mut Checks<'_>,
) -> SelfManaged {
    let file::SelfManaged { secret, service, namespace, leaf_lifetime, ca_lifetime } = section;
    let path = join(PATH, "self_managed");
    if !cluster {
        let rule = "needs kubernetes.enabled, because the certificate is kept in a Secret";
        checks.problems.missing(path.clone(), rule);
    }
    let mut required = |key: &str, written: Option<&str>, accepts: fn(&str) -> bool, rule: &str| {
        let path = join(&path, key);
        if written.is_none() {
            checks.problems.missing(path.clone(), "is missing");
        }
        checks.text(&path, written, accepts, rule).unwrap_or_default().to_owned()
    };
    let rule = "must be the name of a Secret";
    let secret = required("secret", secret.as_deref(), names::is_object_name, rule);
    let rule = "must be the name of a Service";
    let service = required("service", service.as_deref(), names::is_dns_label, rule);
    let rule = "must be the name of a namespace";
    let namespace =
        checks.text(&join(&path, "namespace"), namespace.as_deref(), names::is_dns_label, rule);
    let namespace = namespace.map(ToOwned::to_owned);
    let mut lifetime = |key: &str, written, default| {
        checks.duration(&join(&path, key), written, &LIFETIMES).unwrap_or(default)
    };
    let leaf_lifetime = lifetime("leaf_lifetime", leaf_lifetime, LEAF_LIFETIME);
    let ca_lifetime = lifetime("ca_lifetime", ca_lifetime, CA_LIFETIME);
    if leaf_lifetime > ca_lifetime / 3 {
        let rule = format!(
            "must not be longer than a third of {}, which is {}: an authority is replaced when it \
             has a third of its life left",
            join(&path, "ca_lifetime"),
            WrittenDuration(ca_lifetime)
        );
        checks.problems.error(join(&path, "leaf_lifetime"), rule, WrittenDuration(leaf_lifetime));
    }
    SelfManaged { secret, service, namespace, leaf_lifetime, ca_lifetime }
}
