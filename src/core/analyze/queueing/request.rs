//! The average request of a variant: its lengths, and the variation of its prompts.

use serde::{Deserialize, Serialize};

use crate::units::{Fraction, Tokens};

/// The variation of prompt lengths if it was not measured: that of an exponential distribution. It
/// is between the conversations (1.1 times the mean) and the code completions (0.8) of the Azure
/// traces of 2023.
pub const INPUT_VARIATION_DEFAULT: Fraction = Fraction::ONE;

/// The average shape of a variant's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanRequest {
    lengths: MeanLengths,
    input_variation: Fraction,
}

/// The measured mean lengths of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanLengths {
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens of the answer.
    pub output: Tokens,
}

// === impl MeanRequest ===

impl MeanRequest {
    /// A shape with at least one output token. A request without output has no latency between
    /// tokens.
    #[must_use]
    pub fn new(lengths: MeanLengths) -> Option<Self> {
        let input_variation = INPUT_VARIATION_DEFAULT;
        (lengths.output.tokens() >= 1.0).then_some(Self { lengths, input_variation })
    }

    /// The same shape with a measured variation of prompt lengths: the standard deviation as a
    /// share of the mean. Only percentiles depend on it.
    #[must_use]
    pub const fn with_input_variation(self, input_variation: Fraction) -> Self {
        Self { input_variation, ..self }
    }

    /// Tokens of the prompt.
    #[must_use]
    pub const fn input(self) -> Tokens {
        self.lengths.input
    }

    /// Tokens of the answer.
    #[must_use]
    pub const fn output(self) -> Tokens {
        self.lengths.output
    }

    /// The standard deviation of prompt lengths, as a share of the mean.
    #[must_use]
    pub const fn input_variation(self) -> Fraction {
        self.input_variation
    }
}
