//! The answer of the query API: decodes JSON into series, one at a time.
//!
//! ```json
//! {"status":"success","data":{"resultType":"matrix","result":[
//!   {"metric":{"__name__":"up","instance":"10.0.0.1:8000"},"values":[[1732220000.125,"1"]]}]}}
//! ```
//!
//! The answer for a thousand replicas has a hundred thousand series, so no tree is built. Each
//! series is passed to the caller as soon as it has been read, in two lists that all series share.
//! Labels are slices of the body unless they contain an escape. Only the body grows with the
//! answer, and a number for each histogram. Unknown fields are skipped, because Prometheus, Thanos,
//! Mimir and `VictoriaMetrics` each add their own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome, cut, shown};
use plimsoll_core::observe::engine::{Label, number};

/// The label that has the name of a series.
const NAME: &[u8] = b"__name__";

/// Warnings that are kept for the log. An answer may have one for every unavailable store.
const WARNINGS_MAX: usize = 3;

/// The longest warning or error text that is kept, in bytes.
const TEXT_MAX: usize = 200;

/// The contents of an answer other than its series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerSummary {
    /// The number of its series.
    pub series: usize,
    /// The number of samples in these series.
    pub samples: usize,
    /// The first warnings about data that could not be queried.
    pub warnings: Vec<String>,
    /// True if the server reports that data is missing.
    pub is_partial: bool,
    /// The name of a histogram that has only native samples, if there is one.
    pub native_histogram: Option<String>,
}

/// A sample: milliseconds since the epoch, and the value.
pub type Point = (i64, f64);

/// A callback for each series, with its labels, including the name, and its samples.
pub type SeriesCallback<'e, 'p> = dyn FnMut(&[Label<'p>], &[Point]) + 'e;

/// Decodes an answer, and passes each of at most `limit` series to `each`.
///
/// # Errors
///
/// The body is not a successful answer of type matrix, or has more series. `each` may already have
/// received some series, so the caller must discard their results.
pub fn decode<'p>(
    body: &'p [u8],
    limit: usize,
    each: &mut SeriesCallback<'_, 'p>,
) -> Result<AnswerSummary, QueryFailure> {
    let mut reading = AnswerDecoder {
        limit,
        each,
        answer: AnswerSummary::default(),
        natives: BTreeMap::new(),
        classics: BTreeSet::new(),
        labels: Vec::new(),
        points: Vec::new(),
        status: None,
        error_type: None,
        error: None,
        result_type: None,
        has_result: false,
        is_too_many: false,
    };

    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let read = Top(&mut reading).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    match read {
        Ok(()) => reading.finish(),
        Err(_) if reading.is_too_many => Err(QueryFailure::new(
            QueryOutcome::TooManySeries,
            &format!(
                "the response has more than {limit} series; narrow the matchers, or raise \
                 series_limit"
            ),
        )),
        Err(error) => Err(unreadable(body, &error)),
    }
}

fn unreadable(body: &[u8], error: &serde_json::Error) -> QueryFailure {
    if body.trim_ascii().is_empty() {
        return QueryFailure::new(QueryOutcome::NotJson, "the body is empty, expected JSON");
    }

    let starts_like_json = body.trim_ascii_start().starts_with(b"{");
    if !starts_like_json {
        let detail = format!("expected JSON, found: {}", shown(body));
        return QueryFailure::new(QueryOutcome::NotJson, &detail);
    }

    let outcome = if error.is_eof() { QueryOutcome::Truncated } else { QueryOutcome::Malformed };
    let detail = format!(
        "after {} bytes of a response that starts with {}: {error}",
        body.len(),
        shown(&body[..body.len().min(80)])
    );
    QueryFailure::new(outcome, &detail)
}

/// An answer that is being decoded.
struct AnswerDecoder<'r, 'e, 'p> {
    limit: usize,
    each: &'r mut SeriesCallback<'e, 'p>,
    answer: AnswerSummary,
    /// The names of histograms with native samples, by their hash.
    natives: BTreeMap<u64, String>,
    /// The hashes of classic histograms.
    classics: BTreeSet<u64>,
    labels: Vec<Label<'p>>,
    points: Vec<Point>,
    status: Option<String>,
    error_type: Option<String>,
    error: Option<String>,
    result_type: Option<String>,
    has_result: bool,
    is_too_many: bool,
}

