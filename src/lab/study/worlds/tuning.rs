//! The configuration of a world's engines beyond their limits: API servers, pipelines, speculation
//! and noise.

use crate::simulate::replica::settings::Options;
use crate::simulate::replica::speculation::Speculation;
use crate::study::file::{EngineKeys, SpeculationKeys};
use crate::study::worlds::distribution::DrawnOption;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::numbers::digits;
use crate::study::worlds::priors::{
    API_SERVERS, ARGUMENTS, Aspect, DRAFTS, DRAFTS_MORE, DRAFTS_MORE_FROM, NOISE, NOISES,
    SPECULATIONS, STAGES, TOKENS_PER_STEP,
};
use plimsoll_core::settings::Written;

/// The configuration of engines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineSetup {
    pub(crate) api_servers: DrawnOption<u32>,
    pub(crate) stages: DrawnOption<u32>,
    pub(crate) speculation: DrawnOption<Option<Drafts>>,
    pub(crate) noise: DrawnOption<f64>,
    pub(crate) arguments: DrawnOption<bool>,
}

/// Tokens of speculative decoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drafts {
    /// Tokens that a step drafts for a request.
    drafts: u32,
    /// Tokens that it gives a request on average.
    tokens: f64,
}

// === impl EngineSetup ===

impl EngineSetup {
    pub(crate) fn draw(lot: Lot) -> Self {
        let mut random = lot.of(Aspect::Speculation);
        let speculates = SPECULATIONS.draw(&mut random);
        let tokens = digits(TOKENS_PER_STEP.draw(&mut random), 2);
        let drafts = if tokens < DRAFTS_MORE_FROM { DRAFTS } else { DRAFTS_MORE };
        let speculation = speculates.value.then_some(Drafts { drafts, tokens });

        let mut random = lot.of(Aspect::Noise);
        let noise = NOISES.draw(&mut random);
        let sigma = if noise.value { digits(NOISE.draw(&mut random), 2) } else { 0.0 };
        Self {
            api_servers: API_SERVERS.draw(&mut lot.of(Aspect::ApiServers)),
            stages: STAGES.draw(&mut lot.of(Aspect::Pipeline)),
            speculation: DrawnOption { name: speculates.name, value: speculation },
            noise: DrawnOption { name: noise.name, value: sigma },
            arguments: ARGUMENTS.draw(&mut lot.of(Aspect::Arguments)),
        }
    }

    /// Tokens that a step computes for a request that decodes.
    pub(crate) fn tokens_per_request(&self) -> u32 {
        self.speculation.value.map_or(1, |it| it.drafts + 1)
    }

    /// The same configuration for the simulator.
    pub(crate) fn options(&self) -> Options {
        Options {
            api_servers: self.api_servers.value,
            stages: self.stages.value,
            speculation: self
                .speculation
                .value
                .map(|it| Speculation::with_mean(it.drafts, it.tokens)),
            noise: self.noise.value,
            ..Options::default()
        }
    }

    /// Adds this configuration to the engine's keys.
    pub(crate) fn written(&self, engine: Written<EngineKeys>) -> Written<EngineKeys> {
        let Self { api_servers, stages, speculation, noise, arguments } = *self;
        let drafts = speculation.value.map(|it| Written::<SpeculationKeys> {
            drafts: Some(it.drafts),
            tokens: Some(it.tokens),
        });

        Written::<EngineKeys> {
            api_servers: (api_servers.value > 1).then_some(api_servers.value),
            pipeline_stages: (stages.value > 1).then_some(stages.value),
            speculation: drafts,
            noise: (noise.value > 0.0).then_some(noise.value),
            arguments: arguments.value.then_some(true),
            ..engine
        }
    }
}
