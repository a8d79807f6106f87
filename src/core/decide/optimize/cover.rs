//! The exact search: whole numbers that cover what is wanted at the lowest price.
//!
//! # Model
//!
//! Branch and bound over the items, the dearest first: what is left for the cheap ones is then small
//! change, of which the linear relaxation says nearly the truth. Of each item the number is tried
//! first that promises most. A partial choice is given up when even the linear relaxation of the
//! rest, with one want at a time, is no better than the best whole choice so far. Beginning with what
//! covers most for its price, and with as many of it as are of use, takes 25 times as many steps
//! for eight items.
//! The search begins with what adding by price for what is covered gives, and with the greedy choice,
//! so the answer is never worse than those even when it is cut short.
//!
//! What cannot be covered is left uncovered as little as possible, and then at the lowest price:
//! choices are compared by ([`Worth::uncovered`], [`Worth::price`]).
//!
//! # Units
//!
//! Prices are whole numbers, [`GRID`] for the most expensive item, so that sums are exact and
//! ties are ties. Each wanted amount is in a unit of its own.
//!
//! # Domain
//!
//! Up to about a dozen items. The search is cut short after [`STEPS_MAX`] steps.

use smallvec::SmallVec;

use crate::decide::optimize::Few;

/// The price of the most expensive item: fine enough that rounding prices costs less than a
/// billionth, and coarse enough that a million of them stay exact in 64 bits.
pub(crate) const GRID: f64 = 1_073_741_824.0;

/// Partial choices after which the search gives up. Fleets of this field take a few hundred for a
/// model; so many take a few milliseconds, and a tick has room for that once.
pub(crate) const STEPS_MAX: u32 = 20_000;

/// Shares that are left uncovered are counted in billionths.
const SHARES: f64 = 1e9;

/// Sums of capacities differ in their last digits; less than this share of a want is nothing.
const SLACK: f64 = crate::decide::optimize::sheet::SLACK;

/// One thing that can be had in whole numbers.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// At least so many.
    pub(crate) min: u32,
    /// At most so many.
    pub(crate) max: u32,
    /// So many are there.
    pub(crate) current: u32,
    /// Price of each.
    pub(crate) price: u64,
    /// Price of each that is started.
    pub(crate) start: u64,
    /// Price of each that goes; less than `price`.
    pub(crate) drain: u64,
    /// What one covers of each want.
    pub(crate) sizes: Sizes,
    /// The stocks that those that are started are taken from.
    pub(crate) takes: Takes,
}

/// What there is to start items from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stocks {
    /// How much of each.
    pub(crate) left: Few<f64>,
    /// From which on they are money. What money covers at most is worth a bound of its own, because
    /// all items take of it; accelerators of a kind are few items' business.
    pub(crate) money: usize,
}

/// How much each that is started takes of a stock: accelerators, or money.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Take {
    pub(crate) stock: usize,
    pub(crate) each: f64,
}

/// What one item covers of each want. There are hardly more wants than analyzers.
pub(crate) type Sizes = SmallVec<[f64; 5]>;

/// What an item takes of the stocks: accelerators of one kind, and money from a budget or two.
pub(crate) type Takes = SmallVec<[Take; 2]>;

/// Amounts for each depth of the search and each want, those of a depth one after the other.
type ByDepth = SmallVec<[f64; 32]>;

/// How good a whole choice is; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    /// The shares of the wants that are not covered, added up, in billionths.
    pub(crate) uncovered: u64,
    /// The price of everything.
    pub(crate) price: u64,
}

/// The best choice that was found.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// How many of each item.
    pub(crate) counts: Few<u32>,
    /// Partial choices that were looked at.
    pub(crate) steps: u32,
    /// Whether the search was cut short.
    pub(crate) search: Search,
}

/// Whether every choice was looked at or ruled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Complete,
    CutShort,
}

/// Prices are no whole numbers, so what is left of a stock may be less than what it was made of by
/// its last digits.
const STOCK_SLACK: f64 = 1e-10;

