//! Arrivals over time: a count for each second, and a rate for each stride of 15 s.
//!
//! What a counter grew by between two pages is spread evenly over the time between them, so pages
//! that come each second and pages that come each quarter of a minute fill the same bins. How
//! fine the bins really are is remembered, and nothing is asked of them that is finer than that.
//!
//! Arrivals are known up to the oldest of the newest pages: beyond that instant some replica has not
//! been heard yet, and a sum would look like less load.
//!
//! A client that gives up may try again, and a fleet that is too small then sees each request several
//! times. So while requests leave without an answer, what arrives beyond the rate before they began to is
//! taken for retries, as far as so many left. [`Impatience`] has that rate.
//!
//! A replica that serves and does not report counts as if it got as much as one of the others. A page
//! that comes late takes the place of that guess in the single seconds.

use std::collections::VecDeque;
use std::ops::Range;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::saved::are_amounts;
use crate::units::Seconds;

/// Seconds that bins are kept.
pub const BINS: i64 = 320;

/// Length of a stride in seconds: one sync period of an HPA.
pub const STRIDE: i64 = 15;

/// Seconds that rates of strides are kept, beside the horizon.
const KEPT: i64 = 900;

/// The longest horizon in seconds; models take half an hour to start where weights are downloaded.
pub const HORIZON_MAX: i64 = 3600;

/// The rate of one stride.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Its end, in whole strides since the epoch.
    pub stride: i64,
    /// Requests a second in it.
    pub rate: f64,
}

/// Where requests were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At a replica.
    Replica,
    /// In a queue before any.
    Queue,
    /// At a replica that did not answer them.
    Unserved,
}

/// A time in which requests leave without an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Impatience {
    /// The second in which it was noticed.
    since: i64,
    /// The last second in which it still was.
    latest: i64,
    /// The highest rate of served requests in the minute before, in requests per second.
    rate: f64,
}

/// Replicas that serve, by whether they report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Serving {
    /// Those that do.
    pub reporting: f64,
    /// Those that do not.
    pub silent: f64,
}

/// Arrivals of one model, or of one of its roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrivals {
    /// The second, since the epoch, of the first bin.
    first: i64,
    bins: VecDeque<f64>,
    /// By how much a queue before the replicas has grown in each of them.
    queued: VecDeque<f64>,
    /// Requests that left in each of them without an answer.
    unserved: VecDeque<f64>,
    impatience: Option<Impatience>,
    /// Replicas that served in each of them, as far as some of them did not report.
    serving: VecDeque<Serving>,
    points: VecDeque<Point>,
    /// The last stride that was closed.
    closed: Option<i64>,
    /// The last second of which it is known who served.
    noted: Option<i64>,
    /// Seconds between pages, of late the longest.
    spacing: f64,
    begun: Option<i64>,
}

/// What has arrived, in plain numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedArrivals {
    /// The second, since the epoch, from which on arrivals are known.
    pub begun: i64,
    /// Seconds between pages.
    pub spacing: f64,
    /// The last stride that is known, in whole strides since the epoch.
    pub closed: i64,
    /// Requests a second in that one and in those before it, in order of time.
    pub rates: Vec<f64>,
}

impl SavedArrivals {
    /// Whether all of it can be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { begun, spacing, closed, rates } = self;
        let most = (KEPT + HORIZON_MAX) / STRIDE + 1;
        let fits = i64::try_from(rates.len()).is_ok_and(|length| length <= most);
        let seconds = 0..=SECONDS_MAX;
        fits && seconds.contains(begun)
            && seconds.contains(&closed.saturating_mul(STRIDE))
            && are_amounts(&[*spacing])
            && are_amounts(rates)
    }

    /// The last quarter of an hour alone.
    pub(crate) fn shorten(&mut self) {
        let kept = usize::try_from(KEPT / STRIDE).unwrap_or_default();
        self.rates.drain(..self.rates.len().saturating_sub(kept));
    }

    pub(crate) fn restore(&self) -> Arrivals {
        let Self { begun, spacing, closed, rates } = self;
        let behind = i64::try_from(rates.len()).unwrap_or_default();
        Arrivals {
            points: (closed - behind + 1..)
                .zip(rates)
                .map(|(stride, &rate)| Point { stride, rate })
                .collect(),
            closed: Some(*closed),
            spacing: *spacing,
            begun: Some(*begun),
            ..Arrivals::default()
        }
    }
}

/// The year 2255: what is later is no instant that somebody has seen.
const SECONDS_MAX: i64 = 9_000_000_000;

