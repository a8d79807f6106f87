use super::*;
use crate::analyze::capacity::{Confidence, Utilization, VariantCapacity, amount};
use crate::fleet::VariantSpec;
use crate::units::{CostPerHour, Replicas};

/// A report on two replicas with a capacity of `each` and a total demand of `demand`.
fn report(unit: Unit, role: Role, [each, demand]: [f64; 2]) -> CapacityReport {
    let variants = vec![VariantCapacity {
        key: VariantSpec::example("a").key,
        role,
        cost: CostPerHour::ZERO,
        replicas: Replicas::saturating(2),
        pending: Replicas::ZERO,
        per_replica: Amount::new(each).filter(|each| *each > Amount::ZERO),
        demand: amount(demand),
        confidence: Confidence::Measured,
    }];

    let total = Totals::of(&variants).judged(Utilization::default());
    let mut roles = Totals::by_role(&variants);
    for totals in roles.values_mut() {
        *totals = totals.judged(Utilization::default());
    }

    CapacityReport { unit, variants, total, roles }
}

fn tokens(demand: f64) -> CapacityReport {
    report(Unit::KvTokens, Role::Both, [10_000.0, demand])
}

fn throughput(demand: f64) -> CapacityReport {
    report(Unit::OutputTokensPerSecond, Role::Both, [1_000.0, demand])
}

fn vote(analyzer: Analyzer, report: &CapacityReport) -> Vote<'_> {
    Vote {
        analyzer,
        franchise: VotingRight::Votes,
        informed_at: Some(Timestamp::UNIX_EPOCH),
        report: Some(report),
    }
}

fn patience() -> Seconds {
    Seconds::new(45.0).unwrap()
}

fn cast_both(tokens: &CapacityReport, throughput: &CapacityReport) -> Ballot {
    let votes = [vote(Analyzer::Throughput, throughput), vote(Analyzer::Tokens, tokens)];
    cast(Timestamp::UNIX_EPOCH, patience(), &votes)
}

#[test]
fn one_analyzer_alone_makes_a_model_grow_and_is_named() {
    let ballot = cast_both(&tokens(1_000.0), &throughput(2_040.0));
    assert_eq!(ballot.model.to_string(), "throughput: 400 tokens/s (20% of 2000) short");
}

#[test]
fn the_largest_share_binds_and_not_the_largest_amount() {
    // 2,000 KV tokens are 10% of the supply; 400 tokens/s are 20%.
    let ballot = cast_both(&tokens(18_700.0), &throughput(2_040.0));
    let BallotVerdict::Grow(binding) = ballot.model else { panic!("{:?}", ballot.model) };
    assert_eq!(binding.analyzer, Analyzer::Throughput);
}

#[test]
fn a_model_shrinks_only_when_all_agree_and_the_tightest_binds() {
    let ballot = cast_both(&tokens(2_000.0), &throughput(1_000.0));
    let BallotVerdict::Shrink(binding) = ballot.model else { panic!("{:?}", ballot.model) };
    assert_eq!(binding.analyzer, Analyzer::Throughput);
    let ballot = cast_both(&tokens(2_000.0), &throughput(1_500.0));
    assert_eq!(ballot.model, BallotVerdict::Stay(StayReason::NothingSpare(Analyzer::Throughput)));
}

#[test]
fn an_analyzer_without_recent_data_keeps_a_model_from_shrinking_and_not_from_growing() {
    let idle = tokens(2_000.0);
    let busy = throughput(2_040.0);
    let later = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(46);

    let fresh = Vote { informed_at: Some(later), ..vote(Analyzer::Tokens, &idle) };
    let votes = [fresh, vote(Analyzer::Throughput, &busy)];
    let ballot = cast(later, patience(), &votes);
    assert_eq!(ballot.model, BallotVerdict::Stay(StayReason::NotHeard(Analyzer::Throughput)));
    assert_eq!(ballot.voters[1].1.to_string(), "its data is 46 s old");

    let fresh = Vote { informed_at: Some(later), ..vote(Analyzer::Throughput, &busy) };
    let votes = [vote(Analyzer::Tokens, &idle), fresh];
    assert!(matches!(cast(later, patience(), &votes).model, BallotVerdict::Grow(_)));
}

#[test]
fn an_analyzer_that_is_only_shown_has_no_say() {
    let idle = tokens(2_000.0);
    let busy = throughput(2_040.0);
    let shown = Vote { franchise: VotingRight::Shown, ..vote(Analyzer::Throughput, &busy) };
    let votes = [vote(Analyzer::Tokens, &idle), shown];
    assert!(matches!(
        cast(Timestamp::UNIX_EPOCH, patience(), &votes).model,
        BallotVerdict::Shrink(_)
    ));
    assert_eq!(cast(Timestamp::UNIX_EPOCH, patience(), &[shown]).model, BallotVerdict::Held);
}

#[test]
fn an_analyzer_that_knows_no_capacity_is_not_heard() {
    let idle = tokens(2_000.0);
    let blank = report(Unit::RequestsPerSecond, Role::Both, [0.0, 0.0]);
    let votes = [vote(Analyzer::Tokens, &idle), vote(Analyzer::Queueing, &blank)];
    let ballot = cast(Timestamp::UNIX_EPOCH, patience(), &votes);
    assert_eq!(ballot.model, BallotVerdict::Stay(StayReason::NotHeard(Analyzer::Queueing)));
}

#[test]
fn demand_without_any_supply_binds_before_every_share() {
    let mut nothing = tokens(5_000.0);
    nothing.total.anticipated = Amount::ZERO;
    nothing.total.required = amount(5_882.0);
    let ballot = cast_both(&nothing, &throughput(9_000.0));
    assert_eq!(ballot.model.to_string(), "tokens: 5882 KV tokens (of none) short");
}

#[test]
fn a_role_that_an_analyzer_does_not_measure_is_no_business_of_its() {
    let prefill = report(Unit::KvTokens, Role::Prefill, [10_000.0, 2_000.0]);
    let decode = report(Unit::OutputTokensPerSecond, Role::Decode, [1_000.0, 2_040.0]);
    let ballot = cast_both(&prefill, &decode);
    assert!(
        matches!(ballot.roles[&Role::Prefill], BallotVerdict::Shrink(b) if b.analyzer == Analyzer::Tokens)
    );
    assert!(matches!(ballot.roles[&Role::Decode], BallotVerdict::Grow(_)));
}
