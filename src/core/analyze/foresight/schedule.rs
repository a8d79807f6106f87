//! The schedule: past arrivals by the time of the day and of the week.
//!
//! Days are like each other. A rise at nine each morning can be prepared for before it starts,
//! which a forecast from the last quarter of an hour cannot do. And if no rise ever came at this
//! hour, none must be prepared for. A [`Week`] is that curve, with a level for each quarter of an
//! hour of a week. [`ScheduleForecast`] is its part from now until a new replica serves.
//!
//! # Model
//!
//! ```text
//! x(b)     = q90 of the rates of strides of 15 s in bin b, if half of them are known
//! week[b]  = (week[b] + x(b)) / 2,  the first time x(b)
//! level(b) = week[b]                                       after two weeks
//!          = the lower median of the last 7 days at b      from two days on
//! r        = x(b) / level(b),  of the last bin that is over
//! today    = r, or if that is less than 1:  (k r + 10) / (k + 10),  k = 15 s * level(b)
//! ahead    = max of level(b) over the bins from now to the horizon
//! ```
//!
//! An unusual day shows in `today`. It scales the expected rate down, so a holiday is prepared for
//! only in its first quarter of an hour. It never scales up: the other terms handle rates that the
//! past has not seen.
//!
//! # Units
//!
//! Requests per second. Bins are quarters of an hour since the epoch, so days begin at midnight
//! UTC. After a daylight-saving change in spring, load that follows the clock comes an hour earlier
//! for some weeks.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::are_amounts;
use crate::analyze::foresight::arrivals::{STRIDE, StrideRate, quantile};

/// Seconds of a bin. It is longer than a start-up time, and a week has some hundred bins.
const BIN: i64 = 900;

/// Strides in a bin.
const STRIDES: i64 = BIN / STRIDE;

/// Bins in a day.
const DAY: i64 = 24 * 3600 / BIN;

/// Bins in a week.
pub(crate) const WEEK: i64 = 7 * DAY;

/// Strides of a bin that must be known: half.
const KNOWN_MIN: usize = 30;

/// The share of looks at which every replica must have reported. A gap looks like no load.
const SEEN_MIN: f64 = 0.95;

/// The quantile of strides that is a bin's level. The largest stride would be chance.
const LEVEL: f64 = 0.9;

/// Days with this bin that must be known before the schedule has a level.
const DAYS_MIN: usize = 2;

/// Requests that speak for a usual day, against those of a stride that speak for an unusual one.
const DOUBT: f64 = 10.0;

/// Weeks after which days of the week differ.
const WEEKS_MIN: i64 = 2;

/// The curve of a week.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Week {
    /// The first known bin.
    begun: Option<i64>,
    /// The last known bin.
    closed: Option<i64>,
    /// A level for each bin of the week, from the epoch's weekday on; empty while none is known.
    levels: Vec<Option<f64>>,
    /// The arrivals of the last bin, as a multiple of its level.
    today: Option<f64>,
    /// Looks since the last bin, and how many of them saw every replica.
    looks: [u32; 2],
}

/// The completeness of the arrivals at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalCoverage {
    /// All replicas and signals that count requests reported.
    Whole,
    /// Some of them did not report.
    Partial,
}

/// The schedule's forecast for the time until a new replica serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleForecast {
    /// The largest level in that time.
    pub level: f64,
    /// Today's arrivals as a multiple of the level; `None` if not known.
    pub today: Option<f64>,
}

/// The curve of a week in plain numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedWeek {
    /// The first known bin, in quarters of an hour since the epoch.
    pub begun: i64,
    /// The last known bin.
    pub closed: i64,
    /// Its arrivals, as a multiple of its level.
    pub today: Option<f64>,
    /// The largest level.
    pub peak: f64,
    /// The level of each bin of a week: the square root of its share of the largest level, in
    /// 63rds. Each is written as a [letter](letters).
    #[serde(with = "letters")]
    pub levels: Vec<Option<u8>>,
}

// === impl Week ===

