//! The formats of a response, their limits, and the checks of a whole body.

use crate::collect::exposition::fault::{FOUND_MAX, PageError, column};

/// The longest accepted line. The longest that vLLM exports is 1.1 KB (`cache_config_info`), but
/// one build put 7 MB of configuration into one label.
pub const LINE_MAX: usize = 64 * 1024;

/// The maximum number of needed samples. A vLLM rank has about 170, so this suffices for 300 ranks.
pub const SAMPLES_MAX: usize = 50_000;

/// The last line of an `OpenMetrics` response.
pub(super) const END_MARK: &[u8] = b"# EOF";

/// The syntax of a response, as far as the formats differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpositionFormat {
    /// Prometheus text of any version. vLLM declares 1.0.0 and writes 0.0.4.
    Text,
    /// `OpenMetrics`, which ends with `# EOF`.
    OpenMetrics,
}

/// Checks that a body may be a metrics response, and returns its format.
pub(super) fn checked(
    body: &[u8],
    content_type: Option<&str>,
) -> Result<ExpositionFormat, PageError> {
    let format = format(content_type)?;
    if body.trim_ascii().is_empty() {
        return Err(PageError::Empty);
    }
    check_utf8(body)?;
    Ok(format)
}

/// Returns the format that a content type declares.
pub(super) fn format(content_type: Option<&str>) -> Result<ExpositionFormat, PageError> {
    let declared = content_type.unwrap_or_default().trim();
    let media_type = declared.split(';').next().unwrap_or_default().trim();

    if media_type.is_empty() || media_type.eq_ignore_ascii_case("text/plain") {
        Ok(ExpositionFormat::Text)
    } else if media_type.eq_ignore_ascii_case("application/openmetrics-text") {
        Ok(ExpositionFormat::OpenMetrics)
    } else {
        Err(PageError::ContentType { found: declared.chars().take(FOUND_MAX).collect() })
    }
}

/// Rejects a body that is not UTF-8. Nearly every response is ASCII, which is faster to check.
pub(super) fn check_utf8(body: &[u8]) -> Result<(), PageError> {
    if body.is_ascii() {
        return Ok(());
    }

    let Err(error) = std::str::from_utf8(body) else { return Ok(()) };
    let (before, rest) = body.split_at(error.valid_up_to());
    let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    Err(PageError::Syntax {
        line: memchr::memchr_iter(b'\n', before).count() + 1,
        column: column(&body[start..], before.len() - start),
        found: format!("the byte 0x{:02x}", rest.first().copied().unwrap_or_default()),
        expected: "UTF-8",
    })
}
