//! Metrics responses: Prometheus text 0.0.4 and 1.0.0, and `OpenMetrics` 1.0.
//!
//! A response is read once, line by line, without being copied. Nearly all of its lines belong to
//! families that are not needed: an autoscaler uses a third of the samples that vLLM exports. Such
//! lines are checked only for their shape:
//!
//! - the line starts with `#`, or with a metric name followed by a blank or `{`;
//! - after the last blank is a word that starts like a number and ends with a digit;
//! - before that blank is the closing brace, or the name itself.
//!
//! The text between the braces of such a line is not checked. A line of any other shape is read in
//! full, needed or not. It is either a rarer form of sample (a time, an exemplar, a quoted name) or
//! an error. The whole body must be UTF-8. These checks reject a body that is only partly a metrics
//! response. A line that is not needed costs no more than finding its ends.
//!
//! A line that is not needed allocates nothing. Its name is compared in place, and a name that
//! repeats the last line's is not looked up. In a needed line, labels are slices of the body,
//! copied only if they contain an escape. All lines share one list of labels, and the value goes
//! directly to the [`ReadingBuilder`], whose memory is that of the reading. Labels are parsed once
//! for all buckets of a histogram, and once for all consecutive samples with the same labels.
//!
//! There is no partial reading. Truncation is detected by a last line without an end, in
//! `OpenMetrics` by a missing `# EOF`, and by histograms that lack a part. **A text response that
//! is truncated exactly between two lines and two families looks complete**, because the format has
//! no end mark. Signals are then absent, and counters that are summed over labels (HTTP responses,
//! rejections) can be too small. HTTP detects such a truncation by `Content-Length` or the last
//! chunk. Callers that fetch a response must therefore treat a body that ends early as a failure,
//! and must not pass it on.
//!
//! [`ReadingBuilder`]: plimsoll_core::observe::engine::ReadingBuilder

mod fault;
mod format;
mod labels;
mod layout;
mod line;
mod memory;
mod parser;
pub mod samples;

use crate::collect::exposition::format::checked;
use crate::collect::exposition::parser::{PageParser, walk};
use plimsoll_core::observe::Reading;

pub use crate::collect::exposition::fault::PageError;
pub use crate::collect::exposition::format::{LINE_MAX, SAMPLES_MAX};
pub use crate::collect::exposition::layout::Layout;
pub use crate::collect::exposition::memory::{LayoutMemory, Layouts};

/// Reads a response. `content_type` is the header's value, which determines the format. Without
/// one, the response is read as text.
///
/// # Errors
///
/// The response is truncated, is not metrics, has an invalid line, or is from no known engine. A
/// partial reading is never returned.
pub fn read(body: &[u8], content_type: Option<&str>) -> Result<Reading, PageError> {
    let format = checked(body, content_type)?;
    walk(body, PageParser::new(format, None)).map(|(reading, _)| reading)
}
