//! The source of the external metrics API's serving certificate.

use crate::config::check::Checks;
use crate::config::file::{SelfManaged, ServerTls};
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::written::WrittenDuration;

const PATH: &str = "external_metrics.tls";

/// Checks that exactly one source of the certificate is configured.
pub(crate) fn check(tls: &ServerTls, cluster: bool, checks: &mut Checks<'_>) {
    let ServerTls { cert_file, key_file, ca_file, self_managed } = tls;
    if let Some(own) = self_managed {
        for (key, written) in
            [("cert_file", cert_file), ("key_file", key_file), ("ca_file", ca_file)]
        {
            if let Some(written) = written {
                let rule = "must not be next to external_metrics.tls.self_managed: remove either";
                checks.problems.error(join(PATH, key), rule, written.display());
            }
        }

        check_self_managed(own, cluster, checks);
        return;
    }

    for (key, file) in [("cert_file", cert_file), ("key_file", key_file)] {
        let path = join(PATH, key);
        if file.is_none() {
            let rule = "is missing: the external metrics API is served over TLS only";
            checks.problems.missing(&path, rule);
        }
        checks.file(&path, file.as_ref());
    }

    checks.file(&join(PATH, "ca_file"), ca_file.as_ref());
}

fn check_self_managed(own: &SelfManaged, cluster: bool, checks: &mut Checks<'_>) {
    let SelfManaged { leaf_lifetime, ca_lifetime, .. } = *own;
    let path = join(PATH, "self_managed");
    if !cluster {
        let rule = "needs kubernetes.enabled, because the certificate is kept in a Secret";
        checks.problems.missing(path.clone(), rule);
    }

    if leaf_lifetime > ca_lifetime / 3 {
        let rule = format!(
            "must not be longer than a third of {}, which is {}: an authority is replaced when it \
             has a third of its life left",
            join(&path, "ca_lifetime"),
            WrittenDuration(ca_lifetime)
        );
        checks.problems.error(join(&path, "leaf_lifetime"), rule, WrittenDuration(leaf_lifetime));
    }
}
