//! Cuts in plain words.

use std::fmt;

use crate::decide::limit::{Cut, Grant, Refusal, Shadow};

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, desired, granted, below_min, cut } = self;
        write!(f, "{key}: {granted} of {desired} replicas")?;
        if let Some(cut) = cut {
            write!(f, ", {cut}")?;
        }
        if let Some(allowed) = below_min {
            write!(f, "; the minimum is kept, though only {allowed} fit")?;
        }
        Ok(())
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, why } = self;
        write!(f, "limited by {limit}: {why}")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accelerators { kind: Some(kind), needed, free } => {
                write!(f, "a replica takes {needed} {kind} and {free} are free")
            }
            Self::Accelerators { kind: None, needed, free } => {
                write!(f, "a replica takes {needed} accelerators and {free} are free")
            }
            Self::Scattered { kind, needed, largest, free } => {
                write!(
                    f,
                    "a pod takes {needed} {kind} on one node, where {largest} at most are free"
                )?;
                write!(f, ", of {free} on all nodes")
            }
            Self::Budget { needed, left } => {
                let (needed, left) = (needed.per_hour(), left.per_hour());
                write!(f, "a replica costs {needed:.2} an hour and {left:.2} are left")
            }
            Self::NotListed(kind) => write!(f, "it has no {kind}"),
            Self::UnknownKind => f.write_str("what the variant runs on is unknown"),
            Self::Unread => f.write_str("it has not been read yet"),
        }
    }
}

impl fmt::Display for Shadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, why, next, per_gpu } = self;
        write!(f, "{limit}: the next replica would be of {next}")?;
        if let Some(per_gpu) = per_gpu {
            write!(f, ", with {:.1} carried by each accelerator", per_gpu.amount())?;
        }
        write!(f, "; {why}")
    }
}
