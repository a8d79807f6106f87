//! The runbooks that the status page links to, which the daemon has with it: a link to one works
//! without the internet.

/// The beginning of the path of a runbook; the name of its alert follows.
pub(crate) const PATH: &str = "/runbooks/";

macro_rules! runbooks {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../docs/alerts/", $name, ".md")))),*]
    };
}

/// The names of the runbooks with their text.
const RUNBOOKS: &[(&str, &str)] = runbooks! {
    "PlimsollApiServiceNotOurs"
    "PlimsollAtMaximum"
    "PlimsollCheckViolation"
    "PlimsollConfigReloadFailed"
    "PlimsollDecisionExpired"
    "PlimsollDecisionHeld"
    "PlimsollFlapBudgetSpent"
    "PlimsollHpaNotFollowing"
    "PlimsollLimitUnreadable"
    "PlimsollReplicasStale"
    "PlimsollReplicasStuck"
    "PlimsollSloUnmeetable"
    "PlimsollTicksStalled"
    "PlimsollUndecided"
};

/// The names of all runbooks.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    RUNBOOKS.iter().map(|(name, _)| *name)
}

/// The text of a runbook; `None` if there is none of this name.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runbook_is_the_page_of_its_name_and_other_names_have_none() {
        for name in names() {
            assert!(text(name).unwrap().starts_with(&format!("# {name}\n")), "{name}");
        }
        for name in ["", "Plimsoll", "PlimsollUndecided\n"] {
            assert_eq!(text(name), None, "{name:?}");
        }
    }
}
