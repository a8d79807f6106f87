//! Fleets with loads that the models can explain, and a full decision for them.
//!
//! Four variants serve a model on four kinds of accelerators. A replica reports the values that the
//! queueing model predicts for its share of the load. So analyzers and tuner get realistic numbers,
//! and a decision costs as much as in production.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::ballot::{self, Analyzer, Ballot, Vote, VotingRight};
use plimsoll::analyze::capacity::CapacityReport;
use plimsoll::analyze::queueing::{
    self, BATCH_DEFAULT, Coefficients, MeanLengths, MeanRequest, ReplicaRoom, SharedCoefficients,
};
use plimsoll::analyze::throughput::{self, Curves, FrontDemand, ReplicaPace, VariantPace};
use plimsoll::analyze::tokens::capacity::RequestShape;
use plimsoll::analyze::tokens::knowledge::Knowledge;
use plimsoll::analyze::tokens::{self, TokenReplicaLoad, TokenVariantLoad};
use plimsoll::analyze::tuner::{Latencies, OperatingPoint, Tuner};
use plimsoll::decide::limit::{
    Allowance, LimitName, LimitScope, LimitSource, Priority, SupplyLimit,
};
use plimsoll::decide::optimize::{
    Candidate, Consent, Contender, FleetPlan, Headroom, OptimizerPolicy, PlanModel,
    ReportFreshness, VotingReport, plan_all,
};
use plimsoll::fleet::{
    Accelerator, Bounds, ModelKey, ModelName, Namespace, ReplicaKey, ReplicaName, Role, VariantKey,
    VariantName, VariantSpec,
};
use plimsoll::observe::GaugeSummary;
use plimsoll::units::{
    CostPerHour, Fraction, Gpus, Replicas, RequestRate, Requests, Seconds, TimePerToken, Tokens,
};

/// Variants per model, except in a fleet with all kinds.
pub(crate) const VARIANTS: usize = 4;

/// Replicas per variant.
const REPLICAS: u16 = 4;

/// The cost of one GPU of each kind per hour, and its speed relative to the first.
const KINDS: [(&str, f64, f64); 6] = [
    ("A100", 2.5, 1.0),
    ("H100", 4.5, 2.0),
    ("L40S", 1.3, 0.5),
    ("MI300X", 4.0, 1.9),
    ("H200", 5.5, 2.3),
    ("L4", 0.7, 0.25),
];

/// Decisions until tuners and curves have learned.
const WARM_UP: u32 = 40;

/// The analyzers that vote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voting {
    pub(crate) name: &'static str,
    pub(crate) analyzers: &'static [Analyzer],
    pub(crate) tuning: Tuning,
}

/// The learning of the queueing model within the measured decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tuning {
    /// It learns from each replica.
    On,
    /// It has already learned.
    Off,
}

/// The votings that the benchmarks compare.
pub(crate) const VOTINGS: [Voting; 5] = [
    Voting { name: "tokens", analyzers: &[Analyzer::Tokens], tuning: Tuning::Off },
    Voting {
        name: "tokens-throughput",
        analyzers: &[Analyzer::Tokens, Analyzer::Throughput],
        tuning: Tuning::Off,
    },
    Voting { name: "queueing", analyzers: &[Analyzer::Queueing], tuning: Tuning::Off },
    Voting { name: "queueing-tuned", analyzers: &[Analyzer::Queueing], tuning: Tuning::On },
    Voting {
        name: "all",
        analyzers: &[Analyzer::Tokens, Analyzer::Throughput, Analyzer::Queueing],
        tuning: Tuning::On,
    },
];

/// A fleet and the data learned from it.
pub(crate) struct World {
    voting: Voting,
    models: Vec<Served>,
    limits: Vec<SupplyLimit>,
    knowledge: Knowledge,
    curves: Curves,
    now: Timestamp,
    turn: u32,
}

/// A model with its variants.
struct Served {
    key: ModelKey,
    variants: Vec<Serving>,
}

