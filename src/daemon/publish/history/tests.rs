use super::*;
use plimsoll_core::decide::{NoData, Reason, Stage, Step, VariantReport};
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::Fraction;

use crate::fixtures;
use crate::publish::history::packed::PackedQuantity;
use plimsoll_core::observe::Observation;

/// Returns a variant with desired replicas that were decided now.
fn variant(desired: u32, basis: Basis) -> PublishedVariant {
    let spec = fixtures::variant("a");
    let mut observation = Observation::of_nothing(Bounds::default());
    observation.current = Replicas::new(2);
    let step = Step {
        stage: Stage::Hold,
        before: Replicas::ONE,
        after: Replicas::saturating(desired),
        reason: Reason::NoData(NoData::NotTried),
    };

    let mut decided = fixtures::decided(&spec, basis, vec![step]);
    decided.decision.current = observation.current;
    let report =
        VariantReport { saturation: Fraction::new(0.5).unwrap(), saturated: Replicas::ZERO };
    PublishedVariant {
        spec,
        observation,
        report: Some(report),
        decided: Some(decided),
        undecided: None,
    }
}

fn record(history: &RecentHistory, second: u64, variant: Option<PublishedVariant>) {
    let variants = variant.map(|it| (it.spec.key.clone(), it)).into_iter().collect();
    let published = Published { generation: second, variants, ..Published::default() };
    history.record(Timestamp::UNIX_EPOCH, Duration::from_secs(second), &published);
}

fn track(history: &RecentHistory) -> VariantTrack {
    history.track(&fixtures::variant("a").key).unwrap()
}

#[test]
fn every_change_is_kept_with_its_instant_and_nothing_between() {
    let history = RecentHistory::default();
    for second in 0..100 {
        let desired = if (30..70).contains(&second) { 3 } else { 2 };
        record(&history, second, Some(variant(desired, Basis::Fresh)));
    }

    let track = track(&history);
    let now = Duration::from_secs(100);
    let levels: Vec<_> = track.levels.iter().map(|it| (it.age(now), it.desired())).collect();
    let age = Duration::from_secs;
    assert_eq!(levels, [(age(100), Some(2)), (age(70), Some(3)), (age(30), Some(2))]);
    assert_eq!(track.samples.len(), 10, "one in each interval");
    assert_eq!(track.samples[0].saturation(), Some(0.5));
    assert_eq!(track.samples[0].waiting(), None, "what nobody says is no 0");
}

#[test]
fn an_hour_is_kept_with_the_level_that_was_in_force_at_its_beginning() {
    let history = RecentHistory::default();
    for second in 0..2 * 3600 {
        let desired = if second < 1800 { 1 } else { 2 };
        record(&history, second, Some(variant(desired, Basis::Fresh)));
    }

    let track = track(&history);
    assert_eq!(track.levels.len(), 1);
    assert_eq!(track.levels[0].desired(), Some(2));
    assert!(track.samples.len() <= SAMPLES_MAX && track.samples.len() >= 360);
}

#[test]
fn a_variant_that_never_stops_changing_takes_bounded_memory_and_says_since_when() {
    let history = RecentHistory::default();
    for second in 0..3600 {
        let desired = 1 + u32::try_from(second % 2).unwrap();
        record(&history, second, Some(variant(desired, Basis::Fresh)));
    }

    let track = track(&history);
    assert_eq!(track.levels.len(), LEVELS_MAX);
    let since = track.since.age(Duration::from_secs(3599));
    assert_eq!(since, track.levels[0].age(Duration::from_secs(3599)));
    assert!(history.events(usize::MAX, |_| true).len() <= EVENTS_MAX);
}

#[test]
fn the_memory_of_a_thousand_variants_is_what_is_documented() {
    let sizes = (size_of::<ReplicaLevel>(), size_of::<LoadSample>());
    assert_eq!(sizes, (32, 32));

    let history = RecentHistory::default();
    for second in 0..2 * 3600 {
        record(
            &history,
            second,
            Some(variant(1 + u32::try_from(second % 2).unwrap(), Basis::Fresh)),
        );
    }
    let inner = history.lock();
    let kept = inner.tracks.values().next().unwrap();
    let room = (kept.levels.capacity(), kept.samples.capacity());
    assert_eq!(room, (LEVELS_MAX, SAMPLES_MAX));
    assert!((room.0 + room.1) * 32 < 28_000);
    assert!(EVENTS_MAX * (size_of::<PastEvent>() + 128) < 1 << 20);
}

#[test]
fn what_happens_is_told_once_with_what_it_was_before() {
    let history = RecentHistory::default();
    record(&history, 0, Some(variant(2, Basis::Fresh)));
    record(&history, 1, Some(variant(2, Basis::Fresh)));
    record(&history, 2, Some(variant(3, Basis::Fresh)));
    record(&history, 3, Some(variant(3, Basis::Held)));
    record(&history, 4, Some(variant(3, Basis::Fresh)));
    record(&history, 5, None);

    let all = [
        (PastEventKind::Desired, None, Some(2)),
        (PastEventKind::Desired, Some(2), Some(3)),
        (PastEventKind::Held, Some(3), Some(3)),
        (PastEventKind::Released, Some(3), Some(3)),
        (PastEventKind::Removed, Some(3), None),
    ];
    let told: Vec<_> = history
        .events(9, |_| true)
        .into_iter()
        .rev()
        .map(|it| (it.change, it.before.map(Replicas::count), it.after.map(Replicas::count)))
        .collect();

    assert_eq!(told, all);
    assert!(history.track(&fixtures::variant("a").key).is_none(), "its past goes with it");
    assert_eq!(history.events(1, |_| true)[0].number, 5, "the newest is first");
    let because = history.events(9, |event| event.change == PastEventKind::Held)[0].because.clone();
    assert_eq!(because.unwrap().reason, "no_data");
}

#[test]
fn a_time_without_ticks_is_a_gap_and_no_line() {
    let history = RecentHistory::default();
    record(&history, 0, Some(variant(2, Basis::Fresh)));
    record(&history, 29, Some(variant(2, Basis::Fresh)));
    record(&history, 100, Some(variant(2, Basis::Fresh)));

    let track = track(&history);
    let verdicts: Vec<_> = track.levels.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [DesiredBasis::Fresh, DesiredBasis::Silent, DesiredBasis::Fresh]);
    assert_eq!(track.levels[1].desired(), None);
    assert_eq!(track.levels[1].age(Duration::from_secs(100)), Duration::from_secs(71));
    assert_eq!(history.events(9, |_| true).len(), 1, "nothing has changed");
}

#[test]
fn packing_keeps_zero_apart_from_nothing() {
    assert_eq!(PackedQuantity::of(Some(0.0)).quantity(), Some(0.0));
    assert_eq!(PackedQuantity::of(None).quantity(), None);
    assert_eq!(PackedNumber::of_count(Some(Replicas::ZERO)).count(), Some(Replicas::ZERO));
    assert_eq!(PackedNumber::of_count(Some(Replicas::LIMIT)).count(), Some(Replicas::LIMIT));
    assert_eq!(PackedNumber::of_count(None).count(), None);
}
