//! The token bucket of a gateway.

use crate::simulate::Micros;

/// A token bucket; each admitted request takes one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    tokens: f64,
    /// The time at which it was last filled.
    filled: Micros,
    /// Attempts that the bucket has rejected.
    pub(crate) rejected: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub(super) const fn full() -> Self {
        Self { tokens: f64::INFINITY, filled: Micros::ZERO, rejected: 0 }
    }

    /// Takes a token, if there is one, from a bucket that fills at `rate` per second. The bucket
    /// holds at least one token, because otherwise a low rate would admit nothing.
    pub(super) fn take(&mut self, now: Micros, rate: f64, burst: Micros) -> bool {
        let size = (rate * burst.seconds()).max(1.0);
        let gained = rate * now.since(self.filled).seconds();
        self.tokens = (self.tokens + gained).min(size);
        self.filled = now;

        let admits = self.tokens >= 1.0;
        if admits {
            self.tokens -= 1.0;
        } else {
            self.rejected += 1;
        }

        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_admits_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::full();
        let burst = Micros::from_secs(2);
        let begun = Micros::from_secs(10);
        let at_once = (0..50).filter(|_| bucket.take(begun, 10.0, burst)).count();
        assert_eq!(at_once, 20, "the tokens of a whole burst");

        let later = (1..=2000).map(|ms| begun + Micros::new(1000 * ms));
        let in_time = later.filter(|at| bucket.take(*at, 10.0, burst)).count();
        assert_eq!((in_time, bucket.rejected), (20, 30 + 1980), "the rate over two seconds");
    }

    #[test]
    fn a_low_rate_admits_single_requests() {
        let mut bucket = TokenBucket::full();
        let admitted = (0..100).filter(|it| bucket.take(Micros::from_secs(*it), 0.1, Micros::ZERO));
        assert_eq!(admitted.count(), 10, "one in ten seconds");
    }
}
