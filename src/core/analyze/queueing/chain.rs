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
//! so below the batch size the chain is a negative binomial distribution with parameter
//! `lambda * s1`, and above it a geometric one, whose sums are known in closed form. Only the part
//! below is walked, and only as far as it weighs anything.
//!
//! # Units
//!
//! Seconds and requests per second; all numbers here are plain, because they stay inside the model.

/// Weights above this are scaled down before they overflow.
const HUGE: f64 = 1e250;

/// Once what is left of the chain weighs less than this share of it, walking on changes nothing
/// that a double can hold.
const NEGLIGIBLE: f64 = 1e-17;

/// The rates of leaving: `S(n) = s0 + n * s1` for one of `n` in service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub s0: f64,
    pub s1: f64,
    pub batch: u32,
    pub queue: u32,
}

/// Means over the stationary distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Steady {
    /// Rate of requests that find room.
    pub throughput: f64,
    /// Mean number in service.
    pub in_service: f64,
    /// Mean number in the replica, those that wait included.
    pub present: f64,
    /// Probability that nobody is there.
    pub empty: f64,
    /// Probability that an arriving request has to wait for a place in the batch.
    pub waits: f64,
}

// === impl Service ===

impl Service {
    /// The rate at which `n` requests in service are finished; infinite when they take no time.
    pub(super) fn rate(&self, n: u32) -> f64 {
        let n = f64::from(n);
        n / (self.s0 + n * self.s1)
    }

    /// The stationary distribution at this arrival rate, which must be below `rate(batch)`.
    pub(super) fn steady(&self, lambda: f64) -> Steady {
        let mut below = Walk { weight: 1.0, empty: 1.0, sum: 1.0, moment: 0.0, next: 1.0 };
        let full = self.walk(lambda, &mut below);
        let Walk { weight, empty, sum, moment, next: _ } = below;
        let places = f64::from(self.batch);
        let (tail, tail_moment, last) = match full {
            // The chain ended before the batch was full, so nobody waits and nobody is refused.
            Reached::Negligible => (0.0, 0.0, 0.0),
            Reached::Full => self.queue(lambda, weight),
        };
        let total = sum + tail;
        let in_service = (moment + places * tail) / total;
        let waits = match full {
            Reached::Negligible => 0.0,
            Reached::Full => (weight + tail) / total,
        };
        Steady {
            throughput: lambda * (1.0 - last / total),
            in_service,
            present: in_service + tail_moment / total,
            empty: empty / total,
            waits,
        }
    }

    /// Walks the states up to the batch size, or until the rest weighs nothing.
    fn walk(&self, lambda: f64, walk: &mut Walk) -> Reached {
        let (a, b) = (lambda * self.s0, lambda * self.s1);
        for _ in 0..self.batch {
            let ratio = a / walk.next + b;
            walk.weight *= ratio;
            walk.sum += walk.weight;
            walk.moment += walk.next * walk.weight;
            walk.next += 1.0;
            if walk.weight > HUGE {
                *walk = walk.scaled_down();
            }
            // The ratio falls with n, so a geometric series with the present one bounds the rest.
            if ratio < 1.0 && walk.weight * walk.next < NEGLIGIBLE * walk.sum * (1.0 - ratio) {
                return Reached::Negligible;
            }
        }
        Reached::Full
    }

    /// Weight of the states with a queue, their mean queue times it, and the weight of the last
    /// state of all, in which an arriving request is refused.
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

/// Where walking ended.
#[derive(Clone, Copy)]
enum Reached {
    /// At the state with a full batch.
    Full,
    /// Before it.
    Negligible,
}

/// Sums over the states that were walked.
#[derive(Clone, Copy)]
struct Walk {
    weight: f64,
    empty: f64,
    sum: f64,
    moment: f64,
    next: f64,
}

impl Walk {
    /// The same sums, all of them smaller by one factor. Apart from the walk, which would otherwise
    /// make these divisions at every state in case they are needed.
    #[cold]
    #[inline(never)]
    fn scaled_down(self) -> Self {
        let Self { weight, empty, sum, moment, next } = self;
        let [weight, empty, sum, moment] = [weight, empty, sum, moment].map(|it| it / HUGE);
        Self { weight, empty, sum, moment, next }
    }
}
