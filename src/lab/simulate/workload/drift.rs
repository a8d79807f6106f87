//! Lengths that drift: prompts and answers get longer or shorter over time. Examples are clients
//! that begin to send documents, or a new model release that thinks for longer.

use crate::simulate::Micros;

/// Factors on lengths over time, interpolated linearly between points.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// Ascending times, each with the factors at that time.
    points: Vec<(Micros, LengthFactors)>,
}

/// Factors on the lengths of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LengthFactors {
    /// The factor on the prompt tokens.
    pub prompt: f64,
    /// The factor on the answer tokens.
    pub output: f64,
}

/// The reason why points do not form a drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriftError {
    /// There is no point.
    #[error("must have at least one point")]
    Empty,
    /// A time is not after the previous one.
    #[error("must have times that ascend")]
    Unsorted,
}

// === impl Drift ===

impl Drift {
    /// The drift through these points. The factors are constant before the first point and after
    /// the last.
    ///
    /// # Errors
    ///
    /// There are no points, or their times do not ascend.
    pub fn through(points: Vec<(Micros, LengthFactors)>) -> Result<Self, DriftError> {
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
    pub fn at(&self, time: Micros) -> LengthFactors {
        let after = self.points.partition_point(|(at, _)| *at <= time);
        let before = after.checked_sub(1).and_then(|place| self.points.get(place));

        match (before, self.points.get(after)) {
            (Some((from, first)), Some((to, second))) => {
                let share = time.since(*from).seconds() / to.since(*from).seconds();
                first.towards(*second, share)
            }
            (Some((_, only)), None) | (None, Some((_, only))) => *only,
            (None, None) => LengthFactors::NONE,
        }
    }
}

// === impl LengthFactors ===

impl LengthFactors {
    /// Unchanged lengths.
    pub const NONE: Self = Self { prompt: 1.0, output: 1.0 };

    /// The factors at a share of the way to `other`.
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
        let stretch = |prompt, output| LengthFactors { prompt, output };
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

        let points = vec![(at(5), LengthFactors::NONE), (at(5), LengthFactors::NONE)];
        assert_eq!(Drift::through(points), Err(DriftError::Unsorted));
        assert_eq!(Drift::through(vec![]), Err(DriftError::Empty));
    }
}
