//! Reads the annotations of one object.

use std::fmt;
use std::ops::RangeInclusive;

use jiff::SignedDuration;

use crate::collect::cluster::discovery::annotation::{
    Annotation, AnnotationProblem, AnnotationRules, COST, COSTS, GPUS_MAX, MISMATCHES, PREFIX,
    ScrapeRequest, Vocabulary, WVA_ACCELERATOR, WVA_COST, WVA_DEFAULT_COST, WVA_MODEL, missing,
};
use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRole};
use crate::collect::cluster::target::WantedTarget;
use crate::collect::targets::{Endpoint, Scheme};
use plimsoll_core::fleet::names::{
    MODEL_NAME, VARIANT_NAME, is_label_text, is_model_name, is_variant_name,
};
use plimsoll_core::fleet::{
    Accelerator, Bounds, ModelName, Role, VariantName, ZeroPermission, ZeroPreference,
};
use plimsoll_core::observe::overrides::{Order, Override, OverrideSource};
use plimsoll_core::units::{CostPerHour, Fraction, Gpus, Replicas, Seconds};

/// The most other names of a model. Each is kept for every replica.
const ALIASES_MAX: usize = 32;

/// Accepted accelerator counts.
const GPUS: RangeInclusive<u32> = 0..=GPUS_MAX;

/// Accepted idle times before scale to zero, the same as in the configuration.
const AFTERS: RangeInclusive<SignedDuration> =
    SignedDuration::from_secs(10)..=SignedDuration::from_hours(168);

/// Accepted start times, the same as `start_time` in the configuration.
const START_TIMES: RangeInclusive<SignedDuration> =
    SignedDuration::from_secs(1)..=SignedDuration::from_hours(1);

/// An object being read, with the problems found so far.
pub(super) struct ObjectReader<'a> {
    pub(super) marked: &'a AnnotatedObject,
    pub(super) spoken: Vocabulary,
    pub(super) rules: &'a AnnotationRules,
    pub(super) problems: Vec<AnnotationProblem>,
    pub(super) doubts: Vec<AnnotationProblem>,
}

impl<'a> ObjectReader<'a> {
    pub(super) fn new(
        marked: &'a AnnotatedObject,
        spoken: Vocabulary,
        rules: &'a AnnotationRules,
    ) -> Self {
        let problems = Vec::new();
        let mut doubts = Vec::new();
        for name in marked.annotations.keys().filter(|name| is_forbidden(name, rules)) {
            let rule = "has no effect: kubernetes.discovery.annotations does not list it";
            doubts.push(missing(name, rule));
        }

        Self { marked, spoken, rules, problems, doubts }
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let text = self.marked.annotations.get(name).filter(|_| !is_forbidden(name, self.rules));
        text.map(String::as_str)
    }

    fn refuse(&mut self, annotation: &str, rule: impl Into<String>, found: &str) {
        let found = Some(format!("{found:?}"));
        self.problems.push(AnnotationProblem {
            annotation: annotation.to_owned(),
            rule: rule.into(),
            found,
        });
    }

