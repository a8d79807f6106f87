//! The reading of one object's annotations.

use std::fmt;
use std::ops::RangeInclusive;

use jiff::SignedDuration;

use crate::collect::cluster::WantedTarget;
use crate::collect::cluster::discovery::{
    Annotation, COST, COSTS, MISMATCHES, Marked, PREFIX, Problem, Scraped, Source, Vocabulary,
    WVA_ACCELERATOR, WVA_COST, WVA_DEFAULT_COST, WVA_MODEL, missing,
};
use crate::collect::targets::Scheme;
use plimsoll_core::fleet::names::{
    MODEL_NAME, VARIANT_NAME, is_label_text, is_model_name, is_variant_name,
};
use plimsoll_core::fleet::{Accelerator, Bounds, ModelName, Rest, Role, VariantName, ZeroWish};
use plimsoll_core::units::{CostPerHour, Fraction, Gpus, Replicas, Seconds};

/// As in the configuration.
const GPUS: RangeInclusive<u32> = 0..=4096;

/// As in the configuration.
const AFTERS: RangeInclusive<SignedDuration> =
    SignedDuration::from_secs(10)..=SignedDuration::from_hours(168);

/// As `start_time` in the configuration.
const START_TIMES: RangeInclusive<SignedDuration> =
    SignedDuration::from_secs(1)..=SignedDuration::from_hours(1);

/// The reading of one object.
pub(super) struct Read<'a> {
    pub(super) marked: &'a Marked,
    pub(super) spoken: Vocabulary,
    pub(super) problems: Vec<Problem>,
    pub(super) doubts: Vec<Problem>,
}

