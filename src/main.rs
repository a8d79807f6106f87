//! The `plimsoll` command. Its code is in the library, so that tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Several crates below use rustls, and must not have to guess which provider to use. An error
    // means that a provider is already installed, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    plimsoll::cli::main()
}
