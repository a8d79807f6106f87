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

use crate::collect::cluster::discovery::annotation::{AnnotationProblem, AnnotationRules};
use crate::collect::cluster::discovery::credentials::CredentialRefusal;
use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
use crate::collect::cluster::discovery::variant::{DiscoveredVariant, variant};
use crate::collect::cluster::target::{WantedTarget, WatchedVariant, group_of};
use plimsoll_core::fleet::{Namespace, VariantKey};

/// The maximum number of discovered variants, for which the memory of a daemon is measured. Larger
/// clusters should spread their variants over several daemons.
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
    /// Its target or its name belongs to another variant.
    Shadowed,
    /// Its namespace has more variants than its share.
    Surplus,
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
    /// There are too many variants, and the namespace has its share of them.
    TooMany {
        /// The share of the namespace.
        share: usize,
        /// The limit for all namespaces.
        limit: usize,
    },
    /// The variant is scraped without the credentials of the configuration.
    CredentialsWithheld(CredentialRefusal),
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
        rules: &AnnotationRules,
    ) -> Discovery {
        let mut objections = Vec::new();
        let refused = self.read(objects, rules, &mut objections);

        let mut standings = BTreeMap::from([(Standing::Refused, refused.len())]);
        let (chosen, losers) = self.choose(declared);
        let surplus = losers.iter().filter(|it| it.cause.is_surplus()).count();
        standings.insert(Standing::Shadowed, losers.len() - surplus);
        standings.insert(Standing::Surplus, surplus);
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
        rules: &AnnotationRules,
        objections: &mut Vec<Objection>,
    ) -> BTreeSet<ObjectIdentity> {
        let understood = rules.vocabulary;
        let mut old = std::mem::take(&mut self.readings);
        let mut refused = BTreeSet::new();
        for marked in objects.iter().filter(|marked| marked.concerns(understood)) {
            let object = marked.object.clone();
            let identity = (marked.source, object.clone());
            let reading = match variant(marked, rules) {
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

        let share = share(&candidates);
        let mut counts: BTreeMap<&Namespace, usize> = BTreeMap::new();
        candidates.retain(|one| {
            let count = counts.entry(&one.reading.sound.key.namespace).or_default();
            *count += 1;
            if *count > share {
                losers.push(one.objection(ObjectionCause::TooMany { share, limit: VARIANTS_MAX }));
            }
            *count <= share
        });

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

/// Returns the share of variants that every namespace has.
fn share(candidates: &[ObjectCandidate<'_>]) -> usize {
    let mut counts: BTreeMap<&Namespace, usize> = BTreeMap::new();
    for one in candidates {
        *counts.entry(&one.reading.sound.key.namespace).or_default() += 1;
    }

    fair_share(counts.into_values().collect(), VARIANTS_MAX)
}

/// Returns the largest number that each may have so that all together have at most `most`. Those
/// with less leave the rest to the others (max-min fairness). So no namespace that asks for at most
/// an equal part loses anything, however much the others ask for.
fn fair_share(mut wanted: Vec<usize>, most: usize) -> usize {
    wanted.sort_unstable();
    let mut left = most;
    for (at, count) in wanted.iter().enumerate() {
        let equal = left / (wanted.len() - at);
        if *count > equal {
            return equal;
        }
        left -= count;
    }

    most
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
    pub const ALL: [Self; 4] = [Self::Accepted, Self::Refused, Self::Shadowed, Self::Surplus];

    /// The standing as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Shadowed => "shadowed",
            Self::Surplus => "surplus",
        }
    }
}

// === impl ObjectionCause ===

impl ObjectionCause {
    const fn is_surplus(&self) -> bool {
        matches!(self, Self::TooMany { .. })
    }

    /// The reason in the format of Kubernetes events.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "AnnotationsRefused",
            Self::Doubted { .. } => "AnnotationsWithoutEffect",
            Self::TargetTaken { .. } => "ScaleTargetTaken",
            Self::NameTaken { .. } => "VariantNameTaken",
            Self::TooMany { .. } => "TooManyVariants",
            Self::CredentialsWithheld(_) => "CredentialsWithheld",
        }
    }
}

