//! The client for the API server.

mod link;

use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

pub use crate::collect::cluster::client::link::{LinkTiming, connect};

/// The reason why there is no client. None of these errors involves the API server, which may be
/// temporarily unavailable.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesClientError {
    /// The kubeconfig file cannot be read.
    #[error("cannot read the kubeconfig {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error from the file system or the YAML parser.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The kubeconfig has no such context, or the context is incomplete.
    #[error("the kubeconfig's context cannot be used")]
    Context(#[source] Box<kube::config::KubeconfigError>),
    /// There is neither a kubeconfig nor a service account.
    #[error("there is neither a kubeconfig nor a pod's service account")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The configuration names certificates or credentials that cannot be used.
    #[error("the credentials of the cluster cannot be used")]
    Credentials(#[source] Box<kube::Error>),
}

/// Builds a client from this kubeconfig. Without one, `KUBECONFIG` or `~/.kube/config` is used, and
/// otherwise the service account of this process's pod. A context is looked up in a kubeconfig.
///
/// # Errors
///
/// The configuration is missing or cannot be used. The API server is not contacted.
pub async fn client(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, KubernetesClientError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    let config = match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|source| {
                KubernetesClientError::Read { path: path.to_owned(), source: Box::new(source) }
            })?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|source| KubernetesClientError::Context(Box::new(source)))?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options)
            .await
            .map_err(|source| KubernetesClientError::Context(Box::new(source)))?,
        (None, None) => Config::infer()
            .await
            .map_err(|source| KubernetesClientError::Infer(Box::new(source)))?,
    };

    connect(config, LinkTiming::default()).map_err(KubernetesClientError::Credentials)
}
