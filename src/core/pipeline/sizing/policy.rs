//! The voting analyzers and their policies.

use std::sync::Arc;

use crate::analyze::analyzers::{Analyzer, each_analyzer};
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::policy::{ScaleDownWindow, Steps};
use crate::decide::optimize;
use crate::units::Seconds;

/// The default of [`Sizing::patience`].
pub const PATIENCE: Seconds = Seconds::literal(300);

macro_rules! sizing {
    ($($(#[$doc:meta])* $Name:ident $word:ident $Policy:ident,)*) => {
        /// The voting analyzers and their policies.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Sizing {
            /// The analyzers that vote, each listed once.
            pub analyzers: Vec<Analyzer>,
            $($(#[$doc])* pub $word: crate::analyze::$word::$Policy,)*
            /// Capacity cards: coefficients learned elsewhere from engines like these.
            pub cards: Arc<[Arc<Card>]>,
            /// The policy of the search for the cheapest replicas.
            pub optimizer: optimize::OptimizerPolicy,
            /// Age from which the last report of an analyzer is ignored.
            pub patience: Seconds,
        }

        impl Default for Sizing {
            fn default() -> Self {
                Self {
                    analyzers: vec![Analyzer::Foresight],
                    $($word: Default::default(),)*
                    cards: Arc::default(),
                    optimizer: optimize::OptimizerPolicy::default(),
                    patience: PATIENCE,
                }
            }
        }
    };
}
each_analyzer!(sizing);

// === impl Sizing ===

impl Sizing {
    /// The time during which held desired replicas must not jitter on a scale-down. `None` unless
    /// `foresight` decides alone and its hold replaces the stabilization window.
    pub(crate) fn holds_alone(&self) -> Option<Seconds> {
        let hold =
            self.foresight.hold.filter(|it| it.replaces_window == ScaleDownWindow::Replaced)?;
        self.is_foreseen().then_some(hold.jitter)
    }

    /// Returns true if sized variants scale up without step limits: `foresight` decides alone, and
    /// no scale-up policies are configured.
    pub(crate) fn grows_at_once(&self) -> bool {
        self.is_foreseen() && self.foresight.replaces_steps == Steps::Unlimited
    }

    /// Returns true if `foresight` decides alone.
    pub(crate) fn is_foreseen(&self) -> bool {
        self.analyzers == [Analyzer::Foresight]
    }
}
