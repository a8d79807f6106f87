//! Decides which of the objects that declare variants are in effect.
//!
//! Each scale target is one variant, and each name is one variant. If objects conflict, the object
//! that is already in effect stays, and later objects get an [`Objection`]. Only rank overrides
//! age: the configuration comes first, then a `ScaledObject`, then an HPA, then the workload
//! itself. Scalers rank above workloads because they define the bounds.
//!
//! An object that becomes invalid keeps its last valid reading. An error in an annotation does not
//! mean that its variant should stop serving.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use crate::collect::cluster::discovery::{
    AnnotatedObject, AnnotationProblem, DiscoveredVariant, ObjectRef, ObjectRole, Vocabulary,
    variant,
};
use crate::collect::cluster::hpa::group_of;
use crate::collect::cluster::{WantedTarget, WatchedVariant};
use plimsoll_core::fleet::VariantKey;

/// The maximum number of discovered variants. Each has a pod watch, which is a connection to the
/// API server. Larger clusters should spread their variants over several daemons.
pub(crate) const VARIANTS_MAX: usize = 5_000;

/// The discovered variants, and the objections to all other objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovery {
    /// True once every kind of object has been listed. Until then, nothing is discovered.
    pub complete: bool,
    /// The discovered variants, without those in the configuration.
    pub variants: BTreeMap<VariantKey, DiscoveredVariant>,
    /// The objections to objects, in the objects' order.
    pub objections: Vec<Objection>,
    /// The number of objects with each standing.
    pub standings: BTreeMap<Standing, usize>,
}

/// The standing of an object that intends to declare a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Its current annotations are in effect.
    Accepted,
    /// Its annotations are invalid; its last valid reading may be in effect.
    Refused,
    /// Its target or its name belongs to another variant, or there are too many variants.
    Shadowed,
}

/// A problem that the owner of an object should know about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Objection {
    /// The object.
    pub object: ObjectRef,
    /// The cause.
    pub cause: ObjectionCause,
}

/// The cause of an objection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectionCause {
    /// The annotations are invalid.
    Refused {
        /// All problems.
        problems: Vec<AnnotationProblem>,
        /// The reading that stays in effect.
        kept: ReadingFallback,
    },
    /// Annotations have no effect.
    Doubted {
        /// The annotations, with the reasons.
        problems: Vec<AnnotationProblem>,
    },
    /// The scale target belongs to another variant.
    TargetTaken {
        /// The target, as `Deployment llama`.
        target: String,
        /// The claimant that has it.
        by: Claimant,
    },
    /// The name belongs to another variant.
    NameTaken {
        /// The name.
        key: VariantKey,
        /// The claimant that has it.
        by: Claimant,
    },
    /// There are too many variants.
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// The fate of an object whose annotations are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadingFallback {
    /// Its last valid reading stays in effect.
    LastReading,
    /// It has no valid reading.
    Nothing,
}

/// The owner of a target or a name that an object claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claimant {
    /// A variant of the configuration.
    Configuration(VariantKey),
    /// Another object.
    Object(ObjectRef),
}

/// The objects' last valid readings, kept from one evaluation to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiscoveryLedger {
    readings: BTreeMap<ObjectIdentity, ObjectReading>,
    in_force: BTreeMap<VariantKey, ObjectIdentity>,
}

/// The identity of an object. Its uid distinguishes it from later objects with the same name.
type ObjectIdentity = (ObjectRole, ObjectRef);

#[derive(Clone, Debug)]
struct ObjectReading {
    sound: DiscoveredVariant,
    created: Option<Timestamp>,
}

/// The target that a variant claims. Versions of one API group are views of the same object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    namespace: String,
    group: Option<String>,
    kind: String,
    name: String,
}

/// An object that could be in effect.
struct ObjectCandidate<'a> {
    identity: &'a ObjectIdentity,
    reading: &'a ObjectReading,
    in_force: bool,
}

// === impl Claim ===

