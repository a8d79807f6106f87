//! Who is asking: front-proxy identities.
