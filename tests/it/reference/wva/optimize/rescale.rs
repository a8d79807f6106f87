//! Sharing what does not suffice for everybody: floors first, the rest by weight and demand.

use plimsoll::fleet::ModelKey;
use plimsoll::units::{Gpus, Weight};

/// What one model has a claim to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    /// The model.
    pub(crate) key: ModelKey,
    /// How much of the rest it gets beside others: its priority times its demand.
    pub(crate) weight: Weight,
    /// What it gets in any case.
    pub(crate) floor: Gpus,
    /// The most that is of use to it.
    pub(crate) cap: Gpus,
}

/// What each model gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// For each claim, in their order.
    pub(crate) gpus: Vec<Gpus>,
    /// How far the floors alone exceed what there is; none when they do not.
    pub(crate) over: Gpus,
}

/// Shares a budget: each claim its floor, then the rest in proportion to the weights, nobody above
/// its cap, and whole GPUs by the largest remainder.
///
/// # Model
///
/// Water filling: the level rises for all at a speed given by their weights; who reaches its cap
/// stops, and the others rise faster. The remainders of the exact shares then decide who gets the
/// GPUs that rounding down has left, in the order of the keys where they are equal.
///
/// Floors are guaranteed even when they exceed the budget, because they are replicas that somebody
/// has asked to keep; [`Shares::over`] says so.
///
/// # Source
///
/// The rescale step of the Workload Variant Autoscaler, whose answers it reproduces.
pub(crate) fn water_fill(budget: Gpus, claims: &[Claim]) -> Shares {
    let floors: Gpus = claims.iter().map(|claim| claim.floor).sum();
    if floors >= budget {
        let gpus = claims.iter().map(|claim| claim.floor).collect();
        return Shares { gpus, over: floors.beyond(budget) };
    }
    let rest = f64::from(budget.beyond(floors).count());
    let exact = levels(rest, claims);
    let mut extra: Vec<u32> = exact.iter().map(|share| whole(share + WHOLE)).collect();
    let handed_out = whole(exact.iter().sum::<f64>().round());
    let mut left = handed_out.saturating_sub(extra.iter().sum());
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let remainder = |position: &usize| exact[*position] - exact[*position].floor();
    order.sort_by(|a, b| {
        remainder(b).total_cmp(&remainder(a)).then_with(|| id(&claims[*a]).cmp(&id(&claims[*b])))
    });
    for position in order {
        if left > 0 && exact[position] > f64::from(extra[position]) {
            extra[position] += 1;
            left -= 1;
        }
    }
    let gpus = claims.iter().zip(extra).map(|(claim, extra)| claim.floor + Gpus::new(extra));
    Shares { gpus: gpus.collect(), over: Gpus::ZERO }
}

/// A share this near below a whole number is one: it comes from divisions.
const WHOLE: f64 = 1e-9;

/// The exact share of each claim above its floor.
fn levels(mut rest: f64, claims: &[Claim]) -> Vec<f64> {
    let span = |claim: &Claim| f64::from(claim.cap.beyond(claim.floor).count());
    let mut shares = vec![0.0; claims.len()];
    let mut rising: Vec<usize> = (0..claims.len())
        .filter(|&position| claims[position].weight > Weight::ZERO && span(&claims[position]) > 0.0)
        .collect();
    while !rising.is_empty() && rest > WHOLE {
        let sum: f64 = rising.iter().map(|&position| claims[position].weight.weight()).sum();
        let share = |position: usize| rest * claims[position].weight.weight() / sum;
        let (full, open): (Vec<usize>, Vec<usize>) =
            rising.iter().partition(|&&position| share(position) >= span(&claims[position]));
        if full.is_empty() {
            for position in open {
                shares[position] = share(position);
            }
            break;
        }
        for position in full {
            shares[position] = span(&claims[position]);
        }
        rest -= rising.iter().map(|&position| shares[position]).sum::<f64>();
        rising = open;
    }
    shares
}

/// `namespace/model`, whose order breaks ties.
fn id(claim: &Claim) -> (&str, &str) {
    (claim.key.namespace.as_str(), claim.key.model.as_str())
}

/// A share without its fraction.
fn whole(share: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        share.clamp(0.0, f64::from(u32::MAX)) as u32
    }
}
