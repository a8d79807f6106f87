//! The engine: one simulated vLLM replica as a server.
//!
//! It takes the engine, the start-up time and the request lengths from a variant of a scenario
//! file, and serves the /metrics response and the completions of one replica of it. Its load is
//! real requests, and a background load at a rate that can be changed while it runs. So a pod of it
//! can stand for a pod of vLLM: Plimsoll scrapes it, and an HPA scales it.
//!
//! [`served`] advances the simulator and is pure. [`completion`] has the wire format of `OpenAI`'s
//! API, and [`http`] connects the two to a socket. Every size, count and time that comes from a
//! client has a bound.

pub mod args;
mod completion;
mod http;
mod served;
mod wiring;

pub use crate::engine::wiring::run;
