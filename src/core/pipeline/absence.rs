//! The loss rate of a variant's replicas: crashes, evictions, and reclaimed nodes.
//!
//! # Model
//!
//! Replicas are lost independently of each other, at the same rate for all replicas of a variant.
//! The observed losses in the observed replica-hours give a gamma distribution, whose mean is the
//! rate.
//!
//! The prior is worth ten replica-hours. Replicas that are hardly ever lost count as safe after a
//! day, and those on spot nodes as unsafe after one or two losses. The observations are forgotten
//! within a week.
//!
//! A loss is a ready replica that is gone while its scale target requests it. Without an
//! orchestrator, as many replicas are requested as Plimsoll has decided. While a new version is
//! rolled out, none is lost: there are more replicas than requested, or the pod template has changed
//! and replicas are missing since.
//!
//! # Source
//!
//! The conjugate prior of a Poisson rate: Gelman et al., *Bayesian Data Analysis* (2013), section
//! 2.6. Before the first loss, the assumed rate is one loss per replica and month. That is between
//! a spot node (one in hours to days) and the accelerators of a training cluster. Meta's Llama 3
//! lost one of 2,048 nodes each 3 h, or a node in eight months.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::experience::Experience;
use crate::fleet::VariantKey;
use crate::fleet::per_variant::PerVariant;
use crate::observe::Scale;
use crate::observe::template::PodTemplate;
use crate::pipeline::group::Member;
use crate::pipeline::tick::Tick;
use crate::units::Replicas;

/// Losses that the prior assumes.
const PRIOR_LOSSES: f64 = 0.015;

/// Replica-hours that the prior assumes.
const PRIOR_HOURS: f64 = 10.0;

/// Hours after which observations have decayed to about a third.
const MEMORY: f64 = 7.0 * 24.0;

/// Hours between two observations above which losses between them are unknown.
const GAP: f64 = 2.0 / 60.0;

/// Hours after which missing replicas of a rollout count as lost.
const ROLLOUT_MAX: f64 = 1.0;

/// The loss rate of each variant's replicas.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absences {
    watched: PerVariant<Headcount>,
}

/// Observed losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// Losses, with older ones counted in part.
    pub count: f64,
    /// Replica-hours of observation.
    pub hours: f64,
}

/// Replicas of one variant.
#[derive(Clone, Debug, Default)]
struct Headcount {
    /// The ready replicas at the last observation.
    latest: Option<(Timestamp, Replicas)>,
    template: Option<Arc<PodTemplate>>,
    rollout: Option<TemplateRollout>,
    seen: Losses,
}

/// A rollout without surplus replicas.
#[derive(Clone, Copy, Debug)]
struct TemplateRollout {
    /// The time of the new template.
    since: Timestamp,
    /// The last time at which replicas were missing, or that of the new template.
    latest: Timestamp,
}

// === impl Absences ===

impl Absences {
    /// Reads the observations of one tick, and forgets variants that are gone.
    pub(crate) fn run(&mut self, tick: &Tick<'_>) {
        self.watched.keep(&tick.inputs.fleet);
        for member in &tick.members {
            let Member { place, spec, observation, .. } = member;
            let Some((wanted, ready)) = observation.wanted.zip(observation.ready) else { continue };
            let listing = tick.inputs.listings.get(&spec.key);
            // Without an orchestrator, a replica that was given up is listed until it has been
            // silent for long.
            let requested = match (listing.map(|listing| &listing.scale), tick.desired(member)) {
                (Some(Scale::Targets), Some(desired)) => wanted.min(desired),
                _ => wanted,
            };

            let surges = observation.current.is_some_and(|current| current > wanted);
            let absent = requested.beyond(ready);
            let template = tick.inputs.templates.get(&spec.key);
            let headcount = self.watched.get_or_insert_at(*place, &spec.key, Headcount::default);
            let is_rolled_out = headcount.rolls_out(tick.now, template, absent) || surges;
            let missing = if is_rolled_out { Replicas::ZERO } else { absent };
            headcount.take(tick.now, ready, missing);
        }
    }

    /// The expected losses per replica and hour, with `place` as the first position to try.
    pub(crate) fn per_hour(&self, place: usize, variant: &VariantKey) -> f64 {
        let Losses { count, hours } =
            self.watched.get_at(place, variant).map_or(Losses::default(), |it| it.seen);
        (PRIOR_LOSSES + count) / (PRIOR_HOURS + hours)
    }

    /// Losses of a variant to save; `None` if there are none.
    pub(crate) fn save(&self, variant: &VariantKey) -> Option<Losses> {
        let seen = self.watched.get(variant)?.seen;
        (seen.count > 0.0).then_some(seen)
    }

    /// Restores saved losses, unless the variant was watched for longer since.
    pub(crate) fn recall(&mut self, variant: &VariantKey, seen: Losses) {
        let Losses { count, hours } = seen;
        let before = Losses { count: count.max(0.0), hours: hours.max(0.0) };
        let headcount = self.watched.get_or_insert_at(0, variant, Headcount::default);

        if headcount.seen.knows_less_than(&before) {
            headcount.seen = before;
        }
    }
}

// === impl Losses ===

impl Experience for Losses {
    fn knows_less_than(&self, other: &Self) -> bool {
        self.hours < other.hours
    }
}

// === impl Headcount ===

