//! The text of cuts.

use std::fmt;

use crate::decide::limit::grants::{Grant, LimitShadow};

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, desired, granted, below_min, cut } = self;
        write!(f, "{key}: {granted} of {}", desired.counted())?;
        if let Some(cut) = cut {
            write!(f, ", {cut}")?;
        }
        if let Some(allowed) = below_min {
            write!(f, "; the minimum is kept, although only {allowed} fit")?;
        }

        Ok(())
    }
}

impl fmt::Display for LimitShadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, why, next, per_gpu } = self;
        write!(f, "{limit}: the next replica would go to {next}")?;
        if let Some(per_gpu) = per_gpu {
            write!(f, ", with a capacity of {per_gpu:.1} per accelerator")?;
        }
        write!(f, "; {why}")
    }
}
