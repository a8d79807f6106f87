//! The list of all faults: what breaks, the rule that holds nevertheless, and how it is played.

/// One fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// What breaks.
    pub(crate) fault: &'static str,
    /// What holds nevertheless, beside the rules that hold for all.
    pub(crate) invariant: &'static str,
    pub(crate) played: Played,
}

/// How a fault is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Played {
    /// By the script with its name, on a running daemon.
    Live,
    /// By a test that exists for it.
    Test(Suite, &'static str),
}

/// A binary with tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// The integration tests, in `tests/it`.
    It,
    /// The unit tests of the core, in `src/core`.
    Core,
    /// The end-to-end tests on a real control plane, in `tests/e2e`.
    EndToEnd,
}

impl Suite {
    /// The name for people.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::It => "it",
            Self::Core => "core",
            Self::EndToEnd => "e2e",
        }
    }
}

/// The load falls, and no data shows it.
const STAYS: &str = "Missing data removes no replica";
/// The data still comes.
const FOLLOWS: &str = "Desired replicas follow the load";
/// The engines are well.
const SERVED: &str = "The last state counts, and the HPA gets desired replicas";
const HANDOVER: &str = "One daemon decides, and desired replicas do not fall";
const LAST_GOOD: &str = "The last good one stays in effect";
const DECIDES: &str = "Decisions go on";

const fn live(name: &'static str, fault: &'static str, invariant: &'static str) -> Fault {
    Fault { name, fault, invariant, played: Played::Live }
}

const fn test(
    name: &'static str,
    fault: &'static str,
    invariant: &'static str,
    suite: Suite,
    test: &'static str,
) -> Fault {
    Fault { name, fault, invariant, played: Played::Test(suite, test) }
}

