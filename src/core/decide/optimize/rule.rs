//! The rule of a policy, applied to one model.

use crate::decide::optimize::least_cost::{Consent, GrowthRule, OptimizerPolicy, least_cost};
use crate::decide::optimize::model::PlanModel;
use crate::decide::optimize::plan::ModelPlan;
use crate::decide::optimize::ranked::ranked;
use crate::decide::optimize::room::SupplyHeadroom;
use crate::fleet::VariantKey;
use crate::units::Replicas;

/// Plans one model by the policy's rule, inside the free room if that is limited.
pub fn plan(
    model: &PlanModel<'_>,
    room: Option<&SupplyHeadroom>,
    policy: &OptimizerPolicy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> ModelPlan {
    match &policy.rule {
        GrowthRule::LeastCost => least_cost(model, room, policy, check),
        GrowthRule::Ranked(by) => ranked(model, room, policy, by, check),
    }
}
