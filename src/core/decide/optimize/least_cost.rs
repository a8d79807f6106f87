//! The cheapest numbers that carry what is wanted, and the way there.
//!
//! The search ([`cover`](crate::decide::optimize::cover)) says where to end. It may exchange
//! replicas: start some of a cheaper variant and do without a dear one. What it does without goes
//! one by one, the most expensive first, and only if those that carry load already carry what is
//! wanted without it, and the caller's check consents. So a replacement starts first, and what it
//! replaces goes in a later tick.
//!
//! What a replica costs to start and to stop keeps the mix from following every small change: an
//! exchange must save more than it costs.

use std::collections::BTreeMap;

use crate::decide::optimize::cover::{
    Chosen, GRID, Item, STEPS_MAX, Search, Sizes, Stocks, Take, Takes, choose,
};
use crate::decide::optimize::sheet::{SLACK, Sheet};
use crate::decide::optimize::{Because, Candidate, Few, Headroom, Method, Model, Plan, Room};
use crate::decide::rank;
use crate::fleet::VariantKey;
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// How numbers are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Policy {
    /// By which rule replicas are added.
    pub rule: Rule,
    /// What changing the number of replicas costs.
    pub switching: Switching,
    /// Replicas of each role that stay in any case, where there are any.
    pub replicas_min: KeptMin,
}

/// By which rule replicas are added where some are missing. What is spare goes at the least cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// The cheapest numbers that carry what is wanted.
    #[default]
    LeastCost,
    /// The best rank of its price, round by round.
    Ranked(rank::Policy),
}

/// The fewest replicas of a role that an optimizer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptMin(pub Replicas);

impl Default for KeptMin {
    /// One: whether a model may go to zero is not for an optimizer to say.
    fn default() -> Self {
        Self(Replicas::ONE)
    }
}

/// What changing the number of replicas costs, as a share of what a replica costs.
///
/// A replica that takes 5 minutes to start is paid for 5 minutes without serving. Spread over the
/// 30 minutes that a mix is expected to last, that is a share of 1/6.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switching {
    /// For each replica that starts.
    pub start: Fraction,
    /// For each replica that goes; below 1, or nothing would ever go.
    pub drain: Fraction,
}

impl Default for Switching {
    /// Five minutes to start and one to drain, spread over half an hour.
    fn default() -> Self {
        let share = |minutes: f64| Fraction::new(minutes / 30.0).unwrap_or_default();
        Self { start: share(5.0), drain: share(1.0) }
    }
}

/// Whether a variant may go down to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// It may.
    Given,
    /// It may not: an SLO or a safety check forbids it.
    Refused,
}

