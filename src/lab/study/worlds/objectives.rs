//! The objectives of a world's requests.

use std::time::Duration;

use crate::simulate::scenario::Slo;
use crate::study::worlds::capacity::Changes;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::Machine;
use crate::study::worlds::numbers::digits;
use crate::study::worlds::priors::{ALONE, Aspect, ITL, TTFT};
use crate::study::worlds::requests::Requests;
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// Tokens from which a prompt is long, and the extra time to the first token per token beyond.
const LONG_PROMPT: f64 = 4_000.0;
const PER_TOKEN: Duration = Duration::from_millis(1);

/// Standard deviations from the median to the 99th percentile.
const P99: f64 = 2.326;

/// The objectives of requests, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objectives {
    pub(crate) ttft: f64,
    pub(crate) itl: f64,
}

// === impl Objectives ===

impl Objectives {
    /// Objectives that each of these engines meets for a request that runs alone, even after these
    /// changes.
    pub(crate) fn draw(
        lot: Lot,
        requests: &Requests,
        machines: &[Machine],
        changes: Changes,
    ) -> Self {
        let mut random = lot.of(Aspect::Objectives);
        let ttft = TTFT.draw(&mut random);
        let itl = ITL.draw(&mut random) / 1e3;

        let slow = machines.iter().take(1).map(|it| it.slowed(changes.slowdowns.slowness()));
        let all: Vec<Machine> = machines.iter().copied().chain(slow).collect();
        let drawn = Self { ttft, itl }.met_by(requests, &all);
        let Self { ttft, itl } = drawn.met_by(&requests.stretched(changes.drift.last), &all);
        Self { ttft: digits(ttft + 0.005, 3), itl: (itl * 1e3).ceil() / 1e3 }
    }

    /// The same objectives, relaxed so that each of these engines meets them for a request that
    /// runs alone.
    fn met_by(self, requests: &Requests, machines: &[Machine]) -> Self {
        let Self { mut ttft, mut itl } = self;
        let longest = requests.prompt.at(P99);
        let context = longest + requests.output.at(P99);
        for machine in machines {
            for prompt in [requests.prompt.at(0.0), longest, longest.min(LONG_PROMPT)] {
                let allowed = (prompt - LONG_PROMPT).max(0.0) * PER_TOKEN.as_secs_f64();
                let alone = ALONE * machine.prefill(prompt * (1.0 - requests.hits));
                ttft = ttft.max(alone - allowed);
            }
            itl = itl.max(ALONE * machine.decode(context));
        }

        Self { ttft, itl }
    }

    /// The objectives in the form of a scenario.
    pub(crate) fn written(&self) -> Written<Slo> {
        let [ttft, itl] = [self.ttft, self.itl].map(Duration::from_secs_f64);
        Written::<Slo> {
            ttft: Some(WrittenDuration(ttft)),
            itl: Some(WrittenDuration(itl)),
            ttft_per_token: Some(WrittenDuration(PER_TOKEN)),
            ..Default::default()
        }
    }
}
