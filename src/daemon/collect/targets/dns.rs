//! Lists of targets in DNS.
//!
//! A name that does not exist, or has no records, is a failure and not an empty list: a cluster's
//! name server answers in the same way while it has not heard of a service yet, and so does one
//! that is asked in the wrong search domain.

use std::net::{IpAddr, SocketAddr};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};

use crate::collect::targets::{Address, ListError, Record};

/// Who is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameServer {
    /// The servers and search domains that the system is configured with.
    #[default]
    System,
    /// This server, over UDP and where an answer is too long over TCP.
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

    /// The addresses of all names.
    ///
    /// # Errors
    ///
    /// The lookup of one of the names failed or found nothing; a list of the others is not given.
    pub(crate) async fn read(&mut self) -> Result<Vec<Address>, ListError> {
        let resolver = match &mut self.client {
            Some(resolver) => resolver,
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
    // We ask when we want to know; an answer that is older than our own list is of no use.
    options.cache_size = 0;
    // Without it answers are cut at 512 bytes, about 25 addresses, and asked for again over TCP.
    options.edns0 = true;
    builder.build()
}

/// The addresses of one name.
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
        let name = name.to_owned();
        match error {
            error if error.is_no_records_found() => ListError::NoRecords { name, record },
            NetError::Timeout | NetError::NoConnections => ListError::NoAnswer { name },
            error => ListError::Lookup { name, detail: error.to_string() },
        }
    })?;
    // Beside what was asked for, the answer holds the aliases that led there.
    let addresses = answer.answers().iter().filter_map(|answer| match (record, &answer.data) {
        (Record::A, RData::A(ip)) => Some(Ok(Address::from_ip(IpAddr::V4(ip.0), port))),
        (Record::Aaaa, RData::AAAA(ip)) => Some(Ok(Address::from_ip(IpAddr::V6(ip.0), port))),
        (Record::Srv, RData::SRV(srv)) => Some(service(&srv.target.to_utf8(), srv.port)),
        (Record::A | Record::Aaaa | Record::Srv, _) => None,
    });
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    if addresses.is_empty() {
        return Err(ListError::NoRecords { name: name.to_owned(), record });
    }
    Ok(addresses)
}

fn service(host: &str, port: u16) -> Result<Address, ListError> {
    Address::from_host(host, Some(port))
        .map_err(|source| ListError::Address { text: format!("{host}:{port}"), source })
}
