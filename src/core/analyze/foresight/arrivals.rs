//! Arrivals over time: a count for each second, and a rate for each stride of 15 s.
//!
//! The increase of a counter between two scrapes is spread evenly over the time between them. So
//! scrapes each second and scrapes each quarter of a minute fill the same bins. The real resolution
//! of the bins is remembered, and no finer window is used.
//!
//! Arrivals are complete up to the oldest of the newest scrapes. Beyond that instant some replica
//! has not reported yet, and a sum would look like less load.
//!
//! A client that gives up may try again, so a fleet that is too small receives each request several
//! times. So while requests leave without an answer, arrivals beyond the rate before that time
//! count as retries, up to the number that left. [`Impatience`] has that rate.
//!
//! A replica that serves and does not report is assumed to get as many requests as each of the
//! others. Its next scrape replaces that assumption in the single seconds.

pub mod saved;

use std::collections::VecDeque;
use std::iter::Sum;
use std::ops::Range;

use jiff::Timestamp;

use crate::units::Seconds;

/// Seconds for which bins are kept.
pub const BINS: i64 = 320;

/// Length of a stride in seconds: one sync period of an HPA.
pub const STRIDE: i64 = 15;

/// Seconds for which rates of strides are kept, in addition to the horizon.
const KEPT: i64 = 900;

/// The longest horizon in seconds. Models take half an hour to start if weights are downloaded.
pub const HORIZON_MAX: i64 = 3600;

/// The rate of one stride.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StrideRate {
    /// Its end, in whole strides since the epoch.
    pub stride: i64,
    /// Requests per second in it.
    pub rate: f64,
}

/// The place where requests were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivalPlace {
    /// At a replica.
    Replica,
    /// In a queue in front of the replicas.
    Queue,
    /// At a replica that did not answer them.
    Unserved,
}

/// A time in which requests leave without an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Impatience {
    /// The second in which it was first noticed.
    since: i64,
    /// The last second in which requests still left.
    latest: i64,
    /// The highest rate of served requests in the minute before, in requests per second.
    rate: f64,
}

/// Replicas that serve, reporting or not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Serving {
    /// Replicas that report.
    pub reporting: f64,
    /// Replicas that do not report.
    pub silent: f64,
}

/// Arrivals of one model, or of one of its roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArrivalHistory {
    /// The second, since the epoch, of the first bin.
    first: i64,
    bins: VecDeque<f64>,
    /// The growth of the queue in front of the replicas, per bin.
    queued: VecDeque<f64>,
    /// Requests that left without an answer, per bin.
    unserved: VecDeque<f64>,
    impatience: Option<Impatience>,
    /// Serving replicas per bin, for bins in which some of them did not report.
    serving: VecDeque<Serving>,
    points: VecDeque<StrideRate>,
    /// The last stride that was closed.
    closed: Option<i64>,
    /// The last second for which the serving replicas are known.
    noted: Option<i64>,
    /// Seconds between scrapes: the longest recent spacing.
    spacing: f64,
    begun: Option<i64>,
}

/// A time over which requests are spread, in seconds since the epoch.
#[derive(Clone, Copy)]
struct Span {
    start: f64,
    end: f64,
    /// The seconds in which the requests came. They can begin before `start`.
    length: f64,
}

/// The most strides without measurements that are bridged: two minutes, in which a daemon is
/// restarted. After a longer gap, earlier strides are dropped.
const BRIDGED_MAX: i64 = 8;

impl ArrivalHistory {
    /// Multiplies all past arrivals.
    pub(super) fn scale(&mut self, factor: f64) {
        let bins = self.bins.iter_mut().chain(&mut self.queued).chain(&mut self.unserved);
        let rates = self.points.iter_mut().map(|point| &mut point.rate);
        let patient = self.impatience.iter_mut().map(|it| &mut it.rate);
        for amount in bins.chain(rates).chain(patient) {
            *amount *= factor;
        }
    }

