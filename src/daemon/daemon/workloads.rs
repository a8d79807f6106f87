//! Logs doubts about an engine's start arguments once, and their end.

use std::collections::BTreeMap;

use tracing::{info, warn};

use crate::publish::Published;
use plimsoll_core::fleet::VariantKey;

/// The last logged doubts per variant.
#[derive(Default)]
pub(crate) struct WorkloadDoubts(BTreeMap<VariantKey, String>);

impl WorkloadDoubts {
    /// Logs the changes.
    pub(crate) fn say(&mut self, published: &Published) {
        let mut open = BTreeMap::new();
        for (key, report) in &published.workloads {
            let namespace = &key.namespace;
            let variant = &key.variant;
            let engine = report.engine.as_ref();
            let Some(engine) = engine.filter(|engine| engine.is_doubtful()) else {
                if self.0.contains_key(key) {
                    info!(%namespace, %variant, "Engine arguments can be read again");
                }
                continue;
            };

            let text = engine.to_string();
            if self.0.get(key) != Some(&text) {
                warn!(
                    %namespace,
                    %variant,
                    reason = engine.label(),
                    "Engine arguments are not used: {text}"
                );
            }

            open.insert(key.clone(), text);
        }

        self.0 = open;
    }
}
