//! The text of ranked options.

use std::fmt;

use crate::decide::rank::residual::{Rank, RankOption, RankRound, Ranking, Residual};
use crate::decide::rank::score::RankRecord;
use crate::fleet::VariantKey;

impl fmt::Display for RankRecord {
    /// `3 replicas for 12.00 per hour serve load worth 6.15: ratio 1.86 x unfitness 1.00 …`.
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
            mismatch,
            score,
        } = self;
        let serve = if count.count() == 1 { "serves" } else { "serve" };
        write!(
            f,
            "{} for {real:.2} per hour {serve} load worth {theoretical:.2}: ratio {ratio:.3} x \
             unfitness {unfitness:.3} counted as {suppressed:.3}",
            count.counted()
        )?;
        if *cold > 1.0 {
            write!(f, " x {cold:.1} for a cold start")?;
        }
        if *mismatch > 1.0 {
            write!(f, " x {mismatch:.1} for a scarce accelerator that the model does not need")?;
        }

        write!(f, ", score {score:.3}")
    }
}

impl fmt::Display for RankRound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, taken: (key, count), served } = self;
        write!(f, "{count} x {key} serve {served:.1}")?;

        let taken = options.iter().find(|option| option.key == *key);
        match taken.map(|option| option.scored) {
            Some(Ok(record)) => write!(f, ": {record}"),
            Some(Err(_)) | None => Ok(()),
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
            write!(f, "{separator}{unserved:.1} exceeds the capacity of all variants")?;
        }

        Ok(())
    }
}

impl fmt::Display for Rank {
    /// Writes the result of the variant's option in each ranking: the rounds in which it was taken.
    /// If it was not taken, writes the option that won the first round.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variant, rankings } = self;
        let mut separator = "ranked by price";
        for Ranking { unit, role: _, residual } in rankings.iter() {
            let mut taken = residual.rounds.iter().filter(|it| it.taken.0 == *variant).peekable();
            if taken.peek().is_none()
                && let Some(first) = residual.rounds.first()
                && let Some(option) = option_of(first, variant)
            {
                write!(f, "{separator} for {unit} and not chosen: ")?;
                match option.scored {
                    Ok(record) => write!(f, "{record}")?,
                    Err(why) => write!(f, "{why}")?,
                }

                if let Some((best, score)) = best(first) {
                    write!(f, ", against {score:.3} of {}", best.variant)?;
                }

                separator = "; ranked by price";
            }

            for round in taken {
                let Some(RankOption { served, scored: Ok(record), .. }) = option_of(round, variant)
                else {
                    continue;
                };
                write!(f, "{separator} to serve {served:.1} {unit}: {record}")?;
                separator = "; ranked by price";
            }
        }

        Ok(())
    }
}

/// Returns a variant's option in a round.
fn option_of<'r>(round: &'r RankRound, variant: &VariantKey) -> Option<&'r RankOption> {
    round.options.iter().find(|option| option.key == *variant)
}

/// Returns the variant that was taken in a round, and its score.
fn best(round: &RankRound) -> Option<(&VariantKey, f64)> {
    let (key, _) = &round.taken;
    let record = option_of(round, key)?.scored.ok()?;
    Some((key, record.score))
}
