//! Accelerators as Kubernetes resources: their names, their products, and the requests of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use plimsoll_core::fleet::{Accelerator, Resource};
use plimsoll_core::units::Gpus;

/// Resources that are accelerators. An entry that ends with `-` or `Ascend` is a prefix.
const ACCELERATORS: [&str; 11] = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
    "huawei.com/Ascend",
];

/// The resource of a whole NVIDIA GPU.
const NVIDIA: &str = "nvidia.com/gpu";
/// Prefix of the resources of NVIDIA GPU partitions.
const MIG: &str = "nvidia.com/mig-";

/// Returns true if this resource is an accelerator.
pub(super) fn is_accelerator(resource: &str) -> bool {
    ACCELERATORS.iter().any(|known| match *known {
        prefix if prefix.ends_with('-') || prefix.ends_with("Ascend") => {
            resource.starts_with(prefix)
        }
        whole => resource == whole,
    })
}

pub(super) fn accelerators(
    quantities: &BTreeMap<String, Quantity>,
) -> impl Iterator<Item = (Resource, Gpus)> + '_ {
    let known = quantities.iter().filter(|(name, _)| is_accelerator(name));
    known
        .filter_map(|(name, quantity)| Some((Resource::new(name)?, count(quantity))))
        .filter(|(_, gpus)| *gpus > Gpus::ZERO)
}

/// Sums the accelerators that a pod requests. These are all of its containers together, or the
/// largest init container, in each case with the init containers that keep running.
///
/// Kubernetes does not overcommit these resources, so a limit implies an equal request and vice
/// versa.
pub(crate) fn asked(spec: &core::PodSpec) -> BTreeMap<Resource, Gpus> {
    let mut all: BTreeMap<Resource, Gpus> = BTreeMap::new();
    let mut most: BTreeMap<Resource, Gpus> = BTreeMap::new();
    for container in spec.init_containers.iter().flatten() {
        let stays = container.restart_policy.as_deref() == Some("Always");
        for (resource, gpus) in asked_by(container) {
            let beside = all.get(&resource).copied().unwrap_or_default();
            let peak = most.entry(resource.clone()).or_default();
            *peak = (*peak).max(beside + gpus);
            if stays {
                *all.entry(resource).or_default() += gpus;
            }
        }
    }

    for container in &spec.containers {
        for (resource, gpus) in asked_by(container) {
            *all.entry(resource).or_default() += gpus;
        }
    }

    for (resource, gpus) in most {
        let sum = all.entry(resource).or_default();
        *sum = (*sum).max(gpus);
    }

    all
}

fn asked_by(container: &core::Container) -> BTreeMap<Resource, Gpus> {
    let Some(resources) = &container.resources else { return BTreeMap::new() };
    let asked = resources.requests.as_ref().or(resources.limits.as_ref());
    let limits = resources.limits.as_ref();
    asked.into_iter().chain(limits).flat_map(accelerators).collect()
}

/// Returns the product that a node's labels name for a resource, if they do.
pub(crate) fn product(resource: &str, labels: &BTreeMap<String, String>) -> Option<Accelerator> {
    let text = match resource {
        NVIDIA => nvidia_product(labels),
        "nvidia.com/gpu.shared" => nvidia_product(labels).map(|product| {
            if product.ends_with("-SHARED") { product } else { format!("{product}-SHARED") }
        }),
        "amd.com/gpu" => label(labels, "amd.com/gpu.product-name").cloned(),
        "gpu.intel.com/i915" | "gpu.intel.com/xe" => {
            label(labels, "gpu.intel.com/product").cloned()
        }
        "google.com/tpu" => label(labels, "cloud.google.com/gke-tpu-accelerator").cloned(),
        other => label(labels, &format!("{other}.product")).cloned().or_else(|| {
            let profile = other.strip_prefix(MIG)?;
            Some(format!("{}-MIG-{profile}", nvidia_product(labels)?))
        }),
    };

    text.as_deref().and_then(Accelerator::new)
}

fn nvidia_product(labels: &BTreeMap<String, String>) -> Option<String> {
    if let Some(product) = label(labels, "nvidia.com/gpu.product") {
        return Some(product.clone());
    }

    // Cloud labels have products in lower case; all other labels have them in upper case.
    let cloud = label(labels, "cloud.google.com/gke-accelerator")
        .or_else(|| label(labels, "karpenter.k8s.aws/instance-gpu-name"));
    cloud.map(|product| product.to_ascii_uppercase())
}

/// Returns the value of a label, unless it is empty.
fn label<'a>(labels: &'a BTreeMap<String, String>, name: &str) -> Option<&'a String> {
    labels.get(name).filter(|text| !text.is_empty())
}

/// Names an accelerator that no label names. The name is the last part of its resource, or the
/// vendor if that part is generic: `intel` of `gpu.intel.com/i915`.
pub(super) fn named_for(resource: &Resource) -> Accelerator {
    let text = resource.as_str();
    let (domain, name) = text.rsplit_once('/').unwrap_or(("", text));
    let vendor = domain.rsplit('.').nth(1).unwrap_or_default();
    let whole = if matches!(name, "gpu" | "i915" | "xe") { vendor } else { name };
    Accelerator::new(whole)
        .unwrap_or_else(|| Accelerator::new("unknown").expect("the text is not empty"))
}

/// Parses a quantity as a count. Devices are whole and are written in digits, so any other text
/// counts as 0.
pub(super) fn count(quantity: &Quantity) -> Gpus {
    let text = quantity.0.as_str();
    let (digits, factor) = text.strip_suffix('k').map_or((text, 1), |digits| (digits, 1000));
    let count: Option<u32> = digits.parse().ok();
    Gpus::new(count.and_then(|count| count.checked_mul(factor)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accelerator_without_a_label_is_named_after_its_resource_or_its_vendor() {
        for (resource, name) in [
            ("nvidia.com/gpu", "nvidia"),
            ("amd.com/gpu", "amd"),
            ("gpu.intel.com/i915", "intel"),
            ("gpu.intel.com/xe", "intel"),
            ("habana.ai/gaudi", "gaudi"),
            ("nvidia.com/mig-1g.10gb", "mig-1g.10gb"),
        ] {
            let named = named_for(&Resource::new(resource).unwrap());
            assert_eq!(named.as_str(), name, "{resource}");
        }
    }
}
