//! Requests to the API server.

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams};
use kube::client::Body;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::cli::doctor::evidence::{ApiServerVersion, Gathered, PathAnswer};
use crate::cli::doctor::gather::causes::chain;
use crate::cli::doctor::permission::Permission;
use plimsoll_daemon::clock::Clock;

/// An API server answers in milliseconds; one that takes longer than this does not work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest body of a path that is read.
const BODY_MAX: usize = 1 << 20;

/// The objects of a page of a list, and the most pages.
const PAGE: u32 = 500;
const PAGES_MAX: usize = 20;

/// Reads from an API server.
#[derive(Clone)]
pub(super) struct ApiReader {
    client: Client,
    clock: Clock,
}

// === impl ApiReader ===

impl ApiReader {
    pub(super) fn new(client: Client) -> Self {
        Self { client, clock: Clock::start() }
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Reads a `ConfigMap`; `None` if there is none.
    pub(super) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ConfigMap>, String> {
        get(&Api::namespaced(self.client(), namespace), name).await
    }

    /// Reads a path, such as that of an aggregated API.
    pub(super) async fn path(&self, path: &str) -> Result<PathAnswer, String> {
        Ok(self.send(path).await?.0)
    }

    /// Reads the version, and compares the clocks.
    pub(super) async fn version(&self) -> Result<ApiServerVersion, String> {
        let (PathAnswer { status, text }, date) = self.send("/version").await?;
        let read: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let Some(version) = read["gitVersion"].as_str() else {
            let cause = read["message"].as_str().unwrap_or_else(|| head(&text));
            return Err(format!("/version answers with {status}: {cause}"));
        };

        let minor = read["minor"].as_str().unwrap_or_default();
        Ok(ApiServerVersion {
            version: version.to_owned(),
            minor: minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok(),
            ahead_seconds: date.map(|date| self.clock.now().duration_since(date).as_secs_f64()),
        })
    }

    /// Sends a GET request. Returns the answer, and the time in it.
    async fn send(&self, path: &str) -> Result<(PathAnswer, Option<Timestamp>), String> {
        let request = Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
        let reading = async {
            let answer = self.client.send(request).await.map_err(refused)?;
            let (head, body) = answer.into_parts();
            let read = Limited::new(body, BODY_MAX).collect().await;
            let bytes = read.map_err(|error| format!("{path}: {error}"))?.to_bytes();
            Ok::<_, String>((head, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let answer = tokio::time::timeout(TIMEOUT, reading).await;
        let (head, text) = answer.map_err(|_| silent(path))??;

        let date = head.headers.get("date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        Ok((PathAnswer { status: head.status.as_u16(), text }, date))
    }

    /// Asks whether a user has a permission.
    pub(super) async fn may(&self, user: &str, wanted: &Permission) -> Result<bool, String> {
        let groups = groups(user);
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(groups),
            resource_attributes: Some(attributes(wanted)),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer: SubjectAccessReview = self.create(&review, "subjectaccessreviews").await?;
        Ok(is_allowed(answer.status))
    }

    /// Asks whether the user of this command has a permission.
    pub(super) async fn may_i(&self, wanted: &Permission) -> Result<bool, String> {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes(wanted)),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer: SelfSubjectAccessReview =
            self.create(&review, "selfsubjectaccessreviews").await?;
        Ok(is_allowed(answer.status))
    }

    async fn create<K>(&self, object: &K, what: &str) -> Result<K, String>
    where
        K: Resource<DynamicType = ()> + Clone + fmt::Debug + serde::Serialize + DeserializeOwned,
    {
        let api: Api<K> = Api::all_with(self.client(), &());
        within(what, api.create(&PostParams::default(), object)).await
    }
}

/// Reads an object; `None` if there is none.
pub(super) async fn get<K>(api: &Api<K>, name: &str) -> Result<Option<K>, String>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    within("an object", api.get_opt(name)).await
}

/// Lists objects. If the cluster does not have the kind, it is absent.
pub(super) async fn list<K>(api: &Api<K>, params: &ListParams) -> Gathered<Vec<K>>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let mut params = params.clone().limit(PAGE);
    let mut all = Vec::new();
    for _ in 0..PAGES_MAX {
        let answer = tokio::time::timeout(TIMEOUT, api.list(&params)).await;
        let page = match answer {
            Ok(Ok(page)) => page,
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                return Gathered::Absent("the cluster has no such kind".to_owned());
            }
            Ok(Err(error)) => return Gathered::Unread(refused(error)),
            Err(_) => return Gathered::Unread(silent("a list")),
        };

        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Gathered::Read(all),
        }
    }

    Gathered::Unread(format!("there are more than {} objects", all.len()))
}

async fn within<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(TIMEOUT, request).await;
    answer.map_err(|_| silent(what))?.map_err(refused)
}

fn silent(what: &str) -> String {
    format!("the API server did not answer within {} s: {what}", TIMEOUT.as_secs())
}

/// The error of a request. A refusal names the missing permission.
pub(super) fn refused(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => chain(&other),
    }
}

/// The first line of a text.
fn head(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let end = line.char_indices().nth(200).map_or(line.len(), |(end, _)| end);
    &line[..end]
}

/// The groups of a service account, which the API server gives it.
fn groups(user: &str) -> Vec<String> {
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some(account) = user.strip_prefix("system:serviceaccount:") {
        let namespace = account.split(':').next().unwrap_or_default();
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    groups
}

fn attributes(wanted: &Permission) -> ResourceAttributes {
    let Permission { purpose: _, verb, group, resource, subresource, namespace, name } = wanted;
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ResourceAttributes {
        verb: given(verb),
        group: given(group),
        resource: given(resource),
        subresource: given(subresource),
        namespace: given(namespace),
        name: given(name),
        ..ResourceAttributes::default()
    }
}

fn is_allowed(status: Option<SubjectAccessReviewStatus>) -> bool {
    status.is_some_and(|status| status.allowed && !status.denied.unwrap_or_default())
}
