//! The list of all attacks.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use crate::aim::{Aim, Identity, Port, address, own, swarm};
use crate::connections;
use crate::engine::EngineResponse;
use crate::external_metrics_harness::Http;
use crate::target::HostileVariants;
use crate::{grpc, http1, http2, pages};

/// A running attack, which ends when it is dropped.
type Playing = Pin<Box<dyn Future<Output = ()>>>;

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// The port that it is on, for people.
    pub(crate) port: &'static str,
    pub(crate) seconds: u64,
    pub(crate) hostile: Option<HostileVariants>,
    pub(crate) play: fn(Arc<Aim>) -> Playing,
    /// Returns true if attackers may get this answer.
    pub(crate) permits: fn(&str) -> bool,
}

/// Requests that are sent again and again.
#[derive(Clone, Copy)]
struct Volley {
    port: Port,
    identity: Identity,
    http: Http,
    from: fn(u16) -> IpAddr,
    reads: Reads,
}

/// The attention of a client to the answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    All,
    Nothing,
}

const PLAIN: Volley = Volley {
    port: Port::Plain,
    identity: Identity::Stranger,
    http: Http::One,
    from: address,
    reads: Reads::All,
};

/// From the host of the daemon itself.
const NEAR: Volley = Volley { from: own, ..PLAIN };

const GRPC: Volley = Volley { port: Port::Grpc, http: Http::Two, ..PLAIN };

const TLS: Volley = Volley { port: Port::Tls, ..PLAIN };

const H2: Volley = Volley { http: Http::Two, ..TLS };

const DEAF_H2: Volley = Volley { reads: Reads::Nothing, ..H2 };

/// Sends payloads by eight workers, each from an address of its own.
async fn volley(aim: Arc<Aim>, volley: Volley, payloads: Vec<Vec<u8>>) {
    let payloads: Arc<[Vec<u8>]> = payloads.into();
    let workers = u16::try_from(payloads.len().next_multiple_of(8)).unwrap();
    swarm(aim, workers, move |aim, worker| {
        let payloads = Arc::clone(&payloads);
        async move {
            let payload = &payloads[usize::from(worker) % payloads.len()];
            shoot(&aim, volley, worker, payload).await;
        }
    })
    .await;
}

async fn shoot(aim: &Aim, volley: Volley, worker: u16, payload: &[u8]) {
    let Volley { port, identity, http, from, reads } = volley;
    let from = from(worker);
    match port {
        Port::Plain | Port::Grpc => {
            let Some(stream) = aim.connect(port, from).await else { return };
            aim.exchange(stream, payload).await;
        }
        Port::Tls => {
            let Some(stream) = aim.connect_tls(identity, http, from).await else { return };
            match reads {
                Reads::All => aim.exchange(stream, payload).await,
                Reads::Nothing => aim.push(stream, payload).await,
            }
        }
    }
}

// === rules for answers ===

/// Anything: the attack is judged by what others notice.
const fn anything(_answer: &str) -> bool {
    true
}

/// Answers that an attack gets without reaching the daemon's code at all.
fn is_unheard(answer: &str) -> bool {
    matches!(answer, "closed" | "silence" | "not connected" | "no handshake")
}

fn unauthorized(answer: &str) -> bool {
    answer == "401" || is_unheard(answer)
}

fn forbidden(answer: &str) -> bool {
    answer == "403" || is_unheard(answer)
}

/// Anything but a success or a failure of the daemon.
fn refused(answer: &str) -> bool {
    answer.starts_with('4') || is_unheard(answer)
}

/// Anything but a failure of the daemon.
fn no_failure(answer: &str) -> bool {
    !answer.starts_with('5')
}

// === the list ===

fn on_plain(name: &'static str, play: fn(Arc<Aim>) -> Playing) -> Attack {
    Attack { name, port: "plain", seconds: 4, hostile: None, play, permits: no_failure }
}

fn on_tls(name: &'static str, play: fn(Arc<Aim>) -> Playing) -> Attack {
    Attack { port: "TLS", ..on_plain(name, play) }
}

