//! The sections of pools.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::file::scrape::ClientTlsKeys;
use crate::config::file::zero::WAKE_INTERVALS;
use plimsoll_core::pipeline::pools::PoolSource;
use plimsoll_core::settings;
use plimsoll_core::settings::{Written, hours, minutes, secs};
use plimsoll_core::units::{Replicas, Seconds};

const COUNTS: RangeInclusive<u32> = 0..=Replicas::LIMIT.count();
const MAXIMA: RangeInclusive<u32> = 1..=Replicas::LIMIT.count();

settings! {
    /// A variant whose replicas each serve several `LoRA` adapters or models.
    pub struct PoolKeys {
        /// Source of the copies: `pages` for the adapters of vLLM, or `seldon` for the `Model`
        /// objects of a `Server` of Seldon Core 2.
        source: PoolSource = PoolSource::Pages;

        /// Adapters that a replica serves in one step (`--max-loras`); default: the value in
        /// its metrics.
        // More than vLLM allows (`--max-loras` up to a few hundred on the largest cards).
        max_loras: Option<u32>, in 1..=4096;

        /// Copies of adapters, unless `adapters` has their own.
        copies: CopyKeys;

        /// Declarations of single adapters, by the name that requests ask for.
        adapters: BTreeMap<String, Option<Written<AdapterKeys>>>;

        /// The gateway in front of the replicas, whose count of requests decides the copies of each
        /// adapter.
        #[serde(skip_serializing_if = "Option::is_none")]
        gateway: Option<PoolGatewayKeys>;

        /// Time without a request after which an adapter needs no copy, unless `copies` or `min` asks
        /// for one.
        // Long enough for an adapter that is requested a few times per hour.
        idle_after: Seconds = minutes(10), in secs(1)..=hours(24);

        /// Packing of the pool on fewer replicas.
        packing: PackingKeys;
    }

    /// Copies of an adapter.
    #[derive(Copy)]
    pub struct CopyKeys {
        /// The fewest, even without requests; of an undeclared adapter, from its first request since
        /// the daemon started.
        min: u32 = 0, in COUNTS;

        /// The most; without it, there is no limit.
        max: Option<u32>, in MAXIMA;
    }

    /// The gateway in front of a pool's replicas.
    pub struct PoolGatewayKeys {
        /// The `/metrics` URL of its endpoint picker.
        url: String,
            required "is missing: the copies of adapters follow the requests that it counts";

        /// Time between two readings.
        interval: Duration = secs(5), in WAKE_INTERVALS;

        /// TLS of the URL; needs `https`.
        #[serde(skip_serializing_if = "Option::is_none")]
        tls: Option<ClientTlsKeys>;

        /// File with a bearer token for the URL, read again as it rotates.
        #[serde(skip_serializing_if = "Option::is_none")]
        bearer_token_file: Option<PathBuf>;
    }

    /// The declaration of one adapter.
    #[derive(Copy)]
    pub struct AdapterKeys {
        /// Copies at any number of requests.
        copies: Option<Replicas>, in COUNTS;

        /// The fewest copies, even without requests; without it, `copies.min` of the pool.
        min: Option<u32>, in COUNTS;

        /// The most copies; without it, `copies.max` of the pool.
        max: Option<u32>, in MAXIMA;
    }

    /// Packing of a pool on fewer replicas.
    // The window is that of an HPA. One packing per half hour is worth a few dozen loads of seconds
    // each. The limit on copies is the number that an engine loads in a minute.
    #[derive(Copy)]
    pub struct PackingKeys {
        /// Lets fewer replicas be enough by moving copies that are in use.
        enabled: bool = true;

        /// Time for which fewer replicas must have been enough.
        window: Seconds = minutes(5), in secs(1)..=hours(1);

        /// Shortest time between two packings.
        interval: Option<Seconds> = Some(Seconds::literal(1800)), in secs(1)..=hours(24);

        /// Copies that one packing may move.
        max_moved: Option<Replicas> = Some(Replicas::saturating(16)), in 1..=10_000;
    }
}
