//! The advice as JSON and as text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::advise::args::AdviseArgs;
use crate::advise::estimate::Estimate;
use crate::advise::judge::{AdvisedChange, ModelToday, Verdict};
use crate::advise::scene::AdvisedFleet;
use crate::advise::span::hours;
use crate::backtest::fleet::written_objectives;
use crate::simulate::scenario::Slo;

/// The version of the JSON output.
const VERSION: u32 = 1;

/// The difference between the simulated and the recorded cost from which figures are doubtful.
const FIT: f64 = 0.2;

/// Changes without a gain that the text lists.
const SHOWN: usize = 20;

/// What no simulation of a trace can show.
const UNKNOWN: [&str; 7] = [
    "Traffic outside the simulated time: other weekdays, seasons, growth and launches.",
    "Requests that never reached an engine, because a gateway or a client gave up before.",
    "Prices other than those of the configuration: commitments, discounts and spot markets.",
    "Availability of accelerators, and crashes and losses of nodes.",
    "The cost and the risk of making a change.",
    "The effect of prefix caches and LoRA adapters, which are not simulated.",
    "The sum of several changes: each is compared alone with the fleet of today.",
];

/// The advice.
#[derive(Debug, Serialize)]
pub(crate) struct Advice {
    /// The version of this format.
    version: u32,
    /// The first and the last tick of the trace.
    recorded: [String; 2],
    /// The start and the end of the simulation.
    simulated: [String; 2],
    /// The equal parts of the simulated time that are compared.
    parts: u32,
    /// The length of a part in seconds.
    part_seconds: f64,
    /// The seeds that each change was simulated with.
    seeds: usize,
    /// The objective for the time to first token, in seconds.
    slo_ttft: f64,
    /// The additional time to first token for each token of a long prompt, in seconds.
    slo_ttft_per_token: f64,
    /// The prompt tokens beyond which that time is added.
    slo_long_prompt: u32,
    /// The objective for the time between tokens, in seconds.
    slo_itl: f64,
    /// The share of requests within their objectives that is good enough.
    attainment_target: f64,
    /// The models, or groups of models that share limits, today.
    pub(crate) models: Vec<ModelToday>,
    /// The advised changes, ordered by money.
    proposals: Vec<AdvisedChange>,
    /// Changes that were tried and are not advised, ordered by money.
    others: Vec<AdvisedChange>,
    /// Changes that were not tried, because there were too many.
    pub(crate) not_tried: usize,
    /// Groups of models that were not looked at, because others cost more.
    models_left_out: usize,
    /// What the simulation assumes, and what it leaves out.
    notes: Vec<String>,
    /// What the advice cannot take into account.
    unknown: Vec<String>,
}

// === impl Advice ===

impl Advice {
    /// The advice before any change was tried.
    pub(crate) fn new(fleet: &AdvisedFleet, args: &AdviseArgs, models_left_out: usize) -> Self {
        let text = |(from, to): (jiff::Timestamp, jiff::Timestamp)| {
            [format!("{from:.0}"), format!("{to:.0}")]
        };

        Self {
            version: VERSION,
            recorded: text(fleet.recorded),
            simulated: text(fleet.simulated),
            parts: fleet.blocks.count,
            part_seconds: fleet.blocks.length.seconds(),
            seeds: fleet.seeds(),
            slo_ttft: fleet.slo.ttft.seconds(),
            slo_ttft_per_token: fleet.slo.ttft_per_token.seconds(),
            slo_long_prompt: fleet.slo.long_prompt,
            slo_itl: fleet.slo.itl.seconds(),
            attainment_target: args.target(),
            models: Vec::new(),
            proposals: Vec::new(),
            others: Vec::new(),
            not_tried: 0,
            models_left_out,
            notes: fleet.notes.clone(),
            unknown: UNKNOWN.map(str::to_owned).into(),
        }
    }

    /// Adds a judged change.
    pub(crate) fn add(&mut self, proposal: AdvisedChange) {
        match proposal.verdict {
            Verdict::Saves | Verdict::Serves | Verdict::Tradeoff => self.proposals.push(proposal),
            Verdict::Uncertain | Verdict::NoGain => self.others.push(proposal),
        }
    }

    /// Orders the changes by money. Uncertain ones come before those without a gain.
    pub(crate) fn sort(&mut self) {
        self.proposals.sort_by(|a, b| a.per_month.mean.total_cmp(&b.per_month.mean));
        self.others.sort_by(|a, b| {
            let by_money = a.per_month.mean.total_cmp(&b.per_month.mean);
            a.verdict.cmp(&b.verdict).then(by_money)
        });
    }

