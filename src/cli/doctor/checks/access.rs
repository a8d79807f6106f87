//! Checks of permissions.

use crate::cli::doctor::evidence::{Evidence, Gathered};
use crate::cli::doctor::permission::AccessPurpose;
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen};
use plimsoll_daemon::config::counted;

/// The resource of access reviews, as a flow schema names it.
const REVIEWS: &str = "subjectaccessreviews";

pub(super) fn controller(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Controller)
}

pub(super) fn watch(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Watch)
}

pub(super) fn registration(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Registration)
}

pub(super) fn certificate(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Certificate)
}

pub(super) fn reviews(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Reviews)
}

pub(super) fn trust(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Trust)
}

pub(super) fn election(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Election)
}

pub(super) fn events(evidence: &Evidence) -> Findings {
    let findings = granted(evidence, AccessPurpose::Events)?;
    // Decisions do not depend on Events.
    Ok(findings.into_iter().map(Symptom::at_most_a_warning).collect())
}

pub(super) fn limits(evidence: &Evidence) -> Findings {
    granted(evidence, AccessPurpose::Limits)
}

/// Judges the permissions for a purpose.
fn granted(evidence: &Evidence, purpose: AccessPurpose) -> Findings {
    let cluster = evidence.cluster()?;
    evidence.config()?;

    let asked = cluster.permissions.iter().filter(|(wanted, _)| wanted.purpose == purpose);
    let mut allowed = 0;
    let mut symptoms = Vec::new();
    for (wanted, answer) in asked {
        match answer {
            Gathered::Read(true) => allowed += 1,
            Gathered::Read(false) => {
                symptoms.push(Symptom::failure(format!("not allowed to {wanted}")));
            }
            // A user who may not ask about one permission may not ask about any.
            Gathered::Unread(reason) | Gathered::Absent(reason) => {
                return Err(Unseen::Unknown(reason.clone()));
            }
        }
    }

    if symptoms.is_empty() && allowed == 0 {
        return Err(Unseen::NotApplicable("the configuration does not need it".to_owned()));
    }
    if symptoms.is_empty() {
        symptoms.push(Symptom::ok(format!("{} granted", counted(allowed, "permission"))));
    }
    Ok(symptoms)
}

pub(super) fn flow_schema(evidence: &Evidence) -> Findings {
    let cluster = evidence.cluster()?;
    let config = evidence.config()?;
    if !cluster.permissions.keys().any(|it| it.purpose == AccessPurpose::Reviews) {
        let text = format!("{} does not ask for access reviews", config.origin);
        return Err(Unseen::NotApplicable(text));
    }

    let names = &cluster.names;
    let schemas = cluster.flow_schemas.read()?;
    let found = schemas.iter().find(|schema| {
        let rules = schema.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
        rules.into_iter().any(|rule| {
            let accounts = rule.subjects.iter().filter_map(|it| it.service_account.as_ref());
            let is_ours = accounts
                .into_iter()
                .any(|it| it.namespace == names.namespace && it.name == names.account);
            let resources = rule.resource_rules.iter().flatten().flat_map(|it| &it.resources);
            is_ours && resources.into_iter().any(|it| it == REVIEWS || it == "*")
        })
    });

    Ok(vec![match found {
        Some(schema) => Symptom::ok(schema.metadata.name.clone().unwrap_or_default()),
        None => Symptom::warning(format!(
            "no FlowSchema names {REVIEWS} of the service account {}/{}, so they wait behind the \
             requests of other pods",
            names.namespace, names.account
        )),
    }])
}
