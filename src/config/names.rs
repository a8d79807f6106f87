//! What names, addresses and selectors may look like.

/// The longest value of a Kubernetes label, and the longest DNS label.
const LABEL_MAX: usize = 63;

/// The longest DNS name, and the longest name of a Kubernetes object.
const NAME_MAX: usize = 253;

/// The longest name of a model. Names of adapters and paths of checkpoints are far below it.
const MODEL_MAX: usize = 512;

/// What [`is_dns_label`] asks for.
pub(crate) const DNS_LABEL: &str =
    "must be 1 to 63 lower-case letters, digits or `-`, and start and end with a letter or digit";

/// What [`is_object_name`] asks for.
pub(crate) const OBJECT_NAME: &str = "must be 1 to 253 lower-case letters, digits, `-` or `.`, and each part between dots must \
     start and end with a letter or digit";

/// What [`is_variant_name`] asks for.
pub(crate) const VARIANT_NAME: &str = "must be 1 to 63 lower-case letters, digits, `-` or `.`, and each part between dots must \
     start and end with a letter or digit, because it is a label's value and an object's name";

/// What [`is_model_name`] asks for.
pub(crate) const MODEL_NAME: &str =
    "must be 1 to 512 characters without `#`, spaces at the ends or control characters";

/// Whether this can name a namespace.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= LABEL_MAX
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether this can name a Kubernetes object.
pub(crate) fn is_object_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(is_dns_label)
}

/// Whether this can name a variant: an object's name that is also a label's value.
pub(crate) fn is_variant_name(text: &str) -> bool {
    text.len() <= LABEL_MAX && is_object_name(text)
}

/// Whether this can name a model. `#` separates model and namespace where both are named.
pub(crate) fn is_model_name(text: &str) -> bool {
    is_label_text(text) && !text.contains('#') && text.chars().count() <= MODEL_MAX
}

/// Whether this can be the value of a metric's label without surprising anyone.
pub(crate) fn is_label_text(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control)
}

/// Whether this is the kind of a Kubernetes object.
pub(crate) fn is_kind(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.len() <= LABEL_MAX
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Whether this is the group and version of a Kubernetes object.
pub(crate) fn is_api_version(text: &str) -> bool {
    match text.split_once('/') {
        Some((group, version)) => is_object_name(group) && is_dns_label(version),
        None => is_dns_label(text),
    }
}

/// Whether this is a host: a DNS name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[') {
        return inner
            .strip_suffix(']')
            .is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    }
    is_dns_name(text)
}

/// Whether this is a DNS name. Underscores are allowed, because SRV names have them.
pub(crate) fn is_dns_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= NAME_MAX
        && text.split('.').all(|part| {
            !part.is_empty()
                && part.len() <= LABEL_MAX
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

/// An address with its port, taking this port where it has none; `None` when it is no address.
pub(crate) fn address(text: &str, port: u16) -> Option<String> {
    match text.rsplit_once(':') {
        Some((host, written)) if !written.ends_with(']') => {
            let port: u16 = written.parse().ok().filter(|port| *port > 0)?;
            is_host(host).then(|| format!("{host}:{port}"))
        }
        Some(_) | None => is_host(text).then(|| format!("{text}:{port}")),
    }
}

/// Whether this is a label selector in the form that `kubectl --selector` takes.
pub(crate) fn is_selector(text: &str) -> bool {
    !text.trim().is_empty() && requirements(text).iter().all(|one| is_requirement(one.trim()))
}

/// The parts between the commas that are not inside of brackets.
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
            let value = value.trim();
            return is_label_key(key.trim()) && (value.is_empty() || is_label_value(value));
        }
    }
    if let Some(key) = text.strip_prefix('!') {
        return is_label_key(key.trim());
    }
    let Some((left, right)) = text.split_once('(') else { return is_label_key(text) };
    let mut words = left.split_whitespace();
    let (key, operator, rest) = (words.next(), words.next(), words.next());
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
    fn names_are_what_kubernetes_takes() {
        assert!(is_dns_label("llama-8b-l4") && !is_dns_label("Llama") && !is_dns_label("a.b"));
        assert!(is_object_name("a.b-c") && !is_object_name("a..b") && !is_object_name(""));
        assert!(is_variant_name("llama3.1-8b") && !is_variant_name(&"a".repeat(64)));
        assert!(is_model_name("meta-llama/Llama-3.1-8B") && !is_model_name("a#b"));
        assert!(!is_model_name(" a") && !is_model_name("a\nb") && !is_model_name(""));
        assert!(is_kind("Deployment") && !is_kind("deployment"));
        assert!(is_api_version("apps/v1") && is_api_version("v1") && !is_api_version("apps/"));
    }
}
