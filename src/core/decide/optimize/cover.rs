//! The exact search: whole numbers of items that cover the wants at the lowest price.
//!
//! # Model
//!
//! Branch and bound over the items, the most expensive first. The rest for the cheap items is then
//! small, and the linear relaxation is nearly exact for it. For each item, the most promising count
//! is tried first. A partial choice is dropped if it cannot beat the best complete choice so far.
//! The bound is the linear relaxation of the rest, with one want at a time. Starting with the item
//! that covers most for its price, and with its largest useful count, takes 25 times as many steps
//! for eight items.
//!
//! The search starts from the items that exist, with the missing items added in search order, and
//! then tries the greedy choice. Its result is never worse than the former, even if cut short.
//!
//! If the wants cannot be covered, the uncovered rest is made as small as possible, and then the
//! price: choices are compared by ([`ChoiceWorth::uncovered`], [`ChoiceWorth::price`]).
//!
//! # Units
//!
//! Prices are whole numbers, [`GRID`] for the most expensive item, so that sums and ties are exact.
//! Each wanted amount is in a unit of its own.
//!
//! # Domain
//!
//! Up to about a dozen items. The search is cut short after [`STEPS_MAX`] steps.

use smallvec::SmallVec;

use crate::decide::optimize::model::Few;

/// The price of the most expensive item. It is fine enough that rounding prices costs less than a
/// billionth, and coarse enough that a million of them stay exact in 64 bits.
pub(crate) const GRID: f64 = 1_073_741_824.0;

/// Partial choices after which the search gives up. Fleets in practice take a few hundred per
/// model. This many take a few milliseconds, which a tick can afford once.
pub(crate) const STEPS_MAX: u32 = 20_000;

/// Uncovered shares are counted in billionths.
const SHARES: f64 = 1e9;

/// Sums of capacities differ in their last digits. A gap below this share of the demand is not a
/// shortfall.
pub(crate) const SLACK: f64 = 1e-9;

/// A thing that can be chosen in whole numbers.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The minimum count.
    pub(crate) min: u32,
    /// The maximum count.
    pub(crate) max: u32,
    /// The current count.
    pub(crate) current: u32,
    /// Price of each.
    pub(crate) price: u64,
    /// Additional price of each that is started.
    pub(crate) start: u64,
    /// Price of each that is removed; less than `price`.
    pub(crate) drain: u64,
    /// The amount of each want that one covers.
    pub(crate) sizes: CoverSizes,
    /// The stocks that started items are taken from.
    pub(crate) takes: StockUses,
}

/// The stocks from which items are started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stocks {
    /// The amount in each stock.
    pub(crate) left: Few<f64>,
    /// Index of the first stock that many items share: money, or accelerators of any kind. Such
    /// stocks have a bound of their own. Accelerators of one kind concern few items.
    pub(crate) shared: usize,
}

/// The amount that each started item takes from a stock: accelerators, or money.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StockUse {
    pub(crate) stock: usize,
    pub(crate) each: f64,
}

/// The amount of each want that one item covers. There are hardly more wants than analyzers.
pub(crate) type CoverSizes = SmallVec<[f64; 5]>;

/// The amounts that an item takes from stocks: accelerators of one kind, and a few shared stocks.
pub(crate) type StockUses = SmallVec<[StockUse; 2]>;

/// Amounts for each depth of the search and each want, one depth after the other.
type ByDepth = SmallVec<[f64; 32]>;

/// The quality of a complete choice; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChoiceWorth {
    /// The sum of the uncovered shares of all wants, in billionths.
    pub(crate) uncovered: u64,
    /// The total price.
    pub(crate) price: u64,
}

/// The best choice found.
#[derive(Clone, Debug)]
pub(crate) struct CoverChoice {
    /// The count of each item.
    pub(crate) counts: Few<u32>,
    /// Partial choices that were examined.
    pub(crate) steps: u32,
    /// The completeness of the search.
    pub(crate) search: SearchCompleteness,
}

/// The completeness of a search. It is complete if every choice was examined or ruled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchCompleteness {
    Complete,
    CutShort,
}

/// Prices are not whole numbers, so the rest of a stock may be too small in its last digits.
const STOCK_SLACK: f64 = 1e-10;