/// Strides that nobody saw and that are bridged at most: two minutes, in which a daemon is restarted.
/// What is longer is not known.
const BRIDGED_MAX: i64 = 8;

/// Rates are told to a ten-thousandth of a request a second, or a day's would not fit.
const TOLD: f64 = 1e4;

impl Arrivals {
    /// What has arrived; `None` while no stride is known.
    pub(crate) fn save(&self) -> Option<SavedArrivals> {
        let rates = self.points.iter().map(|point| (point.rate * TOLD).round() / TOLD);
        Some(SavedArrivals {
            begun: self.begun?,
            spacing: (self.spacing * TOLD).round() / TOLD,
            closed: self.points.back()?.stride,
            rates: rates.collect(),
        })
    }

    /// Adds what arrived in the time before an instant.
    pub fn add(&mut self, at: Timestamp, elapsed: Seconds, requests: f64) {
        let (end, length) = (seconds(at), elapsed.seconds().min(BINS as f64));
        self.spread((end - length, end), length, elapsed, (requests, Place::Replica));
    }

    /// Adds requests that left without an answer in the time before an instant.
    pub fn add_unserved(&mut self, at: Timestamp, elapsed: Seconds, requests: f64) {
        if requests <= 0.0 {
            return;
        }
        let end = seconds(at);
        let length = elapsed.seconds().min(BINS as f64);
        self.spread((end - length, end), length, elapsed, (requests, Place::Unserved));
        self.notice_impatience(whole(end));
    }

    /// Notes that more than a few requests left without an answer.
    fn notice_impatience(&mut self, to: i64) {
        let from = to - STRIDE.max(whole(self.spacing.ceil()));
        if self.left(from, to) < IMPATIENT * self.between(from, to) {
            return;
        }

        match &mut self.impatience {
            Some(known) if to - known.latest <= PATIENCE => known.latest = known.latest.max(to),
            known => {
                *known = None;
                let rate = self.highest(to - PATIENCE, to);
                self.impatience = rate.map(|rate| Impatience { since: to, latest: to, rate });
            }
        }
    }

    /// The highest rate of requests that were served, in a few seconds of this time; `None` if none are
    /// known.
    fn highest(&self, from: i64, to: i64) -> Option<f64> {
        let window = whole(self.spacing.ceil()).max(SHORTEST);
        let earliest = from.max(self.begun?.max(self.first) + 1);
        let served = |start| self.between(start, start + window) - self.left(start, start + window);
        let most = (earliest..=to - window).map(served).reduce(f64::max)?;
        Some(most / window as f64)
    }

    /// Adds by how much a queue before the replicas has grown in the time before an instant, or
    /// shrunk, which is then less than nothing. Who says so is heard later than the pages: what is
    /// of strides that are closed counts for the one that is open, so that none is lost.
    pub fn add_queued(&mut self, at: Timestamp, elapsed: Seconds, requests: f64) {
        let open = self.closed.map_or(f64::MIN, |closed| (closed * STRIDE) as f64);
        let end = seconds(at).max(open + 1.0);
        let start = (end - elapsed.seconds().clamp(1.0, BINS as f64)).max(open);
        self.spread((start, end), end - start, elapsed, (requests, Place::Queue));
    }

    /// Spreads requests evenly over a time of this length, which was known by looks that were
    /// `elapsed` apart.
    fn spread(
        &mut self,
        (start, end): (f64, f64),
        length: f64,
        elapsed: Seconds,
        (requests, place): (f64, Place),
    ) {
        let elapsed = elapsed.seconds();
        if elapsed <= 0.0 || !requests.is_finite() {
            return;
        }
        let (from, to) = (whole(start), whole(end));
        self.make_room(from, to);
        self.spacing = elapsed.max(self.spacing * SPACING_DECAY);
        self.begun.get_or_insert(from);
        let each = requests / length;
        for second in from..=to {
            let overlap = end.min((second + 1) as f64) - start.max(second as f64);
            let index = usize::try_from(second - self.first).ok();
            let bins = match place {
                Place::Replica => &mut self.bins,
                Place::Queue => &mut self.queued,
                Place::Unserved => &mut self.unserved,
            };
            let Some(index) = index else { continue };
            if let Some(bin) = bins.get_mut(index) {
                *bin += each * overlap.max(0.0);
            }
            if let (Place::Replica, Some(serving)) = (place, self.serving.get_mut(index)) {
                serving.report(overlap.max(0.0));
            }
        }
    }

