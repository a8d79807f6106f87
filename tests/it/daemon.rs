//! The daemon in one process, end to end.
