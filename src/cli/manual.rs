//! `completions` and `man`: shell completions and manual pages, generated from the arguments.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use clap::CommandFactory;

use crate::cli::args::{Args, CompletionArgs};

/// Writes the completions of a shell to standard output.
///
/// # Errors
///
/// The output cannot be written.
pub(crate) fn completions(args: &CompletionArgs) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "plimsoll", &mut text);
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    Ok(out.flush()?)
}

/// Writes a manual page for the program and for each command into a folder.
///
/// # Errors
///
/// The folder cannot be made, or a page cannot be written.
pub(crate) fn pages(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Args::command(), folder)?;
    Ok(())
}
