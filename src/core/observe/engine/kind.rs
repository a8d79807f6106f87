//! The inference engines whose responses can be read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings;

/// Declares the engines by name, label and product. An image of a later engine may be built from one
/// of an earlier engine, and then runs the later engine.
macro_rules! engines {
    ($($(#[$doc:meta])* $name:ident = $label:literal, $product:literal;)*) => {
        /// An inference engine whose page we can read.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum Engine {
            $($(#[$doc])* $name,)*
        }

        impl Engine {
            /// Every engine.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$name),*];

            /// The engine as a label value. Images and commands of the engine contain it.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// All engines as users know them, as a choice such as `vLLM or SGLang`.
            #[must_use]
            pub fn choice() -> String {
                let [before @ .., last] = [$($product),*];
                format!("{} or {last}", before.join(", "))
            }
        }
    };
}

engines! {
    /// vLLM, V0 and V1, Python and Rust front ends.
    Vllm = "vllm", "vLLM";
    /// `SGLang`.
    Sglang = "sglang", "SGLang";
}

settings! { plain: Engine; }
