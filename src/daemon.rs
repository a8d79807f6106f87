//! The daemon: builds everything, runs the loop, shuts down.
