//! The gates: what `plimsoll` promises of workloads, what was measured, and whether that holds.
//!
//! All figures are means over the seeds, and are compared before they are rounded. A promise that
//! compares with a policy is made where that plays; one of a kind of workload, where there is one.

use crate::study::file::Kind;
use crate::study::scoreboard::{Board, Workload};
use crate::study::table::dash;

/// Whose promises they are.
const OWN: &str = "plimsoll";

/// What sums of floating-point numbers may be off by.
const ROUNDING: f64 = 1e-9;

/// What is promised of each workload.
struct Promise {
    text: &'static str,
    /// Of which workloads; `None` for all.
    kind: Option<Kind>,
    /// With whom it compares.
    beside: Option<&'static str>,
    bound: Bound,
    unit: Unit,
    /// `None` where there is nothing to compare.
    measure: fn(&Workload) -> Option<f64>,
}

/// What a figure must not cross.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// What a figure is.
#[derive(Clone, Copy)]
enum Unit {
    /// Per cent.
    Percent,
    /// Differences of per cent.
    Points,
    /// Multiples of a cost.
    Times,
    /// Changes.
    Changes,
}

const PROMISES: [Promise; 6] = [
    Promise {
        text: "smooth: at least 99 % within SLO",
        kind: Some(Kind::Smooth),
        beside: None,
        bound: Bound::AtLeast(99.0),
        unit: Unit::Percent,
        measure: within_slo,
    },
    Promise {
        text: "smooth: at most 1.35 times the cost of `oracle`",
        kind: Some(Kind::Smooth),
        beside: Some("oracle"),
        bound: Bound::AtMost(1.35),
        unit: Unit::Times,
        measure: ratio,
    },
    Promise {
        text: "smooth: at most 25 changes an hour for each 10 replicas",
        kind: Some(Kind::Smooth),
        beside: None,
        bound: Bound::AtMost(25.0),
        unit: Unit::Changes,
        measure: changes,
    },
    Promise {
        text: "jumps: at most 2 points within SLO below `plimsoll-only-up`",
        kind: Some(Kind::Jumps),
        beside: Some("plimsoll-only-up"),
        bound: Bound::AtMost(2.0),
        unit: Unit::Points,
        measure: lost,
    },
    Promise {
        text: "jumps: at most 2.0 times the cost of `oracle`",
        kind: Some(Kind::Jumps),
        beside: Some("oracle"),
        bound: Bound::AtMost(2.0),
        unit: Unit::Times,
        measure: ratio,
    },
    Promise {
        text: "all: at most 1.2 times the cost of `static:best`, where there is one",
        kind: None,
        beside: Some("static:best"),
        bound: Bound::AtMost(1.2),
        unit: Unit::Times,
        measure: ratio_to_static,
    },
];

/// What is promised of the mean over all workloads of the cost over that of `oracle`.
const MEANS: [(&str, f64); 2] = [
    ("all: on average at most 1.55 times the cost of `oracle`", 1.55),
    ("all, beyond that: on average at most 1.40 times", 1.40),
];

/// A promise that was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) promise: &'static str,
    /// How many workloads were measured of how many.
    pub(crate) workloads: String,
    /// The figure that is nearest to the bound or farthest beyond, and of which workload it is.
    pub(crate) measured: String,
    /// Whether it holds, or by how much it was missed and where.
    pub(crate) verdict: String,
}

/// The promises that a board says something of.
pub(crate) fn gates(board: &Board) -> Vec<Gate> {
    if !board.plays(OWN) {
        return Vec::new();
    }
    let of_each = PROMISES.iter().filter_map(|promise| promise.gate(board));
    let of_means = MEANS.iter().filter_map(|&(text, most)| mean(board, text, most));
    of_each.chain(of_means).collect()
}

