//! The fleet: which models there are, in which variants, and what each variant may be scaled to.
//!
//! A *model* is what clients ask for; a *variant* is one scalable workload that serves it on one
//! accelerator with one engine configuration. A [`Fleet`] holds what is configured and discovered
//! at one moment. It says nothing about load.

pub mod entries;
pub mod names;
pub(crate) mod per_variant;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::settings;
use crate::units::{CostPerHour, Fraction, Gpus, Replicas, Seconds};
use schemars::JsonSchema;

/// A name without a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name must not be empty")]
pub struct EmptyName;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Display, Eq, Serialize, Deserialize)]
        #[serde(try_from = "Arc<str>")]
        pub struct $name(Arc<str>);

        impl TryFrom<Arc<str>> for $name {
            type Error = EmptyName;

            fn try_from(text: Arc<str>) -> Result<Self, EmptyName> {
                if text.is_empty() { Err(EmptyName) } else { Ok(Self(text)) }
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl Ord for $name {
            /// In the order of their texts. A name that is shared, as nearly all are that meet in a
            /// tick, equals itself without a look at its text.
            fn cmp(&self, other: &Self) -> Ordering {
                if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Accepts any text that is not empty.
            #[must_use]
            pub fn new(text: &str) -> Option<Self> {
                (!text.is_empty()).then(|| Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    )*};
}

names! {
    /// A Kubernetes namespace; without Kubernetes, any name that groups variants.
    Namespace;
    /// The model as its engines call it (`model_name` on a vLLM page).
    ModelName;
    /// The variant's name, unique in its namespace.
    VariantName;
    /// The kind of accelerator that a variant runs on, such as `H100`.
    Accelerator;
    /// A resource that pods ask for accelerators by, such as `nvidia.com/gpu`.
    Resource;
    /// One replica of a variant: a pod's name, or the address of a static target.
    ReplicaName;
    /// What tells one life of a replica from the next under the same name: a pod's uid.
    Incarnation;
    /// The name of a limit on accelerators or cost, as an explanation shows it.
    LimitName;
}

/// A model in a namespace: the unit that is analysed together. It prints as `model#namespace`, the
/// form in which overrides name a model.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{model}#{namespace}")]
pub struct ModelKey {
    /// Where its variants run.
    pub namespace: Namespace,
    /// What its engines call it.
    pub model: ModelName,
}

/// A variant in a namespace: the unit that is scaled.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{namespace}/{variant}")]
pub struct VariantKey {
    /// Where it runs.
    pub namespace: Namespace,
    /// Its name.
    pub variant: VariantName,
}

/// One replica of one variant, in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaKey {
    /// The variant that it belongs to.
    pub variant: VariantKey,
    /// Its name.
    pub replica: ReplicaName,
    /// Which life of that name; `None` where nothing tells lives apart but the engine itself.
    pub incarnation: Option<Incarnation>,
}

/// What part of a request a variant serves.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill only, in a disaggregated deployment.
    Prefill,
    /// Decode only, in a disaggregated deployment.
    Decode,
}

settings! { plain: Role; }

impl Role {
    /// The role as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// The replica counts between which a variant may be scaled, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenBounds")]
pub struct Bounds {
    min: Replicas,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<Replicas>,
}

/// Bounds that are not yet known to be in order.
#[derive(Deserialize)]
struct WrittenBounds {
    min: Replicas,
    #[serde(default)]
    max: Option<Replicas>,
}

/// A minimum above its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the minimum {min} is above the maximum {max}")]
pub struct CrossedBounds {
    min: Replicas,
    max: Replicas,
}

impl TryFrom<WrittenBounds> for Bounds {
    type Error = CrossedBounds;

    fn try_from(WrittenBounds { min, max }: WrittenBounds) -> Result<Self, CrossedBounds> {
        match max {
            Some(max) if min > max => Err(CrossedBounds { min, max }),
            _ => Ok(Self { min, max }),
        }
    }
}

impl Bounds {
    /// Bounds whose minimum is not above their maximum.
    #[must_use]
    pub fn new(min: Replicas, max: Option<Replicas>) -> Option<Self> {
        max.is_none_or(|max| min <= max).then_some(Self { min, max })
    }

    /// The smallest allowed count.
    #[must_use]
    pub const fn min(self) -> Replicas {
        self.min
    }

    /// The largest allowed count; `None` when nothing limits it.
    #[must_use]
    pub const fn max(self) -> Option<Replicas> {
        self.max
    }

    /// The allowed count that is nearest to `count`.
    #[must_use]
    pub fn clamp(self, count: Replicas) -> Replicas {
        let raised = count.max(self.min);
        self.max.map_or(raised, |max| raised.min(max))
    }

    /// These bounds, as much wider as `count` needs to be allowed.
    #[must_use]
    pub fn widened_to(self, count: Replicas) -> Self {
        Self { min: self.min.min(count), max: self.max.map(|max| max.max(count)) }
    }

    /// Whether one replica more than `count` is allowed.
    #[must_use]
    pub fn allow_up(self, count: Replicas) -> bool {
        self.max.is_none_or(|max| count < max)
    }

    /// Whether one replica less than `count` is allowed.
    #[must_use]
    pub fn allow_down(self, count: Replicas) -> bool {
        count > self.min
    }
}

impl Default for Bounds {
    /// At least one replica, and no upper limit.
    fn default() -> Self {
        Self { min: Replicas::ONE, max: None }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            Some(max) => write!(f, "{}..{max}", self.min),
            None => write!(f, "{}..", self.min),
        }
    }
}

/// What is known of a variant without looking at its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantSpec {
    /// Its key in the fleet.
    pub key: VariantKey,
    /// The model that it serves.
    pub model: ModelName,
    /// What it runs on, if that is known.
    pub accelerator: Option<Accelerator>,
    /// Accelerators that one replica takes, where somebody has said it.
    pub gpus: Option<Gpus>,
    /// What part of a request it serves.
    pub role: Role,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// What it costs without a discount, where that is something else.
    pub list_price: Option<CostPerHour>,
    /// Factor on its rank, at least 1, for something scarce that it has and its model does not need.
    pub mismatch: Fraction,
    /// How long a replica takes from being asked for to serving, where somebody has said it.
    pub start_time: Option<Seconds>,
    /// What it may be scaled to, as configured; a scale target's own bounds come with the inputs.
    pub bounds: Bounds,
}

