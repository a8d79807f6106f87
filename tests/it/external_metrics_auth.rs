//! Who may ask the external metrics API, and for what.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use plimsoll::clock::Clock;
use plimsoll::publish::external_metrics::authorize::{
    Access, AccessVerdict, AnswerLifetimes, Authorize, PermissionSource, SubjectAccessReviews,
};
use plimsoll::server::auth::{
    ConnectionPeer, IdentityRefusal, TrustAnchor, TrustError, UserIdentity, identify,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::external_metrics_harness::{
    Authority, BASE, Fixture, HPA, Http, Leaf, Options, Use, Validity, answer, config_map, trust,
    variant,
};

fn now() -> Timestamp {
    "2026-11-21T00:00:00Z".parse().unwrap()
}

fn client(authority: &Authority, name: &str) -> Leaf {
    authority.issue(name, Use::Client, Validity::Now)
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        headers.append(name.parse::<HeaderName>().unwrap(), value);
    }
    headers
}

// === trust anchor ===

#[test]
fn a_trust_anchor_that_says_nothing_trustworthy_is_refused() {
    let ca = Authority::new("front-proxy-ca").pem;
    let changed = |key: &str, value: Option<&str>| {
        let mut data = config_map(&ca, "[]");
        match value {
            Some(value) => data.insert(key.to_owned(), value.to_owned()),
            None => data.remove(key),
        };
        TrustAnchor::from_config_map(&data)
    };
    let ca_key = "requestheader-client-ca-file";
    assert!(matches!(changed(ca_key, None), Err(TrustError::Missing(key)) if key == ca_key));
    assert!(matches!(changed(ca_key, Some("")), Err(TrustError::Missing(_))));
    assert!(matches!(changed(ca_key, Some("no PEM")), Err(TrustError::Missing(_))));
    let torn = ca.replace("-----END CERTIFICATE-----", "");
    assert!(matches!(changed(ca_key, Some(&torn)), Err(TrustError::Pem { .. })));
    let no_authority = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        changed(ca_key, Some(no_authority)),
        Err(TrustError::Authority { place: 1, .. })
    ));
    for key in [
        "requestheader-allowed-names",
        "requestheader-username-headers",
        "requestheader-group-headers",
        "requestheader-uid-headers",
        "requestheader-extra-headers-prefix",
    ] {
        for value in ["", "X-Remote-User", "{}", "[1]", "null"] {
            let refused = changed(key, Some(value));
            assert!(matches!(refused, Err(TrustError::Json { .. })), "{key} {value:?}");
        }
    }
    let user_key = "requestheader-username-headers";
    assert!(matches!(changed(user_key, Some(r#"["a b"]"#)), Err(TrustError::HeaderName { .. })));
    assert!(matches!(changed(user_key, Some("[]")), Err(TrustError::Missing(_))));
    assert!(matches!(changed(user_key, None), Err(TrustError::Missing(_))));
    // Clusters before 1.32 have no header for the user's id.
    assert!(changed("requestheader-uid-headers", None).is_ok());
    assert!(changed(ca_key, Some(&ca.replace('\n', "\r\n"))).is_ok());
    assert!(changed(ca_key, Some(&format!("{ca}{}", Authority::new("next").pem))).is_ok());
}

#[test]
fn an_authority_that_signs_users_is_refused_unless_names_are_pinned() {
    let ca = Authority::new("ca").pem;
    let other = Authority::new("other").pem;
    let with_client_ca = |names: &str, client_ca: String| {
        let mut data = config_map(&ca, names);
        data.insert("client-ca-file".to_owned(), client_ca);
        TrustAnchor::from_config_map(&data)
    };
    let both = format!("{other}{ca}");
    assert!(matches!(with_client_ca("[]", ca.clone()), Err(TrustError::AnyUserIsProxy)));
    assert!(matches!(with_client_ca("[]", both.clone()), Err(TrustError::AnyUserIsProxy)));
    assert!(with_client_ca(r#"["front-proxy-client"]"#, both).is_ok());
    assert!(with_client_ca("[]", other).is_ok());
}

#[test]
fn headers_that_users_can_put_through_are_reported() {
    let ca = Authority::new("ca").pem;
    let mut data = config_map(&ca, "[]");
    assert!(TrustAnchor::from_config_map(&data).unwrap().smuggled_headers().is_empty());
    let groups = r#"["X-Remote-Group", "X-Team"]"#.to_owned();
    data.insert("requestheader-group-headers".to_owned(), groups);
    assert_eq!(TrustAnchor::from_config_map(&data).unwrap().smuggled_headers(), ["x-team"]);
}

// === identity ===

#[test]
fn an_identity_is_read_as_the_front_proxy_wrote_it() {
    let ca = Authority::new("ca");
    let peer = ConnectionPeer::new(client(&ca, "front-proxy-client").chain());
    let anchor = trust(&ca.pem, "[]");
    let identity = |pairs: &[(&str, &str)]| identify(now(), &headers(pairs), &peer, &anchor);
    let groups = |groups: &[&str]| groups.iter().map(|group| (*group).to_owned()).collect();

    let whole = identity(&[
        ("x-remote-user", HPA),
        ("X-Remote-Group", "system:serviceaccounts"),
        ("X-Remote-Group", "a,b"),
        ("X-Remote-Group", ""),
        ("X-Remote-Group", "système"),
        ("X-Remote-Uid", "42"),
        ("X-Remote-Extra-Authentication.kubernetes.io%2fPod-Name", "kcm-0"),
        ("X-Remote-Extra-Scopes", "one"),
        ("X-Remote-Extra-Scopes", "two"),
        ("X-Remote-Extra-Bad%ff", "kept"),
        ("Authorization", "Bearer forged"),
    ]);
    let extra: BTreeMap<String, Vec<String>> = [
        ("authentication.kubernetes.io/pod-name", vec!["kcm-0"]),
        ("bad%ff", vec!["kept"]),
        ("scopes", vec!["one", "two"]),
    ]
    .into_iter()
    .map(|(key, values)| (key.to_owned(), values.into_iter().map(str::to_owned).collect()))
    .collect();
    assert_eq!(
        whole,
        Ok(UserIdentity {
            user: HPA.to_owned(),
            groups: groups(&["system:serviceaccounts", "a,b", "système", "system:authenticated"]),
            uid: Some("42".to_owned()),
            extra,
        })
    );

    for (pairs, wanted) in [
        (vec![("x-remote-user", "u")], vec!["system:authenticated"]),
        (
            vec![("x-remote-user", "u"), ("x-remote-group", "system:authenticated")],
            vec!["system:authenticated"],
        ),
        (
            vec![
                ("x-remote-user", "system:anonymous"),
                ("x-remote-group", "system:unauthenticated"),
            ],
            vec!["system:unauthenticated"],
        ),
        (vec![("x-remote-user", "system:anonymous")], vec![]),
    ] {
        let read = identity(&pairs).unwrap();
        assert_eq!(read.groups, wanted, "{pairs:?}");
    }
}

#[test]
fn an_identity_that_is_missing_or_ambiguous_is_refused() {
    let ca = Authority::new("ca");
    let peer = ConnectionPeer::new(client(&ca, "front-proxy-client").chain());
    let anchor = trust(&ca.pem, "[]");
    let refusal = |pairs: &[(&str, &str)]| identify(now(), &headers(pairs), &peer, &anchor);
    for pairs in [
        vec![],
        vec![("x-remote-user", "")],
        vec![("x_remote_user", "u")],
        vec![("x-remote-group", "system:masters")],
    ] {
        assert!(matches!(refusal(&pairs), Err(IdentityRefusal::NoUser(_))), "{pairs:?}");
    }
    for name in ["x-remote-user", "x-remote-uid"] {
        let pairs = [("x-remote-user", "u"), (name, "one"), (name, "two")];
        assert!(matches!(refusal(&pairs), Err(IdentityRefusal::Ambiguous(_))), "{name}");
    }
    for name in ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-a"] {
        let mut headers = headers(&[("x-remote-user", "u")]);
        headers
            .insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(b"\xff").unwrap());
        let refused = identify(now(), &headers, &peer, &anchor);
        assert!(matches!(refused, Err(IdentityRefusal::NotText(_))), "{name}");
    }
}

#[test]
fn ten_thousand_groups_are_all_kept() {
    let ca = Authority::new("ca");
    let peer = ConnectionPeer::new(client(&ca, "front-proxy-client").chain());
    let mut headers = headers(&[("x-remote-user", "u")]);
    for group in 0..10_000 {
        headers.append("x-remote-group", HeaderValue::from(group));
    }
    let identity = identify(now(), &headers, &peer, &trust(&ca.pem, "[]")).unwrap();
    assert_eq!(identity.groups.len(), 10_001);
}

#[test]
fn only_the_front_proxys_certificate_gives_an_identity() {
    let ca = Authority::new("ca");
    let between = ca.intermediate("between");
    let pinned = r#"["front-proxy-client", "aggregator"]"#;
    let judge = |names: &str, chain| {
        let user =
            headers(&[("x-remote-user", "system:admin"), ("x-remote-group", "system:masters")]);
        identify(now(), &user, &ConnectionPeer::new(chain), &trust(&ca.pem, names))
            .map(|identity| identity.user)
            .map_err(|refusal| refusal.to_string())
    };
    let good = client(&ca, "front-proxy-client");
    let leaf_below = client(&between, "aggregator");
    let complete = Leaf {
        chain_pem: format!("{}{}", leaf_below.chain_pem, between.pem),
        ..leaf_below.clone()
    };
    let past = ca.issue("front-proxy-client", Use::Client, Validity::Past);
    let future = ca.issue("front-proxy-client", Use::Client, Validity::Future);
    let server = ca.issue("front-proxy-client", Use::Server, Validity::Now);
    let foreign = client(&Authority::new("ca"), "front-proxy-client");
    for (what, names, chain, wanted) in [
        ("an allowed name", pinned, good.chain(), Ok("system:admin")),
        ("any name of the authority", "[]", client(&ca, "x").chain(), Ok("system:admin")),
        ("an intermediate", pinned, complete.chain(), Ok("system:admin")),
        ("a missing intermediate", pinned, leaf_below.chain(), Err("does not chain")),
        ("no certificate", pinned, vec![], Err("no client certificate")),
        ("no certificate and no names", "[]", vec![], Err("no client certificate")),
        ("another name", pinned, client(&ca, "kubelet").chain(), Err("\"kubelet\" is not one of")),
        ("an expired one", pinned, past.chain(), Err("expired at 2020-01-01T00:00:00Z")),
        ("one of the future", pinned, future.chain(), Err("not valid before 2080-01-01T00:00:00Z")),
        ("a server's", pinned, server.chain(), Err("client authentication")),
        ("another authority of that name", pinned, foreign.chain(), Err("not accepted")),
        ("garbage", pinned, vec![b"garbage".to_vec().into()], Err("not accepted")),
    ] {
        match (judge(names, chain), wanted) {
            (Ok(user), Ok(wanted)) => assert_eq!(user, wanted, "{what}"),
            (Err(refusal), Err(wanted)) => assert!(refusal.contains(wanted), "{what}: {refusal}"),
            (got, wanted) => panic!("{what}: {got:?}, not {wanted:?}"),
        }
    }
}

#[test]
fn a_verdict_on_a_certificate_is_not_kept_beyond_its_time_or_its_anchor() {
    let ca = Authority::new("ca");
    let peer =
        ConnectionPeer::new(ca.issue("front-proxy-client", Use::Client, Validity::Now).chain());
    let user = headers(&[("x-remote-user", "u")]);
    let anchor = trust(&ca.pem, "[]");
    let other = trust(&Authority::new("other").pem, "[]");
    let ask = |at: &str, anchor| identify(at.parse().unwrap(), &user, &peer, anchor).is_ok();
    assert!(ask("2089-12-31T23:59:55Z", &anchor));
    assert!(!ask("2089-12-31T23:59:56Z", &other), "the anchor has changed");
    assert!(ask("2089-12-31T23:59:57Z", &anchor));
    assert!(!ask("2090-01-01T00:00:07Z", &anchor), "expired, and the verdict is ten seconds old");
    assert!(!ask("2010-01-01T00:00:00Z", &anchor), "a clock that is set back keeps no verdict");
}

// === over the wire ===

#[tokio::test]
async fn identity_headers_without_the_certificate_are_forged() {
    let fixture = Fixture::start(Options::default()).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let stranger = client(&Authority::new("front-proxy-ca"), "front-proxy-client");
    let kubelet = client(&fixture.front_proxy, "kubelet");
    let expired = fixture.front_proxy.issue("front-proxy-client", Use::Client, Validity::Past);
    for http in [Http::One, Http::Two] {
        for (leaf, said) in [
            (None, "no client certificate"),
            (Some(&stranger), "not accepted"),
            (Some(&kubelet), "allowed names (front-proxy-client)"),
            (Some(&expired), "expired"),
        ] {
            let client = fixture.client(leaf, http);
            for path in [
                format!("{BASE}/namespaces/chat/plimsoll_desired_replicas"),
                BASE.to_owned(),
                "/apis".to_owned(),
                "/openapi/v2".to_owned(),
                "/version".to_owned(),
                "/nowhere".to_owned(),
            ] {
                let request = client
                    .request("GET", &path)
                    .header("X-Remote-User", "system:admin")
                    .header("X-Remote-Group", "system:masters")
                    .header("Authorization", "Bearer token");
                let message = answer(request).await.error(401, "Unauthorized");
                assert!(message.contains(said), "{path}: {message}");
            }
        }
    }
}

#[tokio::test]
async fn a_rotated_authority_counts_for_open_connections() {
    let fixture = Fixture::start(Options::default()).await;
    let client = fixture.proxy(Http::Two);
    assert_eq!(client.ask(BASE).await.code, 200);
    let next = Authority::new("next");
    fixture.trust.send_replace(Some(trust(&next.pem, "[]")));
    client.ask(BASE).await.error(401, "Unauthorized");
    let both = format!("{}{}", fixture.front_proxy.pem, next.pem);
    fixture.trust.send_replace(Some(trust(&both, "[]")));
    assert_eq!(client.ask(BASE).await.code, 200);
    fixture.trust.send_replace(None);
    let message = client.ask(BASE).await.error(503, "ServiceUnavailable");
    assert!(message.contains("extension-apiserver-authentication"), "{message}");
}

#[tokio::test]
async fn a_proxy_that_names_no_user_is_refused() {
    let fixture = Fixture::start(Options::default()).await;
    let request = fixture.proxy(Http::Two).request("GET", BASE);
    let message = answer(request).await.error(401, "Unauthorized");
    assert!(message.contains("names no user (x-remote-user)"), "{message}");
}

// === authorization ===

/// A fake API server that answers reviews, and remembers them.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) reviews: Arc<Mutex<Vec<Value>>>,
    rule: Arc<Mutex<Rule>>,
    /// A review is answered when there is a permit.
    permits: Arc<Semaphore>,
    tracker: TaskTracker,
}

type Rule = Box<dyn Fn(&Value) -> Outcome + Send>;

/// What a review says.
pub(crate) enum Outcome {
    Allow,
    Deny,
    Both,
    Broken,
}

impl Backend {
    pub(crate) fn new(rule: impl Fn(&Value) -> Outcome + Send + 'static) -> Self {
        Self {
            reviews: Arc::default(),
            rule: Arc::new(Mutex::new(Box::new(rule))),
            permits: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            tracker: TaskTracker::new(),
        }
    }

    pub(crate) fn rule(&self, rule: impl Fn(&Value) -> Outcome + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    fn count(&self) -> usize {
        self.reviews.lock().unwrap().len()
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        assert_eq!(request.uri().path(), "/apis/authorization.k8s.io/v1/subjectaccessreviews");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        self.reviews.lock().unwrap().push(review["spec"].clone());
        let permit = self.permits.acquire().await.unwrap();
        permit.forget();
        review["status"] = match (self.rule.lock().unwrap())(&review["spec"]) {
            Outcome::Allow => json!({ "allowed": true }),
            Outcome::Deny => json!({ "allowed": false, "reason": "no rule" }),
            Outcome::Both => json!({ "allowed": true, "denied": true }),
            Outcome::Broken => {
                let mut response = Response::new(Full::from("out of order"));
                *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
                return response;
            }
        };
        let mut response = Response::new(Full::from(review.to_string()));
        *response.status_mut() = hyper::StatusCode::CREATED;
        response
    }

    /// An authorizer that asks this backend.
    pub(crate) async fn authorizer(&self, lifetimes: AnswerLifetimes) -> Arc<SubjectAccessReviews> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let backend = self.clone();
        self.tracker.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let serving = backend.clone();
                backend.tracker.spawn(async move {
                    let service = service_fn(|request| async {
                        Ok::<_, std::convert::Infallible>(serving.answer(request).await)
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let tracker = self.tracker.clone();
        Arc::new(SubjectAccessReviews::new(client, Clock::start(), lifetimes, tracker))
    }
}

fn is_coarse(spec: &Value) -> bool {
    spec["resourceAttributes"]["resource"] == "*"
}

fn hpa() -> UserIdentity {
    UserIdentity { user: HPA.to_owned(), ..UserIdentity::default() }
}

fn access(namespace: &str) -> Access {
    let metric = "plimsoll_desired_replicas".to_owned();
    Access { namespace: namespace.to_owned(), metric, object: None }
}

/// No answer is remembered, except for when the backend is out of order.
fn forgetful() -> AnswerLifetimes {
    AnswerLifetimes {
        everything_allowed: Duration::ZERO,
        everything_denied: Duration::ZERO,
        metric_allowed: Duration::ZERO,
        metric_denied: Duration::ZERO,
        failure: Duration::ZERO,
        ..AnswerLifetimes::default()
    }
}

#[tokio::test]
async fn all_namespaces_are_reviewed_as_such_and_refused_at_the_cluster_scope() {
    let backend = Backend::new(|spec| {
        let attributes = &spec["resourceAttributes"];
        let is_cluster =
            attributes["resource"] == "externalmetrics" && attributes["namespace"] == "";
        if is_cluster && spec["user"] == "admin" { Outcome::Allow } else { Outcome::Deny }
    });
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let fixture = Fixture::start(Options { authorizer, ..Options::default() }).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let client = fixture.proxy(Http::Two);
    let list = |user: &str| {
        client.request("GET", &format!("{BASE}/externalmetrics")).header("X-Remote-User", user)
    };

    assert_eq!(answer(list("admin")).await.values(), [("a".to_owned(), "3".to_owned())]);
    let message = answer(list("viewer")).await.error(403, "Forbidden");
    assert!(message.contains("at the cluster scope"), "{message}");
}

#[tokio::test]
async fn the_identity_reaches_the_review_unchanged() {
    let backend = Backend::new(|spec| if is_coarse(spec) { Outcome::Deny } else { Outcome::Allow });
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let fixture = Fixture::start(Options { authorizer, ..Options::default() }).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let path = format!("{BASE}/namespaces/chat/plimsoll_desired_replicas");
    let request = fixture
        .proxy(Http::Two)
        .get(&path)
        .header("X-Remote-Group", "a,b")
        .header("X-Remote-Uid", "42")
        .header("X-Remote-Extra-Scopes", "one")
        .header("X-Remote-Extra-Scopes", "two")
        .header("X-Remote-Extra-authentication.kubernetes.io%2fpod-name", "kcm-0");
    assert_eq!(answer(request).await.values().len(), 1);
    let expected = |namespace: &str, resource: &str| {
        json!({
            "user": HPA,
            "groups": ["system:serviceaccounts", "a,b", "system:authenticated"],
            "uid": "42",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["kcm-0"], "scopes": ["one", "two"],
            },
            "resourceAttributes": {
                "namespace": namespace, "verb": "list", "group": "external.metrics.k8s.io",
                "version": "v1beta1", "resource": resource,
            },
        })
    };
    let reviews = backend.reviews.lock().unwrap().clone();
    assert_eq!(reviews, [expected("", "*"), expected("chat", "plimsoll_desired_replicas")]);
}

#[tokio::test]
async fn a_user_who_may_read_everything_costs_one_review() {
    let backend = Backend::new(|_| Outcome::Allow);
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let mut asked = 0;
    for namespace in 0..10_000 {
        match authorizer.authorize(&hpa(), &access(&namespace.to_string())).await {
            AccessVerdict::Allowed(PermissionSource::Asked) => asked += 1,
            verdict => assert_eq!(verdict, AccessVerdict::Allowed(PermissionSource::Cached)),
        }
    }
    assert_eq!((asked, backend.count()), (1, 1));
}

#[tokio::test]
async fn a_user_who_may_not_read_everything_is_asked_about_metric_by_metric() {
    let backend = Backend::new(|spec| {
        let mine = spec["resourceAttributes"]["namespace"] == "mine";
        if mine { Outcome::Allow } else { Outcome::Deny }
    });
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let ask = async |namespace| authorizer.authorize(&hpa(), &access(namespace)).await;
    assert_eq!(ask("mine").await, AccessVerdict::Allowed(PermissionSource::Asked));
    assert_eq!(ask("mine").await, AccessVerdict::Allowed(PermissionSource::Cached));
    assert_eq!(ask("other").await, AccessVerdict::Denied("no rule".to_owned()));
    assert_eq!(ask("other").await, AccessVerdict::Denied("no rule".to_owned()));
    assert_eq!(backend.count(), 3, "one for all metrics, and one for each that was asked for");
    let other = UserIdentity { user: "other".to_owned(), ..UserIdentity::default() };
    authorizer.authorize(&other, &access("mine")).await;
    assert_eq!(backend.count(), 5, "another user shares nothing");
}

#[tokio::test]
async fn a_denied_user_is_told_what_is_missing() {
    let backend = Backend::new(|_| Outcome::Deny);
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let fixture = Fixture::start(Options { authorizer, ..Options::default() }).await;
    let client = fixture.proxy(Http::Two);
    let path = format!("{BASE}/namespaces/chat/plimsoll_desired_replicas");
    let message = client.ask(&path).await.error(403, "Forbidden");
    assert_eq!(
        message,
        format!(
            "plimsoll_desired_replicas.external.metrics.k8s.io is forbidden: User \"{HPA}\" cannot \
             list resource \"plimsoll_desired_replicas\" in API group \"external.metrics.k8s.io\" \
             in the namespace \"chat\": no rule"
        )
    );
    assert_eq!(client.ask(BASE).await.code, 200, "discovery is for everybody");
}

#[tokio::test]
async fn a_permission_outlives_the_backend_and_an_unknown_user_gets_none() {
    let backend = Backend::new(|_| Outcome::Allow);
    let authorizer = backend.authorizer(forgetful()).await;
    let ask = async |user: &UserIdentity| authorizer.authorize(user, &access("chat")).await;
    assert_eq!(ask(&hpa()).await, AccessVerdict::Allowed(PermissionSource::Asked));
    let stranger = UserIdentity { user: "stranger".to_owned(), ..UserIdentity::default() };
    for broken in [|| Outcome::Broken, || Outcome::Both] {
        backend.rule(move |_| broken());
        assert_eq!(ask(&hpa()).await, AccessVerdict::Allowed(PermissionSource::Stale));
        assert!(matches!(ask(&stranger).await, AccessVerdict::Unavailable(_)));
    }
    backend.rule(|_| Outcome::Deny);
    assert!(matches!(ask(&hpa()).await, AccessVerdict::Denied(_)));
    backend.rule(|_| Outcome::Broken);
    let verdict = ask(&hpa()).await;
    assert!(
        matches!(verdict, AccessVerdict::Unavailable(_)),
        "a denial replaces the permission: {verdict:?}"
    );
}

#[tokio::test]
async fn a_permission_for_one_metric_outlives_the_backend_as_well() {
    let backend = Backend::new(|spec| if is_coarse(spec) { Outcome::Deny } else { Outcome::Allow });
    let authorizer = backend.authorizer(forgetful()).await;
    let ask = async |namespace| authorizer.authorize(&hpa(), &access(namespace)).await;
    assert_eq!(ask("chat").await, AccessVerdict::Allowed(PermissionSource::Asked));
    backend.rule(|_| Outcome::Broken);
    assert_eq!(ask("chat").await, AccessVerdict::Allowed(PermissionSource::Stale));
    assert!(matches!(ask("code").await, AccessVerdict::Unavailable(_)));
}

#[tokio::test]
async fn an_unreachable_backend_is_unavailable_and_not_forbidden() {
    let backend = Backend::new(|_| Outcome::Broken);
    let lifetimes =
        AnswerLifetimes { failure: Duration::from_hours(1), ..AnswerLifetimes::default() };
    let authorizer = backend.authorizer(lifetimes).await;
    let fixture = Fixture::start(Options { authorizer, ..Options::default() }).await;
    let client = fixture.proxy(Http::Two);
    let path = format!("{BASE}/namespaces/chat/plimsoll_desired_replicas");
    for _ in 0..3 {
        client.ask(&path).await.error(503, "ServiceUnavailable");
    }
    assert_eq!(backend.count(), 1, "a failure is not repeated at once");
    let masters = client.get(&path).header("X-Remote-Group", "system:masters");
    answer(masters).await.error(404, "NotFound");
    assert_eq!(client.ask(BASE).await.code, 200);
}

#[tokio::test]
async fn requests_of_one_user_share_one_review() {
    let backend = Backend::new(|_| Outcome::Allow);
    let permits = Arc::new(Semaphore::new(0));
    let backend = Backend { permits: Arc::clone(&permits), ..backend };
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let tracker = TaskTracker::new();
    let requests: Vec<_> = (0..50)
        .map(|namespace| {
            let authorizer = Arc::clone(&authorizer);
            tracker.spawn(async move {
                authorizer.authorize(&hpa(), &access(&namespace.to_string())).await
            })
        })
        .collect();
    while backend.count() == 0 {
        tokio::task::yield_now().await;
    }
    permits.add_permits(1000);
    for request in requests {
        assert!(matches!(request.await.unwrap(), AccessVerdict::Allowed(_)));
    }
    assert_eq!(backend.count(), 1);
}

#[tokio::test]
async fn a_review_that_comes_too_late_serves_the_next_request() {
    let permits = Arc::new(Semaphore::new(0));
    let backend = Backend { permits: Arc::clone(&permits), ..Backend::new(|_| Outcome::Allow) };
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let late = authorizer.authorize(&hpa(), &access("chat")).await;
    assert!(matches!(late, AccessVerdict::Unavailable(_)), "{late:?}");
    permits.add_permits(1000);
    let next = loop {
        match authorizer.authorize(&hpa(), &access("chat")).await {
            AccessVerdict::Allowed(source) => break source,
            verdict => assert!(matches!(verdict, AccessVerdict::Unavailable(_)), "{verdict:?}"),
        }
    };
    assert!(matches!(next, PermissionSource::Asked | PermissionSource::Cached));
    assert_eq!(backend.count(), 1, "it was asked once");
}
