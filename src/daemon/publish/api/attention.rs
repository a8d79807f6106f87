//! Causes that need a person, of variants and of the daemon itself, as JSON.
//!
//! Each cause is one entry, however many variants it holds for. So a fleet of 500 variants without
//! data is one entry with a count.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::api::context::ResponseContext;
use crate::publish::api::vitals::{ApiServiceVitals, Vitals};
use crate::publish::attention::{AttentionCause, AttentionSeverity};
use crate::publish::history::CauseStart;
use plimsoll_core::fleet::VariantKey;

/// The most variants that an entry names.
const VARIANTS_MAX: usize = 20;

/// Ticks without which the daemon counts as stalled.
const TICKS_MISSED: u32 = 5;

/// One cause that needs a person.
#[derive(Serialize, JsonSchema)]
pub(super) struct Attention {
    /// The cause: of variants `undecided`, `refused`, `expired`, `held`, `at_maximum`,
    /// `scaler_problem`, `stuck_starts`, `limit_unread`, `stale`, `slo_unmeetable` or
    /// `flap_budget_spent`; of the daemon `ticks_stalled`, `config_refused`, `not_ready` or
    /// `api_service`.
    cause: &'static str,
    /// `critical` or `warning`.
    severity: &'static str,
    /// The cause in a few words.
    title: &'static str,
    /// More about it, as a phrase; of several variants, about the first.
    text: String,
    /// Since when it holds, as far as this process knows; null if unknown.
    since: Option<String>,
    /// The same, as an age in seconds.
    since_age_seconds: Option<f64>,
    /// Variants that it holds for; 0 of a cause of the daemon.
    count: usize,
    /// The first 20 of them.
    variants: Vec<AttentionVariant>,
    /// The name of the runbook, which is at `/runbooks/NAME`; null without one.
    runbook: Option<&'static str>,
    /// A command that shows more.
    command: String,
}

/// A variant that needs a person.
#[derive(Serialize, JsonSchema)]
struct AttentionVariant {
    /// The namespace.
    namespace: String,
    /// The variant's name.
    variant: String,
}

/// Everything that needs a person, the most urgent first.
pub(super) fn items(asked: &ResponseContext<'_>, vitals: &Vitals) -> Vec<Attention> {
    let mut items = of_daemon(asked, vitals);
    let variants = asked.published.variants.iter();
    let expired = variants.filter_map(|(key, variant)| {
        Some((AttentionCause::Expired, key.clone(), asked.expired(variant)?))
    });
    let mut causes = asked.history.causes();
    causes.extend(expired);
    causes.sort_by_key(|(cause, _, _)| *cause);

    for (cause, variant, start) in &causes {
        match items.iter_mut().find(|item| item.cause == cause.label()) {
            Some(item) => item.add(asked, variant, start),
            None => items.extend(Attention::of(asked, *cause, variant, start)),
        }
    }

    items.sort_by_key(|item| item.severity != AttentionSeverity::Critical.label());
    items
}

