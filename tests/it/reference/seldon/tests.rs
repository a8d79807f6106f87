//! What the mended rules do otherwise than Seldon's. Seldon's own are held by its vectors.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::copies::{CopyState, ModelState, Version, Wanted, model_state};
use super::count::{
    Assigned, Coin, Host, Packing, Presence, Scaling, Service, Size, Statistics, Stay, scale_down,
    scale_up, statistics,
};
use super::lag::{Direction, Ignored, Lags, Scalable, Thresholds, Trigger, VersionNumber, step};
use super::memory::{Capacity, Ledger, Refused};
use super::placement::{Guest, Holding, Placement, Room, Server, Sharing, place};
use super::written::{Contradiction, Refusal, Written, accept, normalize};
use super::{Bytes, Rules};
use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::{ModelName, VariantName};
use plimsoll::units::{Fraction, Replicas, Requests, Seconds};

fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn size(expected: u32, min: u32, max: u32) -> Size {
    Size { expected: Replicas::new(expected), min: replicas(min), max: Replicas::new(max) }
}

fn stats(empty: u32, hosted: u32) -> Statistics {
    Statistics { empty: replicas(empty), hosted: replicas(hosted) }
}

fn host(ordinal: u32, resident: &[&str]) -> Host {
    Host {
        ordinal: Ordinal::new(ordinal),
        service: Service::Serving,
        resident: resident.iter().map(|it| name(it)).collect(),
        coming: BTreeSet::new(),
    }
}

fn wants(desired: u32) -> Assigned {
    Assigned { desired: replicas(desired), presence: Presence::Wanted }
}

#[test]
fn a_deleted_model_wants_no_copies() {
    let gone = Assigned { presence: Presence::Deleted, ..wants(2) };
    let hosts = [host(0, &["aa"]), host(1, &["bb"])];
    let models = [wants(1), wants(1), gone];
    let count = |rules| statistics(rules, &hosts, &models, Some(replicas(2)));
    assert_eq!(count(Rules::Seldon).hosted, replicas(2));
    assert_eq!(count(Rules::Mended).hosted, replicas(1));
    // So the first example of Seldon's document comes out as it says.
    let down = |rules| scale_down(rules, size(2, 1, 4), Some(count(rules)), Packing::Allowed);
    assert_eq!(down(Rules::Seldon).target(), None);
    assert_eq!(
        down(Rules::Mended).to_string(),
        "1 replicas: no model wants more than 1 copies, so they fit on fewer than 2 replicas, at \
         least 1 kept"
    );
}

#[test]
fn the_second_example_of_the_document_packs_onto_two_replicas() {
    for rules in [Rules::Seldon, Rules::Mended] {
        let down = scale_down(rules, size(3, 1, 4), Some(stats(0, 2)), Packing::Allowed);
        assert_eq!(down.target(), Some(replicas(2)));
    }
}

#[test]
fn only_replicas_that_stay_and_expect_nothing_are_empty() {
    let draining = Host { service: Service::Draining, ..host(0, &[]) };
    let coming = Host { coming: BTreeSet::from([name("aa")]), ..host(1, &[]) };
    let beyond = host(3, &[]);
    let hosts = [draining, coming, host(2, &[]), beyond];
    let count = |rules| statistics(rules, &hosts, &[], Some(replicas(3))).empty;
    assert_eq!(count(Rules::Seldon), replicas(4));
    assert_eq!(count(Rules::Mended), replicas(1));
}

/// Five replicas empty one by one while pods that were given back are still there: Seldon goes from
/// 4 to 2, although three are in use.
#[test]
fn an_empty_replica_is_given_back_once() {
    let hosts = [host(0, &["a"]), host(1, &["a"]), host(2, &["a"]), host(3, &[]), host(4, &[])];
    let down = |rules| {
        let stats = statistics(rules, &hosts, &[wants(3)], Some(replicas(4)));
        scale_down(rules, size(4, 1, 8), Some(stats), Packing::Refused).target()
    };
    assert_eq!(down(Rules::Seldon), Some(replicas(2)));
    assert_eq!(down(Rules::Mended), Some(replicas(3)));
}

#[test]
fn neither_rule_moves_against_its_direction_or_asks_for_what_there_is() {
    let up = |rules| scale_up(rules, size(5, 1, 4), Some(stats(0, 6)));
    assert_eq!(up(Rules::Seldon).target(), Some(replicas(4)), "scale-up shrinks");
    assert_eq!(up(Rules::Mended), Scaling::Stay(Stay::AtLimit(replicas(4))));
    let down = |rules| scale_down(rules, size(2, 5, 5), Some(stats(1, 0)), Packing::Refused);
    assert_eq!(down(Rules::Seldon).target(), Some(replicas(5)), "scale-down grows");
    assert_eq!(down(Rules::Mended).target(), None);
    let same = scale_up(Rules::Mended, size(4, 1, 4), Some(stats(0, 6)));
    assert_eq!(same.target(), None);
    assert_eq!(same.to_string(), "already at the limit of 4 replicas");
}

