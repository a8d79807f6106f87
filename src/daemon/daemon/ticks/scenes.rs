//! Requests for the scene of a tick, from which it can be decided again.
//!
//! The loop copies its state only for a tick that was asked for, and once for all requests. So
//! nothing is copied without a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;

use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::repeat::TickScene;
use plimsoll_core::pipeline::{DesiredReplicas, Pipeline};

/// The time in which a tick must come. A request makes the loop tick at once.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The channel that takes the scene of the next tick.
pub(crate) type SceneRequest = SyncSender<Arc<TickScene>>;

/// The requests that wait for the next tick.
#[derive(Default)]
pub(super) struct SceneRequests(Vec<SceneRequest>);

// === impl SceneRequests ===

impl SceneRequests {
    pub(super) fn add(&mut self, request: SceneRequest) {
        self.0.push(request);
    }

    /// Gives the scene of the tick that follows to every request.
    pub(super) fn answer(
        &mut self,
        pipeline: &Pipeline,
        now: Timestamp,
        inputs: &Inputs,
        follows: Option<&BTreeMap<VariantKey, DesiredReplicas>>,
    ) {
        if self.0.is_empty() {
            return;
        }

        let scene = Arc::new(TickScene {
            pipeline: pipeline.clone(),
            now,
            inputs: inputs.clone(),
            follows: follows.cloned(),
        });
        for request in self.0.drain(..) {
            let _asker_may_be_gone = request.try_send(Arc::clone(&scene));
        }
    }
}

/// Waits for the scene of the next tick; `None` if the loop does not tick in time. It must run on a
/// thread that may block.
pub(crate) fn next(requests: &mpsc::Sender<SceneRequest>) -> Option<Arc<TickScene>> {
    let (reply, scene) = sync_channel(1);
    requests.try_send(reply).ok()?;
    scene.recv_timeout(WAIT_MAX).ok()
}