    fn text(&mut self, one: Annotation, accepts: fn(&str) -> bool, rule: &str) -> Option<&'a str> {
        let text = self.get(one.name())?;
        if accepts(text) {
            return Some(text);
        }
        self.refuse(one.name(), rule, text);
        None
    }

    pub(super) fn number<N: std::str::FromStr + PartialOrd + fmt::Display>(
        &mut self,
        one: Annotation,
        allowed: &RangeInclusive<N>,
    ) -> Option<N> {
        let text = self.get(one.name())?;
        let number = text.parse().ok().filter(|parsed| allowed.contains(parsed));
        if number.is_none() {
            let rule = format!("must be a number from {} to {}", allowed.start(), allowed.end());
            self.refuse(one.name(), rule, text);
        }
        number
    }

    pub(super) fn model(&mut self) -> Option<ModelName> {
        let name = match self.spoken {
            Vocabulary::Own => Annotation::Model.name(),
            Vocabulary::WithWva => WVA_MODEL,
        };
        let Some(text) = self.get(name) else {
            self.problems.push(missing(name, "is missing: it names the model"));
            return None;
        };
        if !is_model_name(text) {
            self.refuse(name, MODEL_NAME, text);
            return None;
        }

        ModelName::new(text)
    }

    /// Returns the variant name, or the default one. In Plimsoll's vocabulary, the default is the
    /// target's name, so that replacing an HPA by a `ScaledObject` does not rename the variant. In
    /// the other vocabulary it is the scaler's name, because existing metric selectors use it.
    pub(super) fn name(&mut self) -> Option<VariantName> {
        if self.get(Annotation::Variant.name()).is_some() {
            let text = self.text(Annotation::Variant, is_variant_name, VARIANT_NAME)?;
            return VariantName::new(text);
        }

        let (name, whose) = match (self.spoken, &self.marked.target) {
            (Vocabulary::Own, WantedTarget::Scale { name, .. }) => {
                (name, "the scale target's name")
            }
            (Vocabulary::Own | Vocabulary::WithWva, _) => {
                (&self.marked.object.name, "the object's name")
            }
        };

        if !is_variant_name(name) {
            let rule = format!("must be set, because {whose} cannot name a variant");
            self.refuse(Annotation::Variant.name(), rule, name);
            return None;
        }

        VariantName::new(name)
    }

    pub(super) fn aliases(&mut self) -> Vec<ModelName> {
        let Some(text) = self.get(Annotation::ModelAliases.name()) else { return Vec::new() };
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let are_names = parts.iter().all(|part| is_label_text(part));
        if !are_names || parts.len() > ALIASES_MAX {
            let rule = format!("must be at most {ALIASES_MAX} names separated by commas");
            self.refuse(Annotation::ModelAliases.name(), rule, text);
            return Vec::new();
        }

        parts.into_iter().filter_map(ModelName::new).collect()
    }

    pub(super) fn cost(&mut self) -> Option<CostPerHour> {
        let other = (WVA_COST, WVA_DEFAULT_COST);
        let own = (Annotation::Cost.name(), COST);
        let written = self.get(own.0).is_some();
        let (name, default) = match self.spoken {
            Vocabulary::WithWva if !written => other,
            Vocabulary::Own | Vocabulary::WithWva => own,
        };
        let Some(text) = self.get(name) else { return CostPerHour::new(self.accepted(default)) };
        // NaN is outside of every range.
        let number = text.parse().ok().filter(|parsed| COSTS.contains(parsed));
        if number.is_none() {
            let rule = format!("must be a number from {} to {}", COSTS.start(), COSTS.end());
            self.refuse(name, rule, text);
        }

        self.bounded_cost(name, number?)
    }

    /// Reads the cost of one replica without a discount.
    pub(super) fn list_price(&mut self) -> Option<CostPerHour> {
        let price = self.number(Annotation::ListPrice, &COSTS)?;
        self.bounded_cost(Annotation::ListPrice.name(), price)
    }

    /// Moves a cost into the range that the operator accepts.
    fn bounded_cost(&mut self, name: &str, written: f64) -> Option<CostPerHour> {
        let cost = self.accepted(written);
        if written < cost {
            let rule = format!("counts as {cost}, which is kubernetes.discovery.cost_min");
            self.doubts.push(missing(name, &rule));
        } else if written > cost {
            let rule = format!("counts as {cost}, which is kubernetes.discovery.cost_max");
            self.doubts.push(missing(name, &rule));
        }

        CostPerHour::new(cost)
    }

    /// The nearest cost that the operator accepts.
    fn accepted(&self, cost: f64) -> f64 {
        let costs = &self.rules.costs;
        cost.max(*costs.start()).min(*costs.end())
    }

    /// Reads the factor on the rank for a scarce resource that the model does not need.
    pub(super) fn mismatch(&mut self) -> Option<Fraction> {
        self.number(Annotation::Mismatch, &MISMATCHES).and_then(Fraction::new)
    }

    pub(super) fn accelerator(&mut self) -> Option<Accelerator> {
        let rule = "must have 1 to 1024 bytes, and no spaces at the ends or control characters";
        let text = self.text(Annotation::Accelerator, is_label_text, rule);
        let label = match self.spoken {
            Vocabulary::WithWva if self.rules.allow(Annotation::Accelerator) => {
                self.marked.labels.get(WVA_ACCELERATOR).map(String::as_str)
            }
            Vocabulary::Own | Vocabulary::WithWva => None,
        };

        text.or(label).and_then(Accelerator::new)
    }

    pub(super) fn role(&mut self) -> Option<Role> {
        let text = self.get(Annotation::Role.name())?;
        let known = [Role::Both, Role::Prefill, Role::Decode];
        let role = known.into_iter().find(|one| one.label() == text);
        if role.is_none() {
            self.refuse(Annotation::Role.name(), "must be both, prefill or decode", text);
        }
        role
    }

    pub(super) fn scheme(&mut self) -> Option<Scheme> {
        let text = self.get(Annotation::Scheme.name())?;
        let scheme = [Scheme::Http, Scheme::Https].into_iter().find(|one| one.label() == text);
        if scheme.is_none() {
            self.refuse(Annotation::Scheme.name(), "must be http or https", text);
        }
        scheme
    }

    pub(super) fn path(&mut self) -> Option<String> {
        let rule = "must start with `/` and have neither spaces nor a fragment";
        self.text(Annotation::Path, Endpoint::is_path, rule).map(str::to_owned)
    }

    pub(super) fn scraped(&mut self) -> Option<ScrapeRequest> {
        let rule =
            "must be scrape, or absent: with the section prometheus, Prometheus is the default";
        self.text(Annotation::Source, |text| text == "scrape", rule).map(|_| ScrapeRequest)
    }

    /// Reads the accelerators per replica.
    pub(super) fn gpus(&mut self) -> Option<Gpus> {
        let written = self.number(Annotation::Gpus, &GPUS).map(Gpus::new)?;
        let most = self.rules.gpus_max;
        if written > most {
            let rule = format!("counts as {most}, which is kubernetes.discovery.gpus_max");
            self.doubts.push(missing(Annotation::Gpus.name(), &rule));
        }

        Some(written.min(most))
    }

    /// Reads the scale-to-zero switch and the idle time before it applies.
    pub(super) fn zero(&mut self) -> ZeroPreference {
        let may = self.get(Annotation::ScaleToZero.name()).and_then(|text| {
            let rest = match text {
                "true" => Some(ZeroPermission::Allowed),
                "false" => Some(ZeroPermission::Forbidden),
                _ => None,
            };
            if rest.is_none() {
                self.refuse(Annotation::ScaleToZero.name(), "must be true or false", text);
            }

            rest
        });

        let name = Annotation::ScaleToZeroAfter.name();
        let after = self.duration(
            Annotation::ScaleToZeroAfter,
            &AFTERS,
            "must be a duration in h, m or s from 10s to 168h, such as 15m",
        );
        if may == Some(ZeroPermission::Forbidden) && self.get(name).is_some() {
            let switch = Annotation::ScaleToZero.name();
            self.doubts.push(missing(name, &format!("has no effect: {switch} is false")));
        }

        ZeroPreference { may, after }
    }

    /// Reads the time from requesting a replica until it serves.
    pub(super) fn start_time(&mut self) -> Option<Seconds> {
        let rule = "must be a duration in h, m or s from 1s to 1h, such as 10s";
        self.duration(Annotation::StartTime, &START_TIMES, rule)
    }

    fn duration(
        &mut self,
        one: Annotation,
        allowed: &RangeInclusive<SignedDuration>,
        rule: &str,
    ) -> Option<Seconds> {
        let text = self.get(one.name())?;
        let span = text.parse().ok().filter(|parsed| allowed.contains(parsed));
        let seconds = span.and_then(|span| Seconds::new(span.as_secs_f64()));
        if seconds.is_none() {
            self.refuse(one.name(), rule, text);
        }

        seconds
    }

    pub(super) fn bounds(&mut self) -> Bounds {
        let limit = Replicas::LIMIT.count();
        let min = self.number(Annotation::MinReplicas, &(0..=limit));
        let max = self.number(Annotation::MaxReplicas, &(1..=limit));
        if self.marked.source != ObjectRole::Workload {
            for one in [Annotation::MinReplicas, Annotation::MaxReplicas] {
                if self.get(one.name()).is_some() {
                    let kind = &self.marked.object.kind;
                    let rule = format!("has no effect: the bounds are those of the {kind}'s spec");
                    self.doubts.push(missing(one.name(), &rule));
                }
            }

            return Bounds::default();
        }

        let least = min.map_or(Bounds::default().min(), Replicas::saturating);
        let bounds = Bounds::new(least, max.map(Replicas::saturating));
        if bounds.is_none() {
            let rule =
                format!("must not be below {}, which is {least}", Annotation::MinReplicas.name());
            let text = self.get(Annotation::MaxReplicas.name()).unwrap_or_default();
            self.refuse(Annotation::MaxReplicas.name(), rule, text);
        }

        bounds.unwrap_or_default()
    }

    /// Reads the pin or the pause. If there are both, the pin counts.
    pub(super) fn overridden(&mut self) -> Option<Override> {
        let by = OverrideSource::Annotation;
        let pause = self.get(Annotation::Pause.name()).and_then(|text| {
            let rule = "must be `until` and an instant, such as until 2026-11-21T06:00:00Z";
            let until = text.trim().strip_prefix("until ").and_then(|at| at.trim().parse().ok());
            if until.is_none() {
                self.refuse(Annotation::Pause.name(), rule, text);
            }
            Some(Override { order: Order::Pause, until: until?, by })
        });

        let Some(text) = self.get(Annotation::Pin.name()) else { return pause };
        let parts = text.split_once(" until ");
        let replicas = parts.and_then(|(count, _)| count.trim().parse().ok());
        let until = parts.and_then(|(_, at)| at.trim().parse().ok());
        let Some((replicas, until)) = replicas.and_then(Replicas::new).zip(until) else {
            let rule = "must be replicas, `until` and an instant, such as \
                        6 until 2026-11-21T06:00:00Z";
            self.refuse(Annotation::Pin.name(), rule, text);
            return None;
        };
        if pause.is_some() {
            let rule = format!("has no effect next to {}", Annotation::Pin.name());
            self.doubts.push(missing(Annotation::Pause.name(), &rule));
        }

        Some(Override { order: Order::Pin(replicas), until, by })
    }

    /// Notes unknown Plimsoll annotations. They are usually misspelled, but a newer release may
    /// define them.
    pub(super) fn doubt_unknown(&mut self) {
        for name in self.marked.annotations.keys().filter(|name| name.starts_with(PREFIX)) {
            if !Annotation::ALL.iter().any(|one| one.name() == name) {
                self.doubts.push(missing(name, "has no effect: this annotation does not exist"));
            }
        }
    }
}

/// Returns true if the operator gives an annotation no effect.
fn is_forbidden(name: &str, rules: &AnnotationRules) -> bool {
    let meant = match name {
        WVA_COST => Some(Annotation::Cost),
        _ => Annotation::ALL.iter().copied().find(|one| one.name() == name),
    };
    meant.is_some_and(|one| !rules.allow(one))
}
