//! The names under which an engine serves its model, and the port of its HTTP server.
//!
//! # Model
//!
//! The first of these that the command line has is the model's name in requests and metrics: the
//! first value of `--served-model-name`, `--model` or `--model-path`, and the word after `serve`.

use crate::analyze::engine_args::{names_engine, words};
use crate::observe::template::Container;

/// The flags with a model's name, without their dashes, in the order of their precedence.
const MODELS: [&str; 3] = ["served-model-name", "model", "model-path"];

/// The flag with the port.
const PORT: &str = "port";

/// Other flags that have a value and set nothing about capacity.
const VALUED: [&str; 10] = [
    "host",
    "tokenizer",
    "tokenizer-path",
    "download-dir",
    "revision",
    "dtype",
    "quantization",
    "api-key",
    "chat-template",
    "tool-call-parser",
];

/// The model and the port of an engine, as far as its command line has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedModel {
    /// The model's name in requests and metrics.
    pub model: Option<String>,
    /// The port of the HTTP server.
    pub port: Option<u16>,
}

/// Returns the model and the port of the engine among these containers; `None` if none of them
/// names an engine. A value that is known only inside the running container counts as absent.
#[must_use]
pub fn served_model(containers: &[Container]) -> Option<ServedModel> {
    let engine = containers.iter().find_map(|container| {
        let words = words::words(&words::commands(container));
        names_engine(container, &words).then_some(words)
    })?;

    let flagged = MODELS.iter().find_map(|flag| value(&engine, flag));
    let model = flagged.or_else(|| positional(&engine)).filter(|word| is_known(word));
    let port = value(&engine, PORT).and_then(|word| word.parse().ok());

    Some(ServedModel { model: model.map(str::to_owned), port })
}

/// Returns true if a flag, without its dashes, has a value and sets nothing about capacity.
pub(super) fn is_valued(flag: &str) -> bool {
    MODELS.contains(&flag) || flag == PORT || VALUED.contains(&flag)
}

/// Returns the last value of a flag, as the word behind it or after `=`.
fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let pairs = words.windows(2).filter(|pair| behind_flag(&pair[0], flag) == Some(""));
    let behind = pairs.map(|pair| pair[1].as_str());
    let joined = words.iter().filter_map(|word| behind_flag(word, flag)?.strip_prefix('='));

    behind.chain(joined).rfind(|word| !word.starts_with('-'))
}

/// Returns the text of a word behind this flag.
fn behind_flag<'a>(word: &'a str, flag: &str) -> Option<&'a str> {
    word.strip_prefix("--")?.strip_prefix(flag)
}

/// Returns the word after `serve`, or the first word if it is no flag and no program.
fn positional(words: &[String]) -> Option<&str> {
    let after = words.windows(2).find(|pair| pair[0] == "serve").map(|pair| pair[1].as_str());
    let model =
        after.or_else(|| words.first().filter(|word| word.contains('/')).map(String::as_str));
    model.filter(|word| !word.starts_with('-') && !word.starts_with('/'))
}

fn is_known(word: &str) -> bool {
    !word.is_empty() && !word.contains(['$', '`'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(image: &str, words: &[&str]) -> Option<ServedModel> {
        let args = words.iter().map(|word| (*word).to_owned()).collect();
        let container = Container { image: image.to_owned(), args, ..Container::default() };
        served_model(&[Container { image: "envoy".to_owned(), ..Container::default() }, container])
    }

    fn served_as(model: Option<&str>, port: Option<u16>) -> ServedModel {
        ServedModel { model: model.map(str::to_owned), port }
    }

    #[test]
    fn the_name_that_requests_use_comes_before_the_path_of_the_model() {
        for (words, want) in [
            (&["--model", "org/m", "--port", "9000"][..], served_as(Some("org/m"), Some(9000))),
            (&["--model=org/m", "--served-model-name", "m", "n"], served_as(Some("m"), None)),
            (&["org/m", "--max-num-seqs", "8"], served_as(Some("org/m"), None)),
            (&["serve", "org/m", "--port=8001"], served_as(Some("org/m"), Some(8001))),
            (&["sh", "-c", "vllm serve org/m --port 8002"], served_as(Some("org/m"), Some(8002))),
            (&["--model", "$(MODEL)"], served_as(None, None)),
            (&["--served-model-name", "--model", "org/m"], served_as(Some("org/m"), None)),
            (&["/bin/start"], served_as(None, None)),
        ] {
            assert_eq!(served("vllm/vllm-openai:v0.11", words), Some(want), "{words:?}");
        }
        assert_eq!(
            served("lmsysorg/sglang:v0.5", &["--model-path", "org/m"]),
            Some(served_as(Some("org/m"), None))
        );
        assert_eq!(served("nginx", &["--model", "org/m"]), None);
    }
}
