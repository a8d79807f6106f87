//! The cluster: scale targets, their pods and their HPAs, watched.
