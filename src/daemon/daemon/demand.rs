//! The requests that wake signals report: for each model that can scale to zero, every signal; for
//! each other model, the signals that count requests. The requests that the gateways of pools count.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::collect::demand::{
    self, Listener, ReadSettings, SignalReading, SignalReadings, SignalSettings,
};
use crate::collect::prometheus::Asker;
use crate::config::{Config, PolicySignals};
use crate::daemon::context::DaemonContext;
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::fleet::{Fleet, ModelKey, ModelName, VariantKey, VariantSpec};
use plimsoll_core::observe::routed::RoutedCounts;
use plimsoll_core::observe::{DemandSignal, SignalQuantity, SignalValue};
use plimsoll_core::pipeline::zero::Zero;

/// The wake signals and the gateways of pools, and their last reports.
pub(crate) struct WakeSignals {
    wanted: watch::Sender<Arc<Vec<ReadSettings>>>,
    signals: PolicySignals,
    heard: watch::Receiver<Arc<SignalReadings>>,
    zero: Zero,
}

impl WakeSignals {
    /// Starts to read the signals of a configuration.
    pub(crate) fn start(config: &Config, common: &DaemonContext) -> anyhow::Result<Self> {
        let metrics = demand::SignalMetrics::register(&common.registry)?;
        let (wanted, signals) = watch::channel(Arc::new(config.signals.reads()));
        let (outlet, heard) = watch::channel(Arc::default());
        let asker = config.prometheus.clone().map(Asker::new);
        let listener = Listener::new(common.clock, asker, metrics, outlet);
        common.tasks.spawn(listener.run(signals, common.tasks.clone(), common.stop.clone()));
        Ok(Self {
            wanted,
            signals: config.signals.clone(),
            heard,
            zero: config.policy.zero.clone(),
        })
    }

    /// Continues with the signals of another configuration.
    pub(crate) fn replace(&mut self, config: &Config) {
        self.zero = config.policy.zero.clone();
        self.signals = config.signals.clone();
        self.wanted.send_replace(Arc::new(config.signals.reads()));
    }

    /// The demand per model that each signal reports, or would report. Models that cannot scale to
    /// zero get only the signals that count requests.
    pub(crate) fn demand(&self, fleet: &Fleet) -> BTreeMap<ModelKey, Vec<DemandSignal>> {
        let signals = &self.signals.wake;
        if signals.is_empty() {
            return BTreeMap::new();
        }
        let heard = Arc::clone(&self.heard.borrow());
        said(signals, &heard, &self.zero, fleet)
    }

    /// The requests that the gateway of each pool has counted; `None` if it was never read.
    pub(crate) fn routed(&self) -> BTreeMap<VariantKey, Option<RoutedCounts>> {
        let heard = self.heard.borrow();
        let counted = self.signals.gateways.iter().map(|(pool, gateway)| {
            let reading = heard.get(&gateway.name);
            (pool.clone(), reading.and_then(|reading| reading.amounts.routed()).cloned())
        });

        counted.collect()
    }
}

fn said(
    signals: &[SignalSettings],
    heard: &SignalReadings,
    zero: &Zero,
    fleet: &Fleet,
) -> BTreeMap<ModelKey, Vec<DemandSignal>> {
    let mut demand = BTreeMap::new();
    for model in fleet.variants().map(VariantSpec::model_key) {
        if demand.contains_key(&model) {
            continue;
        }

        let keeps_one = zero.in_fleet(fleet, &model).policy == ZeroPolicy::KeepOne;
        let mut demands = Vec::new();
        for signal in signals.iter().filter(|signal| signal.is_for(&model)) {
            if keeps_one && signal.counts == SignalQuantity::Something {
                continue;
            }
            let said = heard.get(&signal.read.name);
            demands.push(DemandSignal {
                signal: signal.read.name.clone(),
                counts: signal.counts,
                seen: seen(said, &model.model),
                naming: signal.naming(&model.model, said),
            });
        }

        if !demands.is_empty() || !keeps_one {
            demand.insert(model, demands);
        }
    }

    demand
}

