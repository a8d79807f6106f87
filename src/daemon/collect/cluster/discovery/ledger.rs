//! Which of the objects that declare variants are in force.
//!
//! One scale target is one variant, and one name is one variant. Where objects contradict that,
//! none wins silently: what is in force stays in force, and whoever comes later is told. Only rank
//! goes over age: the configuration over everything, a `ScaledObject` over an HPA, and both over the
//! workload itself, because who scales knows the bounds.
//!
//! An object that can no longer be read keeps the last reading of it that was sound. A mistake in an
//! annotation is not a wish to stop serving.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use crate::collect::cluster::discovery::{
    Discovered, Marked, ObjectRef, Problem, Source, Vocabulary, variant,
};
use crate::collect::cluster::hpa::group_of;
use crate::collect::cluster::{Wanted, WantedTarget};
use plimsoll_core::fleet::VariantKey;

/// The most variants that are discovered. Each has a watch of its pods, which is a connection to the
/// API server; whoever has more of them than this should spread them over several daemons.
pub(crate) const VARIANTS_MAX: usize = 5_000;

/// What is discovered, and what is not and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovery {
    /// Whether every kind of object has been listed once. Before, nothing is discovered.
    pub complete: bool,
    /// The variants, none of which is in the configuration.
    pub variants: BTreeMap<VariantKey, Discovered>,
    /// What is to be said of objects, in their order.
    pub objections: Vec<Objection>,
    /// How many objects stand how.
    pub standings: BTreeMap<Standing, usize>,
}

/// How an object stands that means to declare a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is in force as it is.
    Accepted,
    /// It cannot be read; its last sound reading may be in force.
    Refused,
    /// What it claims belongs to another.
    Shadowed,
}

/// Something that whoever owns an object should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Objection {
    /// The object.
    pub object: ObjectRef,
    /// What it is about.
    pub cause: Cause,
}

/// What an objection is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The annotations cannot be read.
    Refused {
        /// All that is wrong.
        problems: Vec<Problem>,
        /// Whether the last sound reading stays in force.
        kept: Kept,
    },
    /// Annotations have no effect.
    Doubted {
        /// Which, and why.
        problems: Vec<Problem>,
    },
    /// The scale target belongs to another variant.
    TargetTaken {
        /// The target, as `Deployment llama`.
        target: String,
        /// Whose it is.
        by: Claimant,
    },
    /// The name belongs to another variant.
    NameTaken {
        /// The name.
        key: VariantKey,
        /// Whose it is.
        by: Claimant,
    },
    /// There are too many variants.
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// Whether an object that cannot be read goes on as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Its last sound reading stays in force.
    LastReading,
    /// There is none.
    Nothing,
}

/// Who has what an object claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claimant {
    /// A variant of the configuration.
    Configuration(VariantKey),
    /// Another object.
    Object(ObjectRef),
}

/// Objects as they were read, from one look to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    readings: BTreeMap<Identity, Reading>,
    in_force: BTreeMap<VariantKey, Identity>,
}

/// An object in one of its lives.
type Identity = (Source, ObjectRef);

#[derive(Clone, Debug)]
struct Reading {
    sound: Discovered,
    created: Option<Timestamp>,
}

/// What a variant claims for itself. Versions of one group are views of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    namespace: String,
    group: Option<String>,
    kind: String,
    name: String,
}

/// An object that could be in force.
struct Candidate<'a> {
    identity: &'a Identity,
    reading: &'a Reading,
    in_force: bool,
}

// === impl Claim ===

impl Claim {
    /// What a variant with this target claims; `None` where nothing of the cluster is claimed.
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

// === impl Ledger ===

impl Ledger {
    /// What follows from these objects, beside the variants of the configuration.
    pub(crate) fn settle(
        &mut self,
        objects: &[&Marked],
        declared: &[Wanted],
        understood: Vocabulary,
    ) -> Discovery {
        let mut objections = Vec::new();
        let refused = self.read(objects, understood, &mut objections);
        let mut standings = BTreeMap::from([(Standing::Refused, refused.len())]);
        let (chosen, losers) = self.choose(declared);
        standings.insert(Standing::Shadowed, losers.len());
        objections.extend(losers);
        let in_force: BTreeMap<VariantKey, Identity> = chosen
            .iter()
            .map(|one| (one.reading.sound.key.clone(), one.identity.clone()))
            .collect();
        let variants: BTreeMap<VariantKey, Discovered> = chosen
            .iter()
            .map(|one| (one.reading.sound.key.clone(), one.reading.sound.clone()))
            .collect();
        let accepted = in_force.values().filter(|identity| !refused.contains(identity)).count();
        standings.insert(Standing::Accepted, accepted);
        self.in_force = in_force;
        objections.sort();
        Discovery { complete: true, variants, objections, standings }
    }

