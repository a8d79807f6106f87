//! The data of one model in rows and columns: variants and voices by their positions.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::analyze::capacity::{CapacityReport, Totals, Unit, VariantCapacity};
use crate::decide::optimize::cover::SLACK;
use crate::decide::optimize::model::{Candidate, Few, PlanModel, ReportFreshness};
use crate::decide::optimize::plan::{DemandCover, ModelPlan, Placement, PlanMethod, PlanReason};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Amount, CostPerHour, Replicas};

/// A list with an entry per group: all variants, or the variants of each of three roles.
type PerRole<T> = SmallVec<[T; 3]>;

/// One model, ready for arithmetic.
pub(crate) struct ModelSheet<'a> {
    pub(crate) key: &'a ModelKey,
    /// The variants in key order.
    pub(crate) variants: Few<&'a Candidate>,
    /// Groups of variants that can replace each other.
    pub(crate) groups: PerRole<RoleGroup>,
    pub(crate) voices: SmallVec<[ReportRow; 4]>,
}

/// The variants of one role.
pub(crate) struct RoleGroup {
    /// `None` if all variants serve whole requests.
    pub(crate) role: Option<Role>,
    /// The positions of the variants.
    pub(crate) members: Few<usize>,
}

/// The report of one voice.
pub(crate) struct ReportRow {
    pub(crate) unit: Unit,
    pub(crate) standing: ReportFreshness,
    /// The capacity per replica of each variant.
    pub(crate) sizes: Few<Option<f64>>,
    /// The sums for each group.
    pub(crate) totals: PerRole<Totals>,
}

impl<'a> ModelSheet<'a> {
    pub(crate) fn new(model: &'a PlanModel<'_>) -> Self {
        let mut variants: Few<&Candidate> = model.candidates.iter().collect();
        variants.sort_by(|a, b| a.key.cmp(&b.key));

        let groups = groups(model, &variants);
        let voices = model
            .voices
            .iter()
            .map(|voice| ReportRow {
                unit: voice.report.unit,
                standing: voice.standing,
                sizes: sizes(voice.report, &variants),
                totals: totals(voice.report, &groups),
            })
            .collect();
        Self { key: &model.key, variants, groups, voices }
    }

    /// Returns the plan with these replicas.
    pub(crate) fn plan(&self, method: PlanMethod, after: &[Replicas]) -> ModelPlan {
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
                    std::cmp::Ordering::Equal => PlanReason::Kept,
                    std::cmp::Ordering::Greater => PlanReason::Added,
                    std::cmp::Ordering::Less => PlanReason::Removed,
                },
            })
            .collect();

        let cost_before: CostPerHour = placements.iter().map(|it| it.cost.times(it.before)).sum();
        let cost_after: CostPerHour = placements.iter().map(|it| it.cost.times(it.after)).sum();
        ModelPlan {
            model: self.key.clone(),
            method,
            covers: self.covers(after),
            cost_before,
            cost_after,
            rankings: Arc::default(),
            placements,
        }
    }

    /// Returns true if no voice asks for more or for less of a group.
    pub(crate) fn stays(&self, group: usize) -> bool {
        self.voices.iter().all(|voice| {
            let Totals { required, spare, .. } = voice.totals[group];
            required == Amount::ZERO && spare == Amount::ZERO
        })
    }

    /// Returns true if a voice asks for more of a group.
    pub(crate) fn is_short(&self, group: usize) -> bool {
        self.voices.iter().any(|voice| voice.totals[group].required > Amount::ZERO)
    }

    /// Compares the demand of each voice on each group with the capacity of these replicas.
    fn covers(&self, after: &[Replicas]) -> Vec<DemandCover> {
        let mut covers = Vec::new();
        for (position, group) in self.groups.iter().enumerate() {
            for voice in &self.voices {
                let carried = group.members.iter().filter_map(|&member| {
                    Amount::new(voice.sizes[member]?).map(|size| size.times(after[member]))
                });
                covers.push(DemandCover {
                    unit: voice.unit,
                    role: group.role,
                    wanted: voice.wanted(position),
                    planned: carried.sum(),
                });
            }
        }

        covers
    }

    /// Returns true if a replica counts for more than a rounding error next to the others of its
    /// group. A variant that is not to be used does not.
    pub(crate) fn is_useful(&self, group: usize, member: usize) -> bool {
        let members = &self.groups[group].members;

        self.voices.iter().any(|voice| {
            let sizes = members.iter().filter_map(|&it| voice.sizes[it]);
            let largest = sizes.fold(0.0, f64::max);
            voice.sizes[member].is_some_and(|size| size > SLACK * largest)
        })
    }
}

