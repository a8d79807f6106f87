//! The series: periodic samples of a run.

use crate::simulate::run::pods::PodState;
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::score::{FleetSample, ModelSample, VariantSample};

impl Simulation<'_> {
    /// Takes a sample, and plans the next.
    pub(crate) fn sample(&mut self) {
        for pod in self.crews.iter().flat_map(|crew| crew.pods.clone()).collect::<Vec<_>>() {
            self.advance(pod);
        }
        let variants = (0..self.crews.len()).map(|variant| self.look_at(variant)).collect();
        let models = (0..self.traffic.len()).map(|model| self.look_at_model(model)).collect();
        self.sampler.samples.push(FleetSample { at: self.now, models, variants });
        self.plan(self.now + self.scenario.sample, Happening::Sample);
    }

    fn look_at_model(&mut self, model: usize) -> ModelSample {
        let service = &self.services[model];
        let then = &mut self.sampler.models[model];
        let sample = ModelSample {
            arrived: service.arrived - then.arrived,
            held: self.traffic[model].held.len() as u64,
            judged: service.judged() - then.judged,
            good: service.good - then.good,
            ttft_p95: service.ttft.quantile_since(&then.ttft, 0.95),
            itl_p95: service.itl.quantile_since(&then.itl, 0.95),
        };

        then.arrived = service.arrived;
        then.judged = service.judged();
        then.good = service.good;
        then.ttft.clone_from(&service.ttft);
        then.itl.clone_from(&service.itl);
        sample
    }

    pub(super) fn look_at(&self, variant: usize) -> VariantSample {
        let crew = &self.crews[variant];
        let mut sample = VariantSample {
            desired: self.controller.desired(variant),
            wanted: crew.wanted.count(),
            sent: crew.sent,
            belief: self.controller.belief(variant),
            ..VariantSample::default()
        };

        for pod in crew.pods.iter().map(|&pod| &self.pods[pod]) {
            match pod.state {
                PodState::Starting => sample.starting += 1,
                PodState::Ready => sample.ready += 1,
                PodState::Draining => sample.draining += 1,
                PodState::Gone => {}
            }

            let Some(gauges) = pod.replica.as_ref().map(|replica| replica.gauges()) else {
                continue;
            };
            sample.running += gauges.running;
            sample.waiting += gauges.waiting;
            sample.adapter_loads += pod.adapter_loads();
            if pod.state == PodState::Ready {
                sample.kv += gauges.kv_usage;
            }
        }

        sample.kv /= f64::from(sample.ready.max(1));
        sample
    }
}
