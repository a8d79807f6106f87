//! Faults of the replicas of a world: crashes, reclaimed nodes, failed starts, missing scrapes, and
//! slow engines.

use rand::RngExt as _;

use crate::simulate::scenario::{Lifecycle, Silence, Slowdown};
use crate::study::worlds::distribution::DrawnOption;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::Tenure;
use crate::study::worlds::numbers::{digits, seconds};
use crate::study::worlds::priors::{
    Aspect, CRASH_HOURS, FAILED_SHARE, FAILED_STARTS, FAILURES, ReplicaFailure, SILENCES,
    SILENT_FROM, SILENT_MINUTES, SLOW_FROM, SLOW_MINUTES, SLOWDOWNS, SLOWNESS, SPOT_HOURS,
    SlowReplicas, TOGETHER,
};
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// Hours until a node is reclaimed, for a spot node that is its own variant.
const SPOT_VARIANT_HOURS: f64 = 2.0;

/// The faults of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) failures: DrawnOption<ReplicaFailure>,
    /// Hours between two failures of a replica.
    hours: f64,
    /// The share of the other nodes that are reclaimed with one.
    together: f64,
    /// The share of starts that fail.
    pub(crate) failed_starts: DrawnOption<f64>,
    /// For one replica of the first variant.
    pub(crate) silence: DrawnOption<Option<Spell>>,
}

/// The time of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell {
    /// Seconds.
    pub(crate) begin: f64,
    pub(crate) end: f64,
    /// The replica, by its position among the first ones, from 0 up to 1.
    place: f64,
}

/// The slowdown of engines of the first variant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slowdowns {
    pub(crate) which: DrawnOption<SlowReplicas>,
    factor: f64,
    /// Its start, as a share of the duration.
    begins: f64,
    minutes: f64,
    place: f64,
}

/// Engines of the first variant that slow down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowSpell {
    pub(crate) factor: f64,
    pub(crate) spell: Spell,
    which: SlowReplicas,
}

// === impl Faults ===

impl Faults {
    /// Draws the faults of a world of `length` seconds that needs `need` replicas on average.
    pub(crate) fn draw(lot: Lot, length: f64, need: f64) -> Self {
        let mut random = lot.of(Aspect::Failures);
        let failures = FAILURES.draw(&mut random);
        let hours = match failures.value {
            ReplicaFailure::None => 0.0,
            ReplicaFailure::Crash => CRASH_HOURS.draw(&mut random),
            ReplicaFailure::Spot | ReplicaFailure::SpotTogether => SPOT_HOURS.draw(&mut random),
        };
        let together = match failures.value {
            ReplicaFailure::SpotTogether => digits(TOGETHER.draw(&mut random), 2),
            ReplicaFailure::None | ReplicaFailure::Crash | ReplicaFailure::Spot => 0.0,
        };
        // Keeps the mean life of a node the same for single and joint reclaims.
        let rarer = 1.0 + together * (need - 1.0).max(0.0);

        let mut random = lot.of(Aspect::FailedStarts);
        let fail = FAILED_STARTS.draw(&mut random);
        let share = if fail.value { digits(FAILED_SHARE.draw(&mut random), 2) } else { 0.0 };

        let mut random = lot.of(Aspect::Silence);
        let silent = SILENCES.draw(&mut random);
        let begin = SILENT_FROM.draw(&mut random) * length;
        let minutes = SILENT_MINUTES.draw(&mut random);
        let spell = Spell::new(begin, minutes, random.random());
        Self {
            failures,
            hours: digits(hours * rarer, 2),
            together,
            failed_starts: DrawnOption { name: fail.name, value: share },
            silence: DrawnOption { name: silent.name, value: silent.value.then_some(spell) },
        }
    }

