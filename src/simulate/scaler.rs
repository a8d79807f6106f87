//! A model of the stock HPA.
