//! The gates: the promises of `plimsoll` per workload, the measured values, and the verdicts.
//!
//! All figures are means over the seeds, and are compared before they are rounded. A promise that
//! compares with another policy needs that policy on the board; a promise about a kind of workload
//! needs such a workload.

use crate::study::file::Kind;
use crate::study::scoreboard::board::{Scoreboard, Workload};
use crate::study::table::dash;

/// The policy that makes the promises.
const OWN: &str = "plimsoll";

/// The rounding error of sums of floating-point numbers.
const ROUNDING: f64 = 1e-9;

/// A promise for each workload.
struct Promise {
    text: &'static str,
    /// The kind of the workloads; `None` for all.
    kind: Option<Kind>,
    /// The policy that it compares with.
    beside: Option<&'static str>,
    bound: Bound,
    unit: FigureUnit,
    /// Returns `None` if there is nothing to compare.
    measure: fn(&Workload) -> Option<f64>,
}

/// The bound of a figure.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// The unit of a figure.
#[derive(Clone, Copy)]
enum FigureUnit {
    /// Percent.
    Percent,
    /// Percentage points.
    Points,
    /// Multiples of a cost.
    Times,
    /// Changes.
    Changes,
}

const PROMISES: [Promise; 6] = [
    Promise {
        text: "smooth: at least 99% within SLO",
        kind: Some(Kind::Smooth),
        beside: None,
        bound: Bound::AtLeast(99.0),
        unit: FigureUnit::Percent,
        measure: within_slo,
    },
    Promise {
        text: "smooth: at most 1.35 times the cost of `oracle`",
        kind: Some(Kind::Smooth),
        beside: Some("oracle"),
        bound: Bound::AtMost(1.35),
        unit: FigureUnit::Times,
        measure: ratio,
    },
    Promise {
        text: "smooth: at most 25 changes per hour for each 10 replicas",
        kind: Some(Kind::Smooth),
        beside: None,
        bound: Bound::AtMost(25.0),
        unit: FigureUnit::Changes,
        measure: changes,
    },
    Promise {
        text: "jumps: at most 2 points within SLO below `plimsoll-only-up`",
        kind: Some(Kind::Jumps),
        beside: Some("plimsoll-only-up"),
        bound: Bound::AtMost(2.0),
        unit: FigureUnit::Points,
        measure: lost,
    },
    Promise {
        text: "jumps: at most 2.0 times the cost of `oracle`",
        kind: Some(Kind::Jumps),
        beside: Some("oracle"),
        bound: Bound::AtMost(2.0),
        unit: FigureUnit::Times,
        measure: ratio,
    },
    Promise {
        text: "all: at most 1.2 times the cost of `static:best`, where there is one",
        kind: None,
        beside: Some("static:best"),
        bound: Bound::AtMost(1.2),
        unit: FigureUnit::Times,
        measure: ratio_to_static,
    },
];

/// The promises on the mean, over all workloads, of the cost relative to `oracle`.
const MEANS: [(&str, f64); 2] = [
    ("all: on average at most 1.55 times the cost of `oracle`", 1.55),
    ("all, beyond that: on average at most 1.40 times", 1.40),
];

/// A promise with its measured value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScoreboardGate {
    pub(crate) promise: &'static str,
    /// The number of measured workloads, and of all workloads.
    pub(crate) workloads: String,
    /// The figure that is nearest to the bound or farthest beyond it, with its workload.
    pub(crate) measured: String,
    /// The verdict: kept, or the miss and its workload.
    pub(crate) verdict: String,
}

/// The promises that can be measured on a board.
pub(crate) fn gates(board: &Scoreboard) -> Vec<ScoreboardGate> {
    if !board.plays(OWN) {
        return Vec::new();
    }
    let of_each = PROMISES.iter().filter_map(|promise| promise.gate(board));
    let of_means = MEANS.iter().filter_map(|&(text, most)| mean(board, text, most));
    of_each.chain(of_means).collect()
}