    /// Reads every object anew, keeps the last sound reading of those that cannot be read, and
    /// forgets those that are gone; gives those that cannot be read.
    fn read(
        &mut self,
        objects: &[&Marked],
        understood: Vocabulary,
        objections: &mut Vec<Objection>,
    ) -> BTreeSet<Identity> {
        let mut old = std::mem::take(&mut self.readings);
        let mut refused = BTreeSet::new();
        for marked in objects.iter().filter(|marked| marked.concerns(understood)) {
            let object = marked.object.clone();
            let identity = (marked.source, object.clone());
            let reading = match variant(marked, understood) {
                Ok(sound) => {
                    if !sound.doubts.is_empty() {
                        let cause = Cause::Doubted { problems: sound.doubts.clone() };
                        objections.push(Objection { object, cause });
                    }
                    Some(Reading { sound, created: marked.created })
                }
                Err(problems) => {
                    let last = old.remove(&identity).filter(|_| marked.declares(understood));
                    let kept = if last.is_some() { Kept::LastReading } else { Kept::Nothing };
                    objections.push(Objection { object, cause: Cause::Refused { problems, kept } });
                    refused.insert(identity.clone());
                    last
                }
            };
            self.readings.extend(reading.map(|reading| (identity, reading)));
        }
        refused
    }

    /// Those that are in force, and what is to be said to the others.
    fn choose(&self, declared: &[Wanted]) -> (Vec<Candidate<'_>>, Vec<Objection>) {
        let mut losers = Vec::new();
        let mut targets: BTreeMap<Claim, Claimant> = BTreeMap::new();
        let mut names: BTreeMap<VariantKey, Claimant> = BTreeMap::new();
        for want in declared {
            let by = Claimant::Configuration(want.variant.clone());
            targets.extend(Claim::of(&want.variant, &want.target).map(|one| (one, by.clone())));
            names.insert(want.variant.clone(), by);
        }
        // First whose a target is, by rank; then whose a name is, by age.
        let mut candidates = self.candidates();
        candidates.sort_by_key(|one| (one.identity.0, one.seniority()));
        candidates.retain(|one| {
            let Discovered { key, target, .. } = &one.reading.sound;
            let Some(claim) = Claim::of(key, target) else { return false };
            if let Some(by) = targets.get(&claim) {
                let target = format!("{} {}", claim.kind, claim.name);
                losers.push(one.objection(Cause::TargetTaken { target, by: by.clone() }));
                return false;
            }
            targets.insert(claim, one.claimant());
            true
        });
        candidates.sort_by_key(|one| (one.seniority(), one.identity.0));
        candidates.retain(|one| {
            let key = &one.reading.sound.key;
            if let Some(by) = names.get(key) {
                let cause = Cause::NameTaken { key: key.clone(), by: by.clone() };
                losers.push(one.objection(cause));
                return false;
            }
            names.insert(key.clone(), one.claimant());
            true
        });
        for one in candidates.drain(VARIANTS_MAX.min(candidates.len())..) {
            losers.push(one.objection(Cause::TooMany { limit: VARIANTS_MAX }));
        }
        (candidates, losers)
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let in_force: BTreeSet<&Identity> = self.in_force.values().collect();
        let candidate = |(identity, reading)| Candidate {
            identity,
            reading,
            in_force: in_force.contains(identity),
        };
        self.readings.iter().map(candidate).collect()
    }
}

// === impl Candidate ===

impl Candidate<'_> {
    /// Who was there before: who is in force, then who was created first. The name decides between
    /// objects of one moment, so that a restart does not change the answer.
    fn seniority(&self) -> (bool, Option<Timestamp>, ObjectRef) {
        (!self.in_force, self.reading.created, self.identity.1.clone())
    }

    fn claimant(&self) -> Claimant {
        Claimant::Object(self.identity.1.clone())
    }

    fn objection(&self, cause: Cause) -> Objection {
        Objection { object: self.identity.1.clone(), cause }
    }
}

// === impl Standing ===

impl Standing {
    /// All of them.
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

// === impl Cause ===

impl Cause {
    /// The reason in the form that events have.
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

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |problems: &[Problem]| {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; and ")
        };
        match self {
            Self::Refused { problems, kept: Kept::LastReading } => {
                write!(f, "{}; the last sound annotations stay in force", all(problems))
            }
            Self::Refused { problems, kept: Kept::Nothing } => {
                write!(f, "{}; no number is served for it", all(problems))
            }
            Self::Doubted { problems } => f.write_str(&all(problems)),
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

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(key) => write!(f, "variant {} of the configuration", key.variant),
            Self::Object(object) => object.fmt(f),
        }
    }
}
