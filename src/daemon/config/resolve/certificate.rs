//! Where the serving certificate of the external metrics API comes from.

use std::path::PathBuf;

use crate::config::check::Checks;
use crate::config::file::{SelfManagedKeys, ServerTlsKeys};
use crate::config::problem::{Problems, join};
use crate::config::written::WrittenDuration;
use crate::config::{SelfManaged, ServerCertificate};
use plimsoll_core::settings::{self, Written};

const PATH: &str = "external_metrics.tls";

/// What is written about the certificate; when it is not enough, that is a problem, and a
/// placeholder is returned.
pub(crate) fn resolve(
    tls: Option<&Written<ServerTlsKeys>>,
    cluster: bool,
    checks: &mut Checks<'_>,
) -> ServerCertificate {
    let ServerTlsKeys { cert_file, key_file, ca_file, .. } =
        settings::resolve(tls, PATH, &mut Problems::default());
    let self_managed = tls.and_then(|tls| tls.self_managed.as_ref());
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
    section: &Written<SelfManagedKeys>,
    cluster: bool,
    checks: &mut Checks<'_>,
) -> SelfManaged {
    let path = join(PATH, "self_managed");
    let problems = &mut checks.problems;
    let SelfManagedKeys { secret, service, namespace, leaf_lifetime, ca_lifetime } =
        settings::resolve(Some(section), &path, problems);
    if !cluster {
        let rule = "needs kubernetes.enabled, because the certificate is kept in a Secret";
        problems.missing(path.clone(), rule);
    }
    let required = [("secret", section.secret.is_none()), ("service", section.service.is_none())];
    for (key, _) in required.iter().filter(|(_, missing)| *missing) {
        problems.missing(join(&path, key), "is missing");
    }
    let [secret, service] = [secret, service].map(Option::unwrap_or_default);
    if leaf_lifetime > ca_lifetime / 3 {
        let rule = format!(
            "must not be longer than a third of {}, which is {}: an authority is replaced when it \
             has a third of its life left",
            join(&path, "ca_lifetime"),
            WrittenDuration(ca_lifetime)
        );
        problems.error(join(&path, "leaf_lifetime"), rule, WrittenDuration(leaf_lifetime));
    }
    SelfManaged { secret, service, namespace, leaf_lifetime, ca_lifetime }
}
