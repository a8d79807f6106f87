//! Faults of the replicas of a world: crashes, nodes that are taken back, starts that fail, silence, and
//! engines that slow down.

use rand::RngExt as _;

use crate::simulate::scenario::{Lifecycle, Silence, Slowdown};
use crate::study::worlds::course::digits;
use crate::study::worlds::lot::{Chosen, Lot};
use crate::study::worlds::machines::Tenure;
use crate::study::worlds::priors::{
    Aspect, CRASH_HOURS, FAILED_SHARE, FAILED_STARTS, FAILURES, Failure, SILENCES, SILENT_FROM,
    SILENT_MINUTES, SLOW_FROM, SLOW_MINUTES, SLOWDOWNS, SLOWNESS, SPOT_HOURS, Slow, TOGETHER,
};
use crate::study::worlds::written::seconds;
use plimsoll_core::settings::Written;

/// Hours until a spot node is taken back that is a variant of its own.
const SPOT_VARIANT_HOURS: f64 = 2.0;

/// The faults of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) failures: Chosen<Failure>,
    /// Hours between two failures of a replica.
    hours: f64,
    /// The share of the other nodes that are taken back with one.
    together: f64,
    /// The share of starts that fail.
    pub(crate) failed_starts: Chosen<f64>,
    /// Of one replica of the first variant.
    pub(crate) silence: Chosen<Option<Spell>>,
}

/// A time in which a fault lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell {
    /// Seconds.
    pub(crate) begin: f64,
    pub(crate) end: f64,
    /// The replica, by its place among the first ones, from 0 up to 1.
    place: f64,
}

/// Whether and when engines of the first variant slow down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slowdowns {
    pub(crate) which: Chosen<Slow>,
    factor: f64,
    /// When it begins, as a share of the duration.
    begins: f64,
    minutes: f64,
    place: f64,
}

/// Engines of the first variant that slow down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowSpell {
    pub(crate) factor: f64,
    pub(crate) spell: Spell,
    which: Slow,
}

// === impl Faults ===

impl Faults {
    /// The faults of a world that lasts for so many seconds and needs so many replicas on average.
    pub(crate) fn draw(lot: Lot, length: f64, need: f64) -> Self {
        let mut random = lot.of(Aspect::Failures);
        let failures = FAILURES.draw(&mut random);
        let hours = match failures.value {
            Failure::None => 0.0,
            Failure::Crash => CRASH_HOURS.draw(&mut random),
            Failure::Spot | Failure::SpotTogether => SPOT_HOURS.draw(&mut random),
        };
        let together = match failures.value {
            Failure::SpotTogether => digits(TOGETHER.draw(&mut random), 2),
            Failure::None | Failure::Crash | Failure::Spot => 0.0,
        };
        // Whether nodes go one by one or together, each lasts for as long.
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
            failed_starts: Chosen { name: fail.name, value: share },
            silence: Chosen { name: silent.name, value: silent.value.then_some(spell) },
        }
    }

    /// As a scenario has them of the first variant, which starts with so many replicas.
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

    /// The same of another variant.
    pub(crate) fn of_other(&self, tenure: Tenure) -> Option<Written<Lifecycle>> {
        let keys = self.of_all(tenure);
        (keys != Written::<Lifecycle>::default()).then_some(keys)
    }

    fn of_all(&self, tenure: Tenure) -> Written<Lifecycle> {
        let hours = |hours: f64| Some(seconds((hours * 3600.0).round()));
        let mut keys = Written::<Lifecycle>::default();
        match self.failures.value {
            Failure::None => {}
            Failure::Crash => keys.crash_every = hours(self.hours),
            Failure::Spot => keys.interrupt_every = hours(self.hours),
            Failure::SpotTogether => {
                keys.interrupt_every = hours(self.hours);
                keys.interrupt_together = Some(self.together);
            }
        }
        if tenure == Tenure::Spot && keys.interrupt_every.is_none() {
            keys.interrupt_every = hours(SPOT_VARIANT_HOURS);
        }
        keys
    }
}

// === impl Spell ===

impl Spell {
    /// A time of so many minutes from a second on.
    fn new(begin: f64, minutes: f64, place: f64) -> Self {
        let begin = begin.round();
        Self { begin, end: begin + (minutes * 60.0).round(), place }
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

    /// How many times as long iterations take when all engines are slow; 1 if they never are.
    pub(crate) fn slowness(&self) -> f64 {
        match self.which.value {
            Slow::None | Slow::One => 1.0,
            Slow::All => self.factor,
        }
    }

    /// The same in a world that lasts for so many seconds.
    pub(crate) fn dated(&self, length: f64) -> Option<SlowSpell> {
        let Self { which, factor, begins, minutes, place } = *self;
        let spell = Spell::new(begins * length, minutes, place);
        (which.value != Slow::None).then_some(SlowSpell { factor, spell, which: which.value })
    }
}

impl SlowSpell {
    /// Whether all engines of the variant are slow.
    pub(crate) fn is_of_all(&self) -> bool {
        self.which == Slow::All
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
