//! Load: when requests arrive, and how long they are.
