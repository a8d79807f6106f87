//! What must hold of the throughput analysis.
