//! What the autoscaler of a variant does with its number, and when.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// The seconds between two decisions of an HPA.
pub const SYNC_SECONDS: f64 = 15.0;

/// What the autoscaler of a variant does with its number.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Autoscaler {
    /// The HPA; null if there is none, or more than one.
    pub hpa: Option<String>,
    /// `keeps` if the desired replicas exist, `changes` if it will change them, `ignores` if its
    /// tolerance hides the change, `disabled` if it never scales in this direction, `unknown` if
    /// the desired or the existing replicas are not known, `not_followed` if no HPA follows desired
    /// replicas.
    #[schemars(with = "String")]
    pub reaction: Reaction,
    /// Seconds until its first change, at most, unless earlier changes used up its policies; null
    /// if there is none, or it is not known.
    pub first_change_seconds: Option<f64>,
    /// Seconds until the desired replicas are asked for, at most; null without a change, or if its
    /// policies take an unknown time or over an hour.
    pub done_seconds: Option<f64>,
    /// Its stabilization window for this change, in seconds; null if it makes no change.
    pub window_seconds: Option<f64>,
    /// Problems that keep the HPA or `ScaledObject` from following, as sentences.
    pub problems: Vec<String>,
    /// YAML to add to the HPA if its tolerance hides the change; otherwise null.
    pub remedy: Option<String>,
    /// All of this as a sentence.
    pub text: String,
}

/// The reaction of an HPA to desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reaction {
    /// The desired replicas exist.
    Keeps,
    /// It will change them.
    Changes,
    /// Its tolerance hides the change.
    Ignores,
    /// It never scales in this direction.
    Disabled,
    /// Its behavior or the existing replicas are not known.
    Unknown,
    /// No HPA follows the desired replicas.
    NotFollowed,
}

/// A change that an HPA will make.
#[derive(Clone, Debug)]
pub struct ComingChange {
    /// The HPA.
    pub hpa: String,
    /// The existing and the desired replicas.
    pub counts: [u32; 2],
    /// Its stabilization window, in seconds.
    pub window: f64,
    /// The seconds for which the number has asked for this change; `None` if it is not known.
    pub asked_for: Option<f64>,
    /// The seconds from its first change to its last; `None` if it is not known.
    pub steps: Option<f64>,
}

// === impl Autoscaler ===

impl Autoscaler {
    /// An autoscaler that makes no change.
    #[must_use]
    pub fn still(hpa: Option<String>, reaction: Reaction, text: String) -> Self {
        Self {
            hpa,
            reaction,
            first_change_seconds: None,
            done_seconds: None,
            window_seconds: None,
            problems: Vec::new(),
            remedy: None,
            text,
        }
    }

    /// An autoscaler that changes the replicas.
    #[must_use]
    pub fn changing(change: &ComingChange) -> Self {
        let left = (change.window - change.asked_for.unwrap_or(0.0)).max(0.0);
        let first = left + SYNC_SECONDS;

        Self {
            first_change_seconds: Some(first),
            done_seconds: change.steps.map(|steps| first + steps),
            window_seconds: Some(change.window),
            ..Self::still(Some(change.hpa.clone()), Reaction::Changes, change.to_string())
        }
    }

    /// Adds problems and the remedy for them.
    #[must_use]
    pub fn with(self, problems: Vec<String>, remedy: Option<String>) -> Self {
        Self { problems, remedy, ..self }
    }
}

impl fmt::Display for ComingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hpa, counts: [from, to], window, asked_for, steps } = self;
        let left = (window - asked_for.unwrap_or(0.0)).max(0.0);
        write!(f, "HPA {hpa} changes {from} to {to}")?;
        if *window > 0.0 {
            write!(f, " once its {window:.0} s window agrees, in at most {left:.0} s")?;
        }
        write!(f, ", at its next sync (every {SYNC_SECONDS:.0} s)")?;

        match steps {
            Some(seconds) if *seconds > 0.0 => {
                write!(f, "; its policies spread the change over {seconds:.0} s")
            }
            Some(_) => Ok(()),
            None => f.write_str("; how long its policies take is not known, or more than an hour"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coming_change_is_told_with_the_time_that_is_left_of_its_window_and_its_steps() {
        let change = |window, asked_for, steps| {
            let change =
                ComingChange { hpa: "llama".to_owned(), counts: [3, 5], window, asked_for, steps };
            let told = Autoscaler::changing(&change);
            (told.first_change_seconds, told.done_seconds, told.text)
        };
        let start = "HPA llama changes 3 to 5";
        let sync = "at its next sync (every 15 s)";
        let unknown = "how long its policies take is not known, or more than an hour";
        for (told, first, done, text) in [
            (change(0.0, None, Some(0.0)), 15.0, Some(15.0), format!("{start}, {sync}")),
            (
                change(300.0, Some(120.0), Some(30.0)),
                195.0,
                Some(225.0),
                format!(
                    "{start} once its 300 s window agrees, in at most 180 s, {sync}; its policies \
                     spread the change over 30 s"
                ),
            ),
            (
                change(300.0, Some(400.0), None),
                15.0,
                None,
                format!("{start} once its 300 s window agrees, in at most 0 s, {sync}; {unknown}"),
            ),
            (
                change(300.0, None, None),
                315.0,
                None,
                format!(
                    "{start} once its 300 s window agrees, in at most 300 s, {sync}; {unknown}"
                ),
            ),
        ] {
            assert_eq!(told, (Some(first), done, text));
        }
    }
}
