//! Servers: listeners, TLS, and who is asking.

pub mod admin;
pub mod auth;
pub mod tls;