/// Plans one model at the least cost, inside what is free if that is limited.
pub fn least_cost(
    model: &Model<'_>,
    room: Option<&Room>,
    policy: &Policy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> Plan {
    let sheet = Sheet::new(model);
    let mut targets: Few<Replicas> =
        sheet.variants.iter().map(|variant| variant.bounds.clamp(variant.current)).collect();
    let mut because = Few::from_elem(Because::Unknown, targets.len());
    let (mut steps, mut search) = (0, Search::Complete);
    for group in 0..sheet.groups.len() {
        let question = Question::new(&sheet, group, room, policy);
        let chosen = question.ask();
        steps += chosen.steps;
        if chosen.search == Search::CutShort {
            search = Search::CutShort;
        }
        for (&member, verdict) in question.members.iter().zip(question.release(&chosen, check)) {
            (targets[member], because[member]) = verdict;
        }
        // What limits leave is for what is known.
        if room.is_none()
            && let Some(member) = trial(&sheet, group, &targets)
        {
            (targets[member], because[member]) = (Replicas::ONE, Because::Tried);
        }
    }
    let method = match search {
        Search::Complete => Method::Exact { steps },
        Search::CutShort => Method::Bounded { steps: steps.max(STEPS_MAX) },
    };
    let mut plan = sheet.plan(method, &targets);
    for (placement, because) in plan.placements.iter_mut().zip(because) {
        placement.because = because;
    }
    plan
}

/// The variant of which one replica is started to learn what it carries: the cheapest of which
/// nobody knows it, where what is missing is more than the others may have.
fn trial(sheet: &Sheet<'_>, group: usize, targets: &[Replicas]) -> Option<usize> {
    let members = &sheet.groups[group].members;
    let is_short = sheet.voices.iter().any(|voice| {
        let each = |&at: &usize| voice.sizes[at].unwrap_or(0.0) * f64::from(targets[at].count());
        let carried: f64 = members.iter().map(each).sum();
        let missing = voice.totals[group].required > Amount::ZERO;
        missing && carried < voice.wanted(group).amount() * (1.0 - SLACK)
    });
    let may_be_tried = |&&at: &&usize| {
        let variant = sheet.variants[at];
        let is_unknown = sheet.voices.iter().all(|voice| voice.sizes[at].is_none());
        let allowed = variant.bounds.max().is_none_or(|max| max > Replicas::ZERO);
        is_unknown && variant.untried && allowed
    };
    let by_cost = |a: &&usize, b: &&usize| {
        sheet.variants[**a].cost.compare(sheet.variants[**b].cost).then(a.cmp(b))
    };
    let untried = members.iter().filter(may_be_tried).min_by(by_cost);
    untried.copied().filter(|_| is_short)
}

/// One role of one model as a question to the search.
pub(super) struct Question<'a> {
    /// The variants of which somebody knows what a replica carries.
    pub(super) members: Few<usize>,
    variants: Few<&'a Candidate>,
    items: Few<Item>,
    wants: Sizes,
    stocks: Stocks,
}

impl<'a> Question<'a> {
    pub(super) fn new(
        sheet: &Sheet<'a>,
        group: usize,
        room: Option<&Room>,
        policy: &Policy,
    ) -> Self {
        let (rows, mut wants): (Few<_>, Sizes) = sheet
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
        let KeptMin(kept) = policy.replicas_min;
        let kept = if wants.is_empty() { kept.min(there) } else { kept };
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
                let mut sizes: Sizes =
                    rows.iter().map(|row| row.sizes[member].unwrap_or(0.0)).collect();
                sizes.extend(counts_replicas.then_some(1.0));
                let prices = Prices::new(variant.cost, dearest, policy.switching);
                let mut item = item(variant, sizes, &prices, takes);
                if stays {
                    item.min = item.current.clamp(item.min, item.max);
                }
                if let Some(slots) = room.and_then(|room| room.slots.get(&variant.key)) {
                    let held = item.min.max(item.current);
                    item.max = item.max.min(held.saturating_add(slots.count()));
                }
                item
            })
            .collect();
        Self { members, variants, items, wants, stocks }
    }

    /// The same question without growth: which of what is there is the cheapest that suffices.
    pub(super) fn among_what_is_there(mut self) -> Self {
        for item in &mut self.items {
            item.max = item.max.min(item.current.max(item.min));
        }
        self
    }

    pub(super) fn ask(&self) -> Chosen {
        choose(&self.items, &self.wants, &self.stocks)
    }

    /// What each variant should ask for: what was chosen, and those that must stay for a while.
    pub(super) fn release(
        &self,
        chosen: &Chosen,
        check: &dyn Fn(&VariantKey, Replicas) -> Consent,
    ) -> Few<(Replicas, Because)> {
        let planned = |at: usize| Replicas::saturating(chosen.counts[at]);
        let mut kept: Few<(Replicas, Because)> = (0..self.variants.len())
            .map(|at| match planned(at).cmp(&self.variants[at].current) {
                std::cmp::Ordering::Equal => (planned(at), Because::Kept),
                std::cmp::Ordering::Greater => (planned(at), Because::Added),
                std::cmp::Ordering::Less => {
                    let variant = self.variants[at];
                    let allowed = variant.bounds.max().unwrap_or(variant.current);
                    (variant.current.min(allowed), Because::Removed)
                }
            })
            .collect();
        for at in self.dearest_first() {
            while kept[at].0 > planned(at) {
                let before = kept[at].0;
                kept[at].0 = before.down();
                let refused = if !self.is_served(&kept, at, before) {
                    Because::Serving { planned: planned(at) }
                } else if check(&self.variants[at].key, before.down()) == Consent::Refused {
                    Because::Refused { planned: planned(at) }
                } else {
                    continue;
                };
                kept[at] = (before, refused);
                break;
            }
        }
        kept
    }

    /// Whether what carries load among those that are kept carries everything that is wanted, or
    /// whether the last that was let go from `before` carried nothing.
    fn is_served(&self, kept: &[(Replicas, Because)], last: usize, before: Replicas) -> bool {
        let ready = |at: usize| {
            let variant = self.variants[at];
            variant.current.beyond(variant.pending)
        };
        if before > ready(last) {
            return true;
        }
        // What is leaving carries load as well, but not for long: it goes when it is missed by nobody.
        let stays = |at: usize| self.variants[at].current.beyond(self.variants[at].leaving);
        (0..self.wants.len()).all(|want| {
            let carried = |(at, (replicas, _)): (usize, &(Replicas, Because))| {
                let replicas = ready(at).min(*replicas).min(stays(at));
                self.items[at].sizes[want] * f64::from(replicas.count())
            };
            let sum: f64 = kept.iter().enumerate().map(carried).sum();
            self.items[last].sizes[want] <= 0.0 || sum >= self.wants[want] * (1.0 - SLACK)
        })
    }

    fn dearest_first(&self) -> Few<usize> {
        let mut order: Few<usize> = (0..self.variants.len()).collect();
        order
            .sort_by(|&a, &b| self.variants[b].cost.compare(self.variants[a].cost).then(a.cmp(&b)));
        order
    }
}

