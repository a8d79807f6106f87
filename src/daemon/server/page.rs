//! The status page: one HTML document that reads the JSON API.
//!
//! It is written by hand and part of the binary. It loads nothing from elsewhere, so it works in a
//! cluster without internet access. Its Content-Security-Policy allows exactly its own script and
//! style, by their hashes. Text that is injected into the document can neither run nor load
//! anything. The script puts names into the document as text only.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::server::document::{DocumentRequest, DocumentResponse, tag_of};

const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = concat!(
    include_str!("page/chart.js"),
    include_str!("page/words.js"),
    include_str!("page/verdicts.js"),
    include_str!("page/ask.js"),
    include_str!("page/attention.js"),
    include_str!("page/balance.js"),
    include_str!("page/summary.js"),
    include_str!("page/list.js"),
    include_str!("page/details.js"),
    include_str!("page/pool.js"),
    include_str!("page/shadow.js"),
    include_str!("page/terms.js"),
    include_str!("page/script.js")
);

/// The places in the document for the style and the script.
const STYLE_HERE: &str = "/* style.css */";
const SCRIPT_HERE: &str = "/* the scripts */";

/// The assembled document, its policy and its tag.
static PAGE: LazyLock<(Bytes, HeaderValue, String)> = LazyLock::new(|| {
    let page = DOCUMENT.replacen(STYLE_HERE, STYLE, 1).replacen(SCRIPT_HERE, SCRIPT, 1);
    let directives = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source(SCRIPT),
        source(STYLE),
    );
    let policy = HeaderValue::try_from(directives).expect("base64 and words are header text");
    let tag = tag_of(&page);
    (Bytes::from(page), policy, tag)
});

/// The rules with the colors of the page, for other pages.
#[must_use]
pub fn palette() -> &'static str {
    let end = STYLE.find("\n* {").map_or(STYLE.len(), |at| at + 1);
    &STYLE[..end]
}

/// The page, for a browser.
pub(crate) fn response(request: &DocumentRequest) -> Response<Full<Bytes>> {
    let (page, policy, tag) = &*PAGE;
    let answer = DocumentResponse::to(request, StatusCode::OK, page.clone(), Some(tag.clone()));
    let mut response = answer.into_http();

    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // After an upgrade the page must match the API.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Inline text as a source of a Content-Security-Policy.
fn source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::decide::Stage;

    #[test]
    fn the_page_is_whole_and_its_policy_names_what_is_on_it() {
        let (bytes, header, _) = &*PAGE;
        let page = std::str::from_utf8(bytes).unwrap();
        let policy = header.to_str().unwrap();

        for (open, close) in [("<style>", "</style>"), ("<script>", "</script>")] {
            let (_, rest) = page.split_once(open).unwrap();
            let (inline, _) = rest.split_once(close).unwrap();
            assert!(policy.contains(&source(inline)), "{policy}");
        }
        // The digest of nothing, by FIPS 180-4.
        assert_eq!(source(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
        assert_eq!((page.matches("<style").count(), page.matches("<script").count()), (1, 1));
    }

    #[test]
    fn a_browser_neither_guesses_its_type_nor_keeps_it_nor_tells_others_of_it() {
        let response = response(&DocumentRequest::default());
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
            ("content-type", "text/html; charset=utf-8"),
        ] {
            assert_eq!(response.headers().get(name).unwrap(), value, "{name}");
        }
    }

    #[test]
    fn the_script_puts_text_into_the_document_as_text_only() {
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.contains(word), "{word}");
        }
    }

    #[test]
    fn every_stage_of_a_decision_has_a_name_on_the_page() {
        let (_, rest) = SCRIPT.split_once("const STAGES = {").unwrap();
        let (named, _) = rest.split_once("};").unwrap();

        for stage in Stage::ALL {
            assert!(named.contains(&format!(" {}: '", stage.label())), "{stage:?}");
        }
    }

    #[test]
    fn the_page_names_no_other_origin() {
        for (text, allowed) in [(DOCUMENT, 1), (STYLE, 0), (SCRIPT, 1)] {
            // The namespace of SVG is a name, not an address.
            let named = text.matches("://").count();
            assert_eq!(named, allowed);
            assert_eq!(text.matches("http://www.w3.org/2000/svg").count(), allowed);
        }
    }
}
