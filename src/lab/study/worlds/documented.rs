//! The priors as the table of `docs/worlds.md`.

use crate::study::worlds::engines::PAIRS;
use crate::study::worlds::priors::{
    ALONE, API_SERVERS, ARGUMENTS, Aspect, BATCH_OUTPUT, BATCH_PROMPT, BATCH_SHARE, BATCH_SIGMA,
    BATCHES, BUDGET, BUDGET_OF_ONE, BUDGET_OF_SEVERAL, BUDGET_OTHERS, CLIENTS, COEFFICIENT,
    COMPRESSION, CRASH_HOURS, DAY_HOURS, DELAY, DELAYS, DRAFTS, DRAFTS_MORE, DRAFTS_MORE_FROM,
    DRIFT, DRIFT_FROM, DRIFT_MINUTES, DRIFTS, FAILED_SHARE, FAILED_STARTS, FAILURES, FLASH,
    FLASH_EVERY_MINUTES, FLASH_MINUTES, FOLLOWERS, GATEWAYS, HALF_MINUTES, HITS, HITS_AGENTS,
    HITS_SOME, HOURS, HOURS_MIN, ITL, JOB_FROM, JOB_LASTS, LOSS, LOSSES, MEMORY, MIXTURES, NEED,
    NEED_MIN, NEED_OF_SEVERAL, NIGHT, NODE, NODES, NOISE, NOISES, OTHERS_MAX, OUTPUT_SIGMA,
    PER_REPLICA, PROMPT_SIGMA, RAMP, RAMP_MINUTES, RELAY, ROLLOUTS, ROUTERS, SCRAPES, SEATS,
    SEATS_OTHERS, SESSIONS, SHAPES, SILENCES, SILENT_FROM, SILENT_MINUTES, SLOW_FROM, SLOW_MINUTES,
    SLOWDOWNS, SLOWNESS, SPECULATIONS, SPOT_HOURS, SPOT_PRICE, STAGE_WORK, STAGES, STARTUP,
    STARTUP_SIGMA, STEP, SimulationBudget, TASKS, TIMEOUT, TOGETHER, TOKENS_PER_STEP, TTFT, Task,
    UNAVAILABLE, UTILIZATION, VARIANTS, VARIATION, WARM, output_median, prompt_median,
};
use crate::study::worlds::requests::{OUTPUT_MAX, PROMPT_MAX};

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
            "Fits to kernels and runs of vLLM, which differ by about the factor; so does [a recorded \
             H100](recordings.md#server-capacity)",
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
        prior(
            Aspect::Arguments,
            format!("{ARGUMENTS}"),
            "Plimsoll reads them in the pod template of a scale target; not in a file of an image, \
             in a script, or where a variant has no scale target",
        ),
        prior(
            Aspect::ApiServers,
            API_SERVERS.to_string(),
            "vLLM starts as many as there are data-parallel ranks; recordings have 1 and 2",
        ),
        prior(
            Aspect::Pipeline,
            format!("{STAGES}; each stage has the cost and the KV cache of the pair"),
            "Models that do not fit one node, and nodes without NVLink",
        ),
        prior(
            Aspect::Speculation,
            format!(
                "{SPECULATIONS}: {TOKENS_PER_STEP} tokens per step; {DRAFTS} drafts, from \
                 {DRAFTS_MORE_FROM} tokens on {DRAFTS_MORE}. The token budget has room for all \
                 drafts of all seats"
            ),
            "A recorded vLLM with n-gram drafts has 3.6 tokens per step; EAGLE's papers have 2 to 4",
        ),
        prior(
            Aspect::Noise,
            format!("{NOISES}: each iteration's time is lognormal with sigma {NOISE}"),
            "Clocks, host threads, and kernels that are chosen by shape",
        ),
        prior(
            Aspect::Slowdown,
            format!(
                "{SLOWDOWNS}: iterations take {SLOWNESS} times as long from {SLOW_FROM} of the \
                 duration on, for {SLOW_MINUTES} min; of the first variant"
            ),
            "Power and thermal limits, other work on the host; studies of fail-slow accelerators",
        ),
    ]
}

