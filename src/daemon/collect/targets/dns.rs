//! Lists of targets in DNS.
//!
//! A name that does not exist or has no records is a failure and not an empty list. A cluster's
//! name server gives the same response before it learns of a service, and also for a name in the
//! wrong search domain.

use std::net::{IpAddr, SocketAddr};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};

use crate::collect::targets::address::Address;
use crate::collect::targets::source::{ListError, Record};

/// The name server to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameServer {
    /// The system's configured name servers and search domains.
    #[default]
    System,
    /// This server, over UDP, or over TCP if the response is too long.
    At(SocketAddr),
}

/// Names, and the resolver that looks them up.
pub(crate) struct Resolver {
    names: Vec<String>,
    record: Record,
    port: Option<u16>,
    server: NameServer,
    client: Option<TokioResolver>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { names, record, port, server, client: _ } = self;
        f.debug_tuple("Resolver").field(names).field(record).field(port).field(server).finish()
    }
}

impl Resolver {
    pub(crate) const fn new(
        names: Vec<String>,
        record: Record,
        port: Option<u16>,
        server: NameServer,
    ) -> Self {
        Self { names, record, port, server, client: None }
    }

    /// Returns the addresses of all names.
    ///
    /// # Errors
    ///
    /// The lookup of one of the names failed or found no records. The addresses of the others are
    /// not returned.
    pub(crate) async fn read(&mut self) -> Result<Vec<Address>, ListError> {
        let resolver = match &mut self.client {
            Some(built) => built,
            none => none.insert(
                build(self.server)
                    .map_err(|error| ListError::NoResolver { detail: error.to_string() })?,
            ),
        };

        let lookups = self.names.iter().map(|name| look_up(resolver, name, self.record, self.port));
        Ok(futures_util::future::try_join_all(lookups).await?.concat())
    }
}

fn build(server: NameServer) -> Result<TokioResolver, NetError> {
    let mut builder = match server {
        NameServer::System => TokioResolver::builder_tokio()?,
        NameServer::At(address) => {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            for connection in &mut server.connections {
                connection.port = address.port();
            }
            let config = ResolverConfig::from_name_servers(vec![server]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
    };

    let options = builder.options_mut();
    // Each lookup needs the current state. An answer older than the current list is useless.
    options.cache_size = 0;
    // Without EDNS, responses are cut at 512 bytes, about 25 addresses, and requested again over
    // TCP.
    options.edns0 = true;
    builder.build()
}

/// Returns the addresses of one name.
async fn look_up(
    resolver: &TokioResolver,
    name: &str,
    record: Record,
    port: Option<u16>,
) -> Result<Vec<Address>, ListError> {
    let record_type = match record {
        Record::A => RecordType::A,
        Record::Aaaa => RecordType::AAAA,
        Record::Srv => RecordType::SRV,
    };
    let answer = resolver.lookup(name, record_type).await.map_err(|error| {
        let host = name.to_owned();
        match error {
            error if error.is_no_records_found() => ListError::NoRecords { name: host, record },
            NetError::Timeout | NetError::NoConnections => ListError::NoAnswer { name: host },
            error => ListError::Lookup { name: host, detail: error.to_string() },
        }
    })?;

    // The answer contains the requested records and the aliases that led to them.
    let found = answer.answers().iter().filter_map(|answer| match (record, &answer.data) {
        (Record::A, RData::A(ip)) => Some(Ok(Address::from_ip(IpAddr::V4(ip.0), port))),
        (Record::Aaaa, RData::AAAA(ip)) => Some(Ok(Address::from_ip(IpAddr::V6(ip.0), port))),
        (Record::Srv, RData::SRV(srv)) => Some(service(&srv.target.to_utf8(), srv.port)),
        (Record::A | Record::Aaaa | Record::Srv, _) => None,
    });

    let addresses = found.collect::<Result<Vec<_>, _>>()?;
    if addresses.is_empty() {
        return Err(ListError::NoRecords { name: name.to_owned(), record });
    }

    Ok(addresses)
}

fn service(host: &str, port: u16) -> Result<Address, ListError> {
    Address::from_host(host, Some(port))
        .map_err(|source| ListError::Address { text: format!("{host}:{port}"), source })
}