impl Week {
    /// Closes the bins that are over, unless too little of them is known.
    pub(crate) fn close(&mut self, points: &VecDeque<StrideRate>, sight: ArrivalCoverage) {
        self.looks[0] += 1;
        self.looks[1] += u32::from(sight == ArrivalCoverage::Whole);
        let (Some(first), Some(last)) = (points.front(), points.back()) else { return };
        // A bin consists of the strides that end within it or with it.
        let over = last.stride.div_euclid(STRIDES) - 1;
        let after = self.closed.map_or(i64::MIN, |closed| closed + 1);
        let from = after.max((first.stride - 1).div_euclid(STRIDES));
        if from > over {
            return;
        }

        let [looks, whole] = std::mem::take(&mut self.looks).map(f64::from);
        let is_seen = whole >= SEEN_MIN * looks;
        for bin in from..=over {
            let strides = bin * STRIDES + 1..=(bin + 1) * STRIDES;
            let inside = points.iter().filter(|point| strides.contains(&point.stride));
            let mut rates: Vec<f64> = inside.map(|point| point.rate).collect();
            self.today = None;
            if rates.len() >= KNOWN_MIN && is_seen {
                rates.sort_by(f64::total_cmp);
                self.take(bin, quantile(&rates, LEVEL).unwrap_or(0.0));
            }

            self.closed = Some(bin);
        }
    }

    fn take(&mut self, bin: i64, level: f64) {
        let usual = self.level(bin).filter(|level| *level > 0.0);
        self.today = usual.map(|usual| as_counted(level / usual, usual));

        self.begun.get_or_insert(bin);
        if self.levels.is_empty() {
            self.levels = vec![None; slots()];
        }
        if let Some(slot) = self.levels.get_mut(slot(bin)) {
            *slot = Some(slot.map_or(level, |before| f64::midpoint(before, level)));
        }
    }

    fn at(&self, bin: i64) -> Option<f64> {
        self.levels.get(slot(bin)).copied().flatten()
    }

    /// The level of this bin of a day or a week; `None` while it has too few days.
    fn level(&self, bin: i64) -> Option<f64> {
        let begun = self.begun?;
        if bin - begun >= WEEKS_MIN * WEEK {
            return self.at(bin);
        }

        let days = (1..=7).map(|day| bin - day * DAY).filter(|bin| *bin >= begun);
        let mut levels: Vec<f64> = days.filter_map(|bin| self.at(bin)).collect();
        levels.sort_by(f64::total_cmp);
        let enough = levels.len() >= DAYS_MIN;
        levels.get(levels.len().saturating_sub(1) / 2).copied().filter(|_| enough)
    }

    /// The schedule's forecast from an instant on, over this many seconds.
    #[must_use]
    pub(crate) fn ahead(&self, from: Timestamp, horizon: f64) -> Option<ScheduleForecast> {
        let start = from.as_second();
        let bins = start.div_euclid(BIN)..=(start + seconds(horizon)).div_euclid(BIN);
        let level = bins.filter_map(|bin| self.level(bin)).reduce(f64::max)?;
        // An older bin does not describe the present day.
        let recent = self.closed.is_some_and(|closed| start.div_euclid(BIN) - closed <= 2);
        Some(ScheduleForecast { level, today: self.today.filter(|_| recent) })
    }

    /// Returns true if no bin is known from as early as those of the saved week.
    pub(super) fn begins_after(&self, saved: &SavedWeek) -> bool {
        self.begun.is_none_or(|begun| begun > saved.begun)
    }

    pub(crate) fn save(&self) -> Option<SavedWeek> {
        let peak = self.levels.iter().copied().flatten().reduce(f64::max)?;

        Some(SavedWeek {
            begun: self.begun?,
            closed: self.closed?,
            today: self.today.map(|today| (today * 1e3).round() / 1e3),
            peak,
            levels: self.levels.iter().map(|level| level.map(|level| told(level, peak))).collect(),
        })
    }
}

/// The arrivals of a bin as a multiple of its level, pulled towards one if the counts are small. A
/// few requests vary more than days differ, and a quiet night must not lower the forecast for the
/// morning.
///
/// ```text
/// today = (k r + 10) / (k + 10)        if r < 1
/// ```
///
/// `r` is the multiple, and `k` the requests that are usual in a stride. A Poisson count of ten
/// varies by a third of itself.
fn as_counted(multiple: f64, usual: f64) -> f64 {
    let count = usual * STRIDE as f64;
    if multiple < 1.0 { (count * multiple + DOUBT) / (count + DOUBT) } else { multiple }
}

// === impl ScheduleForecast ===

impl ScheduleForecast {
    /// The rate to prepare for.
    #[must_use]
    pub fn rise(&self) -> f64 {
        self.level * self.today.unwrap_or(1.0).min(1.0)
    }

    /// The highest rate that was ever seen at this time, scaled to today. `None` if
    /// today is not known: then no capacity may be released.
    #[must_use]
    pub fn bound(&self) -> Option<f64> {
        self.today.map(|today| self.level * today)
    }
}

