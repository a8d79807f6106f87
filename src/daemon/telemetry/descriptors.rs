//! The limit of open file descriptors.
//!
//! Since containerd 2.1, a container starts with a soft limit of 1,024 descriptors below a hard
//! limit of half a million. The soft limit only protects programs that use `select`. Go raises it at
//! the start of every program, and Rust does not. A scraped replica needs one descriptor, and so
//! does a watch of the API server, so that a thousand replicas would use up the soft limit and
//! leave none for the servers.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit.
///
/// # Errors
///
/// The operating system refuses it; the soft limit stays.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }

    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Returns the soft limit.
pub(crate) fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
