//! The pipeline: turns inputs into decisions, identically in the daemon, the demo and the
//! simulator.
//!
//! [`Pipeline::tick`] reads as the algorithm: one line per stage. Each stage has a file of its own,
//! owns its state, and turns the [`Tick`] and the results of earlier stages into its result:
//!
//! | stage | file | result |
//! |---|---|---|
//! | observe | `observe/record.rs` | the observation of each variant |
//! | limits | `pipeline/limits.rs` | the resources that all variants may use |
//! | workloads | `pipeline/workloads.rs` | the start arguments of the engines |
//! | supply | `pipeline/supply.rs` | the replicas that start, are late, or get lost |
//! | sizing | `pipeline/sizing.rs` | proposals from the analyzers' capacity and demand |
//! | saturation | `pipeline/saturate.rs` | proposals where no analyzer has a result |
//! | pools | `pipeline/pools.rs` | the replicas that adapters require |
//! | guard | `pipeline/guard.rs` | decisions; none scales down on incomplete data |
//! | restrain | `pipeline/restrain.rs` | windows, dwell, flap budget and steps |
//! | zero | `pipeline/zero.rs` | models to zero and back |
//! | override | `pipeline/overrides.rs` | pins and pauses of single variants |
//! | bound, cap | `decide/enforce.rs`, `pipeline/limits.rs` | bounds and limits |
//! | verify | `pipeline/verify.rs` | the invariants, for the whole set |
//!
//! The pipeline owns all state that outlives a tick and reads no clock. The same state, instant and
//! inputs always give the same decisions.

mod absence;
pub mod counterfactual;
mod dormant;
mod group;
mod guard;
mod hung;
mod in_force;
mod lasting;
pub mod limits;
mod overrides;
mod policy;
pub mod pools;
mod proposal;
pub mod repeat;
mod restrain;
mod saturate;
pub mod saved;
mod silence;
pub mod sizing;
mod startup;
mod supply;
mod tick;
mod verify;
mod waits;
mod workloads;
pub mod zero;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::foresight::card::Card;
use crate::decide::check::Violation;
use crate::decide::enforce;
use crate::decide::limit::LimitReport;
use crate::decide::outlook::VariantOutlook;
use crate::decide::pools::pooled::PoolReport;
use crate::decide::workload::WorkloadReport;
use crate::decide::{Decision, ModelReport, NoDecision, VariantReport};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::observe::PAUSE_MAX;
use crate::observe::overrides::{Override, OverrideSource};
use crate::observe::record::FleetRecorder;
use crate::observe::{Inputs, Observation};
use crate::pipeline::group::FleetGroups;
use crate::pipeline::in_force::DecisionsInForce;
use crate::pipeline::limits::TickLimits;
use crate::pipeline::limits::raised::RaisedLimit;
use crate::pipeline::pools::Pools;
use crate::pipeline::saved::VariantMemory;
use crate::pipeline::sizing::Sizer;
use crate::pipeline::supply::{SupplyWatch, VariantSupply};
use crate::pipeline::tick::Tick;
use crate::pipeline::workloads::Workloads;
use crate::pipeline::zero::Zeros;
use crate::units::Replicas;

pub use crate::pipeline::in_force::DesiredReplicas;
pub use crate::pipeline::policy::Policy;
pub use crate::pipeline::startup::{EARLIER_MAX, EARLIER_SPREAD};

/// The observations, reports and decisions of one tick.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// One decision per variant, ordered by key. A variant that cannot be decided has none.
    pub decisions: Vec<Decision>,
    /// The reason why a variant has no decision.
    pub undecided: BTreeMap<VariantKey, NoDecision>,
    /// The observation of each variant.
    pub observations: BTreeMap<VariantKey, Observation>,
    /// The analysis of each model and role with fresh data.
    pub models: BTreeMap<(ModelKey, Role), ModelReport>,
    /// The analysis of each variant with fresh data.
    pub variants: BTreeMap<VariantKey, VariantReport>,
    /// The report of each pool with fresh data.
    pub pools: BTreeMap<VariantKey, PoolReport>,
    /// The limits and their usage; empty if nothing is limited.
    pub limits: Vec<LimitReport>,
    /// The known facts about each variant's workload.
    pub workloads: BTreeMap<VariantKey, WorkloadReport>,
    /// The capacity and the late first tokens of each variant that `foresight` votes on.
    pub outlooks: BTreeMap<VariantKey, VariantOutlook>,
    /// The invariant that the decisions broke. If set, `decisions` repeats those that were in
    /// effect before.
    pub violation: Option<Violation>,
}

