//! One simulated engine, at the level of its iterations.
