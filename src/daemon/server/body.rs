//! Bodies of responses: a whole document, or messages one after the other.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};

use crate::server::budget::ConnectionSlot;
use crate::server::unread::OpenResponses;

/// The reason that a body ends early.
type BodyError = Box<dyn Error + Send + Sync>;

/// The body of a response.
#[derive(Debug)]
pub struct ResponseBody {
    kind: BodyKind,
    /// A share of its connection, which is not idle while a body holds one.
    open: Option<Arc<OpenResponses>>,
}

#[derive(Debug)]
enum BodyKind {
    /// A document, whose bytes count as unwritten.
    Whole(Full<Bytes>),
    /// Small messages, which the handler makes when the peer has room for them.
    Messages(UnsyncBoxBody<Bytes, BodyError>),
}

// === impl ResponseBody ===

impl ResponseBody {
    /// A body of small messages.
    pub fn messages<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        Self { kind: BodyKind::Messages(body.map_err(Into::into).boxed_unsync()), open: None }
    }

    /// Counts the bytes of a document as unwritten.
    pub(super) async fn counted(self, slot: &ConnectionSlot) -> Self {
        match self.kind {
            BodyKind::Whole(body) => slot.counted(Response::new(body)).await.into_body().into(),
            BodyKind::Messages(_) => self,
        }
    }

    /// Holds a share of the connection until the body is written.
    pub(super) fn held_by(self, share: Arc<OpenResponses>) -> Self {
        Self { open: Some(share), ..self }
    }
}

impl Default for ResponseBody {
    fn default() -> Self {
        Full::default().into()
    }
}

impl From<Full<Bytes>> for ResponseBody {
    fn from(body: Full<Bytes>) -> Self {
        Self { kind: BodyKind::Whole(body), open: None }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut self.kind {
            BodyKind::Whole(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame
                    .map(|next| next.map(|frame| frame.map_err(|never: Infallible| match never {})))
            }
            BodyKind::Messages(body) => Pin::new(body).poll_frame(context),
        };

        let Some(open) = &self.open else { return polled };
        polled.map_ok(|frame| frame.map_data(|bytes| open.numbered(bytes)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Whole(body) => body.is_end_stream(),
            BodyKind::Messages(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Whole(body) => body.size_hint(),
            BodyKind::Messages(body) => body.size_hint(),
        }
    }
}