    /// Notes who served up to an instant, since this was last noted or an earlier stride was closed.
    /// Goes before [`close`](Self::close).
    pub fn note(&mut self, through: Timestamp, serving: Serving) {
        let last = whole(seconds(through));
        let from = self.noted.replace(last).unwrap_or(last).max(self.first);
        if serving.silent <= 0.0 {
            return;
        }
        for second in from..last {
            let index = usize::try_from(second - self.first).ok();
            if let Some(known) = index.and_then(|index| self.serving.get_mut(index)) {
                *known = serving;
            }
        }
    }

    /// Closes the strides that are complete when everything up to this instant is known.
    pub fn close(&mut self, through: Timestamp) {
        let Some(begun) = self.begun.filter(|_| !self.bins.is_empty()) else { return };
        let last = whole(seconds(through)).div_euclid(STRIDE);
        // The first second is known in part, and so is the stride that it is in.
        let oldest = begun.max(self.first).div_euclid(STRIDE) + 2;
        let from = self.closed.map_or(oldest, |closed| closed + 1).max(oldest);
        for stride in from..=last {
            let rate = self.between((stride - 1) * STRIDE, stride * STRIDE) / STRIDE as f64;
            self.bridge(Point { stride, rate });
            self.points.push_back(Point { stride, rate });
            self.closed = Some(stride);
        }
        let keep = last - (KEPT + HORIZON_MAX) / STRIDE;
        while self.points.front().is_some_and(|point| point.stride < keep) {
            self.points.pop_front();
        }
    }

    /// Fills the strides between the last that is known and this one, which nobody saw, by a straight
    /// line; forgets what was before, where it is too long ago.
    fn bridge(&mut self, next: Point) {
        let Some(last) = self.points.back().copied() else { return };
        let missing = next.stride - last.stride - 1;
        if missing > BRIDGED_MAX {
            self.points.clear();
            self.begun = Some(self.first);
            return;
        }
        for step in 1..=missing {
            let share = step as f64 / (missing + 1) as f64;
            let rate = last.rate + (next.rate - last.rate) * share;
            self.points.push_back(Point { stride: last.stride + step, rate });
        }
    }

    /// Requests a second over the last stride, or over the time between pages where that is longer.
    #[must_use]
    pub fn rate(&self, through: Timestamp) -> Option<f64> {
        let length = whole(self.spacing.ceil()).clamp(STRIDE, BINS / 2);
        let to = whole(seconds(through));
        let from = (to - length).max(self.begun?.max(self.first) + 1);
        (to > from).then(|| self.between(from, to) / (to - from) as f64)
    }

    /// The shortest window in whole seconds that scrapes are close enough to count.
    pub(super) fn finest(&self) -> i64 {
        whole(self.spacing.ceil()).max(1)
    }

    /// Requests between two ages in seconds; `None` where the older one is not known.
    pub(super) fn counted(&self, through: Timestamp, youngest: i64, oldest: i64) -> Option<f64> {
        let now = whole(seconds(through));
        let from = now - oldest;
        (from > self.begun?.max(self.first)).then(|| self.between(from, now - youngest))
    }

    /// Requests in each window of so many seconds, over the last so many seconds; nothing where
    /// pages are too far apart to tell.
    #[must_use]
    pub fn windows(&self, through: Timestamp, length: i64, span: i64) -> Vec<f64> {
        if (length as f64) < self.spacing.floor() {
            return Vec::new();
        }
        let end = whole(seconds(through));
        let Some(begun) = self.begun else { return Vec::new() };
        let start = (end - span).max(begun.max(self.first) + 1);
        let mut counts = Vec::new();
        let mut to = end;
        while to - length >= start {
            counts.push(self.between(to - length, to));
            to -= length;
        }
        counts
    }

    /// The rates of the strides of the last 15 minutes and the horizon, in order of time.
    #[must_use]
    pub fn points(&self) -> &VecDeque<Point> {
        &self.points
    }

    /// Seconds for which arrivals are known.
    #[must_use]
    pub fn history(&self, through: Timestamp) -> f64 {
        self.begun.map_or(0.0, |begun| (seconds(through) - begun as f64).max(0.0))
    }

