//! Migration from other autoscalers: configuration, manifests and differences.
//!
//! Objects are read from manifests or a cluster, and nothing is written to a cluster. The printed
//! configuration is checked as `plimsoll check` checks it.

mod annotate;
mod cluster;
mod convert;
mod files;
mod migration;
mod object;
mod scaler;
mod wva;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cli::args::{MigrateArgs, MigrateSource};
use crate::cli::migrate::cluster::ClusterError;
use crate::cli::migrate::migration::{Deviation, Migration};
use crate::cli::migrate::object::Manifest;
use plimsoll_daemon::config::{self, Files, Surroundings, counted, yaml};
use plimsoll_lab::output;

/// The namespace of objects in files that have none.
const NAMESPACE: &str = "default";

/// The names of the files in the folder of `--output`.
const CONFIG: &str = "plimsoll.yaml";
const VALUES: &str = "values.yaml";
const MANIFESTS: &str = "manifests";
const DIFFERENCES: &str = "differences.md";
const ANNOTATE: &str = "annotate.sh";

/// The reason that there is no migration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MigrateError {
    /// Files or entries cannot be read.
    #[error("{}:\n{}", counted(.0.len(), "problem"), .0.join("\n"))]
    Source(Vec<String>),
    /// Nothing can be migrated.
    #[error("found nothing to migrate among {}{}", counted(*objects, "object"), reasons(skipped))]
    Nothing {
        /// The number of objects.
        objects: usize,
        /// The objects that are not migrated, with reasons.
        skipped: Vec<String>,
    },
    /// The folder of the output has files already.
    #[error("{} is not an empty folder; --output creates one, or takes an empty one", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
}

fn reasons(skipped: &[String]) -> String {
    skipped.iter().fold(String::new(), |all, one| all + "\n  " + one)
}

/// Runs the command.
///
/// # Errors
///
/// The source cannot be read, nothing in it can be migrated, or the output cannot be written.
pub(crate) fn run(source: &MigrateSource) -> anyhow::Result<()> {
    let (MigrateSource::Wva(args) | MigrateSource::Keda(args) | MigrateSource::Hpa(args)) = source;

    if let Some(folder) = &args.output {
        check_output(folder)?;
    }

    let objects = read(source, args)?;
    let mut migration = Migration::default();

    match source {
        MigrateSource::Wva(_) => {
            convert::variants(&objects, &mut migration);
            wva::settings(&objects, &mut migration).map_err(MigrateError::Source)?;
        }
        MigrateSource::Keda(_) => convert::scaled_objects(&objects, &mut migration),
        MigrateSource::Hpa(_) => convert::hpas(&objects, &mut migration),
    }

    check_names(&migration.manifests)?;
    if migration.manifests.is_empty() && migration.variants.is_empty() {
        let skipped = migration.skipped.iter().map(Deviation::to_string).collect();

        return Err(MigrateError::Nothing { objects: objects.len(), skipped }.into());
    }

    let others = migration.other_targets().into_iter();
    let names: Vec<_> = others.map(|(group, resource)| format!("{resource}.{group}")).collect();
    for name in names {
        migration.differs(format!(
            "{VALUES} permits the scale targets {name}: compare this name with `kubectl \
             api-resources`"
        ));
    }
    migration.differences.sort_by_key(|difference| difference.object.is_some());
    let config = yaml::write(&migration.config()).context("cannot write the configuration")?;
    check(&config)?;

    match &args.output {
        Some(folder) => save(args, folder, &config, &migration),
        None => print(&config, &migration),
    }
}

fn read(source: &MigrateSource, args: &MigrateArgs) -> anyhow::Result<Vec<Manifest>> {
    let MigrateArgs { paths, namespace, .. } = args;

    if !paths.is_empty() {
        let default = namespace.as_deref().unwrap_or(NAMESPACE);
        let read = files::read(paths, default);

        return Ok(read.map_err(|problems| {
            MigrateError::Source(problems.iter().map(ToString::to_string).collect())
        })?);
    }

    // A second provider, which others may have installed, would only be an error here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok(runtime.block_on(cluster::read(source, args))?)
}