/// The choice of the least worth. Of equal ones it is the first that the search meets, which depends
/// on nothing but the items and their order; of two equal items it takes the earlier one.
pub(crate) fn choose(items: &[Item], wants: &[f64], stocks: &Stocks) -> Chosen {
    let problem = Problem::new(items, wants, stocks);
    let mut run = Run {
        counts: SmallVec::from_elem(0, problem.items.len()),
        left: (0..=problem.items.len()).flat_map(|_| wants).copied().collect(),
        stocks: (0..=problem.items.len()).flat_map(|_| &problem.stocks).copied().collect(),
        best: problem.added(),
        steps: 0,
        open: SmallVec::new(),
    };
    run.branch(&problem, 0, 0);
    let (_, ordered) = run.best;
    let mut counts = SmallVec::from_elem(0, items.len());
    for (count, &original) in ordered.iter().zip(&problem.order) {
        counts[original] = *count;
    }
    let search = if run.steps < STEPS_MAX { Search::Complete } else { Search::CutShort };
    Chosen { counts, steps: run.steps, search }
}

/// A part of an item's range over which each costs the same.
#[derive(Clone, Copy)]
struct Segment {
    item: usize,
    length: u32,
    price: u64,
    size: f64,
    /// The price for what it covers.
    density: f64,
}

/// A part of an item's range over which each takes the same of a stock.
#[derive(Clone, Copy)]
struct Part {
    item: usize,
    length: u32,
    each: f64,
    size: f64,
}

/// The items in the order of the search, and what is known of each rest of it.
struct Problem<'a> {
    items: Few<&'a Item>,
    order: Few<usize>,
    wants: &'a [f64],
    /// What is left of each stock when every item is started up to its minimum.
    stocks: Few<f64>,
    /// The segments of each want by price for what they cover, one want after the other.
    segments: SmallVec<[Segment; 32]>,
    /// For each want, where its segments end.
    ends: Few<usize>,
    /// For each want and each stock of money, the parts by what they cover for it; empty without
    /// money.
    parts: Vec<Vec<(usize, Vec<Part>)>>,
    /// For each depth, the price of the minima from there on.
    base: Few<u64>,
    /// What the minima from there on cover.
    covered: ByDepth,
}

impl Item {
    /// The price of so many.
    fn worth(&self, count: u32) -> u64 {
        let started = u64::from(count.saturating_sub(self.current));
        let drained = u64::from(self.current.saturating_sub(count));
        u64::from(count) * self.price + started * self.start + drained * self.drain
    }

    /// Those that the minimum starts in any case.
    fn forced(&self) -> u32 {
        self.min.saturating_sub(self.current)
    }

    /// How many there are to have, with so much left in its stock.
    fn had(&self, stocks: &[f64]) -> u32 {
        let taking = self.takes.iter().filter(|take| take.each > 0.0);
        let more = taking.map(|take| fitting(stocks[take.stock], take.each)).min();
        let held = self.min.max(self.current);
        more.map_or(self.max, |more| self.max.min(held.saturating_add(more))).max(self.min)
    }

    /// Takes what so many need of the stocks, beyond what the minimum takes.
    fn take(&self, count: u32, stocks: &mut [f64]) {
        let started = count.saturating_sub(self.min.max(self.current));
        for Take { stock, each } in &self.takes {
            stocks[*stock] = (stocks[*stock] - each * f64::from(started)).max(0.0);
        }
    }

    /// The parts of the range above the minimum: what is there, and what must be started.
    fn ranges(&self, stocks: &[f64]) -> [(u32, u64); 2] {
        let most = self.had(stocks);
        let kept = self.current.min(most).saturating_sub(self.min);
        let started = most.saturating_sub(self.current.max(self.min));
        [(kept, self.price - self.drain.min(self.price)), (started, self.price + self.start)]
    }