impl Headcount {
    /// Returns true from the time of a new template until no replica has been missing for a while.
    fn rolls_out(
        &mut self,
        now: Timestamp,
        template: Option<&Arc<PodTemplate>>,
        absent: Replicas,
    ) -> bool {
        if let Some(template) = template {
            let before = self.template.replace(Arc::clone(template));
            if before.is_some_and(|before| before != *template) {
                self.rollout = Some(TemplateRollout { since: now, latest: now });
            }
        }

        let Some(TemplateRollout { since, latest }) = &mut self.rollout else { return false };
        let quiet = hours_between(*latest, now);
        let length = hours_between(*since, now);
        if !(0.0..=GAP).contains(&quiet) || !(0.0..=ROLLOUT_MAX).contains(&length) {
            self.rollout = None;
            return false;
        }

        if absent > Replicas::ZERO {
            *latest = now;
        }
        true
    }

    fn take(&mut self, now: Timestamp, ready: Replicas, missing: Replicas) {
        let Some((at, before)) = self.latest.replace((now, ready)) else { return };
        let hours = hours_between(at, now);
        if !(0.0..=GAP).contains(&hours) {
            return;
        }

        let kept = (-hours / MEMORY).exp();
        let gone = before.beyond(ready).min(missing);
        self.seen.count = self.seen.count * kept + f64::from(gone.count());
        self.seen.hours = self.seen.hours * kept + hours * f64::from(before.count());
    }
}

fn hours_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64() / 3600.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::template::Container;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    fn replicas(count: u32) -> Replicas {
        Replicas::new(count).unwrap()
    }

    /// A variant observed once per minute: its wanted and its ready replicas.
    fn watched(looks: &[(u32, u32)]) -> (Absences, VariantKey) {
        let variant = crate::fleet::VariantSpec::example("llama").key;
        let mut headcount = Headcount::default();
        for (minute, (wanted, ready)) in (0..).zip(looks) {
            let missing = replicas(wanted.saturating_sub(*ready));
            headcount.take(at(60 * minute), replicas(*ready), missing);
        }

        let mut watched = PerVariant::default();
        watched.insert(variant.clone(), headcount);
        (Absences { watched }, variant)
    }

    fn check_losses(looks: &[(u32, u32)], expected: f64) {
        let (absences, variant) = watched(looks);
        let count = absences.save(&variant).unwrap_or_default().count;
        assert!((count - expected).abs() < 0.01, "{count} of {looks:?}");
    }

    /// The rate after one loss of ten replicas at the end of these minutes.
    fn rate(minutes: usize) -> f64 {
        let mut looks = vec![(10, 10); minutes];
        looks.push((10, 9));
        let (absences, variant) = watched(&looks);
        absences.per_hour(0, &variant)
    }

    #[test]
    fn a_ready_replica_that_is_gone_is_a_loss_and_one_that_is_given_up_is_none() {
        check_losses(&[(4, 4), (4, 3), (4, 4), (4, 2)], 3.0);
        // Scaled down, scaled up and starting, and one of three that are gone.
        check_losses(&[(4, 4), (3, 4), (3, 3)], 0.0);
        check_losses(&[(4, 2), (8, 2), (8, 5)], 0.0);
        check_losses(&[(4, 4), (2, 1)], 1.0);
    }

    #[test]
    fn a_rollout_without_surplus_replicas_loses_none() {
        let before = Arc::new(PodTemplate::default());
        let containers = vec![Container { image: "vllm:2".to_owned(), ..Container::default() }];
        let after = Arc::new(PodTemplate { containers, ..PodTemplate::default() });
        let mut headcount = Headcount::default();
        let mut look = |minute: i64, template: &Arc<PodTemplate>, ready: u32| {
            let now = at(60 * minute);
            let absent = replicas(4 - ready);
            let rolls_out = headcount.rolls_out(now, Some(template), absent);
            let missing = if rolls_out { Replicas::ZERO } else { absent };
            headcount.take(now, replicas(ready), missing);
            headcount.seen.count
        };

        look(0, &before, 4);
        look(1, &after, 4);
        for minute in 2..10 {
            look(minute, &after, if minute % 2 == 0 { 3 } else { 4 });
        }
        for minute in 10..13 {
            assert!(look(minute, &after, 4).abs() < 0.01, "none is lost");
        }
        assert!((look(13, &after, 3) - 1.0).abs() < 0.01, "the rollout has ended");
    }

    #[test]
    fn a_loss_in_few_hours_says_more_than_one_in_many() {
        let (absences, variant) = watched(&[]);
        assert!(absences.per_hour(0, &variant) < 0.002, "hardly any before one was seen");
        assert!(rate(10) > 0.08 && rate(10) < 0.1, "{}", rate(10));
        assert!(rate(1440) < 0.006, "{}", rate(1440));
    }

    #[test]
    fn losses_that_are_read_late_count_unless_the_own_watch_was_as_long() {
        let (before, variant) = watched(&[(4, 4), (4, 3), (4, 4)]);
        let saved = before.save(&variant).unwrap();
        let (mut late, _) = watched(&[(4, 4), (4, 4)]);
        late.recall(&variant, saved);
        assert_eq!(late.save(&variant), Some(saved));

        for hours in [saved.hours / 2.0, saved.hours] {
            late.recall(&variant, Losses { count: 3.0, hours });
            assert_eq!(late.save(&variant), Some(saved), "of {hours} hours");
        }
    }

    #[test]
    fn losses_go_on_after_a_restart_and_time_that_was_not_watched_counts_for_nothing() {
        let (absences, variant) = watched(&[(4, 4), (4, 3)]);
        let saved = absences.save(&variant).unwrap();
        let mut restarted = Absences::default();
        restarted.recall(&variant, saved);
        assert_eq!(restarted.save(&variant), Some(saved));

        let watched = restarted.watched.get_mut(&variant).unwrap();
        watched.take(at(7200), replicas(4), replicas(0));
        watched.take(at(14_400), replicas(0), replicas(4));
        assert_eq!(restarted.save(&variant), Some(saved), "nothing was seen of it");
    }
}