/// The stages with their state, and the decisions in effect.
#[derive(Clone, Debug)]
pub struct Pipeline {
    policy: Policy,
    ticked: Option<Timestamp>,
    groups: FleetGroups,
    in_force: DecisionsInForce,
    recorder: FleetRecorder,
    workloads: Workloads,
    supply: SupplyWatch,
    sizer: Sizer,
    pools: Pools,
    zeros: Zeros,
    /// The overrides of the last tick that only this pipeline's memory keeps.
    overrides: BTreeMap<VariantKey, Override>,
}

// === impl Pipeline ===

impl Pipeline {
    /// Creates a pipeline without observations.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            ticked: None,
            groups: FleetGroups::default(),
            in_force: DecisionsInForce::default(),
            recorder: FleetRecorder::new(),
            workloads: Workloads::default(),
            supply: SupplyWatch::default(),
            sizer: Sizer::default(),
            pools: Pools::default(),
            zeros: Zeros::default(),
            overrides: BTreeMap::new(),
        }
    }

    /// Replaces the policy and keeps the state.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The policy in effect.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Decides the desired replicas of each variant.
    pub fn tick(&mut self, now: Timestamp, inputs: &Inputs) -> Decisions {
        let found = self.consider(now, inputs);
        for (place, decision) in found.decisions.iter().enumerate() {
            let desired = decision.desired();
            let inputs_at = decision.inputs_at;
            let number = DesiredReplicas { desired, inputs_at, packed: None };
            self.record(now, place, decision, number);
        }
        found
    }

    /// Decides with exactly these desired replicas in effect, which all Plimsoll replicas share.
    /// This keeps windows and histories warm for the time when this process takes over.
    ///
    /// Returns the decisions of this process. They are not in effect before they are among
    /// `numbers`.
    pub fn follow(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        numbers: &BTreeMap<VariantKey, DesiredReplicas>,
    ) -> Decisions {
        self.continue_from(now, numbers);
        let found = self.consider(now, inputs);
        for (place, decision) in found.decisions.iter().enumerate() {
            if let Some(number) = numbers.get(&decision.variant) {
                self.record(now, place, decision, *number);
            }
        }
        found
    }

    /// Continues from exactly these desired replicas. Also takes over the times at which other
    /// Plimsoll replicas packed pools, because this process may not have decided the same.
    fn continue_from(&mut self, now: Timestamp, numbers: &BTreeMap<VariantKey, DesiredReplicas>) {
        self.in_force.follow(now, numbers, &self.policy.behavior);
        for (variant, number) in numbers {
            if let Some(packed) = number.packed {
                self.pools.recall(now, variant, packed);
            }
        }
    }

    /// Runs every stage of a tick, without recording the decisions as in effect.
    fn consider(&mut self, now: Timestamp, inputs: &Inputs) -> Decisions {
        self.notice_gap(now);
        self.in_force.forget(&inputs.fleet);
        self.keep_overrides(now, inputs);
        let policy = &self.policy;
        let observations = self.recorder.observe(now, inputs, |route| policy.horizon(route));
        self.decide(now, inputs, observations, None)
    }

    /// Runs every stage after the observation. `raised` is a limit that allows more than it does.
    fn decide(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        observations: BTreeMap<VariantKey, Observation>,
        raised: Option<&RaisedLimit>,
    ) -> Decisions {
        self.groups.follow(&inputs.fleet);
        let policy = &self.policy;
        let tick = Tick::new(now, inputs, policy, &self.in_force, &observations, &self.groups);

        let mut limits = TickLimits::of(&tick, raised);
        self.workloads.run(inputs);
        let supply = self.supply.run(&tick);
        let sized = self.sizer.run(&tick, &supply, &self.workloads, &mut limits);
        let saturation = saturate::run(&tick, &supply);
        let mut proposals = proposal::preferred(sized.proposals, saturation.proposals);
        let mut pools = self.pools.run(&tick, &mut proposals);
        let guarded = guard::run(&tick, &self.sizer, proposals);
        let restrained = restrain::run(&tick, self.sizer.floors(), guarded.decisions);
        let moved = self.zeros.run(&tick, &supply, &limits, restrained);
        let ordered = overrides::run(&tick, moved);
        let capped = limits.cap(&tick, ordered.into_iter().map(enforce::bound).collect());
        self.pools.place(&tick, &capped.decisions, &mut pools);
        self.sizer.note_exchanges(&sized.exchanges, &capped.decisions);
        let verified = verify::run(&tick, capped.decisions, guarded.undecided);
        let workloads = self.workloads.reports(&tick, &limits);

        Decisions {
            decisions: verified.decisions,
            undecided: verified.undecided,
            violation: verified.violation,
            models: saturation.models,
            variants: saturation.variants,
            pools,
            limits: capped.limits,
            workloads,
            outlooks: sized.outlooks,
            observations: with_startups(observations, &supply),
        }
    }

    /// Keeps the overrides of the API, which are nowhere else. Annotations stay on their objects.
    fn keep_overrides(&mut self, now: Timestamp, inputs: &Inputs) {
        self.overrides.clone_from(&inputs.overrides);
        self.overrides.retain(|_, it| it.by == OverrideSource::Api && it.is_in_effect(now));
    }

    /// Restarts every window after a pause of the process or a jump of the clock. Unobserved time
    /// must not let a window elapse.
    fn notice_gap(&mut self, now: Timestamp) {
        let Some(before) = self.ticked.replace(now) else { return };
        let passed = now.duration_since(before).as_secs_f64();
        if (0.0..=PAUSE_MAX).contains(&passed) {
            return;
        }

        self.recorder.unsettle();
        self.zeros.begin_anew();
        self.pools.unsettle();
        self.supply.unsettle();
        self.sizer.unsettle();
        self.in_force.begin_anew(now);
        if passed < 0.0 {
            self.sizer.rewind(now);
        }
    }

    /// Records a decision and the desired replicas in effect after it.
    fn record(
        &mut self,
        now: Timestamp,
        place: usize,
        decision: &Decision,
        number: DesiredReplicas,
    ) {
        let before = self.in_force.record(now, place, decision, number, &self.policy.behavior);
        self.pools.note_packing(now, decision, before, number.desired);
    }
}

