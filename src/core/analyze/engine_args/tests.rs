use std::num::NonZeroU32;

use super::*;
use crate::units::{Requests, Tokens};

fn read(image: &str, words: &[&str]) -> EngineArguments {
    parse(&[container(image, words)]).arguments
}

fn container(image: &str, words: &[&str]) -> Container {
    Container {
        image: image.to_owned(),
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        ..Container::default()
    }
}

fn vllm(words: &[&str]) -> EngineArguments {
    read("vllm/vllm-openai:v0.33.0", words)
}

fn tokens(number: f64) -> Tokens {
    Tokens::new(number).unwrap()
}

#[test]
fn a_script_is_read_as_a_shell_would_split_it() {
    let script = "set -e\n# --max-num-seqs 1\nexport LEN=4096; exec vllm serve m \\\n\t--max-num-seqs \
                  '7' --max-model-len \"${LEN}\" --block-size ${BLOCK:-32} | tee log";
    let arguments = vllm(&["/bin/bash", "-ec", script]);
    assert_eq!(arguments.sequences, Requests::new(7.0));
    assert_eq!(arguments.context, Some(tokens(4096.0)));
    assert_eq!(arguments.block_size, tokens(32.0));
}

#[test]
fn references_to_the_environment_are_expanded_and_escaped_ones_are_not() {
    let mut pod = container("vllm", &["--max-num-seqs", "$(SEQS)", "--block-size=$$(SEQS)"]);
    pod.environment.insert("SEQS".to_owned(), "11".to_owned());
    let arguments = parse(&[pod]).arguments;
    assert_eq!(arguments.sequences, Requests::new(11.0));
    assert_eq!(arguments.block_size, tokens(16.0));
}

#[test]
fn a_file_of_arguments_is_read_and_the_command_line_wins() {
    let mut pod = container("vllm", &["--max-num-seqs", "8", "--config", "/etc/vllm.yaml"]);
    let parsed = parse(std::slice::from_ref(&pod));
    assert_eq!(parsed.unread, ["/etc/vllm.yaml"]);

    let text =
        "max-num-seqs: 99 # more\nmax_model_len: \"8k\"\nlora-modules:\n  - max-num-seqs: 3\n";
    pod.files.insert("/etc/vllm.yaml".to_owned(), text.to_owned());
    let parsed = parse(&[pod]);
    assert!(parsed.unread.is_empty());
    assert_eq!(parsed.arguments.sequences, Requests::new(8.0));
    assert_eq!(parsed.arguments.context, Some(tokens(8000.0)));

    let mut pod = container("vllm", &["--config", "./vllm.yaml"]);
    pod.files.insert("vllm.yaml".to_owned(), text.to_owned());
    let parsed = parse(&[pod]);
    assert_eq!(parsed.arguments.sequences, Requests::new(99.0));
}

fn drafts_of_file(text: &str) -> Option<u32> {
    let mut pod = container("vllm", &["--config=/etc/vllm.yaml"]);
    pod.files.insert("/etc/vllm.yaml".to_owned(), text.to_owned());
    let parsed = parse(&[pod]);
    assert!(parsed.unread.is_empty());
    parsed.arguments.draft_tokens.map(NonZeroU32::get)
}

#[test]
fn what_a_file_has_below_a_key_is_read_as_on_the_command_line() {
    assert_eq!(
        drafts_of_file("speculative-config:\n  method: eagle\n  num_speculative_tokens: 3\n"),
        Some(3)
    );
    assert_eq!(drafts_of_file("speculative_config: {\"num_speculative_tokens\": 2}"), Some(2));
    assert_eq!(drafts_of_file("compilation-config:\n  num_speculative_tokens: 3\n"), None);
    assert_eq!(drafts_of_file("speculative-config: auto\n  num_speculative_tokens: 3\n"), None);
}

fn is_whole(words: &[&str]) -> bool {
    vllm(words).prefill == Prefill::Whole
}

#[test]
fn switches_can_be_off_and_take_no_word_after_them() {
    assert!(is_whole(&["--enable-chunked-prefill=false"]));
    assert!(is_whole(&["--no-enable-chunked-prefill"]));
    assert!(!is_whole(&["--no-enable-chunked-prefill", "--enable-chunked-prefill"]));
    assert_eq!(vllm(&["--enforce-eager", "m"]).execution, Execution::Eager);
}

fn gpus(arguments: &EngineArguments) -> u32 {
    let Parallelism { tensor, pipeline, data } = arguments.parallel;
    tensor.get() * pipeline.get() * data.get()
}

#[test]
fn every_way_to_spread_an_engine_counts_its_gpus() {
    assert_eq!(gpus(&vllm(&["-tp", "4", "-pp", "2", "--data-parallel-size=2"])), 16);
    assert_eq!(gpus(&vllm(&["-tp", "2", "-dp", "16", "--data-parallel-size-local", "4"])), 8);

    let attention = ["--tp", "8", "--dp", "4", "--enable-dp-attention"];
    let shared = read("lmsysorg/sglang:v0.5", &attention);
    assert_eq!((gpus(&shared), shared.parallel.data.get()), (8, 4));
}

