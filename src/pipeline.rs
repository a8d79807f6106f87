//! The pipeline: from inputs to decisions, the same in the daemon, the demo and the simulator.