    /// The advice for people. Writing to a string cannot fail, so the result is dropped.
    pub(crate) fn text(&self, objectives: &Slo) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "Simulated {} to {} with {} seeds, compared in {} parts of {}.\nObjectives: {}; {:.1}% \
             within them is good enough.\n",
            self.simulated[0],
            self.simulated[1],
            self.seeds,
            self.parts,
            hours(self.part_seconds),
            written_objectives(objectives),
            self.attainment_target * 100.0
        );
        for model in &self.models {
            let _ = writeln!(text, "{}", today(model));
        }

        self.write_proposals(&mut text);
        self.write_others(&mut text);
        let _ = writeln!(text, "\nNot included:");
        for line in &self.unknown {
            let _ = writeln!(text, "- {line}");
        }
        if !self.notes.is_empty() {
            let _ = writeln!(text, "\nAssumptions of the simulation:");
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }

        text
    }

    fn write_proposals(&self, text: &mut String) {
        if self.proposals.is_empty() {
            let _ = writeln!(
                text,
                "\nChange nothing. No change reliably saves money or serves more requests in \
                 time. Changes tried: {}.",
                self.others.len()
            );
            return;
        }

        let _ = writeln!(
            text,
            "\nProposals, each alone against today, per month of 730 hours, in the unit of `cost`:"
        );
        table(text, self.proposals.iter());
    }

    fn write_others(&self, text: &mut String) {
        let of = |verdict: Verdict| self.others.iter().filter(move |it| it.verdict == verdict);
        if of(Verdict::Uncertain).next().is_some() {
            let _ = writeln!(text, "\nUncertain, because the interval includes no change:");
            table(text, of(Verdict::Uncertain));
        }
        if of(Verdict::NoGain).next().is_some() {
            let _ = writeln!(text, "\nTried without a gain:");
            table(text, of(Verdict::NoGain).take(SHOWN));
        }
        if self.not_tried > 0 {
            let _ = writeln!(text, "Changes that were not tried: {}.", self.not_tried);
        }
        if self.models_left_out > 0 {
            let left_out = self.models_left_out;
            let _ = writeln!(text, "Models that cost less and were not analyzed: {left_out}.");
        }
    }
}

/// One group of models in words.
fn today(model: &ModelToday) -> String {
    let ModelToday { models, cost_per_month, recorded_cost_per_month, attainment } = model;
    let mut line = format!(
        "{models}: {} per month, {} within objectives",
        interval(cost_per_month),
        share(*attainment)
    );
    let off = cost_per_month.mean / recorded_cost_per_month.max(1e-9) - 1.0;
    if *recorded_cost_per_month > 0.0 {
        let _ =
            write!(line, "; recorded {} ({:+.0}%)", money(*recorded_cost_per_month), off * 100.0);
        if off.abs() > FIT {
            line.push_str(", so its figures are unreliable");
        }
    }

    line
}

fn table<'a>(text: &mut String, proposals: impl Iterator<Item = &'a AdvisedChange>) {
    let rows: Vec<[String; 3]> = proposals
        .map(|it| {
            let what = format!("{}: {}", it.subject, it.change);
            let shares =
                format!("{} -> {}", share(it.attainment_before), share(it.attainment_after));
            let verdict = match it.verdict {
                Verdict::Tradeoff => " (your choice)",
                _ => "",
            };
            let mut conditions = String::new();
            for line in it.assumes.iter().filter(|_| it.verdict != Verdict::NoGain) {
                let _ = write!(conditions, "\n      if {line}");
            }
            [interval(&it.per_month), shares, format!("{what}{verdict}{conditions}")]
        })
        .collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);

    for row in &rows {
        let [money, shares, what] = row;
        let _ = writeln!(text, "  {money:>0$}  {shares:>1$}  {what}", width(0), width(1));
    }
}

/// A share in percent.
fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", share * 100.0))
}

/// An estimate of money with its interval.
fn interval(estimate: &Estimate) -> String {
    let Estimate { mean, low, high } = *estimate;
    match low.zip(high).map(|(low, high)| (money(low), money(high))) {
        Some((low, high)) if low == high => low,
        Some((low, high)) => format!("{} ({low} to {high})", money(mean)),
        None => money(mean),
    }
}

/// An amount of money, in whole units if it is large.
fn money(value: f64) -> String {
    let shown = if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if shown.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') {
        "0".to_owned()
    } else {
        shown
    }
}
