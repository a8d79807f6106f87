//! What the signals say of each model that may have no replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::collect::demand::{self, Heard, Listener, Signal};
use crate::collect::prometheus::Asker;
use crate::config::Config;
use crate::daemon::Common;
use crate::decide::zero::ZeroPolicy;
use crate::fleet::{Fleet, ModelKey, VariantSpec};
use crate::observe::Demand;
use crate::pipeline::zero::Zero;

/// The signals, and what they last said.
pub(crate) struct WakeSignals {
    wanted: watch::Sender<Arc<Vec<Signal>>>,
    heard: watch::Receiver<Arc<Heard>>,
    zero: Zero,
}

impl WakeSignals {
    /// Starts to read the signals of a configuration.
    pub(crate) fn start(config: &Config, common: &Common) -> anyhow::Result<Self> {
        let metrics = demand::Metrics::register(&common.registry)?;
        let (wanted, signals) = watch::channel(Arc::new(config.wake.clone()));
        let (outlet, heard) = watch::channel(Arc::default());
        let asker = config.prometheus.clone().map(Asker::new);
        let listener = Listener::new(common.clock, asker, metrics, outlet);
        common.tasks.spawn(listener.run(signals, common.tasks.clone(), common.stop.clone()));
        Ok(Self { wanted, heard, zero: config.policy.zero.clone() })
    }

    /// Goes on with those of another configuration.
    pub(crate) fn replace(&mut self, config: &Config) {
        self.zero = config.policy.zero.clone();
        self.wanted.send_replace(Arc::new(config.wake.clone()));
    }

    /// What each signal says of each model that may have no replicas, read or not.
    pub(crate) fn demand(&self, fleet: &Fleet) -> BTreeMap<ModelKey, Vec<Demand>> {
        let mut demand = BTreeMap::new();
        let signals = Arc::clone(&self.wanted.borrow());
        if signals.is_empty() {
            return demand;
        }
        let heard = Arc::clone(&self.heard.borrow());
        for model in fleet.variants().map(VariantSpec::model_key) {
            if self.zero.in_fleet(fleet, &model).policy == ZeroPolicy::KeepOne
                || demand.contains_key(&model)
            {
                continue;
            }
            let own = signals.iter().filter(|signal| signal.is_for(&model));
            let said = own.map(|signal| Demand {
                signal: signal.name.clone(),
                seen: heard
                    .get(&signal.name)
                    .and_then(|said| Some((said.amounts.of(&model.model)?, said.at))),
            });
            let said: Vec<Demand> = said.collect();
            demand.insert(model, said);
        }
        demand
    }
}