impl Claim {
    /// Returns the claim of a variant with this target; `None` if it claims nothing in the cluster.
    pub(crate) fn of(key: &VariantKey, target: &WantedTarget) -> Option<Self> {
        let namespace = key.namespace.to_string();

        match target {
            WantedTarget::Scale { api_version, kind, name } => {
                let group = Some(group_of(api_version).to_owned());
                Some(Self { namespace, group, kind: kind.clone(), name: name.clone() })
            }
            WantedTarget::Selector(selector) => {
                Some(Self { namespace, group: None, kind: String::new(), name: selector.clone() })
            }
            WantedTarget::Elsewhere => None,
        }
    }
}

// === impl DiscoveryLedger ===

impl DiscoveryLedger {
    /// Returns the discovery that follows from these objects and the variants in the configuration.
    pub(crate) fn settle(
        &mut self,
        objects: &[&AnnotatedObject],
        declared: &[WatchedVariant],
        understood: Vocabulary,
    ) -> Discovery {
        let mut objections = Vec::new();
        let refused = self.read(objects, understood, &mut objections);

        let mut standings = BTreeMap::from([(Standing::Refused, refused.len())]);
        let (chosen, losers) = self.choose(declared);
        standings.insert(Standing::Shadowed, losers.len());
        objections.extend(losers);

        let in_force: BTreeMap<VariantKey, ObjectIdentity> = chosen
            .iter()
            .map(|one| (one.reading.sound.key.clone(), one.identity.clone()))
            .collect();
        let variants: BTreeMap<VariantKey, DiscoveredVariant> = chosen
            .iter()
            .map(|one| (one.reading.sound.key.clone(), one.reading.sound.clone()))
            .collect();
        let accepted = in_force.values().filter(|identity| !refused.contains(identity)).count();
        standings.insert(Standing::Accepted, accepted);
        self.in_force = in_force;
        objections.sort();
        Discovery { complete: true, variants, objections, standings }
    }

    /// Reads every object again. Keeps the last valid reading of invalid objects, forgets deleted
    /// objects, and returns the invalid ones.
    fn read(
        &mut self,
        objects: &[&AnnotatedObject],
        understood: Vocabulary,
        objections: &mut Vec<Objection>,
    ) -> BTreeSet<ObjectIdentity> {
        let mut old = std::mem::take(&mut self.readings);
        let mut refused = BTreeSet::new();
        for marked in objects.iter().filter(|marked| marked.concerns(understood)) {
            let object = marked.object.clone();
            let identity = (marked.source, object.clone());
            let reading = match variant(marked, understood) {
                Ok(sound) => {
                    if !sound.doubts.is_empty() {
                        let cause = ObjectionCause::Doubted { problems: sound.doubts.clone() };
                        objections.push(Objection { object, cause });
                    }
                    Some(ObjectReading { sound, created: marked.created })
                }
                Err(problems) => {
                    let last = old.remove(&identity).filter(|_| marked.declares(understood));
                    let kept = if last.is_some() {
                        ReadingFallback::LastReading
                    } else {
                        ReadingFallback::Nothing
                    };
                    objections.push(Objection {
                        object,
                        cause: ObjectionCause::Refused { problems, kept },
                    });
                    refused.insert(identity.clone());
                    last
                }
            };

            self.readings.extend(reading.map(|reading| (identity, reading)));
        }

        refused
    }

