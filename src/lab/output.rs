//! Standard output.

use std::io::{self, Write as _};

/// Prints a text on standard output.
///
/// # Errors
///
/// The output cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}
