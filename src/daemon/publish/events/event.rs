//! An event: the object that it is about, its reason, and its note.

/// The longest note that the API server accepts, in bytes.
const NOTE_MAX: usize = 1024;

/// The object that an event is about. The object is namespaced, and the event is in the same
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventSubject {
    /// Its API version, such as `apps/v1`.
    pub api_version: String,
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid. An unknown uid is looked up when the event is written, because `kubectl describe`
    /// shows only events with the uid of the object.
    pub uid: Option<String>,
}

/// An event to report to users on an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportedEvent {
    /// The object.
    pub on: EventSubject,
    /// The kind of event.
    pub reason: EventReason,
    /// The event as a sentence with its values; text beyond 1,024 bytes is cut.
    pub note: String,
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSeverity {
    /// Routine.
    Normal,
    /// Needs attention.
    Warning,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $label:literal, $severity:ident, $action:literal;)*) => {
        /// The kind of an event. docs/events.md describes when each kind is written and how to
        /// respond.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum EventReason {
            $($(#[$doc])* $reason,)*
        }

        impl EventReason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$reason),*];

            /// Returns the reason as Kubernetes writes it.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$reason => $label,)* }
            }

            /// Returns the severity of the event.
            #[must_use]
            pub const fn severity(self) -> EventSeverity {
                match self { $(Self::$reason => EventSeverity::$severity,)* }
            }

            /// Returns the action that Plimsoll was taking.
            #[must_use]
            pub const fn action(self) -> &'static str {
                match self { $(Self::$reason => $action,)* }
            }
        }
    };
}

reasons! {
    /// Desired replicas increased.
    ScaledUp = "ScaledUp", Normal, "Decide";
    /// Desired replicas decreased.
    ScaledDown = "ScaledDown", Normal, "Decide";
    /// The desired replicas are held or unset because data is missing.
    DecisionHeld = "DecisionHeld", Warning, "Decide";
    /// Decisions use fresh data again.
    DecisionResumed = "DecisionResumed", Normal, "Decide";
    /// The load requires more than the maximum replicas.
    AtMaximum = "AtMaximum", Warning, "Decide";
    /// A limit keeps the variant from getting the replicas that it requires.
    LimitReached = "LimitReached", Warning, "Decide";
    /// A replica is slower than its peers.
    SlowReplica = "SlowReplica", Warning, "Decide";
    /// The HPA keeps the current replicas, because the desired replicas are within its tolerance.
    HpaIgnoresDesired = "HPAIgnoresDesired", Warning, "JudgeHPA";
    /// The HPA is configured so that it follows another value than the desired replicas, or follows
    /// them late or in one direction only.
    HpaMisconfigured = "HPAMisconfigured", Warning, "JudgeHPA";
    /// The HPA scales nothing, according to its conditions or its target's replicas.
    HpaNotScaling = "HPANotScaling", Warning, "JudgeHPA";
    /// A `ScaledObject` keeps KEDA from following the desired replicas, or scales on errors.
    KedaMisconfigured = "KEDAMisconfigured", Warning, "JudgeScaledObject";
    /// KEDA scaling is paused.
    KedaPaused = "KEDAPaused", Warning, "JudgeScaledObject";
    /// The annotations of an object are invalid.
    AnnotationsRefused = "AnnotationsRefused", Warning, "Discover";
    /// Annotations of an object have no effect.
    AnnotationsWithoutEffect = "AnnotationsWithoutEffect", Warning, "Discover";
    /// Another variant already has the scale target of this object.
    ScaleTargetTaken = "ScaleTargetTaken", Warning, "Discover";
    /// Another variant already has the name of this object's variant.
    VariantNameTaken = "VariantNameTaken", Warning, "Discover";
    /// More objects declare variants than Plimsoll watches.
    TooManyVariants = "TooManyVariants", Warning, "Discover";
    /// The variant is scraped without the credentials of the configuration.
    CredentialsWithheld = "CredentialsWithheld", Warning, "Discover";
}

// === impl EventSeverity ===

impl EventSeverity {
    /// Returns the type as Kubernetes writes it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

// === impl ReportedEvent ===

impl ReportedEvent {
    /// Returns the name of the Event object for the object with this uid. Every writer of the same
    /// event computes the same name.
    pub(super) fn object_name(&self, uid: Option<&str>) -> String {
        let Self { on, reason, note } = self;
        let EventSubject { api_version: _, kind, namespace, name, uid: _ } = on;
        let said = [kind, namespace, name, uid.unwrap_or_default(), reason.label(), note];
        // The name of an Event has at most 253 bytes; the dot and the hash take 17 of them.
        let stem = name[..name.floor_char_boundary(236)].trim_end_matches(['.', '-']);
        format!("{stem}.{:016x}", hash(&said))
    }
}

/// FNV-1a over the texts with a separator after each. The hash is stable across processes and
/// releases, so replicas of different versions give an event the same name.
fn hash(texts: &[&str]) -> u64 {
    let separated = texts.iter().flat_map(|text| text.bytes().chain([0xff]));
    separated.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Cuts the text to the length that the API server accepts.
pub(super) fn cut(mut note: String) -> String {
    if note.len() > NOTE_MAX {
        const MARK: &str = "…";
        note.truncate(note.floor_char_boundary(NOTE_MAX - MARK.len()));
        note.push_str(MARK);
    }
    note
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::publish::events) fn event(name: &str, note: &str) -> ReportedEvent {
        let on = EventSubject {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: None,
        };

        ReportedEvent { on, reason: EventReason::ScaledUp, note: note.to_owned() }
    }

    #[test]
    fn one_statement_has_one_name_and_another_has_another() {
        let one = event("llama", "2 -> 3").object_name(None);
        assert_eq!(one, event("llama", "2 -> 3").object_name(None));
        assert_ne!(one, event("llama", "3 -> 4").object_name(None));
        assert_ne!(one, event("llama", "2 -> 3").object_name(Some("uid")), "replaced since");
        assert!(one.starts_with("llama.") && one.len() == "llama.".len() + 16, "{one}");
        // Later releases must compute the same names, so this test pins the hash.
        assert_eq!(format!("{:016x}", hash(&["a"])), "089bc907b544c769");
    }

    #[test]
    fn the_longest_name_and_note_are_what_the_api_server_takes() {
        let name = format!("{}.b", "a".repeat(251));
        let named = event(&name, "note").object_name(None);
        assert!(named.len() <= 253, "{named}");
        let note = cut("é".repeat(1000));
        assert!(note.len() <= NOTE_MAX && note.ends_with("é…"), "{}", note.len());
        assert_eq!(cut("short".to_owned()), "short");
    }

    #[test]
    fn labels_are_what_the_api_server_takes() {
        for reason in EventReason::ALL {
            for text in [reason.label(), reason.action()] {
                assert!(text.len() <= 128 && text.chars().all(char::is_alphanumeric), "{text}");
                assert!(text.starts_with(char::is_uppercase), "{text}");
            }
        }
    }
}
