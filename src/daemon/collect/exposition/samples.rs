//! Samples of selected metrics from any program's metrics response.
//!
//! Engines' responses are read by their dialects. Other programs have one or two relevant metrics,
//! whose samples are returned unchanged. A response that ends early returns nothing here either.

use std::collections::BTreeMap;

use memchr::memchr;

use crate::collect::exposition::fault::{PageError, SyntaxFault, column};
use crate::collect::exposition::format::{
    END_MARK, ExpositionFormat, LINE_MAX, SAMPLES_MAX, check_utf8, format,
};
use crate::collect::exposition::labels::LabelSets;
use crate::collect::exposition::line;

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpositionSample {
    /// The metric.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value, which may be NaN.
    pub value: f64,
}

/// Returns the samples of the metrics whose names `wants` accepts, in their original order.
/// `content_type` is the header's value, as in [`read`](crate::collect::exposition::read).
///
/// # Errors
///
/// The response is truncated, is not metrics, or has an invalid line.
pub fn samples(
    body: &[u8],
    content_type: Option<&str>,
    wants: &dyn Fn(&str) -> bool,
) -> Result<Vec<ExpositionSample>, PageError> {
    let format = format(content_type)?;
    if body.trim_ascii().is_empty() {
        return Err(PageError::Empty);
    }

    check_utf8(body)?;
    let mut found = Vec::new();
    let mut rest = body;
    let mut number = 0;
    let mut is_ended = false;
    while !rest.is_empty() {
        number += 1;
        let end = memchr(b'\n', rest);
        let whole = &rest[..end.unwrap_or(rest.len())];
        if whole.len() > LINE_MAX {
            let column = column(whole, LINE_MAX);
            return Err(PageError::LineTooLong { line: number, column, limit: LINE_MAX });
        }

        let line = whole.strip_suffix(b"\r").unwrap_or(whole);
        is_ended |= format == ExpositionFormat::OpenMetrics && line == END_MARK;
        let Some(end) = end else {
            if is_ended {
                break;
            }
            return Err(PageError::truncated(number, line, "the end of the line"));
        };

        found.extend(sample(number, line, format, wants)?);
        if found.len() > SAMPLES_MAX {
            return Err(PageError::TooManySamples { line: number, limit: SAMPLES_MAX });
        }

        rest = &rest[end + 1..];
    }

    if format == ExpositionFormat::OpenMetrics && !is_ended {
        return Err(PageError::truncated(number + 1, b"", "`# EOF`"));
    }

    Ok(found)
}

/// Returns the sample of a line, if it is a wanted one.
fn sample(
    number: usize,
    line: &[u8],
    format: ExpositionFormat,
    wants: &dyn Fn(&str) -> bool,
) -> Result<Option<ExpositionSample>, PageError> {
    let start = line::skip_blanks(line, 0);
    // A quoted name is invalid for older readers. No metric that is read here has one.
    if matches!(line.get(start), None | Some(b'#' | b'{')) {
        return Ok(None);
    }

    let end = line::name_end(line, start);
    if end == start || !matches!(line.get(end), Some(b'{' | b' ' | b'\t')) {
        let expected = "`#` or a metric name, and a blank or `{` after it";
        return Err(PageError::syntax(number, line, SyntaxFault { at: end, expected }));
    }

    let name = String::from_utf8_lossy(&line[start..end]);
    if !wants(&name) {
        return Ok(None);
    }

    let mut sets = LabelSets::default();
    let read = sets.read(line, end).and_then(|(labels, after)| {
        let (value, _) = line::value(line, after, format)?;
        Ok((labels, value))
    });
    let (labels, value) = read.map_err(|fault| PageError::syntax(number, line, fault))?;
    let pairs = labels.iter().map(|label| (text(&label.name), text(&label.value)));
    Ok(Some(ExpositionSample { name: name.into_owned(), labels: pairs.collect(), value }))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP q Requests.\n# TYPE q gauge\nq{model=\"a \\\"b\\\"\",le=\"1\"} 3\nq 4e0 17\n\
                        other 1\n";

    fn wanted(body: &str, content_type: Option<&str>) -> Result<Vec<ExpositionSample>, PageError> {
        samples(body.as_bytes(), content_type, &|name| name == "q")
    }

    #[test]
    fn only_what_is_wanted_is_read_and_all_of_it() {
        let found = wanted(PAGE, None).unwrap();
        let values: Vec<f64> = found.iter().map(|sample| sample.value).collect();
        assert_eq!(values, [3.0, 4.0]);
        assert_eq!(found[0].labels["model"], "a \"b\"");
        assert!(found[1].labels.is_empty());
    }

    #[test]
    fn a_page_that_ends_early_gives_nothing() {
        for cut in 1..PAGE.len() {
            let whole = PAGE.as_bytes()[cut - 1] == b'\n';
            assert_eq!(wanted(&PAGE[..cut], None).is_ok(), whole, "{cut}");
        }

        let open = Some("application/openmetrics-text; version=1.0.0");
        assert!(wanted("q 1\n", open).is_err());
        assert_eq!(wanted("q 1\n# EOF", open).unwrap().len(), 1);
        assert!(wanted("<html>\n", None).is_err());
        assert!(wanted("", None).is_err());
    }
}
