//! The cheapest replicas that cover the demand, and the steps to get there.
//!
//! The search ([`cover`](crate::decide::optimize::cover)) finds the final plan. It may exchange
//! replicas: start some of a cheaper variant and remove some of an expensive one. The removed
//! replicas go one by one, the most expensive first. A replica goes only if the other replicas that
//! serve load cover the demand, and if the caller's check consents. So a replacement starts first,
//! and the replaced replica goes in a later tick.
//!
//! The cost of starting and stopping replicas keeps the mix from following every small change: an
//! exchange must save more than it costs.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::optimize::cover::{
    CoverChoice, CoverSizes, GRID, Item, SLACK, STEPS_MAX, SearchCompleteness, StockUse, StockUses,
    Stocks, choose,
};
use crate::decide::optimize::model::{Candidate, Few, PlanModel};
use crate::decide::optimize::plan::{ModelPlan, PlanMethod, PlanReason};
use crate::decide::optimize::room::{Headroom, SupplyHeadroom};
use crate::decide::optimize::sheet::ModelSheet;
use crate::decide::rank;
use crate::fleet::VariantKey;
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// The settings of an optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OptimizerPolicy {
    /// The rule for adding replicas.
    pub rule: GrowthRule,
    /// The cost of changing the number of replicas.
    pub switching: Switching,
    /// Replicas of each role that always stay, if there are any.
    pub replicas_min: KeptMin,
}

/// The rule for adding replicas if some are missing. Spare replicas always go at the least cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GrowthRule {
    /// The cheapest replicas that cover the demand.
    #[default]
    LeastCost,
    /// The best price rank, round by round.
    Ranked(rank::Policy),
}

/// The fewest replicas of a role that an optimizer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptMin(pub Replicas);

impl Default for KeptMin {
    /// One: an optimizer does not decide about scale to zero.
    fn default() -> Self {
        Self(Replicas::ONE)
    }
}

/// The cost of changing the number of replicas, as a share of the cost per replica.
///
/// A replica that takes 5 minutes to start is paid for 5 minutes without serving. Spread over the
/// 30 minutes that a mix is expected to last, that is a share of 1/6.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switching {
    /// For each replica that starts.
    pub start: Fraction,
    /// For each replica that is removed; below 1, or no replica would ever be removed.
    pub drain: Fraction,
}

impl Default for Switching {
    /// Five minutes to start and one minute to drain, spread over half an hour.
    fn default() -> Self {
        Self { start: share_of_half_hour(5.0), drain: share_of_half_hour(1.0) }
    }
}

fn share_of_half_hour(minutes: f64) -> Fraction {
    Fraction::new(minutes / 30.0).unwrap_or_default()
}

/// The answer of a check to a scale-down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// The variant may scale down.
    Given,
    /// The variant may not scale down: an SLO or a safety check forbids it.
    Refused,
}

