//! Invariants of every plan.

use proptest::prelude::*;

use super::*;

/// Cost, capacity, replicas, minimum and how many more the maximum allows.
type Row = (u32, u32, u32, u32, u32);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    proptest::collection::vec((0_u32..40, 1_u32..30, 0_u32..4, 0_u32..2, 0_u32..5), 1..5)
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A model of these rows, with costs multiplied by a factor.
struct Built {
    report: CapacityReport,
    candidates: Vec<Candidate>,
}

fn build(rows: &[Row], required: f64, factor: f64) -> Built {
    let offers: Vec<Offer<'_>> = rows
        .iter()
        .zip(NAMES)
        .map(|(&(cost, size, current, min, more), name)| {
            (name, f64::from(cost) * factor, f64::from(size), current.min(min + more))
        })
        .collect();
    let mut candidates: Vec<Candidate> = offers.iter().map(|offer| candidate(*offer)).collect();
    for (candidate, &(_, _, _, min, more)) in candidates.iter_mut().zip(rows) {
        candidate.bounds = Bounds::new(replicas(min), Some(replicas(min + more))).unwrap();
    }

    Built { report: report(&offers, required, 0.0), candidates }
}

fn solve(built: &Built) -> ModelPlan {
    let model = model(built.candidates.clone(), &built.report);
    // The search alone, so that no rule keeps a replica.
    let policy = OptimizerPolicy {
        switching: Switching { start: Fraction::ZERO, drain: Fraction::ZERO },
        replicas_min: KeptMin(Replicas::ZERO),
        ..OptimizerPolicy::default()
    };

    least_cost(&model, None, &policy, &consent)
}

/// The replicas of the final plan.
fn planned(plan: &ModelPlan) -> Vec<u32> {
    let each = plan.placements.iter().map(|placement| match placement.because {
        PlanReason::Serving { planned } | PlanReason::Refused { planned } => planned.count(),
        PlanReason::Kept
        | PlanReason::Added
        | PlanReason::Tried
        | PlanReason::Removed
        | PlanReason::Replaced
        | PlanReason::Unknown => placement.after.count(),
    });
    each.collect()
}

fn cost(rows: &[Row], counts: &[u32]) -> u32 {
    rows.iter().zip(counts).map(|(row, count)| row.0 * count).sum()
}

fn carried(rows: &[Row], counts: &[u32]) -> u32 {
    rows.iter().zip(counts).map(|(row, count)| row.1 * count).sum()
}

/// The least cost of all replica counts inside the bounds that cover most of the demand.
fn brute_force(rows: &[Row], wanted: u32) -> (u32, u32) {
    let mut best = None;
    let mut counts: Vec<u32> = rows.iter().map(|row| row.3).collect();
    loop {
        let worth = (wanted.saturating_sub(carried(rows, &counts)), cost(rows, &counts));
        if best.is_none_or(|best| worth < best) {
            best = Some(worth);
        }

        let Some(next) = (0..rows.len()).find(|&at| counts[at] < rows[at].3 + rows[at].4) else {
            return best.unwrap();
        };
        counts[next] += 1;
        for at in 0..next {
            counts[at] = rows[at].3;
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_cheaper(rows in rows(), required in 1_u32..100) {
        let built = build(&rows, f64::from(required), 1.0);
        let plan = solve(&built);
        let wanted = whole_count(plan.covers[0].wanted.amount());
        let counts = planned(&plan);
        let worth = (wanted.saturating_sub(carried(&rows, &counts)), cost(&rows, &counts));
        prop_assert_eq!(worth, brute_force(&rows, wanted));
        prop_assert!(matches!(plan.method, PlanMethod::Exact { .. }), "{}", plan);
    }

    #[test]
    fn more_to_carry_never_costs_less(rows in rows(), required in 1_u32..90, more in 0_u32..20) {
        let costs = [required, required + more].map(|required| {
            let plan = solve(&build(&rows, f64::from(required), 1.0));
            (carried(&rows, &planned(&plan)), cost(&rows, &planned(&plan)), plan.shortfall().is_some())
        });
        let [(_, less, short), (_, more, _)] = costs;
        prop_assert!(less <= more || short, "{costs:?}");
    }

    #[test]
    fn the_currency_changes_nothing(rows in rows(), required in 1_u32..100, factor in 0.01_f64..500.0) {
        let one = solve(&build(&rows, f64::from(required), 1.0));
        let other = solve(&build(&rows, f64::from(required), factor));
        prop_assert_eq!(planned(&one), planned(&other));
    }

    #[test]
    fn the_order_of_the_variants_changes_nothing(rows in rows(), required in 1_u32..100, turn in 0_usize..4) {
        let built = build(&rows, f64::from(required), 1.0);
        let mut turned = Built { report: built.report.clone(), candidates: built.candidates.clone() };
        turned.candidates.rotate_left(turn % rows.len());
        turned.report.variants.reverse();
        prop_assert_eq!(solve(&built), solve(&turned));
    }

    #[test]
    fn numbers_stay_inside_bounds_and_room_and_go_down_only_while_what_is_left_carries_the_load(
        rows in rows(),
        required in 0_u32..100,
        spare in 0_u32..60,
        pending in 0_u32..3,
        free in 0_u32..6,
    ) {
        let mut built = build(&rows, f64::from(required), 1.0);
        if required == 0 {
            built.report.total.spare = amount(f64::from(spare)).min(built.report.total.supply);
        }

        built.candidates[0].pending = replicas(pending).min(built.candidates[0].current);
        let mut room = SupplyHeadroom::default();
        let kind = Accelerator::new("H100").unwrap();
        room.cluster.insert(kind, Headroom::Limited(Gpus::new(free)));
        let model = model(built.candidates.clone(), &built.report);
        let plan = least_cost(&model, Some(&room), &OptimizerPolicy::default(), &consent);
        let mut started = 0;
        let mut ready = 0;
        let mut went = false;
        for (placement, candidate) in plan.placements.iter().zip(&built.candidates) {
            prop_assert_eq!(candidate.bounds.clamp(placement.after), placement.after);
            let forced = candidate.bounds.min().beyond(candidate.current);
            started += placement.after.beyond(placement.before).beyond(forced).count();
            let serving = candidate.current.beyond(candidate.pending);
            went |= placement.after < serving;
            let at = NAMES.iter().position(|name| *name == candidate.key.variant.as_str()).unwrap();
            ready += serving.min(placement.after).count() * rows[at].1;
        }

        prop_assert!(started <= free);
        prop_assert!(!went || f64::from(ready) + 1e-6 >= plan.covers[0].wanted.amount());
    }
}