fn seen(said: Option<&SignalReading>, model: &ModelName) -> SignalValue {
    let Some(SignalReading { at, amounts }) = said else { return SignalValue::Never };
    amounts.of(model).map_or(SignalValue::NoNumber(*at), |amount| SignalValue::Number(amount, *at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::collect::demand::{MetricsEndpoint, SignalAmounts, SignalSource, UnnamedAmount};
    use crate::collect::scrape::ClientSettings;
    use crate::fixtures;
    use plimsoll_core::decide::zero::ZeroPolicy;
    use plimsoll_core::fleet::Namespace;
    use plimsoll_core::observe::Naming;
    use plimsoll_core::pipeline::zero::ZeroRule;
    use plimsoll_core::units::{Requests, Seconds};

    fn picker(models: Vec<ModelKey>) -> SignalSettings {
        let page = MetricsEndpoint {
            url: "http://epp/metrics".to_owned(),
            client: ClientSettings::default(),
        };
        let read = ReadSettings {
            name: "epp".to_owned(),
            source: SignalSource::EndpointPicker(page),
            interval: Duration::from_secs(1),
        };
        SignalSettings { read, models, namespaces: Vec::new(), counts: SignalQuantity::Requests }
    }

    fn query(name: &str, counts: SignalQuantity) -> SignalSettings {
        let read = ReadSettings {
            name: name.to_owned(),
            source: SignalSource::Query("1".to_owned()),
            interval: Duration::from_secs(1),
        };
        SignalSettings { read, models: Vec::new(), namespaces: Vec::new(), counts }
    }

    /// The naming by a picker whose page names this model, and by one without a page.
    fn namings(picker: &SignalSettings, name: &str) -> [Naming; 2] {
        let models = [(name.to_owned(), Requests::new(3.0))].into_iter().collect();
        let amounts = SignalAmounts::ByModel { models, rest: UnnamedAmount::Nothing };
        let at = Timestamp::UNIX_EPOCH;
        let heard: SignalReadings =
            [(picker.read.name.clone(), SignalReading { at, amounts })].into();

        let signals = std::slice::from_ref(picker);
        let fleet = Fleet::new([fixtures::variant("a")]);
        let model = fixtures::variant("a").model_key();
        [heard, SignalReadings::default()]
            .map(|heard| said(signals, &heard, &Zero::default(), &fleet)[&model][0].naming)
    }

    /// The signals that the model hears of, and whether each has a number.
    fn signals_heard(
        signals: &[SignalSettings],
        heard: &SignalReadings,
        zero: &Zero,
    ) -> Vec<(String, bool)> {
        let fleet = Fleet::new([fixtures::variant("a")]);
        let demand = said(signals, heard, zero, &fleet);
        let of_model = demand.get(&fixtures::variant("a").model_key());
        let demands = of_model.cloned().unwrap_or_default().into_iter();
        demands.map(|it| (it.signal, it.seen.number().is_some())).collect()
    }

    #[test]
    fn a_picker_speaks_of_the_models_that_it_names_and_of_those_that_are_listed_for_it() {
        let model = fixtures::variant("a").model_key();
        let name = model.model.as_str();

        assert_eq!(namings(&picker(vec![]), name), [Naming::Named, Naming::Unnamed]);
        assert_eq!(namings(&picker(vec![]), "another"), [Naming::Unnamed; 2]);
        assert_eq!(namings(&picker(vec![model.clone()]), "another"), [Naming::Named; 2]);
    }

    #[test]
    fn a_signal_for_namespaces_says_nothing_to_a_namesake_in_another() {
        let own = fixtures::variant("a");
        let mut foreign = own.clone();
        foreign.key.namespace = Namespace::new("other").unwrap();
        let fleet = Fleet::new([own.clone(), foreign.clone()]);

        let models = [(own.model.to_string(), Requests::new(3.0))].into_iter().collect();
        let amounts = SignalAmounts::ByModel { models, rest: UnnamedAmount::Nothing };
        let at = Timestamp::UNIX_EPOCH;
        let heard: SignalReadings = [("epp".to_owned(), SignalReading { at, amounts })].into();

        let namespaces = vec![own.key.namespace.clone()];
        let scoped = SignalSettings { namespaces, ..picker(vec![]) };
        let demand = said(&[scoped], &heard, &Zero::default(), &fleet);
        assert_eq!(demand.keys().collect::<Vec<_>>(), [&own.model_key()]);

        let everywhere = said(&[picker(vec![])], &heard, &Zero::default(), &fleet);
        assert_eq!(everywhere.len(), 2, "a page names no namespace");
    }

    #[test]
    fn a_model_that_stays_is_told_of_what_counts_requests_and_one_that_may_go_of_everything() {
        let signals =
            [query("rate", SignalQuantity::Something), query("queue", SignalQuantity::Requests)];
        let amounts = SignalAmounts::One(Requests::new(3.0));
        let at = Timestamp::UNIX_EPOCH;
        let heard: SignalReadings = [("queue".to_owned(), SignalReading { at, amounts })].into();
        let stays = signals_heard(&signals, &heard, &Zero::default());
        assert_eq!(stays, [("queue".to_owned(), true)]);

        let policy = ZeroPolicy::AfterIdle(Seconds::literal(60));
        let rule = ZeroRule { policy, ..Zero::default().default };
        let may = Zero { default: rule, ..Zero::default() };
        let may_go = signals_heard(&signals, &heard, &may);
        assert_eq!(may_go, [("rate".to_owned(), false), ("queue".to_owned(), true)]);

        let fleet = Fleet::new([fixtures::variant("a")]);
        let silent = said(&signals[..1], &heard, &Zero::default(), &fleet);
        assert!(silent.is_empty(), "nothing that counts requests is for a model that stays");
    }
}