/// The sequences and the tokens of a step of one rank of `SGLang`.
fn limits(words: &[&str]) -> (Option<f64>, Option<f64>) {
    let arguments = read("lmsysorg/sglang:v0.5", words);
    (arguments.sequences.map(Requests::requests), arguments.step_tokens.map(Tokens::tokens))
}

#[test]
fn ranks_that_share_attention_divide_the_limits_of_the_engine() {
    let spread = ["--tp", "8", "--dp", "8", "--max-running-requests", "256"];
    let chunked = [&spread[..], &["--chunked-prefill-size", "65536"]].concat();
    let shared = [&chunked[..], &["--enable-dp-attention"]].concat();
    assert_eq!(limits(&shared), (Some(32.0), Some(8192.0)));
    assert_eq!(limits(&chunked), (Some(256.0), Some(65_536.0)));

    let few = ["--tp", "8", "--dp", "8", "--enable-dp-attention", "--max-running-requests", "4"];
    assert_eq!(limits(&few), (Some(1.0), None));
}

#[test]
fn tokens_of_prompts_bound_a_step_only_without_chunks() {
    let prompts = ["--max-prefill-tokens", "32768"];
    assert_eq!(limits(&prompts).1, None, "the engine has a default chunk");
    let whole = [&prompts[..], &["--chunked-prefill-size", "-1"]].concat();
    assert_eq!(limits(&whole).1, Some(32_768.0));
    let both = [&prompts[..], &["--chunked-prefill-size", "2048"]].concat();
    assert_eq!(limits(&both).1, Some(2048.0));

    let shared = [&whole[..], &["--tp", "8", "--dp", "8", "--enable-dp-attention"]].concat();
    assert_eq!(limits(&shared).1, Some(32_768.0), "of each rank");
}

fn drafts(words: &[&str]) -> Option<u32> {
    vllm(words).draft_tokens.map(NonZeroU32::get)
}

#[test]
fn drafts_are_read_from_every_way_to_write_them() {
    let json = "{\"method\": \"eagle\", \"num_speculative_tokens\": 3}";
    assert_eq!(drafts(&["--speculative-config", json]), Some(3));
    assert_eq!(drafts(&["--speculative-config.num_speculative_tokens", "2"]), Some(2));
    assert_eq!(drafts(&[]), None);
}

#[test]
fn a_rank_of_a_group_is_an_engine_of_its_own() {
    let spread = ["--data-parallel-size", "16", "--data-parallel-rank", "3"];
    assert_eq!(vllm(&spread).parallel.data.get(), 1);
    let local = ["--data-parallel-size", "16", "--data-parallel-size-local", "8"];
    assert_eq!(vllm(&local).parallel.data.get(), 8);
}

fn told(image: &str, words: &[&str]) -> Result<EngineArguments, UnknownArguments> {
    super::read(&[container(image, words)])
}

fn elsewhere(setting: &str) -> Result<EngineArguments, UnknownArguments> {
    Err(UnknownArguments::Elsewhere(vec![setting.to_owned()]))
}

#[test]
fn what_is_set_elsewhere_is_said_and_nothing_is_guessed() {
    assert_eq!(told("nginx", &["--max-num-seqs", "1"]), Err(UnknownArguments::NoEngine));
    assert_eq!(told("vllm", &["--max-num-seqs", "$(SEQS)"]), elsewhere("$(SEQS)"));
    assert_eq!(told("vllm", &["--config", "/etc/engine.yaml"]), elsewhere("/etc/engine.yaml"));

    let script = ["sh", "-c", "vllm serve m --max-num-seqs $(nproc)"];
    assert!(matches!(told("vllm", &script), Err(UnknownArguments::Elsewhere(_))));
    assert!(told("vllm", &["--model", "$(MODEL)"]).is_ok(), "it bounds nothing");

    assert_eq!(
        told("vllm", &["--max-num-seqs", "$(SEQS)"]).unwrap_err().to_string(),
        "the pod template does not show all engine settings: $(SEQS) is only known inside the container"
    );
    assert_eq!(
        told("vllm", &["--max-num-seqs", "64", "--dp", "2"]).unwrap().to_string(),
        "vllm, 64 sequences at once, 16 tokens per block, 0.9 of the memory, 2 data-parallel ranks"
    );
}

