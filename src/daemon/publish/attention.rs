//! Conditions of a variant that need a person: their severity, their runbook and a command to run.
//!
//! [`causes`] derives them from the published state. The history remembers since when each one
//! holds. Runbooks are pages of `docs/alerts`, named like the alert that they belong to.

use std::collections::BTreeSet;

use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::{Basis, Decision, ReasonCode};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Freshness;
use plimsoll_core::units::Replicas;

/// The urgency of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttentionSeverity {
    /// The variant does not follow its load, or cannot.
    Critical,
    /// It still follows its load, with a restriction.
    Warning,
}

/// The command for a cause that the decision's steps explain.
const EXPLAIN: &str = "plimsoll explain {namespace}/{variant}";

/// Declares the causes: label, severity, runbook, title and command. `{namespace}` and `{variant}`
/// in a command stand for the variant.
macro_rules! causes {
    ($(
        $(#[doc = $meaning:literal])+
        $cause:ident $label:literal = $severity:ident, $runbook:literal, $title:literal, $command:expr;
    )*) => {
        /// A condition that needs a person, the most urgent first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum AttentionCause {
            $($(#[doc = $meaning])+ $cause,)*
        }

        impl AttentionCause {
            /// Every cause.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$cause,)*];

            /// The cause as a label value.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$cause => $label,)* }
            }

            /// The urgency.
            #[must_use]
            pub const fn severity(self) -> AttentionSeverity {
                match self { $(Self::$cause => AttentionSeverity::$severity,)* }
            }

            /// The name of the runbook, a page of `docs/alerts`.
            #[must_use]
            pub const fn runbook(self) -> &'static str {
                match self { $(Self::$cause => $runbook,)* }
            }

            /// The condition in a few words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$cause => $title,)* }
            }

            const fn template(self) -> &'static str {
                match self { $(Self::$cause => $command,)* }
            }
        }
    };
}

causes! {
    /// A variant has no desired replicas.
    Undecided "undecided" = Critical, "PlimsollUndecided", "no desired replicas", EXPLAIN;
    /// The last decisions broke an invariant and were not published.
    Refused "refused" = Critical, "PlimsollCheckViolation", "decisions are not published", EXPLAIN;
    /// The decision is too old to be served.
    Expired "expired" = Critical, "PlimsollDecisionExpired", "the decision is too old", EXPLAIN;
    /// The desired replicas are held, because data is missing.
    Held "held" = Critical, "PlimsollDecisionHeld", "held, because data is missing", EXPLAIN;
    /// The load asks for more than the maximum.
    AtMaximum "at_maximum" = Critical, "PlimsollAtMaximum", "at the maximum and short", EXPLAIN;
    /// The HPA or `ScaledObject` does not follow the desired replicas.
    ScalerProblem "scaler_problem" = Critical, "PlimsollHpaNotFollowing",
        "the autoscaler does not follow", "kubectl -n {namespace} describe hpa";
    /// Pending replicas take too long to start.
    StuckStarts "stuck_starts" = Critical, "PlimsollReplicasStuck", "replicas do not start",
        "kubectl -n {namespace} get pods --field-selector status.phase=Pending";
    /// A limit was never read, so nothing that it counts may scale up above its minimum.
    LimitUnread "limit_unread" = Critical, "PlimsollLimitUnreadable", "a limit was never read",
        "plimsoll doctor";
    /// Replicas do not report.
    Stale "stale" = Warning, "PlimsollReplicasStale", "replicas do not report", EXPLAIN;
    /// A latency target is unreachable, so it is ignored.
    SloUnmeetable "slo_unmeetable" = Warning, "PlimsollSloUnmeetable",
        "a latency target is unreachable", EXPLAIN;
    /// Scale-down is blocked, because the direction changed too often.
    FlapBudgetSpent "flap_budget_spent" = Warning, "PlimsollFlapBudgetSpent", "the flap budget is spent",
        EXPLAIN;
}

// === impl AttentionSeverity ===

impl AttentionSeverity {
    /// The severity as a label value, as in the alerts.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

// === impl AttentionCause ===

impl AttentionCause {
    /// The command that shows more about the cause, for this variant.
    #[must_use]
    pub fn command(self, variant: &VariantKey) -> String {
        self.template()
            .replace("{namespace}", variant.namespace.as_str())
            .replace("{variant}", variant.variant.as_str())
    }

