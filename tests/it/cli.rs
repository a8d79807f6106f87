//! The command line, as its users see it.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn plimsoll(arguments: &[&str]) -> Output {
    // What the environment sets would be a layer of its own.
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_help_text_is_as_reviewed() {
    for (name, arguments) in [
        ("help", vec!["--help"]),
        ("help_run", vec!["run", "--help"]),
        ("help_check", vec!["check", "--help"]),
        ("help_schema", vec!["schema", "--help"]),
        ("help_demo", vec!["demo", "--help"]),
        ("help_simulate", vec!["simulate", "--help"]),
        ("help_scoreboard", vec!["scoreboard", "--help"]),
        ("help_card", vec!["card", "--help"]),
        ("help_card_export", vec!["card", "export", "--help"]),
        ("help_migrate", vec!["migrate", "--help"]),
        ("help_migrate_wva", vec!["migrate", "wva", "--help"]),
        ("help_explain", vec!["explain", "--help"]),
        ("help_doctor", vec!["doctor", "--help"]),
        ("help_advise", vec!["advise", "--help"]),
        ("help_report", vec!["report", "--help"]),
        ("help_pin", vec!["pin", "--help"]),
        ("help_top", vec!["top", "--help"]),
    ] {
        let output = plimsoll(&arguments);
        assert_eq!(output.status.code(), Some(0), "{name}");
        assert!(output.stderr.is_empty(), "{name}: help is a result");
        insta::assert_snapshot!(name, text(&output.stdout));
    }
}

#[test]
fn a_daemon_on_this_machine_is_asked_without_a_proxy() {
    let daemon = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", daemon.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut asked, _) = daemon.accept().unwrap();
        let mut request = [0; 1024];
        let _read = asked.read(&mut request).unwrap();
        asked.write_all(b"HTTP/1.1 418 \r\nContent-Length: 0\r\n\r\n").unwrap();
    });

    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["explain", "shop/llama", "--url", &url])
        .env_clear()
        .env("http_proxy", "http://127.0.0.1:1")
        .output()
        .unwrap();
    let said = text(&output.stderr);

    assert!(said.contains("418"), "{said}");
    serving.join().unwrap();
}

#[test]
fn a_wrong_command_line_exits_64_and_prints_no_result() {
    for arguments in [
        &[][..],
        &["fly"],
        &["run"],
        &["check"],
        &["check", "a", "b"],
        &["demo", "--for", "90"],
        &["demo", "--for", "0s"],
        &["demo", "--output", "loud"],
    ] {
        let output = plimsoll(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let shells = ["bash", "elvish", "fish", "powershell", "zsh"];
    for shell in shells {
        let output = plimsoll(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        for command in ["explain", "doctor", "backtest", "scoreboard", "top"] {
            assert!(text(&output.stdout).contains(command), "{shell}: {command}");
        }
    }
    assert_eq!(plimsoll(&["completions", "cmd"]).status.code(), Some(64));

    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    assert_eq!(plimsoll(&["man", path(&pages)]).status.code(), Some(0));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("plimsoll.1").contains(r"plimsoll\-explain"), "{}", page("plimsoll.1"));
    assert!(page("plimsoll-explain.1").contains("NAMESPACE/VARIANT"));
    assert!(page("plimsoll-card-export.1").contains(".TH"));
}

#[test]
fn a_configuration_that_is_not_there_exits_64_and_names_it_once() {
    let output = plimsoll(&["check", "no/such/file.yaml"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty());
    assert_eq!(
        text(&output.stderr),
        "plimsoll: cannot read the configuration file no/such/file.yaml: No such file or directory \
         (os error 2)\n"
    );
}

#[test]
fn check_prints_all_problems_on_standard_error_and_exits_64() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    std::fs::write(&file, "tick_intervall: 1s\nobserve: {window: 5 parsecs}\n").unwrap();
    let output = plimsoll(&["check", path(&file)]);
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty());
    let errors = text(&output.stderr);
    for problem in ["tick_intervall", "`tick_interval`", "observe.window", "5 parsecs", "variants"]
    {
        assert!(errors.contains(problem), "{problem} is not in:\n{errors}");
    }
}

#[test]
fn check_prints_a_configuration_that_check_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("printed.yaml");
    let printed = plimsoll(&["check", "--print", "--skip-files", "examples/plimsoll.yaml"]);
    assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
    std::fs::write(&file, &printed.stdout).unwrap();
    let again = plimsoll(&["check", "--print", "--skip-files", path(&file)]);
    assert_eq!(text(&again.stdout), text(&printed.stdout));
}

#[test]
fn the_environment_is_laid_over_the_file() {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["check", "--print", "--skip-files", "examples/plimsoll.yaml"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("PLIMSOLL__SERVER__LISTEN", "127.0.0.1:1234")
        // What Kubernetes sets beside a service of this name means nothing.
        .env("PLIMSOLL_PORT", "tcp://10.0.0.1:80")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("listen: 127.0.0.1:1234\n"));
}

#[test]
fn warnings_go_to_standard_error_and_leave_the_exit_code() {
    let output = plimsoll(&["check", "examples/plimsoll.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("examples/plimsoll.yaml is valid: 2 variants, hash "));
    let warned = text(&output.stderr);
    assert!(warned.contains("warning: variants[1].targets.file.paths[0]"), "{warned}");
}

#[test]
fn the_schema_is_printed_as_json() {
    let output = plimsoll(&["schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema, plimsoll::config::schema());
}

#[test]
fn exit_codes_follow_the_cause() {
    use plimsoll::cli::{EXIT_BUG, EXIT_UNAVAILABLE, EXIT_USAGE, exit_code};

    let missing = plimsoll::config::load(Path::new("/no/such"), plimsoll::config::Files::MustExist);
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    for (error, code) in [
        (anyhow::Error::new(missing.unwrap_err()).context("cannot start"), EXIT_USAGE),
        (anyhow::Error::new(refused).context("cannot listen"), EXIT_UNAVAILABLE),
        (anyhow::anyhow!("an invariant does not hold"), EXIT_BUG),
    ] {
        assert_eq!(exit_code(&error), code, "{error:#}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_demo_runs_as_a_whole_and_the_daemon_decides_in_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["demo", "--for", "8s", "--output", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, ticks) = lines.split_last().unwrap();
    assert!(summary["summary"]["autoscaled"]["requests_finished"].as_u64().unwrap() > 0);
    let last = &ticks.last().unwrap()["models"];
    for model in last.as_array().unwrap() {
        for variant in model["variants"].as_array().unwrap() {
            assert!(variant["desired"].as_u64() >= Some(1), "no number for {variant}");
            assert_eq!(variant["trouble"], serde_json::Value::Null, "the HPA follows {variant}");
        }
    }
}
