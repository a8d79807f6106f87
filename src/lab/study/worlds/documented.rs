//! The priors as the table of `docs/worlds.md`.

use crate::study::worlds::engines::PAIRS;
use crate::study::worlds::priors::{
    ALONE, Aspect, BUDGET, BUDGET_OF_ONE, BUDGET_OF_SEVERAL, BUDGET_OTHERS, Budget, CLIENTS,
    COEFFICIENT, COMPRESSION, CRASH_HOURS, DAY_HOURS, DELAY, DELAYS, FAILURES, FLASH,
    FLASH_EVERY_MINUTES, FLASH_MINUTES, FOLLOWERS, GATEWAYS, HALF_MINUTES, HITS, HITS_AGENTS,
    HITS_SOME, HOURS, HOURS_MIN, ITL, LOSS, LOSSES, MEMORY, MIXTURES, NEED, NEED_OF_SEVERAL, NIGHT,
    NODE, NODES, OTHERS_MAX, OUTPUT_SIGMA, PER_REPLICA, PROMPT_SIGMA, RAMP, RAMP_MINUTES, RELAY,
    ROLLOUTS, ROUTERS, SCRAPES, SEATS, SEATS_OTHERS, SHAPES, SPOT_HOURS, SPOT_PRICE, STARTUP,
    STARTUP_SIGMA, STEP, TASKS, TIMEOUT, TTFT, Task, UNAVAILABLE, UTILIZATION, VARIANTS, VARIATION,
    WARM, output_median, prompt_median,
};

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prior {
    pub(crate) aspect: Aspect,
    pub(crate) drawn: String,
    pub(crate) source: &'static str,
}

/// All priors, in the order of the document.
pub(crate) fn table() -> Vec<Prior> {
    [engine(), requests(), arrivals(), fleet(), starts(), surroundings()].concat()
}

const fn prior(aspect: Aspect, drawn: String, source: &'static str) -> Prior {
    Prior { aspect, drawn, source }
}

fn engine() -> Vec<Prior> {
    let pairs = PAIRS.len();
    let mixtures = PAIRS.iter().filter(|pair| pair.is_mixture()).count();
    vec![
        prior(
            Aspect::Engine,
            format!(
                "One of {pairs} pairs of a model and accelerators; in {MIXTURES}% of worlds one of \
                 the {mixtures} with a mixture of experts. Each coefficient times {COEFFICIENT}; the \
                 KV cache times {MEMORY}"
            ),
            "Fits to kernels and runs of vLLM, which differ by about the factor",
        ),
        prior(
            Aspect::Seats,
            format!("{SEATS}: {SEATS_OTHERS}"),
            "Defaults of vLLM by version and device",
        ),
        prior(
            Aspect::TokenBudget,
            format!("{BUDGET}: {BUDGET_OTHERS}; at least the seats"),
            "Defaults of vLLM by version and device",
        ),
        prior(
            Aspect::PrefixHits,
            format!("{HITS}: {HITS_SOME}; of agents {HITS_AGENTS}"),
            "An infinite cache finds 0.37 of Mooncake's conversations",
        ),
    ]
}

fn requests() -> Vec<Prior> {
    let of = |task| {
        let (prompt, output) = (prompt_median(task), output_median(task));
        format!("{prompt} and {output}")
    };
    let [chat, classify, agent] = [Task::Chat, Task::Classify, Task::Agent].map(of);
    vec![
        prior(
            Aspect::Objectives,
            format!(
                "TTFT {TTFT} s, and 1 ms for each token of a prompt beyond 4000; ITL {ITL} ms; at \
                 least {ALONE} times what a request gets alone"
            ),
            "From MLPerf's server scenarios to batch chat",
        ),
        prior(
            Aspect::Lengths,
            format!(
                "{TASKS}. Medians of prompts and answers: chat {chat}; agent {agent}; classifier \
                 {classify}, without a spread of answers. Lognormal, with sigma {PROMPT_SIGMA} and \
                 {OUTPUT_SIGMA}, clipped to what the KV cache holds"
            ),
            "Azure 2023, Mooncake and ServeGen have medians from 40 to 6909 and from 3 to 792",
        ),
    ]
}