/// Returns the choice with the lowest worth. Among equal choices it is the first that the search
/// finds, which depends only on the items and their order. Of two equal items it takes the earlier
/// one.
pub(crate) fn choose(items: &[Item], wants: &[f64], stocks: &Stocks) -> CoverChoice {
    let problem = CoverProblem::new(items, wants, stocks);
    let mut run = SearchRun {
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

    let search = if run.steps < STEPS_MAX {
        SearchCompleteness::Complete
    } else {
        SearchCompleteness::CutShort
    };
    CoverChoice { counts, steps: run.steps, search }
}

/// A part of an item's range in which each has the same price.
#[derive(Clone, Copy)]
struct PriceSegment {
    item: usize,
    length: u32,
    price: u64,
    size: f64,
    /// The price per covered amount.
    density: f64,
}

/// A part of an item's range in which each takes the same amount from a stock.
#[derive(Clone, Copy)]
struct ItemPart {
    item: usize,
    length: u32,
    each: f64,
    size: f64,
}

/// The items in search order, with precomputed data for the rest at each depth.
struct CoverProblem<'a> {
    items: Few<&'a Item>,
    order: Few<usize>,
    wants: &'a [f64],
    /// The rest of each stock after every item is started up to its minimum.
    stocks: Few<f64>,
    /// The segments of each want by price per covered amount, one want after the other.
    segments: SmallVec<[PriceSegment; 32]>,
    /// For each want, the end of its segments.
    ends: Few<usize>,
    /// For each want and each shared stock, the parts by coverage for the amount that they take;
    /// empty without shared stocks.
    parts: Vec<Vec<(usize, Vec<ItemPart>)>>,
    /// For each depth, the price of the minima from that depth on.
    base: Few<u64>,
    /// The amounts that the minima from each depth on cover.
    covered: ByDepth,
}

impl Item {
    /// Returns the price of this count.
    fn worth(&self, count: u32) -> u64 {
        let started = u64::from(count.saturating_sub(self.current));
        let drained = u64::from(self.current.saturating_sub(count));
        u64::from(count) * self.price + started * self.start + drained * self.drain
    }

    /// Returns the number of items that the minimum starts in any case.
    fn forced(&self) -> u32 {
        self.min.saturating_sub(self.current)
    }

    /// Returns the largest count that the stocks allow.
    fn had(&self, stocks: &[f64]) -> u32 {
        let taking = self.takes.iter().filter(|take| take.each > 0.0);
        let more = taking.map(|take| fitting(stocks[take.stock], take.each)).min();
        let held = self.min.max(self.current);
        more.map_or(self.max, |more| self.max.min(held.saturating_add(more))).max(self.min)
    }

    /// Takes the needs of this count from the stocks, except those of the minimum.
    fn take(&self, count: u32, stocks: &mut [f64]) {
        let started = count.saturating_sub(self.min.max(self.current));
        for StockUse { stock, each } in &self.takes {
            stocks[*stock] = (stocks[*stock] - each * f64::from(started)).max(0.0);
        }
    }

    /// Returns the parts of the range above the minimum: existing items, and items to be started.
    fn ranges(&self, stocks: &[f64]) -> [(u32, u64); 2] {
        let most = self.had(stocks);
        let kept = self.current.min(most).saturating_sub(self.min);
        let started = most.saturating_sub(self.current.max(self.min));
        [(kept, self.price - self.drain.min(self.price)), (started, self.price + self.start)]
    }

    /// Returns the share of the wants that one covers for its price, for the order of the search.
    fn density(&self, wants: &[f64]) -> f64 {
        let covered: f64 = self.sizes.iter().zip(wants).map(|(size, want)| size / want).sum();
        covered / (self.price.max(1)) as f64
    }
}

