use proptest::prelude::*;

use super::*;

fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn slots(number: u32) -> Option<Slots> {
    Slots::new(number)
}

fn unbounded() -> Bounds {
    Bounds::new(Replicas::ZERO, None).unwrap()
}

fn adapter(name: &str) -> Adapter {
    Adapter {
        name: ModelName::new(name).unwrap(),
        bounds: unbounded(),
        declared: None,
        traffic: None,
        seen: AdapterActivity::Idle,
    }
}

fn wants(counts: &[u32]) -> Vec<Copies> {
    let numbered = counts.iter().enumerate();
    numbered
        .map(|(index, count)| {
            let unset = adapter(&format!("a{index}"));
            copies(&Adapter { declared: Some(replicas(*count)), ..unset })
        })
        .collect()
}

fn asks(counts: &[u32], per_replica: u32, load: u32) -> Replicas {
    let need = need_of(counts, per_replica, load);
    desired(need, unbounded(), IdlePoolPolicy::KeepsOne, Replicas::ZERO).replicas
}

fn need_of(counts: &[u32], per_replica: u32, load: u32) -> PoolNeed {
    need(&wants(counts), slots(per_replica), Some(replicas(load)))
}

/// The desired replicas of a pool that may go to zero.
fn desired_for(need: PoolNeed, bounds: Bounds) -> DesiredPool {
    desired(need, bounds, IdlePoolPolicy::GoesToZero, Replicas::ZERO)
}

/// The table in docs/models.md.
#[test]
fn a_pool_has_replicas_for_copies_slots_and_load() {
    assert_eq!(asks(&[3, 2, 2, 1, 1], 4, 0), replicas(3), "three copies of one adapter");
    assert_eq!(asks(&[3, 2, 2, 1, 1], 2, 0), replicas(5), "nine copies in slots of two");
    assert_eq!(asks(&[2, 2, 1], 4, 0), replicas(2));
    assert_eq!(asks(&[2, 2, 1], 2, 0), replicas(3));
    assert_eq!(asks(&[1, 1], 8, 130_u32.div_ceil(40)), replicas(4), "130 requests at 40 each");
    assert_eq!(asks(&[], 4, 0), Replicas::ONE, "the last replica stays");
}

#[test]
fn the_binding_bound_is_named_and_said_with_its_numbers() {
    let need = need(&wants(&[3, 2, 2, 1, 1]), slots(2), Some(replicas(4)));
    assert_eq!(need.binding(), BindingNeed::Slots);

    let desired = desired(
        need,
        Bounds::new(Replicas::ONE, Some(replicas(4))).unwrap(),
        IdlePoolPolicy::KeepsOne,
        replicas(2),
    );
    assert_eq!(
        desired.to_string(),
        "4 replicas: 3 for the copies of a0, 5 for 9 copies at 2 slots per replica, 4 for the load; 1 more is needed, above the maximum"
    );
    assert_eq!(super::need(&[], slots(2), Some(Replicas::ZERO)).binding(), BindingNeed::Nothing);
}

#[test]
fn unknown_adapters_never_lower_a_pool() {
    let five = replicas(5);
    for need in [
        need(&wants(&[1]), None, Some(Replicas::ONE)),
        need(&wants(&[1]), slots(4), None),
        need(&[], None, None),
    ] {
        assert!(!need.is_complete());
        assert_eq!(desired(need, unbounded(), IdlePoolPolicy::GoesToZero, five).replicas, five);
    }

    let unread = Adapter { seen: AdapterActivity::Unknown { before: replicas(3) }, ..adapter("a") };
    assert_eq!(copies(&unread).wanted, replicas(3));
}

#[test]
fn only_an_unneeded_pool_goes_to_zero_and_only_where_it_may() {
    let nothing = need(&wants(&[0]), slots(4), Some(Replicas::ZERO));
    let one = replicas(1);
    let idle = desired(nothing.clone(), unbounded(), IdlePoolPolicy::GoesToZero, one);
    assert_eq!(idle.replicas, Replicas::ZERO);
    assert_eq!(desired(nothing, unbounded(), IdlePoolPolicy::KeepsOne, one).replicas, one);

    let wanted = need(&wants(&[1]), slots(4), Some(Replicas::ZERO));
    assert_eq!(desired(wanted, unbounded(), IdlePoolPolicy::GoesToZero, one).replicas, one);
}

#[test]
fn copies_are_declared_or_follow_from_traffic_or_from_what_was_seen() {
    let traffic = AdapterTraffic {
        arriving: RequestRate::new(5.0).unwrap(),
        per_replica: RequestRate::new(2.0).unwrap(),
        target: Fraction::new(0.8).unwrap(),
    };
    let busy = Adapter { traffic: Some(traffic), seen: AdapterActivity::Busy, ..adapter("a") };
    // 5 / (0.8 * 2) = 3.125
    assert_eq!(copies(&busy).wanted, replicas(4));
    assert_eq!(
        copies(&busy).to_string(),
        "a wants 4 copies: 5.000 requests/s arrive, and a replica serves 80% of 2.000"
    );

    let slow = AdapterTraffic { per_replica: RequestRate::new(0.5).unwrap(), ..traffic };
    let slow = Adapter { traffic: Some(slow), ..busy.clone() };
    assert_eq!(copies(&slow).wanted, replicas(13), "5 / (0.8 * 0.5) = 12.5");

    let declared = Adapter { declared: Some(replicas(2)), ..busy.clone() };
    assert_eq!(copies(&declared).wanted, replicas(2));
    let unmeasured = AdapterTraffic { per_replica: RequestRate::ZERO, ..traffic };
    let seen = Adapter { traffic: Some(unmeasured), ..busy };
    assert_eq!(copies(&seen).wanted, Replicas::ONE, "a replica that carries nothing says nothing");

    let starved = Adapter { seen: AdapterActivity::Starved { hosts: replicas(2) }, ..adapter("a") };
    assert_eq!(copies(&starved).wanted, replicas(3));
    let bounds = Bounds::new(Replicas::ONE, Some(replicas(2))).unwrap();
    assert_eq!(copies(&Adapter { bounds, ..starved }).wanted, replicas(2));
    assert_eq!(copies(&Adapter { bounds, ..adapter("a") }).wanted, Replicas::ONE);
}

proptest! {
    #[test]
    fn desired_never_falls_when_more_is_wanted_and_stays_in_bounds(
        counts in prop::collection::vec(0_u32..9, 1..12),
        more in any::<prop::sample::Index>(),
        per_replica in 1_u32..9,
        load in 0_u32..20,
        (min, room) in (0_u32..5, 0_u32..20),
    ) {
        let bounds = Bounds::new(replicas(min), Some(replicas(min + room))).unwrap();
        let base = desired_for(need_of(&counts, per_replica, load), bounds);
        let mut raised = counts.clone();
        raised[more.index(counts.len())] += 1;

        let wider = desired_for(need_of(&raised, per_replica, load), bounds);
        prop_assert!(wider.replicas >= base.replicas);
        let busier = desired_for(need_of(&counts, per_replica, load + 1), bounds);
        prop_assert!(busier.replicas >= base.replicas);
        let roomier = desired_for(need_of(&counts, per_replica + 1, load), bounds);
        prop_assert!(roomier.replicas <= base.replicas);
        prop_assert_eq!(bounds.clamp(base.replicas), base.replicas);
        prop_assert_eq!(base.unmet, base.need.replicas().beyond(base.replicas));
    }
}