    /// How much of the wants one covers for its price, for the order of the search.
    fn density(&self, wants: &[f64]) -> f64 {
        let covered: f64 = self.sizes.iter().zip(wants).map(|(size, want)| size / want).sum();
        covered / (self.price.max(1)) as f64
    }
}

impl<'a> Problem<'a> {
    fn new(items: &'a [Item], wants: &'a [f64], given: &Stocks) -> Self {
        let mut order: Few<usize> = (0..items.len()).collect();
        order.sort_by(|&a, &b| {
            let density = |item: usize| items[item].density(wants);
            (items[b].price.cmp(&items[a].price))
                .then_with(|| density(b).total_cmp(&density(a)))
                .then(a.cmp(&b))
        });
        let items: Few<&Item> = order.iter().map(|&original| &items[original]).collect();
        let mut stocks = given.left.clone();
        for item in &items {
            for Take { stock, each } in &item.takes {
                let forced = each * f64::from(item.forced());
                stocks[*stock] = (stocks[*stock] - forced).max(0.0);
            }
        }
        let (mut segments, mut ends) = (SmallVec::new(), Few::new());
        for want in 0..wants.len() {
            add_segments(&mut segments, &items, want, &stocks);
            ends.push(segments.len());
        }
        let money = given.money..stocks.len();
        let of = |want| money.clone().map(|at| (at, parts(&items, want, at, &stocks))).collect();
        let paying = if money.is_empty() { 0 } else { wants.len() };
        let parts = (0..paying).map(of).collect();
        let mut base = Few::from_elem(0, items.len() + 1);
        let width = wants.len();
        let mut covered = ByDepth::from_elem(0.0, width * (items.len() + 1));
        for (depth, item) in items.iter().enumerate().rev() {
            base[depth] = base[depth + 1] + item.worth(item.min);
            for (want, size) in item.sizes.iter().enumerate().take(width) {
                let rest = covered[(depth + 1) * width + want];
                covered[depth * width + want] = rest + f64::from(item.min) * size;
            }
        }
        Self { items, order, wants, stocks, segments, ends, parts, base, covered }
    }

    /// How many of an item can be of use and can be had.
    fn most(&self, depth: usize, left: &[f64], stocks: &[f64]) -> u32 {
        let item = self.items[depth];
        let needed = |want: usize| {
            let rest = left[want] - SLACK * self.wants[want];
            if rest <= 0.0 || item.sizes[want] <= 0.0 { 0 } else { count(rest / item.sizes[want]) }
        };
        let useful = (0..self.wants.len()).map(needed).max().unwrap_or(0);
        useful.min(item.had(stocks)).max(item.min)
    }

    /// What no choice from this depth on can be better than.
    fn bound(&self, depth: usize, spent: u64, left: &[f64], stocks: &[f64]) -> Worth {
        let mut bound = Worth { uncovered: 0, price: spent + self.base[depth] };
        let (base, width) = (bound.price as f64, self.wants.len());
        let mut start = 0;
        for (want, &end) in self.ends.iter().enumerate() {
            let segments = &self.segments[start..end];
            start = end;
            let missing =
                left[want] - self.covered[depth * width + want] - SLACK * self.wants[want];
            let (mut rest, mut price) = (missing, base);
            for segment in segments {
                if rest <= 0.0 {
                    break;
                }
                if segment.item < depth {
                    continue;
                }
                let taken = (rest / segment.size).min(f64::from(segment.length));
                rest -= taken * segment.size;
                price += taken * segment.price as f64;
            }
            for (stock, parts) in self.parts.get(want).into_iter().flatten() {
                let paid = parts.iter().filter(|part| part.item >= depth);
                rest = rest.max(unpaid(missing, stocks[*stock], paid));
            }
            let uncovered = if rest > 0.0 { share(rest, self.wants[want]) } else { 0 };
            // A billionth below what the sum says, because it is rounded.
            bound.price = bound.price.max(whole(price * (1.0 - 1e-12)));
            bound.uncovered += uncovered;
        }
        bound
    }

