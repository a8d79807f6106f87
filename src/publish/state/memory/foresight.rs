//! The shape of what foresight knows.
//!
//! ```json
//! {"at":1795253460000,"pace":[[0.012,0.00004,0.00006],[[1e-4,0.0,0.0],[0.0,1e-9,0.0],[0.0,0.0,1e-9]],40],
//!  "lengths":[9000.0,2000.0,18.0],"held":[120000.0,400.0],"ranks":1,"kv":16000.0,"most_running":31.0,"busiest":812.0,
//!  "demands":[{"role":"both","begun":1795250000,"spacing":1.0,"closed":119683564,"rates":[3.2,3.4],
//!    "lengths":[9000.0,2000.0,18.0],"needs":[[1795253400000,4.1]],"raised":0.15,
//!    "week":{"begun":1994700,"closed":1994726,"today":0.97,"peak":61.5,"levels":"..aBc"}}]}
//! ```
//!
//! `levels` has a character for each quarter of an hour of a week, of the alphabet of base64, or a
//! dot where nothing is known.

use serde::{Deserialize, Serialize};

use crate::fleet::Role;
use crate::pipeline::saved::{
    SavedArrivals, SavedDemand, SavedForesight, SavedPace, SavedSeen, SavedWeek,
};
use crate::publish::state::memory::{Millis, instant, some};
use crate::units::Tokens;

/// The three coefficients, how sure they are, and from how many lessons.
type PaceLine = ([f64; 3], [[f64; 3]; 3], u32);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForesightLine {
    at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<SeenLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    demands: Vec<DemandLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeenLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<PaceLine>,
    lengths: [f64; 3],
    held: [f64; 2],
    ranks: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv: Option<f64>,
    most_running: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    full_at: Option<f64>,
    busiest: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DemandLine {
    role: RoleWord,
    begun: i64,
    spacing: f64,
    closed: i64,
    rates: Vec<f64>,
    lengths: [f64; 3],
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    needs: Vec<(Millis, f64)>,
    #[serde(default, skip_serializing_if = "is_nothing")]
    raised: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    week: Option<WeekLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeekLine {
    begun: i64,
    closed: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    today: Option<f64>,
    peak: f64,
    levels: String,
}

/// The characters that levels are told in.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What stands for a level that nobody knows.
const UNKNOWN: char = '.';

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(number: &f64) -> bool {
    *number <= 0.0
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleWord {
    Both,
    Prefill,
    Decode,
}

impl From<&SavedForesight> for ForesightLine {
    fn from(saved: &SavedForesight) -> Self {
        let SavedForesight { learned_at, seen, demands } = saved;
        Self {
            at: learned_at.as_millisecond(),
            seen: seen.as_ref().map(SeenLine::from),
            demands: demands.iter().map(DemandLine::from).collect(),
        }
    }
}

impl From<&SavedSeen> for SeenLine {
    fn from(saved: &SavedSeen) -> Self {
        let SavedSeen { pace, lengths, held, ranks, kv, most_running, full_at, busiest } = saved;
        let line = |SavedPace { theta, covariance, lessons }| (theta, covariance, lessons);
        Self {
            pace: pace.map(line),
            lengths: *lengths,
            held: *held,
            ranks: *ranks,
            kv: kv.map(Tokens::tokens),
            most_running: *most_running,
            full_at: *full_at,
            busiest: *busiest,
        }
    }
}

impl From<&SavedDemand> for DemandLine {
    fn from(saved: &SavedDemand) -> Self {
        let SavedDemand { role, arrivals, lengths, needs, raised, week } = saved;
        let SavedArrivals { begun, spacing, closed, rates } = arrivals.clone();
        let role = match role {
            Role::Both => RoleWord::Both,
            Role::Prefill => RoleWord::Prefill,
            Role::Decode => RoleWord::Decode,
        };
        let needs = needs.iter().map(|(at, need)| (at.as_millisecond(), *need)).collect();
        let (lengths, raised, week) = (*lengths, *raised, week.as_ref().map(WeekLine::from));
        Self { role, begun, spacing, closed, rates, lengths, needs, raised, week }
    }
}

impl From<&SavedWeek> for WeekLine {
    fn from(saved: &SavedWeek) -> Self {
        let SavedWeek { begun, closed, today, peak, levels } = saved;
        let letter = |level: &Option<u8>| {
            let known = level.and_then(|level| ALPHABET.get(usize::from(level)));
            known.map_or(UNKNOWN, |letter| char::from(*letter))
        };
        let levels = levels.iter().map(letter).collect();
        Self { begun: *begun, closed: *closed, today: *today, peak: *peak, levels }
    }
}

impl ForesightLine {
    /// What is known; `None` where it says what cannot be.
    pub(super) fn foresight(&self) -> Option<SavedForesight> {
        let Self { at, seen, demands } = self;
        let saved = SavedForesight {
            learned_at: instant(*at)?,
            seen: some(seen.as_ref(), SeenLine::seen).ok()?,
            demands: demands.iter().map(DemandLine::demand).collect::<Option<_>>()?,
        };
        saved.is_sound().then_some(saved)
    }
}

impl SeenLine {
    fn seen(&self) -> Option<SavedSeen> {
        let Self { pace, lengths, held, ranks, kv, most_running, full_at, busiest } = self;
        let told = |(theta, covariance, lessons)| SavedPace { theta, covariance, lessons };
        Some(SavedSeen {
            pace: pace.map(told),
            lengths: *lengths,
            held: *held,
            ranks: *ranks,
            kv: some(*kv, Tokens::new).ok()?,
            most_running: *most_running,
            full_at: *full_at,
            busiest: *busiest,
        })
    }
}

impl DemandLine {
    fn demand(&self) -> Option<SavedDemand> {
        let Self { role, begun, spacing, closed, rates, lengths, needs, raised, week } = self;
        let need = |(at, need): &(Millis, f64)| Some((instant(*at)?, *need));
        Some(SavedDemand {
            role: match role {
                RoleWord::Both => Role::Both,
                RoleWord::Prefill => Role::Prefill,
                RoleWord::Decode => Role::Decode,
            },
            arrivals: SavedArrivals {
                begun: *begun,
                spacing: *spacing,
                closed: *closed,
                rates: rates.clone(),
            },
            lengths: *lengths,
            needs: needs.iter().map(need).collect::<Option<_>>()?,
            raised: *raised,
            week: some(week.as_ref(), WeekLine::week).ok()?,
        })
    }
}

impl WeekLine {
    fn week(&self) -> Option<SavedWeek> {
        let Self { begun, closed, today, peak, levels } = self;
        let level = |letter: char| match ALPHABET.iter().position(|it| char::from(*it) == letter) {
            Some(level) => u8::try_from(level).ok().map(Some),
            None => (letter == UNKNOWN).then_some(None),
        };
        let levels = levels.chars().map(level).collect::<Option<_>>()?;
        Some(SavedWeek { begun: *begun, closed: *closed, today: *today, peak: *peak, levels })
    }
}
