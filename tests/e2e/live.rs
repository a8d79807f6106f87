//! An engine that serves requests as they come: the simulator's replica, brought up to the present
//! whenever its page is asked for.

use std::time::Duration;

use plimsoll::clock::Clock;
use plimsoll::simulate::Micros;
use plimsoll::simulate::page::{self, EngineIdentity};
use plimsoll::simulate::replica::{Replica, Request};

use crate::page::{MODEL, settings};

/// What every client asks for: with eight requests in a batch, a replica answers some 14 of them a
/// second.
const PROMPT: u32 = 200;
const OUTPUT: u32 = 50;
const BATCH: u32 = 8;

/// A replica that lives in real time.
pub(crate) struct Live {
    replica: Replica,
    identity: EngineIdentity,
    clock: Clock,
    began: Duration,
    /// When the next request comes, in microseconds since the start.
    next: f64,
    asked: u64,
}

impl Live {
    pub(crate) fn start() -> Self {
        let clock = Clock::start();
        let now = clock.now();
        Self {
            replica: Replica::new(settings(BATCH)).unwrap(),
            identity: EngineIdentity { model: MODEL.to_owned(), started: now, ready: now },
            clock,
            began: clock.elapsed(),
            next: 0.0,
            asked: 0,
        }
    }

    /// Its page, when so many requests a second have come since it was last asked for.
    pub(crate) fn page(&mut self, rate: f64) -> String {
        let now = Micros::from_duration(self.clock.elapsed().saturating_sub(self.began));
        let gap = 1e6 / rate;
        self.next = self.next.min(now.seconds() * 1e6 + gap);
        while self.next <= now.seconds() * 1e6 {
            let request = Request { id: self.asked, prompt: PROMPT, output: OUTPUT };
            self.replica.submit(Micros::from_secs_f64(self.next / 1e6), request).unwrap();
            self.asked += 1;
            self.next += gap;
        }
        self.replica.advance_to(now, &mut Vec::new());
        page::render(&self.identity, &self.replica.snapshot())
    }
}
