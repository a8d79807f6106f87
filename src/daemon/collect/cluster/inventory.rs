//! Accelerators: the stock of nodes, their use by other pods, quotas, and the use of a replica.
//!
//! If enabled, Plimsoll watches nodes, `ResourceQuota`s and the pods that request accelerators.
//! [`InventoryView::inventory`], which is pure, combines them into an [`Inventory`]. Of a pod, only
//! its node and its accelerator requests are kept. Pods that request no accelerator, the bulk of a
//! cluster's pods, are not kept.
//!
//! [`Inventory`]: plimsoll_core::observe::inventory::Inventory
//! [`InventoryView::inventory`]: crate::collect::cluster::inventory::view::InventoryView::inventory

pub(crate) mod resource;
mod run;
mod view;

pub(crate) use crate::collect::cluster::inventory::run::{AcceleratorInputs, NOT_ENDED, watch};