fn by_replicas(name: &'static str, variants: u16, response: fn() -> EngineResponse) -> Attack {
    Attack {
        name,
        port: "–",
        seconds: 4,
        hostile: Some(HostileVariants { response, variants }),
        play: |aim| Box::pin(connections::wait(aim)),
        permits: anything,
    }
}

/// All attacks, after a row without one.
pub(crate) fn all() -> Vec<Attack> {
    let calm = Attack { port: "–", ..on_plain("(none)", |aim| Box::pin(connections::wait(aim))) };
    [
        vec![calm],
        floods(),
        handshakes(),
        requests(),
        changes(),
        streams(),
        calls(),
        identities(),
        replicas(),
    ]
    .concat()
}

fn floods() -> Vec<Attack> {
    use connections::{
        flood, silence, slow_bodies, slow_heads, slow_readers, stall, stalled_bodies,
    };
    vec![
        on_plain("connection flood, 1 address", |aim| Box::pin(flood(aim, Port::Plain, 1))),
        on_plain("connection flood, 250 addresses", |aim| Box::pin(flood(aim, Port::Plain, 250))),
        on_tls("connection flood, 1 address", |aim| Box::pin(flood(aim, Port::Tls, 1))),
        on_tls("connection flood, 250 addresses", |aim| Box::pin(flood(aim, Port::Tls, 250))),
        on_plain("silent connections", |aim| Box::pin(silence(aim, Port::Plain))),
        on_tls("silent connections", |aim| Box::pin(silence(aim, Port::Tls))),
        on_plain("stalled requests, 1 address", |aim| Box::pin(stall(aim, Port::Plain, 1))),
        on_plain("stalled requests, 100 addresses", |aim| Box::pin(stall(aim, Port::Plain, 100))),
        on_tls("stalled requests, 100 addresses", |aim| Box::pin(stall(aim, Port::Tls, 100))),
        on_plain("slow heads", |aim| Box::pin(slow_heads(aim, Port::Plain))),
        on_tls("slow heads", |aim| Box::pin(slow_heads(aim, Port::Tls))),
        on_plain("slow bodies of PUT /-/log", |aim| Box::pin(slow_bodies(aim))),
        on_plain("stalled bodies of PUT /-/log", |aim| Box::pin(stalled_bodies(aim))),
        on_plain("slow readers of /metrics", |aim| Box::pin(slow_readers(aim, "/metrics"))),
        on_plain("slow readers of the JSON API", |aim| {
            Box::pin(slow_readers(aim, "/api/v1/decisions"))
        }),
    ]
}

fn handshakes() -> Vec<Attack> {
    use connections::{
        forged_handshakes, half_handshakes, handshakes, malformed_records, no_handshakes,
        slow_handshakes,
    };
    // Bytes before a handshake go over the bare connection of the TLS port.
    async fn bare(aim: Arc<Aim>, payloads: Vec<Vec<u8>>) {
        let payloads: Arc<[Vec<u8>]> = payloads.into();
        swarm(aim, 16, move |aim, worker| {
            let payloads = Arc::clone(&payloads);
            async move {
                let from = address(worker);
                let Some(stream) = aim.connect(Port::Tls, from).await else { return };
                aim.exchange(stream, &payloads[usize::from(worker) % payloads.len()]).await;
            }
        })
        .await;
    }
    vec![
        on_tls("half-open handshakes", |aim| Box::pin(half_handshakes(aim))),
        on_tls("handshakes byte by byte", |aim| Box::pin(slow_handshakes(aim))),
        on_tls("handshake flood, 1 address", |aim| Box::pin(handshakes(aim, 1))),
        on_tls("handshake flood, 250 addresses", |aim| Box::pin(handshakes(aim, 250))),
        on_tls("handshake flood with forged certificates", |aim| Box::pin(forged_handshakes(aim))),
        on_tls("no TLS at all", |aim| Box::pin(bare(aim, no_handshakes()))),
        on_tls("malformed TLS records", |aim| Box::pin(bare(aim, malformed_records()))),
    ]
}