    /// Requests in these seconds: those that came to replicas, and by how many more queue before.
    ///
    /// Of a queue that gets shorter nobody knows whose turn it was and who hung up. So what arrived
    /// is between what came to replicas, if all of that had been waiting but for those who hung up,
    /// and that less what the queue has lost, if nobody did: as much as before, if that is between.
    fn between(&self, from: i64, to: i64) -> f64 {
        let range = self.range(from, to);
        let seconds = self.bins.range(range.clone()).zip(self.serving.range(range.clone()));
        let came: f64 = seconds.map(|(requests, serving)| requests * serving.share()).sum();
        let queued: f64 = self.queued.range(range).sum();
        let came = came - self.retried(from, to, came);
        if queued >= 0.0 {
            return came + queued;
        }
        let least = (came + queued).max(0.0);
        let before = self.points.back().map_or(least, |point| point.rate * (to - from) as f64);
        before.clamp(least, came.max(least))
    }

    /// The places of the bins of these seconds.
    fn range(&self, from: i64, to: i64) -> Range<usize> {
        let index = |second: i64| usize::try_from(second - self.first).unwrap_or(0);
        let end = index(to).min(self.bins.len());
        index(from).min(end)..end
    }

    /// Requests in these seconds that are taken for retries.
    fn retried(&self, from: i64, to: i64, came: f64) -> f64 {
        let Some(Impatience { since, latest, rate }) = self.impatience else { return 0.0 };
        if to <= since || from > latest + PATIENCE {
            return 0.0;
        }
        (came - rate * (to - from) as f64).clamp(0.0, self.left(from, to))
    }

    /// Requests that left in these seconds without an answer.
    fn left(&self, from: i64, to: i64) -> f64 {
        self.unserved.range(self.range(from, to)).sum()
    }

    fn length(&self) -> i64 {
        i64::try_from(self.bins.len()).unwrap_or(i64::MAX)
    }

    fn make_room(&mut self, from: i64, to: i64) {
        let last = self.first + self.length();
        if let (true, Some(closed)) = (self.bins.is_empty(), self.closed)
            && (0..=BINS).contains(&(from - closed * STRIDE))
        {
            // What was told of before a restart is known without its seconds.
            self.first = from;
        } else if self.bins.is_empty() || from - last > BINS || self.first - to > BINS {
            // A clock that jumped, or a silence that is longer than everything that is kept: what
            // was before says nothing of the time after.
            *self = Self { first: from, ..Self::default() };
        }
        while self.first + self.length() <= to {
            self.bins.push_back(0.0);
            self.queued.push_back(0.0);
            self.unserved.push_back(0.0);
            self.serving.push_back(Serving::default());
        }
        while self.length() > BINS {
            self.bins.pop_front();
            self.queued.pop_front();
            self.unserved.pop_front();
            self.serving.pop_front();
            self.first += 1;
        }
    }
}

// === impl Serving ===

impl Serving {
    /// A late page reports what a silent replica did in a part of a second.
    fn report(&mut self, seconds: f64) {
        let late = self.silent.min(seconds);
        self.silent -= late;
        self.reporting += late;
    }

    /// Requests that came to all of them, over those that came to the ones that report.
    fn share(self) -> f64 {
        let is_guess = self.silent > 0.0 && self.reporting > 0.0;
        if is_guess { 1.0 + self.silent / self.reporting } else { 1.0 }
    }
}

/// The share of arrivals that must leave without an answer. A few clients always hang up.
const IMPATIENT: f64 = 0.05;

/// Seconds after which clients count as patient again, and in which the rate before is looked for.
const PATIENCE: i64 = 60;

/// The shortest window in seconds whose rate counts as one before clients hung up: a jump may be no
/// older than the time that they wait.
const SHORTEST: i64 = 5;

/// The share of the spacing between pages that is left after another page: a pause is forgotten
/// after some dozens of them.
const SPACING_DECAY: f64 = 0.98;

