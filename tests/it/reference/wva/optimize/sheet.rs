//! The numbers of one model in rows and columns: variants by their position, voices by theirs.

use std::collections::BTreeSet;

use plimsoll::analyze::capacity::{CapacityReport, Totals};
use plimsoll::decide::optimize::{Candidate, ReportFreshness};
use plimsoll::fleet::{ModelKey, Role};
use plimsoll::units::{Amount, Replicas, Weight};

use super::{Method, Model, Plan};

/// One model, ready for arithmetic.
pub(super) struct Sheet<'a> {
    pub(super) key: &'a ModelKey,
    pub(super) priority: Weight,
    /// The variants in the order of their keys.
    pub(super) variants: Vec<&'a Candidate>,
    /// The capacity of one replica of each variant, in the unit of the sizing report.
    pub(super) sizes: Vec<Option<f64>>,
    /// Variants that can stand in for one another.
    pub(super) groups: Vec<Group>,
    pub(super) voices: Vec<Row>,
    /// The sums of the sizing report, for each group.
    pub(super) sizing: Vec<Totals>,
    /// The demand of the whole model, by the sizing report.
    pub(super) demand: Amount,
}

/// The variants of one role.
pub(super) struct Group {
    /// `None` where all variants serve whole requests.
    role: Option<Role>,
    /// Their positions.
    pub(super) members: Vec<usize>,
}

/// The findings of one voice.
pub(super) struct Row {
    pub(super) score: Weight,
    pub(super) standing: ReportFreshness,
    /// The capacity of one replica of each variant.
    pub(super) sizes: Vec<Option<f64>>,
    /// The sums for each group.
    pub(super) totals: Vec<Totals>,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(model: &'a Model<'_>) -> Self {
        let mut variants: Vec<&Candidate> = model.candidates.iter().collect();
        variants.sort_by(|a, b| a.key.cmp(&b.key));

        let groups = groups(model, &variants);
        let voices = model
            .voices
            .iter()
            .map(|voice| Row {
                score: voice.score,
                standing: voice.standing,
                sizes: sizes(voice.report, &variants),
                totals: totals(voice.report, &groups),
            })
            .collect();

        Self {
            key: &model.key,
            priority: model.priority,
            sizes: sizes(model.sizing, &variants),
            sizing: totals(model.sizing, &groups),
            demand: model.sizing.total.demand,
            variants,
            groups,
            voices,
        }
    }

    /// The replicas that the scale targets ask for, in the order of the variants.
    pub(super) fn current(&self) -> Vec<Replicas> {
        self.variants.iter().map(|variant| variant.current).collect()
    }

    /// The plan with these numbers.
    pub(super) fn plan(&self, method: Method, after: &[Replicas]) -> Plan {
        let keys = self.variants.iter().map(|variant| variant.key.clone());
        Plan { model: self.key.clone(), method, targets: keys.zip(after.iter().copied()).collect() }
    }
}

/// One group, or one for each role of a model that serves prefill and decode apart.
fn groups(model: &Model<'_>, variants: &[&Candidate]) -> Vec<Group> {
    if model.sizing.roles.is_empty() {
        return vec![Group { role: None, members: (0..variants.len()).collect() }];
    }

    let reports = model.voices.iter().map(|voice| voice.report).chain([model.sizing]);
    let roles: BTreeSet<Role> = reports.flat_map(|report| report.roles.keys().copied()).collect();

    let members = |role: Role| {
        (0..variants.len()).filter(|&position| variants[position].role == role).collect()
    };
    roles.into_iter().map(|role| Group { role: Some(role), members: members(role) }).collect()
}

/// The capacity of one replica of each variant; a capacity of zero is none.
fn sizes(report: &CapacityReport, variants: &[&Candidate]) -> Vec<Option<f64>> {
    variants
        .iter()
        .map(|variant| {
            let row = report.variants.iter().find(|row| row.key == variant.key)?;
            row.per_replica.map(Amount::amount).filter(|size| *size > 0.0)
        })
        .collect()
}

fn totals(report: &CapacityReport, groups: &[Group]) -> Vec<Totals> {
    let of_group = |group: &Group| match group.role {
        None => report.total,
        Some(role) => report.roles.get(&role).copied().unwrap_or_default(),
    };
    groups.iter().map(of_group).collect()
}

/// A whole number of replicas as a count, cut off at the most that a scale target can have.
pub(super) fn whole_count(whole: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        whole.clamp(0.0, f64::from(Replicas::LIMIT.count())) as u32
    }
}