// === restarts and takeovers ===

impl Pipeline {
    /// Returns true if a variant has desired replicas in effect.
    #[must_use]
    pub fn has_number(&self, variant: &VariantKey) -> bool {
        self.in_force.get(variant).is_some()
    }

    /// Takes over desired replicas from before a restart, with the instant of the data behind them.
    /// They stay in effect until there is data to decide on.
    pub fn restore(
        &mut self,
        now: Timestamp,
        variant: VariantKey,
        desired: Replicas,
        inputs_at: Timestamp,
    ) {
        self.in_force.restore(now, variant, DesiredReplicas { desired, inputs_at, packed: None });
    }

    /// Continues from desired replicas that another Plimsoll replica has put in effect.
    pub fn take_over(&mut self, now: Timestamp, numbers: &BTreeMap<VariantKey, DesiredReplicas>) {
        self.in_force.take_over(now, numbers, &self.policy.behavior);
    }

    /// The memory of a variant; `None` while it is empty.
    #[must_use]
    pub fn memory(&self, model: &ModelKey, variant: &VariantKey) -> Option<VariantMemory> {
        let in_force = self.in_force.get(variant);
        let memory = VariantMemory {
            history: in_force.map(|it| it.history.save()).unwrap_or_default(),
            waits: self.supply.wait(variant),
            informed: self.sizer.informed(model),
            learned: self.sizer.learned(model, variant),
            starts: self.supply.starts(variant),
            losses: self.supply.losses(variant),
            packed: self.pools.packed(variant),
            silence: self.zeros.saved(model, variant),
            named: self.sizer.named(model),
            overridden: self.overrides.get(variant).copied(),
        };

        (memory != VariantMemory::default()).then_some(memory)
    }

    /// Restores the memory of a variant; its windows only if its desired replicas
    /// [have been restored](Self::restore). Existing state stays unless it is shorter experience, and
    /// invalid state is skipped.
    pub fn recall(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variant: &VariantKey,
        memory: &VariantMemory,
    ) {
        let VariantMemory { history, waits, informed, learned, .. } = memory;
        let VariantMemory { starts, losses, packed, silence, named, .. } = memory;
        self.in_force.recall(now, variant, history);
        self.supply.recall(now, variant, *waits, starts, *losses);
        self.sizer.recall(model, variant, informed, learned);
        self.sizer.recall_named(model, named);

        if let Some(packed) = packed {
            self.pools.recall(now, variant, *packed);
        }
        if let Some(silence) = silence {
            self.zeros.recall(now, model, variant, silence);
        }
    }

    /// The capacity cards: learned coefficients, for other engines of the same kind.
    pub fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.sizer.cards()
    }
}

/// Adds the start reports to the observations. Both are in the order of the variants.
fn with_startups(
    mut observations: BTreeMap<VariantKey, Observation>,
    supply: &[VariantSupply],
) -> BTreeMap<VariantKey, Observation> {
    for (observation, supply) in observations.values_mut().zip(supply) {
        observation.startup = supply.startup;
    }
    observations
}