#[test]
fn more_empty_replicas_than_are_asked_for_leave_one() {
    let hosts: Vec<Host> = (0..5).map(|ordinal| host(ordinal, &[])).collect();
    for rules in [Rules::Seldon, Rules::Mended] {
        let stats = statistics(rules, &hosts, &[], Some(replicas(2)));
        let down = scale_down(rules, size(2, 0, 9), Some(stats), Packing::Refused);
        assert_eq!(down.target(), Some(Replicas::ONE), "{rules:?}");
    }
}

/// Growing aims at the most copies of a model and packing stops there.
#[test]
fn growing_and_packing_never_undo_each_other() {
    for expected in 0..8 {
        for hosted in 0..8 {
            for empty in 0..=expected {
                let size = size(expected, 0, 8);
                let up = scale_up(Rules::Mended, size, Some(stats(empty, hosted))).target();
                let down =
                    scale_down(Rules::Mended, size, Some(stats(empty, hosted)), Packing::Allowed)
                        .target();
                if let Some(target) = up {
                    let after = Size { expected: Some(target), ..size };
                    let back =
                        scale_down(Rules::Mended, after, Some(stats(0, hosted)), Packing::Allowed);
                    assert_eq!(back.target(), None);
                } else if let Some(target) = down.filter(|target| *target >= replicas(hosted)) {
                    let after = Size { expected: Some(target), ..size };
                    let back = scale_up(Rules::Mended, after, Some(stats(0, hosted)));
                    assert_eq!(back.target(), None);
                }
            }
        }
    }
}

#[test]
fn a_percentage_is_no_probability() {
    let fraction = |number| Fraction::new(number).unwrap();
    let coin = |probability, draw| {
        Coin { probability: fraction(probability), draw: fraction(draw) }.packing()
    };
    assert!(coin(25.0, 0.5).is_err());
    assert_eq!(coin(0.25, 0.5), Ok(Packing::Refused));
    assert_eq!(coin(0.25, 0.751), Ok(Packing::Allowed));
    assert_eq!(coin(0.0, 0.999), Ok(Packing::Refused));
}

#[test]
fn numbers_that_are_written_are_compared_before_they_are_capped() {
    let written = Written { replicas: Some(1_200_000), min: None, max: Some(1_100_000) };
    assert!(matches!(normalize(written), Err(Contradiction::AboveMax { .. })));

    let fitting = Written { max: Some(1_300_000), ..written };
    assert_eq!(normalize(fitting).unwrap().expected, Some(Replicas::LIMIT));
}

#[test]
fn a_negative_request_is_refused_even_without_a_maximum() {
    let written = Written { replicas: Some(2), min: Some(1), max: None };
    assert_eq!(accept(written, -1), Err(Refusal::NotACount(-1)));
    assert_eq!(accept(written, 5), Ok(replicas(5)));
    assert_eq!(
        accept(Written { max: Some(4), ..written }, 5).unwrap_err().to_string(),
        "5 replicas are not between 1 and 4"
    );
}

#[test]
fn a_model_is_available_with_enough_copies_and_never_without_any() {
    let available = [CopyState::Available; 2];
    let state = |rules, desired, min, copies: &[CopyState]| {
        let wanted = Wanted { desired: replicas(desired), min: replicas(min) };
        model_state(rules, Version::Only, Some(wanted), copies)
    };
    assert_eq!(state(Rules::Seldon, 1, 0, &available), ModelState::Progressing);
    assert_eq!(state(Rules::Mended, 1, 0, &available), ModelState::Available);
    assert_eq!(state(Rules::Seldon, 0, 1, &[]), ModelState::Available);
    assert_eq!(state(Rules::Mended, 0, 1, &[]), ModelState::Progressing);
    assert_eq!(state(Rules::Mended, 3, 1, &available), ModelState::Available, "the least it takes");
    assert_eq!(state(Rules::Mended, 3, 0, &available), ModelState::Progressing);
}

fn lag_rounds(rules: Rules, script: impl Fn(&mut Lags, &dyn Fn(i64) -> Timestamp)) -> Vec<Trigger> {
    let at = |second| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
    let mut lags = Lags::new(rules);
    lags.add(at(0), &name("m"));
    script(&mut lags, &at);
    let thresholds =
        Thresholds { lag: Requests::new(30.0).unwrap(), idle: Seconds::new(60.0).unwrap() };
    lags.round(at(100), thresholds)
}

