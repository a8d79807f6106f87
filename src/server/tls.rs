//! TLS: certificates that are read again as they rotate.