impl<'a> CoverProblem<'a> {
    fn new(items: &'a [Item], wants: &'a [f64], given: &Stocks) -> Self {
        let mut order: Few<usize> = (0..items.len()).collect();
        order.sort_by(|&a, &b| {
            (items[b].price.cmp(&items[a].price))
                .then_with(|| items[b].density(wants).total_cmp(&items[a].density(wants)))
                .then(a.cmp(&b))
        });

        let ordered: Few<&Item> = order.iter().map(|&original| &items[original]).collect();
        let mut stocks = given.left.clone();
        for item in &ordered {
            for StockUse { stock, each } in &item.takes {
                let forced = each * f64::from(item.forced());
                stocks[*stock] = (stocks[*stock] - forced).max(0.0);
            }
        }

        let mut segments = SmallVec::new();
        let mut ends = Few::new();
        for want in 0..wants.len() {
            add_segments(&mut segments, &ordered, want, &stocks);
            ends.push(segments.len());
        }

        let shared = given.shared..stocks.len();
        let bounded = if shared.is_empty() { 0 } else { wants.len() };
        let mut parts_by_want = Vec::with_capacity(bounded);
        for want in 0..bounded {
            let by_stock = shared.clone().map(|at| (at, parts(&ordered, want, at, &stocks)));
            parts_by_want.push(by_stock.collect());
        }

        let mut base = Few::from_elem(0, items.len() + 1);
        let width = wants.len();
        let mut covered = ByDepth::from_elem(0.0, width * (items.len() + 1));
        for (depth, item) in ordered.iter().enumerate().rev() {
            base[depth] = base[depth + 1] + item.worth(item.min);
            for (want, size) in item.sizes.iter().enumerate().take(width) {
                let rest = covered[(depth + 1) * width + want];
                covered[depth * width + want] = rest + f64::from(item.min) * size;
            }
        }

        let parts = parts_by_want;
        Self { items: ordered, order, wants, stocks, segments, ends, parts, base, covered }
    }

    /// Returns the largest count of an item that is useful and available.
    fn most(&self, depth: usize, left: &[f64], stocks: &[f64]) -> u32 {
        let item = self.items[depth];
        let wants = 0..self.wants.len();
        let useful = wants.map(|want| self.needed(item, want, left[want])).max().unwrap_or(0);
        useful.min(item.had(stocks)).max(item.min)
    }

    /// Returns the count of an item that covers what is left of a want.
    fn needed(&self, item: &Item, want: usize, left: f64) -> u32 {
        let rest = left - SLACK * self.wants[want];
        let size = item.sizes[want];
        if rest <= 0.0 || size <= 0.0 { 0 } else { count(rest / size) }
    }

    /// Returns a lower bound for the worth of every choice from this depth on.
    fn bound(&self, depth: usize, spent: u64, left: &[f64], stocks: &[f64]) -> ChoiceWorth {
        let mut bound = ChoiceWorth { uncovered: 0, price: spent + self.base[depth] };
        let base = bound.price as f64;
        let width = self.wants.len();
        let mut start = 0;
        for (want, &end) in self.ends.iter().enumerate() {
            let segments = &self.segments[start..end];
            start = end;

            let missing =
                left[want] - self.covered[depth * width + want] - SLACK * self.wants[want];
            let mut rest = missing;
            let mut price = base;
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
            // A trillionth below the sum, because the sum is rounded.
            bound.price = bound.price.max(whole(price * (1.0 - 1e-12)));
            bound.uncovered += uncovered;
        }

        bound
    }

    fn worth(&self, counts: &[u32]) -> ChoiceWorth {
        let price = self.items.iter().zip(counts).map(|(item, count)| item.worth(*count)).sum();
        let uncovered = (0..self.wants.len()).map(|want| self.uncovered(counts, want)).sum();
        ChoiceWorth { uncovered, price }
    }

    /// Returns the share of a want that these counts do not cover, in billionths.
    fn uncovered(&self, counts: &[u32], want: usize) -> u64 {
        let each = self.items.iter().zip(counts);
        let covered: f64 = each.map(|(item, count)| item.sizes[want] * f64::from(*count)).sum();
        share(self.wants[want] - covered, self.wants[want])
    }

