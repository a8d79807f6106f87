//! The rules for names: those of Kubernetes if the name becomes a Kubernetes name or label.

/// The longest value of a Kubernetes label, and the longest DNS label.
pub const LABEL_MAX: usize = 63;

/// The longest DNS name, and the longest name of a Kubernetes object.
pub const NAME_MAX: usize = 253;

/// The longest name of a model. Names of adapters and paths of checkpoints are far below it.
const MODEL_MAX: usize = 512;

/// The longest text in a label of a metric, in bytes.
const LABEL_TEXT_MAX: usize = 1024;

/// The rule of [`is_dns_label`], for messages.
pub const DNS_LABEL: &str =
    "must be 1 to 63 lower-case letters, digits or `-`, and start and end with a letter or digit";

/// The rule of [`is_object_name`], for messages.
pub const OBJECT_NAME: &str = "must be 1 to 253 lower-case letters, digits, `-` or `.`, and each part between dots must \
     start and end with a letter or digit";

/// The rule of [`is_variant_name`], for messages.
pub const VARIANT_NAME: &str = "must be 1 to 63 lower-case letters, digits, `-` or `.`, and each part between dots must \
     start and end with a letter or digit, because it is a label's value and an object's name";

/// The rule of [`is_model_name`], for messages.
pub const MODEL_NAME: &str =
    "must be 1 to 512 characters without `#`, spaces at the ends or control characters";

/// Returns true if the text can name a namespace.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LABEL_MAX
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns true if the text can name a Kubernetes object.
pub fn is_object_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(is_dns_label)
}

/// Returns true if the text can name a variant: an object's name that is also a label's value.
#[must_use]
pub fn is_variant_name(text: &str) -> bool {
    text.len() <= LABEL_MAX && is_object_name(text)
}

/// Returns true if the text can name a model. `#` separates model and namespace in combined names.
#[must_use]
pub fn is_model_name(text: &str) -> bool {
    is_label_text(text) && !text.contains('#') && text.chars().count() <= MODEL_MAX
}

/// Returns true if the text is a sensible value for a metric's label. Prometheus refuses pages with
/// longer values than its operator permits.
pub fn is_label_text(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LABEL_TEXT_MAX
        && text.trim() == text
        && !text.chars().any(char::is_control)
}

/// The rule of [`is_prometheus_label`], for messages.
pub const PROMETHEUS_LABEL: &str =
    "must be the name of a label: letters, digits and `_`, and not a digit first";

/// Returns true if the text can be the name of a series' label, as selectors write it.
#[must_use]
pub fn is_prometheus_label(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_kubernetes_takes() {
        assert!(is_dns_label("llama-8b-l4") && !is_dns_label("Llama") && !is_dns_label("a.b"));
        assert!(is_object_name("a.b-c") && !is_object_name("a..b") && !is_object_name(""));
        assert!(is_variant_name("llama3.1-8b") && !is_variant_name(&"a".repeat(64)));
        assert!(is_label_text(&"a".repeat(1024)) && !is_label_text(&"a".repeat(1025)));
        assert!(is_model_name("meta-llama/Llama-3.1-8B") && !is_model_name("a#b"));
        assert!(!is_model_name(" a") && !is_model_name("a\nb") && !is_model_name(""));
    }
}
