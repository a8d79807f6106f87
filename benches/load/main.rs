//! The cost of Plimsoll under load, measured from outside: it runs as the process that users run.
//!
//! ```text
//! cargo bench --bench load -- scrape   # 1,000 targets each second, for a minute
//! cargo bench --bench load -- scrape 4000 4 5s   # 4,000, four of a variant, each 5 seconds
//! cargo bench --bench load -- lag      # from a gauge's change to the changed number
//! cargo bench --bench load -- start    # from the start of the process to ready
//! cargo bench --bench load -- api      # 1,000 requests/s for 10,000 external metrics over TLS
//! ```
//!
//! Servers and clients run in other processes than the measured one. Baselines run in the same
//! call: a bare TLS server for `api`, and for `scrape` a Prometheus, if the environment variable
//! `PROMETHEUS` names one. `PLIMSOLL` selects another program to measure than this build's.

#![expect(clippy::print_stdout, reason = "the results are what this prints")]

mod api;
mod daemon;
mod engines;
mod process;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match words.as_slice() {
            [] => {
                daemon::start().await?;
                daemon::lag().await?;
                daemon::scrape(&[]).await?;
                api::load(&[]).await
            }
            ["scrape", arguments @ ..] => daemon::scrape(arguments).await,
            ["lag"] => daemon::lag().await,
            ["start"] => daemon::start().await,
            ["api", arguments @ ..] => api::load(arguments).await,
            // The roles of the child processes.
            ["serve-engines"] => engines::serve().await,
            ["serve-api", folder] => api::serve_api(folder).await,
            ["serve-constant", folder, body] => api::serve_constant(folder, body).await,
            other => bail!("there is no load {other:?}; there are scrape, lag, start and api"),
        }
    })
}
