//! Attacks by connections: floods, stalls, slow senders and slow readers.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::aim::{Aim, Identity, Port, address, own, swarm};
use crate::external_metrics_harness::Http;
use crate::hostile::STALLS;

/// Connections of an attack that holds them.
const HELD: u16 = 300;

/// The pause before a connection that was closed is opened again, so that these attacks are no floods.
const AGAIN: Duration = Duration::from_millis(250);

/// The pause of a slow sender between two bytes.
const DRIP: Duration = Duration::from_millis(50);

/// Connects as fast as possible, and keeps the last few connections of each worker open.
pub(crate) async fn flood(aim: Arc<Aim>, port: Port, addresses: u16) {
    swarm(aim, 16, move |aim, worker| async move {
        let mut open = Vec::new();
        for turn in 0..32 {
            let from = address((worker * 32 + turn) % addresses);
            open.push(aim.connect(port, from).await);
        }

        aim.note("32 connections");
    })
    .await;
}

/// Holds connections that stall before, in and after the head of a request.
pub(crate) async fn stall(aim: Arc<Aim>, port: Port, addresses: u16) {
    swarm(aim, HELD, move |aim, worker| async move {
        let Some(mut stream) = aim.open(port, address(worker % addresses)).await else { return };
        let _closed = stream.write_all(STALLS[usize::from(worker) % STALLS.len()]).await;
        aim.exchange(stream, b"").await;
        sleep(AGAIN).await;
    })
    .await;
}

/// Holds connections on which nothing is ever sent, not even a handshake.
pub(crate) async fn silence(aim: Arc<Aim>, port: Port) {
    swarm(aim, HELD, move |aim, worker| async move {
        let Some(stream) = aim.connect(port, address(worker % 100)).await else { return };
        aim.exchange(stream, b"").await;
        sleep(AGAIN).await;
    })
    .await;
}

/// Sends headers byte by byte.
pub(crate) async fn slow_heads(aim: Arc<Aim>, port: Port) {
    swarm(aim, HELD, move |aim, worker| async move {
        let Some(mut stream) = aim.open(port, address(worker % 100)).await else { return };
        let _closed = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n").await;
        while stream.write_all(b"X").await.is_ok() {
            sleep(DRIP).await;
        }

        aim.note("closed");
        sleep(AGAIN).await;
    })
    .await;
}

/// Sends the body of a permitted change byte by byte.
pub(crate) async fn slow_bodies(aim: Arc<Aim>) {
    swarm(aim, 64, move |aim, worker| async move {
        let Some(mut stream) = aim.connect(Port::Plain, own(worker)).await else { return };
        let head = b"PUT /-/log HTTP/1.1\r\nHost: a\r\nContent-Length: 4096\r\n\r\n";
        let _closed = stream.write_all(head).await;
        while stream.write_all(b"i").await.is_ok() {
            sleep(DRIP).await;
        }

        aim.note("closed");
        sleep(AGAIN).await;
    })
    .await;
}

/// Announces the body of a permitted change and sends none.
pub(crate) async fn stalled_bodies(aim: Arc<Aim>) {
    swarm(aim, 64, move |aim, worker| async move {
        let Some(stream) = aim.connect(Port::Plain, own(worker)).await else { return };
        let head = b"PUT /-/log HTTP/1.1\r\nHost: a\r\nContent-Length: 4096\r\n\r\n";
        aim.exchange(stream, head).await;
        sleep(AGAIN).await;
    })
    .await;
}

/// Asks for a page many times over one connection, and reads none of it.
pub(crate) async fn slow_readers(aim: Arc<Aim>, path: &'static str) {
    swarm(aim, HELD, move |aim, worker| async move {
        let Some(stream) = aim.connect(Port::Plain, address(worker % 100)).await else { return };
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        aim.push(stream, request.repeat(500).as_bytes()).await;
        sleep(AGAIN).await;
    })
    .await;
}

// === handshakes ===

/// The first flight of a client.
fn client_hello(aim: &Aim) -> Vec<u8> {
    let config = aim.config(Identity::Stranger, Http::Two);
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut connection = ClientConnection::new(config, name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

/// Begins handshakes and never ends them.
pub(crate) async fn half_handshakes(aim: Arc<Aim>) {
    swarm(aim, HELD, |aim, worker| async move {
        let Some(mut stream) = aim.connect(Port::Tls, address(worker % 100)).await else { return };
        let _closed = stream.write_all(&client_hello(&aim)).await;
        let ended = aim.push(stream, b"");
        let _held = timeout(Duration::from_secs(6), ended).await;
        sleep(AGAIN).await;
    })
    .await;
}

/// Sends the first flight byte by byte.
pub(crate) async fn slow_handshakes(aim: Arc<Aim>) {
    swarm(aim, HELD, |aim, worker| async move {
        let Some(mut stream) = aim.connect(Port::Tls, address(worker % 100)).await else { return };
        for byte in client_hello(&aim) {
            if stream.write_all(&[byte]).await.is_err() {
                break;
            }
            sleep(DRIP).await;
        }

        aim.note("closed");
        sleep(AGAIN).await;
    })
    .await;
}

/// Completes handshakes as fast as possible and says nothing.
pub(crate) async fn handshakes(aim: Arc<Aim>, addresses: u16) {
    swarm(aim, 8, move |aim, worker| async move {
        for turn in 0..50 {
            let from = address((worker * 50 + turn) % addresses);
            if aim.connect_tls(Identity::Stranger, Http::Two, from).await.is_some() {
                aim.note("handshake");
            }
        }
    })
    .await;
}

/// Completes handshakes with a certificate that must be verified, and asks for something each time.
pub(crate) async fn forged_handshakes(aim: Arc<Aim>) {
    let request = b"GET /apis HTTP/1.1\r\nHost: a\r\nX-Remote-User: admin\r\n\
                    Connection: close\r\n\r\n";
    swarm(aim, 8, move |aim, worker| async move {
        let from = address(worker);
        let Some(stream) = aim.connect_tls(Identity::Forger, Http::One, from).await else { return };
        aim.exchange(stream, request).await;
    })
    .await;
}

/// Bytes that are no handshake.
pub(crate) fn no_handshakes() -> Vec<Vec<u8>> {
    let noise: Vec<u8> =
        (0..65_536_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    vec![
        b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        noise,
    ]
}

/// TLS records that break the format, before a handshake.
pub(crate) fn malformed_records() -> Vec<Vec<u8>> {
    let record = |kind: u8, payload: &[u8]| {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 3, 3], &length[..], payload].concat()
    };
    let (handshake, alert, data) = (22, 21, 23);
    // A hello that announces sixteen megabytes, in records of the largest size.
    let announced = record(handshake, &[&[1, 0xff, 0xff, 0xff][..], &[0; 16_000]].concat());
    let endless = [announced, record(handshake, &[0; 16_384]).repeat(1000)].concat();
    vec![
        endless,
        [&[handshake, 3, 3, 0xff, 0xff][..], &[0; 65_535]].concat(),
        record(data, b"").repeat(20_000),
        record(handshake, b"").repeat(20_000),
        record(alert, &[1, 90]).repeat(20_000),
        record(99, b"unknown"),
    ]
}

/// Waits for the end of the attack, while hostile engines do their work.
pub(crate) async fn wait(_aim: Arc<Aim>) {
    pending::<()>().await;
}
