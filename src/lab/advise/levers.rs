//! The levers: each proposes changes of one kind for the models of a scene.
//!
//! A lever proposes a change only where it can matter. So a minimum of one is not lowered, and a
//! maximum that is never reached is not raised.

mod bounds;
mod engine;
mod objective;
mod starts;

use crate::advise::change::Trial;
use crate::advise::scene::ModelScene;

/// A kind of change.
pub(crate) struct Lever {
    /// Its name.
    pub(crate) name: &'static str,
    /// The changes that it proposes.
    propose: fn(&ModelScene<'_>, &'static str) -> Vec<Trial>,
}

/// All levers. If there are too many trials, those of later levers are left out.
const LEVERS: [Lever; 12] = [
    Lever { name: "lower_minimum", propose: bounds::lower_minimum },
    Lever { name: "raise_maximum", propose: bounds::raise_maximum },
    Lever { name: "raise_minimum", propose: bounds::raise_minimum },
    Lever { name: "foresight", propose: objective::foresight },
    Lever { name: "drop_variant", propose: engine::drop_variant },
    Lever { name: "accelerator", propose: engine::accelerator },
    Lever { name: "faster_start", propose: starts::faster },
    Lever { name: "scale_to_zero", propose: starts::to_zero },
    Lever { name: "standby", propose: starts::standby },
    Lever { name: "relax_objective", propose: objective::relax },
    Lever { name: "max_num_seqs", propose: engine::seats },
    Lever { name: "separate_roles", propose: engine::separate_roles },
];

/// The trials of all levers, in the order of the levers.
pub(crate) fn all(scene: &ModelScene<'_>) -> Vec<Trial> {
    LEVERS.iter().flat_map(|lever| (lever.propose)(scene, lever.name)).collect()
}