#[test]
fn whole_arguments_that_are_set_elsewhere_are_noticed() {
    let script = |text: &str| told("vllm/vllm-openai", &["sh", "-c", text]);
    for (text, unknown) in [
        ("vllm serve m $EXTRA_ARGS", "$EXTRA_ARGS"),
        ("vllm serve ${VLLM_ARGS}", "${VLLM_ARGS}"),
        ("vllm serve m --trust-remote-code $EXTRA_ARGS", "$EXTRA_ARGS"),
        ("vllm serve m --enforce-eager \"$MORE\"", "$MORE"),
        (
            "vllm serve m $(cat /etc/args | tr '\\n' ' ') --port 80",
            "$(cat /etc/args | tr '\\n' ' ')",
        ),
        ("python3 -m vllm.entrypoints.openai.api_server `cat args`", "`cat args`"),
        ("A=(m $B); vllm serve ${A[@]}", "$B"),
        ("vllm serve \"${A[@]}\"", "${A[@]}"),
        ("cd /work && ./start-vllm.sh --max-num-seqs 64", "./start-vllm.sh"),
    ] {
        assert_eq!(script(text), elsewhere(unknown), "{text}");
    }
    for text in [
        "echo $HOSTNAME; vllm serve \"$MODEL\" --port $PORT --api-key $KEY",
        "vllm serve $MODEL --tensor-parallel-size 2",
        "mkdir -p $(dirname $LOG)\nvllm serve m 2>&1 | tee $LOG",
        "./download.sh && exec /opt/venv/bin/python -m vllm.entrypoints.openai.api_server --model=$M",
    ] {
        assert!(script(text).is_ok(), "{text}: {:?}", script(text));
    }

    assert_eq!(told("vllm", &["/scripts/start-vllm.sh"]), elsewhere("/scripts/start-vllm.sh"));
    assert_eq!(told("vllm", &["bash", "/etc/run", "-x"]), elsewhere("/etc/run"));
    assert_eq!(told("vllm", &["--model", "m", "$(EXTRA)"]), elsewhere("$(EXTRA)"));

    let many = vec![format!("${{{}}}", "é".repeat(300)); 1000];
    let words: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(told("vllm", &words).unwrap_err().to_string().len() < 1000);
}

#[test]
fn variables_and_the_scripts_own_arguments_are_split_as_a_shell_does() {
    let sequences = |command: &[&str], extra: &str| {
        let mut pod = container("vllm", command);
        pod.environment.insert("EXTRA".to_owned(), extra.to_owned());
        super::read(&[pod]).unwrap().sequences.map(Requests::requests)
    };
    let unquoted = ["sh", "-c", "vllm serve m $EXTRA --port 80"];
    assert_eq!(sequences(&unquoted, "--max-num-seqs 64"), Some(64.0));
    assert_eq!(sequences(&unquoted, " --max-num-seqs=65 --block-size 32 "), Some(65.0));
    assert_eq!(sequences(&unquoted, ""), None);
    let quoted = ["sh", "-c", "vllm serve m \"$EXTRA\""];
    assert_eq!(sequences(&quoted, "--max-num-seqs 64"), None, "one word");

    let own = |script: &str| sequences(&["sh", "-c", script, "--", "m", "--max-num-seqs", "9"], "");
    assert_eq!(own("exec vllm serve \"$@\""), Some(9.0));
    assert_eq!(own("vllm serve $@ --port 80"), Some(9.0));
    assert_eq!(own("vllm serve m"), None);
    assert_eq!(own("A=(m)\nA+=(--max-num-seqs 7\n --port 80)\nvllm serve \"${A[@]}\""), Some(7.0));
}

#[test]
fn text_that_would_grow_without_end_is_unknown() {
    let doubling = format!("A=aaaaaaaaaaaaaaaa; {} vllm serve m $A", "A=$A$A; ".repeat(60));
    assert!(told("vllm", &["sh", "-c", &doubling]).is_err());
    let listing = format!("{} vllm serve m ${{A[@]}}", "A+=(${A[@]} ${A[@]} a);".repeat(60));
    assert!(told("vllm", &["sh", "-c", &listing]).is_err());
    for part in ["A=(", "$(", "${", "`", "\"", "(", "$A", "${A[@]}", "$@"] {
        let _ = told("vllm", &["sh", "-c", &part.repeat(100_000), "sh", "a", "b"]);
        let _ = told("vllm", &[&part.repeat(100_000)]);
    }
}

fn context(value: &str) -> Option<f64> {
    vllm(&["--max-model-len", value]).context.map(Tokens::tokens)
}

#[test]
fn numbers_may_have_a_suffix() {
    assert_eq!(context("8K"), Some(8192.0));
    assert_eq!(context("25.6k"), Some(25_600.0));
    assert_eq!(context("auto"), None);
    assert_eq!(context("-1"), None);
    assert_eq!(context("9999999999999999999K"), None);
}

#[test]
fn a_sidecars_flags_set_nothing() {
    let sidecar = container("envoy", &["--max-num-seqs", "1"]);
    let engine = container("vllm", &["--max-num-seqs", "64"]);
    let arguments = parse(&[engine, sidecar]).arguments;
    assert_eq!(arguments.sequences, Requests::new(64.0));
}

#[test]
fn whatever_is_written_is_read_without_failing() {
    for script in ["${", "$", "'", "\"\\", "$(", "${:-}", "a=", "=", "\\", "-", "--", "--=", "$$$"]
    {
        let _ = vllm(&["sh", "-c", script]);
        let _ = vllm(&[script, "--speculative-config", script, "--max-model-len", script]);
    }
}
