//! The number of requests in a replica, as a birth-death chain.
//!
//! # Model
//!
//! Requests arrive at rate `lambda` and leave at rate `mu(n) = n / S(n)` while `n` are in service.
//! With `S(n) = s0 + n * s1`, the stationary probabilities follow from the balance of each state
//! with the next (detailed balance; L. Kleinrock, *Queueing Systems* I, section 3.2):
//!
//! ```text
//! p(n + 1) = p(n) * lambda * (s0 / (n + 1) + s1)       for n < B, the size of the batch
//! p(B + j) = p(B) * r^j,   r = lambda * S(B) / B       for j up to Q, the length of the queue
//! ```
//!
//! Below the batch size the chain is a negative binomial distribution with parameter `lambda * s1`.
//! Above it the chain is a geometric distribution, whose sums are known in closed form. Only the
//! part below is walked, and only until the rest is negligible.
//!
//! # Units
//!
//! Seconds and requests per second. All values here are plain numbers, because they stay inside the
//! model.

/// Weights above this are scaled down before they overflow.
const HUGE: f64 = 1e250;

/// If the rest of the chain weighs less than this share of the chain, further steps change nothing
/// that a double can hold.
const NEGLIGIBLE: f64 = 1e-17;

/// The service times: each of `n` requests in service takes `S(n) = s0 + n * s1`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceTimes {
    pub s0: f64,
    pub s1: f64,
    pub batch: u32,
    pub queue: u32,
}

/// Means over the stationary distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SteadyState {
    /// The rate of requests that find room.
    pub throughput: f64,
    /// The mean number of requests in service.
    pub in_service: f64,
    /// The mean number of requests in the replica, waiting requests included.
    pub present: f64,
    /// The probability that the replica is empty.
    pub empty: f64,
    /// The probability that an arriving request has to wait for a place in the batch.
    pub waits: f64,
}

// === impl ServiceTimes ===

impl ServiceTimes {
    /// The rate at which `n` requests in service finish; infinite if they take no time.
    pub(super) fn rate(&self, n: u32) -> f64 {
        let present = f64::from(n);
        present / (self.s0 + present * self.s1)
    }

    /// The stationary distribution at this arrival rate, which must be below `rate(batch)`.
    pub(super) fn steady(&self, lambda: f64) -> SteadyState {
        let mut below = ChainWalk { weight: 1.0, empty: 1.0, sum: 1.0, moment: 0.0, next: 1.0 };
        let full = self.walk(lambda, &mut below);
        let ChainWalk { weight, empty, sum, moment, next: _ } = below;

        let places = f64::from(self.batch);
        let (tail, tail_moment, last) = match full {
            // The chain ended before the batch was full, so no request waits or is refused.
            WalkEnd::Negligible => (0.0, 0.0, 0.0),
            WalkEnd::Full => self.queue(lambda, weight),
        };

        let total = sum + tail;
        let in_service = (moment + places * tail) / total;
        let waits = match full {
            WalkEnd::Negligible => 0.0,
            WalkEnd::Full => (weight + tail) / total,
        };

        SteadyState {
            throughput: lambda * (1.0 - last / total),
            in_service,
            present: in_service + tail_moment / total,
            empty: empty / total,
            waits,
        }
    }

    /// Walks the states up to the batch size, or until the rest is negligible.
    fn walk(&self, lambda: f64, walk: &mut ChainWalk) -> WalkEnd {
        let a = lambda * self.s0;
        let b = lambda * self.s1;
        for _ in 0..self.batch {
            let ratio = a / walk.next + b;
            walk.weight *= ratio;
            walk.sum += walk.weight;
            walk.moment += walk.next * walk.weight;
            walk.next += 1.0;
            if walk.weight > HUGE {
                *walk = walk.scaled_down();
            }

            // The ratio falls with n, so a geometric series with the current ratio bounds the rest.
            if ratio < 1.0 && walk.weight * walk.next < NEGLIGIBLE * walk.sum * (1.0 - ratio) {
                return WalkEnd::Negligible;
            }
        }

        WalkEnd::Full
    }

    /// The weight of the states with a queue, that weight times their mean queue length, and the
    /// weight of the last state. In the last state an arriving request is refused.
    fn queue(&self, lambda: f64, full: f64) -> (f64, f64, f64) {
        let ratio = lambda / self.rate(self.batch);
        let length = f64::from(self.queue);
        let last = ratio.powf(length);
        let left = 1.0 - ratio;
        let sum = ratio * (1.0 - last) / left;
        let moment = ratio * (1.0 - (length + 1.0) * last + length * ratio * last) / (left * left);
        (full * sum, full * moment, full * last)
    }
}

/// The point at which the walk ended.
#[derive(Clone, Copy)]
enum WalkEnd {
    /// The state with a full batch.
    Full,
    /// A state before the batch is full.
    Negligible,
}

/// Sums over the visited states.
#[derive(Clone, Copy)]
struct ChainWalk {
    weight: f64,
    empty: f64,
    sum: f64,
    moment: f64,
    next: f64,
}

impl ChainWalk {
    /// The same sums, divided by one factor. It is a separate function, because otherwise the walk
    /// would compute these divisions at every state in case they are needed.
    #[cold]
    #[inline(never)]
    fn scaled_down(self) -> Self {
        let Self { weight, empty, sum, moment, next } = self;
        Self {
            weight: weight / HUGE,
            empty: empty / HUGE,
            sum: sum / HUGE,
            moment: moment / HUGE,
            next,
        }
    }
}