fn arrivals() -> Vec<Prior> {
    vec![
        prior(
            Aspect::Shape,
            format!(
                "{SHAPES}. A recording begins anywhere; a day of ServeGen is played {COMPRESSION} \
                 times as fast. Diurnal: crest over trough {NIGHT}, in {DAY_HOURS} h. Ramp: {RAMP} \
                 times the rate within {RAMP_MINUTES} min. Steps and square waves: {STEP} times; a \
                 half is {HALF_MINUTES} min. Flash crowds: {FLASH} times for {FLASH_MINUTES} min, \
                 every {FLASH_EVERY_MINUTES} min"
            ),
            "The recordings themselves; launches and tenants that switch on (a ServeGen client has \
             16 to 52% of the load)",
        ),
        prior(
            Aspect::Burstiness,
            format!("Gamma gaps with a coefficient of variation of {VARIATION}"),
            "ServeGen, weighted by rate: median 1.6 to 2.2, 95th percentile 5.1 to 7.5",
        ),
    ]
}

fn fleet() -> Vec<Prior> {
    let Budget { requests, replica_hours } = BUDGET_OF_ONE;
    let several = BUDGET_OF_SEVERAL;
    vec![
        prior(
            Aspect::Fleet,
            format!("Mean need {NEED} replicas, of several variants {NEED_OF_SEVERAL}"),
            "Most deployments have 1 to 10 replicas",
        ),
        prior(
            Aspect::Initial,
            format!("As many as a utilization of {UTILIZATION} takes for the first rate"),
            "Fleets that ran before; the lower end serves about all",
        ),
        prior(
            Aspect::Duration,
            format!(
                "{HOURS} h. At most {requests} requests and {replica_hours} replica-hours are \
                 simulated, of several variants {} and {}: the duration is cut down to \
                 {HOURS_MIN} h for it, then the mean need",
                several.requests, several.replica_hours
            ),
            "200 worlds take ten minutes on one core",
        ),
        prior(
            Aspect::Variants,
            format!(
                "{VARIANTS}: of the same model on other accelerators, or, where there is none, on \
                 spot nodes at {SPOT_PRICE} of the price. Of another than the first there are at \
                 most {OTHERS_MAX} of what the peak takes"
            ),
            "Scarce accelerators beside common ones",
        ),
    ]
}

fn starts() -> Vec<Prior> {
    vec![
        prior(
            Aspect::Startup,
            format!("{STARTUP} s; sigma of each phase {STARTUP_SIGMA}"),
            "Images, weights and compilation; measured starts of vLLM take 40 to 245 s",
        ),
        prior(
            Aspect::Nodes,
            format!(
                "{NODES}: beyond {WARM} times the mean need a node comes first, after {NODE} s"
            ),
            "Cluster autoscalers and Karpenter",
        ),
        prior(
            Aspect::Failures,
            format!(
                "{FAILURES}: a replica crashes every {CRASH_HOURS} h, a spot node is taken back \
                 after {SPOT_HOURS} h"
            ),
            "Spot interruptions, and errors of accelerators and engines",
        ),
        prior(
            Aspect::Rollout,
            format!("{ROLLOUTS}; surge 25%, unavailable {UNAVAILABLE}"),
            "Defaults of a Deployment",
        ),
    ]
}

fn surroundings() -> Vec<Prior> {
    vec![
        prior(Aspect::Router, ROUTERS.to_string(), "Service meshes, Services, endpoint pickers"),
        prior(
            Aspect::Clients,
            format!("{CLIENTS} 1 to 3 times; after {TIMEOUT} s"),
            "Timeouts of SDKs and gateways",
        ),
        prior(
            Aspect::Scrape,
            format!("{SCRAPES}; Prometheus' samples are {RELAY} s late"),
            "Defaults of this project and of Prometheus",
        ),
        prior(
            Aspect::ScrapeLoss,
            format!("{LOSSES}: a share of {LOSS}"),
            "Timeouts of busy engines",
        ),
        prior(
            Aspect::Autoscaler,
            FOLLOWERS.to_string(),
            "docs/external-metrics.md, Kubernetes, KEDA",
        ),
        prior(
            Aspect::AutoscalerDelay,
            format!("{DELAYS}: values are {DELAY} s old"),
            "Adapters with caches",
        ),
        prior(
            Aspect::Gateway,
            format!(
                "{GATEWAYS}: a replica gets {PER_REPLICA} times its seats at once, and the rest \
                 waits"
            ),
            "Flow control of the Gateway API's inference extension",
        ),
    ]
}
