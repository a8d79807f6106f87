//! What must hold of the token analysis.
