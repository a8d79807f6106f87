//! Plimsoll that never scales down: the most that its foresight could have served.
//!
//! # Model
//!
//! The scenario as it is, but the HPA's `behavior.scaleDown.selectPolicy` is `Disabled`. What KEDA
//! does between zero and one stays.
//!
//! # Source
//!
//! Kubernetes 1.36, "Horizontal Pod Autoscaling", "Disable scale-down".

use crate::simulate::scenario::{Actuator, Keda, Variant};
use plimsoll_core::decide::enforce::Select;

/// Keeps a variant's HPA from scaling down.
pub(crate) fn never_down(variant: &mut Variant) {
    if let Actuator::Hpa(hpa) | Actuator::Keda(Keda { hpa, .. }) = &mut variant.actuator {
        hpa.settings.down.select = Select::Disabled;
    }
}
