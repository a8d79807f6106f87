//! The `plimsoll` command. Everything it does is in the library, so that tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Several crates below use rustls, and it must not have to guess which provider they mean. An
    // error says that there is one already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    plimsoll::cli::main()
}
