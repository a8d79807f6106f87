//! The names of accelerators.
//!
//! Nodes and workloads name one accelerator in several ways: `NVIDIA-H100-80GB-HBM3` on a node,
//! `H100` in a configuration. [`normalised`] gives both the same name and keeps different devices
//! apart: two cards of one brand, a partition and the whole device, a shared device and a dedicated
//! one.

use crate::fleet::Accelerator;

/// Words that name a vendor or a brand instead of a card.
const BRANDS: [&str; 6] = ["NVIDIA", "AMD", "INTEL", "TESLA", "GEFORCE", "INSTINCT"];

/// Words that start the description of a card's form factor or memory; digits may follow.
const FORMS: [&str; 6] = ["SXM", "PCIE", "NVL", "HBM", "OAM", "GENERATION"];

/// Returns the normalized name of an accelerator.
///
/// Vendor and brand are removed. So is everything from the first word that describes the card's
/// form factor or memory: `NVIDIA-A100-SXM4-80GB` is `A100`, `NVIDIA-GeForce-RTX-4090` is
/// `RTX-4090`, `Intel-Gaudi-2-96GB` is `Gaudi-2`. A partition keeps its profile and a shared device
/// its mark: `NVIDIA-A100-SXM4-80GB-MIG-1g.10gb` is `A100-MIG-1g.10gb`, `Tesla-T4-SHARED` is
/// `T4-SHARED`. A name that would become empty stays as it is.
///
/// # Source
///
/// The labels `nvidia.com/gpu.product`, `amd.com/gpu.product-name` and `gpu.intel.com/product`, as
/// their feature discovery writes them.
#[must_use]
pub fn normalised(product: &Accelerator) -> Accelerator {
    let words: Vec<&str> =
        product.as_str().split(['-', '_', ' ']).filter(|word| !word.is_empty()).collect();
    let marked = words
        .iter()
        .position(|word| word.eq_ignore_ascii_case("MIG") || word.eq_ignore_ascii_case("SHARED"));
    let (card, mark) = words.split_at(marked.unwrap_or(words.len()));

    let name: Vec<&str> = card
        .iter()
        .copied()
        .skip_while(|word| is_brand(word))
        .take_while(|word| !is_form(word))
        .collect();
    if name.is_empty() {
        return product.clone();
    }

    let text = [name.as_slice(), mark].concat().join("-");
    Accelerator::new(&text).unwrap_or_else(|| product.clone())
}

/// Returns true if a word names a vendor or a brand.
fn is_brand(word: &str) -> bool {
    BRANDS.iter().any(|brand| word.eq_ignore_ascii_case(brand))
}

/// Returns true if a word describes a card's form factor or memory.
fn is_form(word: &str) -> bool {
    let upper = word.to_ascii_uppercase();
    let memory = upper.trim_end_matches('B').trim_end_matches('I').strip_suffix('G');
    let is_memory = memory.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_memory || FORMS.iter().any(|form| upper.starts_with(form))
}
