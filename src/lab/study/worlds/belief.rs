//! Plimsoll's beliefs and decisions in the worst minute of a world, next to the facts.

use jiff::Timestamp;

use crate::simulate::Micros;
use crate::simulate::peers::Peer;
use crate::simulate::run;
use crate::simulate::score::Minute;
use crate::study::execute::PreparedRun;
use crate::study::worlds::draw::WorldScenario;
use crate::study::worlds::play;
use plimsoll_core::decide::{Decision, Stage};
use plimsoll_core::observe::{Inputs, Scale};
use plimsoll_core::pipeline::Decisions;

/// The minute of arrival with the most requests that were not served well.
#[derive(Clone, Debug)]
pub(crate) struct WorstMinute {
    /// The index of the minute, from 0.
    pub(crate) minute: usize,
    /// Requests that were judged, and those of them that were served well.
    pub(crate) judged: u32,
    pub(crate) good: u32,
    /// The expected requests per second, and the replicas that they need.
    pub(crate) rate: f64,
    pub(crate) need: f64,
    /// The capacity of one replica of the first variant for them, in requests per second.
    pub(crate) capacity: f64,
    /// The decisions at its start, per variant.
    pub(crate) beliefs: Vec<ExplainedDecision>,
}

/// The decision for a variant.
#[derive(Clone, Debug)]
pub(crate) struct ExplainedDecision {
    pub(crate) variant: String,
    /// Ready replicas, and existing replicas.
    pub(crate) ready: u32,
    pub(crate) existing: u32,
    pub(crate) desired: u32,
    /// The decision steps, as sentences.
    pub(crate) steps: Vec<String>,
}

/// The decisions at the first tick of each minute.
#[derive(Default)]
struct Diary {
    began: Option<Timestamp>,
    minutes: Vec<Vec<ExplainedDecision>>,
}

/// Plays a world again with Plimsoll's own policy, and finds its worst minute. `None` if all
/// requests were served well.
pub(crate) fn worst(world: &WorldScenario) -> anyhow::Result<Option<WorstMinute>> {
    let ready = play::prepare(world, &play::as_they_are(&[Peer::Scenario]))?;
    let Some(PreparedRun { scenario, .. }) = ready.first() else { return Ok(None) };
    let mut diary = Diary::default();
    let seed = u64::from(world.lot.simulation_seed());
    let outcome = run::run_with(
        scenario,
        seed,
        &mut |_: Micros| true,
        Some(&mut |now, inputs, decisions: &Decisions| diary.note(now, &inputs, decisions)),
    )?;

    let minutes = outcome.models.iter().flat_map(|model| model.minutes.iter().enumerate());
    let worst = minutes
        .filter(|(_, it)| bad(it) > 0)
        .reduce(|most, next| if bad(next.1) > bad(most.1) { next } else { most });
    Ok(worst.map(|(minute, &Minute { judged, good, .. })| {
        let middle = (minute as f64 + 0.5) * 60.0;
        let beliefs = diary.minutes.get(minute).cloned().unwrap_or_default();
        let rate = world.need.rate_at(middle);
        let need = world.need.at(middle);
        let capacity = world.need.capacity_at(middle).unwrap_or_default();
        WorstMinute { minute, judged, good, rate, need, capacity, beliefs }
    }))
}

/// The requests that were not served well.
const fn bad(minute: &Minute) -> u32 {
    minute.judged - minute.good
}

// === impl Diary ===

impl Diary {
    /// Records a tick that is the first of its minute.
    fn note(&mut self, now: Timestamp, inputs: &Inputs, decisions: &Decisions) {
        let began = *self.began.get_or_insert(now);
        let minute = now.duration_since(began).as_secs() / 60;
        if usize::try_from(minute).is_ok_and(|minute| minute >= self.minutes.len()) {
            let beliefs = decisions.decisions.iter().map(|it| ExplainedDecision::new(it, inputs));
            self.minutes.push(beliefs.collect());
        }
    }
}

// === impl ExplainedDecision ===

impl ExplainedDecision {
    fn new(decision: &Decision, inputs: &Inputs) -> Self {
        let scale = inputs.listings.get(&decision.variant).map(|listing| &listing.scale);
        let (ready, existing) = match scale {
            Some(Scale::Known(state)) => (state.ready.count(), state.current.count()),
            _ => (0, 0),
        };

        // The analysis, and the later steps that changed the desired replicas or held them.
        let steps = decision
            .steps
            .iter()
            .filter(|step| step.stage <= Stage::Guard || step.before != step.after)
            .map(ToString::to_string);

        Self {
            variant: decision.variant.variant.to_string(),
            ready,
            existing,
            desired: decision.desired().count(),
            steps: steps.collect(),
        }
    }
}
