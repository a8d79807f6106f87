//! What the signals say of each model that may have no replicas, and how many requests wait for
//! each other one.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::collect::demand::{self, Heard, Listener, Said, Signal};
use crate::collect::prometheus::Asker;
use crate::config::Config;
use crate::daemon::Common;
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::fleet::{Fleet, ModelKey, ModelName, VariantSpec};
use plimsoll_core::observe::{Counts, Demand, Seen};
use plimsoll_core::pipeline::zero::Zero;

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

    /// What each signal says of each model that may have no replicas, read or not; of other models,
    /// those that count requests.
    pub(crate) fn demand(&self, fleet: &Fleet) -> BTreeMap<ModelKey, Vec<Demand>> {
        let signals = Arc::clone(&self.wanted.borrow());
        if signals.is_empty() {
            return BTreeMap::new();
        }
        let heard = Arc::clone(&self.heard.borrow());
        said(&signals, &heard, &self.zero, fleet)
    }
}

fn said(
    signals: &[Signal],
    heard: &Heard,
    zero: &Zero,
    fleet: &Fleet,
) -> BTreeMap<ModelKey, Vec<Demand>> {
    let mut demand = BTreeMap::new();
    for model in fleet.variants().map(VariantSpec::model_key) {
        if demand.contains_key(&model) {
            continue;
        }
        let keeps_one = zero.in_fleet(fleet, &model).policy == ZeroPolicy::KeepOne;
        let matters = |signal: &&Signal| !keeps_one || signal.counts != Counts::Something;
        let own = signals.iter().filter(|signal| signal.is_for(&model)).filter(matters);
        let said = own.map(|signal| {
            let said = heard.get(&signal.name);
            Demand {
                signal: signal.name.clone(),
                counts: signal.counts,
                seen: seen(said, &model.model),
                naming: signal.naming(&model.model, said),
            }
        });
        let said: Vec<Demand> = said.collect();
        if !said.is_empty() || !keeps_one {
            demand.insert(model, said);
        }
    }
    demand
}

fn seen(said: Option<&Said>, model: &ModelName) -> Seen {
    let Some(Said { at, amounts }) = said else { return Seen::Never };
    amounts.of(model).map_or(Seen::NoNumber(*at), |amount| Seen::Number(amount, *at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::collect::demand::{Amounts, Page, Rest, Source};
    use crate::collect::scrape::Client;
    use crate::fixtures;
    use plimsoll_core::decide::zero::ZeroPolicy;
    use plimsoll_core::observe::Naming;
    use plimsoll_core::pipeline::zero::Rule;
    use plimsoll_core::units::{Requests, Seconds};

    #[test]
    fn a_picker_speaks_of_the_models_that_it_names_and_of_those_that_are_listed_for_it() {
        let model = fixtures::variant("a").model_key();
        let page = Page { url: "http://epp/metrics".to_owned(), client: Client::default() };
        let picker = |models| Signal {
            name: "epp".to_owned(),
            models,
            source: Source::EndpointPicker(page.clone()),
            interval: Duration::from_secs(1),
            counts: Counts::Requests,
        };
        let told = |signal: &Signal, names: Option<&str>| {
            let models = names.map(|name| (name.to_owned(), Requests::new(3.0)));
            let amounts =
                Amounts::ByModel { models: models.into_iter().collect(), rest: Rest::Nothing };
            let at = Timestamp::UNIX_EPOCH;
            let heard: Heard = [(signal.name.clone(), Said { at, amounts })].into();
            let fleet = Fleet::new([fixtures::variant("a")]);
            let said = |heard: &Heard| {
                said(std::slice::from_ref(signal), heard, &Zero::default(), &fleet)[&model][0]
                    .naming
            };
            [said(&heard), said(&Heard::default())]
        };
        let name = model.model.as_str();
        assert_eq!(told(&picker(vec![]), Some(name)), [Naming::Named, Naming::Unnamed]);
        assert_eq!(told(&picker(vec![]), Some("another")), [Naming::Unnamed; 2]);
        assert_eq!(told(&picker(vec![model.clone()]), Some("another")), [Naming::Named; 2]);
    }

    #[test]
    fn a_model_that_stays_is_told_of_what_counts_requests_and_one_that_may_go_of_everything() {
        let signal = |name: &str, counts| Signal {
            name: name.to_owned(),
            models: Vec::new(),
            source: Source::Query("1".to_owned()),
            interval: Duration::from_secs(1),
            counts,
        };
        let signals = [signal("rate", Counts::Something), signal("queue", Counts::Requests)];
        let amounts = Amounts::One(Requests::new(3.0));
        let at = Timestamp::UNIX_EPOCH;
        let heard: Heard = [("queue".to_owned(), Said { at, amounts })].into();
        let fleet = Fleet::new([fixtures::variant("a")]);
        let model = fixtures::variant("a").model_key();
        let told = |zero: &Zero| {
            let said = said(&signals, &heard, zero, &fleet);
            let said = said.get(&model).map(Vec::as_slice).unwrap_or_default().to_vec();
            said.into_iter().map(|it| (it.signal, it.seen.number().is_some())).collect::<Vec<_>>()
        };
        assert_eq!(told(&Zero::default()), [("queue".to_owned(), true)]);
        let policy = ZeroPolicy::AfterIdle(Seconds::literal(60));
        let rule = Rule { policy, ..Zero::default().default };
        let may = Zero { default: rule, ..Zero::default() };
        assert_eq!(told(&may), [("rate".to_owned(), false), ("queue".to_owned(), true)]);
        let silent = said(&signals[..1], &heard, &Zero::default(), &fleet);
        assert!(silent.is_empty(), "nothing that counts requests is for a model that stays");
    }
}
