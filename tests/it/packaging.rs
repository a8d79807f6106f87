//! The bill of materials and the provenance that `packaging/release` puts next to the binary, and the
//! kubectl plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

/// Crates that the binary has, and crates that only tests, benchmarks and build scripts have.
const SHIPPED: [&str; 7] =
    ["aws-lc-sys", "hyper", "kube", "plimsoll-core", "plimsoll-daemon", "plimsoll-lab", "rustls"];
const NOT_SHIPPED: [&str; 5] = ["cc", "criterion", "insta", "openssl", "proptest"];

/// The example of FIPS 180-4.
const SHA256_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static BILL: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(&bill(&[])).unwrap());

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The output of `packaging/sbom`.
fn bill(arguments: &[&str]) -> String {
    let output = Command::new(root("packaging/sbom"))
        .args(arguments)
        .env("CARGO_NET_OFFLINE", "true")
        .env("SOURCE_DATE_EPOCH", "86400")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn components() -> Vec<&'static Value> {
    let components = BILL["components"].as_array().unwrap();
    assert!(components.len() > 200, "{} crates", components.len());
    components.iter().collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// The checksums of Cargo.lock by name and version; crates of this workspace have none.
fn locked() -> BTreeMap<(String, String), Option<String>> {
    let lock = std::fs::read_to_string(root("Cargo.lock")).unwrap();
    let value = |package: &str, key: &str| {
        let start = format!("{key} = \"");
        let line = package.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    lock.split("[[package]]")
        .skip(1)
        .map(|package| {
            let key = (value(package, "name").unwrap(), value(package, "version").unwrap());
            (key, value(package, "checksum"))
        })
        .collect()
}

#[test]
fn the_bill_of_materials_says_what_it_is_of() {
    assert_eq!(BILL["bomFormat"], "CycloneDX");
    assert_eq!(BILL["specVersion"], "1.5");
    assert_eq!(BILL["version"], 1);
    assert_eq!(BILL["metadata"]["timestamp"], "1970-01-02T00:00:00Z");

    let binary = &BILL["metadata"]["component"];
    assert_eq!(binary["type"], "application");
    assert_eq!(binary["name"], "plimsoll");
    assert_eq!(binary["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_bill_of_materials_has_each_crate_with_its_license_and_the_checksum_of_the_lock_file() {
    let locked = locked();
    for component in components() {
        let name = text(component, "name");
        let version = text(component, "version");
        let purl = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
        assert_eq!(text(component, "purl"), purl);
        assert_eq!(component["type"], "library");

        let license = text(&component["licenses"][0], "expression");
        assert!(!license.is_empty() && !license.contains('/'), "{name}: {license}");

        let checksum = locked.get(&(name.to_owned(), version.to_owned())).unwrap_or_else(|| {
            panic!("Cargo.lock has no {name} {version}");
        });
        let hash = component["hashes"].as_array().map(|hashes| {
            assert_eq!(hashes[0]["alg"], "SHA-256");
            text(&hashes[0], "content").to_owned()
        });
        assert_eq!(hash, *checksum, "{name} {version}");
        assert_eq!(hash.is_none(), name.starts_with("plimsoll-"), "{name} comes from outside");
    }
}

#[test]
fn the_bill_of_materials_has_the_crates_of_the_binary_and_no_others() {
    let names: BTreeSet<&str> =
        components().into_iter().map(|component| text(component, "name")).collect();
    for name in SHIPPED {
        assert!(names.contains(name), "{name} is missing");
    }
    for name in NOT_SHIPPED {
        assert!(!names.contains(name), "{name} is not in the binary");
    }
}

#[test]
fn every_crate_of_the_bill_of_materials_is_reached_from_the_binary() {
    let mut needs = BTreeMap::new();
    for dependency in BILL["dependencies"].as_array().unwrap() {
        let names = dependency["dependsOn"].as_array().unwrap();
        let names: Vec<&str> = names.iter().map(|name| name.as_str().unwrap()).collect();
        assert!(needs.insert(text(dependency, "ref"), names).is_none(), "{dependency} twice");
    }

    let mut reached = BTreeSet::new();
    let mut open = vec![text(&BILL["metadata"]["component"], "bom-ref")];
    while let Some(name) = open.pop() {
        if reached.insert(name) {
            open.extend(&needs[name]);
        }
    }
    let crates: BTreeSet<&str> =
        components().into_iter().map(|component| text(component, "bom-ref")).collect();
    assert_eq!(reached.len(), crates.len() + 1);
    assert!(reached.is_superset(&crates));
}

#[test]
fn equal_sources_have_an_equal_bill_of_materials_with_the_checksum_of_the_binary() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("plimsoll");
    std::fs::write(&binary, "abc").unwrap();
    let path = binary.to_str().unwrap();

    let first = bill(&[path]);
    assert_eq!(first, bill(&[path]));
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["metadata"]["component"]["hashes"][0]["content"], SHA256_OF_ABC);
    assert_eq!(first["components"], BILL["components"]);
}

/// The output of `packaging/provenance` about a file, built from this commit.
fn provenance(file: &Path, commit: &str) -> Value {
    let output = Command::new(root("packaging/provenance"))
        .arg(file)
        .env("SOURCE_COMMIT", commit)
        .env("TARGET", "aarch64-unknown-linux-gnu")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_provenance_binds_a_file_to_its_commit_lock_file_and_toolchain() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("plimsoll");
    std::fs::write(&binary, "abc").unwrap();
    let commit = "52396a1384ac9a3866b29ed87a2bbef35ade0cbd";
    let statement = provenance(&binary, commit);
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    assert_eq!(statement["subject"].as_array().unwrap().len(), 1);
    assert_eq!(statement["subject"][0]["name"], "plimsoll");
    assert_eq!(statement["subject"][0]["digest"]["sha256"], SHA256_OF_ABC);

    let definition = &statement["predicate"]["buildDefinition"];
    assert_eq!(definition["externalParameters"]["target"], "aarch64-unknown-linux-gnu");
    let inputs = &definition["resolvedDependencies"];
    assert_eq!(inputs[0]["digest"]["gitCommit"], commit);
    assert_eq!(inputs[0]["annotations"]["dirty"], false);
    assert_eq!(inputs[1]["name"], "Cargo.lock");
    assert_eq!(text(&inputs[1]["digest"], "sha256").len(), 64);
    assert!(text(&inputs[2]["annotations"], "version").starts_with("rustc 1."));
    assert_eq!(statement, provenance(&binary, commit), "it has no time");

    let dirty = provenance(&binary, &format!("{commit}-dirty"));
    let source = &dirty["predicate"]["buildDefinition"]["resolvedDependencies"][0];
    assert_eq!(source["digest"]["gitCommit"], commit);
    assert_eq!(source["annotations"]["dirty"], true);
}

/// A kubectl that forwards a port by its name alone: `service.metricsPort` changes the Service's port,
/// and `httpPort` the pod's. It keeps its arguments next to itself.
const KUBECTL: &str = r#"#!/bin/sh
printf '%s\n' "$*" >"$0.asked"
for port; do :; done
[ "$port" = :http ] || {
  printf 'error: Service plimsoll-metrics does not have a service port %s\n' "${port#:}" >&2
  exit 1
}
printf 'Forwarding from 127.0.0.1:4711 -> 18080\n'
exec sleep 60
"#;

/// Runs the kubectl plugin. Returns the arguments of kubectl, and those of plimsoll.
fn plugin(arguments: &[&str]) -> [String; 2] {
    let folder = tempfile::tempdir().unwrap();
    let commands = [("kubectl", KUBECTL), ("plimsoll", "#!/bin/sh\nprintf '%s\\n' \"$*\"\n")];
    for (name, script) in commands {
        let path = folder.path().join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let output = Command::new(root("packaging/kubectl-plimsoll"))
        .args(arguments)
        .env("PATH", path)
        .env_remove("PLIMSOLL_NAMESPACE")
        .env_remove("PLIMSOLL_TARGET")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let asked = std::fs::read_to_string(folder.path().join("kubectl.asked")).unwrap();
    [asked, String::from_utf8(output.stdout).unwrap()]
}

#[test]
fn the_kubectl_plugin_reaches_the_daemon_of_the_cluster_that_doctor_checks() {
    let [asked, run] = plugin(&["doctor", "--context", "b", "--kubeconfig=f"]);
    let forwarding = "port-forward --address 127.0.0.1 service/plimsoll-metrics :http\n";
    assert_eq!(asked, format!("--kubeconfig=f --context=b --namespace plimsoll {forwarding}"));
    let checked = "doctor --url http://127.0.0.1:4711 --namespace plimsoll";
    assert_eq!(run, format!("{checked} --context b --kubeconfig=f\n"));

    let [other, _] = plugin(&["doctor", "--context=b"]);
    assert_eq!(other, format!("--context=b --namespace plimsoll {forwarding}"));
}

#[test]
fn the_kubectl_plugin_finds_the_port_of_the_daemon_by_its_name() {
    let [asked, run] = plugin(&["top", "--once"]);
    assert!(asked.starts_with("--namespace plimsoll port-forward "), "{asked}");
    assert_eq!(run, "top --url http://127.0.0.1:4711 --once\n");

    let read = |path| std::fs::read_to_string(root(path)).unwrap();
    let services = read("charts/plimsoll/templates/services.yaml");
    assert!(services.contains("{name: http, port: {{ .Values.service.metricsPort }}, "));
    let deployment = read("charts/plimsoll/templates/deployment.yaml");
    assert!(deployment.contains("{name: http, containerPort: {{ .Values.httpPort }}}"));
    let example = read("examples/cluster.yaml");
    assert!(example.contains("{name: http, port: 8080}"));
    assert!(example.contains("{name: http, containerPort: 8080}"));
}