/// Plans one model at the least cost, inside the free room if that is limited.
pub fn least_cost(
    model: &PlanModel<'_>,
    room: Option<&SupplyHeadroom>,
    policy: &OptimizerPolicy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> ModelPlan {
    let sheet = ModelSheet::new(model);
    let mut targets: Few<Replicas> =
        sheet.variants.iter().map(|variant| variant.bounds.clamp(variant.current)).collect();
    let mut because = Few::from_elem(PlanReason::Unknown, targets.len());
    let mut steps = 0;
    let mut search = SearchCompleteness::Complete;

    for group in 0..sheet.groups.len() {
        let question = RoleQuestion::new(&sheet, group, room, policy);
        let chosen = question.ask();
        steps += chosen.steps;
        if chosen.search == SearchCompleteness::CutShort {
            search = SearchCompleteness::CutShort;
        }
        for (&member, verdict) in question.members.iter().zip(question.release(&chosen, check)) {
            (targets[member], because[member]) = verdict;
        }

        // Limited room is for variants of known capacity.
        if room.is_none()
            && let Some(member) = trial(&sheet, group, &targets)
        {
            (targets[member], because[member]) = (Replicas::ONE, PlanReason::Tried);
        }
    }

    let method = match search {
        SearchCompleteness::Complete => PlanMethod::Exact { steps },
        SearchCompleteness::CutShort => PlanMethod::Bounded { steps: steps.max(STEPS_MAX) },
    };
    let mut plan = sheet.plan(method, &targets);
    for (placement, because) in plan.placements.iter_mut().zip(because) {
        placement.because = because;
    }

    plan
}

/// Returns the variant that starts one replica to learn its capacity: the cheapest variant of
/// unknown capacity. `None` if the others can cover the shortfall.
fn trial(sheet: &ModelSheet<'_>, group: usize, targets: &[Replicas]) -> Option<usize> {
    let members = &sheet.groups[group].members;
    let is_short = sheet.voices.iter().any(|voice| {
        let missing = voice.totals[group].required > Amount::ZERO;
        let wanted = voice.wanted(group).amount();
        missing && voice.carried(members, targets) < wanted * (1.0 - SLACK)
    });
    if !is_short {
        return None;
    }

    let untried = members.iter().copied().filter(|&at| may_be_tried(sheet, at));
    untried.min_by(|&a, &b| sheet.variants[a].cost.compare(sheet.variants[b].cost).then(a.cmp(&b)))
}

/// Returns true if the capacity of a variant is unknown and it may start a replica to learn it.
fn may_be_tried(sheet: &ModelSheet<'_>, at: usize) -> bool {
    let variant = sheet.variants[at];
    let is_unknown = sheet.voices.iter().all(|voice| voice.sizes[at].is_none());
    let allowed = variant.bounds.max().is_none_or(|max| max > Replicas::ZERO);
    is_unknown && variant.untried && allowed
}

/// One role of one model as input for the search.
pub(super) struct RoleQuestion<'a> {
    /// The variants whose capacity per replica is known to a voice.
    pub(super) members: Few<usize>,
    variants: Few<&'a Candidate>,
    items: Few<Item>,
    wants: CoverSizes,
    stocks: Stocks,
}

impl<'a> RoleQuestion<'a> {
    pub(super) fn new(
        sheet: &ModelSheet<'a>,
        group: usize,
        room: Option<&SupplyHeadroom>,
        policy: &OptimizerPolicy,
    ) -> Self {
        let (rows, mut wants): (Few<_>, CoverSizes) = sheet
            .voices
            .iter()
            .map(|voice| (voice, voice.wanted(group).amount()))
            .filter(|(_, wanted)| *wanted > 0.0)
            .unzip();
        let members: Few<usize> = sheet.groups[group]
            .members
            .iter()
            .copied()
            .filter(|&member| sheet.voices.iter().any(|it| it.sizes[member].is_some()))
            .collect();
        let variants: Few<&Candidate> = members.iter().map(|&it| sheet.variants[it]).collect();
        let there: Replicas = variants.iter().map(|variant| variant.current).sum();

        let KeptMin(least) = policy.replicas_min;
        let kept = if wants.is_empty() { least.min(there) } else { least };
        let counts_replicas = kept > Replicas::ZERO;
        if counts_replicas {
            wants.push(f64::from(kept.count()));
        }

        let starts = variants.iter().any(|it| it.pending > Replicas::ZERO);
        let is_settled = sheet.stays(group) && is_settling(&variants);
        let stays = is_settled || starts && sheet.is_short(group);

        let (takes, stocks) = stocks(&variants, room);
        let dearest = variants.iter().map(|it| it.cost).fold(CostPerHour::ZERO, CostPerHour::max);
        let items = members
            .iter()
            .zip(&variants)
            .zip(takes)
            .map(|((&member, variant), takes)| {
                let mut sizes: CoverSizes =
                    rows.iter().map(|row| row.sizes[member].unwrap_or(0.0)).collect();
                sizes.extend(counts_replicas.then_some(1.0));
                let prices = ReplicaPrices::new(variant.cost, dearest, policy.switching);
                let mut item = item(variant, sizes, &prices, takes);
                if stays {
                    item.min = item.current.clamp(item.min, item.max);
                }
                let slots = room.and_then(|room| room.slots.get(&variant.key).copied());
                bound_starts(&mut item, sheet.is_useful(group, member), slots);
                item
            })
            .collect();
        Self { members, variants, items, wants, stocks }
    }

