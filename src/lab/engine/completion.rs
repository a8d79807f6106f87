//! Completion requests and answers of `OpenAI`'s API, in the parts of vLLM 0.33 that clients use.
//!
//! The simulator has lengths and no texts. A prompt has a token per [`CHARACTERS_PER_TOKEN`]
//! characters, and every token of an answer is the same word.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

/// Characters per token of English text, by `OpenAI`'s rule of thumb.
const CHARACTERS_PER_TOKEN: usize = 4;

/// Tokens that a chat template adds to each message.
const TOKENS_PER_MESSAGE: usize = 4;

/// vLLM's default `max_tokens` of a text completion.
const TEXT_TOKENS: u32 = 16;

/// The text of a generated token.
const TOKEN: &str = " token";

/// The last event of a stream.
pub(crate) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// The endpoint of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionEndpoint {
    /// `/v1/completions`.
    Text,
    /// `/v1/chat/completions`.
    Chat,
}

/// A completion request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompletionRequest {
    pub(crate) endpoint: CompletionEndpoint,
    /// The name of the model; `None` for the one that is served.
    pub(crate) model: Option<String>,
    pub(crate) prompt_tokens: u32,
    /// The tokens to generate; `None` for a length like that of the background load.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) delivery: AnswerDelivery,
}

/// How an answer is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerDelivery {
    /// As one JSON object.
    Whole,
    /// As server-sent events.
    Streamed,
    /// As server-sent events, of which the last has the usage.
    StreamedWithUsage,
}

/// The parts of an answer that do not depend on its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompletionAnswer {
    pub(crate) endpoint: CompletionEndpoint,
    pub(crate) id: u64,
    /// The time of the request, in seconds since the epoch.
    pub(crate) created: i64,
    pub(crate) model: String,
    pub(crate) prompt_tokens: u32,
    pub(crate) ending: AnswerEnding,
}

/// The reason for the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerEnding {
    /// It has `max_tokens` tokens.
    Length,
    /// The model ended it.
    Stop,
}

/// A request body, except for the keys that the simulator ignores.
#[derive(Deserialize)]
struct CompletionBody {
    model: Option<String>,
    prompt: Option<PromptBody>,
    messages: Option<Vec<MessageBody>>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    n: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<StreamOptionsBody>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PromptBody {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
struct MessageBody {
    content: Option<ContentBody>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ContentBody {
    Text(String),
    Parts(Vec<ContentPartBody>),
}

#[derive(Deserialize)]
struct ContentPartBody {
    text: Option<String>,
}

#[derive(Deserialize)]
struct StreamOptionsBody {
    include_usage: Option<bool>,
}

// === impl CompletionRequest ===

impl CompletionRequest {
    /// Reads a request body.
    ///
    /// # Errors
    ///
    /// The body is not a request that this engine answers, with the reason.
    pub(crate) fn read(endpoint: CompletionEndpoint, bytes: &[u8]) -> Result<Self, String> {
        let body: CompletionBody = serde_json::from_slice(bytes)
            .map_err(|error| format!("the body is not a completion request: {error}"))?;
        if body.n.is_some_and(|answers| answers != 1) {
            return Err("n must be 1: this engine gives one answer per request".to_owned());
        }

        let tokens = match (endpoint, &body.prompt, &body.messages) {
            (CompletionEndpoint::Text, Some(prompt), _) => prompt.tokens(),
            (CompletionEndpoint::Text, None, _) => return Err("prompt is required".to_owned()),
            (CompletionEndpoint::Chat, _, Some(messages)) => {
                messages.iter().map(MessageBody::tokens).sum()
            }
            (CompletionEndpoint::Chat, _, None) => return Err("messages is required".to_owned()),
        };

        let default = match endpoint {
            CompletionEndpoint::Text => Some(TEXT_TOKENS),
            CompletionEndpoint::Chat => None,
        };
        let max_tokens = body.max_completion_tokens.or(body.max_tokens).or(default);
        if max_tokens == Some(0) {
            return Err("max_tokens must be at least 1".to_owned());
        }

        let has_usage = body.stream_options.is_some_and(|it| it.include_usage == Some(true));
        Ok(Self {
            endpoint,
            model: body.model,
            prompt_tokens: u32::try_from(tokens.max(1)).unwrap_or(u32::MAX),
            max_tokens,
            delivery: match (body.stream, has_usage) {
                (None | Some(false), _) => AnswerDelivery::Whole,
                (Some(true), false) => AnswerDelivery::Streamed,
                (Some(true), true) => AnswerDelivery::StreamedWithUsage,
            },
        })
    }
}

impl PromptBody {
    fn tokens(&self) -> usize {
        match self {
            Self::Text(text) => tokens(text),
            Self::Tokens(tokens) => tokens.len(),
        }
    }
}

impl MessageBody {
    fn tokens(&self) -> usize {
        let content = match &self.content {
            None => 0,
            Some(ContentBody::Text(text)) => tokens(text),
            Some(ContentBody::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_deref()).map(tokens).sum()
            }
        };

        content + TOKENS_PER_MESSAGE
    }
}

fn tokens(text: &str) -> usize {
    text.chars().count().div_ceil(CHARACTERS_PER_TOKEN)
}

// === impl CompletionAnswer ===

impl CompletionAnswer {
    /// The whole answer with this many tokens.
    pub(crate) fn whole(&self, tokens: u32) -> Value {
        let text = TOKEN.repeat(tokens as usize);
        let (object, choice) = match self.endpoint {
            CompletionEndpoint::Text => ("text_completion", json!({"text": text})),
            CompletionEndpoint::Chat => {
                ("chat.completion", json!({"message": {"role": "assistant", "content": text}}))
            }
        };

        let mut answer = self.object(object, choice, Some(self.ending));
        answer["usage"] = self.usage(tokens);
        answer
    }

    /// The first event of a stream, if the endpoint has one before the first token.
    pub(crate) fn first_event(&self) -> Option<Bytes> {
        match self.endpoint {
            CompletionEndpoint::Text => None,
            CompletionEndpoint::Chat => {
                let choice = json!({"delta": {"role": "assistant", "content": ""}});
                Some(event(&self.object("chat.completion.chunk", choice, None)))
            }
        }
    }

    /// The event with further tokens; with the end of the answer if it `is_complete`.
    pub(crate) fn event(&self, tokens: u32, is_complete: bool) -> Bytes {
        let text = TOKEN.repeat(tokens as usize);
        let (object, choice) = match self.endpoint {
            CompletionEndpoint::Text => ("text_completion", json!({"text": text})),
            CompletionEndpoint::Chat => {
                ("chat.completion.chunk", json!({"delta": {"content": text}}))
            }
        };
        event(&self.object(object, choice, is_complete.then_some(self.ending)))
    }

    /// The event with the usage of the whole answer.
    pub(crate) fn usage_event(&self, tokens: u32) -> Bytes {
        let object = match self.endpoint {
            CompletionEndpoint::Text => "text_completion",
            CompletionEndpoint::Chat => "chat.completion.chunk",
        };

        let mut last = self.object(object, json!({}), None);
        last["choices"] = json!([]);
        last["usage"] = self.usage(tokens);
        event(&last)
    }

    fn object(&self, object: &str, mut choice: Value, ending: Option<AnswerEnding>) -> Value {
        choice["index"] = json!(0);
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(ending.map(AnswerEnding::label));

        let prefix = match self.endpoint {
            CompletionEndpoint::Text => "cmpl",
            CompletionEndpoint::Chat => "chatcmpl",
        };

        json!({
            "id": format!("{prefix}-{}", self.id), "object": object, "created": self.created,
            "model": self.model, "choices": [choice],
        })
    }

    fn usage(&self, tokens: u32) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": u64::from(self.prompt_tokens) + u64::from(tokens),
        })
    }
}

