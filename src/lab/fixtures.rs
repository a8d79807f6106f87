//! Values that several unit tests of this crate share.

use plimsoll_core::fleet::{
    Bounds, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll_core::units::{CostPerHour, Fraction, Replicas};

/// A variant of model `m` in `shop` with at most two replicas.
pub(crate) fn variant(name: &str) -> VariantSpec {
    let namespace = Namespace::new("shop").unwrap();

    VariantSpec {
        key: VariantKey { namespace, variant: VariantName::new(name).unwrap() },
        model: ModelName::new("m").unwrap(),
        accelerator: None,
        gpus: None,
        role: Role::Both,
        cost: CostPerHour::ZERO,
        list_price: None,
        mismatch: Fraction::ONE,
        start_time: None,
        bounds: Bounds::new(Replicas::ONE, Replicas::new(2)).unwrap(),
    }
}