impl ReportRow {
    /// Returns the capacity that the variants of a group must have.
    pub(crate) fn wanted(&self, group: usize) -> Amount {
        let Totals { supply, anticipated, demand: _, required, spare } = self.totals[group];
        if required > Amount::ZERO {
            return anticipated.max(supply) + required;
        }

        match self.standing {
            // Pending replicas are not given up before they have served.
            ReportFreshness::Live if spare == Amount::ZERO => anticipated.max(supply),
            ReportFreshness::Live => supply.beyond(spare),
            ReportFreshness::Stale => Amount::ZERO,
        }
    }

    /// Returns the capacity of these replicas of a group's variants.
    pub(crate) fn carried(&self, members: &[usize], replicas: &[Replicas]) -> f64 {
        members
            .iter()
            .map(|&member| self.sizes[member].unwrap_or(0.0) * f64::from(replicas[member].count()))
            .sum()
    }
}

impl RoleGroup {
    /// Returns the group of the variants with this role.
    fn of(role: Role, variants: &[&Candidate]) -> Self {
        let of_role = variants.iter().enumerate().filter(|(_, variant)| variant.role == role);
        Self { role: Some(role), members: of_role.map(|(position, _)| position).collect() }
    }
}

/// Returns one group, or one group per role of a model that serves prefill and decode apart.
fn groups(model: &PlanModel<'_>, variants: &[&Candidate]) -> PerRole<RoleGroup> {
    if model.sizing.roles.is_empty() {
        let all = RoleGroup { role: None, members: (0..variants.len()).collect() };
        return std::iter::once(all).collect();
    }

    let reports = model.voices.iter().map(|voice| voice.report).chain([model.sizing]);
    let roles: BTreeSet<Role> = reports.flat_map(|report| report.roles.keys().copied()).collect();
    roles.into_iter().map(|role| RoleGroup::of(role, variants)).collect()
}

/// Returns the capacity per replica of each variant; a capacity of zero counts as unknown.
fn sizes(report: &CapacityReport, variants: &[&Candidate]) -> Few<Option<f64>> {
    variants
        .iter()
        .enumerate()
        .map(|(position, variant)| {
            let row = row_of(report, position, &variant.key)?;
            row.per_replica.map(Amount::amount).filter(|size| *size > 0.0)
        })
        .collect()
}

/// Returns a variant's row in a report. Reports are nearly always in key order, so the position
/// among the variants is the position in the report.
pub(crate) fn row_of<'r>(
    report: &'r CapacityReport,
    position: usize,
    key: &VariantKey,
) -> Option<&'r VariantCapacity> {
    let there = report.variants.get(position).filter(|row| row.key == *key);
    there.or_else(|| report.variants.iter().find(|row| row.key == *key))
}

fn totals(report: &CapacityReport, groups: &[RoleGroup]) -> PerRole<Totals> {
    groups
        .iter()
        .map(|group| match group.role {
            None => report.total,
            Some(role) => report.roles.get(&role).copied().unwrap_or_default(),
        })
        .collect()
}

/// Converts a whole number of replicas to a count, at most [`Replicas::LIMIT`].
pub(crate) fn whole_count(whole: f64) -> u32 {
    // The range is checked and the number is whole, so the cast loses nothing.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    {
        whole.clamp(0.0, f64::from(Replicas::LIMIT.count())) as u32
    }
}
