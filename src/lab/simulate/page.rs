//! The /metrics response of a replica, as vLLM 0.33 with one engine writes it.
//!
//! Names, types, labels, bucket edges and their order are vLLM's. So are its oddities: a histogram
//! whose name ends in `_total`, and a `_created` gauge for every counter and histogram. Numbers
//! have the format of Python's client library.
//!
//! Several API servers share one response, as Python's client library makes it for several
//! processes. It has no `_created` gauges and no process families, and its gauges have no samples
//! before the first step.
//!
//! Families that the simulator does not model are present with the zeros that an idle feature
//! reports. A response without them would be easier to read than a real one. The help texts are
//! Plimsoll's own.

use std::fmt::Write as _;

use jiff::Timestamp;

use crate::simulate::replica::speculation::DraftCounters;
use crate::simulate::replica::stats::{ANSWER_EDGES, Counters, EngineHistogram, Stats};

/// The `Content-Type` of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Bytes to reserve for a /metrics response, slightly more than one takes.
const PAGE_SIZE: usize = 72 * 1024;

/// The handler under which the HTTP server counts all simulated requests.
const HANDLER: &str = "/v1/chat/completions";

/// The parts of a /metrics response that do not depend on load.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineIdentity {
    /// The value of `model_name`.
    pub model: String,
    /// The time at which the process started.
    pub started: Timestamp,
    /// The time at which the engine was ready and created its metrics.
    pub ready: Timestamp,
}

/// Writes the /metrics response.
#[must_use]
pub fn render(identity: &EngineIdentity, stats: &Stats) -> String {
    let model = format!("model_name=\"{}\"", escape(&identity.model));
    let base = vec!["engine=\"0\"".to_owned(), model];
    let created = (stats.api_servers == 1).then(|| number(seconds(identity.ready)));
    let mut page = ExpositionPage { text: String::with_capacity(PAGE_SIZE), base, created };
    if stats.api_servers == 1 {
        page.process(identity, &stats.counters);
    }
    if let Some(drafted) = &stats.drafted {
        page.drafts(drafted);
    }

    page.gauges(stats);
    page.counters(&stats.counters);
    page.request_sizes(&stats.counters);
    page.latencies(&stats.counters);
    page.cache_config(stats);
    page.http(&stats.counters.http);
    page.text
}

struct ExpositionPage {
    text: String,
    /// The labels that the engine's families share.
    base: Vec<String>,
    /// The value of `_created`; `None` if several processes share the response.
    created: Option<String>,
}

/// The unit of a histogram's whole numbers.
#[derive(Clone, Copy)]
enum HistogramUnit {
    One,
    Micros,
}

impl HistogramUnit {
    fn base(self, value: u64) -> f64 {
        match self {
            Self::One => value as f64,
            Self::Micros => value as f64 / 1e6,
        }
    }
}

// === impl ExpositionPage ===

impl ExpositionPage {
    fn process(&mut self, identity: &EngineIdentity, counters: &Counters) {
        for (name, help, values) in [
            (
                "python_gc_objects_collected_total",
                "Objects that were collected",
                [419_045.0, 136_063.0, 9_866.0],
            ),
            (
                "python_gc_objects_uncollectable_total",
                "Objects that could not be collected",
                [0.0; 3],
            ),
            ("python_gc_collections_total", "Collections of each generation", [818.0, 74.0, 3.0]),
        ] {
            self.head(name, help, "counter");
            for (generation, value) in values.into_iter().enumerate() {
                self.sample(name, &format!("generation=\"{generation}\""), value);
            }
        }

        self.head("python_info", "The Python that runs the server", "gauge");
        let python = "implementation=\"CPython\",major=\"3\",minor=\"11\",patchlevel=\"7\",version=\"3.11.7\"";
        self.sample("python_info", python, 1.0);
        // The API server itself uses about a tenth of a core while its engine is busy.
        let cpu = 40.0 + counters.busy.seconds() / 10.0;
        for (name, help, kind, value) in [
            ("process_virtual_memory_bytes", "Virtual memory in bytes.", "gauge", 2.085_519_36e10),
            ("process_resident_memory_bytes", "Resident memory in bytes.", "gauge", 1.063_475_2e9),
            (
                "process_start_time_seconds",
                "When the process started.",
                "gauge",
                seconds(identity.started),
            ),
            ("process_cpu_seconds_total", "CPU time of the process.", "counter", cpu),
            ("process_open_fds", "Open file descriptors.", "gauge", 64.0),
            ("process_max_fds", "Allowed file descriptors.", "gauge", 1_048_576.0),
        ] {
            self.head(name, help, kind);
            self.sample(name, "", value);
        }
    }