impl AnswerDecoder<'_, '_, '_> {
    fn finish(self) -> Result<AnswerSummary, QueryFailure> {
        let Self { answer, natives, classics, .. } = self;
        let Self { status, error_type, error, result_type, has_result, .. } = self;
        match status.as_deref() {
            Some("success") => {}
            Some("error") => {
                let kind = error_type.unwrap_or_else(|| "no errorType".to_owned());
                let said = error.unwrap_or_else(|| "no message".to_owned());
                return Err(QueryFailure::new(
                    QueryOutcome::QueryError,
                    &format!("{kind}: {said}"),
                ));
            }
            Some(other) => {
                let detail = format!("the status is {other:?}, expected \"success\"");
                return Err(QueryFailure::new(QueryOutcome::Malformed, &detail));
            }
            None => {
                let detail = "the JSON has no status: it is not a response of the query API";
                return Err(QueryFailure::new(QueryOutcome::Malformed, detail));
            }
        }

        match result_type.as_deref() {
            Some("matrix") if has_result => {
                let mut only_native = natives.into_iter().filter(|it| !classics.contains(&it.0));
                let native_histogram = only_native.next().map(|(_, name)| name);
                Ok(AnswerSummary { native_histogram, ..answer })
            }
            Some("matrix") => {
                Err(QueryFailure::new(QueryOutcome::Malformed, "the response has no result"))
            }
            Some(other) => {
                let detail = format!("the result is a {other}, expected a matrix");
                Err(QueryFailure::new(QueryOutcome::WrongType, &detail))
            }
            None => {
                Err(QueryFailure::new(QueryOutcome::Malformed, "the response has no resultType"))
            }
        }
    }

    fn show(&mut self) {
        self.answer.series += 1;
        self.answer.samples += self.points.len();
        (self.each)(&self.labels, &self.points);
    }

    /// Notes that the series has native samples.
    fn note_native(&mut self) {
        let name = self.name();
        let shown = cut(&String::from_utf8_lossy(name), TEXT_MAX);
        let histogram = self.histogram(name);
        self.natives.insert(histogram, shown);
    }

    /// Notes the histogram of a series that counts it classically.
    fn note_classic(&mut self) {
        let histogram = self.name().strip_suffix(b"_count").map(|base| self.histogram(base));
        self.classics.extend(histogram);
    }

    fn name(&self) -> &[u8] {
        let found = self.labels.iter().find(|label| *label.name == *NAME);
        found.map(|label| &*label.value).unwrap_or_default()
    }

    /// A hash of the histogram with this name and the other labels of the series.
    fn histogram(&self, name: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        for label in self.labels.iter().filter(|label| *label.name != *NAME) {
            label.name.hash(&mut hasher);
            label.value.hash(&mut hasher);
        }

        hasher.finish()
    }
}

/// Declares a visitor for one JSON shape that holds the reading.
macro_rules! seed {
    ($name:ident, $method:ident) => {
        struct $name<'a, 'r, 'e, 'p>(&'a mut AnswerDecoder<'r, 'e, 'p>);

        impl<'p> DeserializeSeed<'p> for $name<'_, '_, '_, 'p> {
            type Value = ();

            fn deserialize<D: serde::Deserializer<'p>>(
                self,
                deserializer: D,
            ) -> Result<(), D::Error> {
                deserializer.$method(self)
            }
        }
    };
}

macro_rules! expecting {
    ($text:literal) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str($text)
        }
    };
}

seed!(Top, deserialize_map);
seed!(Data, deserialize_any);
seed!(Series, deserialize_any);
seed!(OneSeries, deserialize_map);
seed!(Metric, deserialize_map);
seed!(Values, deserialize_seq);
seed!(Warnings, deserialize_any);

