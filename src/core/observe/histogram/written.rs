//! Serialized buckets: the edges, and the observations between each edge and the one before it.
//!
//! Buckets are cumulative, so one observation increases all buckets after its own. The differences
//! change only in one number, and the others are the same as in the previous scrape. If adding up
//! does not restore the same bits, as with counts beyond 2^53, the cumulative counts are written.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::observe::exact::Exact;

/// Buckets in their written form, with one of the two lists of counts.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct BucketLists {
    edges: Vec<Exact>,
    /// The observations above the edge before.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<Vec<Exact>>,
    /// All observations up to the edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    up_to: Option<Vec<Exact>>,
}

pub(super) fn serialize<S: Serializer>(
    buckets: &[(f64, f64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let edges = buckets.iter().map(|(edge, _)| Exact(*edge)).collect();
    let counts: Vec<Exact> = buckets.iter().map(|(_, count)| Exact(*count)).collect();
    let within = differences(&counts);
    let up_to = within.is_none().then_some(counts);

    BucketLists { edges, within, up_to }.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(f64, f64)>, D::Error> {
    let written = BucketLists::deserialize(deserializer)?;
    let counts = written.within.as_deref().map(sums).or(written.up_to).unwrap_or_default();

    if written.edges.len() != counts.len() {
        return Err(D::Error::custom("a histogram has as many counts as edges"));
    }
    Ok(written.edges.iter().zip(&counts).map(|(edge, count)| (edge.0, count.0)).collect())
}

/// The difference of each count from the one before; `None` if these do not add up to the same
/// bits.
fn differences(counts: &[Exact]) -> Option<Vec<Exact>> {
    let mut before = 0.0;
    let mut differences = Vec::with_capacity(counts.len());
    for count in counts {
        differences.push(Exact(count.0 - before));
        before = count.0;
    }

    let back = sums(&differences);
    let is_same = back.iter().zip(counts).all(|(back, it)| back.0.to_bits() == it.0.to_bits());
    is_same.then_some(differences)
}

fn sums(differences: &[Exact]) -> Vec<Exact> {
    let mut sum = 0.0;
    let mut sums = Vec::with_capacity(differences.len());
    for difference in differences {
        sum += difference.0;
        sums.push(Exact(sum));
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::observe::histogram::Histogram;

    #[test]
    fn an_observation_is_one_number_however_many_buckets_it_raises() {
        let before = r#"{"sum":0.5,"count":9,"buckets":{"edges":[0.1,1,"+Inf"],"within":[2,3,4]}}"#;
        assert_eq!(text([2.0, 5.0, 9.0]), before);
        let after = before.replace("[2,3,4]", "[3,3,4]").replace(":9,", ":10,");
        assert_eq!(text([3.0, 6.0, 10.0]), after);
    }

    fn text(counts: [f64; 3]) -> String {
        let buckets = [0.1, 1.0, f64::INFINITY].into_iter().zip(counts).collect();
        serde_json::to_string(&Histogram { sum: 0.5, count: counts[2], buckets }).unwrap()
    }

    proptest! {
        #[test]
        fn any_histogram_comes_back_with_the_same_bits(
            sum in prop::num::f64::ANY,
            buckets in prop::collection::vec((prop::num::f64::ANY, any_count()), 0..6),
        ) {
            let histogram = Histogram { sum, count: sum, buckets };
            let text = serde_json::to_string(&histogram).unwrap();
            let back: Histogram = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(bits(&back), bits(&histogram), "{}", text);
        }
    }

    fn any_count() -> impl Strategy<Value = f64> {
        prop_oneof![(0_u32..5).prop_map(f64::from), 0.0..1.0, 1e16..1e18, prop::num::f64::ANY]
    }

    /// The bits of all numbers; the same bits for every NaN.
    fn bits(histogram: &Histogram) -> Vec<u64> {
        let buckets = histogram.buckets.iter().flat_map(|(edge, count)| [*edge, *count]);
        let numbers = [histogram.sum, histogram.count].into_iter().chain(buckets);
        numbers.map(|it| if it.is_nan() { f64::NAN.to_bits() } else { it.to_bits() }).collect()
    }
}