impl fmt::Display for ObjectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { problems, kept: ReadingFallback::LastReading } => {
                write!(f, "{}; the last valid annotations stay in effect", list(problems))
            }
            Self::Refused { problems, kept: ReadingFallback::Nothing } => {
                write!(f, "{}; desired replicas are not served for it", list(problems))
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
            Self::TooMany { share, limit } => write!(
                f,
                "there are more than {limit} variants, and this namespace has its share of \
                 {share}; desired replicas are not served for this one"
            ),
            Self::CredentialsWithheld(refusal) => refusal.fmt(f),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::cluster::discovery::annotation::{Annotation, Vocabulary};

    fn object(namespace: &str, number: usize) -> AnnotatedObject {
        let name = format!("llama-{number}");
        AnnotatedObject {
            object: ObjectRef {
                kind: "Deployment".to_owned(),
                namespace: namespace.to_owned(),
                name: name.clone(),
                ..ObjectRef::default()
            },
            source: ObjectRole::Workload,
            created: None,
            target: WantedTarget::Scale {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                name,
            },
            annotations: [(Annotation::Model.name().to_owned(), "m".to_owned())].into(),
            labels: BTreeMap::new(),
        }
    }

    /// Returns the discovery with this number of objects in each namespace.
    fn settle(ledger: &mut DiscoveryLedger, wanted: &[(&str, usize)]) -> Discovery {
        let each = wanted.iter().flat_map(|(name, count)| (0..*count).map(|it| object(name, it)));
        let objects: Vec<AnnotatedObject> = each.collect();
        let objects: Vec<&AnnotatedObject> = objects.iter().collect();
        ledger.settle(&objects, &[], &AnnotationRules::of(Vocabulary::Own))
    }

    fn count(found: &Discovery, namespace: &str) -> usize {
        found.variants.keys().filter(|key| key.namespace.as_str() == namespace).count()
    }

    #[test]
    fn a_namespace_at_its_share_takes_nothing_from_the_others() {
        let mut ledger = DiscoveryLedger::default();
        let found = settle(&mut ledger, &[("a-flood", VARIANTS_MAX)]);
        assert_eq!(count(&found, "a-flood"), VARIANTS_MAX, "nobody else wants any");

        let found = settle(&mut ledger, &[("a-flood", VARIANTS_MAX), ("shop", 20)]);
        assert_eq!(count(&found, "shop"), 20);
        assert_eq!(count(&found, "a-flood"), VARIANTS_MAX - 20);
        assert_eq!(found.standings[&Standing::Surplus], 20);
        assert_eq!(found.standings[&Standing::Shadowed], 0);

        let surplus = found.objections.iter().all(|it| it.object.namespace == "a-flood");
        assert!(surplus, "only the owner of the flood is told");
        assert_eq!(
            found.objections[0].cause.to_string(),
            "there are more than 5000 variants, and this namespace has its share of 4980; desired replicas are not served for this one"
        );

        // Published variants stay, as long as the shares do.
        let again = settle(&mut ledger, &[("a-flood", VARIANTS_MAX), ("shop", 20)]);
        assert!(again.variants.keys().eq(found.variants.keys()));
    }

    #[test]
    fn shares_are_equal_and_what_some_leave_goes_to_the_others() {
        for (wanted, most, share) in [
            (vec![], 10, 10),
            (vec![3, 4], 10, 10),
            (vec![10], 10, 10),
            (vec![11], 10, 10),
            (vec![100, 100], 10, 5),
            (vec![100, 2], 10, 8),
            (vec![1, 2, 100, 100], 10, 3),
            (vec![9, 9, 9, 9], 3, 0),
        ] {
            assert_eq!(fair_share(wanted.clone(), most), share, "{wanted:?} of {most}");
        }
    }
}