/// The workloads of a kind, by name.
pub(crate) fn named(board: &Scoreboard, kind: Kind) -> Option<String> {
    let of = board.workloads.iter().filter(|it| it.kind == Some(kind));
    let names: Vec<&str> = of.map(|it| it.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn mean(board: &Scoreboard, promise: &'static str, most: f64) -> Option<ScoreboardGate> {
    if !board.plays("oracle") || board.workloads.is_empty() {
        return None;
    }

    let ratios = board.workloads.iter().filter_map(|it| Some((&it.name, ratio(it)?)));
    let highest = ratios.clone().max_by(|a, b| a.1.total_cmp(&b.1));
    let (mean, _) = board.means(|workload| workload.of(OWN));
    let bound = Bound::AtMost(most);
    let unit = FigureUnit::Times;
    let verdict = mean.map_or_else(dash, |mean| match bound.missed_by(mean) {
        Some(by) => {
            let note =
                highest.map(|(name, it)| format!("; the highest is {} ({name})", unit.shown(it)));
            format!("missed by {}{}", unit.shown(by), note.unwrap_or_default())
        }
        None => "holds".to_owned(),
    });

    let workloads = shares(ratios.count(), board.workloads.len());
    let measured = mean.map_or_else(dash, |mean| unit.shown(mean));
    Some(ScoreboardGate { promise, workloads, measured, verdict })
}

fn shares(counted: usize, all: usize) -> String {
    if counted == all { all.to_string() } else { format!("{counted} of {all}") }
}

fn within_slo(workload: &Workload) -> Option<f64> {
    within(workload, OWN)
}

/// The share within SLO, in percent.
fn within(workload: &Workload, policy: &str) -> Option<f64> {
    let score = workload.of(policy).filter(|it| it.complete)?;
    score.within_slo.map(|share| share * 100.0)
}

fn ratio(workload: &Workload) -> Option<f64> {
    workload.ratio(workload.of(OWN).as_ref())
}

fn ratio_to_static(workload: &Workload) -> Option<f64> {
    workload.ratio_to("static:best", workload.of(OWN).as_ref())
}

/// Changes per hour for an average of ten replicas, that is, per ten replica-hours.
fn changes(workload: &Workload) -> Option<f64> {
    let score = workload.of(OWN).filter(|it| it.complete && it.replica_hours > 0.0)?;
    Some(score.actions / score.replica_hours * 10.0)
}

fn lost(workload: &Workload) -> Option<f64> {
    Some(within(workload, "plimsoll-only-up")? - within(workload, OWN)?)
}

// === impl Promise ===

impl Promise {
    fn gate(&self, board: &Scoreboard) -> Option<ScoreboardGate> {
        if self.beside.is_some_and(|policy| !board.plays(policy)) {
            return None;
        }

        let workloads: Vec<&Workload> = board
            .workloads
            .iter()
            .filter(|it| self.kind.is_none() || it.kind == self.kind)
            .collect();
        let mut figures: Vec<(&str, f64)> = Vec::new();
        for workload in &workloads {
            figures.extend((self.measure)(workload).map(|figure| (&*workload.name, figure)));
        }

        figures.sort_by(|a, b| self.bound.excess(b.1).total_cmp(&self.bound.excess(a.1)));
        let missed: Vec<String> = figures
            .iter()
            .filter(|(_, figure)| self.bound.missed_by(*figure).is_some())
            .map(|(name, figure)| self.shown(name, *figure))
            .collect();

        let worst = figures.first();
        let verdict = worst.map_or_else(dash, |(_, figure)| match self.bound.missed_by(*figure) {
            Some(by) => format!("missed by {}: {}", self.unit.difference(by), missed.join(", ")),
            None => "holds".to_owned(),
        });

        (!workloads.is_empty()).then(|| ScoreboardGate {
            promise: self.text,
            workloads: shares(figures.len(), workloads.len()),
            measured: worst.map_or_else(dash, |(name, figure)| self.shown(name, *figure)),
            verdict,
        })
    }

    /// A figure with the name of its workload.
    fn shown(&self, name: &str, figure: f64) -> String {
        format!("{} ({name})", self.unit.shown(figure))
    }
}

// === impl Bound ===

impl Bound {
    /// The amount by which a figure exceeds the bound; negative if it is within the bound.
    fn excess(self, figure: f64) -> f64 {
        match self {
            Self::AtLeast(least) => least - figure,
            Self::AtMost(most) => figure - most,
        }
    }

    /// The amount by which a figure exceeds the bound; `None` if it does not.
    fn missed_by(self, figure: f64) -> Option<f64> {
        Some(self.excess(figure)).filter(|excess| *excess > ROUNDING)
    }
}

// === impl FigureUnit ===

impl FigureUnit {
    /// A figure with one more digit than in tables, because it may be close to its bound.
    fn shown(self, figure: f64) -> String {
        match self {
            Self::Percent => format!("{figure:.2}%"),
            Self::Points => format!("{figure:.2} points"),
            Self::Times => format!("{figure:.3}"),
            Self::Changes => format!("{figure:.1}"),
        }
    }

    /// A difference of two figures.
    fn difference(self, by: f64) -> String {
        match self {
            Self::Percent | Self::Points => Self::Points.shown(by),
            Self::Times | Self::Changes => self.shown(by),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::study::results::{LeftOut, RunResult};

    /// The results of a policy: the share within SLO, the cost, which equals the replica-hours, and
    /// the changes.
    type PolicyFigures = (&'static str, f64, f64, u32);

    /// The results of Plimsoll's own policy.
    fn own(within: f64, cost: f64, actions: u32) -> PolicyFigures {
        (OWN, within, cost, actions)
    }

    fn run(seed: usize, came: PolicyFigures) -> RunResult {
        let (policy, within, cost, actions) = came;
        let run = json!({
            "index": seed, "settings": {}, "policy": policy, "seed": seed, "complete": true,
            "simulated_s": 3600.0, "within_slo": within, "within_ttft": within,
            "within_itl": within, "replica_hours": cost, "cost": cost, "actions": actions,
            "flips": 0, "violations": 0, "models": [], "variants": [], "decisions": [],
            "decisions_left_out": 0,
        });

        serde_json::from_value(run).unwrap()
    }

    fn workload(name: &str, kind: Option<Kind>, came: &[PolicyFigures]) -> Workload {
        let runs = came.iter().enumerate().map(|(seed, came)| run(seed, *came)).collect();
        let about = String::new();
        let traces = vec![];
        let left_out = vec![];
        let changed = vec![];

        Workload {
            name: name.to_owned(),
            about,
            kind,
            traces,
            length: 3600.0,
            runs,
            left_out,
            changed,
        }
    }

    fn board(policies: &[&str], workloads: Vec<Workload>) -> Scoreboard {
        let names = policies.iter().map(|it| (*it).to_owned()).collect();
        Scoreboard { policies: names, workloads, changes: vec![], left_out: vec![], seeds: 1 }
    }

    /// The verdict on the promise whose text begins like this.
    fn verdict(board: &Scoreboard, promise: &str) -> String {
        let gates = gates(board);
        let gate = gates.iter().find(|it| it.promise.starts_with(promise));
        gate.unwrap_or_else(|| panic!("{promise} in {gates:?}")).verdict.clone()
    }

    #[test]
    fn a_promise_holds_at_its_bound_and_is_missed_beyond_it() {
        let smooth = Some(Kind::Smooth);
        let jumps = Some(Kind::Jumps);
        let beside = ["plimsoll", "oracle", "plimsoll-only-up", "static:best"];
        let others = [
            ("oracle", 1.0, 10.0, 0),
            ("plimsoll-only-up", 0.9, 20.0, 1),
            ("static:best", 1.0, 11.25, 0),
        ];

        for (kind, came, promise, wanted) in [
            (smooth, own(0.99, 10.0, 0), "smooth: at least", "holds"),
            (smooth, own(0.989, 10.0, 0), "smooth: at least", "missed by 0.10 points: 98.90% (w)"),
            (smooth, own(1.0, 13.5, 0), "smooth: at most 1.35", "holds"),
            (smooth, own(1.0, 13.51, 0), "smooth: at most 1.35", "missed by 0.001: 1.351 (w)"),
            (smooth, own(1.0, 10.0, 25), "smooth: at most 25", "holds"),
            (smooth, own(1.0, 10.0, 26), "smooth: at most 25", "missed by 1.0: 26.0 (w)"),
            (smooth, own(1.0, 20.0, 50), "smooth: at most 25", "holds"),
            (jumps, own(0.88, 10.0, 0), "jumps: at most 2 points", "holds"),
            (
                jumps,
                own(0.879, 10.0, 0),
                "jumps: at most 2 points",
                "missed by 0.10 points: 2.10 points (w)",
            ),
            (jumps, own(0.9, 20.0, 0), "jumps: at most 2.0", "holds"),
            (jumps, own(0.9, 20.1, 0), "jumps: at most 2.0", "missed by 0.010: 2.010 (w)"),
            (None, own(0.9, 13.5, 0), "all: at most 1.2", "holds"),
            (None, own(0.9, 14.625, 0), "all: at most 1.2", "missed by 0.100: 1.300 (w)"),
            (None, own(0.9, 15.5, 0), "all: on average", "holds"),
            (
                None,
                own(0.9, 15.6, 0),
                "all: on average",
                "missed by 0.010; the highest is 1.560 (w)",
            ),
            (None, own(0.9, 14.0, 0), "all, beyond", "holds"),
            (None, own(0.9, 14.1, 0), "all, beyond", "missed by 0.010; the highest is 1.410 (w)"),
        ] {
            let board = board(&beside, vec![workload("w", kind, &[&[came], &others[..]].concat())]);
            assert_eq!(verdict(&board, promise), wanted, "{came:?}");
        }
    }

    fn smooth(name: &str, came: &[PolicyFigures]) -> Workload {
        let oracle = ("oracle", 1.0, 10.0, 0);
        workload(name, Some(Kind::Smooth), &[came, &[oracle]].concat())
    }

    #[test]
    fn a_mean_over_seeds_is_judged_and_every_workload_that_misses_is_named() {
        let workloads = vec![
            smooth("a", &[own(0.98, 13.0, 0), own(1.0, 14.0, 0)]),
            smooth("b", &[own(0.98, 16.0, 0)]),
            smooth("c", &[own(0.97, 15.0, 0)]),
            workload("d", None, &[own(0.1, 99.0, 0)]),
        ];
        let board = board(&["plimsoll", "oracle"], workloads);
        let missed = "missed by 2.00 points: 97.00% (c), 98.00% (b)";

        assert_eq!(verdict(&board, "smooth: at least"), missed, "a has 99% on average");
        let missed = "missed by 0.250: 1.600 (b), 1.500 (c)";
        assert_eq!(verdict(&board, "smooth: at most 1.35"), missed);
        let gates = gates(&board);
        let mean = gates.iter().find(|it| it.promise.starts_with("all: on average")).unwrap();
        assert_eq!((&*mean.workloads, &*mean.measured), ("3 of 4", "1.483"));
    }

    fn promises(policies: &[&str], kind: Option<Kind>) -> Vec<&'static str> {
        let board = board(policies, vec![workload("w", kind, &[own(1.0, 10.0, 0)])]);
        gates(&board).iter().map(|gate| gate.promise).collect()
    }

    #[test]
    fn a_promise_is_left_out_where_nothing_can_be_said_of_it() {
        let without_own = promises(&["oracle", "waiting:5"], Some(Kind::Smooth));
        assert!(without_own.is_empty(), "nobody promises");
        assert!(promises(&["plimsoll", "waiting:5"], None).is_empty(), "of no kind");
        let found = promises(&["plimsoll", "waiting:5"], Some(Kind::Smooth));
        assert!(found.len() == 2 && found[1].contains("25 changes"), "{found:?}");
    }

    #[test]
    fn a_workload_without_a_fixed_number_is_not_compared_with_one() {
        let came = [(OWN, 1.0, 10.0, 0), ("static:best", 1.0, 5.0, 0)];
        let mut none = workload("w", None, &came);
        none.left_out.push(LeftOut {
            index: 2,
            settings: serde_json::Map::new(),
            policy: "static:best".to_owned(),
            seed: 2,
            why: "none".to_owned(),
        });

        let board = board(&["plimsoll", "static:best"], vec![none]);
        let gates = gates(&board);
        assert_eq!((&*gates[0].workloads, &*gates[0].verdict), ("0 of 1", "-"), "{gates:?}");
    }
}