    /// Returns the existing items with the missing ones added, in search order.
    fn added(&self) -> (ChoiceWorth, Few<u32>) {
        let mut counts: Few<u32> =
            self.items.iter().map(|item| item.current.clamp(item.min, item.max)).collect();
        let mut stocks = self.stocks.clone();
        let mut left = CoverSizes::from_elem(0.0, self.wants.len());
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

/// Adds the segments of all items for one want, by price per covered amount. No segment is longer
/// than its stock allows if no other item takes from it.
fn add_segments(
    segments: &mut SmallVec<[PriceSegment; 32]>,
    items: &[&Item],
    want: usize,
    stocks: &[f64],
) {
    let start = segments.len();
    for (item, it) in items.iter().enumerate().filter(|(_, it)| it.sizes[want] > 0.0) {
        let size = it.sizes[want];
        for (length, price) in it.ranges(stocks).into_iter().filter(|(length, _)| *length > 0) {
            segments.push(PriceSegment { item, length, price, size, density: price as f64 / size });
        }
    }

    segments[start..].sort_by(|a, b| a.density.total_cmp(&b.density));
}

/// Returns the parts of all items for one want and one shared stock. Parts that take nothing from it
/// come first, the others follow by coverage for the amount that they take.
fn parts(items: &[&Item], want: usize, stock: usize, stocks: &[f64]) -> Vec<ItemPart> {
    let mut parts: Vec<ItemPart> = items
        .iter()
        .enumerate()
        .filter(|(_, item)| item.sizes[want] > 0.0)
        .flat_map(|(position, item)| {
            let taken = item.takes.iter().find(|take| take.stock == stock);
            let price = taken.map_or(0.0, |take| take.each);
            let [(kept, _), (started, _)] = item.ranges(stocks);
            let size = item.sizes[want];
            [
                ItemPart { item: position, length: kept, each: 0.0, size },
                ItemPart { item: position, length: started, each: price, size },
            ]
        })
        .filter(|part| part.length > 0)
        .collect();

    parts.sort_by(|a, b| (a.each / a.size).total_cmp(&(b.each / b.size)));
    parts
}

/// Returns the rest of a want that stays uncovered if this stock is spent on fractions of these
/// parts.
fn unpaid<'p>(missing: f64, stock: f64, parts: impl Iterator<Item = &'p ItemPart>) -> f64 {
    let mut rest = missing;
    let mut unspent = stock * (1.0 + STOCK_SLACK);
    for ItemPart { length, each, size, .. } in parts {
        if rest <= 0.0 {
            break;
        }

        let paid = if *each > 0.0 { unspent / each } else { f64::INFINITY };
        let taken = (rest / size).min(f64::from(*length)).min(paid);
        rest -= taken * size;
        unspent -= taken * each;
    }

    rest
}

/// The state of the search.
struct SearchRun {
    counts: Few<u32>,
    /// The rest to cover.
    left: ByDepth,
    /// The rest of the stocks for each depth, one depth after the other.
    stocks: ByDepth,
    best: (ChoiceWorth, Few<u32>),
    steps: u32,
    /// The counts still to be tried; those of each depth follow those of the depth above.
    open: SmallVec<[(ChoiceWorth, u32); 32]>,
}

impl SearchRun {
    fn is_no_better(&self, bound: ChoiceWorth) -> bool {
        bound >= self.best.0
    }

    fn branch(&mut self, problem: &CoverProblem<'_>, depth: usize, spent: u64) {
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

    /// Opens the counts of an item that may lead to a better choice, the most promising first.
    /// Among equal ones, the largest count comes first.
    fn promising(&mut self, problem: &CoverProblem<'_>, depth: usize, spent: u64) {
        let item = problem.items[depth];
        let start = self.open.len();
        let left = self.left(problem, depth);
        let stocks = self.stocks(problem, depth);
        let most = problem.most(depth, left, stocks);
        // For the last item, fewer than the useful count is never better.
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
                // The bound is convex in the count: once it rises, it keeps rising.
                break;
            }

            previous = Some(bound);
        }

        self.open[start..].sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    }

    fn choose(&mut self, problem: &CoverProblem<'_>, depth: usize, count: u32) {
        self.counts[depth] = count;
        let sizes = &problem.items[depth].sizes;
        let width = problem.wants.len();
        let (before, after) = self.left.split_at_mut((depth + 1) * width);
        let here = &before[depth * width..];
        for ((left, next), size) in here.iter().zip(after).zip(sizes) {
            *next = left - f64::from(count) * size;
        }

        let width = problem.stocks.len();
        let (before, after) = self.stocks.split_at_mut((depth + 1) * width);
        let next = &mut after[..width];
        next.copy_from_slice(&before[depth * width..]);
        problem.items[depth].take(count, next);
    }

    fn stocks(&self, problem: &CoverProblem<'_>, depth: usize) -> &[f64] {
        let width = problem.stocks.len();
        &self.stocks[depth * width..(depth + 1) * width]
    }

    fn left(&self, problem: &CoverProblem<'_>, depth: usize) -> &[f64] {
        let width = problem.wants.len();
        &self.left[depth * width..(depth + 1) * width]
    }
}