    /// Forgets everything after an instant, to which the clock was set back. The same seconds come
    /// again, and their requests would otherwise be added to those of the first time.
    pub(super) fn rewind(&mut self, now: Timestamp) {
        let end = whole(seconds(now));
        let kept = usize::try_from(end - self.first).unwrap_or_default();
        for bins in [&mut self.bins, &mut self.queued, &mut self.unserved] {
            bins.truncate(kept);
        }
        self.serving.truncate(kept);

        self.points.retain(|point| point.stride * STRIDE <= end);
        self.closed = self.closed.map(|closed| closed.min(end.div_euclid(STRIDE)));
        self.noted = self.noted.map(|noted| noted.min(end));
        self.begun = self.begun.map(|begun| begun.min(end));
        self.impatience = self.impatience.take().filter(|it| it.latest <= end);
    }

    /// Adds requests that arrived in the time before an instant.
    pub fn add(&mut self, at: Timestamp, elapsed: Seconds, requests: f64) {
        self.spread(Span::before(at, elapsed), elapsed, requests, ArrivalPlace::Replica);
    }

    /// Adds requests that left without an answer in the time before an instant.
    pub fn add_unserved(&mut self, at: Timestamp, elapsed: Seconds, requests: f64) {
        if requests <= 0.0 {
            return;
        }

        let span = Span::before(at, elapsed);
        self.spread(span, elapsed, requests, ArrivalPlace::Unserved);
        self.notice_impatience(whole(span.end));
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

    /// The highest rate of served requests, over a few seconds within this time; `None` while none
    /// is known.
    fn highest(&self, from: i64, to: i64) -> Option<f64> {
        let window = whole(self.spacing.ceil()).max(SHORTEST);
        let earliest = from.max(self.begun?.max(self.first) + 1);
        let starts = earliest..=to - window;
        let most = starts.map(|start| self.served(start, start + window)).reduce(f64::max)?;
        Some(most / window as f64)
    }

    /// Requests in these seconds, without those that left without an answer.
    fn served(&self, from: i64, to: i64) -> f64 {
        self.between(from, to) - self.left(from, to)
    }

    /// Adds the growth of a queue in front of the replicas in the time before an instant, negative
    /// if it got shorter. Its signal arrives later than scrapes. So growth that belongs to closed
    /// strides is added to the open stride, and none is lost.
    pub fn add_queued(&mut self, at: Timestamp, elapsed: Seconds, requests: f64) {
        let open = self.closed.map_or(f64::MIN, |closed| (closed * STRIDE) as f64);
        let end = seconds(at).max(open + 1.0);
        let start = (end - elapsed.seconds().clamp(1.0, BINS as f64)).max(open);
        let span = Span { start, end, length: end - start };
        self.spread(span, elapsed, requests, ArrivalPlace::Queue);
    }

    /// Spreads requests evenly over a time. The two readings were `elapsed` apart.
    fn spread(&mut self, span: Span, elapsed: Seconds, requests: f64, place: ArrivalPlace) {
        let apart = elapsed.seconds();
        if apart <= 0.0 || !requests.is_finite() {
            return;
        }

        let Span { start, end, length } = span;
        let from = whole(start);
        let to = whole(end);
        self.make_room(from, to);
        self.spacing = apart.max(self.spacing * SPACING_DECAY);
        self.begun.get_or_insert(from);

        let each = requests / length;
        for second in from..=to {
            let overlap = end.min((second + 1) as f64) - start.max(second as f64);
            let index = usize::try_from(second - self.first).ok();
            let bins = match place {
                ArrivalPlace::Replica => &mut self.bins,
                ArrivalPlace::Queue => &mut self.queued,
                ArrivalPlace::Unserved => &mut self.unserved,
            };

            let Some(index) = index else { continue };
            if let Some(bin) = bins.get_mut(index) {
                *bin += each * overlap.max(0.0);
            }
            if let (ArrivalPlace::Replica, Some(serving)) = (place, self.serving.get_mut(index)) {
                serving.report(overlap.max(0.0));
            }
        }
    }

    /// Notes the serving replicas up to an instant, since the last note or the last closed stride.
    /// Must be called before [`close`](Self::close).
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

    /// Closes the strides that are complete once everything up to this instant is known.
    pub fn close(&mut self, through: Timestamp) {
        let Some(begun) = self.begun.filter(|_| !self.bins.is_empty()) else { return };
        let last = whole(seconds(through)).div_euclid(STRIDE);
        // The first second is known only in part, and so is its stride.
        let oldest = begun.max(self.first).div_euclid(STRIDE) + 2;
        let from = self.closed.map_or(oldest, |closed| closed + 1).max(oldest);
        for stride in from..=last {
            let rate = self.between((stride - 1) * STRIDE, stride * STRIDE) / STRIDE as f64;
            self.bridge(StrideRate { stride, rate });
            self.points.push_back(StrideRate { stride, rate });
            self.closed = Some(stride);
        }

        let keep = last - (KEPT + HORIZON_MAX) / STRIDE;
        while self.points.front().is_some_and(|point| point.stride < keep) {
            self.points.pop_front();
        }
    }

    /// Fills the strides without measurements between the last known one and this one by a straight
    /// line. Forgets earlier strides if the gap is too long.
    fn bridge(&mut self, next: StrideRate) {
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
            self.points.push_back(StrideRate { stride: last.stride + step, rate });
        }
    }

