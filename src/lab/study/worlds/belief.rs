//! What Plimsoll decided by when a world went worst, beside what was the case.

use jiff::Timestamp;

use crate::simulate::Micros;
use crate::simulate::peers::Peer;
use crate::simulate::run;
use crate::simulate::score::Minute;
use crate::study::execute::Ready;
use crate::study::worlds::draw::World;
use crate::study::worlds::play;
use plimsoll_core::decide::{Decision, Stage, Step};
use plimsoll_core::observe::{Inputs, Scale};
use plimsoll_core::pipeline::Decisions;

/// The minute of arrival with the most requests that were not served well.
#[derive(Clone, Debug)]
pub(crate) struct Worst {
    /// From 0.
    pub(crate) minute: usize,
    /// Requests that were judged, and those of them that were served well.
    pub(crate) judged: u32,
    pub(crate) good: u32,
    /// Requests a second that were to be expected, and the replicas that they take.
    pub(crate) rate: f64,
    pub(crate) need: f64,
    /// Requests a second that a replica of the first variant carries of them.
    pub(crate) capacity: f64,
    /// What was decided at its start, for each variant.
    pub(crate) beliefs: Vec<Belief>,
}

/// What was decided for a variant.
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    pub(crate) variant: String,
    /// Replicas that serve, and those that exist.
    pub(crate) ready: u32,
    pub(crate) existing: u32,
    pub(crate) desired: u32,
    /// The steps that made the number, as sentences.
    pub(crate) steps: Vec<String>,
}

/// What was decided at the first tick of each minute.
#[derive(Default)]
struct Diary {
    began: Option<Timestamp>,
    minutes: Vec<Vec<Belief>>,
}

/// Plays a world again by Plimsoll's own policy, and looks at its worst minute. `None` where all
/// requests were served well.
pub(crate) fn worst(world: &World) -> anyhow::Result<Option<Worst>> {
    let ready = play::prepare(world, &play::as_they_are(&[Peer::Scenario]))?;
    let Some(Ready { scenario, .. }) = ready.first() else { return Ok(None) };
    let mut diary = Diary::default();
    let mut ledger = |now, inputs, decisions: &Decisions| diary.note(now, &inputs, decisions);
    let seed = u64::from(world.lot.simulation_seed());
    let outcome = run::run_with(scenario, seed, &mut |_: Micros| true, Some(&mut ledger))?;

    let minutes = outcome.models.iter().flat_map(|model| model.minutes.iter().enumerate());
    let bad = |minute: &Minute| minute.judged - minute.good;
    let worst = minutes
        .filter(|(_, it)| bad(it) > 0)
        .reduce(|worst, next| if bad(next.1) > bad(worst.1) { next } else { worst });
    Ok(worst.map(|(minute, &Minute { judged, good, .. })| {
        let middle = (minute as f64 + 0.5) * 60.0;
        let beliefs = diary.minutes.get(minute).cloned().unwrap_or_default();
        let (rate, need) = (world.need.rate_at(middle), world.need.at(middle));
        let capacity = world.need.capacity_at(middle).unwrap_or_default();
        Worst { minute, judged, good, rate, need, capacity, beliefs }
    }))
}

// === impl Diary ===

impl Diary {
    /// Notes a tick that is the first of its minute.
    fn note(&mut self, now: Timestamp, inputs: &Inputs, decisions: &Decisions) {
        let began = *self.began.get_or_insert(now);
        let minute = now.duration_since(began).as_secs() / 60;
        if usize::try_from(minute).is_ok_and(|minute| minute >= self.minutes.len()) {
            let beliefs = decisions.decisions.iter().map(|it| Belief::new(it, inputs));
            self.minutes.push(beliefs.collect());
        }
    }
}

// === impl Belief ===

impl Belief {
    fn new(decision: &Decision, inputs: &Inputs) -> Self {
        let scale = inputs.listings.get(&decision.variant).map(|listing| &listing.scale);
        let (ready, existing) = match scale {
            Some(Scale::Known(state)) => (state.ready.count(), state.current.count()),
            _ => (0, 0),
        };
        // The analysis, and what changed its number afterwards or kept the one before.
        let tells = |step: &&Step| step.stage <= Stage::Guard || step.before != step.after;
        let steps = decision.steps.iter().filter(tells).map(ToString::to_string);
        Self {
            variant: decision.variant.variant.to_string(),
            ready,
            existing,
            desired: decision.desired().count(),
            steps: steps.collect(),
        }
    }
}
