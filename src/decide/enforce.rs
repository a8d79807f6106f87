//! Bounds, stabilisation windows and step limits.