/// The quantile of ordered values, between ranks.
pub(crate) fn quantile(ordered: &[f64], share: f64) -> Option<f64> {
    let last = ordered.len().checked_sub(1)? as f64;
    let at = share * last;
    let value = |at: f64| ordered.get(index(at)).copied();
    let (low, high) = (value(at.floor())?, value(at.ceil())?);
    Some(low + (high - low) * (at - at.floor()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in a list")]
fn index(at: f64) -> usize {
    at as usize
}

fn seconds(at: Timestamp) -> f64 {
    at.as_second() as f64 + f64::from(at.subsec_nanosecond()) / 1e9
}

#[expect(clippy::cast_possible_truncation, reason = "seconds since the epoch")]
fn whole(seconds: f64) -> i64 {
    seconds.floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn fed(step: i64, rate: f64, until: i64) -> Arrivals {
        let mut arrivals = Arrivals::default();
        let spacing = Seconds::new(step as f64).unwrap();
        for second in (step..=until).step_by(usize::try_from(step).unwrap()) {
            arrivals.add(at(second), spacing, rate * step as f64);
            arrivals.close(at(second));
        }
        arrivals
    }

    #[test]
    fn pages_each_second_and_pages_each_quarter_of_a_minute_say_the_same_rate() {
        for step in [1, 5, 15] {
            let arrivals = fed(step, 7.0, 300);
            assert!((arrivals.rate(at(300)).unwrap() - 7.0).abs() < 1e-9);
            let points = arrivals.points();
            assert!(
                points.len() >= 17 && points.iter().all(|point| (point.rate - 7.0).abs() < 1e-9)
            );
        }
    }

    #[test]
    fn windows_finer_than_the_pages_are_not_known() {
        assert_eq!(fed(1, 7.0, 300).windows(at(300), 1, 60).len(), 60);
        assert!(fed(15, 7.0, 300).windows(at(300), 4, 60).is_empty());
        assert_eq!(fed(15, 7.0, 300).windows(at(300), 15, 60), vec![105.0; 4]);
    }

    #[test]
    fn strides_are_closed_once_and_memory_is_bounded() {
        let arrivals = fed(1, 1.0, 20_000);
        let strides: Vec<i64> = arrivals.points().iter().map(|point| point.stride).collect();
        assert!(strides.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert!(strides.len() <= 301 && arrivals.length() <= BINS);
    }

    #[test]
    fn what_is_told_and_gone_on_with_is_bridged_over_a_short_time_that_nobody_saw() {
        let before = fed(1, 7.0, 300);
        let saved = before.save().unwrap();
        assert!(saved.is_sound());
        let mut again = saved.restore();
        for second in 331..=400 {
            again.add(at(second), Seconds::literal(1), 9.0);
            again.close(at(second));
        }
        assert!((again.rate(at(400)).unwrap() - 9.0).abs() < 1e-9);
        assert!(again.history(at(400)) > 390.0);
        let strides: Vec<i64> = again.points().iter().map(|point| point.stride).collect();
        assert!(strides.windows(2).all(|pair| pair[1] == pair[0] + 1), "{strides:?}");
        assert!(again.points().iter().all(|point| (7.0..=9.0).contains(&point.rate)));
        let mut late = saved.restore();
        for second in 901..=960 {
            late.add(at(second), Seconds::literal(1), 9.0);
            late.close(at(second));
        }
        assert!(late.history(at(960)) < 62.0, "nobody knows what was before");
    }

    #[test]
    fn what_cannot_be_is_not_sound() {
        let sound = fed(1, 7.0, 300).save().unwrap();
        for wrong in [
            SavedArrivals { spacing: -1.0, ..sound.clone() },
            SavedArrivals { rates: vec![f64::NAN], ..sound.clone() },
            SavedArrivals { rates: vec![1.0; 1000], ..sound.clone() },
            SavedArrivals { closed: i64::MAX, ..sound.clone() },
            SavedArrivals { begun: -1, ..sound },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
    }

    #[test]
    fn silent_replicas_get_as_much_as_the_others_until_a_late_page_says_what_they_got() {
        let mut arrivals = fed(1, 6.0, 300);
        arrivals.note(at(300), Serving { reporting: 2.0, silent: 0.0 });
        // Of two replicas with three a second each, one falls silent.
        for second in 301..=340 {
            arrivals.add(at(second), Seconds::literal(1), 3.0);
            arrivals.note(at(second), Serving { reporting: 1.0, silent: 1.0 });
            arrivals.close(at(second));
        }
        assert!((arrivals.rate(at(340)).unwrap() - 6.0).abs() < 1e-9);
        assert!(arrivals.points().iter().all(|point| (point.rate - 6.0).abs() < 1e-9));

        arrivals.add(at(340), Seconds::literal(40), 200.0);
        let known = arrivals.rate(at(340)).unwrap();
        assert!((known - 8.0).abs() < 0.2, "five a second came to it: {known}");
    }

    /// Seven a second come to replicas, and the queue before them grows each five seconds by this.
    fn queued(arrivals: &mut Arrivals, seconds: std::ops::RangeInclusive<i64>, each: f64) {
        for second in seconds {
            arrivals.add(at(second), Seconds::literal(1), 7.0);
            if second % 5 == 0 {
                arrivals.add_queued(at(second), Seconds::literal(5), each);
            }
            arrivals.close(at(second));
        }
    }

    #[test]
    fn what_queues_before_the_replicas_has_arrived_and_moves_no_stride_that_is_closed() {
        let mut arrivals = fed(1, 7.0, 300);
        let closed = arrivals.points().clone();
        queued(&mut arrivals, 301..=400, 15.0);
        let points = arrivals.points();
        assert!(points.iter().zip(&closed).all(|(now, then)| now == then));
        assert!((points.back().unwrap().rate - 10.0).abs() < 1e-9, "{points:?}");
        let more: f64 = points.iter().map(|point| (point.rate - 7.0) * 15.0).sum();
        let last = points.back().unwrap().stride * STRIDE - 1_000_000;
        assert!((more - 3.0 * (last - 300) as f64).abs() < 1e-6, "{more} until {last}");
    }

    #[test]
    fn while_a_queue_gets_shorter_as_much_arrives_as_before_as_far_as_that_can_be() {
        let mut arrivals = fed(1, 7.0, 300);
        queued(&mut arrivals, 301..=390, 15.0);
        let rate = |arrivals: &Arrivals, second| arrivals.rate(at(second)).unwrap();
        // Ten a second had come, and no more than the seven that come to replicas can be coming.
        queued(&mut arrivals, 391..=450, -15.0);
        assert!((rate(&arrivals, 450) - 7.0).abs() < 1e-9, "{}", rate(&arrivals, 450));
        // Less came before: between four, if nobody hung up, and seven.
        let mut arrivals = fed(1, 5.0, 300);
        queued(&mut arrivals, 301..=360, -15.0);
        assert!((rate(&arrivals, 360) - 5.0).abs() < 0.2, "{}", rate(&arrivals, 360));
        let mut arrivals = fed(1, 7.0, 300);
        queued(&mut arrivals, 301..=360, -500.0);
        assert!(rate(&arrivals, 360) >= 0.0, "never less than nothing");
    }

    #[test]
    fn a_long_silence_begins_anew_and_does_not_look_like_no_load() {
        let mut arrivals = fed(1, 7.0, 100);
        arrivals.add(at(5000), Seconds::literal(1), 7.0);
        arrivals.close(at(5000));
        assert!(arrivals.points().is_empty() && arrivals.history(at(5000)) < 2.0);
        assert_eq!(arrivals.rate(at(5000)), None, "a second is known in part");
    }

    /// Arrivals of which a part leaves without an answer, each second.
    fn impatient(seconds: &[(f64, f64)]) -> (Arrivals, i64) {
        let mut arrivals = Arrivals::default();
        let second = Seconds::literal(1);
        for (at_second, (came, unserved)) in (1..).zip(seconds) {
            arrivals.add(at(at_second), second, *came);
            arrivals.add_unserved(at(at_second), second, *unserved);
            arrivals.close(at(at_second));
        }
        (arrivals, i64::try_from(seconds.len()).unwrap())
    }

    #[test]
    fn requests_that_clients_retry_are_no_new_demand() {
        // A jump of which half is not served in time and tried again.
        let steady = [(60.0, 0.0); 120];
        let jumped = [(175.0, 0.0); 10];
        let retried = [(350.0, 175.0); 60];
        let (arrivals, end) = impatient(&[&steady[..], &jumped, &retried].concat());
        assert!((arrivals.rate(at(end)).unwrap() - 175.0).abs() < 1e-9);

        let patient = [(175.0, 0.0); 130];
        let (arrivals, end) = impatient(&[&steady[..], &jumped, &retried, &patient].concat());
        assert!((arrivals.rate(at(end)).unwrap() - 175.0).abs() < 1e-9);
    }

    #[test]
    fn clients_that_hang_up_and_do_not_return_are_all_demand() {
        let steady = [(60.0, 0.0); 120];
        let jumped = [(200.0, 0.0); 5];
        let hung_up = [(200.0, 140.0); 60];
        let (arrivals, end) = impatient(&[&steady[..], &jumped, &hung_up].concat());
        assert!((arrivals.rate(at(end)).unwrap() - 200.0).abs() < 1e-9);
    }

    #[test]
    fn a_few_clients_that_always_hang_up_hide_no_growth() {
        let rising: Vec<(f64, f64)> =
            (0..300).map(|second| 10.0 + f64::from(second)).map(|it| (it, 0.03 * it)).collect();
        let (arrivals, end) = impatient(&rising);
        assert!((arrivals.rate(at(end)).unwrap() - 302.0).abs() < 1e-9);
    }
}
