use proptest::prelude::*;

use super::*;

fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn present(asked: u32, empty: u32) -> PoolReplicas {
    PoolReplicas {
        asked: replicas(asked),
        empty: replicas(empty),
        moving: Replicas::ZERO,
        moved: Replicas::ONE,
    }
}

/// The last result after ticks every 30 s, one for each need.
fn after(needs: &[u32], present: PoolReplicas) -> Lowering {
    let mut memory = PackedNeeds::default();
    let policy = PackingPolicy::default();
    let mut answer = Lowering::Needed(Replicas::ZERO);
    for (tick, needed) in (0..).zip(needs) {
        answer = lower(at(tick * 30), &mut memory, replicas(*needed), present, &policy);
    }
    answer
}

#[test]
fn more_is_asked_for_at_once_and_less_after_a_window() {
    assert_eq!(after(&[7], present(4, 0)).replicas(), replicas(7));
    let waiting = after(&[2; 10], present(4, 0));
    assert_eq!(waiting.replicas(), replicas(4));
    assert_eq!(waiting.to_string(), "2 of 4 replicas needed; scale-down waits another 30 s");
    let packed = after(&[2; 11], present(4, 0));
    assert_eq!(packed.to_string(), "2 of 4 replicas needed after moving 1 copy");
}

#[test]
fn a_window_that_is_hardly_longer_than_a_tick_ends() {
    let mut memory = PackedNeeds::default();
    let window = Seconds::literal(60);
    for second in (0..=300).step_by(30) {
        memory.remember(at(second), replicas(2), window);
    }
    assert_eq!(memory.remaining(at(300), replicas(3), window), Seconds::ZERO);
}

#[test]
fn the_most_that_was_needed_in_the_window_stays() {
    let needs = [2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 2];
    assert_eq!(after(&needs, present(4, 0)).replicas(), replicas(3));
    let needs = [2, 2, 4, 2, 2, 2, 2, 2, 2, 2, 2];
    assert_eq!(
        after(&needs, present(4, 0)).to_string(),
        "2 of 4 replicas needed; scale-down waits another 60 s"
    );
}

#[test]
fn a_need_counts_until_it_is_a_window_old_and_in_an_empty_window_for_its_tick() {
    let mut memory = PackedNeeds::default();
    let window = Seconds::new(60.0).unwrap();
    let mut largest = |second, needed, window| {
        memory.remember(at(second), replicas(needed), window);
        memory.largest().count()
    };
    assert_eq!(largest(0, 5, window), 5);
    assert_eq!([15, 30, 45, 59].map(|second| largest(second, 2, window)), [5; 4]);
    assert_eq!(largest(60, 2, window), 2);
    assert_eq!(largest(61, 1, Seconds::ZERO), 1);
    assert_eq!(largest(62, 3, Seconds::ZERO), 3);
}

#[test]
fn empty_replicas_go_even_where_nothing_is_packed() {
    let moving = PoolReplicas { moving: Replicas::ONE, ..present(5, 2) };
    assert_eq!(
        after(&[1; 11], moving).to_string(),
        "3 replicas left: 2 empty, 1 needed, not packed: 1 replica is starting or leaving"
    );

    let many = PoolReplicas { moved: replicas(17), ..present(5, 0) };
    assert_eq!(
        after(&[1; 11], many).to_string(),
        "1 of 5 replicas needed, not packed: copies that would have to move: 17, and at most 16 may"
    );
    assert_eq!(
        after(&[4; 11], present(5, 2)).replicas(),
        replicas(4),
        "never below what is needed"
    );
}

#[test]
fn packing_again_takes_its_interval() {
    let mut memory = PackedNeeds::default();
    let policy = PackingPolicy::default();
    let mut last = None;
    for tick in 0..200 {
        let asked = if last.is_none() { 4 } else { 3 };
        let needed = if last.is_none() { 3 } else { 2 };
        let now = at(tick * 30);
        let answer = lower(now, &mut memory, replicas(needed), present(asked, 0), &policy);
        if matches!(answer, Lowering::Packed { .. }) {
            if let Some(before) = last {
                assert_eq!((tick - before) * 30, 1800);
                return;
            }
            memory.carried_out(now);
            last = Some(tick);
        }
    }

    panic!("never packed again");
}

#[test]
fn packing_can_be_off() {
    let mut memory = PackedNeeds::default();
    let policy = PackingPolicy { interval: None, ..PackingPolicy::default() };
    for tick in 0..100 {
        let answer = lower(at(tick * 30), &mut memory, Replicas::ONE, present(3, 0), &policy);
        assert_eq!(answer.replicas(), replicas(3));
    }
}

#[test]
fn a_gap_or_a_clock_that_goes_back_begins_the_window_anew() {
    let policy = PackingPolicy::default();
    for jump in [at(300 + 76), at(-10_000)] {
        let mut memory = PackedNeeds::default();
        for tick in 0..11 {
            let _ = lower(at(tick * 30), &mut memory, replicas(3), present(3, 0), &policy);
        }

        let answer = lower(jump, &mut memory, Replicas::ONE, present(3, 0), &policy);
        assert!(matches!(answer, Lowering::Waiting { .. }), "{answer:?}");
    }
}

proptest! {
    #[test]
    fn never_less_than_the_window_needed_nor_more_than_there_is_or_needed(
        needs in prop::collection::vec(0_u32..8, 1..60),
        asked in 0_u32..8,
        empty in 0_u32..8,
        moved in 0_u32..30,
        moving in 0_u32..2,
    ) {
        let present = PoolReplicas {
            asked: replicas(asked),
            empty: replicas(empty),
            moving: replicas(moving),
            moved: replicas(moved),
        };

        let policy = PackingPolicy::default();
        let mut memory = PackedNeeds::default();
        for (tick, needed) in needs.iter().enumerate() {
            let now = at(30 * i64::try_from(tick).unwrap());
            let answer = lower(now, &mut memory, replicas(*needed), present, &policy);
            let from = tick.saturating_sub(9);
            let largest = needs[from..=tick].iter().max().unwrap();
            prop_assert!(answer.replicas() >= replicas((*largest).min(asked)));
            prop_assert!(answer.replicas() <= replicas(asked.max(*needed)));
            prop_assert!(tick >= 10 || answer.replicas() >= replicas(asked), "window not seen");
        }
    }
}
