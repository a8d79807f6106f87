//! The `plimsoll` command. Its code is in the library, so that tests can reach it.

use std::process::ExitCode;

/// Returns freed memory to the system. A /metrics response of a large fleet takes tens of megabytes
/// on whichever thread writes it, and glibc keeps them for each thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Several crates below use rustls, and must not have to guess which provider to use. An error
    // means that a provider is already installed, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    plimsoll::cli::main()
}