    /// Requests per second over the last stride, or over the time between scrapes if that is
    /// longer.
    #[must_use]
    pub fn rate(&self, through: Timestamp) -> Option<f64> {
        let length = whole(self.spacing.ceil()).clamp(STRIDE, BINS / 2);
        let to = whole(seconds(through));
        let from = (to - length).max(self.begun?.max(self.first) + 1);
        if to <= from {
            return None;
        }

        // Right after a restart, a second or two would decide. The last stride from before it stands
        // for the rest.
        let missing = (length - (to - from)) as f64;
        let oldest = to.div_euclid(STRIDE) - BRIDGED_MAX;
        let before = self.points.back().filter(|it| missing > 0.0 && it.stride >= oldest);

        let known = self.between(from, to);
        Some(match before {
            Some(point) => (known + point.rate * missing) / length as f64,
            None => known / (to - from) as f64,
        })
    }

    /// The shortest window, in whole seconds, that the spacing of scrapes permits.
    pub(super) fn finest(&self) -> i64 {
        whole(self.spacing.ceil()).max(1)
    }

    /// Requests between two ages in seconds; `None` if the older one is not known.
    pub(super) fn counted(&self, through: Timestamp, youngest: i64, oldest: i64) -> Option<f64> {
        let now = whole(seconds(through));
        let from = now - oldest;
        (from > self.begun?.max(self.first)).then(|| self.between(from, now - youngest))
    }

    /// Requests in each window of `length` seconds, over the last `span` seconds. Empty if scrapes
    /// are too far apart for such windows.
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
    pub fn points(&self) -> &VecDeque<StrideRate> {
        &self.points
    }

    /// Seconds for which arrivals are known.
    #[must_use]
    pub fn history(&self, through: Timestamp) -> f64 {
        self.begun.map_or(0.0, |begun| (seconds(through) - begun as f64).max(0.0))
    }

    /// Requests in these seconds: those that came to replicas, and the growth of the queue before
    /// them.
    ///
    /// If the queue gets shorter, its requests may have moved to replicas or hung up. If all of
    /// them hung up, the arrivals are those at the replicas. If none hung up, the arrivals are
    /// those less the decrease of the queue. The rate of the last stride counts, limited to that
    /// range.
    fn between(&self, from: i64, to: i64) -> f64 {
        let range = self.range(from, to);
        let seconds = self.bins.range(range.clone()).zip(self.serving.range(range.clone()));
        // An empty sum is -0.
        let heard =
            0.0 + seconds.map(|(requests, serving)| requests * serving.share()).sum::<f64>();
        let queued: f64 = self.queued.range(range).sum();
        let came = heard - self.retried(from, to, heard);
        if queued >= 0.0 {
            return came + queued;
        }

        let least = (came + queued).max(0.0);
        let before = self.points.back().map_or(least, |point| point.rate * (to - from) as f64);
        before.clamp(least, came.max(least))
    }