impl AnswerEnding {
    const fn label(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
        }
    }
}

fn event(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: CompletionEndpoint, body: &str) -> Result<CompletionRequest, String> {
        CompletionRequest::read(endpoint, body.as_bytes())
    }

    #[test]
    fn prompts_of_all_kinds_have_a_length() {
        let text = CompletionEndpoint::Text;
        let chat = CompletionEndpoint::Chat;
        for (endpoint, body, tokens) in [
            (text, r#"{"prompt": "abcdefgh"}"#, 2),
            (text, r#"{"prompt": ""}"#, 1),
            (text, r#"{"prompt": [1, 2, 3]}"#, 3),
            (chat, r#"{"messages": [{"role": "user", "content": "abcde"}]}"#, 6),
            (chat, r#"{"messages": [{"content": [{"type": "text", "text": "abcd"}]}]}"#, 5),
            (chat, r#"{"messages": [{"role": "assistant", "content": null}]}"#, 4),
        ] {
            assert_eq!(read(endpoint, body).unwrap().prompt_tokens, tokens, "{body}");
        }
    }

    #[test]
    fn the_length_of_an_answer_is_the_clients_and_its_default_that_of_the_endpoint() {
        for (endpoint, body, tokens) in [
            (CompletionEndpoint::Text, r#"{"prompt": "a", "max_tokens": 5}"#, Some(5)),
            (CompletionEndpoint::Text, r#"{"prompt": "a"}"#, Some(16)),
            (CompletionEndpoint::Chat, r#"{"messages": []}"#, None),
            (CompletionEndpoint::Chat, r#"{"messages": [], "max_completion_tokens": 7}"#, Some(7)),
        ] {
            assert_eq!(read(endpoint, body).unwrap().max_tokens, tokens, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_answered_is_refused_with_the_reason() {
        for (endpoint, body, reason) in [
            (CompletionEndpoint::Text, "{", "not a completion request"),
            (CompletionEndpoint::Text, "{}", "prompt is required"),
            (CompletionEndpoint::Chat, r#"{"prompt": "a"}"#, "messages is required"),
            (CompletionEndpoint::Text, r#"{"prompt": "a", "n": 2}"#, "n must be 1"),
            (CompletionEndpoint::Text, r#"{"prompt": "a", "max_tokens": 0}"#, "at least 1"),
            (CompletionEndpoint::Text, r#"{"prompt": "a", "max_tokens": -1}"#, "invalid value"),
        ] {
            let refusal = read(endpoint, body).unwrap_err();
            assert!(refusal.contains(reason), "{body}: {refusal}");
        }
    }
}
