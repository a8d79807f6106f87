//! What a trace keeps of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll::fleet::{
    Accelerator, Fleet, Incarnation, ModelKey, ModelName, Namespace, ReplicaKey, Resource,
    VariantKey, VariantSpec, ZeroPermission, ZeroPreference,
};
use plimsoll::observe::engine::lora::{LoraPage, Slots};
use plimsoll::observe::hosting::{HostedModel, HostedModels, ModelAssignment};
use plimsoll::observe::inventory::{
    Inventory, NodeStock, QuotaStock, ReplicaUnit, TimedValue, UnitSource,
};
use plimsoll::observe::overrides::{Order, Override, OverrideSource};
use plimsoll::observe::routed::RoutedCounts;
use plimsoll::observe::template::{Container, PodTemplate};
use plimsoll::observe::{
    AutoscalerWindows, DemandSignal, Inputs, Naming, RankReading, Reading, ReplicaListing,
    ReplicaStart, Scale, ScaleState, Scrape, ScrapeFailure, ScrapeRoute, SignalQuantity,
    SignalValue, WhyScaleUnknown,
};
use plimsoll::trace::{TraceRecord, TraceTick, TraceWriter};
use plimsoll::units::{CostPerHour, Fraction, Gpus, Requests, Seconds};
use tempfile::TempDir;

use crate::backtest::{BOUNDS, ticks_of};
use crate::pipeline::{at, key, n, page, replica, spec};

fn unit(source: UnitSource, product: Option<&str>) -> ReplicaUnit {
    ReplicaUnit {
        resource: Resource::new("nvidia.com/gpu").unwrap(),
        gpus: Gpus::new(8),
        product: product.map(|it| Accelerator::new(it).unwrap()),
        source,
    }
}

fn inventory() -> Inventory {
    let h100 = Accelerator::new("H100").unwrap();
    let node = NodeStock {
        product: h100.clone(),
        allocatable: Gpus::new(64),
        used_by_others: Gpus::new(3),
    };
    let quota = QuotaStock {
        namespace: Namespace::new("shop").unwrap(),
        name: "team".to_owned(),
        resource: Resource::new("requests.nvidia.com/gpu").unwrap(),
        hard: Gpus::new(32),
        used_by_others: Gpus::new(1),
    };
    Inventory {
        nodes: Some(TimedValue { value: vec![node], as_of: at(3) }),
        free: [(h100, vec![Gpus::new(8), Gpus::new(5)])].into(),
        quotas: Some(TimedValue { value: vec![quota], as_of: at(4) }),
        units: [
            (key("a"), unit(UnitSource::Template, None)),
            (key("b"), unit(UnitSource::Pods, Some("H100"))),
        ]
        .into(),
        pods: [(key("a"), Gpus::new(4))].into(),
    }
}

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn template() -> Arc<PodTemplate> {
    let container = Container {
        image: "vllm/vllm-openai".to_owned(),
        command: vec!["vllm".to_owned(), "serve".to_owned()],
        args: vec!["--max-num-seqs=$(SEATS)".to_owned()],
        environment: environment(&[("SEATS", "64"), ("VLLM_USE_V1", "1")]),
        files: environment(&[("/etc/vllm.yaml", "block-size: 32")]),
    };
    let unit = Some(unit(UnitSource::Template, None));
    Arc::new(PodTemplate { unit, containers: vec![container], ..PodTemplate::default() })
}

fn listings() -> BTreeMap<VariantKey, ReplicaListing> {
    let state = ScaleState {
        wanted: n(2),
        current: n(2),
        ready: n(1),
        pending: n(1),
        bounds: Some(spec("a", 2.0, (1, 9)).bounds),
    };
    let owners = WhyScaleUnknown::DuplicateOwners(vec!["hpa one".to_owned(), "hpa two".to_owned()]);
    let listing = |variant, scale| ReplicaListing {
        replicas: vec![replica(variant, 0), replica(variant, 1)],
        unready: vec![replica(variant, 1)],
        scale,
        way: ScrapeRoute::Relayed,
        as_of: at(4),
    };
    let scales = [("a", Scale::Known(state)), ("b", Scale::Unknown(owners))];
    scales.map(|(variant, scale)| (key(variant), listing(variant, scale))).into()
}

