//! Kubernetes quantities in an HPA.

/// Returns true if the text is the quantity 1.
pub(super) fn is_one(text: &str) -> bool {
    quantity(text).is_some_and(|value| (value - 1.0).abs() < 1e-9)
}

/// Parses a Kubernetes quantity; `None` if the text is not one.
pub(super) fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 16] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("", 1.0),
    ];

    let (digits, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|digits| (digits, factor)))?;
    // `f64::from_str` also accepts words such as `inf`, which are not quantities.
    let numeric = digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && digits.ends_with(|c: char| c.is_ascii_digit() || c == '.');
    numeric.then(|| digits.parse::<f64>().ok()).flatten().map(|value| value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_kubernetes_writes_them() {
        for (text, value) in [
            ("0", Some(0.0)),
            ("1", Some(1.0)),
            ("1000m", Some(1.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("2Ki", Some(2048.0)),
            ("", None),
            ("inf", None),
            ("nan", None),
            ("one", None),
            ("m", None),
        ] {
            assert_eq!(quantity(text), value, "{text}");
        }
    }
}