    /// The faults of the first variant, which starts with `initial` replicas, in the form of a
    /// scenario.
    pub(crate) fn of_first(
        &self,
        slowed: Option<SlowSpell>,
        initial: u32,
    ) -> Option<Written<Lifecycle>> {
        let keys = Written::<Lifecycle> {
            slowdown: slowed.map(|it| it.written(initial)),
            silence: self.silence.value.map(|it| it.silence(initial)),
            ..self.of_all(Tenure::OnDemand)
        };
        (keys != Written::<Lifecycle>::default()).then_some(keys)
    }

    /// The faults of another variant.
    pub(crate) fn of_other(&self, tenure: Tenure) -> Option<Written<Lifecycle>> {
        let keys = self.of_all(tenure);
        (keys != Written::<Lifecycle>::default()).then_some(keys)
    }

    fn of_all(&self, tenure: Tenure) -> Written<Lifecycle> {
        let mut keys = Written::<Lifecycle>::default();
        match self.failures.value {
            ReplicaFailure::None => {}
            ReplicaFailure::Crash => keys.crash_every = Some(hours(self.hours)),
            ReplicaFailure::Spot => keys.interrupt_every = Some(hours(self.hours)),
            ReplicaFailure::SpotTogether => {
                keys.interrupt_every = Some(hours(self.hours));
                keys.interrupt_together = Some(self.together);
            }
        }

        if tenure == Tenure::Spot && keys.interrupt_every.is_none() {
            keys.interrupt_every = Some(hours(SPOT_VARIANT_HOURS));
        }

        keys
    }
}

fn hours(count: f64) -> WrittenDuration {
    seconds((count * 3600.0).round())
}

// === impl Spell ===

impl Spell {
    /// A spell of `minutes` minutes that begins at a second.
    fn new(begin: f64, minutes: f64, place: f64) -> Self {
        let start = begin.round();
        Self { begin: start, end: start + (minutes * 60.0).round(), place }
    }

    /// The number of its replica among the first ones.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a small count"
    )]
    fn replica(&self, initial: u32) -> u32 {
        (self.place * f64::from(initial)) as u32 + 1
    }

    fn silence(&self, initial: u32) -> Written<Silence> {
        Written::<Silence> {
            from: Some(seconds(self.begin)),
            length: Some(seconds(self.end - self.begin)),
            replica: Some(self.replica(initial)),
        }
    }
}

// === impl Slowdowns, SlowSpell ===

impl Slowdowns {
    pub(crate) fn draw(lot: Lot) -> Self {
        let mut random = lot.of(Aspect::Slowdown);

        Self {
            which: SLOWDOWNS.draw(&mut random),
            factor: digits(SLOWNESS.draw(&mut random), 2),
            begins: SLOW_FROM.draw(&mut random),
            minutes: SLOW_MINUTES.draw(&mut random),
            place: random.random(),
        }
    }

    /// The factor on iteration times when all engines are slow; 1 if they never are.
    pub(crate) fn slowness(&self) -> f64 {
        match self.which.value {
            SlowReplicas::None | SlowReplicas::One => 1.0,
            SlowReplicas::All => self.factor,
        }
    }

    /// The slowdown in a world of `length` seconds.
    pub(crate) fn dated(&self, length: f64) -> Option<SlowSpell> {
        let Self { which, factor, begins, minutes, place } = *self;
        let spell = Spell::new(begins * length, minutes, place);
        (which.value != SlowReplicas::None).then_some(SlowSpell {
            factor,
            spell,
            which: which.value,
        })
    }
}

impl SlowSpell {
    /// Returns true if all engines of the variant are slow.
    pub(crate) fn is_of_all(&self) -> bool {
        self.which == SlowReplicas::All
    }

    fn written(&self, initial: u32) -> Written<Slowdown> {
        Written::<Slowdown> {
            from: Some(seconds(self.spell.begin)),
            until: Some(seconds(self.spell.end)),
            factor: Some(self.factor),
            replica: (!self.is_of_all()).then(|| self.spell.replica(initial)),
        }
    }
}
