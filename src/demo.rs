//! The demo: a simulated fleet under load, the real daemon, and a model of the stock HPA.