impl<'p> Visitor<'p> for Top<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("a response of the query API");

    fn visit_map<A: MapAccess<'p>>(self, mut map: A) -> Result<(), A::Error> {
        let reading = self.0;
        while let Some(key) = map.next_key::<JsonText<'p>>()? {
            match &*key.0 {
                "status" => reading.status = short(&mut map)?,
                "errorType" => reading.error_type = short(&mut map)?,
                "error" => reading.error = short(&mut map)?,
                "isPartial" => {
                    reading.answer.is_partial |= map.next_value::<Option<bool>>()? == Some(true);
                }
                "warnings" => map.next_value_seed(Warnings(reading))?,
                "data" => map.next_value_seed(Data(reading))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }

        Ok(())
    }
}

impl<'p> Visitor<'p> for Data<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("the data of a response");

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'p>>(self, mut map: A) -> Result<(), A::Error> {
        let reading = self.0;
        while let Some(key) = map.next_key::<JsonText<'p>>()? {
            match &*key.0 {
                "resultType" => reading.result_type = short(&mut map)?,
                // The elements of another type have another shape.
                "result" if reading.result_type.as_deref().is_some_and(|kind| kind != "matrix") => {
                    map.next_value::<IgnoredAny>()?;
                }
                "result" => {
                    reading.has_result = true;
                    map.next_value_seed(Series(reading))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }

        Ok(())
    }
}

impl<'p> Visitor<'p> for Series<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("a list of series");

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'p>>(self, mut list: A) -> Result<(), A::Error> {
        let reading = self.0;
        while list.next_element_seed(OneSeries(reading))?.is_some() {
            if reading.answer.series >= reading.limit {
                reading.is_too_many = true;
                return Err(A::Error::custom("too many series"));
            }
            reading.show();
        }

        Ok(())
    }
}

impl<'p> Visitor<'p> for OneSeries<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("a series with its labels and samples");

    fn visit_map<A: MapAccess<'p>>(self, mut map: A) -> Result<(), A::Error> {
        let reading = self.0;
        reading.labels.clear();
        reading.points.clear();
        let mut is_native = false;
        while let Some(key) = map.next_key::<JsonText<'p>>()? {
            match &*key.0 {
                "metric" => map.next_value_seed(Metric(reading))?,
                "values" => map.next_value_seed(Values(reading))?,
                "histogram" | "histograms" => {
                    map.next_value::<IgnoredAny>()?;
                    is_native = true;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }

        if is_native {
            reading.note_native();
        } else {
            reading.note_classic();
        }

        Ok(())
    }
}

impl<'p> Visitor<'p> for Metric<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("labels");

    fn visit_map<A: MapAccess<'p>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, value)) = map.next_entry::<JsonText<'p>, JsonText<'p>>()? {
            self.0.labels.push(Label { name: name.bytes(), value: value.bytes() });
        }
        Ok(())
    }
}

impl<'p> Visitor<'p> for Values<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("samples, each a time and a value");

    fn visit_seq<A: SeqAccess<'p>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(Sample(seconds, value)) = list.next_element()? {
            let at = milliseconds(seconds).ok_or_else(|| A::Error::custom("not a time"))?;
            // A staleness marker, or a value that is not a number, has no information.
            self.0.points.push((at, value.unwrap_or(f64::NAN)));
        }
        Ok(())
    }
}

impl<'p> Visitor<'p> for Warnings<'_, '_, '_, 'p> {
    type Value = ();

    expecting!("a list of warnings");

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'p>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(warning) = list.next_element::<JsonText<'p>>()? {
            let answer = &mut self.0.answer;
            answer.is_partial = true;
            if answer.warnings.len() < WARNINGS_MAX {
                answer.warnings.push(cut(&warning.0, TEXT_MAX));
            }
        }

        Ok(())
    }
}

/// A text, borrowed if it has no escapes.
struct JsonText<'p>(Cow<'p, str>);

impl<'p> JsonText<'p> {
    fn bytes(self) -> Cow<'p, [u8]> {
        match self.0 {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }
}

