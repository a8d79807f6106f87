//! Plimsoll without any scale-down: the most requests that its forecast could have served.
//!
//! # Model
//!
//! The scenario is unchanged, except that the HPA's `behavior.scaleDown.selectPolicy` is
//! `Disabled`. KEDA still scales between zero and one.
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
