//! The numbers of one model in rows and columns: variants by their position, voices by theirs.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::analyze::capacity::{CapacityReport, Totals, Unit, VariantCapacity};
use crate::decide::optimize::{
    Because, Candidate, Cover, Few, Method, Model, Placement, Plan, Standing,
};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Amount, CostPerHour, Replicas};

/// Sums of capacities differ in their last digits. Less than this share of what is asked is no
/// shortfall.
pub(crate) const SLACK: f64 = 1e-9;

/// Something of each group: all variants, or those of each of three roles.
type PerRole<T> = SmallVec<[T; 3]>;

/// One model, ready for arithmetic.
pub(crate) struct Sheet<'a> {
    pub(crate) key: &'a ModelKey,
    /// The variants in the order of their keys.
    pub(crate) variants: Few<&'a Candidate>,
    /// Variants that can stand in for one another.
    pub(crate) groups: PerRole<Group>,
    pub(crate) voices: SmallVec<[Row; 4]>,
}

/// The variants of one role.
pub(crate) struct Group {
    /// `None` where all variants serve whole requests.
    pub(crate) role: Option<Role>,
    /// Their positions.
    pub(crate) members: Few<usize>,
}

/// What one voice says.
pub(crate) struct Row {
    pub(crate) unit: Unit,
    pub(crate) standing: Standing,
    /// What one replica of each variant carries.
    pub(crate) sizes: Few<Option<f64>>,
    /// The sums for each group.
    pub(crate) totals: PerRole<Totals>,
}

impl<'a> Sheet<'a> {
    pub(crate) fn new(model: &'a Model<'_>) -> Self {
        let mut variants: Few<&Candidate> = model.candidates.iter().collect();
        variants.sort_by(|a, b| a.key.cmp(&b.key));
        let groups = groups(model, &variants);
        let voices = model
            .voices
            .iter()
            .map(|voice| Row {
                unit: voice.report.unit,
                standing: voice.standing,
                sizes: sizes(voice.report, &variants),
                totals: totals(voice.report, &groups),
            })
            .collect();
        Self { key: &model.key, variants, groups, voices }
    }

    /// The plan that these numbers are.
    pub(crate) fn plan(&self, method: Method, after: &[Replicas]) -> Plan {
        let placements: Vec<Placement> = self
            .variants
            .iter()
            .zip(after)
            .map(|(variant, after)| Placement {
                key: variant.key.clone(),
                before: variant.current,
                after: *after,
                cost: variant.cost,
                because: match after.cmp(&variant.current) {
                    std::cmp::Ordering::Equal => Because::Kept,
                    std::cmp::Ordering::Greater => Because::Added,
                    std::cmp::Ordering::Less => Because::Removed,
                },
            })
            .collect();
        let cost = |replicas: &dyn Fn(&Placement) -> Replicas| -> CostPerHour {
            placements.iter().map(|it| it.cost.times(replicas(it))).sum()
        };
        Plan {
            model: self.key.clone(),
            method,
            covers: self.covers(after),
            cost_before: cost(&|it| it.before),
            cost_after: cost(&|it| it.after),
            rankings: Arc::default(),
            placements,
        }
    }

    /// Whether no voice asks for more or for less of a group.
    pub(crate) fn stays(&self, group: usize) -> bool {
        self.voices.iter().all(|voice| {
            let Totals { required, spare, .. } = voice.totals[group];
            required == Amount::ZERO && spare == Amount::ZERO
        })
    }

    /// Whether some voice asks for more of a group.
    pub(crate) fn is_short(&self, group: usize) -> bool {
        self.voices.iter().any(|voice| voice.totals[group].required > Amount::ZERO)
    }

    /// What each voice asks of each group, against what these numbers carry.
    fn covers(&self, after: &[Replicas]) -> Vec<Cover> {
        let mut covers = Vec::new();
        for (position, group) in self.groups.iter().enumerate() {
            for voice in &self.voices {
                let carried = group.members.iter().filter_map(|&member| {
                    Amount::new(voice.sizes[member]?).map(|size| size.times(after[member]))
                });
                covers.push(Cover {
                    unit: voice.unit,
                    role: group.role,
                    wanted: voice.wanted(position),
                    planned: carried.sum(),
                });
            }
        }
        covers
    }
}

impl Row {
    /// How much the variants of a group must carry.
    pub(crate) fn wanted(&self, group: usize) -> Amount {
        let Totals { supply, anticipated, demand: _, required, spare } = self.totals[group];
        if required > Amount::ZERO {
            return anticipated.max(supply) + required;
        }
        match self.standing {
            // What is coming is not given up before it has carried anything.
            Standing::Live if spare == Amount::ZERO => anticipated.max(supply),
            Standing::Live => supply.beyond(spare),
            Standing::Stale => Amount::ZERO,
        }
    }
}

/// One group, or one a role of a model that serves prefill and decode apart.
fn groups(model: &Model<'_>, variants: &[&Candidate]) -> PerRole<Group> {
    if model.sizing.roles.is_empty() {
        let all = Group { role: None, members: (0..variants.len()).collect() };
        return std::iter::once(all).collect();
    }
    let reports = model.voices.iter().map(|voice| voice.report).chain([model.sizing]);
    let roles: BTreeSet<Role> = reports.flat_map(|report| report.roles.keys().copied()).collect();
    let members = |role: Role| {
        let of_role = variants.iter().enumerate().filter(|(_, variant)| variant.role == role);
        of_role.map(|(position, _)| position).collect()
    };
    roles.into_iter().map(|role| Group { role: Some(role), members: members(role) }).collect()
}

/// What one replica of each variant carries; a capacity of zero is none.
fn sizes(report: &CapacityReport, variants: &[&Candidate]) -> Few<Option<f64>> {
    let size = |(position, variant): (usize, &&Candidate)| {
        let row = row_of(report, position, &variant.key)?;
        row.per_replica.map(Amount::amount).filter(|size| *size > 0.0)
    };
    variants.iter().enumerate().map(size).collect()
}

/// What a report says of a variant. Reports are nearly always in the order of the keys, so that the
/// place among the variants is the place in the report.
pub(crate) fn row_of<'r>(
    report: &'r CapacityReport,
    position: usize,
    key: &VariantKey,
) -> Option<&'r VariantCapacity> {
    let there = report.variants.get(position).filter(|row| row.key == *key);
    there.or_else(|| report.variants.iter().find(|row| row.key == *key))
}

fn totals(report: &CapacityReport, groups: &[Group]) -> PerRole<Totals> {
    let of_group = |group: &Group| match group.role {
        None => report.total,
        Some(role) => report.roles.get(&role).copied().unwrap_or_default(),
    };
    groups.iter().map(of_group).collect()
}

/// A whole number of replicas as a count; what no scale target has is cut off.
pub(crate) fn whole_count(whole: f64) -> u32 {
    // The range is checked, so nothing is lost but a fraction that is not there.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        whole.clamp(0.0, f64::from(Replicas::LIMIT.count())) as u32
    }
}