impl<'p> serde::Deserialize<'p> for JsonText<'p> {
    fn deserialize<D: serde::Deserializer<'p>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowing;

        impl<'p> Visitor<'p> for Borrowing {
            type Value = JsonText<'p>;

            expecting!("a text");

            fn visit_borrowed_str<E: Error>(self, text: &'p str) -> Result<JsonText<'p>, E> {
                Ok(JsonText(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<JsonText<'p>, E> {
                Ok(JsonText(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Borrowing)
    }
}

/// A sample in its JSON form: `[1732220000.125,"0.5"]`.
#[derive(serde::Deserialize)]
struct Sample(f64, #[serde(deserialize_with = "value")] Option<f64>);

/// Parses a value, a number in quotes; `None` if it is not a number.
fn value<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    struct Quoted;

    impl Visitor<'_> for Quoted {
        type Value = Option<f64>;

        expecting!("a number in quotes");

        fn visit_str<E: Error>(self, text: &str) -> Result<Option<f64>, E> {
            number(text.as_bytes()).map(Some).ok_or_else(|| E::custom("not a number in quotes"))
        }

        fn visit_unit<E: Error>(self) -> Result<Option<f64>, E> {
            Ok(None)
        }
    }

    deserializer.deserialize_any(Quoted)
}

/// Returns a text cut to a length that is suitable for the log; `None` for `null`.
fn short<'p, A: MapAccess<'p>>(map: &mut A) -> Result<Option<String>, A::Error> {
    Ok(map.next_value::<Option<JsonText<'p>>>()?.map(|text| cut(&text.0, TEXT_MAX)))
}

/// Returns the milliseconds of a Unix time in seconds, if it is within ten thousand years of the
/// epoch.
fn milliseconds(seconds: f64) -> Option<i64> {
    const FAR: f64 = 3e11;
    #[expect(clippy::cast_possible_truncation, reason = "it is far below 2^53")]
    (seconds.abs() < FAR).then(|| (seconds * 1000.0).round() as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Read = (Vec<(Vec<(String, String)>, Vec<Point>)>, Result<AnswerSummary, QueryFailure>);

    fn read(body: &[u8], limit: usize) -> Read {
        let mut seen = Vec::new();
        let answer = decode(body, limit, &mut |labels: &[Label<'_>], points: &[Point]| {
            let pairs = labels.iter().map(|label| (text(&label.name), text(&label.value)));
            seen.push((pairs.collect(), points.to_vec()));
        });
        (seen, answer)
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn outcome(body: &str) -> QueryOutcome {
        read(body.as_bytes(), 10).1.unwrap_err().outcome
    }

    const MATRIX: &str = r#"{"status":"success","isPartial":false,"trace":{"a":[1,{}]},"data":{
        "resultType":"matrix","analysis":{},"result":[
        {"metric":{"__name__":"up","a":"\"x\"\n"},"values":[[1732220000.125,"1"],[1732220015.1,"0.5e1"]]},
        {"metric":{"__name__":"n"},"values":[[1732220000,"NaN"],[1732220001,null],[1,"+Inf"]],"new":1}
        ]},"infos":["an info"],"stats":{}}"#;

    #[test]
    fn a_matrix_is_read_with_its_escapes_and_its_milliseconds() {
        let (seen, answer) = read(MATRIX.as_bytes(), 2);
        assert_eq!(seen[0].0, [pair("__name__", "up"), pair("a", "\"x\"\n")]);
        assert_eq!(seen[0].1, [(1_732_220_000_125, 1.0), (1_732_220_015_100, 5.0)]);
        assert!(seen[1].1[..2].iter().all(|(_, value)| value.is_nan()), "null is no zero");
        assert_eq!(seen[1].1[2], (1000, f64::INFINITY));

        let want = AnswerSummary { series: 2, samples: 5, ..AnswerSummary::default() };
        assert_eq!(answer.unwrap(), want);
    }

    #[test]
    fn one_series_more_than_the_limit_is_an_error_that_says_what_to_do() {
        let failure = read(MATRIX.as_bytes(), 1).1.unwrap_err();
        assert_eq!(failure.outcome, QueryOutcome::TooManySeries);
        assert!(failure.detail.contains("series_limit"), "{}", failure.detail);
    }

    #[test]
    fn warnings_and_the_mark_of_victoria_metrics_mean_that_something_is_missing() {
        let warned = r#"{"status":"success","warnings":["store a is away","b","c","d"],
            "data":{"resultType":"matrix","result":[]}}"#;
        let answer = read(warned.as_bytes(), 1).1.unwrap();
        assert!(answer.is_partial);
        assert_eq!(answer.warnings, ["store a is away", "b", "c"]);

        let marked = r#"{"isPartial":true,"status":"success",
            "data":{"resultType":"matrix","result":[]}}"#;
        assert!(read(marked.as_bytes(), 1).1.unwrap().is_partial);

        let none =
            r#"{"status":"success","warnings":null,"data":{"resultType":"matrix","result":[]}}"#;
        assert!(!read(none.as_bytes(), 1).1.unwrap().is_partial);
    }

    #[test]
    fn native_histograms_are_noticed_and_give_no_samples() {
        let body = r#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"h"},"histograms":[[1,{"count":"5","sum":"1","buckets":[[3,"0","1","5"]]}]]}]}}"#;
        let (seen, answer) = read(body.as_bytes(), 10);
        assert_eq!(answer.unwrap().native_histogram.as_deref(), Some("h"));
        assert!(seen[0].1.is_empty());
    }

    #[test]
    fn a_native_histogram_with_classic_series_of_its_own_is_not_reported() {
        let native = |pod: &str| {
            format!(
                r#"{{"metric":{{"__name__":"h","pod":"{pod}"}},"histograms":[[1,{{"count":"5"}}]]}}"#
            )
        };
        let classic = r#"{"metric":{"__name__":"h_count","pod":"a"},"values":[[1,"5"]]}"#;
        for (pod, expected) in [("a", None), ("b", Some("h"))] {
            let series = [native(pod), classic.to_owned()].join(",");
            let body = format!(
                r#"{{"status":"success","data":{{"resultType":"matrix","result":[{series}]}}}}"#
            );
            let (_, answer) = read(body.as_bytes(), 10);
            assert_eq!(answer.unwrap().native_histogram.as_deref(), expected, "{pod}");
        }
    }

    #[test]
    fn everything_else_is_refused_for_what_it_is() {
        for (body, want) in [
            ("", QueryOutcome::NotJson),
            ("<html><title>503</title>", QueryOutcome::NotJson),
            ("ok", QueryOutcome::NotJson),
            ("[]", QueryOutcome::NotJson),
            ("{}", QueryOutcome::Malformed),
            ("{\"status\":\"success\"}", QueryOutcome::Malformed),
            ("{\"status\":\"fine\",\"data\":{}}", QueryOutcome::Malformed),
            (
                "{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\"}}",
                QueryOutcome::Malformed,
            ),
            (
                "{\"status\":\"error\",\"errorType\":\"execution\",\"error\":\"x\"}",
                QueryOutcome::QueryError,
            ),
            ("{\"status\":\"error\",\"data\":null}", QueryOutcome::QueryError),
            (
                "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[{\"metric\":{},\"value\":[1,\"1\"]}]}}",
                QueryOutcome::WrongType,
            ),
            (
                "{\"status\":\"success\",\"data\":{\"resultType\":\"scalar\",\"result\":[1,\"1\"]}}",
                QueryOutcome::WrongType,
            ),
            (
                "{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\",\"result\":[{\"metric\":{},\"values\":[[1,\"one\"]]}]}}",
                QueryOutcome::Malformed,
            ),
        ] {
            assert_eq!(outcome(body), want, "{body}");
        }
    }

    #[test]
    fn an_answer_that_is_cut_anywhere_is_never_taken_for_a_whole_one() {
        for end in 1..MATRIX.len() {
            let failure = read(&MATRIX.as_bytes()[..end], 10).1.unwrap_err();
            assert_eq!(failure.outcome, QueryOutcome::Truncated, "cut after {end}: {failure:?}");
        }
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(body in "[\\[\\]{}\":,a-z0-9. \\\\é-]{0,200}") {
            let _any = read(body.as_bytes(), 3);
        }

        #[test]
        fn no_change_of_one_byte_makes_it_panic(at in 0..MATRIX.len(), byte: u8) {
            let mut body = MATRIX.as_bytes().to_vec();
            body[at] = byte;
            let _any = read(&body, 3);
        }
    }
}