    /// Returns the objects that are in effect, and the objections to the others.
    fn choose(&self, declared: &[WatchedVariant]) -> (Vec<ObjectCandidate<'_>>, Vec<Objection>) {
        let mut losers = Vec::new();
        let mut targets: BTreeMap<Claim, Claimant> = BTreeMap::new();
        let mut names: BTreeMap<VariantKey, Claimant> = BTreeMap::new();
        for want in declared {
            let by = Claimant::Configuration(want.variant.clone());
            targets.extend(Claim::of(&want.variant, &want.target).map(|one| (one, by.clone())));
            names.insert(want.variant.clone(), by);
        }

        // Targets go by rank first and age second; names go by age first and rank second.
        let mut candidates = self.candidates();
        candidates.sort_by_key(|one| (one.identity.0, one.seniority()));
        candidates.retain(|one| {
            let DiscoveredVariant { key, target, .. } = &one.reading.sound;
            let Some(claim) = Claim::of(key, target) else { return false };
            if let Some(by) = targets.get(&claim) {
                let target = format!("{} {}", claim.kind, claim.name);
                losers.push(one.objection(ObjectionCause::TargetTaken { target, by: by.clone() }));
                return false;
            }

            targets.insert(claim, one.claimant());
            true
        });

        candidates.sort_by_key(|one| (one.seniority(), one.identity.0));
        candidates.retain(|one| {
            let key = &one.reading.sound.key;
            if let Some(by) = names.get(key) {
                let cause = ObjectionCause::NameTaken { key: key.clone(), by: by.clone() };
                losers.push(one.objection(cause));
                return false;
            }

            names.insert(key.clone(), one.claimant());
            true
        });

        for one in candidates.drain(VARIANTS_MAX.min(candidates.len())..) {
            losers.push(one.objection(ObjectionCause::TooMany { limit: VARIANTS_MAX }));
        }

        (candidates, losers)
    }

    fn candidates(&self) -> Vec<ObjectCandidate<'_>> {
        let in_force: BTreeSet<&ObjectIdentity> = self.in_force.values().collect();
        let candidates = self.readings.iter().map(|(identity, reading)| ObjectCandidate {
            identity,
            reading,
            in_force: in_force.contains(identity),
        });
        candidates.collect()
    }
}

// === impl ObjectCandidate ===

impl ObjectCandidate<'_> {
    /// Sort key for precedence: the object that is in effect first, then the oldest. Names break
    /// ties between objects with the same creation time, so that a restart does not change the
    /// result.
    fn seniority(&self) -> (bool, Option<Timestamp>, ObjectRef) {
        (!self.in_force, self.reading.created, self.identity.1.clone())
    }

    fn claimant(&self) -> Claimant {
        Claimant::Object(self.identity.1.clone())
    }

    fn objection(&self, cause: ObjectionCause) -> Objection {
        Objection { object: self.identity.1.clone(), cause }
    }
}

// === impl Standing ===

impl Standing {
    /// All standings.
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Refused, Self::Shadowed];

    /// The standing as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Shadowed => "shadowed",
        }
    }
}

// === impl ObjectionCause ===

impl ObjectionCause {
    /// The reason in the format of Kubernetes events.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "AnnotationsRefused",
            Self::Doubted { .. } => "AnnotationsWithoutEffect",
            Self::TargetTaken { .. } => "ScaleTargetTaken",
            Self::NameTaken { .. } => "VariantNameTaken",
            Self::TooMany { .. } => "TooManyVariants",
        }
    }
}

impl fmt::Display for ObjectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { problems, kept: ReadingFallback::LastReading } => {
                write!(f, "{}; the last sound annotations stay in force", list(problems))
            }
            Self::Refused { problems, kept: ReadingFallback::Nothing } => {
                write!(f, "{}; no number is served for it", list(problems))
            }
            Self::Doubted { problems } => f.write_str(&list(problems)),
            Self::TargetTaken { target, by } => {
                write!(f, "{target} belongs to {by}; these annotations have no effect")
            }
            Self::NameTaken { key, by } => write!(
                f,
                "the variant name {} is taken by {by}; set the annotation plimsoll.dev/variant to \
                 another",
                key.variant
            ),
            Self::TooMany { limit } => {
                write!(f, "there are more than {limit} variants; no number is served for this one")
            }
        }
    }
}

fn list(problems: &[AnnotationProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; and ")
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(key) => write!(f, "variant {} of the configuration", key.variant),
            Self::Object(object) => object.fmt(f),
        }
    }
}
