//! The Cluster Autoscaler's prices of machines on GCE, and of what asks for them.
//!
//! Plimsoll has no price model: what a replica costs is configured. The original's stands here, with
//! its defects, because its ranking starts from it: what the library ranks in `price-score-gce` is
//! held against what the pods ask for. The rates are part of each case; those of GCE that every pod
//! is priced by are [`GCE`].
//!
//! ```text
//! machine = listed, or (cpus * a + memory * b + ephemeral storage * c) * spot factor
//!           + boot disk + local SSD + GPUs
//! pod     = cpus * a + memory * b + ephemeral storage * c + GPUs * g
//! ```

use serde_json::Value;

use super::Outcome;
use super::fields::list;
use super::rank::same;

/// 2^30.
const GIB: f64 = 1_073_741_824.0;

/// What a spot CPU costs against one on demand, where nothing is listed for the family.
const SPOT_FACTOR: f64 = 0.006_98 / 0.033_174;

/// The boot disk of a node that does not say how large it is.
const BOOT_DISK_GIB: f64 = 100.0;

/// What a CPU, a GiB of memory, a GiB of disk and a GPU cost for an hour on GCE, whatever the
/// machine.
const GCE: Rates = Rates { cpu: 0.033_174, memory: 0.004_446, disk: 0.1 / 720.0, gpu: 0.7 };

/// What resources cost for an hour, in dollars.
struct Rates {
    cpu: f64,
    memory: f64,
    disk: f64,
    gpu: f64,
}

/// What a pod asks for.
#[derive(Clone, Copy, Default)]
struct Requests {
    cpu_milli: f64,
    memory_bytes: f64,
    storage_bytes: f64,
    nvidia_gpus: f64,
}

/// `node-price`: the price of a machine for a length of time.
pub(super) fn node(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let machine = input["node"]["machine_type"].as_str().unwrap_or_default();
    if (family(machine), is_custom(machine))
        != (output["machine_family"].as_str().unwrap(), output["machine_is_custom"] == true)
    {
        return Outcome::Failed(format!("{machine} is of the family {}", family(machine)));
    }
    let price = machine_per_hour(&input["node"], &input["rates"]) * hours(input);
    same(&[("price", price, &output["price_usd"])])
}

/// `pod-price`: what a pod would cost on a machine that fits it perfectly.
pub(super) fn pod(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let requests = Requests::of_pod(&input["pod"]);
    let rate = |name: &str| input["rates"][name].as_f64().unwrap_or(0.0);
    let rates = Rates {
        cpu: rate("base_cpu_usd_per_cpu_hour"),
        memory: rate("base_memory_usd_per_gib_hour"),
        disk: rate("pd_balanced_usd_per_gib_hour"),
        gpu: rate("base_gpu_usd_per_gpu_hour"),
    };
    let price = requests.per_hour(&rates) * hours(input);
    let Requests { cpu_milli, memory_bytes, storage_bytes, nvidia_gpus } = requests;
    let effective = &output["effective_requests"];
    same(&[
        ("cpu", cpu_milli, &effective["cpu_milli"]),
        ("memory", memory_bytes, &effective["memory_bytes"]),
        ("storage", storage_bytes, &effective["ephemeral_storage_bytes"]),
        ("GPUs", nvidia_gpus * 1000.0, &effective["nvidia_gpu_milli"]),
        ("price", price, &output["price_usd"]),
    ])
}

/// What a pod costs for an hour on GCE.
pub(super) fn pod_on_gce(pod: &Value) -> f64 {
    Requests::of_pod(pod).per_hour(&GCE)
}

/// The window, in whole minutes.
fn hours(input: &Value) -> f64 {
    (input["window_seconds"].as_f64().unwrap() / 60.0).ceil() / 60.0
}

fn machine_per_hour(node: &Value, rates: &Value) -> f64 {
    let is_spot = node["preemptible_label"] == "true" || node["spot_label"] == "true";
    let by_market = |listed: &Value, on_demand: &str, spot: &str| {
        listed[if is_spot { spot } else { on_demand }].as_f64()
    };
    let listed = by_market(&rates["machine_usd_per_hour"], "on_demand", "spot");
    let frame = listed.unwrap_or_else(|| {
        let factor = if is_spot { spot_factor(node, rates) } else { 1.0 };
        parts_per_hour(node, rates) * factor
    });
    let ssd = &rates["local_ssd_usd_per_gib_hour"];
    let ssd_gib = local_ssds(node) * rates["local_ssd_gib_each"].as_f64().unwrap();
    let gpu = &rates["gpu_usd_per_gpu_hour"];
    let of_type = by_market(gpu, "type_on_demand", "type_spot");
    let gpus = node["capacity_nvidia_gpu_milli"].as_f64().unwrap_or(0.0) / 1000.0;
    frame
        + ssd_gib * by_market(ssd, "on_demand", "spot").unwrap()
        + boot_disk_gib(node)
            * rates["disk_usd_per_gib_hour"]["effective_boot_disk_type"].as_f64().unwrap_or(0.0)
        + gpus * of_type.or(gpu["base"].as_f64()).unwrap()
}