/// All faults, in the order of the table.
pub(crate) const FAULTS: [Fault; 100] = [
    // Engines and the network to them.
    live("engine-port-closed", "The engines' port is closed", STAYS),
    live("engine-hangs", "Engines take requests and answer none", STAYS),
    live("engine-breaks-off", "Engines reset or stall within the response", STAYS),
    live("engine-slow", "Engines take 500 ms of the timeout of 800 ms", FOLLOWS),
    live("engine-lossy", "Latency of 300 ms, every 20th connection is reset", FOLLOWS),
    live("engine-partly-silent", "One engine of three does not answer", STAYS),
    live(
        "engine-returns",
        "Engines answer again while the load is low",
        "Replicas go only after a whole window of data",
    ),
    live("address-of-another-model", "Other models' pods have the addresses", STAYS),
    test(
        "dns-fails",
        "DNS answers nothing, errors, or half of it",
        "The last list of targets stays and grows old",
        Suite::It,
        "targets::whatever_dns_fails_with_leaves_the_last_list_and_its_age",
    ),
    test(
        "dns-ipv6",
        "Names with IPv6 addresses only",
        "They are targets like all others",
        Suite::It,
        "targets::several_names_and_ipv6_make_one_list",
    ),
    test(
        "targets-file-broken",
        "A file of targets is broken",
        "The last list of targets stays and grows old",
        Suite::It,
        "targets::a_broken_file_leaves_the_last_list_and_its_age",
    ),
    // Metrics responses.
    live(
        "page-without-metrics",
        "500, 503, 401, redirect, login page, JSON, another program",
        STAYS,
    ),
    live("page-content-type", "Metrics with the content type `text/html`", STAYS),
    live("page-cut", "A third of the response, with a fitting length", STAYS),
    live("page-empty", "An empty response with status 200", STAYS),
    live("page-values", "All values are NaN, then +Inf, then -1", STAYS),
    live("page-series-twice", "Every series twice", STAYS),
    live("page-hostile-labels", "Control characters, markup and binary data", STAYS),
    live("page-explosion", "100,000 ranks, then 1,000,000 samples", STAYS),
    live("page-endless", "2 GiB, an endless line, endless headers, a byte each 10 ms, 1 TB", STAYS),
    live("page-gzip-bomb", "A compressed response that unpacks without end", STAYS),
    live("page-frozen", "Engines repeat their last metrics", STAYS),
    test(
        "counter-reset",
        "Counters start again from zero",
        "A restart is no negative rate",
        Suite::Core,
        "observe::window::tests::a_counter_that_goes_back_has_started_from_zero",
    ),
    test(
        "card-lies",
        "A capacity card promises too much",
        "No replica that had requests goes before replicas have shown that capacity",
        Suite::It,
        "cards::a_card_that_promises_too_much_takes_nothing_away_before_replicas_have_shown_it",
    ),
    test(
        "zero-without-data",
        "Data is missing while a model may go to zero",
        "Only proof of idleness leads to zero",
        Suite::It,
        "zero::missing_data_never_sends_to_zero",
    ),
    // Prometheus.
    test(
        "prometheus-wrong-answers",
        "Prometheus answers wrongly in 17 ways",
        STAYS,
        Suite::It,
        "prometheus::whatever_the_server_answers_no_count_changes_and_the_metric_says_what_it_was",
    ),
    test(
        "prometheus-partial",
        "Prometheus warns that its answer is partial",
        STAYS,
        Suite::It,
        "prometheus::a_partial_answer_is_not_complete_for_any_server",
    ),
    test(
        "prometheus-future",
        "Samples from the future",
        "They are refused and counted",
        Suite::It,
        "prometheus::samples_from_the_future_are_refused_and_counted",
    ),
    test(
        "prometheus-twice",
        "Two Prometheus servers scrape the same replica",
        "A replica counts once",
        Suite::It,
        "prometheus::two_servers_or_jobs_with_the_same_replica_are_never_added_up",
    ),
    test(
        "prometheus-dead",
        "A real Prometheus dies, loses its data, sees half",
        STAYS,
        Suite::EndToEnd,
        "prometheus::b_a_dead_an_empty_and_a_half_blind_prometheus_change_no_count",
    ),
    // Pods and nodes.
    live("node-dies", "A node with two of three replicas is lost", STAYS),
    live("pods-terminating", "Two of three pods end for a long time", SERVED),
    live("pods-evicted", "Half of the pods are evicted", SERVED),
    live("pods-vanish", "All pods vanish from the API server", SERVED),
    live("pods-relabelled", "Two pods leave the selector and come back", SERVED),
    live("pods-crash", "All pods crash and start again", STAYS),
    live("pods-pending", "No node has room for one more replica", SERVED),
    live("pods-replaced", "All pods are replaced every half a second", SERVED),
    live(
        "target-deleted",
        "The Deployment is deleted and created again",
        "Desired replicas are never too low",
    ),
    // The API server.
    live(
        "api-server-away-at-start",
        "No API server while the daemon starts",
        "The daemon waits for it, and is not ready",
    ),
    live("api-server-away", "The API server is away", SERVED),
    live("api-server-black-hole", "Packets to the API server are lost", SERVED),
    live("api-server-half-open", "Connections fall silent without an end", SERVED),
    live("api-server-slow", "Each piece of data takes 2 s", SERVED),
    live("api-server-flaps", "The way to the API server comes and goes", SERVED),
    live("api-server-429", "429 with Retry-After to all lists and watches", SERVED),
    live("api-server-5xx", "500 to all lists and watches", SERVED),
    live("watch-history-forgotten", "410 to all watches, again and again", SERVED),
    live("watch-event-storm", "Up to 300 changes of pods per second", SERVED),
    live("reviews-fail", "SubjectAccessReviews fail", SERVED),
    live("front-proxy-authority", "The front proxy's authority is broken, then deleted", SERVED),
    live("hpa-deleted", "The HPA is deleted and created again", SERVED),
    live("objects-malformed", "Pods and HPAs with missing and odd fields", SERVED),
    test(
        "list-token-expired",
        "410 within a list of several pages",
        "The list starts again and is complete",
        Suite::It,
        "cluster::watches::a_long_list_is_read_in_pages_and_begun_again_when_it_is_forgotten",
    ),
    test(
        "many-variants",
        "Very many variants in few namespaces",
        "Few connections, and no requests while nothing changes",
        Suite::It,
        "cluster::shared::while_nothing_changes_nothing_is_asked_and_few_connections_are_open",
    ),
    test(
        "real-api-server-restarts",
        "A real API server restarts",
        "Desired replicas do not change",
        Suite::EndToEnd,
        "g_an_api_server_that_restarts_changes_no_count",
    ),
    test(
        "namespace-deleted",
        "A namespace is deleted while there is no data",
        "Namespaces remain deletable",
        Suite::EndToEnd,
        "f_a_namespace_is_deleted_while_plimsoll_has_no_data",
    ),
    test(
        "real-engines-hang",
        "Engines hang below a real HPA",
        "Desired replicas do not change",
        Suite::EndToEnd,
        "d_engines_that_hang_change_no_count",
    ),
    test(
        "real-process-killed",
        "The daemon is killed and paused below a real HPA",
        "Desired replicas do not change",
        Suite::EndToEnd,
        "e_a_killed_a_restarted_and_a_paused_plimsoll_change_no_count",
    ),
    test(
        "hpa-tolerance",
        "A real HPA ignores small differences",
        "It is reported",
        Suite::EndToEnd,
        "c_past_ten_replicas_the_number_is_followed_exactly_or_its_neglect_is_reported",
    ),
    // Several daemons.
    live("leader-killed", "The leader is killed", HANDOVER),
    live("leader-ended", "The leader gets SIGTERM", HANDOVER),
    live("leader-paused", "The leader stands still, and wakes up later", HANDOVER),
    live("leader-partitioned", "The leader does not reach the API server", HANDOVER),
    live("follower-partitioned", "The follower does not reach the API server", HANDOVER),
    live(
        "both-partitioned",
        "Neither daemon reaches the API server",
        "Desired replicas do not fall",
    ),
    live("lease-taken", "The Lease is deleted, then held by a stranger", HANDOVER),
    live("lease-forbidden", "The Lease is forbidden", "Desired replicas do not fall"),
    live("document-broken", "The shared document is garbage, then deleted", HANDOVER),
    live("no-election", "Two daemons without an election", "Both decide the same"),
    test(
        "leader-loop-hangs",
        "The leader's decision loop stands still",
        "It gives up, and another daemon leads",
        Suite::It,
        "leader::a_leader_whose_loop_stands_still_gives_up_and_another_replica_leads",
    ),
    test(
        "leader-loop-panics",
        "The leader's decision loop panics",
        "It gives the Lease back and is no longer alive",
        Suite::It,
        "leader::a_leader_whose_loop_panics_gives_the_lease_back_and_is_not_alive",
    ),
    test(
        "leader-writes-late",
        "A deposed leader writes late",
        "The write is refused",
        Suite::It,
        "leader::a_deposed_leaders_late_write_is_refused",
    ),
    test(
        "real-leader-killed",
        "The leader is killed below a real HPA",
        "Desired replicas do not change",
        Suite::EndToEnd,
        "leader::a_killed_leader_changes_no_count",
    ),
    // Files.
    live("configuration-broken", "Syntax, unknown key, empty, cut, binary", LAST_GOOD),
    live("configuration-of-16-mib", "A configuration of 16 MiB", LAST_GOOD),
    live("configuration-alias-bomb", "Nine levels of YAML aliases", LAST_GOOD),
    live("configuration-deleted", "The configuration is deleted", LAST_GOOD),
    live("certificate-broken", "The serving certificate is garbage", LAST_GOOD),
    live("certificate-expired", "The new serving certificate has expired", LAST_GOOD),
    live("certificate-deleted", "The serving certificate is deleted", LAST_GOOD),
    live("disk-full", "No room for the state file", DECIDES),
    live("disk-read-only", "The disk of the state file is read-only", DECIDES),
    live("state-folder-missing", "The folder of the state file is deleted", DECIDES),
    live(
        "state-torn",
        "Half a state file after a crash",
        "The file is renamed, and the daemon starts without it",
    ),
    live(
        "state-garbage",
        "A state file of zeros after a crash",
        "The file is renamed, and the daemon starts without it",
    ),
    test(
        "disk-hangs",
        "The disk of the state file hangs",
        DECIDES,
        Suite::It,
        "stalls::a_disk_that_hangs_stops_no_decision",
    ),
    test(
        "trace-disk-full",
        "No room for the trace",
        DECIDES,
        Suite::It,
        "backtest::a_trace_that_cannot_be_written_is_counted_and_decisions_go_on",
    ),
    // Clocks.
    live("clock-an-hour-ahead", "The wall clock jumps an hour ahead", SERVED),
    live("clock-an-hour-back", "The wall clock jumps an hour back", SERVED),
    live("clock-wrong-at-start", "The wall clock is 5 years late, then right", SERVED),
    // The process.
    live("process-killed", "SIGKILL, and no engine answers afterward", STAYS),
    live(
        "process-killed-without-state",
        "The same without a state file",
        "No desired replicas, so HPAs hold",
    ),
    live(
        "process-ended",
        "SIGTERM and a restart",
        "Every request is answered until the delay ends",
    ),
    live("process-suspended", "The process stands still for 8 s", STAYS),
    live("process-starved", "The process runs a tenth of the time", SERVED),
    live("descriptors-exhausted", "200 idle connections and 64 open files", SERVED),
    live("stderr-blocked", "No process reads the log", DECIDES),
    test(
        "strangers-flood",
        "Strangers fill all connections of the TLS port",
        "The API server is answered",
        Suite::It,
        "floods::strangers_cannot_keep_the_api_server_out",
    ),
    live(
        "day-of-churn",
        "A day in which variants and replicas come and go, and engines restart",
        "Memory and open files stay flat",
    ),
];
