//! The script that declares variants by annotating the objects that exist, so that Plimsoll decides
//! for them before anything follows it.

use crate::cli::args::MigrateArgs;
use crate::cli::migrate::object::Manifest;

/// The prefix of the annotations that declare a variant.
const PREFIX: &str = "plimsoll.dev/";

/// The characters other than letters and digits that have no meaning of their own in a shell.
const PLAIN: &str = "-_./:=@";

/// Returns one `kubectl annotate` for each object that the migration annotates, in the cluster that
/// it was read from; `None` if it annotates none.
pub(super) fn script(args: &MigrateArgs, manifests: &[Manifest]) -> Option<String> {
    let program = kubectl(args);

    let commands: Vec<String> = manifests.iter().filter_map(|it| command(&program, it)).collect();
    if commands.is_empty() {
        return None;
    }

    Some(format!("#!/bin/sh\nset -e\n{}", commands.concat()))
}

/// Returns the command with the options for the cluster.
fn kubectl(args: &MigrateArgs) -> String {
    let file = args.kubeconfig.as_ref().map(|path| ("--kubeconfig", path.display().to_string()));
    let context = args.context.as_ref().map(|name| ("--context", name.clone()));
    let options = [file, context].into_iter().flatten();

    options.fold("kubectl".to_owned(), |all, (option, value)| {
        format!("{all} {option} {}", quoted(&value))
    })
}

fn command(kubectl: &str, manifest: &Manifest) -> Option<String> {
    let annotations = manifest.value.pointer("/metadata/annotations")?.as_object()?;
    let ours = annotations.iter().filter(|(name, _)| name.starts_with(PREFIX));
    let given: Vec<String> = ours
        .filter_map(|(name, value)| Some(quoted(&format!("{name}={}", value.as_str()?))))
        .collect();
    if given.is_empty() {
        return None;
    }

    let kind = manifest.kind().to_lowercase();
    let namespace = quoted(&manifest.namespace);
    let name = quoted(manifest.name());
    let words = given.join(" ");
    Some(format!("{kubectl} annotate --overwrite -n {namespace} {kind} {name} {words}\n"))
}

/// Returns the text as one word of a shell.
fn quoted(text: &str) -> String {
    let mut characters = text.chars();
    if !text.is_empty() && characters.all(|it| it.is_ascii_alphanumeric() || PLAIN.contains(it)) {
        return text.to_owned();
    }

    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_the_shell_stays_one_word() {
        assert_eq!(quoted("plimsoll.dev/model=meta/Llama-3"), "plimsoll.dev/model=meta/Llama-3");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $(rm)"), r"'it'\''s $(rm)'");
        assert_eq!(quoted(""), "''");
    }
}