/// A variant with the reports of its replicas at each of several loads.
struct Serving {
    spec: VariantSpec,
    tuner: Tuner,
    shown: Vec<Shown>,
}

/// The reports of a variant's replicas.
struct Shown {
    tokens: Vec<TokenReplicaLoad>,
    paces: Vec<ReplicaPace>,
    queues: Vec<queueing::QueueingReplicaLoad>,
    points: Vec<OperatingPoint>,
}

/// The reports of the analyzers about one model.
struct Said {
    reports: Vec<CapacityReport>,
    ballot: Ballot,
}

/// The utilization of a replica, in rotation.
const LOADS: [f64; 5] = [0.45, 0.6, 0.75, 0.9, 0.3];

impl World {
    /// A fleet with this many models and variants per model, which has been observed for a while.
    pub(crate) fn new(models: u32, variants: usize, voting: Voting) -> Self {
        let models: Vec<Served> = (0..models).map(|index| served(index, variants)).collect();
        let limits = vec![inventory(&models)];
        let (knowledge, curves) = (Knowledge::default(), Curves::default());
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24);
        let mut world = Self { voting, models, limits, knowledge, curves, now, turn: 0 };
        let learning = Voting { tuning: Tuning::On, ..voting };
        for _ in 0..WARM_UP {
            world.voting = learning;
            let _said = world.analyze();
            world.advance();
        }
        world.voting = voting;
        world
    }

    /// Advances half a minute, with a different load.
    pub(crate) fn advance(&mut self) {
        self.now += SignedDuration::from_secs(30);
        self.turn += 1;
    }

    /// A full decision: the demand of every model, and the cheapest replica counts for it within
    /// the inventory.
    pub(crate) fn decide(&mut self) -> FleetPlan {
        let said = self.analyze();
        self.plan(&said)
    }

    /// The plans alone, from existing reports.
    pub(crate) fn planner(mut self) -> impl FnMut() -> FleetPlan {
        let said = self.analyze();
        move || self.plan(&said)
    }

    fn analyze(&mut self) -> Vec<Said> {
        let Self { voting, models, limits: _, knowledge, curves, now, turn } = self;
        let now = *now;
        let mut said = Vec::with_capacity(models.len());
        for (index, served) in (0_u32..).zip(models) {
            let at = (*turn + index) as usize % LOADS.len();
            let reports: Vec<CapacityReport> = voting
                .analyzers
                .iter()
                .map(|analyzer| match analyzer {
                    Analyzer::Tokens => served.tokens(now, at, knowledge),
                    Analyzer::Throughput => served.throughput(now, at, curves),
                    Analyzer::Queueing => served.queueing(at, voting.tuning),
                    // `Foresight` needs counters from scrapes, which these models do not have.
                    Analyzer::Foresight => unreachable!("none of the votings names it"),
                })
                .collect();
            let votes: Vec<Vote<'_>> = voting
                .analyzers
                .iter()
                .zip(&reports)
                .map(|(analyzer, report)| Vote {
                    analyzer: *analyzer,
                    franchise: VotingRight::Votes,
                    informed_at: Some(now),
                    report: Some(report),
                })
                .collect();
            let ballot = ballot::cast(now, Seconds::literal(90), &votes);
            said.push(Said { reports, ballot });
        }
        said
    }

    fn plan(&self, said: &[Said]) -> FleetPlan {
        let contenders: Vec<Contender<'_>> = self
            .models
            .iter()
            .zip(said)
            .map(|(served, said)| Contender {
                model: PlanModel {
                    key: served.key.clone(),
                    candidates: served.variants.iter().map(Serving::candidate).collect(),
                    sizing: &said.reports[0],
                    voices: said
                        .reports
                        .iter()
                        .zip(&said.ballot.voters)
                        .map(|(report, _)| VotingReport { report, standing: ReportFreshness::Live })
                        .collect(),
                },
                priority: Priority::default(),
            })
            .collect();
        plan_all(&contenders, &self.limits, &OptimizerPolicy::default(), &|_, _| Consent::Given)
    }
}

