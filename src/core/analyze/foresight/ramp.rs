//! The ramp: a load that rises steadily, and its rate if it continues to rise.

use crate::analyze::foresight::policy::Ramp;

/// The fewest strides for the fit of a slope.
const RAMP_STRIDES: usize = 4;

/// Times that a slope is looked for in, in horizons. Where requests come in bursts, one horizon is
/// too short to be certain of a rise that three horizons show.
const WINDOWS: [usize; 2] = [1, 3];

/// The rate if it continues to rise; `None` if it does not rise steadily.
pub(super) fn ramp(arriving: f64, rates: &[f64], ahead: usize, policy: &Ramp) -> Option<f64> {
    let lasts = slope(last(rates, ahead.div_ceil(2).max(2))?)?.0 > 0.0;
    let known = rates.len().max(ahead);
    let windows = WINDOWS.map(|horizons| (horizons * ahead).min(known).max(RAMP_STRIDES));

    let rises = windows.map(|count| continued(arriving, last(rates, count)?, ahead, policy));
    rises.into_iter().flatten().max_by(f64::total_cmp).filter(|_| lasts)
}

/// The last strides; `None` if there are not as many.
fn last(rates: &[f64], count: usize) -> Option<&[f64]> {
    rates.get(rates.len().checked_sub(count)?..)
}

/// The rate if the rise of some strides continues; `None` if they do not rise steadily.
fn continued(arriving: f64, recent: &[f64], ahead: usize, policy: &Ramp) -> Option<f64> {
    let Ramp { certainty, jump, bend, cap } = *policy;
    let (slope, error) = self::slope(recent)?;
    if slope <= certainty.fraction() * error || slope <= 0.0 {
        return None;
    }

    let rise = recent.last()? - recent.first()?;
    let largest = recent.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    if largest >= jump.fraction() * rise {
        return None;
    }

    let (late, _) = self::slope(&recent[recent.len() / 2..])?;
    if late <= 0.0 {
        return None;
    }

    let strides = ahead as f64;
    let line = arriving + strides * slope.min(bend.fraction() * late);
    let curve =
        growth_rate(recent, certainty.fraction()).map(|rate| arriving * (strides * rate).exp());
    Some(line.max(curve.unwrap_or(0.0)).min(cap.fraction() * arriving))
}

/// The relative growth from one rate to the next, if they certainly rise faster and faster.
fn growth_rate(rates: &[f64], certainty: f64) -> Option<f64> {
    let (early, late) = rates.split_at(rates.len() / 2);
    if early.len() < RAMP_STRIDES {
        return None;
    }

    let (early, early_error) = slope(early)?;
    let (late, late_error) = slope(late)?;
    let rises = early > certainty * early_error;
    let is_steeper = late - early > certainty * early_error.hypot(late_error);
    if !(rises && is_steeper) {
        return None;
    }

    let logarithms: Vec<f64> = rates.iter().map(|rate| rate.max(f64::MIN_POSITIVE).ln()).collect();
    slope(&logarithms).map(|(slope, _)| slope)
}

/// The slope of a line through values at a distance of one, and its standard error.
fn slope(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    if values.len() < 2 {
        return None;
    }

    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let offsets = values.iter().enumerate().map(|(at, value)| (at as f64 - middle, value - mean));

    let width: f64 = offsets.clone().map(|(x, _)| x * x).sum();
    let slope = offsets.clone().map(|(x, y)| x * y).sum::<f64>() / width;
    let left: f64 = offsets.map(|(x, y)| (y - slope * x).powi(2)).sum();
    let freedom = (count - 2.0).max(1.0);
    Some((slope, (left / freedom / width).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The growth of a ramp in twenty strides.
    fn times(rates: &[f64]) -> f64 {
        let now = rates[rates.len() - 1];
        ramp(now, rates, 20, &Ramp::default()).unwrap() / now
    }

    #[test]
    fn a_ramp_that_gets_steeper_is_a_curve_and_one_that_does_not_is_a_line() {
        let doubling: Vec<f64> = (0..60).map(|k| 10.0 * (f64::from(k) / 20.0).exp2()).collect();
        assert!((times(&doubling) - 2.0).abs() < 0.01, "{}", times(&doubling));

        let straight: Vec<f64> = (0..60).map(|k| 10.0 + f64::from(k)).collect();
        assert!((times(&straight) - 89.0 / 69.0).abs() < 0.01, "{}", times(&straight));
    }

    #[test]
    fn a_rise_that_one_horizon_hides_in_noise_is_a_ramp_in_three() {
        let unevenness = [4.0, -6.0, 5.0, 6.0, -5.0, 1.0, -5.0].into_iter().cycle();
        let rising = (0..60).map(|k| 20.0 + f64::from(k));
        let rates: Vec<f64> = rising.zip(unevenness).map(|(rate, more)| rate + more).collect();
        let now = rates[59];
        assert_eq!(continued(now, &rates[51..], 9, &Ramp::default()), None);

        let expected = ramp(now, &rates, 9, &Ramp::default()).unwrap();
        assert!((expected - now - 9.0).abs() < 1.5, "{expected} after {now}");
    }

    #[test]
    fn a_ramp_that_has_ended_is_no_ramp() {
        let rates: Vec<f64> = (0..40).map(|k| 10.0 + f64::from((k - 30).clamp(0, 5))).collect();
        assert_eq!(ramp(15.0, &rates, 9, &Ramp::default()), None);
    }
}