/// A page that says nothing, one of two ranks with adapters and numbers that are none, and failures.
fn scrapes() -> Vec<Scrape> {
    let adapters = BTreeSet::from([ModelName::new("sql").unwrap()]);
    let lora = LoraPage {
        value: f64::INFINITY,
        slots: Slots::new(4),
        running: adapters,
        waiting: BTreeSet::new(),
    };
    let full = page(Some(0.1 + 0.2), Some(3.0));
    let ranks = vec![full.ranks[0].clone(), RankReading { rank: 1, ..RankReading::default() }];
    let full = Reading { started: Some(at(1)), lora: Some(Box::new(lora)), ranks, ..full };

    let first = ReplicaKey { incarnation: Incarnation::new("life"), ..replica("a", 0) };
    let read = [page(None, None), full].map(|reading| (first.clone(), Ok(reading)));
    let failed = ScrapeFailure::ALL.map(|failure| (replica("a", 1), Err(failure)));
    let outcomes = read.into_iter().chain(failed);
    outcomes.map(|(replica, outcome)| Scrape { replica, at: at(3), outcome }).collect()
}

fn inputs() -> Inputs {
    let (list_price, start_time) = (CostPerHour::new(8.0), Seconds::new(12.5));
    let mismatch = Fraction::new(1.5).unwrap();
    let specs = [
        VariantSpec { list_price, mismatch, start_time, ..spec("a", 2.4, (0, 9)) },
        spec("b", 8.0, (1, 4)),
    ];
    let model: ModelKey = specs[0].model_key();
    let wishes = [
        ZeroPreference { may: Some(ZeroPermission::Allowed), after: Seconds::new(90.5) },
        ZeroPreference { may: Some(ZeroPermission::Forbidden), after: None },
    ];
    let wishes = wishes.map(|wish| (model.clone(), wish));
    let autoscaler = AutoscalerWindows {
        name: "llama".to_owned(),
        scale_up: Seconds::new(1.0).unwrap(),
        scale_down: Seconds::new(300.0).unwrap(),
    };
    let seen = SignalValue::Number(Requests::new(3.0).unwrap(), at(4));
    let demand = [
        ("epp", seen, Naming::Named),
        ("picker", SignalValue::Never, Naming::Unnamed),
        ("gateway", SignalValue::NoNumber(at(3)), Naming::Named),
    ];
    let demand = demand.map(|(signal, seen, naming)| DemandSignal {
        signal: signal.to_owned(),
        seen,
        counts: SignalQuantity::Requests,
        naming,
    });
    let start = |ready| ReplicaStart { created: at(1), ready, unschedulable: None };
    Inputs {
        fleet: Arc::new(Fleet::new(specs).wishing(wishes)),
        inventory: Arc::new(inventory()),
        autoscalers: [(key("a"), autoscaler)].into(),
        demand: [(model, demand.to_vec())].into(),
        starts: [(replica("a", 0), start(Some(at(2)))), (replica("a", 1), start(None))].into(),
        templates: [(key("a"), template())].into(),
        hosting: [(key("a"), hosted())].into(),
        routed: [(key("a"), Some(routed())), (key("b"), None)].into(),
        listings: listings(),
        scrapes: scrapes(),
        overrides: [(
            key("a"),
            Override { order: Order::Pin(n(6)), until: at(99), by: OverrideSource::Api },
        )]
        .into(),
    }
}

fn routed() -> RoutedCounts {
    let requests = [(ModelName::new("adapter").unwrap(), 7.0)].into();
    RoutedCounts { at: at(3), process: Some(0.5), requests, others: 1.0 }
}

fn hosted() -> HostedModels {
    let name = ModelName::new("iris").unwrap();
    let copies = n(2);
    let model = HostedModel { name, copies, assignment: ModelAssignment::Possible };
    HostedModels { models: vec![model], bounds: None, as_of: at(3) }
}

/// The inputs of three ticks, of which the second differs in nothing and the third has lost all.
fn written_and_read(inputs: Inputs) -> Vec<Inputs> {
    let folder = TempDir::new().unwrap();
    let mut writer = TraceWriter::new(folder.path().to_owned(), BOUNDS, at(0));
    writer.begin(plimsoll::trace::FileStart::Process).unwrap();
    for (second, inputs) in [inputs.clone(), inputs, Inputs::default()].into_iter().enumerate() {
        let now = at(i64::try_from(second).unwrap() + 5);
        let tick = TraceTick { now, inputs, follows: None, said: BTreeMap::new() };
        writer.write(TraceRecord::Tick(Box::new(tick))).unwrap();
    }
    writer.end().unwrap();
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    ticks_of(&file).0.into_iter().map(|tick| tick.inputs).collect()
}

#[test]
fn everything_that_is_known_of_a_cluster_comes_back() {
    let read = written_and_read(inputs());
    assert_eq!(read, [inputs(), inputs(), Inputs::default()]);
}
