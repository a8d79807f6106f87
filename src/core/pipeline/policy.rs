//! The configuration of the pipeline.

use std::collections::BTreeMap;

use crate::analyze::saturation::{Thresholds, TransitionRule};
use crate::decide::enforce::Behavior;
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::ScrapeRoute;
use crate::observe::record::{Horizon, RecordDetail};
use crate::pipeline::limits::policy::LimitPolicy;
use crate::pipeline::pools::policy::AdapterPool;
use crate::pipeline::sizing::policy::Sizing;
use crate::pipeline::zero::policy::Zero;
use crate::units::Seconds;

/// Age from which a list of replicas is too old to allow a scale-down. Discovery refreshes within
/// seconds, and a broken watch reconnects within one. A minute means that something is wrong.
pub(crate) const LISTING_STALE: f64 = 60.0;

/// The configuration that the pipeline's decisions depend on, in addition to its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Length of the window over which peaks, means and rates are taken.
    pub window: Seconds,
    /// Age from which the data of a scraped replica is too old to act on.
    pub stale_after: Seconds,
    /// The same age for replicas that another server scrapes.
    pub stale_after_relayed: Seconds,
    /// Thresholds of models without an override.
    pub thresholds: Thresholds,
    /// Thresholds of single models.
    pub overrides: BTreeMap<ModelKey, Thresholds>,
    /// What blocks new decisions while an earlier one is being carried out.
    pub transition: TransitionRule,
    /// The time for which an earlier decision keeps blocking if it is never actuated, until starts
    /// are measured.
    pub transition_patience: Seconds,
    /// Limits on the speed of published changes.
    pub behavior: Behavior,
    /// The analyzers that size the models. Without them, saturation changes the replicas by one at
    /// a time.
    pub sizing: Option<Sizing>,
    /// The models that may scale to zero, and the conditions for it.
    pub zero: Zero,
    /// The variants whose replicas serve several adapters each.
    pub pools: BTreeMap<VariantKey, AdapterPool>,
    /// The resources that all variants together may use.
    pub limits: LimitPolicy,
}

// === impl Policy ===

impl Policy {
    /// Returns true if sized variants scale up without step limits.
    #[must_use]
    pub fn grows_at_once(&self) -> bool {
        self.sizing.as_ref().is_some_and(Sizing::grows_at_once)
    }

    /// The age from which data that arrives this way is too old to act on.
    pub(crate) const fn stale_after(&self, route: ScrapeRoute) -> Seconds {
        match route {
            ScrapeRoute::Scraped => self.stale_after,
            ScrapeRoute::Relayed => self.stale_after_relayed,
        }
    }

    /// The durations that apply to scrapes that arrive this way.
    pub(crate) fn horizon(&self, route: ScrapeRoute) -> Horizon {
        let detail = match self.sizing {
            Some(_) => RecordDetail::Work,
            None => RecordDetail::Load,
        };
        Horizon { window: self.window, stale_after: self.stale_after(route), detail }
    }

    /// The thresholds that apply to a model.
    pub(crate) fn thresholds(&self, model: &ModelKey) -> &Thresholds {
        self.overrides.get(model).unwrap_or(&self.thresholds)
    }
}
