//! Kubernetes quantities.

use plimsoll::publish::quantity::Quantity;

/// Parses a quantity; its canonical text must be the same number.
pub fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let parsed: Result<Quantity, _> = text.parse();
    let Ok(quantity) = parsed else { return };
    let canonical = quantity.to_string();
    let again = canonical.parse::<Quantity>();
    assert_eq!(again.as_ref(), Ok(&quantity), "{text:?} is written as {canonical:?}");
    if let Ok(float) = text.parse::<f64>() {
        // Allow for rounding up to a thousandth, and for the limited precision of a large float.
        let slack = 1.0 + (float * 1000.0).abs() * 1e-15;
        let distance = quantity.milli() as f64 - float * 1000.0;
        assert!((-slack..=slack + 1.0).contains(&distance), "{text:?} is read as {canonical}");
    }
}
