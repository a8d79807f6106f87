//! The engine arguments that determine an engine's capacity.
//!
//! [`EngineArguments`] holds the settings that bound the work of one engine: the size of its KV
//! cache, the number of sequences it runs at once and the number of tokens it computes in one step.
//! [`parse`] reads them from the containers of a pod, without running or fetching anything.
//!
//! # Domain
//!
//! A setting that is not written in the containers takes the engine's default if that default is a
//! constant. vLLM chooses two defaults by accelerator: tokens per step and sequences. In the server
//! they are 8192 and 1024 on large accelerators, and 2048 and 256 on others. Plimsoll uses 8192 and
//! 256. No capacity bound depends on these defaults: a deployment whose capacity is derived before
//!      its first run must set both values itself.

mod arguments;
mod explain;
mod flags;
mod serving;
mod syntax;
mod syntaxes;
mod unknown;
mod words;

#[cfg(test)]
mod tests;

use derive_more::Display;

use crate::analyze::engine_args::flags::Flags;
use crate::analyze::engine_args::unknown::unknown_words;
use crate::analyze::engine_args::words::CommandWord;
use crate::observe::engine::Engine;

pub use crate::analyze::engine_args::arguments::{
    EngineArguments, Execution, Generation, Parallelism, Prefill,
};
pub use crate::analyze::engine_args::serving::{ServedModel, served_model};
pub use crate::observe::template::Container;

/// The engine settings found in the containers of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedArguments {
    /// The arguments.
    pub arguments: EngineArguments,
    /// True if a container names an engine; otherwise the arguments are a guess.
    pub named: bool,
    /// Settings missing from the arguments: paths of files that could not be read, and values that
    /// contain references resolved only inside the running container.
    pub unread: Vec<String>,
}

/// The reason why an engine's arguments are unknown.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub enum UnknownArguments {
    /// No container names a known engine.
    #[display(
        "no container of the pod template names {} in its image or command",
        Engine::choice()
    )]
    NoEngine,
    /// The template does not contain the settings that come from these files and references.
    #[display(
        "the pod template does not show all engine settings: {} is only known inside the container",
        _0.join(", ")
    )]
    Elsewhere(Vec<String>),
}

/// The most unknown settings that an error names, and the most bytes of each.
const NAMED_MAX: [usize; 2] = [8, 100];

/// Reads the arguments of the engine among these containers. The result is complete or an error,
/// because an unread setting could be the one that bounds the capacity.
///
/// # Errors
///
/// No container names an engine, or some of its settings are not written in the containers.
pub fn read(containers: &[Container]) -> Result<EngineArguments, UnknownArguments> {
    let ParsedArguments { arguments, named, unread } = parse(containers);
    match (named, unread.is_empty()) {
        (false, _) => Err(UnknownArguments::NoEngine),
        (true, false) => {
            let [most, longest] = NAMED_MAX;
            let named = unread.into_iter().take(most).map(|mut text| {
                text.truncate(text.floor_char_boundary(longest));
                text
            });
            Err(UnknownArguments::Elsewhere(named.collect()))
        }
        (true, true) => Ok(arguments),
    }
}

/// Reads the arguments of the engine among these containers. Without containers, returns vLLM's
/// defaults.
///
/// Only containers that name an engine in their image or command count, so a sidecar's flags have
/// no effect. If no container names an engine, all containers count.
#[must_use]
pub fn parse(containers: &[Container]) -> ParsedArguments {
    let commands: Vec<Vec<Vec<CommandWord>>> = containers.iter().map(words::commands).collect();
    let lines = commands.iter().map(|it| words::words(it));
    let read: Vec<(&Container, Vec<String>)> = containers.iter().zip(lines).collect();
    // The names of later engines are more specific: their images may be built from vLLM's.
    let named = Engine::ALL.into_iter().rev().find(|engine| {
        read.iter().any(|(container, words)| (engine.syntax().is_named)(container, words))
    });
    let engine = named.unwrap_or(Engine::Vllm);

    let mut arguments = EngineArguments::default_of(engine);
    let mut flags = Flags::default();
    for ((container, words), commands) in read.iter().zip(&commands) {
        if named.is_some() && !names_engine(container, words) {
            continue;
        }

        if (engine.syntax().is_oldest)(container) {
            arguments.generation = Generation::V0;
            arguments.prefill = Prefill::Whole;
        }
        flags.take(&mut arguments, &container.files, words);
        flags.unread.extend(unknown_words(engine.syntax(), commands));
    }

    flags.conclude(&mut arguments);
    ParsedArguments { arguments, named: named.is_some(), unread: flags.unread }
}

fn names_engine(container: &Container, words: &[String]) -> bool {
    Engine::ALL.iter().any(|engine| (engine.syntax().is_named)(container, words))
}