    /// The indices of the bins of these seconds.
    fn range(&self, from: i64, to: i64) -> Range<usize> {
        let end = self.bin(to).min(self.bins.len());
        self.bin(from).min(end)..end
    }

    /// The index of the bin of a second, or of the first bin if the second is before it.
    fn bin(&self, second: i64) -> usize {
        usize::try_from(second - self.first).unwrap_or(0)
    }

    /// Requests in these seconds that count as retries.
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
            // Strides from before a restart are known without their seconds.
            self.first = from;
        } else if self.bins.is_empty() || from - last > BINS || self.first - to > BINS {
            // After a clock jump, or a gap longer than everything that is kept, earlier arrivals
            // tell nothing about the present ones.
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

// === impl Span ===

impl Span {
    /// The time before an instant. It starts no earlier than bins are kept for, and earlier
    /// requests are left out.
    fn before(at: Timestamp, elapsed: Seconds) -> Self {
        let end = seconds(at);
        let length = elapsed.seconds();
        Self { start: end - length.min(BINS as f64), end, length }
    }
}

// === impl Serving ===

impl Sum for Serving {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            reporting: sum.reporting + it.reporting,
            silent: sum.silent + it.silent,
        })
    }
}

impl Serving {
    /// Replaces the assumption for a replica that did not report, for a part of a second.
    fn report(&mut self, seconds: f64) {
        let late = self.silent.min(seconds);
        self.silent -= late;
        self.reporting += late;
    }

    /// Requests at all serving replicas, over requests at the reporting ones.
    fn share(self) -> f64 {
        let is_guess = self.silent > 0.0 && self.reporting > 0.0;
        if is_guess { 1.0 + self.silent / self.reporting } else { 1.0 }
    }
}

/// The share of arrivals that must leave without an answer to count as impatience. A few clients
/// always hang up.
const IMPATIENT: f64 = 0.05;

/// Seconds after which clients count as patient again, and in which the earlier rate is looked up.
const PATIENCE: i64 = 60;

/// The shortest window in seconds for the rate before clients hung up. A jump may be no older than
/// the time that clients wait.
const SHORTEST: i64 = 5;

/// The share of the spacing between scrapes that remains after another scrape. A pause is forgotten
/// after some dozens of scrapes.
const SPACING_DECAY: f64 = 0.98;