    /// Excludes scale-up: the search then finds the cheapest part of the current replicas that is
    /// enough.
    pub(super) fn among_what_is_there(mut self) -> Self {
        for item in &mut self.items {
            item.max = item.max.min(item.current.max(item.min));
        }
        self
    }

    pub(super) fn ask(&self) -> CoverChoice {
        choose(&self.items, &self.wants, &self.stocks)
    }

    /// Returns the desired replicas of each variant: the choice of the search, and replicas that
    /// must stay for a while.
    pub(super) fn release(
        &self,
        chosen: &CoverChoice,
        check: &dyn Fn(&VariantKey, Replicas) -> Consent,
    ) -> Few<(Replicas, PlanReason)> {
        let counts: Few<Replicas> =
            chosen.counts.iter().copied().map(Replicas::saturating).collect();
        let mut kept: Few<(Replicas, PlanReason)> = self
            .variants
            .iter()
            .zip(&counts)
            .map(|(variant, &planned)| match planned.cmp(&variant.current) {
                std::cmp::Ordering::Equal => (planned, PlanReason::Kept),
                std::cmp::Ordering::Greater => (planned, PlanReason::Added),
                std::cmp::Ordering::Less => {
                    let allowed = variant.bounds.max().unwrap_or(variant.current);
                    (variant.current.min(allowed), PlanReason::Removed)
                }
            })
            .collect();

        for at in self.dearest_first() {
            let planned = counts[at];
            while kept[at].0 > planned {
                let before = kept[at].0;
                kept[at].0 = before.down();
                let refused = if !self.is_served(&kept, at, before) {
                    PlanReason::Serving { planned }
                } else if check(&self.variants[at].key, before.down()) == Consent::Refused {
                    PlanReason::Refused { planned }
                } else {
                    continue;
                };
                kept[at] = (before, refused);
                break;
            }
        }

        kept
    }

    /// Returns true if the kept replicas that serve load cover the whole demand. Also returns true
    /// if the last replica that was removed, from `before`, served nothing.
    fn is_served(&self, kept: &[(Replicas, PlanReason)], last: usize, before: Replicas) -> bool {
        if before > ready(self.variants[last]) {
            return true;
        }

        (0..self.wants.len()).all(|want| {
            let each = kept.iter().enumerate();
            let sum: f64 = each.map(|(at, (kept, _))| self.carried(want, at, *kept)).sum();
            self.items[last].sizes[want] <= 0.0 || sum >= self.wants[want] * (1.0 - SLACK)
        })
    }

    /// Returns the amount of a want that a variant covers with the kept replicas that serve load.
    fn carried(&self, want: usize, at: usize, kept: Replicas) -> f64 {
        let variant = self.variants[at];
        // Leaving replicas also serve load, but not for long: they go once they are not needed.
        let stays = variant.current.beyond(variant.leaving);
        let serving = ready(variant).min(kept).min(stays);
        self.items[at].sizes[want] * f64::from(serving.count())
    }

    fn dearest_first(&self) -> Few<usize> {
        let mut order: Few<usize> = (0..self.variants.len()).collect();
        order
            .sort_by(|&a, &b| self.variants[b].cost.compare(self.variants[a].cost).then(a.cmp(&b)));
        order
    }
}

/// Returns true if replicas start and it is unknown whether they replace others. Those others could
/// be replaced twice.
fn is_settling(variants: &[&Candidate]) -> bool {
    let starts = variants.iter().any(|it| it.pending > Replicas::ZERO);
    let leaves = variants.iter().any(|it| it.leaving > Replicas::ZERO);
    starts && !leaves
}

