//! Detection of an engine that has become slower or faster.
//!
//! # Model
//!
//! A Kalman filter predicts each lesson and the standard deviation of its error. An error over that
//! deviation is a *surprise*, which is standard normal while the filter's assumptions hold. Two
//! one-sided cumulative sums add up surprises in one direction each:
//!
//! ```text
//! z      = clamp(surprise / scale, -3, 3)
//! slower = max(0, slower + z - 1.5)
//! faster = max(0, faster - z - 1.5)
//! alarm    when either exceeds 6
//! ```
//!
//! `scale` is the deviation that surprises have: real noise has heavier tails than the filter
//! assumes, and persists. It is 2 at least, which allows for an iteration time that is not exactly
//! linear.
//!
//! # Domain
//!
//! - One lesson adds 1.5 at most, so five lessons are the soonest alarm, and one absurd lesson is
//!   none.
//! - A lesson without an error takes away as much as one adds. So a minority of replicas never
//!   causes an alarm, however slow it is.
//! - Two replicas have 16 lessons in two minutes. A factor of 1.3 takes 6 of them, and 1.2 takes
//!   20, at the usual noise of 5%. The filter itself follows anything below 1.15.
//! - **False alarms.** For independent symmetric noise with a deviation of `scale`, the mean time
//!   between alarms is at least 40,000 lessons: a week of one replica. Lundberg's exponent of the
//!   worst case, +-3 in one lesson of nine, is 1.89, and `exp(1.89 * 6) / 2` is 42,000. For normal
//!   noise the bound is above 10^8 lessons. Strongly skewed noise can cause an alarm in 10,000
//!   lessons, because its cut errors make `scale` smaller than its deviation.
//!
//! # Source
//!
//! Page, *Continuous inspection schemes* (1954); as a test of a filter's normalized innovations,
//! which then trusts its state less: Gustafsson, *Adaptive Filtering and Change Detection* (2000),
//! sections 3.3 and 8.4. The scale is Huber's proposal 2 (*Robust Statistics*, 1981, section 6.4).

/// Deviations at which a surprise is cut off.
const CUT: f64 = 3.0;

/// Deviations that count as noise: half of [`CUT`], so that it takes a majority of lessons.
const ALLOWED: f64 = 1.5;

/// The sum beyond which there is an alarm.
const ALARM: f64 = 6.0;

/// The first and smallest scale.
const SCALE_MIN: f64 = 2.0;

/// The multiple of the scale at which a surprise is cut off before it updates the scale. So a
/// change hardly hides itself: five lessons of it double the scale.
const SCALE_CUT: f64 = 2.0;

/// The weight of a lesson in the scale: about the last twenty count.
const SCALE_SHARE: f64 = 0.05;

/// Degrees of freedom of the Student's t distribution by which lessons are weighted.
const FREEDOM: f64 = 4.0;

/// Watches the surprises of one filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChangeDetector {
    /// The square of the scale of surprises.
    squares: f64,
    slower: f64,
    faster: f64,
}

impl Default for ChangeDetector {
    fn default() -> Self {
        Self { squares: SCALE_MIN * SCALE_MIN, slower: 0.0, faster: 0.0 }
    }
}

impl ChangeDetector {
    /// Takes in a surprise. Returns true if the engine has changed.
    pub(super) fn take(&mut self, surprise: f64) -> bool {
        let distance = surprise / self.squares.sqrt();
        let cut = distance.clamp(-CUT, CUT);
        self.slower = (self.slower + cut - ALLOWED).max(0.0);
        self.faster = (self.faster - cut - ALLOWED).max(0.0);
        if self.slower > ALARM || self.faster > ALARM {
            *self = Self::default();
            return true;
        }

        let square = surprise.powi(2).min(SCALE_CUT * SCALE_CUT * self.squares);
        let squares = self.squares + SCALE_SHARE * (square - self.squares);
        self.squares = squares.max(SCALE_MIN * SCALE_MIN);
        false
    }

    /// The weight of a lesson with this surprise. It is one if the lesson is as expected. A lesson
    /// that is far off has hardly any weight, so a single slow replica does not set the pace of its
    /// peers.
    ///
    /// It is the weight of a maximum-likelihood fit with errors of Student's t distribution, with
    /// the four degrees of freedom that the source suggests: Lange, Little and Taylor, *Robust
    /// statistical modeling using the t distribution* (1989).
    pub(super) fn weight(&self, surprise: f64) -> f64 {
        let distance = surprise.powi(2) / self.squares;
        ((FREEDOM + 1.0) / (FREEDOM + distance)).min(1.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;

    pub(crate) fn normal(random: &mut Pcg64) -> f64 {
        let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
    }

    /// Student's t with three degrees of freedom, with a standard deviation of one.
    pub(crate) fn heavy_tailed(random: &mut Pcg64) -> f64 {
        let squares: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
        normal(random) / squares.sqrt()
    }

    /// Noise of the worst case: three deviations in one lesson of nine.
    fn extreme(random: &mut Pcg64) -> f64 {
        match random.random_range(0..18) {
            0 => CUT,
            1 => -CUT,
            _ => 0.0,
        }
    }

    fn alarms(lessons: u32, mut noise: impl FnMut(&mut Pcg64) -> f64) -> u32 {
        let mut random = Pcg64::seed_from_u64(1);
        let mut watch = ChangeDetector::default();
        (0..lessons).map(|_| u32::from(watch.take(noise(&mut random)))).sum()
    }

    #[test]
    fn noise_seldom_is_an_alarm_whatever_its_tails_and_its_scale() {
        for scale in [1.0, 2.0, 5.0] {
            assert_eq!(alarms(400_000, |random| scale * normal(random)), 0, "{scale}");

            let heavy = alarms(400_000, |random| scale * heavy_tailed(random));
            assert!(heavy <= 10, "{heavy} of {scale}");

            let extreme = alarms(400_000, |random| scale * extreme(random));
            assert!(extreme <= 10, "{extreme} of {scale}");
        }
    }

    /// Alarms if so many of all lessons are slow.
    fn alarms_of(slow: u32, all: u32) -> u32 {
        let mut lesson = 0;
        alarms(1000, |random| {
            lesson += 1;
            normal(random) + if lesson % all < slow { 12.0 } else { 0.0 }
        })
    }

    #[test]
    fn a_minority_never_is_an_alarm_and_a_majority_soon() {
        assert_eq!((alarms_of(1, 4), alarms_of(1, 3), alarms_of(2, 5)), (0, 0, 0));
        assert!(alarms_of(1, 1) > 0 && alarms_of(3, 4) > 0);
    }

    #[test]
    fn five_lessons_in_a_row_are_the_soonest_alarm() {
        let mut watch = ChangeDetector::default();
        let first = (1..100).find(|_| watch.take(-100.0));
        assert_eq!(first, Some(5));
        assert_eq!(watch, ChangeDetector::default(), "it starts over");
    }
}
