//! Lists of targets: static, in files that are replaced and broken, and in DNS.

mod name_server;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::clock::Clock;
use plimsoll::collect::scrape::{ClientSettings, ScrapeSettings};
use plimsoll::collect::targets::{
    Address, Endpoint, Lister, NameServer, Record, Scheme, TargetList, TargetMetrics, TargetSource,
};
use plimsoll::fleet::{ModelName, Namespace, VariantKey, VariantName};
use prometheus::Registry;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::targets::name_server::{Answer, NameServerStub};

/// A test that waits for so long has failed; nothing is expected to come near it.
const PATIENCE: Duration = Duration::from_mins(1);

const REFRESH: Duration = Duration::from_millis(10);

/// A lister at work.
struct Bench {
    listed: watch::Receiver<Option<Arc<TargetList>>>,
    registry: Registry,
    /// The source and reason of each failure that is exported before the first.
    exported: BTreeSet<[String; 2]>,
    tracker: TaskTracker,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Bench {
    fn new(source: TargetSource, server: NameServer) -> Self {
        let registry = Registry::new();
        let metrics = TargetMetrics::register(&registry).unwrap();
        let exported = exported(&registry);
        let (sender, listed) = watch::channel(None);
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let subject = Lister::new(source, server, Clock::start(), metrics);
        tracker.spawn(subject.run(sender, stop.clone()));
        let guard = stop.clone().drop_guard();
        Self { listed, registry, exported, tracker, stop, _guard: guard }
    }

    fn files(paths: &[&Path]) -> Self {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        Self::new(TargetSource::File { paths, refresh: REFRESH }, NameServer::System)
    }

    fn dns(names: &[&str], record: Record, port: Option<u16>, server: &NameServerStub) -> Self {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let source = TargetSource::Dns { names, record, port, refresh: REFRESH };
        Self::new(source, NameServer::At(server.address))
    }

    /// Waits for a list of these URLs.
    async fn until(&mut self, want: &[&str]) -> Arc<TargetList> {
        let seen = |listed: &Option<Arc<TargetList>>| {
            listed.as_ref().is_some_and(|listed| urls(listed) == want)
        };
        let found = tokio::time::timeout(PATIENCE, self.listed.wait_for(seen)).await;
        if let Ok(listed) = found {
            return Arc::clone(listed.unwrap().as_ref().unwrap());
        }
        drop(found);
        panic!("{want:?} never came: {:?}", self.last())
    }

    fn last(&self) -> Option<Arc<TargetList>> {
        self.listed.borrow().clone()
    }

    /// Failures of this kind so far.
    fn failures(&self, source: &str, reason: &str) -> u64 {
        assert!(
            self.exported.contains(&[source, reason].map(str::to_owned)),
            "TargetMetrics::register in src/daemon/collect/targets.rs lacks {source}, {reason}"
        );
        let families = self.registry.gather();
        let is = |metric: &&prometheus::proto::Metric, name: &str, value: &str| {
            metric.get_label().iter().any(|label| label.name() == name && label.value() == value)
        };
        let metrics = families[0].get_metric().iter();
        let found = metrics
            .filter(|metric| is(metric, "source", source) && is(metric, "reason", reason))
            .map(|metric| metric.get_counter().get_value());
        format!("{:.0}", found.sum::<f64>()).parse().unwrap()
    }

    /// Waits until the source has failed so, this many times.
    async fn until_failed(&self, source: &str, reason: &str, times: u64) {
        let failed = async {
            while self.failures(source, reason) < times {
                tokio::time::sleep(REFRESH / 2).await;
            }
        };
        tokio::time::timeout(PATIENCE, failed).await.unwrap();
    }
}

/// The source and the reason of each counter of failures.
fn exported(registry: &Registry) -> BTreeSet<[String; 2]> {
    let families = registry.gather();
    let metrics = families[0].get_metric().iter();
    metrics
        .map(|metric| {
            let labels = metric.get_label();
            ["source", "reason"].map(|name| {
                let label = labels.iter().find(|label| label.name() == name);
                label.unwrap().value().to_owned()
            })
        })
        .collect()
}

fn endpoint() -> Endpoint {
    Endpoint { scheme: Scheme::Http, port: 8000, path: "/metrics".to_owned() }
}

fn urls(listed: &TargetList) -> Vec<String> {
    listed.addresses.iter().map(|address| address.url(&endpoint())).collect()
}

/// Replaces a file as a careful writer does.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}

// === static ===

#[tokio::test]
async fn a_static_list_is_there_at_once_sorted_and_without_repetition() {
    let addresses = ["b:2", "10.0.0.1:1", "b:2", "[::1]:3"].map(str::to_owned).to_vec();
    let mut bench = Bench::new(TargetSource::Static(addresses), NameServer::System);
    let want = ["http://10.0.0.1:1/metrics", "http://[::1]:3/metrics", "http://b:2/metrics"];
    bench.until(&want).await;
}

#[tokio::test(start_paused = true)]
async fn a_static_list_never_grows_old() {
    let mut bench = Bench::new(TargetSource::Static(vec!["a:1".to_owned()]), NameServer::System);
    let first = bench.until(&["http://a:1/metrics"]).await;
    bench.listed.changed().await.unwrap();
    let second = bench.last().unwrap();
    assert_eq!(first.addresses, second.addresses);
    assert!(first.as_of <= second.as_of);
}

#[tokio::test]
async fn a_list_with_a_wrong_address_is_no_list() {
    let addresses = vec!["a:1".to_owned(), "http://b:2".to_owned()];
    let bench = Bench::new(TargetSource::Static(addresses), NameServer::System);
    bench.until_failed("static", "bad_address", 1).await;
    assert_eq!(bench.last(), None);
}

#[test]
fn the_targets_of_a_list_are_named_for_their_addresses() {
    let address = |text: &str| text.parse::<Address>().unwrap();
    // Another path at the address of a target is still the same replica.
    let other = address("a:1").with_path("/other").unwrap();
    let addresses = vec![address("a:1"), other, address("[fd00::1]:2"), address("b")];
    let listed = TargetList { addresses, as_of: Clock::start().now() };
    let variant = VariantKey {
        namespace: Namespace::new("llm").unwrap(),
        variant: VariantName::new("chat-h100").unwrap(),
    };
    let settings = Arc::new(ScrapeSettings {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        body_limit: 1,
        client: ClientSettings::default(),
    });
    let models = [ModelName::new("m").unwrap()];
    let targets = listed.targets(&variant, &endpoint(), &models, &settings);
    let short = targets.iter().map(|t| (t.replica.replica.as_str(), &*t.url)).collect::<Vec<_>>();
    let want = [
        ("[fd00::1]:2", "http://[fd00::1]:2/metrics"),
        ("a:1", "http://a:1/metrics"),
        ("b:8000", "http://b:8000/metrics"),
    ];
    assert_eq!(short, want);
    for target in targets {
        assert_eq!((&target.replica.variant, target.replica.incarnation), (&variant, None));
        assert_eq!((&*target.models, target.settings), (&models[..], Arc::clone(&settings)));
    }
}

// === files ===

#[tokio::test]
async fn a_file_is_followed_and_an_empty_list_is_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("targets.json");
    replace(&path, r#"[{"targets": ["a:1"]}]"#);
    let mut bench = Bench::files(&[&path]);
    bench.until(&["http://a:1/metrics"]).await;
    replace(&path, r#"[{"targets": ["a:1", "b:2"], "labels": {"env": "x"}, "more": 1}]"#);
    bench.until(&["http://a:1/metrics", "http://b:2/metrics"]).await;
    replace(&path, "[]");
    bench.until(&[]).await;
}

#[tokio::test]
async fn a_list_that_does_not_change_is_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("targets.yml");
    replace(&path, "- targets: [a]\n");
    let mut bench = Bench::files(&[&path]);
    let first = bench.until(&["http://a:8000/metrics"]).await;
    let later = |listed: &Option<Arc<TargetList>>| listed.as_ref().unwrap().as_of > first.as_of;
    tokio::time::timeout(PATIENCE, bench.listed.wait_for(later)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_broken_file_leaves_the_last_list_and_its_age() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("targets.json");
    replace(&path, r#"[{"targets": ["a:1"]}]"#);
    let mut bench = Bench::files(&[&path]);
    bench.until(&["http://a:1/metrics"]).await;
    for (text, reason) in [
        (r#"[{"targets": ["a:1", "b"#, "malformed"),
        ("", "malformed"),
        (r#"[{"targets": ["b:x"]}]"#, "bad_address"),
    ] {
        replace(&path, text);
        // The first of the two may have begun before what was published last.
        bench.until_failed("file", reason, bench.failures("file", reason) + 2).await;
        let before = bench.last().unwrap();
        bench.until_failed("file", reason, bench.failures("file", reason) + 2).await;
        assert_eq!(bench.last().unwrap(), before, "{text}");
        assert_eq!(urls(&before), ["http://a:1/metrics"], "{text}");
    }
    std::fs::remove_file(&path).unwrap();
    bench.until_failed("file", "unreadable", 2).await;
    assert_eq!(urls(&bench.last().unwrap()), ["http://a:1/metrics"]);
    replace(&path, r#"[{"targets": ["c:3"]}]"#);
    bench.until(&["http://c:3/metrics"]).await;
}

#[tokio::test]
async fn nothing_is_listed_before_the_first_good_reading() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("targets.json");
    let mut bench = Bench::files(&[&path]);
    bench.until_failed("file", "unreadable", 2).await;
    assert_eq!(bench.last(), None);
    replace(&path, r#"[{"targets": ["a:1"]}]"#);
    bench.until(&["http://a:1/metrics"]).await;
}

#[tokio::test]
async fn one_broken_file_of_two_leaves_the_last_list_of_both() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1.json"), folder.path().join("2.yaml"));
    replace(&first, r#"[{"targets": ["a:1"]}]"#);
    replace(&second, "- targets: [b:2]\n");
    let mut bench = Bench::files(&[&first, &second]);
    bench.until(&["http://a:1/metrics", "http://b:2/metrics"]).await;
    replace(&second, "- targets: [\n");
    replace(&first, r#"[{"targets": ["c:3"]}]"#);
    bench.until_failed("file", "malformed", 2).await;
    let listed = urls(&bench.last().unwrap());
    assert_eq!(listed, ["http://a:1/metrics", "http://b:2/metrics"]);
    replace(&second, "- targets: [b:2]\n");
    bench.until(&["http://b:2/metrics", "http://c:3/metrics"]).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_swapped_symlink_is_followed() {
    // As the kubelet does it: the file is a link through `..data`, which is swapped.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, target) in [("v1", "a:1"), ("v2", "b:2")] {
        std::fs::create_dir(at(version)).unwrap();
        let list = format!(r#"[{{"targets": ["{target}"]}}]"#);
        std::fs::write(at(version).join("targets.json"), list).unwrap();
    }
    std::os::unix::fs::symlink("v1", at("..data")).unwrap();
    std::os::unix::fs::symlink("..data/targets.json", at("targets.json")).unwrap();
    let mut bench = Bench::files(&[&at("targets.json")]);
    bench.until(&["http://a:1/metrics"]).await;
    std::os::unix::fs::symlink("v2", at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    bench.until(&["http://b:2/metrics"]).await;
}

// === DNS ===

#[tokio::test]
async fn the_addresses_of_a_name_are_listed_and_followed() {
    let server = NameServerStub::start().await;
    let ip = |last| Ipv4Addr::new(10, 0, 0, last);
    server.answer("vllm.llm.svc.", Answer::A(vec![ip(2), ip(1)]));
    let mut bench = Bench::dns(&["vllm.llm.svc"], Record::A, Some(9000), &server);
    bench.until(&["http://10.0.0.1:9000/metrics", "http://10.0.0.2:9000/metrics"]).await;
    // The answers may be kept for an hour, and are not.
    server.answer("vllm.llm.svc.", Answer::A(vec![ip(3)]));
    bench.until(&["http://10.0.0.3:9000/metrics"]).await;
}

#[tokio::test]
async fn several_names_and_ipv6_make_one_list() {
    let server = NameServerStub::start().await;
    let ip = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    server.answer("a.", Answer::Aaaa(vec![ip(1)]));
    server.answer("b.", Answer::Aaaa(vec![ip(2), ip(1)]));
    let mut bench = Bench::dns(&["a.", "b."], Record::Aaaa, None, &server);
    bench.until(&["http://[fd00::1]:8000/metrics", "http://[fd00::2]:8000/metrics"]).await;
}

#[tokio::test]
async fn service_records_bring_their_ports_and_names() {
    let server = NameServerStub::start().await;
    let name = "_http._tcp.vllm.llm.svc.";
    let targets = [("vllm-1.vllm.llm.svc.", 8001), ("vllm-0.vllm.llm.svc.", 8000)];
    server.answer(name, Answer::Srv(targets.to_vec()));
    let mut bench = Bench::dns(&[name], Record::Srv, None, &server);
    let want =
        ["http://vllm-0.vllm.llm.svc:8000/metrics", "http://vllm-1.vllm.llm.svc:8001/metrics"];
    bench.until(&want).await;
}

#[tokio::test]
async fn whatever_dns_fails_with_leaves_the_last_list_and_its_age() {
    let server = NameServerStub::start().await;
    let good = Answer::A(vec![Ipv4Addr::new(10, 0, 0, 1)]);
    server.answer("a.", good.clone());
    let mut bench = Bench::dns(&["a."], Record::A, None, &server);
    let want = ["http://10.0.0.1:8000/metrics"];
    bench.until(&want).await;
    for (answer, reason) in [
        (Answer::NoSuchName, "no_records"),
        (Answer::A(Vec::new()), "no_records"),
        (Answer::Aaaa(vec![Ipv6Addr::LOCALHOST]), "no_records"),
        (Answer::ServerFailure, "lookup_failed"),
        (Answer::Refused, "lookup_failed"),
        // There is nobody at the server's TCP port to give the rest.
        (Answer::CutShort(vec![Ipv4Addr::new(10, 0, 0, 2)]), "lookup_failed"),
    ] {
        server.answer("a.", answer.clone());
        bench.until_failed("dns", reason, bench.failures("dns", reason) + 2).await;
        let before = bench.last().unwrap();
        bench.until_failed("dns", reason, bench.failures("dns", reason) + 2).await;
        assert_eq!(bench.last().unwrap(), before, "{answer:?}");
        assert_eq!(urls(&before), want, "{answer:?}");
        server.answer("a.", good.clone());
        let later =
            |listed: &Option<Arc<TargetList>>| listed.as_ref().unwrap().as_of > before.as_of;
        tokio::time::timeout(PATIENCE, bench.listed.wait_for(later)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn one_name_that_fails_leaves_the_last_list_of_all() {
    let server = NameServerStub::start().await;
    let ip = |last| Answer::A(vec![Ipv4Addr::new(10, 0, 0, last)]);
    server.answer("a.", ip(1));
    server.answer("b.", ip(2));
    let mut bench = Bench::dns(&["a.", "b."], Record::A, None, &server);
    let want = ["http://10.0.0.1:8000/metrics", "http://10.0.0.2:8000/metrics"];
    bench.until(&want).await;
    server.answer("b.", Answer::NoSuchName);
    bench.until_failed("dns", "no_records", 3).await;
    assert_eq!(urls(&bench.last().unwrap()), want);
}

#[tokio::test]
async fn a_lister_ends_when_it_is_stopped() {
    let server = NameServerStub::start().await;
    server.answer("a.", Answer::Silence);
    let bench = Bench::dns(&["a."], Record::A, None, &server);
    tokio::time::timeout(PATIENCE, server.asked()).await.unwrap();
    bench.stop.cancel();
    bench.tracker.close();
    tokio::time::timeout(PATIENCE, bench.tracker.wait()).await.unwrap();
    assert_eq!(bench.last(), None);
}