/// The rates of the family where there are any, else the base rates.
fn parts_per_hour(node: &Value, rates: &Value) -> f64 {
    let of_family = of_family(node);
    let rate = |rates: &Value| rates[of_family].as_f64().or(rates["base"].as_f64()).unwrap();
    let capacity = |name: &str| node[name].as_f64().unwrap_or(0.0);
    let storage = rates["disk_usd_per_gib_hour"]["pd_balanced"].as_f64().unwrap_or(0.0);
    capacity("capacity_cpu_milli") / 1000.0 * rate(&rates["cpu_usd_per_cpu_hour"])
        + capacity("capacity_memory_bytes") / GIB * rate(&rates["memory_usd_per_gib_hour"])
        + capacity("capacity_ephemeral_storage_bytes") / GIB * storage
}

/// A node that does not say what it is gets no factor.
fn spot_factor(node: &Value, rates: &Value) -> f64 {
    if node["machine_type"].is_null() {
        return 1.0;
    }
    rates["spot_price_factor"][of_family(node)].as_f64().unwrap_or(SPOT_FACTOR)
}

fn of_family(node: &Value) -> &'static str {
    let machine = node["machine_type"].as_str().unwrap_or_default();
    if is_custom(machine) { "family_custom" } else { "family_predefined" }
}

/// The first word of the name of a machine type, if it has several.
fn family(machine: &str) -> &str {
    match machine.split_once('-') {
        Some(("f1" | "g1" | "custom", _)) => "n1",
        Some((family, _)) => family,
        None => "",
    }
}

/// Whether the first or second word says so.
fn is_custom(machine: &str) -> bool {
    machine.contains('-') && machine.split('-').take(2).any(|word| word == "custom")
}

/// Local SSDs that serve as ephemeral storage; what is no number is none.
fn local_ssds(node: &Value) -> f64 {
    let says = |name: &str| node[name] == "true";
    let serves = says("local_ssd_ephemeral_label") || says("local_ssd_ephemeral_annotation");
    let count = node["local_ssd_count_annotation"].as_str().and_then(|text| text.parse().ok());
    count.filter(|_| serves).unwrap_or(0.0)
}

fn boot_disk_gib(node: &Value) -> f64 {
    let written = node["boot_disk_size_gib_annotation"].as_str();
    let size: Option<f64> = written.and_then(|text| text.parse().ok());
    size.filter(|size| *size != 0.0).unwrap_or(BOOT_DISK_GIB)
}

impl Requests {
    /// As Kubernetes reckons: containers and sidecars run together, each initialising container runs
    /// beside the sidecars before it, and what the pod as a whole asks for counts instead.
    fn of_pod(pod: &Value) -> Self {
        let mut running = Self::default();
        for container in list(pod, "containers") {
            running = running.with(Self::new(container));
        }
        let (mut sidecars, mut starting) = (Self::default(), Self::default());
        for container in list(pod, "init_containers") {
            let own = Self::new(container);
            starting = starting.max(sidecars.with(own));
            if container["restart_always"] == true {
                sidecars = sidecars.with(own);
            }
        }
        let mut effective = running.with(sidecars).max(starting);
        let whole = &pod["pod_level_requests"];
        effective.cpu_milli = whole["cpu_milli"].as_f64().unwrap_or(effective.cpu_milli);
        effective.memory_bytes = whole["memory_bytes"].as_f64().unwrap_or(effective.memory_bytes);
        effective.with(Self::new(&pod["overhead"]))
    }

    fn per_hour(self, rates: &Rates) -> f64 {
        let Self { cpu_milli, memory_bytes, storage_bytes, nvidia_gpus } = self;
        cpu_milli / 1000.0 * rates.cpu
            + memory_bytes / GIB * rates.memory
            + storage_bytes / GIB * rates.disk
            + nvidia_gpus * rates.gpu
    }

    fn new(from: &Value) -> Self {
        let number = |name: &str| from[name].as_f64().unwrap_or(0.0);
        Self {
            cpu_milli: number("cpu_milli"),
            memory_bytes: number("memory_bytes"),
            storage_bytes: number("ephemeral_storage_bytes"),
            nvidia_gpus: number("nvidia_gpu"),
        }
    }

    fn with(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    fn max(self, other: Self) -> Self {
        self.each(other, f64::max)
    }

    fn each(self, other: Self, of: fn(f64, f64) -> f64) -> Self {
        Self {
            cpu_milli: of(self.cpu_milli, other.cpu_milli),
            memory_bytes: of(self.memory_bytes, other.memory_bytes),
            storage_bytes: of(self.storage_bytes, other.storage_bytes),
            nvidia_gpus: of(self.nvidia_gpus, other.nvidia_gpus),
        }
    }
}
