//! The demo: a simulated fleet under load, the real daemon, and a model of the stock HPA.
//!
//! The simulator ([`crate::simulate::run::Simulation`]) models the engines, the requests and the
//! HPA's arithmetic from a scenario file. The daemon and its configuration are real. So are its
//! scrapes over HTTP, its target files, and the HPA's HTTPS requests with a client certificate. So
//! the demo works for the same reasons as a cluster does, and reacts as fast.
//!
//! [`run`] assembles it: it opens the [`DemoStage`](stage::DemoStage) and starts a daemon. The
//! daemon reads the stage's target files and serves the external metrics API with the [`pki::Pki`].
//! Then it calls [`drive()`].

pub mod actuator;
pub mod args;
mod drive;
pub mod pki;
pub mod scenario;
pub mod screen;
pub mod stage;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod view;
mod wiring;

pub use crate::demo::drive::{DemoParts, drive};
pub use crate::demo::wiring::run;
