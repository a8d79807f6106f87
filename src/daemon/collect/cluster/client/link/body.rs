//! The body of a response from the API server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tower::BoxError;

/// A body that holds its place on the connection, and that may fail if it is silent.
pub(crate) struct ApiBody {
    body: Either<Incoming, Full<Bytes>>,
    silence: Option<SilenceLimit>,
    _stream: Option<OwnedSemaphorePermit>,
}

/// The time after the last data at which a body fails.
pub(crate) struct SilenceLimit {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl ApiBody {
    pub(crate) fn new(
        body: Either<Incoming, Full<Bytes>>,
        silence: Option<SilenceLimit>,
        stream: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { body, silence, _stream: stream }
    }
}

impl SilenceLimit {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, timer: Box::pin(sleep(limit)) }
    }
}

impl Body for ApiBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(SilenceLimit { limit, timer }) = &mut this.silence {
                timer.set(sleep(*limit));
            }
            return Poll::Ready(frame);
        }

        if let Some(silence) = &mut this.silence
            && silence.timer.as_mut().poll(cx).is_ready()
        {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the connection has gone silent");
            return Poll::Ready(Some(Err(error.into())));
        }

        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
