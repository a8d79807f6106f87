//! The fleet: the models, their variants, and the bounds of each variant.
//!
//! A *model* is the name that clients request. A *variant* is one scalable workload that serves it
//! on one accelerator with one engine configuration. A [`Fleet`] holds the configured and
//! discovered variants at one moment, without their load.

pub mod entries;
pub mod names;
pub(crate) mod per_variant;
pub mod selector;

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

/// The error for an empty name.
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
            /// Orders names by their text. A shared name equals itself without reading the text.
            /// Nearly all names that meet in a tick are shared.
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
    /// A Kubernetes namespace; without Kubernetes, a name of the same form that groups variants.
    Namespace;
    /// The model name that engines use (`model_name` in vLLM's metrics).
    ModelName;
    /// The variant's name, unique in its namespace.
    VariantName;
    /// The kind of accelerator that a variant runs on, such as `H100`.
    Accelerator;
    /// A resource by which pods request accelerators, such as `nvidia.com/gpu`.
    Resource;
    /// One replica of a variant: a pod's name, or the address of a static target.
    ReplicaName;
    /// The identity of one life of a replica among others with the same name: a pod's uid.
    Incarnation;
    /// The name of a limit on accelerators or cost, as an explanation shows it.
    LimitName;
}

/// A model in a namespace: the unit that is analyzed together. It prints as `model#namespace`, the
/// form in which overrides name a model.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{model}#{namespace}")]
pub struct ModelKey {
    /// The namespace of its variants.
    pub namespace: Namespace,
    /// The model name that its engines use.
    pub model: ModelName,
}

/// A variant in a namespace: the unit that is scaled.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{namespace}/{variant}")]
pub struct VariantKey {
    /// Its namespace.
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
    /// The life of that name; `None` if only the engine itself distinguishes lives.
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

    /// The allowed count nearest to `count`.
    #[must_use]
    pub fn clamp(self, count: Replicas) -> Replicas {
        let raised = count.max(self.min);
        self.max.map_or(raised, |max| raised.min(max))
    }

    /// Widens the bounds just enough to allow `count`.
    #[must_use]
    pub fn widened_to(self, count: Replicas) -> Self {
        Self { min: self.min.min(count), max: self.max.map(|max| max.max(count)) }
    }

    /// Returns true if one replica more than `count` is allowed.
    #[must_use]
    pub fn allow_up(self, count: Replicas) -> bool {
        self.max.is_none_or(|max| count < max)
    }

    /// Returns true if one replica less than `count` is allowed.
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

/// The known facts about a variant, without its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantSpec {
    /// Its key in the fleet.
    pub key: VariantKey,
    /// The model that it serves.
    pub model: ModelName,
    /// The accelerator that it runs on, if known.
    pub accelerator: Option<Accelerator>,
    /// The accelerators of one replica, if declared.
    pub gpus: Option<Gpus>,
    /// The part of a request that it serves.
    pub role: Role,
    /// The cost of one replica.
    pub cost: CostPerHour,
    /// The price of one replica without a discount, if different.
    pub list_price: Option<CostPerHour>,
    /// A factor on its rank, at least 1, for a scarce feature that its model does not need.
    pub mismatch: Fraction,
    /// The declared time from the request for a replica until it serves.
    pub start_time: Option<Seconds>,
    /// The configured bounds. A scale target's own bounds come with the inputs.
    pub bounds: Bounds,
}

impl VariantSpec {
    /// The model that this variant belongs to.
    #[must_use]
    pub fn model_key(&self) -> ModelKey {
        ModelKey { namespace: self.key.namespace.clone(), model: self.model.clone() }
    }
}

/// An object's wish about scale to zero for the model whose variant it declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZeroPreference {
    /// Allows or forbids scale to zero; `None` if the object does not set it.
    pub may: Option<ZeroPermission>,
    /// The idle time to prove before scale to zero; `None` if the object does not set it.
    pub after: Option<Seconds>,
}

/// Permission for a model to scale to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroPermission {
    /// The model may have no replicas.
    Allowed,
    /// The model must keep a replica.
    Forbidden,
}

/// All variants, by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    #[serde(with = "entries")]
    variants: BTreeMap<VariantKey, VariantSpec>,
    /// The wishes for each model, from the objects that declare its variants.
    #[serde(with = "entries")]
    wishes: BTreeMap<ModelKey, Vec<ZeroPreference>>,
}

impl Fleet {
    /// Creates a fleet of these variants. If two have the same key, the later one stays.
    pub fn new(variants: impl IntoIterator<Item = VariantSpec>) -> Self {
        let by_key = variants.into_iter().map(|spec| (spec.key.clone(), spec));
        Self { variants: by_key.collect(), wishes: BTreeMap::new() }
    }

    /// Sets the wishes of the objects that declare variants.
    #[must_use]
    pub fn wishing(mut self, wishes: impl IntoIterator<Item = (ModelKey, ZeroPreference)>) -> Self {
        self.wishes.clear();
        for (model, wish) in wishes {
            if wish != ZeroPreference::default() {
                self.wishes.entry(model).or_default().push(wish);
            }
        }
        self
    }

    /// The wishes for a model.
    #[must_use]
    pub fn wishes(&self, model: &ModelKey) -> &[ZeroPreference] {
        self.wishes.get(model).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns true if any model has a wish.
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
