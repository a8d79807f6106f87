//! The end of a run: the served requests, their cost, and a comparison with other fleets.

use std::fmt;

use serde_json::{Value, json};

use crate::demo::scenario::{DemoSetup, most, short_name};
use crate::simulate::Micros;
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::run;
use crate::simulate::scenario::{Actuator, Scenario, Variant};
use crate::simulate::score::Outcome;
use crate::study::results::{ModelResult, RunResult, VariantResult};
use plimsoll_core::units::Replicas;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    scenario: &'static Scenario,
    result: RunResult,
    largest: RunResult,
    smallest: RunResult,
}

impl Summary {
    /// Replays the same requests on constant fleets, to compare with the run.
    ///
    /// # Errors
    ///
    /// An engine's settings are invalid.
    pub fn new(played: &DemoSetup, outcome: &Outcome) -> Result<Self, SettingsError> {
        Ok(Self {
            largest: static_fleet(played, outcome.ended, most)?,
            smallest: static_fleet(played, outcome.ended, |variant| variant.spec.bounds.min())?,
            result: played.result(outcome),
            scenario: played.scenario,
        })
    }

    /// The summary as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let models = self.result.models.iter().map(|model| {
            json!({
                "name": model.model,
                "requests_arrived": model.arrived,
                "requests_finished": model.finished,
                "requests_overdue": model.overdue,
                "slo_attainment": model.within_slo,
                "ttft_p50_seconds": model.ttft.p50,
                "ttft_p95_seconds": model.ttft.p95,
                "itl_p95_seconds": model.itl.p95,
            })
        });

        let variants = self.result.variants.iter().map(|variant| {
            json!({
                "name": variant.variant,
                "replica_hours": variant.replica_hours,
                "cost": variant.cost,
                "scaled_up": variant.ups,
                "scaled_down": variant.downs,
            })
        });

        json!({
            "summary": {
                "elapsed_seconds": self.result.simulated_s,
                "autoscaled": fleet(&self.result),
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
        for (model, result) in self.scenario.models.iter().zip(&self.result.models) {
            let ModelResult { arrived, finished, within_slo, ttft, itl, .. } = result;
            let itl_p95 =
                itl.p95.map_or_else(|| "-".to_owned(), |gap| format!("{:.0} ms", gap * 1e3));
            writeln!(
                f,
                "{:<23}{:>8}{:>9}{:>11}{:>9}{:>9}{:>9}",
                short_name(model),
                arrived,
                finished,
                percent(*within_slo),
                seconds(ttft.p50),
                seconds(ttft.p95),
                itl_p95
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
        for (variant, result) in self.scenario.variants.iter().zip(&self.result.variants) {
            let VariantResult { variant: name, replica_hours: hours, cost, ups, downs, .. } =
                result;
            let price = variant.spec.cost.per_hour();
            let cost = format!("${cost:.3}");
            writeln!(f, "{name:<23}{hours:>14.3}{price:>9.2}{cost:>9}{ups:>10}{downs:>12}")?;
        }

        Ok(())
    }

    fn write_fleets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<23}{:>14}{:>9}{:>9}", "fleet", "within SLO", "answered", "cost")?;
        for (name, result) in [
            ("autoscaled by Plimsoll", &self.result),
            ("always the largest", &self.largest),
            ("always the smallest", &self.smallest),
        ] {
            writeln!(
                f,
                "{name:<23}{:>14}{:>9}{:>9}",
                percent(result.within_slo),
                result.finished(),
                format!("${:.3}", result.cost)
            )?;
        }

        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(model) = self.scenario.models.first() else { return Ok(()) };
        let first = self.scenario.variants.first();
        let startup = first.map(|variant| variant.startup.load);

        writeln!(
            f,
            "Plimsoll demo, {:.0} s of load. Within SLO: the first token in {:.0} s and a mean\n\
             time between tokens of at most {:.0} ms. Requests that are still being answered in\n\
             time are not judged.\n",
            self.result.simulated_s,
            model.slo.ttft.seconds(),
            model.slo.itl.seconds() * 1e3
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
            startup.unwrap_or_default().seconds()
        )
    }
}

/// The results of a constant fleet over this time, with the same requests.
pub(crate) fn static_fleet(
    played: &DemoSetup,
    length: Micros,
    choose: fn(&Variant) -> Replicas,
) -> Result<RunResult, SettingsError> {
    let mut scenario = played.scenario.clone();
    scenario.length = length;
    for variant in &mut scenario.variants {
        variant.initial = choose(variant);
        variant.actuator = Actuator::Fixed;
    }
    Ok(played.result(&run::run(&scenario, played.seed, &mut |_| true)?))
}

fn fleet(result: &RunResult) -> Value {
    json!({
        "slo_attainment": result.within_slo,
        "requests_finished": result.finished(),
        "cost": result.cost,
    })
}

fn seconds(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2} s"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::args::DemoScenario;
    use crate::simulate::run::Simulation;

    fn summary() -> Summary {
        let played = DemoSetup::read(DemoScenario::Standard, 1, &[]).unwrap();
        let mut fleet = Simulation::new(played.scenario, 1).unwrap();
        fleet.advance_to(Micros::from_secs(60));
        Summary::new(&played, &fleet.score()).unwrap()
    }

    #[test]
    fn a_fleet_that_was_never_scaled_equals_the_smallest_static_one() {
        let json = &summary().json()["summary"];
        assert_eq!(json["autoscaled"], json["static_smallest"]);
        assert_ne!(json["autoscaled"], json["static_largest"]);
        // One replica of each variant for a minute: 1.30 + 2.95 + 1.80 dollars per hour.
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
