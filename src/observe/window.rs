//! Values over time.
