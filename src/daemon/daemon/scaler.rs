//! Starts the gRPC server for KEDA.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;

use crate::config::{FileKeys, ScalerTlsKeys};
use crate::daemon::context::DaemonContext;
use crate::daemon::listen::listen;
use crate::publish::external_metrics::state::DecisionAges;
use crate::publish::external_scaler::metrics::ScalerMetrics;
use crate::publish::external_scaler::streams::StreamBudgetLimits;
use crate::publish::external_scaler::{self, ExternalScaler};
use crate::server::client_authority::ClientAuthority;
use crate::server::shed::ShedListener;
use crate::server::tls::{self, ServingCertificate, TlsSettings};
use crate::server::{ServerLimits, ServerTransport};

/// Serves KEDA, if that is configured; returns the address.
///
/// # Errors
///
/// The address cannot be listened on, or a certificate cannot be loaded.
pub(crate) async fn serve(
    keys: &FileKeys,
    ages: DecisionAges,
    common: &DaemonContext,
) -> anyhow::Result<Option<SocketAddr>> {
    let Some(settings) = &keys.external_scaler else { return Ok(None) };
    let DaemonContext { clock, registry, servers, phases, published, .. } = common;
    let metrics = ScalerMetrics::register(registry)?;
    let transport = match &settings.tls {
        Some(keys) => encrypted(keys, common, &metrics).await?,
        None => ServerTransport::Plain,
    };

    let phase = phases.clone();
    let scaler = Arc::new(ExternalScaler::new(
        published.clone(),
        *clock,
        ages,
        phase.clone(),
        StreamBudgetLimits::default(),
        metrics,
    ));

    let listener = listen(settings.listen, "external_scaler.listen")?;
    let address = listener.local_addr()?;
    let connections = servers.clone();
    let limits = ServerLimits { drain_max: common.drain_max, ..external_scaler::limits() };
    let shed = common.shed.of(ShedListener::ExternalScaler);
    servers.spawn(async move {
        let tracker = &connections;
        external_scaler::serve(listener, scaler, transport, limits, shed, phase, tracker).await;
    });
    Ok(Some(address))
}

async fn encrypted(
    keys: &ScalerTlsKeys,
    common: &DaemonContext,
    metrics: &ScalerMetrics,
) -> anyhow::Result<ServerTransport> {
    let DaemonContext { clock, stop, tasks, .. } = common;
    let ScalerTlsKeys { cert_file, key_file, client_ca_file } = keys.clone();
    let loaded = ServingCertificate::load(clock.now(), TlsSettings { cert_file, key_file }).await;
    let certificate = Arc::new(loaded.context("external_scaler.tls")?);
    metrics.certificate.expires(certificate.not_after());

    let followed = Arc::clone(&certificate);
    let following = (*clock, stop.clone(), metrics.clone());
    tasks.spawn(async move {
        let (clock, ended, shown) = following;
        let following = followed.follow(clock, tls::RELOAD_INTERVAL, ended, |outcome| {
            shown.certificate.reloaded(outcome, followed.not_after());
        });
        following.await;
    });

    let Some(file) = client_ca_file else {
        return Ok(ServerTransport::Tls(tls::server_config(certificate)?));
    };
    let loaded = ClientAuthority::load(file).await;
    let clients = Arc::new(loaded.context("external_scaler.tls.client_ca_file")?);
    let followed = Arc::clone(&clients);
    let ended = stop.clone();
    tasks.spawn(async move { followed.follow(tls::RELOAD_INTERVAL, ended).await });
    Ok(ServerTransport::MutualTls(tls::mutual_config(certificate, clients)?))
}