/// Whether something starts and nobody knows whether it replaces what is there: its place would be
/// taken twice.
fn is_settling(variants: &[&Candidate]) -> bool {
    let some = |of: fn(&Candidate) -> Replicas| variants.iter().any(|it| of(it) > Replicas::ZERO);
    some(|it| it.pending) && !some(|it| it.leaving)
}

/// What each variant takes of which stock for a replica that it starts, and how much there is of
/// each: accelerators of a kind, and money.
fn stocks(variants: &[&Candidate], room: Option<&Room>) -> (Few<Takes>, Stocks) {
    let mut all: Few<Takes> = variants.iter().map(|_| Takes::new()).collect();
    let Some(room) = room else { return (all, Stocks::default()) };
    let mut stocks = Few::new();
    let mut known = BTreeMap::new();
    for (variant, takes) in variants.iter().zip(&mut all) {
        let Headroom::Limited(free) = room.headroom(variant) else { continue };
        let stock = *known.entry(variant.accelerator.as_ref()).or_insert_with(|| {
            stocks.push(f64::from(free.count()));
            stocks.len() - 1
        });
        takes.push(Take { stock, each: f64::from(variant.gpus.count()) });
    }
    let money = stocks.len();
    for purse in &room.purses {
        let stock = stocks.len();
        stocks.push(purse.left.per_hour());
        let counted =
            variants.iter().zip(&mut all).filter(|(it, _)| purse.counts.contains(&it.key));
        for (variant, takes) in counted {
            takes.push(Take { stock, each: variant.cost.per_hour() });
        }
    }
    (all, Stocks { left: stocks, money })
}

/// What one replica costs on the grid of the search.
struct Prices {
    price: u64,
    start: u64,
    drain: u64,
}

impl Prices {
    /// The least price of a replica: enough for a change of one to be smaller.
    const LEAST: f64 = 4.0;

    fn new(cost: CostPerHour, dearest: CostPerHour, switching: Switching) -> Self {
        let price = if dearest > CostPerHour::ZERO {
            (cost.per_hour() / dearest.per_hour() * GRID).round().max(Self::LEAST)
        } else {
            GRID
        };
        // One more than the share, so that of two plans at one price the one with fewer changes wins.
        let start = on_grid(switching.start.fraction().min(1000.0) * price) + 1;
        let price = on_grid(price);
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

fn item(variant: &Candidate, sizes: Sizes, prices: &Prices, takes: Takes) -> Item {
    let Prices { price, start, drain } = *prices;
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