/// Checks the configuration as `plimsoll check` does. Values of the source may be out of range.
fn check(text: &str) -> anyhow::Result<()> {
    let surroundings = Surroundings {
        origin: format!("the migrated {CONFIG}"),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    config::parse(text, &surroundings)?;

    Ok(())
}

/// Checks that each object is there once, because each is written into a file of its own.
fn check_names(objects: &[Manifest]) -> Result<(), MigrateError> {
    let mut seen: BTreeMap<(&str, &str, &str), &Manifest> = BTreeMap::new();
    let mut problems = Vec::new();

    for object in objects {
        let name = (object.kind(), object.namespace.as_str(), object.name());
        if let Some(first) = seen.insert(name, object) {
            let label = object.label_text();
            let problem =
                format!("{}: {label} is also in {}; give one", object.origin, first.origin);
            problems.push(problem);
        }
    }

    if problems.is_empty() { Ok(()) } else { Err(MigrateError::Source(problems)) }
}

fn check_output(folder: &Path) -> anyhow::Result<()> {
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(MigrateError::Occupied { path: folder.to_owned() }.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", folder.display())),
    }
}

/// Returns the name of a manifest's file.
fn file_name(manifest: &Manifest) -> String {
    let kind = if manifest.kind() == "ScaledObject" { "scaledobject" } else { "hpa" };
    format!("{}-{kind}-{}.yaml", manifest.namespace, manifest.name())
}

/// Prints everything as one stream of YAML documents, with the differences as comments.
fn print(config: &str, migration: &Migration) -> anyhow::Result<()> {
    let mut text = format!("# {CONFIG}\n{config}");

    for manifest in &migration.manifests {
        let document = yaml::write(&manifest.value).context("cannot write a manifest")?;
        let name = file_name(manifest);
        write!(text, "---\n# {MANIFESTS}/{name}, from {}\n{document}", manifest.origin)?;
    }
    text.push_str("---\n");

    for line in differences(migration).lines() {
        let separator = if line.is_empty() { "" } else { " " };
        writeln!(text, "#{separator}{line}")?;
    }

    output::print(&text)
}

/// Writes everything into a folder, and prints the names of the files.
fn save(
    args: &MigrateArgs,
    folder: &Path,
    config: &str,
    migration: &Migration,
) -> anyhow::Result<()> {
    let values = yaml::write(&migration.values()).context("cannot write the values")?;
    let mut files = vec![
        (folder.join(CONFIG), config.to_owned()),
        (folder.join(VALUES), values),
        (folder.join(DIFFERENCES), differences(migration)),
    ];
    if let Some(script) = annotate::script(args, &migration.manifests) {
        files.push((folder.join(ANNOTATE), script));
    }

    for manifest in &migration.manifests {
        let document = yaml::write(&manifest.value).context("cannot write a manifest")?;
        files.push((folder.join(MANIFESTS).join(file_name(manifest)), document));
    }

    let manifests = folder.join(MANIFESTS);
    fs::create_dir_all(&manifests)
        .with_context(|| format!("cannot create {}", manifests.display()))?;
    let mut output = io::stdout().lock();

    for (path, text) in files {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(output, "{}", path.display())?;
    }
    output.flush()?;

    Ok(())
}

/// Returns the differences as Markdown.
fn differences(migration: &Migration) -> String {
    let mut text = "# Differences\n".to_owned();
    let mut last: Option<&String> = None;

    for Deviation { object, text: difference } in &migration.differences {
        if object.as_ref() != last || text.ends_with("Differences\n") {
            let heading = object.as_deref().unwrap_or("Everywhere");
            text.push_str("\n## ");
            text.push_str(heading);
            text.push_str("\n\n");
            last = object.as_ref();
        }
        text.push_str("- ");
        text.push_str(difference);
        text.push('\n');
    }

    if !migration.skipped.is_empty() {
        text.push_str("\n## Not migrated\n\n");

        for skipped in &migration.skipped {
            text.push_str("- ");
            text.push_str(&skipped.to_string());
            text.push('\n');
        }
    }
    text
}

/// Maps the error of a cluster to true if the cluster, and not the command line, is the cause.
pub(crate) fn is_unavailable(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<ClusterError>()
}
