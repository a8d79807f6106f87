//! The allowed forms of names, addresses and selectors.

use crate::collect::cluster::discovery::Annotation;
pub use plimsoll_core::fleet::names::{
    DNS_LABEL, LABEL_MAX, MODEL_NAME, NAME_MAX, OBJECT_NAME, PROMETHEUS_LABEL, VARIANT_NAME,
    is_dns_label, is_label_text, is_model_name, is_object_name, is_prometheus_label,
    is_variant_name,
};

/// The rule for the texts that [`is_label_text`] accepts.
pub const LABEL_TEXT: &str =
    "must not be empty, nor have spaces at the ends, control characters or over 1024 bytes";

/// The mark for all namespaces.
pub const ALL_NAMESPACES: &str = "*";

/// Returns true if this can name a Lease, with room for the `-decisions` suffix of the shared
/// decisions.
#[must_use]
pub fn is_lease_name(text: &str) -> bool {
    is_object_name(&format!("{text}-decisions"))
}

/// Returns true if this is the name of a namespace, or the mark for all of them.
#[must_use]
pub fn is_namespace_or_all(text: &str) -> bool {
    text == ALL_NAMESPACES || is_dns_label(text)
}

/// Returns true if this is an annotation of Plimsoll.
#[must_use]
pub fn is_annotation(text: &str) -> bool {
    Annotation::ALL.iter().any(|one| one.name() == text)
}

/// Returns true if this is the kind of a Kubernetes object.
#[must_use]
pub fn is_kind(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.len() <= LABEL_MAX
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Returns true if this is the group and version of a Kubernetes object.
#[must_use]
pub fn is_api_version(text: &str) -> bool {
    match text.split_once('/') {
        Some((group, version)) => is_object_name(group) && is_dns_label(version),
        None => is_dns_label(text),
    }
}

/// Returns true if this is a host: a DNS name, an IPv4 address, or an IPv6 address in brackets.
#[must_use]
pub fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[') {
        return inner
            .strip_suffix(']')
            .is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    }
    is_dns_name(text)
}

/// Returns true if this is a DNS name. Underscores are allowed, because SRV names have them.
#[must_use]
pub fn is_dns_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);

    name.len() <= NAME_MAX
        && name.split('.').all(|part| {
            !part.is_empty()
                && part.len() <= LABEL_MAX
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

/// An address with its port, or with the given port if it has none; `None` if it is not an address.
#[must_use]
pub fn address(text: &str, port: u16) -> Option<String> {
    match text.rsplit_once(':') {
        Some((host, written)) if !written.ends_with(']') => {
            let own: u16 = written.parse().ok().filter(|port| *port > 0)?;
            is_host(host).then(|| format!("{host}:{own}"))
        }
        Some(_) | None => is_host(text).then(|| format!("{text}:{port}")),
    }
}

/// Returns true if this is a label selector in the form that `kubectl --selector` takes.
#[must_use]
pub fn is_selector(text: &str) -> bool {
    !text.trim().is_empty() && requirements(text).iter().all(|one| is_requirement(one.trim()))
}

/// The parts between the commas that are not inside brackets.
fn requirements(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
    .collect()
}

fn is_requirement(text: &str) -> bool {
    for operator in ["!=", "==", "="] {
        if let Some((key, value)) = text.split_once(operator) {
            let trimmed = value.trim();
            return is_label_key(key.trim()) && (trimmed.is_empty() || is_label_value(trimmed));
        }
    }

    if let Some(key) = text.strip_prefix('!') {
        return is_label_key(key.trim());
    }

    let Some((left, right)) = text.split_once('(') else { return is_label_key(text) };
    let mut words = left.split_whitespace();
    let key = words.next();
    let operator = words.next();
    let rest = words.next();
    key.is_some_and(is_label_key)
        && matches!(operator, Some("in" | "notin"))
        && rest.is_none()
        && right
            .strip_suffix(')')
            .is_some_and(|values| values.split(',').all(|value| is_label_value(value.trim())))
}

fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_object_name(prefix) && is_label_value(name),
        None => is_label_value(text),
    }
}

fn is_label_value(text: &str) -> bool {
    text.len() <= LABEL_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_what_kubectl_takes() {
        for accepted in [
            "app=llama",
            "app==llama,tier!=canary",
            "app in (a, b),!old",
            "example.com/role notin (x)",
            "app",
            "app=",
        ] {
            assert!(is_selector(accepted), "{accepted}");
        }

        for refused in
            ["", "app=llama,", "=x", "app in a", "app like (a)", "a b", "app in (a", "a=b=c", "-a"]
        {
            assert!(!is_selector(refused), "{refused}");
        }
    }

    #[test]
    fn addresses_get_the_port_that_they_lack() {
        for (text, want) in [
            ("10.0.0.1:8000", Some("10.0.0.1:8000")),
            ("10.0.0.1", Some("10.0.0.1:9000")),
            ("[::1]:8000", Some("[::1]:8000")),
            ("[::1]", Some("[::1]:9000")),
            ("llama-0.llama.default.svc", Some("llama-0.llama.default.svc:9000")),
            ("http://10.0.0.1:8000", None),
            ("::1", None),
            ("10.0.0.1:0", None),
            ("10.0.0.1:65536", None),
            ("10.0.0.1:8000/metrics", None),
            ("", None),
        ] {
            assert_eq!(address(text, 9000).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn kinds_and_versions_are_what_kubernetes_takes() {
        assert!(is_kind("Deployment") && !is_kind("deployment"));
        assert!(is_api_version("apps/v1") && is_api_version("v1") && !is_api_version("apps/"));
    }
}