impl<'a> Read<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.marked.annotations.get(name).map(String::as_str)
    }

    fn refuse(&mut self, annotation: &str, rule: impl Into<String>, found: &str) {
        let found = Some(format!("{found:?}"));
        self.problems.push(Problem { annotation: annotation.to_owned(), rule: rule.into(), found });
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
        let number = text.parse().ok().filter(|number| allowed.contains(number));
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

    /// The name by default: in our vocabulary the target's, because an HPA that is replaced by a
    /// `ScaledObject` must not rename the variant; in the other one the scaler's, because the
    /// selectors that were written for it say so.
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
        if parts.iter().any(|part| !is_label_text(part)) {
            let rule = "must be names separated by commas, none of them empty";
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
        let Some(text) = self.get(name) else { return CostPerHour::new(default) };
        // NaN is in no range.
        let cost = text.parse().ok().filter(|cost| COSTS.contains(cost)).and_then(CostPerHour::new);
        if cost.is_none() {
            let rule = format!("must be a number from {} to {}", COSTS.start(), COSTS.end());
            self.refuse(name, rule, text);
        }
        cost
    }

    /// What one replica costs without a discount.
    pub(super) fn list_price(&mut self) -> Option<CostPerHour> {
        self.number(Annotation::ListPrice, &COSTS).and_then(CostPerHour::new)
    }

    /// Factor on the rank for something scarce that the model does not need.
    pub(super) fn mismatch(&mut self) -> Option<Fraction> {
        self.number(Annotation::Mismatch, &MISMATCHES).and_then(Fraction::new)
    }

    pub(super) fn accelerator(&mut self) -> Option<Accelerator> {
        let rule = "must not be empty, nor have spaces at the ends or control characters";
        let text = self.text(Annotation::Accelerator, is_label_text, rule);
        let label = match self.spoken {
            Vocabulary::Own => None,
            Vocabulary::WithWva => self.marked.labels.get(WVA_ACCELERATOR).map(String::as_str),
        };
        text.or(label).and_then(Accelerator::new)
    }

    pub(super) fn role(&mut self) -> Option<Role> {
        let text = self.get(Annotation::Role.name())?;
        let known = [Role::Both, Role::Prefill, Role::Decode];
        let role = known.into_iter().find(|role| role.label() == text);
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
        let sound = |text: &str| {
            text.starts_with('/') && text.chars().all(|c| c.is_ascii_graphic() && c != '#')
        };
        let rule = "must start with `/` and have neither spaces nor a fragment";
        self.text(Annotation::Path, sound, rule).map(str::to_owned)
    }

    pub(super) fn scraped(&mut self) -> Option<Scraped> {
        let rule =
            "must be scrape, or absent: where Plimsoll has a Prometheus, that is the default";
        self.text(Annotation::Source, |text| text == "scrape", rule).map(|_| Scraped)
    }

    /// Accelerators that one replica takes.
    pub(super) fn gpus(&mut self) -> Option<Gpus> {
        self.number(Annotation::Gpus, &GPUS).map(Gpus::new)
    }

    /// Whether the model may have no replicas, and after how long.
    pub(super) fn zero(&mut self) -> ZeroWish {
        let may = self.get(Annotation::ScaleToZero.name()).and_then(|text| {
            let may = match text {
                "true" => Some(Rest::Allowed),
                "false" => Some(Rest::Forbidden),
                _ => None,
            };
            if may.is_none() {
                self.refuse(Annotation::ScaleToZero.name(), "must be true or false", text);
            }
            may
        });
        let name = Annotation::ScaleToZeroAfter.name();
        let after = self.duration(
            Annotation::ScaleToZeroAfter,
            &AFTERS,
            "must be a duration with a unit from 10s to 168h, such as 15m",
        );
        if may == Some(Rest::Forbidden) && self.get(name).is_some() {
            let switch = Annotation::ScaleToZero.name();
            self.doubts.push(missing(name, &format!("has no effect: {switch} is false")));
        }
        ZeroWish { may, after }
    }

    /// How long one replica takes from being asked for to serving.
    pub(super) fn start_time(&mut self) -> Option<Seconds> {
        let rule = "must be a duration with a unit from 1s to 1h, such as 10s";
        self.duration(Annotation::StartTime, &START_TIMES, rule)
    }

    fn duration(
        &mut self,
        one: Annotation,
        allowed: &RangeInclusive<SignedDuration>,
        rule: &str,
    ) -> Option<Seconds> {
        let text = self.get(one.name())?;
        let span: Option<SignedDuration> = text.parse().ok();
        let span = span.filter(|span| allowed.contains(span));
        let span = span.and_then(|span| Seconds::new(span.as_secs_f64()));
        if span.is_none() {
            self.refuse(one.name(), rule, text);
        }
        span
    }

    pub(super) fn bounds(&mut self) -> Bounds {
        let limit = Replicas::LIMIT.count();
        let min = self.number(Annotation::MinReplicas, &(0..=limit));
        let max = self.number(Annotation::MaxReplicas, &(1..=limit));
        if self.marked.source != Source::Workload {
            for one in [Annotation::MinReplicas, Annotation::MaxReplicas] {
                if self.get(one.name()).is_some() {
                    let kind = &self.marked.object.kind;
                    let rule = format!("has no effect: the bounds are those of the {kind}'s spec");
                    self.doubts.push(missing(one.name(), &rule));
                }
            }
            return Bounds::default();
        }
        let min = min.map_or(Bounds::default().min(), Replicas::saturating);
        let bounds = Bounds::new(min, max.map(Replicas::saturating));
        if bounds.is_none() {
            let rule =
                format!("must not be below {}, which is {min}", Annotation::MinReplicas.name());
            let text = self.get(Annotation::MaxReplicas.name()).unwrap_or_default();
            self.refuse(Annotation::MaxReplicas.name(), rule, text);
        }
        bounds.unwrap_or_default()
    }

    /// A word that is not ours is most often one that is misspelt, but may be a newer release's.
    pub(super) fn doubt_unknown(&mut self) {
        for name in self.marked.annotations.keys().filter(|name| name.starts_with(PREFIX)) {
            if !Annotation::ALL.iter().any(|one| one.name() == name) {
                self.doubts.push(missing(name, "has no effect: there is no such annotation"));
            }
        }
    }
}