    fn worth(&self, counts: &[u32]) -> Worth {
        let price = self.items.iter().zip(counts).map(|(item, count)| item.worth(*count)).sum();
        let uncovered = |want: usize| {
            let each = self.items.iter().zip(counts);
            let covered: f64 = each.map(|(item, count)| item.sizes[want] * f64::from(*count)).sum();
            share(self.wants[want] - covered, self.wants[want])
        };
        Worth { uncovered: (0..self.wants.len()).map(uncovered).sum(), price }
    }

    /// What is there, with as many more as are missing, by price for what they cover.
    fn added(&self) -> (Worth, Few<u32>) {
        let mut counts: Few<u32> =
            self.items.iter().map(|item| item.current.clamp(item.min, item.max)).collect();
        let mut stocks = self.stocks.clone();
        let mut left = Sizes::from_elem(0.0, self.wants.len());
        for depth in 0..self.items.len() {
            for (want, left) in left.iter_mut().enumerate() {
                let each = self.items.iter().zip(&counts);
                let others = each.enumerate().filter(|(other, _)| *other != depth);
                let covered = others.map(|(_, (it, count))| it.sizes[want] * f64::from(*count));
                *left = self.wants[want] - covered.sum::<f64>();
            }
            counts[depth] = counts[depth].max(self.most(depth, &left, &stocks));
            self.items[depth].take(counts[depth], &mut stocks);
        }
        (self.worth(&counts), counts)
    }
}

/// Adds the segments of all items for one want, by price for what they cover. None is longer than
/// its stock allows, if no other item took anything of it.
fn add_segments(
    segments: &mut SmallVec<[Segment; 32]>,
    items: &[&Item],
    want: usize,
    stocks: &[f64],
) {
    let start = segments.len();
    for (item, it) in items.iter().enumerate().filter(|(_, it)| it.sizes[want] > 0.0) {
        let size = it.sizes[want];
        for (length, price) in it.ranges(stocks).into_iter().filter(|(length, _)| *length > 0) {
            segments.push(Segment { item, length, price, size, density: price as f64 / size });
        }
    }
    segments[start..].sort_by(|a, b| a.density.total_cmp(&b.density));
}

/// The parts of all items for one want and one stock of money: what takes none of it first, then by
/// what they cover for it.
fn parts(items: &[&Item], want: usize, stock: usize, stocks: &[f64]) -> Vec<Part> {
    let mut parts: Vec<Part> = items
        .iter()
        .enumerate()
        .filter(|(_, item)| item.sizes[want] > 0.0)
        .flat_map(|(position, item)| {
            let taken = item.takes.iter().find(|take| take.stock == stock);
            let price = taken.map_or(0.0, |take| take.each);
            let [(kept, _), (started, _)] = item.ranges(stocks);
            let size = item.sizes[want];
            let part = |length, each| Part { item: position, length, each, size };
            [part(kept, 0.0), part(started, price)]
        })
        .filter(|part| part.length > 0)
        .collect();
    parts.sort_by(|a, b| (a.each / a.size).total_cmp(&(b.each / b.size)));
    parts
}

/// What of a want stays uncovered if so much money is spent on these, in fractions.
fn unpaid<'p>(missing: f64, money: f64, parts: impl Iterator<Item = &'p Part>) -> f64 {
    let (mut rest, mut money) = (missing, money * (1.0 + STOCK_SLACK));
    for Part { length, each, size, .. } in parts {
        if rest <= 0.0 {
            break;
        }
        let paid = if *each > 0.0 { money / each } else { f64::INFINITY };
        let taken = (rest / size).min(f64::from(*length)).min(paid);
        rest -= taken * size;
        money -= taken * each;
    }
    rest
}

/// The search under way.
struct Run {
    counts: Few<u32>,
    /// What is left to cover.
    left: ByDepth,
    /// What is left of the stocks, for each depth; the stocks of a depth follow each other.
    stocks: ByDepth,
    best: (Worth, Few<u32>),
    steps: u32,
    /// The counts that are still to be tried, those of each depth behind those of the one above.
    open: SmallVec<[(Worth, u32); 32]>,
}