impl Served {
    fn tokens(&self, now: Timestamp, at: usize, knowledge: &mut Knowledge) -> CapacityReport {
        let variants: Vec<TokenVariantLoad<'_>> = self
            .variants
            .iter()
            .map(|variant| TokenVariantLoad {
                spec: &variant.spec,
                gpus: None,
                current: replicas(),
                pending: Replicas::ZERO,
                leaving: Replicas::ZERO,
                arguments: None,
                replicas: &variant.shown[at].tokens,
            })
            .collect();
        let policy = tokens::TokenPolicy::default();
        tokens::analyze(now, &policy, &self.key, &variants, None, knowledge).report
    }

    fn throughput(&self, now: Timestamp, at: usize, curves: &mut Curves) -> CapacityReport {
        let variants: Vec<VariantPace<'_>> = self
            .variants
            .iter()
            .map(|variant| VariantPace {
                spec: &variant.spec,
                current: replicas(),
                pending: Replicas::ZERO,
                leaving: Replicas::ZERO,
                replicas: &variant.shown[at].paces,
            })
            .collect();
        let policy = throughput::ThroughputPolicy::default();
        throughput::analyze(now, &policy, &variants, FrontDemand::default(), curves).report
    }

    fn queueing(&mut self, at: usize, tuning: Tuning) -> CapacityReport {
        let variants: Vec<queueing::QueueingVariantLoad> = self
            .variants
            .iter_mut()
            .map(|variant| {
                if tuning == Tuning::On {
                    for point in &variant.shown[at].points {
                        let _lesson = variant.tuner.learn(None, point);
                    }
                }
                let estimate = variant.tuner.estimate();
                queueing::QueueingVariantLoad {
                    key: variant.spec.key.clone(),
                    role: Role::Both,
                    cost: variant.spec.cost,
                    replicas: replicas(),
                    pending: Replicas::ZERO,
                    learned: estimate.map(|it| (it.coefficients, it.confidence)),
                    loads: variant.shown[at].queues.clone(),
                }
            })
            .collect();
        queueing::analyze(&variants, &queueing::QueueingPolicy::default()).report
    }
}

impl Serving {
    fn candidate(&self) -> Candidate {
        Candidate {
            key: self.spec.key.clone(),
            role: self.spec.role,
            accelerator: self.spec.accelerator.clone(),
            gpus: Gpus::ONE,
            cost: self.spec.cost,
            leaving: Replicas::ZERO,
            untried: false,
            list_price: self.spec.cost,
            mismatch: self.spec.mismatch,
            bounds: self.spec.bounds,
            current: replicas(),
            pending: Replicas::ZERO,
        }
    }
}

fn replicas() -> Replicas {
    Replicas::saturating(u32::from(REPLICAS))
}

fn served(index: u32, variants: usize) -> Served {
    let namespace = Namespace::new(&format!("team-{}", index % 10)).expect("a name");
    let model = ModelName::new(&format!("model-{index}")).expect("a name");
    let variants = KINDS[..variants]
        .iter()
        .map(|(kind, cost, speed)| {
            let name = format!("chat-{index}-{}", kind.to_lowercase());
            let spec = VariantSpec {
                key: VariantKey {
                    namespace: namespace.clone(),
                    variant: VariantName::new(&name).expect("a name"),
                },
                model: model.clone(),
                accelerator: Accelerator::new(kind),
                gpus: None,
                role: Role::Both,
                // A few prices, so that the models have different solutions.
                cost: CostPerHour::new(cost * (1.0 + f64::from(index % 7) / 50.0)).expect("a cost"),
                list_price: None,
                start_time: None,
                mismatch: Fraction::ONE,
                bounds: Bounds::new(Replicas::ONE, Some(Replicas::saturating(64))).expect("bounds"),
            };
            let shown = LOADS.iter().map(|load| shown(&spec, *speed, *load)).collect();
            Serving { spec, tuner: Tuner::default(), shown }
        })
        .collect();
    Served { key: ModelKey { namespace, model }, variants }
}