fn requests() -> Vec<Prior> {
    let [chat, classify, agent] = [Task::Chat, Task::Classify, Task::Agent]
        .map(|task| format!("{} and {}", prompt_median(task), output_median(task)));

    vec![
        prior(
            Aspect::Objectives,
            format!(
                "TTFT {TTFT} s, and 1 ms for each token of a prompt beyond 4000; ITL {ITL} ms; at \
                 least {ALONE} times the latency of a request alone, also after a drift and in a \
                 slowdown of all"
            ),
            "From MLPerf's server scenarios to batch chat",
        ),
        prior(
            Aspect::Lengths,
            format!(
                "{TASKS}. Medians of prompts and answers: chat {chat}; agent {agent}; classifier \
                 {classify}, without a spread of answers. Lognormal, with sigma {PROMPT_SIGMA} \
                 and {OUTPUT_SIGMA}, clipped to a half and a quarter of the KV cache, and to \
                 {PROMPT_MAX} and {OUTPUT_MAX}"
            ),
            "Azure 2023, Mooncake and ServeGen have medians from 40 to 6909 and from 3 to 792",
        ),
        prior(
            Aspect::Batch,
            format!(
                "{BATCHES}: its mean need is {BATCH_SHARE} of that of the other requests, with \
                 medians of {BATCH_PROMPT} and {BATCH_OUTPUT} tokens and sigma {BATCH_SIGMA}, and \
                 without an objective. A job begins at {JOB_FROM} of the duration and lasts for \
                 {JOB_LASTS} of it"
            ),
            "Summaries, evaluations and synthetic data on the replicas that serve people",
        ),
        prior(
            Aspect::Drift,
            format!(
                "{DRIFTS}: a median is multiplied by {DRIFT} within {DRIFT_MINUTES} min, from \
                 {DRIFT_FROM} of the duration on, and stays"
            ),
            "New clients, prompt templates and releases of a model; the mean need and the bounds \
             are those of the whole duration",
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
    let SimulationBudget { requests, replica_hours } = BUDGET_OF_ONE;
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
                "{HOURS} h. The limit is {requests} requests and {replica_hours} replica-hours of \
                 need, of several variants {} and {}. Beyond it, the duration is cut down to \
                 {HOURS_MIN} h, then the mean need down to {NEED_MIN}. Batch work counts like \
                 other requests, and a stage of a pipeline as {STAGE_WORK} replicas",
                several.requests, several.replica_hours
            ),
            "200 worlds take ten minutes on one core",
        ),
        prior(
            Aspect::Variants,
            format!(
                "{VARIANTS}: of the same model on other accelerators, or, without such a pair, one \
                 on spot nodes at {SPOT_PRICE} of the price. Variants after the first have at most \
                 {OTHERS_MAX} of the replicas for the peak"
            ),
            "Scarce accelerators next to common ones",
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
                "{NODES}: beyond {WARM} times the mean need and beyond the first replicas, a node \
                 comes first, after {NODE} s"
            ),
            "Cluster autoscalers and Karpenter",
        ),
        prior(
            Aspect::FailedStarts,
            format!("{FAILED_STARTS}: a share of {FAILED_SHARE}, each tried again"),
            "2% of all starts: images that cannot be pulled, accelerators that are not found",
        ),
        prior(
            Aspect::Failures,
            format!(
                "{FAILURES}: a replica crashes every {CRASH_HOURS} h, a spot node is taken back \
                 after {SPOT_HOURS} h; where several are at once, {TOGETHER} of the others with it, \
                 as rarely as makes up for it"
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
        prior(
            Aspect::Router,
            format!("{ROUTERS}: {SESSIONS} sessions for each replica of the mean need"),
            "Service meshes, endpoint pickers; a plain Service picks at random, and session \
             affinity keeps prefix caches warm",
        ),
        prior(
            Aspect::Clients,
            format!("{CLIENTS} 1 to 3 times; after {TIMEOUT} s"),
            "Timeouts of SDKs and gateways",
        ),
        prior(
            Aspect::Scrape,
            format!("{SCRAPES}; Prometheus' samples are {RELAY} s late"),
            "The default of this project, and usual intervals of Prometheus",
        ),
        prior(
            Aspect::ScrapeLoss,
            format!("{LOSSES}: a share of {LOSS}"),
            "Timeouts of busy engines",
        ),
        prior(
            Aspect::Silence,
            format!(
                "{SILENCES}: it serves and answers no scrape for {SILENT_MINUTES} min, from \
                 {SILENT_FROM} of the duration on"
            ),
            "Network policies, full connection tables, metrics servers that hang",
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
