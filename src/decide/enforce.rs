//! Bounds, stabilisation windows and step limits.

use crate::units::Seconds;

/// How fast the published number may move, in the vocabulary of an HPA's `behavior`.
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    /// Rules for more replicas.
    pub scale_up: Rules,
    /// Rules for fewer replicas.
    pub scale_down: Rules,
}

/// Rules for one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Length of the window whose most cautious recommendation counts: the smallest for more
    /// replicas, the largest for fewer.
    pub stabilization_window: Seconds,
    /// Which of the policies counts.
    pub select: Select,
    /// What may change in a period; without any, nothing limits the step.
    pub policies: Vec<StepPolicy>,
}

/// Which of several step policies counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// The one that allows the largest change.
    #[default]
    Max,
    /// The one that allows the smallest change.
    Min,
    /// None: the number does not move in this direction.
    Disabled,
}

/// How much may change in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPolicy {
    /// The amount.
    pub amount: Amount,
    /// Length of the period.
    pub period: Seconds,
}

/// An amount of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many replicas.
    Pods(u32),
    /// So many per cent of the replicas at the start of the period.
    Percent(u32),
}