/// The reports of replicas of this speed at this utilization.
fn shown(spec: &VariantSpec, speed: f64, load: f64) -> Shown {
    let per_token = |micros: f64| TimePerToken::new(micros * 1e-6 / speed).expect("a time");
    let coefficients = Coefficients::from(SharedCoefficients {
        alpha: Seconds::new(0.006 / speed).expect("a time"),
        beta: per_token(30.0),
        gamma: per_token(0.05),
    });
    let tokens = |count: f64| Tokens::new(count).expect("a number");
    let kv_capacity = tokens(400_000.0);
    let mut shown =
        Shown { tokens: Vec::new(), paces: Vec::new(), queues: Vec::new(), points: Vec::new() };
    for index in 0..REPLICAS {
        let lengths = MeanLengths { input: tokens(800.0), output: tokens(200.0) };
        let shape = MeanRequest::new(lengths).expect("an output");
        let model = queueing::QueueingModel::new(coefficients, shape, ReplicaRoom::default());
        let part = load * (1.0 + 0.02 * f64::from(index));
        let most = model.rate_max().expect("iterations take time").requests_per_second();
        let arrivals = RequestRate::new(part * most).expect("a rate");
        let at = model.at(arrivals).expect("a rate in the domain");
        let resident = at.in_service.requests() * (800.0 + 100.0);
        let usage = Fraction::new((resident / kv_capacity.tokens()).min(1.0)).expect("a share");
        let requests = RequestShape {
            prompt: Some(lengths.input),
            output: Some(lengths.output),
            prefix_hits: None,
        };
        let generation = Tokens::new(at.throughput.requests_per_second() * 200.0)
            .and_then(|tokens| tokens.per(Seconds::literal(1)));
        let waiting = arrivals.requests_per_second() * at.wait.seconds();
        shown.tokens.push(TokenReplicaLoad {
            kv_usage: Some(steady(usage)),
            kv_capacity: Some(kv_capacity),
            waiting: Requests::new(waiting.floor()).map(steady),
            running: Some(steady(at.in_service)),
            generation_rate: generation,
            requests,
        });
        shown.paces.push(ReplicaPace {
            kv_usage: Some(usage),
            kv_capacity: Some(kv_capacity),
            itl: Some(at.itl),
            requests,
            arrivals: Some(arrivals),
            completions: Some(at.throughput),
            generation,
        });
        shown.queues.push(queueing::QueueingReplicaLoad {
            replica: ReplicaKey {
                variant: spec.key.clone(),
                replica: ReplicaName::new(&format!("{}-{index}", spec.key.variant))
                    .expect("a name"),
                incarnation: None,
            },
            arrival: arrivals,
            shape: Some(shape),
            ttft: Some(at.ttft),
            itl: Some(at.itl),
            batch: None,
        });
        let latencies = Latencies { ttft: at.ttft, itl: at.itl };
        let point = OperatingPoint::new(arrivals, shape, BATCH_DEFAULT, latencies);
        shown.points.extend(point);
    }
    shown
}

fn steady<T: Copy>(value: T) -> GaugeSummary<T> {
    GaugeSummary { last: value, mean: value, peak: value, age: Seconds::ZERO }
}

/// Slightly more of each kind than the fleet has, so that some plans do not fit.
fn inventory(models: &[Served]) -> SupplyLimit {
    let mut kinds: BTreeMap<Accelerator, Headroom> = BTreeMap::new();
    let each = u32::try_from(models.len()).expect("a few thousand") * u32::from(REPLICAS);
    for (kind, _, _) in KINDS {
        let kind = Accelerator::new(kind).expect("a name");
        kinds.insert(kind, Headroom::Limited(Gpus::new(each + each / 20)));
    }
    SupplyLimit {
        name: LimitName::new("inventory").expect("a name"),
        scope: LimitScope::Cluster,
        source: LimitSource::Read(Allowance::Kinds(kinds)),
    }
}