impl VariantSpec {
    /// The model that this variant belongs to.
    #[must_use]
    pub fn model_key(&self) -> ModelKey {
        ModelKey { namespace: self.key.namespace.clone(), model: self.model.clone() }
    }
}

/// What an object that declares a variant says of whether its model may have no replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZeroWish {
    /// Whether it may; `None` where the object does not say.
    pub may: Option<Rest>,
    /// How long it must be proved to be idle; `None` where the object does not say.
    pub after: Option<Seconds>,
}

/// Whether a model may have no replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// It may.
    Allowed,
    /// It may not.
    Forbidden,
}

/// All variants, by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    #[serde(with = "entries")]
    variants: BTreeMap<VariantKey, VariantSpec>,
    /// What is wished of models by the objects that declare their variants.
    #[serde(with = "entries")]
    wishes: BTreeMap<ModelKey, Vec<ZeroWish>>,
}

impl Fleet {
    /// A fleet of these variants; of two with one key, the later stays.
    pub fn new(variants: impl IntoIterator<Item = VariantSpec>) -> Self {
        let variants = variants.into_iter().map(|spec| (spec.key.clone(), spec)).collect();
        Self { variants, wishes: BTreeMap::new() }
    }

    /// This fleet, with what the objects that declare variants wish of their models.
    #[must_use]
    pub fn wishing(mut self, wishes: impl IntoIterator<Item = (ModelKey, ZeroWish)>) -> Self {
        self.wishes.clear();
        for (model, wish) in wishes {
            if wish != ZeroWish::default() {
                self.wishes.entry(model).or_default().push(wish);
            }
        }
        self
    }

    /// What is wished of a model.
    #[must_use]
    pub fn wishes(&self, model: &ModelKey) -> &[ZeroWish] {
        self.wishes.get(model).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether anything is wished of any model.
    #[must_use]
    pub fn has_wishes(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// The variant with this key.
    #[must_use]
    pub fn get(&self, key: &VariantKey) -> Option<&VariantSpec> {
        self.variants.get(key)
    }

    /// All variants in the order of their keys.
    pub fn variants(&self) -> impl Iterator<Item = &VariantSpec> {
        self.variants.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl VariantSpec {
        /// A variant of model `m` in `shop` between one and five replicas, for tests of the core.
        pub(crate) fn example(variant: &str) -> Self {
            let namespace = Namespace::new("shop").unwrap();
            Self {
                key: VariantKey { namespace, variant: VariantName::new(variant).unwrap() },
                model: ModelName::new("m").unwrap(),
                accelerator: None,
                gpus: None,
                role: Role::Both,
                cost: CostPerHour::ZERO,
                list_price: None,
                mismatch: Fraction::ONE,
                start_time: None,
                bounds: Bounds::new(Replicas::ONE, Replicas::new(5)).unwrap(),
            }
        }
    }

    #[test]
    fn bounds_hold_and_refuse_to_be_inverted() {
        let three = Replicas::saturating(3);
        assert_eq!(Bounds::new(three, Some(Replicas::ONE)), None);
        let bounds = Bounds::new(Replicas::ONE, Some(three)).unwrap();
        assert_eq!(bounds.clamp(Replicas::ZERO), Replicas::ONE);
        assert_eq!(bounds.clamp(Replicas::saturating(9)), three);
        assert!(!bounds.allow_up(three) && !bounds.allow_down(Replicas::ONE));
    }
}