impl Run {
    fn is_no_better(&self, bound: Worth) -> bool {
        bound >= self.best.0
    }

    fn branch(&mut self, problem: &Problem<'_>, depth: usize, spent: u64) {
        let Some(item) = problem.items.get(depth) else {
            let worth = problem.worth(&self.counts);
            if !self.is_no_better(worth) {
                self.best = (worth, self.counts.clone());
            }
            return;
        };
        let start = self.open.len();
        self.promising(problem, depth, spent);
        for at in start..self.open.len() {
            let (bound, count) = self.open[at];
            if self.is_no_better(bound) || self.steps >= STEPS_MAX {
                break;
            }
            self.choose(problem, depth, count);
            self.branch(problem, depth + 1, spent + item.worth(count));
        }
        self.open.truncate(start);
    }

    /// Opens the counts of an item that may lead to something better, the most promising first; of
    /// equal ones the largest.
    fn promising(&mut self, problem: &Problem<'_>, depth: usize, spent: u64) {
        let item = problem.items[depth];
        let start = self.open.len();
        let (left, stocks) = (self.left(problem, depth), self.stocks(problem, depth));
        let most = problem.most(depth, left, stocks);
        // Of the last item, fewer than can be of use are never better.
        let least = if depth + 1 == problem.items.len() { most } else { item.min };
        let mut previous = None;
        for count in (least..=most).rev() {
            if self.steps >= STEPS_MAX {
                break;
            }
            self.steps += 1;
            self.choose(problem, depth, count);
            let left = self.left(problem, depth + 1);
            let stocks = self.stocks(problem, depth + 1);
            let bound = problem.bound(depth + 1, spent + item.worth(count), left, stocks);
            if !self.is_no_better(bound) {
                self.open.push((bound, count));
            } else if previous.is_some_and(|previous| bound > previous) {
                // The bound is convex in the count: once it rises, it goes on rising.
                break;
            }
            previous = Some(bound);
        }
        self.open[start..].sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    }

    fn choose(&mut self, problem: &Problem<'_>, depth: usize, count: u32) {
        self.counts[depth] = count;
        let sizes = &problem.items[depth].sizes;
        let width = problem.wants.len();
        let (before, after) = self.left.split_at_mut((depth + 1) * width);
        let before = &before[depth * width..];
        for ((left, after), size) in before.iter().zip(after).zip(sizes) {
            *after = left - f64::from(count) * size;
        }
        let width = problem.stocks.len();
        let (before, after) = self.stocks.split_at_mut((depth + 1) * width);
        let after = &mut after[..width];
        after.copy_from_slice(&before[depth * width..]);
        problem.items[depth].take(count, after);
    }

    fn stocks(&self, problem: &Problem<'_>, depth: usize) -> &[f64] {
        let width = problem.stocks.len();
        &self.stocks[depth * width..(depth + 1) * width]
    }

    fn left(&self, problem: &Problem<'_>, depth: usize) -> &[f64] {
        let width = problem.wants.len();
        &self.left[depth * width..(depth + 1) * width]
    }
}

/// An uncovered rest as a share of what is wanted, in billionths; nothing within the slack.
fn share(rest: f64, wanted: f64) -> u64 {
    let share = rest / wanted;
    if share <= SLACK { 0 } else { whole(share * SHARES).max(1) }
}

/// How many fit into what is left of a stock.
fn fitting(left: f64, each: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        (left / each * (1.0 + STOCK_SLACK)).floor().clamp(0.0, f64::from(u32::MAX)) as u32
    }
}

fn count(replicas: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        replicas.ceil().clamp(0.0, f64::from(u32::MAX)) as u32
    }
}

fn whole(price: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        price.clamp(0.0, 9e15) as u64
    }
}
