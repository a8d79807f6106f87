//! Batch work of a world: requests without an objective, all the time or in one job.

use crate::study::worlds::capacity::Capacity;
use crate::study::worlds::course::Course;
use crate::study::worlds::distribution::DrawnOption;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::priors::{
    Aspect, BATCH_OUTPUT, BATCH_PROMPT, BATCH_SHARE, BATCH_SIGMA, BATCHES, BatchTimes, JOB_FROM,
    JOB_LASTS,
};
use crate::study::worlds::requests::Requests;

/// Batch work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchWork {
    pub(crate) work: DrawnOption<BatchTimes>,
    /// Its mean need relative to that of the other requests.
    share: f64,
    pub(crate) requests: Requests,
    /// Its start and end, as shares of the duration.
    from: f64,
    until: f64,
}

// === impl BatchWork ===

impl BatchWork {
    /// Draws batch work with the same limits as these requests.
    pub(crate) fn draw(lot: Lot, like: &Requests) -> Self {
        let mut random = lot.of(Aspect::Batch);
        let work = BATCHES.draw(&mut random);
        let share = BATCH_SHARE.draw(&mut random);
        let [prompt, output] = [BATCH_PROMPT, BATCH_OUTPUT].map(|it| it.draw(&mut random));
        let sigma = BATCH_SIGMA.draw(&mut random);
        let begin = JOB_FROM.draw(&mut random);
        let end = begin + JOB_LASTS.draw(&mut random);
        let (from, until) = match work.value {
            BatchTimes::None | BatchTimes::Always => (0.0, 1.0),
            BatchTimes::Job => (begin, end),
        };

        Self { work, share, requests: like.others(prompt, output, sigma), from, until }
    }

    /// The mean need of batch work relative to that of the other requests.
    pub(crate) fn share(&self) -> f64 {
        match self.work.value {
            BatchTimes::None => 0.0,
            BatchTimes::Always | BatchTimes::Job => self.share,
        }
    }

    /// Its requests per second in a world of `length` seconds, if it has this mean need in replicas
    /// of this capacity; `None` without batch work.
    pub(crate) fn course(&self, length: f64, need: f64, capacity: &Capacity) -> Option<Course> {
        let [begin, end] = [self.from, self.until].map(|share| (share * length).round());
        let rate = need * length / (end - begin) * capacity.at(begin);
        let points = match self.work.value {
            BatchTimes::None => return None,
            BatchTimes::Always => vec![(0.0, rate)],
            BatchTimes::Job => {
                vec![(0.0, 0.0), (begin, 0.0), (begin, rate), (end, rate), (end, 0.0)]
            }
        };

        Some(Course { points, period: None }.times(1.0))
    }
}
