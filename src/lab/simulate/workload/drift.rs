//! Lengths that drift: prompts and answers get longer or shorter while time goes on, as when clients
//! begin to send documents, or a new release of a model thinks for longer.

use crate::simulate::Micros;

/// Factors on lengths over time, straight between points.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// Times ascending, and the factors from then on.
    points: Vec<(Micros, Stretch)>,
}

/// Factors on the lengths of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// On the tokens of its prompt.
    pub prompt: f64,
    /// On those of its answer.
    pub output: f64,
}

/// Why points are no drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriftError {
    /// There is no point.
    #[error("must have at least one point")]
    Empty,
    /// A time does not come after the one before it.
    #[error("must have times that ascend")]
    Unsorted,
}

// === impl Drift ===

impl Drift {
    /// The drift through these points. Before the first and after the last, factors are what they are
    /// there.
    ///
    /// # Errors
    ///
    /// There are no points, or their times do not ascend.
    pub fn through(points: Vec<(Micros, Stretch)>) -> Result<Self, DriftError> {
        if points.is_empty() {
            return Err(DriftError::Empty);
        }
        if !points.is_sorted_by(|(before, _), (at, _)| before < at) {
            return Err(DriftError::Unsorted);
        }
        Ok(Self { points })
    }

    /// The factors at a time.
    #[must_use]
    pub fn at(&self, time: Micros) -> Stretch {
        let after = self.points.partition_point(|(at, _)| *at <= time);
        let before = after.checked_sub(1).and_then(|before| self.points.get(before));
        match (before, self.points.get(after)) {
            (Some((from, first)), Some((to, second))) => {
                let share = time.since(*from).seconds() / to.since(*from).seconds();
                first.towards(*second, share)
            }
            (Some((_, only)), None) | (None, Some((_, only))) => *only,
            (None, None) => Stretch::NONE,
        }
    }
}

// === impl Stretch ===

impl Stretch {
    /// Lengths as they are.
    pub const NONE: Self = Self { prompt: 1.0, output: 1.0 };

    /// The factors at a share of the way to others.
    fn towards(self, other: Self, share: f64) -> Self {
        Self {
            prompt: self.prompt + (other.prompt - self.prompt) * share,
            output: self.output + (other.output - self.output) * share,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_run_straight_between_points_and_stay_beyond_them() {
        let stretch = |prompt, output| Stretch { prompt, output };
        let at = Micros::from_secs;
        let points = vec![(at(100), stretch(1.0, 2.0)), (at(200), stretch(3.0, 1.0))];
        let drift = Drift::through(points).unwrap();
        for (time, expected) in [
            (0, (1.0, 2.0)),
            (100, (1.0, 2.0)),
            (150, (2.0, 1.5)),
            (200, (3.0, 1.0)),
            (999, (3.0, 1.0)),
        ] {
            assert_eq!(drift.at(at(time)), stretch(expected.0, expected.1), "{time}");
        }
        let points = vec![(at(5), Stretch::NONE), (at(5), Stretch::NONE)];
        assert_eq!(Drift::through(points), Err(DriftError::Unsorted));
        assert_eq!(Drift::through(vec![]), Err(DriftError::Empty));
    }
}