/// The quantile of ordered values, between ranks.
pub(crate) fn quantile(ordered: &[f64], share: f64) -> Option<f64> {
    let last = ordered.len().checked_sub(1)? as f64;
    let at = share * last;
    let low = ordered.get(index(at.floor()))?;
    let high = ordered.get(index(at.ceil()))?;
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
    use crate::analyze::foresight::arrivals::saved::SavedArrivals;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn fed(step: i64, rate: f64, until: i64) -> ArrivalHistory {
        let mut arrivals = ArrivalHistory::default();
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
    fn requests_of_a_long_gap_count_at_their_own_rate() {
        for (gap, until) in [(60, 460), (600, 1000), (3600, 4000)] {
            let mut arrivals = fed(1, 10.0, 400);
            arrivals.add(at(until), Seconds::literal(gap), 10.0 * f64::from(gap));
            arrivals.close(at(until));
            assert!((arrivals.rate(at(until)).unwrap() - 10.0).abs() < 1e-9, "{gap} s");
            assert!(arrivals.points().iter().all(|point| (point.rate - 10.0).abs() < 1e-9));
        }
    }

    #[test]
    fn seconds_that_come_again_after_the_clock_was_set_back_count_once() {
        for back in [1, 2, 10, 60, 1000] {
            let mut arrivals = fed(1, 10.0, 400);
            arrivals.rewind(at(400 - back));
            for second in (401 - back)..=(500 - back) {
                arrivals.add(at(second), Seconds::literal(1), 10.0);
                arrivals.close(at(second));
                assert!(arrivals.rate(at(second)).is_none_or(|rate| rate < 10.0 + 1e-9), "{back}");
            }
            let mut points = arrivals.points().iter();
            assert!(points.all(|point| point.rate < 10.0 + 1e-9), "{back} s");
            assert!((arrivals.rate(at(500 - back)).unwrap() - 10.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_busy_second_right_after_a_restart_is_one_of_a_stride() {
        let mut again = fed(1, 1.0, 300).save().unwrap().restore();
        for second in [310, 311] {
            again.add(at(second), Seconds::literal(1), 3.0);
        }
        let rate = again.rate(at(311)).unwrap();
        assert!((1.0..1.3).contains(&rate), "{rate}");

        let nothing = ArrivalHistory::default().between(0, 10);
        assert!(nothing.is_sign_positive(), "{nothing}");
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
    fn a_short_unobserved_time_of_a_pool_is_bridged() {
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
        // Of two replicas with three requests per second each, one stops reporting.
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

    /// Seven requests per second come to replicas. The queue before them grows by `each` every five
    /// seconds.
    fn queued(arrivals: &mut ArrivalHistory, seconds: std::ops::RangeInclusive<i64>, each: f64) {
        for second in seconds {
            arrivals.add(at(second), Seconds::literal(1), 7.0);
            if second % 5 == 0 {
                arrivals.add_queued(at(second), Seconds::literal(5), each);
            }
            arrivals.close(at(second));
        }
    }

    #[test]
    fn arrivals_from_before_a_restart_can_be_read_late() {
        let saved = fed(1, 7.0, 300).save().unwrap();
        for read in [331, 340, 380] {
            let mut again = ArrivalHistory::default();
            for second in 331..=400 {
                again.add(at(second), Seconds::literal(1), 9.0);
                again.close(at(second));
                if second == read {
                    assert!(again.is_shorter_than(&saved));
                    again.precede(&saved);
                    assert!(!again.is_shorter_than(&saved));
                }
            }

            assert!((again.rate(at(400)).unwrap() - 9.0).abs() < 1e-9);
            assert!(again.history(at(400)) > 390.0, "read in second {read}");
            let strides: Vec<i64> = again.points().iter().map(|point| point.stride).collect();
            assert!(strides.windows(2).all(|pair| pair[1] == pair[0] + 1), "{strides:?}");
            assert!(strides.len() > 20, "{strides:?}");
            assert!(again.points().iter().all(|point| (7.0..=9.0).contains(&point.rate)));
        }

        let mut late = ArrivalHistory::default();
        for second in 901..=960 {
            late.add(at(second), Seconds::literal(1), 9.0);
            late.close(at(second));
        }
        let alone = late.clone();
        late.precede(&saved);
        assert_eq!(late, alone, "the time between is too long");
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

    fn rate(arrivals: &ArrivalHistory, second: i64) -> f64 {
        arrivals.rate(at(second)).unwrap()
    }

    #[test]
    fn while_a_queue_gets_shorter_as_much_arrives_as_before_as_far_as_that_can_be() {
        let mut arrivals = fed(1, 7.0, 300);
        queued(&mut arrivals, 301..=390, 15.0);
        // Ten per second came before. Now at most the seven per second at replicas can be arriving.
        queued(&mut arrivals, 391..=450, -15.0);
        assert!((rate(&arrivals, 450) - 7.0).abs() < 1e-9, "{}", rate(&arrivals, 450));

        // Fewer came before: five, which is between four, if no request hung up, and seven.
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
    fn impatient(seconds: &[(f64, f64)]) -> (ArrivalHistory, i64) {
        let mut arrivals = ArrivalHistory::default();
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
