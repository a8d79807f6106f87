//! The time to parse a /metrics response: 66 KB of one engine, and 336 KB of eight ranks. Each is
//! read as the first response of a server, and as a later one.
//!
//! The goals are 20 and 100 microseconds, so that scraping a thousand replicas every five seconds
//! costs less than 0.5% of a core.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flate2::read::GzDecoder;
use plimsoll::collect::exposition::{LayoutMemory, read};

fn page(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/pages/{name}.txt.gz", env!("CARGO_MANIFEST_DIR"));
    let mut body = Vec::new();
    let file = File::open(&path).expect("the page is in the repository");
    GzDecoder::new(file).read_to_end(&mut body).expect("the page is gzip");
    body
}

fn pages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("exposition");
    for (label, name) in
        [("one engine", "vllm-0.33.0-dp1-single"), ("eight ranks", "vllm-0.33.0-dp8-multi")]
    {
        let body = page(name);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(label, |bencher| {
            bencher.iter(|| read(black_box(&body), None).expect("the page can be read"));
        });
        group.bench_function(format!("{label}, later pages"), |bencher| {
            let mut memory = LayoutMemory::default();
            bencher.iter(|| memory.read(black_box(&body), None).expect("the page can be read"));
        });
    }
    group.finish();
}

criterion_group!(benches, pages);
criterion_main!(benches);