// === impl SavedWeek ===

impl SavedWeek {
    /// Returns true if all values are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { begun, closed, today, peak, levels } = self;
        (0..=BINS_MAX).contains(begun)
            && (*begun..=BINS_MAX).contains(closed)
            && are_amounts(&[*peak, today.unwrap_or(0.0)])
            && levels.len() == slots()
            && levels.iter().flatten().all(|level| *level <= TOLD_MAX)
    }

    pub(crate) fn restore(&self) -> Week {
        let Self { begun, closed, today, peak, levels } = self;
        Week {
            begun: Some(*begun),
            closed: Some(*closed),
            levels: levels.iter().map(|told| told.map(|told| peak * share_of(told))).collect(),
            today: *today,
            looks: [0, 0],
        }
    }
}

/// The year 2255, in bins. A later instant is not a valid measurement.
const BINS_MAX: i64 = 10_000_000;

/// The saved value of the largest level, so that one character per level is enough.
pub const TOLD_MAX: u8 = 63;

/// A level as it is saved. Square roots keep small levels as precise as large ones.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 63")]
fn told(level: f64, peak: f64) -> u8 {
    if peak <= 0.0 {
        return 0;
    }
    ((level / peak).clamp(0.0, 1.0).sqrt() * f64::from(TOLD_MAX)).round() as u8
}

/// The share of the largest level that a saved level stands for.
fn share_of(told: u8) -> f64 {
    (f64::from(told) / f64::from(TOLD_MAX)).powi(2)
}

/// Levels, serialized as a character each: of the base64 alphabet, or a dot if the level is not
/// known.
mod letters {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    const UNKNOWN: char = '.';

    #[expect(clippy::ptr_arg, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        levels: &Vec<Option<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text: String = levels.iter().map(|level| level.map_or(UNKNOWN, letter)).collect();
        text.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Option<u8>>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let levels: Option<Vec<Option<u8>>> = text
            .chars()
            .map(|letter| if letter == UNKNOWN { Some(None) } else { level(letter).map(Some) })
            .collect();

        levels.ok_or_else(|| D::Error::custom("a level is a letter or a dot"))
    }

    fn letter(level: u8) -> char {
        ALPHABET.get(usize::from(level)).map_or(UNKNOWN, |letter| char::from(*letter))
    }

    fn level(letter: char) -> Option<u8> {
        let level = ALPHABET.iter().position(|it| char::from(*it) == letter)?;
        u8::try_from(level).ok()
    }
}

/// Levels of a week.
fn slots() -> usize {
    usize::try_from(WEEK).unwrap_or_default()
}

fn slot(bin: i64) -> usize {
    usize::try_from(bin.rem_euclid(WEEK)).unwrap_or_default()
}