    fn drafts(&mut self, drafted: &DraftCounters) {
        for (name, help, value) in [
            ("vllm:spec_decode_num_drafts", "Drafts of speculative decoding.", drafted.drafts),
            ("vllm:spec_decode_num_draft_tokens", "Tokens of drafts.", drafted.tokens),
            (
                "vllm:spec_decode_num_accepted_tokens",
                "Accepted tokens of drafts.",
                drafted.accepted.iter().sum(),
            ),
        ] {
            self.counter(name, help, &[("", value)]);
        }

        let places: Vec<String> =
            (0..drafted.accepted.len()).map(|place| format!("position=\"{place}\"")).collect();
        let labels = places.iter().map(String::as_str);
        let accepted: Vec<(&str, u64)> = labels.zip(drafted.accepted.iter().copied()).collect();
        self.counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens of drafts, by their place in a draft.",
            &accepted,
        );
    }

    fn gauges(&mut self, stats: &Stats) {
        let running = f64::from(stats.running);
        let waiting = f64::from(stats.waiting);
        let there = stats.has_gauges();

        self.gauge(
            "vllm:num_requests_running",
            "Requests in the batch.",
            kept(there, &[("", running)]),
        );
        self.gauge(
            "vllm:num_requests_waiting",
            "Requests in the queue.",
            kept(there, &[("", waiting)]),
        );
        self.gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests in the queue, by reason.",
            kept(
                there,
                &[
                    ("reason=\"capacity\"", waiting - f64::from(stats.deferred)),
                    ("reason=\"deferred\"", f64::from(stats.deferred)),
                ],
            ),
        );
        self.gauge(
            "vllm:engine_sleep_state",
            "Whether the engine is awake, and how deep it sleeps if not.",
            &[
                ("sleep_state=\"awake\"", 1.0),
                ("sleep_state=\"weights_offloaded\"", 0.0),
                ("sleep_state=\"discard_all\"", 0.0),
            ],
        );
        self.gauge(
            "vllm:kv_cache_usage_perc",
            "The share of the KV cache that is in use; 1 is all of it.",
            kept(there, &[("", stats.kv_usage())]),
        );
    }

    fn counters(&mut self, counters: &Counters) {
        for (name, help, value) in [
            (
                "vllm:prefix_cache_queries",
                "Tokens looked up in the prefix cache.",
                counters.prefix_queries,
            ),
            ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", counters.prefix_hits),
            ("vllm:external_prefix_cache_queries", "Tokens looked up in other engines' caches.", 0),
            (
                "vllm:external_prefix_cache_hits",
                "Tokens found in other engines' caches.",
                counters.prompt_transferred,
            ),
            ("vllm:mm_cache_queries", "Items looked up in the multi-modal cache.", 0),
            ("vllm:mm_cache_hits", "Items found in the multi-modal cache.", 0),
            ("vllm:num_preemptions", "Preemptions.", counters.preemptions),
            ("vllm:prompt_tokens", "Prompt tokens processed.", counters.prompt_tokens),
        ] {
            self.counter(name, help, &[("", value)]);
        }

        let computed = counters.prompt_computed;
        let transferred = counters.prompt_transferred;
        let cached = counters.prompt_tokens - computed;
        let found = cached - transferred;
        self.counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where they came from.",
            &[
                ("source=\"local_compute\"", computed),
                ("source=\"local_cache_hit\"", found),
                ("source=\"external_kv_transfer\"", transferred),
            ],
        );
        self.counter(
            "vllm:prompt_tokens_cached",
            "Prompt tokens found in a cache.",
            &[("", cached)],
        );
        self.counter(
            "vllm:prompt_tokens_cached_by_source",
            "Prompt tokens found in a cache, by which.",
            &[
                ("source=\"device\"", counters.prefix_hits),
                ("source=\"host\"", 0),
                ("source=\"p2p\"", 0),
                ("source=\"disk\"", 0),
                ("source=\"external_unspecified\"", transferred),
            ],
        );
        let generated = counters.generation_tokens;
        self.counter("vllm:generation_tokens", "Tokens generated.", &[("", generated)]);
        self.counter(
            "vllm:request_success",
            "Requests that ended, by how.",
            &[
                ("finished_reason=\"stop\"", counters.finished),
                ("finished_reason=\"length\"", 0),
                ("finished_reason=\"abort\"", 0),
                ("finished_reason=\"error\"", 0),
                ("finished_reason=\"repetition\"", 0),
            ],
        );
        // The API server counts these rejections before a request has an engine, so they have no
        // `engine` label.
        let engine = self.base.remove(0);
        self.counter(
            "vllm:admission_rejections",
            "Requests that a limit of the queue turned away.",
            &[("reason=\"max_num_queued_reqs\"", 0), ("reason=\"max_num_queued_tokens\"", 0)],
        );
        self.base.insert(0, engine);
    }

    fn request_sizes(&mut self, counters: &Counters) {
        let one = HistogramUnit::One;
        let mut answers = EngineHistogram::new(&ANSWER_EDGES);
        answers.observe(1, counters.finished);
        let generated = &counters.generation_length;

        for (name, help, histogram) in [
            ("vllm:request_prompt_tokens", "Prompt tokens of a request.", &counters.prompt_length),
            ("vllm:request_generation_tokens", "Generated tokens of a request.", generated),
            ("vllm:iteration_tokens_total", "Tokens of a step.", &counters.iteration_tokens),
            (
                "vllm:request_max_num_generation_tokens",
                "Tokens that a request may generate.",
                generated,
            ),
            ("vllm:request_params_n", "Answers that a request asks for.", &answers),
            ("vllm:request_params_max_tokens", "Token limit of a request.", generated),
        ] {
            self.histogram(name, help, histogram, one);
        }
    }

    fn latencies(&mut self, counters: &Counters) {
        let micros = HistogramUnit::Micros;
        let one = HistogramUnit::One;

        for (name, help, histogram, unit) in [
            ("vllm:time_to_first_token_seconds", "Arrival to first token.", &counters.ttft, micros),
            ("vllm:inter_token_latency_seconds", "Between two tokens.", &counters.itl, micros),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean between tokens of a request.",
                &counters.tpot,
                micros,
            ),
            ("vllm:e2e_request_latency_seconds", "Arrival to last token.", &counters.e2e, micros),
            ("vllm:request_queue_time_seconds", "Arrival to first step.", &counters.queue, micros),
            (
                "vllm:request_inference_time_seconds",
                "First step to last token.",
                &counters.inference,
                micros,
            ),
            (
                "vllm:request_prefill_time_seconds",
                "First step to first token.",
                &counters.prefill,
                micros,
            ),
            ("vllm:request_decode_time_seconds", "First token to last.", &counters.decode, micros),
            (
                "vllm:request_num_preemptions",
                "Preemptions of a request.",
                &counters.request_preemptions,
                one,
            ),
            (
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens that were computed.",
                &counters.computed_length,
                one,
            ),
        ] {
            self.histogram(name, help, histogram, unit);
        }
    }

    fn cache_config(&mut self, stats: &Stats) {
        // One block is never handed out.
        let blocks = u64::from(stats.kv_blocks) + 1;
        let tokens = blocks * u64::from(stats.block_size);
        let size = stats.block_size;
        let labels = format!(
            "_block_size_resolved=\"True\",block_size=\"{size}\",cache_dtype=\"auto\",\
             cache_hit_alignment_tokens=\"{size}\",effective_attention_block_size=\"{size}\",\
             enable_mamba_shared_prefix_checkpoint=\"False\",enable_prefix_caching=\"False\",\
             engine=\"0\",gpu_memory_utilization=\"0.92\",hash_block_size=\"{size}\",\
             is_attention_free=\"False\",kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\",\
             kv_cache_max_concurrency=\"{:.2}\",kv_cache_memory_bytes=\"None\",\
             kv_cache_size_tokens=\"{tokens}\",kv_offloading_backend=\"native\",\
             kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\",mamba_block_size=\"None\",\
             mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\",mamba_page_size_padded=\"None\",\
             mamba_ssm_cache_dtype=\"auto\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             num_gpu_blocks_override=\"None\",prefix_cache_retention_interval=\"0\",\
             prefix_caching_hash_algo=\"sha256\",prefix_match_unit=\"None\",\
             replayssm_buffer_len=\"16\",simple_cpu_offload_num_blocks=\"None\",\
             skip_page_size_padded=\"None\",sliding_window=\"None\",swa_bounded_replay=\"True\",\
             use_kda_recoverssm=\"False\",use_replayssm=\"False\",\
             user_specified_block_size=\"False\"",
            tokens as f64 / 131_072.0,
        );

        self.head("vllm:cache_config_info", "How the cache is configured.", "gauge");
        self.sample("vllm:cache_config_info", &labels, 1.0);
    }

    /// The families of the HTTP server, which reports a handler only after its first answer.
    fn http(&mut self, answers: &EngineHistogram) {
        let count = answers.count() as f64;
        let used = count > 0.0;
        let handler = format!("handler=\"{HANDLER}\"");
        let post = format!("handler=\"{HANDLER}\",method=\"POST\"");
        let status = format!("{post},status=\"2xx\"");

        self.head("http_requests_total", "Requests by method, status and handler.", "counter");
        self.sample_if(used, "http_requests_total", &status, count);
        self.created(
            used,
            "http_requests",
            "Requests by method, status and handler.",
            &[status.as_str()],
        );
        for (name, help, bytes) in [
            ("http_request_size_bytes", "Size of requests by handler.", 2_048.0),
            ("http_response_size_bytes", "Size of answers by handler.", 0.0),
        ] {
            self.head(name, help, "summary");
            self.sample_if(used, &format!("{name}_count"), &handler, count);
            self.sample_if(used, &format!("{name}_sum"), &handler, count * bytes);
            self.created(used, name, help, &[handler.as_str()]);
        }

        let name = "http_request_duration_highr_seconds";
        let help = "How long answers took, in many buckets.";
        self.head(name, help, "histogram");
        let sum = HistogramUnit::Micros.base(answers.sum());
        for (edge, below) in edges(answers, HistogramUnit::Micros) {
            self.sample(&format!("{name}_bucket"), &format!("le=\"{edge}\""), below);
        }

        self.sample(&format!("{name}_count"), "", count);
        self.sample(&format!("{name}_sum"), "", sum);
        self.created(true, name, help, &[""]);

        let name = "http_request_duration_seconds";
        let help = "How long answers took, by handler.";
        self.head(name, help, "histogram");
        for (edge, below) in edges(answers, HistogramUnit::Micros) {
            let kept = ["0.1", "0.5", "1.0", "+Inf"].contains(&edge.as_str());
            let labels = format!("{handler},le=\"{edge}\",method=\"POST\"");
            self.sample_if(used && kept, &format!("{name}_bucket"), &labels, below);
        }

        self.sample_if(used, &format!("{name}_count"), &post, count);
        self.sample_if(used, &format!("{name}_sum"), &post, sum);
        self.created(used, name, help, &[post.as_str()]);
    }

    fn gauge(&mut self, name: &str, help: &str, samples: &[(&str, f64)]) {
        self.head(name, help, "gauge");
        for &(label, value) in samples {
            let labels = self.labels(label);
            self.sample(name, &labels, value);
        }
    }

    fn counter(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        let total = format!("{name}_total");
        self.head(&total, help, "counter");
        let labels: Vec<String> = samples.iter().map(|(label, _)| self.labels(label)).collect();
        for (labels, (_, value)) in labels.iter().zip(samples) {
            self.sample(&total, labels, *value as f64);
        }

        let borrowed: Vec<&str> = labels.iter().map(String::as_str).collect();
        self.created(true, name, help, &borrowed);
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        histogram: &EngineHistogram,
        unit: HistogramUnit,
    ) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (edge, below) in edges(histogram, unit) {
            let labels = self.labels(&format!("le=\"{edge}\""));
            self.sample(&bucket, &labels, below);
        }

        let labels = self.labels("");
        self.sample(&format!("{name}_count"), &labels, histogram.count() as f64);
        self.sample(&format!("{name}_sum"), &labels, unit.base(histogram.sum()));
        self.created(true, name, help, &[labels.as_str()]);
    }

    /// The creation time of a family's series, if the response has `_created` gauges.
    fn created(&mut self, present: bool, family: &str, help: &str, labels: &[&str]) {
        let Some(at) = self.created.clone() else { return };
        let name = format!("{family}_created");
        self.head(&name, help, "gauge");
        for labels in labels {
            self.text_if(present, &name, labels, &at);
        }
    }

    /// The shared labels plus one more, sorted by name as the client library sorts them.
    fn labels(&self, extra: &str) -> String {
        let mut labels = self.base.iter().map(String::as_str).collect::<Vec<_>>();
        labels.extend(Some(extra).filter(|extra| !extra.is_empty()));
        labels.sort_unstable();
        labels.join(",")
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        self.text_if(true, name, labels, &number(value));
    }

    fn sample_if(&mut self, present: bool, name: &str, labels: &str, value: f64) {
        self.text_if(present, name, labels, &number(value));
    }

    fn text_if(&mut self, present: bool, name: &str, labels: &str, value: &str) {
        if !present {
            return;
        }
        let _ = if labels.is_empty() {
            writeln!(self.text, "{name} {value}")
        } else {
            writeln!(self.text, "{name}{{{labels}}} {value}")
        };
    }
}

