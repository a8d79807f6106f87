//! The series: what is seen of a run from time to time.

use crate::simulate::Micros;
use crate::simulate::run::pods::State;
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::score::{ModelSample, Sample, Spread, VariantSample};

/// What has happened since the last sample.
pub(crate) struct Sampler {
    pub(crate) samples: Vec<Sample>,
    models: Vec<Since>,
}

#[derive(Clone, Default)]
struct Since {
    arrived: u64,
    judged: u64,
    good: u64,
    ttft: Spread,
    itl: Spread,
}

// === impl Sampler ===

impl Sampler {
    pub(crate) fn new(models: usize) -> Self {
        Self { samples: Vec::new(), models: vec![Since::default(); models] }
    }

    pub(crate) fn judge(&mut self, model: usize, good: bool) {
        self.models[model].judged += 1;
        self.models[model].good += u64::from(good);
    }

    pub(crate) fn first_token(&mut self, model: usize, ttft: Micros) {
        self.models[model].ttft.observe(ttft);
    }

    pub(crate) fn token_gap(&mut self, model: usize, itl: Micros) {
        self.models[model].itl.observe(itl);
    }
}

impl Simulation<'_> {
    /// Takes a sample, and plans the next.
    pub(crate) fn sample(&mut self) {
        for pod in self.crews.iter().flat_map(|crew| crew.pods.clone()).collect::<Vec<_>>() {
            self.advance(pod);
        }
        let variants = (0..self.crews.len()).map(|variant| self.look_at(variant)).collect();
        let models = (0..self.traffic.len()).map(|model| self.look_at_model(model)).collect();
        self.sampler.samples.push(Sample { at: self.now, models, variants });
        self.plan(self.now + self.scenario.sample, Happening::Sample);
    }

    fn look_at_model(&mut self, model: usize) -> ModelSample {
        let since = &mut self.sampler.models[model];
        let arrived = self.services[model].arrived;
        let sample = ModelSample {
            arrived: arrived - since.arrived,
            held: self.traffic[model].held.len() as u64,
            judged: since.judged,
            good: since.good,
            ttft_p95: since.ttft.quantile(0.95),
            itl_p95: since.itl.quantile(0.95),
        };
        since.arrived = arrived;
        since.judged = 0;
        since.good = 0;
        since.ttft.clear();
        since.itl.clear();
        sample
    }

    fn look_at(&self, variant: usize) -> VariantSample {
        let crew = &self.crews[variant];
        let mut sample = VariantSample {
            desired: self.controller.desired(variant),
            wanted: crew.wanted.count(),
            ..VariantSample::default()
        };
        for pod in crew.pods.iter().map(|&pod| &self.pods[pod]) {
            match pod.state {
                State::Starting => sample.starting += 1,
                State::Ready => sample.ready += 1,
                State::Draining => sample.draining += 1,
                State::Gone => {}
            }
            let Some(gauges) = pod.replica.as_ref().map(|replica| replica.gauges()) else {
                continue;
            };
            sample.running += gauges.running;
            sample.waiting += gauges.waiting;
            if pod.state == State::Ready {
                sample.kv += gauges.kv_usage;
            }
        }
        sample.kv /= f64::from(sample.ready.max(1));
        sample
    }
}