fn requests() -> Vec<Attack> {
    vec![
        Attack {
            permits: refused,
            ..on_plain("header of 1 MiB", |aim| Box::pin(volley(aim, PLAIN, http1::large_header())))
        },
        Attack {
            permits: refused,
            ..on_tls("header of 1 MiB", |aim| Box::pin(volley(aim, TLS, http1::large_header())))
        },
        Attack {
            permits: refused,
            ..on_plain("8,000 and 100,000 headers", |aim| {
                Box::pin(volley(aim, PLAIN, http1::many_headers()))
            })
        },
        Attack {
            permits: refused,
            ..on_tls("8,000 and 100,000 headers", |aim| {
                Box::pin(volley(aim, TLS, http1::many_headers()))
            })
        },
        Attack {
            permits: refused,
            ..on_plain("paths of 60 KB and 1 MiB", |aim| {
                Box::pin(volley(aim, PLAIN, http1::long_targets()))
            })
        },
        on_plain("5,000 pipelined requests", |aim| {
            Box::pin(volley(aim, PLAIN, http1::pipelined()))
        }),
        on_tls("5,000 pipelined requests", |aim| Box::pin(volley(aim, TLS, http1::pipelined()))),
        on_plain("the largest pages, pipelined", |aim| {
            Box::pin(volley(aim, PLAIN, http1::expensive()))
        }),
        Attack {
            permits: refused,
            ..on_plain("request smuggling", |aim| Box::pin(volley(aim, PLAIN, http1::smuggled())))
        },
        on_plain("requests for proxies", |aim| Box::pin(volley(aim, PLAIN, http1::for_proxies()))),
        on_plain("paths that are no UTF-8", |aim| {
            Box::pin(volley(aim, PLAIN, http1::broken_paths()))
        }),
        on_plain("hostile queries of the JSON API", |aim| {
            Box::pin(volley(aim, PLAIN, http1::hostile_queries()))
        }),
        on_tls("hostile selectors through the front proxy", |aim| {
            let proxy = Volley { identity: Identity::FrontProxy, ..TLS };
            Box::pin(volley(aim, proxy, http1::hostile_selectors()))
        }),
    ]
}

fn changes() -> Vec<Attack> {
    vec![
        Attack {
            permits: forbidden,
            ..on_plain("DNS rebinding", |aim| Box::pin(volley(aim, PLAIN, http1::rebound())))
        },
        Attack {
            permits: forbidden,
            ..on_plain("cross-site POST /-/reload", |aim| {
                Box::pin(volley(aim, NEAR, http1::cross_site()))
            })
        },
        Attack {
            permits: forbidden,
            ..on_plain("changes by another pod", |aim| {
                Box::pin(volley(aim, PLAIN, http1::foreign_changes()))
            })
        },
        on_plain("permitted reloads without pause", |aim| {
            Box::pin(volley(aim, NEAR, http1::reloads()))
        }),
        on_plain("log filters with regular expressions", |aim| {
            Box::pin(volley(aim, NEAR, http1::regex_filters()))
        }),
        on_plain("log filters of 4 KiB and 1 MiB", |aim| {
            Box::pin(volley(aim, NEAR, http1::large_filters()))
        }),
        on_plain("log filter `trace`, and requests", |aim| {
            Box::pin(volley(aim, NEAR, http1::trace_filter()))
        }),
        on_plain("endless bodies of PUT /-/log", |aim| {
            Box::pin(volley(aim, NEAR, http1::endless_bodies()))
        }),
    ]
}

