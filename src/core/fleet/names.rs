//! What names may look like: those of Kubernetes where they become names or labels there.

/// The longest value of a Kubernetes label, and the longest DNS label.
pub const LABEL_MAX: usize = 63;

/// The longest DNS name, and the longest name of a Kubernetes object.
pub const NAME_MAX: usize = 253;

/// The longest name of a model. Names of adapters and paths of checkpoints are far below it.
const MODEL_MAX: usize = 512;

/// What [`is_dns_label`] asks for.
pub const DNS_LABEL: &str =
    "must be 1 to 63 lower-case letters, digits or `-`, and start and end with a letter or digit";

/// What [`is_object_name`] asks for.
pub const OBJECT_NAME: &str = "must be 1 to 253 lower-case letters, digits, `-` or `.`, and each part between dots must \
     start and end with a letter or digit";

/// What [`is_variant_name`] asks for.
pub const VARIANT_NAME: &str = "must be 1 to 63 lower-case letters, digits, `-` or `.`, and each part between dots must \
     start and end with a letter or digit, because it is a label's value and an object's name";

/// What [`is_model_name`] asks for.
pub const MODEL_NAME: &str =
    "must be 1 to 512 characters without `#`, spaces at the ends or control characters";

/// Whether this can name a namespace.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= LABEL_MAX
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether this can name a Kubernetes object.
pub fn is_object_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(is_dns_label)
}

/// Whether this can name a variant: an object's name that is also a label's value.
#[must_use]
pub fn is_variant_name(text: &str) -> bool {
    text.len() <= LABEL_MAX && is_object_name(text)
}

/// Whether this can name a model. `#` separates model and namespace where both are named.
#[must_use]
pub fn is_model_name(text: &str) -> bool {
    is_label_text(text) && !text.contains('#') && text.chars().count() <= MODEL_MAX
}

/// Whether this can be the value of a metric's label without surprising anyone.
pub fn is_label_text(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control)
}

/// Words that ask for the texts that [`is_prometheus_label`] accepts.
pub const PROMETHEUS_LABEL: &str =
    "must be the name of a label: letters, digits and `_`, and not a digit first";

/// Returns whether this can be the name of a label of a series, as its selectors write it.
#[must_use]
pub fn is_prometheus_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(inner) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_kubernetes_takes() {
        assert!(is_dns_label("llama-8b-l4") && !is_dns_label("Llama") && !is_dns_label("a.b"));
        assert!(is_object_name("a.b-c") && !is_object_name("a..b") && !is_object_name(""));
        assert!(is_variant_name("llama3.1-8b") && !is_variant_name(&"a".repeat(64)));
        assert!(is_model_name("meta-llama/Llama-3.1-8B") && !is_model_name("a#b"));
        assert!(!is_model_name(" a") && !is_model_name("a\nb") && !is_model_name(""));
    }
}