/// The workloads of a kind, by name.
pub(crate) fn named(board: &Board, kind: Kind) -> Option<String> {
    let of = board.workloads.iter().filter(|it| it.kind == Some(kind));
    let names: Vec<&str> = of.map(|it| it.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn mean(board: &Board, promise: &'static str, most: f64) -> Option<Gate> {
    if !board.plays("oracle") || board.workloads.is_empty() {
        return None;
    }
    let ratios = board.workloads.iter().filter_map(|it| Some((&it.name, ratio(it)?)));
    let highest = ratios.clone().max_by(|a, b| a.1.total_cmp(&b.1));
    let (mean, _) = board.means(|workload| workload.of(OWN));
    let (bound, unit) = (Bound::AtMost(most), Unit::Times);
    let verdict = mean.map_or_else(dash, |mean| match bound.missed_by(mean) {
        Some(by) => {
            let highest =
                highest.map(|(name, it)| format!("; the highest is {} ({name})", unit.shown(it)));
            format!("missed by {}{}", unit.shown(by), highest.unwrap_or_default())
        }
        None => "holds".to_owned(),
    });
    let workloads = shares(ratios.count(), board.workloads.len());
    let measured = mean.map_or_else(dash, |mean| unit.shown(mean));
    Some(Gate { promise, workloads, measured, verdict })
}

fn shares(counted: usize, all: usize) -> String {
    if counted == all { all.to_string() } else { format!("{counted} of {all}") }
}

fn within_slo(workload: &Workload) -> Option<f64> {
    within(workload, OWN)
}

/// In per cent.
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

/// Changes an hour for each ten replicas that there are on average: of so many replica-hours.
fn changes(workload: &Workload) -> Option<f64> {
    let score = workload.of(OWN).filter(|it| it.complete && it.replica_hours > 0.0)?;
    Some(score.actions / score.replica_hours * 10.0)
}

fn lost(workload: &Workload) -> Option<f64> {
    Some(within(workload, "plimsoll-only-up")? - within(workload, OWN)?)
}

// === impl Promise ===

impl Promise {
    fn gate(&self, board: &Board) -> Option<Gate> {
        if self.beside.is_some_and(|policy| !board.plays(policy)) {
            return None;
        }
        let of = |it: &&Workload| self.kind.is_none() || it.kind == self.kind;
        let workloads: Vec<&Workload> = board.workloads.iter().filter(of).collect();
        let mut figures: Vec<(&str, f64)> = Vec::new();
        for workload in &workloads {
            figures.extend((self.measure)(workload).map(|figure| (&*workload.name, figure)));
        }
        figures.sort_by(|a, b| self.bound.excess(b.1).total_cmp(&self.bound.excess(a.1)));
        let said = |(name, figure): &(&str, f64)| format!("{} ({name})", self.unit.shown(*figure));
        let missed: Vec<String> = figures
            .iter()
            .filter(|(_, figure)| self.bound.missed_by(*figure).is_some())
            .map(said)
            .collect();
        let worst = figures.first();
        let verdict = worst.map_or_else(dash, |(_, figure)| match self.bound.missed_by(*figure) {
            Some(by) => format!("missed by {}: {}", self.unit.difference(by), missed.join(", ")),
            None => "holds".to_owned(),
        });
        (!workloads.is_empty()).then(|| Gate {
            promise: self.text,
            workloads: shares(figures.len(), workloads.len()),
            measured: worst.map_or_else(dash, said),
            verdict,
        })
    }
}

// === impl Bound ===

impl Bound {
    /// How far a figure is beyond it; below zero where it is within.
    fn excess(self, figure: f64) -> f64 {
        match self {
            Self::AtLeast(least) => least - figure,
            Self::AtMost(most) => figure - most,
        }
    }

    /// How far a figure is beyond it; `None` where it is not.
    fn missed_by(self, figure: f64) -> Option<f64> {
        Some(self.excess(figure)).filter(|excess| *excess > ROUNDING)
    }
}

// === impl Unit ===

impl Unit {
    /// A figure, with a digit more than tables have, because it may be next to its bound.
    fn shown(self, figure: f64) -> String {
        match self {
            Self::Percent => format!("{figure:.2} %"),
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

    /// What a policy came to: the share within SLO, the cost, which is that of as many
    /// replica-hours, and changes.
    type Came = (&'static str, f64, f64, u32);

    fn run(seed: usize, (policy, within, cost, actions): Came) -> RunResult {
        let run = json!({
            "index": seed, "settings": {}, "policy": policy, "seed": seed, "complete": true,
            "simulated_s": 3600.0, "within_slo": within, "within_ttft": within,
            "within_itl": within, "replica_hours": cost, "cost": cost, "actions": actions,
            "flips": 0, "violations": 0, "models": [], "variants": [], "decisions": [],
            "decisions_left_out": 0,
        });
        serde_json::from_value(run).unwrap()
    }

    fn workload(name: &str, kind: Option<Kind>, came: &[Came]) -> Workload {
        let runs = came.iter().enumerate().map(|(seed, came)| run(seed, *came)).collect();
        let (about, traces, left_out, changed) = (String::new(), vec![], vec![], vec![]);
        let name = name.to_owned();
        Workload { name, about, kind, traces, length: 3600.0, runs, left_out, changed }
    }

    fn board(policies: &[&str], workloads: Vec<Workload>) -> Board {
        let policies = policies.iter().map(|it| (*it).to_owned()).collect();
        Board { policies, workloads, changes: vec![], left_out: vec![], seeds: 1 }
    }

    /// The verdict on the promise that begins so.
    fn verdict(board: &Board, promise: &str) -> String {
        let gates = gates(board);
        let gate = gates.iter().find(|it| it.promise.starts_with(promise));
        gate.unwrap_or_else(|| panic!("{promise} in {gates:?}")).verdict.clone()
    }

    #[test]
    fn a_promise_holds_at_its_bound_and_is_missed_beyond_it() {
        let (smooth, jumps) = (Some(Kind::Smooth), Some(Kind::Jumps));
        let beside = ["plimsoll", "oracle", "plimsoll-only-up", "static:best"];
        let check = |kind, came: Came, promise: &str, wanted: &str| {
            let others = [
                ("oracle", 1.0, 10.0, 0),
                ("plimsoll-only-up", 0.9, 20.0, 1),
                ("static:best", 1.0, 11.25, 0),
            ];
            let board = board(&beside, vec![workload("w", kind, &[&[came], &others[..]].concat())]);
            assert_eq!(verdict(&board, promise), wanted, "{came:?}");
        };
        let own = |within, cost, actions| (OWN, within, cost, actions);
        check(smooth, own(0.99, 10.0, 0), "smooth: at least", "holds");
        let missed = "missed by 0.10 points: 98.90 % (w)";
        check(smooth, own(0.989, 10.0, 0), "smooth: at least", missed);
        check(smooth, own(1.0, 13.5, 0), "smooth: at most 1.35", "holds");
        check(smooth, own(1.0, 13.51, 0), "smooth: at most 1.35", "missed by 0.001: 1.351 (w)");
        check(smooth, own(1.0, 10.0, 25), "smooth: at most 25", "holds");
        check(smooth, own(1.0, 10.0, 26), "smooth: at most 25", "missed by 1.0: 26.0 (w)");
        check(smooth, own(1.0, 20.0, 50), "smooth: at most 25", "holds");
        check(jumps, own(0.88, 10.0, 0), "jumps: at most 2 points", "holds");
        let missed = "missed by 0.10 points: 2.10 points (w)";
        check(jumps, own(0.879, 10.0, 0), "jumps: at most 2 points", missed);
        check(jumps, own(0.9, 20.0, 0), "jumps: at most 2.0", "holds");
        check(jumps, own(0.9, 20.1, 0), "jumps: at most 2.0", "missed by 0.010: 2.010 (w)");
        check(None, own(0.9, 13.5, 0), "all: at most 1.2", "holds");
        check(None, own(0.9, 14.625, 0), "all: at most 1.2", "missed by 0.100: 1.300 (w)");
        check(None, own(0.9, 15.5, 0), "all: on average", "holds");
        check(
            None,
            own(0.9, 15.6, 0),
            "all: on average",
            "missed by 0.010; the highest is 1.560 (w)",
        );
        check(None, own(0.9, 14.0, 0), "all, beyond", "holds");
        check(None, own(0.9, 14.1, 0), "all, beyond", "missed by 0.010; the highest is 1.410 (w)");
    }

    #[test]
    fn a_mean_over_seeds_is_judged_and_every_workload_that_misses_is_named() {
        let one = |within, cost| (OWN, within, cost, 0);
        let smooth = |name, came: &[Came]| {
            let oracle = ("oracle", 1.0, 10.0, 0);
            workload(name, Some(Kind::Smooth), &[came, &[oracle]].concat())
        };
        let workloads = vec![
            smooth("a", &[one(0.98, 13.0), one(1.0, 14.0)]),
            smooth("b", &[one(0.98, 16.0)]),
            smooth("c", &[one(0.97, 15.0)]),
            workload("d", None, &[one(0.1, 99.0)]),
        ];
        let board = board(&["plimsoll", "oracle"], workloads);
        let missed = "missed by 2.00 points: 97.00 % (c), 98.00 % (b)";
        assert_eq!(verdict(&board, "smooth: at least"), missed, "a has 99 % on average");
        let missed = "missed by 0.250: 1.600 (b), 1.500 (c)";
        assert_eq!(verdict(&board, "smooth: at most 1.35"), missed);
        let gates = gates(&board);
        let mean = gates.iter().find(|it| it.promise.starts_with("all: on average")).unwrap();
        assert_eq!((&*mean.workloads, &*mean.measured), ("3 of 4", "1.483"));
    }

    #[test]
    fn a_promise_is_left_out_where_nothing_can_be_said_of_it() {
        let own = (OWN, 1.0, 10.0, 0);
        let of = |policies: &[&str], kind| -> Vec<&str> {
            let board = board(policies, vec![workload("w", kind, &[own])]);
            gates(&board).iter().map(|gate| gate.promise).collect()
        };
        assert!(of(&["oracle", "waiting:5"], Some(Kind::Smooth)).is_empty(), "nobody promises");
        assert!(of(&["plimsoll", "waiting:5"], None).is_empty(), "of no kind");
        let promises = of(&["plimsoll", "waiting:5"], Some(Kind::Smooth));
        assert!(promises.len() == 2 && promises[1].contains("25 changes"), "{promises:?}");
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
