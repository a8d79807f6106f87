//! The end of a run: what was served, what it cost, and what other fleets would have come to.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::demo::actuator::Followed;
use crate::demo::fleet::static_fleet;
use crate::demo::scenario::Scenario;
use crate::demo::score::Score;
use crate::simulate::Micros;
use crate::simulate::replica::settings::SettingsError;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Summary {
    scenario: Arc<Scenario>,
    elapsed: Micros,
    score: Score,
    /// Times that each variant's number was raised, and lowered.
    actions: Vec<(u32, u32)>,
    largest: Score,
    smallest: Score,
}

impl Summary {
    /// Replays the same requests on fleets that never change, and puts them beside the run.
    ///
    /// # Errors
    ///
    /// An engine of the scenario has settings that no engine can have.
    pub fn new(
        scenario: Arc<Scenario>,
        elapsed: Micros,
        score: Score,
        followed: &[Followed],
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            largest: static_fleet(&scenario, elapsed, |variant| variant.max)?,
            smallest: static_fleet(&scenario, elapsed, |variant| variant.min)?,
            actions: followed.iter().map(|variant| (variant.ups, variant.downs)).collect(),
            scenario,
            elapsed,
            score,
        })
    }

    /// The summary as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let fleet = |score: &Score| {
            json!({
                "slo_attainment": score.attainment(),
                "requests_finished": score.finished(),
                "cost": score.cost(&self.scenario),
            })
        };
        let models = self.scenario.models.iter().zip(&self.score.models).map(|(model, service)| {
            json!({
                "name": model.name.as_str(),
                "requests_arrived": service.arrived,
                "requests_finished": service.finished,
                "requests_overdue": service.stuck,
                "slo_attainment": service.attainment(),
                "ttft_p50_seconds": service.ttft_quantile(0.5).map(Micros::seconds),
                "ttft_p95_seconds": service.ttft_quantile(0.95).map(Micros::seconds),
                "itl_p95_seconds": service.itl_quantile(0.95).map(Micros::seconds),
            })
        });
        let variants = self.scenario.variants().enumerate().map(|(index, (_, variant))| {
            let (ups, downs) = self.actions.get(index).copied().unwrap_or_default();
            let hours = self.score.replica_time[index].seconds() / 3600.0;
            json!({
                "name": variant.key.variant.as_str(),
                "replica_hours": hours,
                "cost": hours * variant.cost.per_hour(),
                "scaled_up": ups,
                "scaled_down": downs,
            })
        });
        json!({
            "summary": {
                "elapsed_seconds": self.elapsed.seconds(),
                "autoscaled": fleet(&self.score),
                "static_largest": fleet(&self.largest),
                "static_smallest": fleet(&self.smallest),
                "models": models.collect::<Vec<_>>(),
                "variants": variants.collect::<Vec<_>>(),
            }
        })
    }

    fn write_models(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<26}{:>9}{:>9}{:>11}{:>10}{:>10}{:>9}",
            "model", "arrived", "answered", "within SLO", "TTFT p50", "TTFT p95", "ITL p95"
        )?;
        for (model, service) in self.scenario.models.iter().zip(&self.score.models) {
            let seconds = |time: Option<Micros>| {
                time.map_or_else(|| "-".to_owned(), |time| format!("{:.2} s", time.seconds()))
            };
            let itl = service.itl_quantile(0.95);
            let itl =
                itl.map_or_else(|| "-".to_owned(), |itl| format!("{:.0} ms", itl.seconds() * 1e3));
            writeln!(
                f,
                "{:<26}{:>9}{:>9}{:>11}{:>10}{:>10}{:>9}",
                model.short_name(),
                service.arrived,
                service.finished,
                percent(service.attainment()),
                seconds(service.ttft_quantile(0.5)),
                seconds(service.ttft_quantile(0.95)),
                itl
            )?;
        }
        Ok(())
    }

    fn write_variants(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<26}{:>14}{:>10}{:>8}{:>12}{:>12}",
            "variant", "replica-hours", "$/hour", "cost", "scaled up", "scaled down"
        )?;
        for (index, (_, variant)) in self.scenario.variants().enumerate() {
            let (ups, downs) = self.actions.get(index).copied().unwrap_or_default();
            let hours = self.score.replica_time[index].seconds() / 3600.0;
            let price = variant.cost.per_hour();
            writeln!(
                f,
                "{:<26}{hours:>14.3}{price:>10.2}{:>8}{ups:>12}{downs:>12}",
                variant.key.variant.as_str(),
                format!("${:.3}", hours * price),
            )?;
        }
        Ok(())
    }

    fn write_fleets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<26}{:>11}{:>10}{:>10}", "fleet", "within SLO", "answered", "cost")?;
        for (name, score) in [
            ("autoscaled by Plimsoll", &self.score),
            ("always the largest", &self.largest),
            ("always the smallest", &self.smallest),
        ] {
            writeln!(
                f,
                "{name:<26}{:>11}{:>10}{:>10}",
                percent(score.attainment()),
                score.finished(),
                format!("${:.3}", score.cost(&self.scenario))
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slo = self.scenario.slo;
        writeln!(
            f,
            "Plimsoll demo, {:.0} s of load. Within SLO: first token in {:.0} s and a mean time\n\
             between tokens of at most {:.0} ms. A request that is still answered in time is not judged.\n",
            self.elapsed.seconds(),
            slo.ttft.seconds(),
            slo.itl.seconds() * 1e3
        )?;
        self.write_models(f)?;
        writeln!(f)?;
        self.write_variants(f)?;
        writeln!(f)?;
        self.write_fleets(f)?;
        write!(
            f,
            "\nThe other two fleets are the same simulated engines under the same requests, never\n\
             scaled. Engines start in {:.0} s here; real ones take a minute or more, and scale less well.",
            self.scenario.startup.seconds()
        )
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}
