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
            "{:<23}{:>8}{:>9}{:>11}{:>9}{:>9}{:>9}",
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
                "{:<23}{:>8}{:>9}{:>11}{:>9}{:>9}{:>9}",
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
            "{:<23}{:>14}{:>9}{:>9}{:>10}{:>12}",
            "variant", "replica-hours", "$/hour", "cost", "scaled up", "scaled down"
        )?;
        for (index, (_, variant)) in self.scenario.variants().enumerate() {
            let (ups, downs) = self.actions.get(index).copied().unwrap_or_default();
            let hours = self.score.replica_time[index].seconds() / 3600.0;
            let price = variant.cost.per_hour();
            writeln!(
                f,
                "{:<23}{hours:>14.3}{price:>9.2}{:>9}{ups:>10}{downs:>12}",
                variant.key.variant.as_str(),
                format!("${:.3}", hours * price),
            )?;
        }
        Ok(())
    }

    fn write_fleets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<23}{:>14}{:>9}{:>9}", "fleet", "within SLO", "answered", "cost")?;
        for (name, score) in [
            ("autoscaled by Plimsoll", &self.score),
            ("always the largest", &self.largest),
            ("always the smallest", &self.smallest),
        ] {
            writeln!(
                f,
                "{name:<23}{:>14}{:>9}{:>9}",
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
            "Plimsoll demo, {:.0} s of load. Within SLO: the first token in {:.0} s and a mean\n\
             time between tokens of at most {:.0} ms. Requests that are still being answered in\n\
             time are not judged.\n",
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
            "\nThe other two fleets are the same simulated engines under the same requests,\n\
             never scaled. A start takes {:.0} s here, and a minute or more in a real cluster,\n\
             whose load does not rise and fall in minutes either.",
            self.scenario.startup.seconds()
        )
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::fleet::Fleet;
    use jiff::Timestamp;

    fn summary() -> Summary {
        let scenario = Arc::new(Scenario::standard(Micros::from_secs(60), 1).unwrap());
        let mut fleet = Fleet::new(Arc::clone(&scenario), Timestamp::UNIX_EPOCH).unwrap();
        let end = Micros::from_secs(60);
        fleet.advance_to(end);
        Summary::new(scenario, end, fleet.score(), &[]).unwrap()
    }

    #[test]
    fn a_fleet_that_was_never_scaled_equals_the_smallest_static_one() {
        let json = &summary().json()["summary"];
        assert_eq!(json["autoscaled"], json["static_smallest"]);
        assert_ne!(json["autoscaled"], json["static_largest"]);
        // One replica of each variant for a minute: 1.30 + 2.95 + 1.80 dollars an hour.
        let cost = json["autoscaled"]["cost"].as_f64().unwrap();
        assert!((cost - 6.05 / 60.0).abs() < 1e-9, "{cost}");
    }

    #[test]
    fn the_text_fits_a_terminal_of_80_columns() {
        for line in summary().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