fn streams() -> Vec<Attack> {
    vec![
        on_tls("HTTP/2 rapid reset", |aim| Box::pin(volley(aim, H2, http2::rapid_reset()))),
        on_tls("HTTP/2 resets by the server", |aim| {
            Box::pin(volley(aim, H2, http2::made_you_reset()))
        }),
        on_tls("HTTP/2 CONTINUATION flood", |aim| Box::pin(volley(aim, H2, http2::continuation()))),
        on_tls("HPACK bomb", |aim| Box::pin(volley(aim, H2, http2::hpack_bomb()))),
        on_tls("broken HPACK", |aim| Box::pin(volley(aim, H2, http2::broken_hpack()))),
        on_tls("HTTP/2 window of zero", |aim| Box::pin(volley(aim, H2, http2::zero_window()))),
        on_tls("HTTP/2 window updates", |aim| Box::pin(volley(aim, H2, http2::window_updates()))),
        on_tls("HTTP/2 SETTINGS flood, unread", |aim| {
            Box::pin(volley(aim, DEAF_H2, http2::settings()))
        }),
        on_tls("HTTP/2 PING flood, unread", |aim| Box::pin(volley(aim, DEAF_H2, http2::pings()))),
        on_tls("HTTP/2 stream exhaustion", |aim| Box::pin(volley(aim, H2, http2::open_streams()))),
        on_tls("HTTP/2 empty DATA flood", |aim| Box::pin(volley(aim, H2, http2::empty_data()))),
        on_tls("HTTP/2 PRIORITY and unknown frames", |aim| {
            Box::pin(volley(aim, H2, http2::priorities()))
        }),
        on_tls("broken HTTP/2 frames", |aim| Box::pin(volley(aim, H2, http2::broken_frames()))),
    ]
}

fn calls() -> Vec<Attack> {
    let attacks = [
        on_plain("gRPC rapid reset", |aim| Box::pin(volley(aim, GRPC, grpc::rapid_reset()))),
        on_plain("gRPC stream flood", |aim| Box::pin(volley(aim, GRPC, grpc::stream_flood()))),
        on_plain("gRPC oversized messages", |aim| Box::pin(volley(aim, GRPC, grpc::oversized()))),
        on_plain("gRPC malformed messages", |aim| Box::pin(volley(aim, GRPC, grpc::malformed()))),
        on_plain("gRPC slow messages", |aim| Box::pin(grpc::slow_messages(aim))),
    ];
    attacks.map(|attack| Attack { port: "gRPC", ..attack }).to_vec()
}

fn identities() -> Vec<Attack> {
    let attacks = [
        on_tls("forged X-Remote-User, no certificate", |aim| {
            Box::pin(volley(aim, TLS, http1::forged_users()))
        }),
        on_tls("forged X-Remote-User, another authority's certificate", |aim| {
            let forger = Volley { identity: Identity::Forger, ..TLS };
            Box::pin(volley(aim, forger, http1::forged_users()))
        }),
        on_tls("forged X-Remote-User, a certificate of another name", |aim| {
            let misnamed = Volley { identity: Identity::Misnamed, ..TLS };
            Box::pin(volley(aim, misnamed, http1::forged_users()))
        }),
    ];
    attacks.map(|attack| Attack { permits: unauthorized, ..attack }).to_vec()
}

fn replicas() -> Vec<Attack> {
    vec![
        by_replicas("gzip bomb as a page", 4, pages::gzip_bomb),
        by_replicas("page of 2 GiB", 4, pages::huge),
        by_replicas("endless line", 4, pages::endless_line),
        by_replicas("a byte each 10 ms", 32, pages::drip),
        by_replicas("1 TB announced, 4 bytes sent", 32, pages::unkept_promise),
        by_replicas("endless headers", 4, pages::endless_headers),
        by_replicas("page of 1,000,000 samples", 4, pages::million_samples),
        by_replicas("page of 100,000 ranks", 4, pages::many_series),
        by_replicas("hostile label values", 4, pages::hostile_labels),
        by_replicas("binary page", 4, pages::binary),
        by_replicas("redirects", 32, pages::redirect),
        // Longer, because memory that is not given back adds up.
        Attack { seconds: 20, ..by_replicas("128 pages of 7 MiB at once", 128, pages::large) },
        Attack {
            seconds: 20,
            ..by_replicas("the same of unknown length", 128, pages::large_unannounced)
        },
    ]
}
