//! A client of the API server.

use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

/// Why there is no client. None of these asks the API server, which may be away for now.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file cannot be read.
    #[error("cannot read the kubeconfig {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file system or the YAML reader says.
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

/// Builds a client: from this kubeconfig, else from `KUBECONFIG` or `~/.kube/config`, else as the
/// service account of the pod that this process runs in. A context is looked up in a kubeconfig.
///
/// # Errors
///
/// The configuration is missing or cannot be used. Whether the API server answers is not tried.
pub async fn client(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ClientError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    let config = match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|source| ClientError::Read {
                path: path.to_owned(),
                source: Box::new(source),
            })?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|source| ClientError::Context(Box::new(source)))?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options)
            .await
            .map_err(|source| ClientError::Context(Box::new(source)))?,
        (None, None) => {
            Config::infer().await.map_err(|source| ClientError::Infer(Box::new(source)))?
        }
    };
    Client::try_from(config).map_err(|source| ClientError::Credentials(Box::new(source)))
}
