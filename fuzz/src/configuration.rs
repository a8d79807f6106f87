//! Configuration files, and the environment over them.
//!
//! After a line `=== environment` come variables, `NAME=VALUE`, one per line.

use std::collections::BTreeMap;

use plimsoll::config::{Files, LoadError, LoadedConfig, Severity, Surroundings, parse};

/// The separator between the file and the environment.
const ENVIRONMENT: &str = "\n=== environment\n";

/// Loads a configuration; its printed form must load as the same configuration.
pub fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let (file, variables) = text.split_once(ENVIRONMENT).unwrap_or((text, ""));
    let environment = variables.lines().filter_map(|line| line.split_once('='));
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    match load(file, environment.collect()) {
        Ok(LoadedConfig { config, warnings }) => {
            assert!(warnings.iter().all(|warning| warning.severity == Severity::Warning));
            let printed = config.print();
            let again = load(&printed, BTreeMap::new()).unwrap_or_else(|error| {
                panic!("what is printed cannot be loaded: {error}\n{printed}")
            });
            assert!(again.config == config, "what is printed is something else:\n{printed}");
            assert_eq!(again.config.print(), printed, "what is printed is printed otherwise");
            assert_eq!(again.config.hash(), config.hash());
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("plimsoll.yaml") || said.starts_with("cannot"), "{said}");
            if let LoadError::Invalid { problems, .. } = error {
                let is_error = |problem: &&_| severity(problem) == Severity::Error;
                assert!(problems.iter().any(|problem| is_error(&problem)), "refused for nothing");
            }
        }
    }
}

fn severity(problem: &plimsoll::config::Problem) -> Severity {
    problem.severity
}

fn load(text: &str, environment: BTreeMap<String, String>) -> Result<LoadedConfig, LoadError> {
    let surroundings = Surroundings {
        origin: "plimsoll.yaml".to_owned(),
        base: "/etc/plimsoll".into(),
        environment,
        files: Files::NotChecked,
    };
    parse(text, &surroundings)
}
