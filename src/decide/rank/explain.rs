//! Ranked options in plain words.

use std::fmt;

use crate::decide::rank::{Dropped, Record, Residual, Round};

impl fmt::Display for Record {
    /// `3 replicas for 12.00 an hour serve what is worth 6.15: ratio 1.86, unfitness 1.00, score …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            counted: _,
            real,
            theoretical,
            ratio,
            unfitness,
            suppressed,
            cold,
            score,
        } = self;
        let (real, theoretical) = (real.per_hour(), theoretical.per_hour());
        write!(f, "{count} replicas for {real:.2} an hour serve what is worth {theoretical:.2}: ")?;
        write!(f, "ratio {ratio:.3}")?;
        match unfitness {
            Some(unfitness) => write!(f, " x unfitness {unfitness:.3} counted as {suppressed:.3}")?,
            None => write!(f, " x {suppressed:.0} for what is scarce")?,
        }
        if *cold > 1.0 {
            write!(f, " x {cold:.1} for a cold start")?;
        }
        write!(f, ", score {score:.3}")
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoReplicas => "no replica can be added, or none is needed",
            Self::NoSize => "its capacity or the preferred one is unknown",
            Self::NoMeasure => "there is no cost to hold its cost against",
            Self::NotFinite => "its numbers are too large for a score",
        })
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, taken: (key, count), served } = self;
        write!(f, "{count} x {key} serve {:.1}", served.amount())?;
        let record = options.iter().find(|(other, _)| other == key);
        match record {
            Some((_, Ok(record))) => write!(f, ": {record}"),
            Some((_, Err(_))) | None => Ok(()),
        }
    }
}

impl fmt::Display for Residual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, unserved, preferred: _ } = self;
        for (number, round) in rounds.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; then " };
            write!(f, "{separator}{round}")?;
        }
        if unserved.amount() > 0.0 {
            let separator = if rounds.is_empty() { "" } else { "; " };
            write!(f, "{separator}{:.1} cannot be served by anything", unserved.amount())?;
        }
        Ok(())
    }
}
