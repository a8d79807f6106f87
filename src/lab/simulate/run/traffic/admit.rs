//! Admission: a gateway that rejects requests beyond the published admissible rate.

use crate::simulate::run::Simulation;
use crate::simulate::scenario::Admit;

impl Simulation<'_> {
    /// Returns true if the gateway admits a request now. It admits all requests while the rate is
    /// unknown.
    pub(super) fn admits(&mut self, model: usize) -> bool {
        let Some(Admit { share, burst }) = self.scenario.models[model].gateway.admit else {
            return true;
        };

        let rate = self.admissible(model);
        let bucket = &mut self.traffic[model].bucket;
        match rate {
            Some(rate) => {
                bucket.take(self.now, rate.requests_per_second() * share.fraction(), burst)
            }
            None => true,
        }
    }
}