#[test]
fn a_new_model_has_no_lag() {
    let requests = Requests::new(29.0).unwrap();
    let run = |rules| lag_rounds(rules, |lags, at| lags.start(at(90), &name("m"), requests));
    assert!(matches!(run(Rules::Seldon)[..], [Trigger::Up { .. }]));
    assert!(run(Rules::Mended).is_empty());
}

#[test]
fn the_end_of_an_old_request_does_not_cancel_a_new_one() {
    let run = |rules| {
        lag_rounds(rules, |lags, at| {
            let model = name("m");
            let number = |number| Requests::new(number).unwrap();
            let thresholds = Thresholds { lag: number(30.0), idle: Seconds::new(60.0).unwrap() };
            lags.start(at(80), &model, number(40.0));
            assert_eq!(lags.round(at(80), thresholds).len(), 1);
            assert!(lags.round(at(81), thresholds).is_empty(), "answered once");
            lags.start(at(90), &model, number(35.0));
            lags.end(at(91), &model, number(40.0));
        })
    };
    assert!(run(Rules::Seldon).is_empty());
    assert_eq!(
        run(Rules::Mended).first().map(ToString::to_string).as_deref(),
        Some("m wants a copy more: 35 requests in flight")
    );
}

#[test]
fn a_model_in_the_middle_of_a_request_is_not_idle() {
    let one = Requests::new(1.0).unwrap();
    let run = |rules| lag_rounds(rules, |lags, at| lags.start(at(1), &name("m"), one));
    assert!(matches!(run(Rules::Seldon)[..], [Trigger::Down { .. }]));
    assert!(run(Rules::Mended).is_empty());
}

#[test]
fn a_model_outside_its_limits_goes_to_the_limit() {
    let model = |desired, min, max| Scalable {
        presence: Presence::Wanted,
        desired: replicas(desired),
        min: replicas(min),
        max: Replicas::new(max),
        latest: VersionNumber(1),
        available: Some(VersionNumber(1)),
        unchanged_for: Seconds::new(60.0).unwrap(),
    };
    let up = |rules, model: Scalable| step(rules, Direction::Up, VersionNumber(1), Some(&model));
    let down =
        |model: Scalable| step(Rules::Mended, Direction::Down, VersionNumber(1), Some(&model));
    assert_eq!(up(Rules::Seldon, model(1, 5, 9)), Err(Ignored::BelowMin(replicas(5))));
    assert_eq!(up(Rules::Mended, model(1, 5, 9)), Ok(replicas(5)));
    assert_eq!(down(model(9, 1, 5)), Ok(replicas(5)));
    assert_eq!(down(model(3, 1, 5)), Ok(replicas(2)), "a minute is enough");
    let deleted = Scalable { presence: Presence::Deleted, ..model(2, 1, 5) };
    assert_eq!(up(Rules::Seldon, deleted), Ok(replicas(3)));
    assert_eq!(up(Rules::Mended, deleted), Err(Ignored::NotAvailable));
    assert_eq!(down(model(0, 0, 5)), Err(Ignored::BelowMin(Replicas::ONE)), "never wraps");
}

#[test]
fn a_load_that_cannot_fit_leaves_everything_where_it_is() {
    let mut ledger = Ledger::new(Capacity { main: Bytes::new(100), over_commit_percent: 50 });
    ledger.load(&name("a"), Bytes::new(40)).unwrap();
    ledger.load(&name("b"), Bytes::new(40)).unwrap();
    let refused = ledger.load(&name("c"), Bytes::new(101)).unwrap_err();
    assert_eq!(refused, Refused::TooLarge { size: Bytes::new(101), main: Bytes::new(100) });
    assert_eq!(ledger.resident(), [name("a"), name("b")]);
    assert_eq!(ledger.available(), Bytes::new(70));
}

#[test]
fn a_copy_that_is_coming_is_not_moved_by_its_own_reservation() {
    let room = |ordinal, reserved, holding| Room {
        ordinal: Ordinal::new(ordinal),
        service: Service::Serving,
        free: Bytes::new(200),
        reserved: Bytes::new(reserved),
        holding,
    };
    let name = VariantName::new("s").unwrap();
    let server = Server {
        name: name.clone(),
        sharing: Sharing::Shared,
        expected: None,
        capabilities: BTreeSet::new(),
        rooms: vec![room(0, 150, Holding::Coming), room(1, 0, Holding::Absent)],
    };
    let guest = Guest {
        wanted: Wanted { desired: Replicas::ONE, min: Replicas::ZERO },
        memory: Bytes::new(150),
        requirements: BTreeSet::new(),
        asks_for: None,
        assigned: Some(name),
    };
    let on = |rules| match place(rules, std::slice::from_ref(&server), &guest) {
        Placement::Whole(place) => place.on,
        other => panic!("{other}"),
    };
    assert_eq!(on(Rules::Seldon), [Ordinal::new(1)]);
    assert_eq!(on(Rules::Mended), [Ordinal::new(0)]);
}