fn of_daemon(asked: &ResponseContext<'_>, vitals: &Vitals) -> Vec<Attention> {
    let mut items = Vec::new();
    if let Some(tick) = asked.history.last_tick() {
        let age = asked.elapsed.saturating_sub(tick.elapsed);
        if age > (TICKS_MISSED * vitals.tick_interval).max(Duration::from_secs(5)) {
            items.push(Attention {
                since: Some(tick.at.to_string()),
                since_age_seconds: Some(age.as_secs_f64()),
                ..Attention::daemon(
                    "ticks_stalled",
                    "the daemon does not decide",
                    format!("the last tick was {:.0} s ago", age.as_secs_f64()),
                    Some("PlimsollTicksStalled"),
                    "kubectl -n plimsoll logs deploy/plimsoll --tail=50".to_owned(),
                )
            });
        }
    }

    if let Some((latest, Err(problem))) = &vitals.config.last_reload {
        let at = vitals.config.refused_since.unwrap_or(*latest);
        let file = vitals.config.file.as_deref().unwrap_or("FILE");
        items.push(Attention {
            since: Some(at.to_string()),
            since_age_seconds: Some(seconds_between(at, asked.now)),
            ..Attention::daemon(
                "config_refused",
                "the new configuration was refused",
                problem.clone(),
                Some("PlimsollConfigReloadFailed"),
                format!("plimsoll check {file}"),
            )
        });
    }

    for (name, outcome) in &vitals.checks {
        if let Err(problem) = outcome {
            items.push(Attention::daemon(
                "not_ready",
                "the daemon is not ready",
                format!("{name}: {problem}"),
                None,
                "plimsoll doctor".to_owned(),
            ));
        }
    }

    if let Some(ApiServiceVitals { name, problem: Some(problem), .. }) = &vitals.api_service {
        items.push(Attention::daemon(
            "api_service",
            "the metrics API is not registered to Plimsoll",
            problem.clone(),
            Some("PlimsollApiServiceNotOurs"),
            format!("kubectl get apiservice {name}"),
        ));
    }

    items
}

fn seconds_between(earlier: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(earlier).as_secs_f64().max(0.0)
}

// === impl Attention ===

impl Attention {
    fn daemon(
        cause: &'static str,
        title: &'static str,
        text: String,
        runbook: Option<&'static str>,
        command: String,
    ) -> Self {
        Self {
            cause,
            severity: AttentionSeverity::Critical.label(),
            title,
            text,
            since: None,
            since_age_seconds: None,
            count: 0,
            variants: Vec::new(),
            runbook,
            command,
        }
    }

    /// The entry of a cause with its first variant; `None` if the variant is gone by now.
    fn of(
        asked: &ResponseContext<'_>,
        cause: AttentionCause,
        key: &VariantKey,
        start: &CauseStart,
    ) -> Option<Self> {
        let variant = asked.published.variants.get(key)?;
        let mut item = Self {
            severity: cause.severity().label(),
            runbook: Some(cause.runbook()),
            ..Self::daemon(
                cause.label(),
                cause.title(),
                cause.text(asked.published, variant),
                None,
                cause.command(key),
            )
        };
        item.add(asked, key, start);

        Some(item)
    }

    fn add(&mut self, asked: &ResponseContext<'_>, key: &VariantKey, start: &CauseStart) {
        self.count += 1;
        if self.variants.len() < VARIANTS_MAX {
            self.variants.push(AttentionVariant {
                namespace: key.namespace.to_string(),
                variant: key.variant.to_string(),
            });
        }

        let age = asked.seconds_since(start.elapsed);
        if self.since_age_seconds.is_none_or(|known| age > known) {
            self.since_age_seconds = Some(age);
            self.since = Some(start.at.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::Published;
    use crate::publish::api::vitals::ConfigInForce;
    use crate::publish::external_metrics::state::DecisionAges;
    use crate::publish::history::RecentHistory;

    #[test]
    fn the_command_about_a_registration_names_the_served_one() {
        let now = Timestamp::UNIX_EPOCH;
        let elapsed = Duration::ZERO;
        let asked = ResponseContext {
            published: &Published::default(),
            history: &RecentHistory::default(),
            now,
            elapsed,
            ages: DecisionAges { fresh: elapsed, hold: elapsed },
        };

        for name in ["v1beta1.external.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"] {
            let problem = Some("it belongs to KEDA".to_owned());
            let vitals = Vitals {
                version: "0",
                started: elapsed,
                tick_interval: elapsed,
                checks: Vec::new(),
                config: ConfigInForce {
                    file: None,
                    hash: String::new(),
                    loaded: (now, elapsed),
                    last_reload: None,
                    refused_since: None,
                },
                api_service: Some(ApiServiceVitals { name, state: "foreign", problem }),
                election: None,
            };

            let found = items(&asked, &vitals);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].command, format!("kubectl get apiservice {name}"));
        }
    }
}
