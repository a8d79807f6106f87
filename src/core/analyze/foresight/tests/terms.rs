//! Terms of the need that look at late first tokens and at earlier days.

use super::*;
use crate::analyze::foresight::arrivals::STRIDE;
use crate::analyze::foresight::arrivals::saved::SavedArrivals;
use crate::analyze::foresight::batch::ReplicaContext;
use crate::analyze::foresight::role_demand::UpstreamArrivals;
use crate::analyze::foresight::seen::VariantModel;

/// Times to first token, of which this share is late.
fn late(share: f64) -> Histogram {
    let buckets = vec![(2.0, 1000.0 * (1.0 - share)), (10.0, 1000.0), (f64::INFINITY, 1000.0)];
    Histogram { sum: 1.0, count: 1000.0, buckets }
}

#[test]
fn late_first_tokens_ask_for_more_unless_that_is_coming_already() {
    let mut world = World::new(4);
    world.policy.error_budget = Some(policy::ErrorBudget::default());
    world.ttft = Some(late(0.005));
    assert!(
        world.run(300, 3.0 * truth()).foreseen[&Role::Both].need.error_budget.unwrap().abs() < 1e-9
    );

    world.ttft = Some(late(0.05));
    let raised = world.run(30, 3.0 * truth());
    let seen = raised.foreseen[&Role::Both];
    assert!(
        (seen.need.error_budget.unwrap() / seen.need.total - 0.09).abs() < 0.01,
        "{:?}",
        seen.need
    );
    assert!(seen.to_string().contains("because too many first tokens were late"), "{seen}");

    world.pending = 1;
    let coming = world.run(30, 3.0 * truth()).foreseen[&Role::Both].need;
    assert!(coming.error_budget <= seen.need.error_budget.map(|it| 1.02 * it), "{coming:?}");

    world.pending = 0;
    world.ttft = None;
    let unseen = world.run(30, 3.0 * truth()).foreseen[&Role::Both].need;
    assert!(unseen.error_budget < coming.error_budget, "what nobody sees adds nothing: {unseen:?}");

    // The addition is saved for a restart.
    let model = world.spec.model_key();
    let key = world.spec.key.clone();
    let saved = world.foresight.save(&model, &key).unwrap();
    assert!(saved.demands[0].raised > 0.05, "{saved:?}");
}

#[test]
fn a_rise_that_days_have_seen_at_this_hour_is_asked_for_before_it_comes() {
    let mut world = World::new(8);
    world.policy.schedule = Some(policy::Schedule::default());
    drop(world.run(200, 2.0 * truth()));
    let key = (world.spec.model_key(), Role::Both);
    let this = at(world.now).as_second().div_euclid(900);

    // Three days with seven replicas' load in this quarter of an hour.
    let mut levels = vec![None; 672];
    for day in 1..=3 {
        let slot = usize::try_from((this - 96 * day).rem_euclid(672)).unwrap();
        levels[slot] = Some(schedule::TOLD_MAX);
    }

    let begun = this - 300;
    let closed = this - 1;
    let peak = 7.0 * truth();
    let week = schedule::SavedWeek { begun, closed, today: None, peak, levels };
    world.foresight.demands.get_mut(&key).unwrap().week = week.restore();

    let seen = world.tick(2.0 * truth()).foreseen[&Role::Both];
    assert!((seen.need.schedule.unwrap() / peak - 1.0).abs() < 1e-9 && seen.need.total >= peak);
    assert!(seen.to_string().contains("are usual in the next"), "{seen}");
    world.policy.schedule = None;
    assert_eq!(world.tick(2.0 * truth()).foreseen[&Role::Both].need.schedule, None);
}

#[test]
fn past_requests_at_prefill_count_by_their_own_strides_at_decode() {
    let mut world = World::new(4);
    world.spec.role = Role::Decode;
    drop(world.run(600, 2.0 * truth()));
    world.prompt = 2.0 * PROMPT;
    drop(world.run(60, 2.0 * truth()));

    // Prefill has a shorter history, with more arrivals.
    let closed = at(world.now).as_second().div_euclid(STRIDE);
    let begun = (closed - 20) * STRIDE;
    let rates = vec![3.0 * truth(); 20];
    let prefill = SavedArrivals { begun, spacing: 1.0, closed, rates };

    let (model, role) = (world.spec.model_key(), Role::Decode);
    let demand = world.foresight.demands.get_mut(&(model.clone(), role)).unwrap();
    assert!(demand.arrivals.points().len() > 30);
    let known_through = at(world.now);
    demand.upstream = Some(UpstreamArrivals { arrivals: prefill.restore(), known_through });

    let current = Replicas::saturating(world.replicas);
    let variants = [VariantStrides { current, ..VariantStrides::example(&world.spec) }];
    let sides = world.foresight.sides(&world.policy, &model, &variants, &BTreeSet::new());
    let work = world.foresight.work(&world.policy, &model, &sides[&role]);
    assert_eq!(work.len(), 20, "{work:?}");
    assert!(work[0] < 0.9 && (work[19] - 1.0).abs() < 1e-9, "{work:?}");
}

#[test]
fn arrivals_that_replicas_no_longer_count_stay_as_they_were_and_free_nothing() {
    let mut world = World::new(4);
    let counted = world.run(300, 2.0 * truth());
    assert_eq!(counted.spare_withheld, None);

    world.uncounted = true;
    let unknown = world.run(1200, 2.0 * truth());
    assert_eq!(unknown.spare_withheld, Some(SpareWithheld::DemandUnknown));
    assert_eq!(unknown.report.total.spare, Amount::ZERO);
    let arriving = unknown.foreseen[&Role::Both].need.arriving;
    assert!((arriving - 2.0 * truth()).abs() < 0.1 * truth(), "{arriving}");

    world.uncounted = false;
    assert_eq!(world.run(60, 2.0 * truth()).spare_withheld, None);
}

#[test]
fn arrivals_after_an_instant_to_which_the_clock_went_back_are_unknown_until_they_are_counted() {
    let mut world = World::new(4);
    drop(world.run(300, 2.0 * truth()));

    world.now -= 100;
    world.foresight.rewind(at(world.now));
    world.uncounted = true;
    let unknown = world.run(60, 2.0 * truth());
    assert_eq!(unknown.spare_withheld, Some(SpareWithheld::DemandUnknown));
    let arriving = unknown.foreseen[&Role::Both].need.arriving;
    assert!((arriving - 2.0 * truth()).abs() < 0.1 * truth(), "{arriving}");

    world.uncounted = false;
    assert_eq!(world.run(60, 2.0 * truth()).spare_withheld, None);
}

#[test]
fn a_scrape_that_lacks_counters_changes_nothing_that_is_known() {
    let spec = VariantSpec::example("a");
    let replica = ReplicaKey {
        variant: spec.key,
        replica: ReplicaName::new("r0").unwrap(),
        incarnation: None,
    };
    let policy = ForesightPolicy::default();
    let around = ReplicaContext::example(&policy);

    let mut seen = VariantModel::default();
    let stride = IntervalDelta { ranks: 4, ..second(1, PROMPT, 20.0, 0.0) };
    seen.take(&replica, &stride, around);
    seen.take(&replica, &IntervalDelta::over(at(2), Seconds::ZERO), around);
    assert_eq!((seen.ranks(), seen.apart()), (4, Seconds::literal(1)));
}
