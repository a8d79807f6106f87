//! Arguments of the daemon.

use std::path::PathBuf;

use crate::telemetry::LogFormat;

/// Arguments of `run`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct RunArgs {
    /// Path to the configuration file
    #[arg(verbatim_doc_comment, long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
    pub config: PathBuf,
    /// Log filter, such as `info` or `warn,plimsoll_daemon=debug`
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FILTER",
        env = "PLIMSOLL_LOG",
        default_value = "info,kube_client=off"
    )]
    pub log: String,
    /// Log format
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FORMAT",
        env = "PLIMSOLL_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}