/// Returns the replicas of a variant that have started.
fn ready(variant: &Candidate) -> Replicas {
    variant.current.beyond(variant.pending)
}

/// Returns the amounts that each variant takes from the stocks for a replica that it starts, and
/// the stocks: accelerators of a kind, accelerators of any kind, and money.
fn stocks(variants: &[&Candidate], room: Option<&SupplyHeadroom>) -> (Few<StockUses>, Stocks) {
    let mut all: Few<StockUses> = variants.iter().map(|_| StockUses::new()).collect();
    let Some(room) = room else { return (all, Stocks::default()) };

    let mut stocks = Few::new();
    let mut known = BTreeMap::new();
    for (variant, takes) in variants.iter().zip(&mut all) {
        let Headroom::Limited(free) = room.headroom(variant) else { continue };
        let stock = *known.entry(variant.accelerator.as_ref()).or_insert_with(|| {
            stocks.push(f64::from(free.count()));
            stocks.len() - 1
        });
        takes.push(StockUse { stock, each: f64::from(variant.gpus.count()) });
    }

    let shared = stocks.len();
    for total in &room.totals {
        take_from(stocks.len(), variants, &mut all, &total.counts, |it| f64::from(it.gpus.count()));
        stocks.push(f64::from(total.left.count()));
    }

    for purse in &room.purses {
        take_from(stocks.len(), variants, &mut all, &purse.counts, |it| it.cost.per_hour());
        stocks.push(purse.left.per_hour());
    }

    (all, Stocks { left: stocks, shared })
}

/// Lets each of the counted variants take its amount from a stock.
fn take_from(
    stock: usize,
    variants: &[&Candidate],
    all: &mut [StockUses],
    counts: &BTreeSet<VariantKey>,
    each: fn(&Candidate) -> f64,
) {
    for (variant, takes) in variants.iter().zip(all) {
        if counts.contains(&variant.key) {
            takes.push(StockUse { stock, each: each(variant) });
        }
    }
}

/// The cost per replica on the grid of the search.
struct ReplicaPrices {
    price: u64,
    start: u64,
    drain: u64,
}

impl ReplicaPrices {
    /// The lowest price of a replica. It leaves room for the price of a change to be smaller.
    const LEAST: f64 = 4.0;

    fn new(cost: CostPerHour, dearest: CostPerHour, switching: Switching) -> Self {
        let scaled = if dearest > CostPerHour::ZERO {
            (cost.per_hour() / dearest.per_hour() * GRID).round().max(Self::LEAST)
        } else {
            GRID
        };

        // One more than the share, so that of two plans at one price the plan with fewer changes
        // wins.
        let start = on_grid(switching.start.fraction().min(1000.0) * scaled) + 1;
        let price = on_grid(scaled);
        let drain =
            (on_grid(switching.drain.fraction() * GRID.min(price as f64)) + 1).min(price - 1);
        Self { price, start, drain }
    }
}

fn on_grid(price: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        price.round().clamp(0.0, GRID * 1000.0) as u64
    }
}

/// Lets no replica start that is not useful, or has no slot.
fn bound_starts(item: &mut Item, is_useful: bool, slots: Option<Replicas>) {
    let held = item.min.max(item.current);
    if !is_useful {
        item.max = item.max.min(held);
    }

    if let Some(slots) = slots {
        item.max = item.max.min(held.saturating_add(slots.count()));
    }
}

fn item(variant: &Candidate, sizes: CoverSizes, prices: &ReplicaPrices, takes: StockUses) -> Item {
    let ReplicaPrices { price, start, drain } = *prices;

    Item {
        min: variant.bounds.min().count(),
        max: variant.bounds.max().unwrap_or(Replicas::LIMIT).count(),
        current: variant.current.count(),
        price,
        start,
        drain,
        sizes,
        takes,
    }
}
