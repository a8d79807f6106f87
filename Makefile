# The same commands as .ci/run.

.PHONY: check advisories test alerts prometheus panels e2e e2e-vllm bench bench-baseline doc fmt book browser chart chart-package image release e2e-doctor e2e-keda e2e-node e2e-scale e2e-upgrade scoreboard attacks faults

# Formatting, lints, code that nothing reaches, and what the dependencies may be.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	tests/dead-code
	cargo deny --all-features check bans licenses sources

# Known vulnerabilities of dependencies, from RustSec's database, which git fetches from GitHub. It is
# not part of .ci/run, because what it finds changes without a commit.
advisories:
	cargo deny --all-features check advisories

# With the features of the end-to-end tests, so that nothing is compiled twice for them.
test:
	cargo test --workspace --all-features --lib --bins --test it

# When the alerts fire and when they do not, with promtool and Alertmanager, which it builds once into a cache.
alerts:
	tests/prometheus/alerts

# Dashboards and alerts on a real Prometheus that scrapes the demo.
prometheus:
	tests/prometheus/run

# Pictures of the dashboards in target/panels, drawn with Grafana's own components from npm. It is not
# part of .ci/run, because it downloads 400 MB.
panels:
	tests/panels/run

# The status page in a headless Chromium, which must be installed.
browser:
	tests/browser/run

# Attacks on a running daemon, and what probes, HPAs and decisions notice of each. Writes the table of
# docs/attacks.md; `cargo test --features attacks --test attacks -- NAME` plays some and only prints.
attacks:
	cargo test --all-features --test attacks -- --write

# A hundred faults, played on a running daemon or by tests that exist. Writes the table of docs/faults.md;
# `tests/faults/run NAME` plays some and only prints.
faults:
	tests/faults/run --write

# The Helm chart, the Containerfile and the packages, with the real helm against a real control plane.
chart:
	tests/containerfile
	tests/chart/run

# The binary of a release and its archive, with their checksums and what is in them, in dist/.
release:
	packaging/release

# The chart as an archive and as an OCI image layout, with checksums, in dist/.
chart-package:
	packaging/chart

# The image plimsoll:VERSION, with Podman, Docker or Buildah; packaging/image NAME names it otherwise.
image:
	packaging/image

# Against a real Kubernetes control plane, which it builds once into a cache.
e2e:
	tests/e2e/run

# Each way of breaking a fleet that `plimsoll doctor` must find, on three control planes side by side.
e2e-doctor:
	tests/e2e/run --ignored doctor::

# 5,000 variants on a real API server: connections, requests at rest, and what it refuses or forgets.
e2e-scale:
	tests/e2e/run --ignored crowd::

# A rolling update under load from the program of an earlier commit, the last tag unless FROM names one.
FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
e2e-upgrade:
	previous=$$(tests/e2e/tools/release "$(FROM)") && \
	  PLIMSOLL_E2E_PREVIOUS_RELEASE=$$previous tests/e2e/run i_two_replicas

# With a real KEDA and a real Prometheus, which it builds into the same cache on the first run.
e2e-keda:
	tests/e2e/run-keda

# The chart's pod on real nodes, with containerd and kubelets that it builds into the same cache on the
# first run. Needs root; ends with 69 and the reason where a machine cannot do it.
e2e-node:
	tests/e2e/run-node

# With real vLLM servers on the CPU, which it installs into a cache (5 GB) on the first run.
e2e-vllm:
	tests/e2e/run-vllm

bench:
	cargo bench

# Every policy on every scenario, into docs/scoreboard.md. PLIMSOLL_TRACES names a folder with the
# recorded traces; without it, the scenarios that need none are simulated. SEEDS=1 takes a third of the
# time, and shows one draw instead of the means of three.
SEEDS ?= 3
scoreboard:
	cargo run --profile dist -- scoreboard scoreboard/*.yaml --ablation --seeds $(SEEDS) --out docs/scoreboard

# What docs/performance.md compares with: Prometheus' parsers on the same pages.
bench-baseline:
	cd benches/go && go test -bench . -benchmem

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# The documentation site, in target/book, with a check of its links. Needs mdbook, which .ci/run installs.
book:
	packaging/book

fmt:
	cargo fmt --all