/// Returns an uncovered rest as a share of the want, in billionths; zero within the slack.
fn share(rest: f64, wanted: f64) -> u64 {
    let share = rest / wanted;
    if share <= SLACK { 0 } else { whole(share * SHARES).max(1) }
}

/// Returns the number of items that fit into the rest of a stock.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that are the same in each run.
    struct Numbers(u64);

    impl Numbers {
        /// A number below `end`.
        fn below(&mut self, end: u32) -> u32 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(self.0 >> 33).unwrap() % end
        }

        fn item(&mut self, wants: usize, stocks: usize) -> Item {
            let min = self.below(2);
            let max = min + self.below(5);
            let price = 1000 * u64::from(1 + self.below(40));
            let each = (0..stocks).map(|stock| StockUse { stock, each: f64::from(self.below(4)) });
            let takes = each.collect();
            Item {
                min,
                max,
                current: self.below(max + 1),
                price,
                start: 1 + 300 * u64::from(self.below(4)),
                drain: (1 + 400 * u64::from(self.below(4))).min(price - 1),
                sizes: (0..wants).map(|_| f64::from(self.below(10))).collect(),
                takes,
            }
        }
    }

    /// Whether the stocks have what these counts start beyond the minima.
    fn fits(items: &[Item], stocks: &Stocks, counts: &[u32]) -> bool {
        let used = |stock: usize, started: &dyn Fn(&Item, u32) -> u32| -> f64 {
            let each = items.iter().zip(counts).flat_map(|(item, count)| {
                let of = item.takes.iter().filter(move |take| take.stock == stock);
                of.map(move |take| take.each * f64::from(started(item, *count)))
            });
            each.sum()
        };
        (0..stocks.left.len()).all(|stock| {
            let forced = used(stock, &|item, _| item.forced());
            let more = used(stock, &|item, count| count.saturating_sub(item.min.max(item.current)));
            more <= 0.0 || more <= (stocks.left[stock] - forced).max(0.0)
        })
    }

    fn worth(items: &[Item], wants: &[f64], counts: &[u32]) -> ChoiceWorth {
        let price = items.iter().zip(counts).map(|(item, count)| item.worth(*count)).sum();
        let uncovered = wants.iter().enumerate().map(|(want, wanted)| {
            let each = items.iter().zip(counts);
            let covered: f64 = each.map(|(item, count)| item.sizes[want] * f64::from(*count)).sum();
            share(wanted - covered, *wanted)
        });
        ChoiceWorth { uncovered: uncovered.sum(), price }
    }

    /// The least worth of all counts that the stocks allow.
    fn least(items: &[Item], wants: &[f64], stocks: &Stocks) -> ChoiceWorth {
        let mut counts: Vec<u32> = items.iter().map(|item| item.min).collect();
        let mut best = worth(items, wants, &counts);
        while let Some(next) = (0..items.len()).find(|&at| counts[at] < items[at].max) {
            counts[next] += 1;
            for at in 0..next {
                counts[at] = items[at].min;
            }
            if fits(items, stocks, &counts) {
                best = best.min(worth(items, wants, &counts));
            }
        }
        best
    }

    #[test]
    fn no_choice_that_the_stocks_allow_is_better_and_few_are_looked_at() {
        let mut numbers = Numbers(1);
        let mut steps = 0;
        for round in 0..600 {
            // Without stocks, with accelerators, with money, with both.
            let (accelerators, purses) = [(0, 0), (1, 0), (0, 1), (1, 1)][round % 4];
            let wants: Vec<f64> =
                (0..=numbers.below(2)).map(|_| f64::from(5 + numbers.below(60))).collect();
            let count = 1 + numbers.below(4);
            let items: Vec<Item> =
                (0..count).map(|_| numbers.item(wants.len(), accelerators + purses)).collect();
            let left = (0..accelerators + purses).map(|_| f64::from(numbers.below(16)));
            let stocks = Stocks { left: left.collect(), shared: accelerators };
            let choice = choose(&items, &wants, &stocks);
            let found = worth(&items, &wants, &choice.counts);
            assert_eq!(found, least(&items, &wants, &stocks), "{items:#?} {wants:?} {stocks:?}");
            assert!(fits(&items, &stocks, &choice.counts), "{items:#?} {stocks:?} {choice:?}");
            assert_eq!(choice.search, SearchCompleteness::Complete);
            steps += choice.steps;
        }
        assert!(steps <= 2655, "a bound that is less tight takes more steps: {steps}");
    }
}