    /// The cause in a sentence, for this variant.
    #[must_use]
    pub fn text(self, published: &Published, variant: &PublishedVariant) -> String {
        let decision = variant.decided.as_ref().map(|decided| &decided.decision);
        let problems = published.findings.get(&variant.spec.key);
        let told = match self {
            Self::Undecided => variant.undecided.as_ref().map(|why| why.0.to_string()),
            Self::Expired => variant
                .decided
                .as_ref()
                .map(|decided| format!("its data is from {:.0}", decided.at)),
            Self::ScalerProblem => problems.and_then(|problems| problems.first().cloned()),
            Self::StuckStarts => {
                Some(format!("{} pending too long", variant.observation.startup.stuck))
            }
            Self::Stale => {
                let silent = silent(variant);
                let all = variant.observation.replicas.len();
                Some(format!("{silent} of {all} without recent data"))
            }
            Self::Refused | Self::LimitUnread | Self::SloUnmeetable | Self::FlapBudgetSpent => {
                decision.and_then(|it| self.step_headline(it))
            }
            Self::Held | Self::AtMaximum => None,
        };

        let because = decision.and_then(Decision::because).map(|step| step.reason.headline());
        told.or(because).unwrap_or_else(|| self.title().to_owned())
    }

    fn step_headline(self, decision: &Decision) -> Option<String> {
        let mut reasons = decision.steps.iter().map(|step| &step.reason);
        let because = reasons.find(|it| of_code(it.code()) == Some(self))?;

        Some(because.headline())
    }
}

/// The cause that a reason's code stands for, if it needs a person.
const fn of_code(code: ReasonCode) -> Option<AttentionCause> {
    match code {
        ReasonCode::Refused => Some(AttentionCause::Refused),
        ReasonCode::LimitUnread => Some(AttentionCause::LimitUnread),
        ReasonCode::SloUnmeetable => Some(AttentionCause::SloUnmeetable),
        ReasonCode::FlapBudgetSpent => Some(AttentionCause::FlapBudgetSpent),
        _ => None,
    }
}

/// Every cause that holds for a variant, except that its decision has expired: that depends on the
/// clock as well.
#[must_use]
pub fn causes(published: &Published, variant: &PublishedVariant) -> BTreeSet<AttentionCause> {
    let mut causes = BTreeSet::new();
    match &variant.decided {
        None => drop(causes.insert(AttentionCause::Undecided)),
        Some(decided) => {
            let decision = &decided.decision;
            let codes = decision.steps.iter().map(|step| step.reason.code());
            causes.extend(codes.filter_map(of_code));
            // Decisions that are not published are held too, and no data is missing for them.
            if decision.basis == Basis::Held && !causes.contains(&AttentionCause::Refused) {
                causes.insert(AttentionCause::Held);
            }
            if decision.beyond_max().is_some() {
                causes.insert(AttentionCause::AtMaximum);
            }
        }
    }

    if published.findings.get(&variant.spec.key).is_some_and(|problems| !problems.is_empty()) {
        causes.insert(AttentionCause::ScalerProblem);
    }
    if variant.observation.startup.stuck > Replicas::ZERO {
        causes.insert(AttentionCause::StuckStarts);
    }
    if silent(variant) > 0 {
        causes.insert(AttentionCause::Stale);
    }

    causes
}

/// Replicas whose data is too old, and those without any beyond the pending ones.
#[must_use]
pub fn silent(variant: &PublishedVariant) -> usize {
    let replicas = &variant.observation.replicas;
    let stale = replicas.iter().filter(|it| matches!(it.freshness, Freshness::Stale { .. }));
    let never = replicas.iter().filter(|it| matches!(it.freshness, Freshness::Never { .. }));

    let starting = usize::try_from(variant.observation.pending.count()).unwrap_or(usize::MAX);
    stale.count() + never.count().saturating_sub(starting)
}

#[cfg(test)]
mod tests {
    use plimsoll_core::decide::check::Violation;
    use plimsoll_core::decide::{NoData, Reason, Stage, Step};

    use super::*;
    use crate::fixtures;
    use crate::publish::fixtures::decided;
    use crate::server::runbooks;

    /// The causes of a decision that is held for this reason.
    fn of_held(reason: Reason) -> Vec<AttentionCause> {
        let none = Replicas::ZERO;
        let step = Step { stage: Stage::Hold, before: none, after: none, reason };
        let variant = decided(Basis::Held, vec![step]);

        causes(&Published::default(), &variant).into_iter().collect()
    }

    #[test]
    fn no_data_is_missing_for_a_decision_that_is_not_published() {
        let missing = Reason::NoData(NoData::NoFreshReplica);
        assert_eq!(of_held(missing), [AttentionCause::Held]);

        let key = fixtures::variant("a").key;
        let refused = Reason::Refused(Violation::Twice(key));
        assert_eq!(of_held(refused), [AttentionCause::Refused]);
    }

    #[test]
    fn every_cause_has_a_runbook_and_a_command_about_the_variant_or_its_namespace() {
        let key = fixtures::variant("a").key;
        for cause in AttentionCause::ALL {
            assert!(runbooks::text(cause.runbook()).is_some(), "{}", cause.label());
            assert!(!cause.command(&key).contains('{'), "{}", cause.command(&key));
        }
        for daemon in
            ["PlimsollTicksStalled", "PlimsollConfigReloadFailed", "PlimsollApiServiceNotOurs"]
        {
            assert!(runbooks::text(daemon).is_some(), "{daemon}");
        }
    }
}