/// Returns the samples if `there` is true, otherwise none.
fn kept<'s>(there: bool, samples: &'s [(&'s str, f64)]) -> &'s [(&'s str, f64)] {
    if there { samples } else { &[] }
}

/// The label of each upper edge, `+Inf` last, with the observations up to it.
fn edges(histogram: &EngineHistogram, unit: HistogramUnit) -> impl Iterator<Item = (String, f64)> {
    let finite = histogram.edges().iter().map(move |&edge| number(unit.base(edge)));
    finite
        .chain(["+Inf".to_owned()])
        .zip(histogram.cumulative().map(|count| count as f64).collect::<Vec<_>>())
}

fn seconds(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Formats a number as the Python client library prints it. That is the shortest digits that give
/// the same number, with a fraction; from 1e6 on, an exponent of two digits.
fn number(value: f64) -> String {
    let plain = format!("{value:?}");
    let (digits, exponent) = plain.split_once('e').unwrap_or((&plain, ""));

    match digits.find('.') {
        Some(dot) if value > 0.0 && exponent.is_empty() && dot > 6 => {
            let mantissa = format!("{}.{}{}", &digits[..1], &digits[1..dot], &digits[dot + 1..]);
            format!("{}e+{:02}", mantissa.trim_end_matches(['0', '.']), dot - 1)
        }
        _ => plain,
    }
}