#[expect(clippy::cast_possible_truncation, reason = "a horizon is some minutes")]
fn seconds(horizon: f64) -> i64 {
    horizon as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Midnight of a Thursday.
    const BEGIN: i64 = 1_767_225_600;

    fn at(day: i64, hour: f64) -> Timestamp {
        Timestamp::from_second(BEGIN + day * 86_400).unwrap()
            + jiff::SignedDuration::from_secs_f64(hour * 3600.0)
    }

    /// A week that has seen days with these rates, by day and hour.
    fn seen(days: i64, rate: impl Fn(i64, f64) -> f64) -> Week {
        let mut week = Week::default();
        let mut points = VecDeque::new();
        for stride in 0..days * 86_400 / STRIDE {
            let day = stride * STRIDE / 86_400;
            let second = stride * STRIDE % 86_400;
            let rate = rate(day, second as f64 / 3600.0);
            points.push_back(StrideRate { stride: BEGIN / STRIDE + stride + 1, rate });
            if points.len() > 300 {
                points.pop_front();
            }

            week.close(&points, ArrivalCoverage::Whole);
        }

        week
    }

    /// Ten per second by night, and sixty from nine to six.
    fn office(hour: f64) -> f64 {
        if (9.0..18.0).contains(&hour) { 60.0 } else { 10.0 }
    }

    fn rise(week: &Week, day: i64, hour: f64) -> Option<f64> {
        week.ahead(at(day, hour), 132.0).map(|ahead| ahead.rise())
    }

    #[test]
    fn a_rise_that_two_days_have_seen_is_known_before_it_comes() {
        let one = seen(1, |_, hour| office(hour));
        assert_eq!(one.ahead(at(1, 8.98), 132.0), None, "one day is no habit");
        let two = seen(2, |_, hour| office(hour));
        assert_eq!(rise(&two, 2, 8.9), Some(10.0), "six minutes before, nothing rises yet");
        assert_eq!(rise(&two, 2, 8.98), Some(60.0));
        assert_eq!(rise(&two, 2, 18.1), Some(10.0));
    }

    #[test]
    fn what_came_on_one_day_alone_is_no_habit() {
        let once = seen(5, |day, hour| if day == 3 { 10.0 * office(hour) } else { office(hour) });
        assert_eq!(rise(&once, 5, 12.0), Some(60.0));
    }

    #[test]
    fn a_day_that_is_not_like_the_others_is_prepared_for_once() {
        let mut holiday = seen(3, |_, hour| office(hour));
        let mut points = VecDeque::new();
        for passed in 0..9 * 3600 / STRIDE + 2 * STRIDES {
            let stride = BEGIN / STRIDE + 3 * 86_400 / STRIDE + passed + 1;
            points.push_back(StrideRate { stride, rate: 10.0 });
        }

        assert_eq!(rise(&holiday, 3, 9.1), Some(60.0));
        holiday.close(&points, ArrivalCoverage::Whole);
        assert!((rise(&holiday, 3, 9.6).unwrap() - 10.0).abs() < 1.0, "a sixth came until then");
    }

    #[test]
    fn a_night_with_few_requests_takes_little_from_the_rise_of_the_morning() {
        let mut week = seen(3, |_, hour| if hour < 9.0 { 0.2 } else { 60.0 });
        let first = BEGIN / STRIDE + 3 * 86_400 / STRIDE + 9 * 3600 / STRIDE - STRIDES;
        // Two requests instead of three in each stride.
        let quiet =
            (1..=STRIDES + 1).map(|stride| StrideRate { stride: first + stride, rate: 0.133 });
        week.close(&quiet.collect(), ArrivalCoverage::Whole);
        let prepared = rise(&week, 3, 9.0).unwrap();
        assert!(prepared > 54.0, "{prepared}");
    }

    #[test]
    fn an_unobserved_hour_is_no_quiet_hour() {
        let mut week = seen(3, |_, hour| office(hour));
        let before = week.clone();

        let first = BEGIN / STRIDE + 3 * 86_400 / STRIDE;
        let quiet = (1..=STRIDES).map(|stride| StrideRate { stride: first + stride, rate: 0.0 });
        week.close(&quiet.collect(), ArrivalCoverage::Partial);
        assert_eq!(week.levels, before.levels);
        let ahead = week.ahead(at(3, 0.3), 132.0).unwrap();
        assert_eq!((ahead.rise(), ahead.bound()), (10.0, None), "and nothing is let go after it");
    }

    /// Five per second at the weekend. The first day is a Thursday, so it is the third and the
    /// fourth.
    fn weekly(day: i64, hour: f64) -> f64 {
        if [2, 3].contains(&(day % 7)) { 5.0 } else { office(hour) }
    }

    #[test]
    fn days_of_the_week_differ_after_two_weeks() {
        let young = seen(9, weekly);
        assert_eq!(rise(&young, 9, 12.0), Some(60.0), "a Saturday is a day like the others");
        let old = seen(16, weekly);
        assert_eq!(rise(&old, 16, 12.0), Some(5.0));
        assert_eq!(rise(&old, 18, 12.0).map(f64::round), Some(60.0));
    }

    #[test]
    fn what_is_told_is_a_character_a_bin_and_says_nearly_the_same() {
        let week = seen(9, |_, hour| 100.0 - 9.0 * (hour - 12.0).abs().min(11.0));
        let saved = week.save().unwrap();
        assert!(saved.is_sound() && saved.levels.len() == 672);
        let again = saved.restore();
        for hour in 0..24 {
            let [before, after] =
                [&week, &again].map(|week| rise(week, 9, f64::from(hour)).unwrap());
            assert!((before - after).abs() < 2.0, "{before} {after} at {hour}");
        }

        assert_eq!(Week::default().save(), None);
        for wrong in [
            SavedWeek { levels: vec![None; 3], ..saved.clone() },
            SavedWeek { levels: vec![Some(64); 672], ..saved.clone() },
            SavedWeek { peak: f64::NAN, ..saved.clone() },
            SavedWeek { closed: -1, ..saved },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
    }
}
