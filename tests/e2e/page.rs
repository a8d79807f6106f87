//! The page of a vLLM replica that carries a given load.

use std::fmt::Write as _;

/// The `Content-Type` of the page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// The model that every engine serves.
pub(crate) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// Requests that a full replica has in its batch.
const BATCH: f64 = 50.0;

/// Writes the page of a replica whose share of the load would fill `share` replicas. What does not
/// fit into the cache waits.
pub(crate) fn render(share: f64) -> String {
    let (usage, overflow) = (share.clamp(0.0, 1.0), (share - 1.0).max(0.0));
    let labels = format!("engine=\"0\",model_name=\"{MODEL}\"");
    let mut page = String::from(
        "# HELP process_start_time_seconds Start time of the process.\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7e+09\n",
    );
    let mut line = |text: std::fmt::Arguments<'_>| {
        page.write_fmt(text).expect("a String takes everything");
        page.push('\n');
    };
    for (name, kind, value) in [
        ("vllm:num_requests_running", "gauge", (usage * BATCH).round()),
        ("vllm:num_requests_waiting", "gauge", (overflow * BATCH).round()),
        ("vllm:kv_cache_usage_perc", "gauge", usage),
        ("vllm:prompt_tokens_total", "counter", 0.0),
        ("vllm:generation_tokens_total", "counter", 0.0),
        ("vllm:num_preemptions_total", "counter", 0.0),
    ] {
        line(format_args!("# HELP {name} A metric.\n# TYPE {name} {kind}"));
        line(format_args!("{name}{{{labels}}} {value:?}"));
    }
    let name = "vllm:request_success_total";
    line(format_args!("# HELP {name} A metric.\n# TYPE {name} counter"));
    for reason in ["stop", "length", "abort", "error"] {
        line(format_args!("{name}{{{labels},finished_reason=\"{reason}\"}} 0.0"));
    }
    let name = "vllm:cache_config_info";
    line(format_args!("# HELP {name} A metric.\n# TYPE {name} gauge"));
    line(format_args!("{name}{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"20000\"}} 1.0"));
    page
}
