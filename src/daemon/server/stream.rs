//! A TCP connection that ends when its peer stops reading or falls silent.
//!
//! hyper limits the time in which a request must arrive, but not the time in which a response must
//! be read. A peer that announces a window of zero would hold its connection and the response
//! indefinitely. [`GuardedStream`] fails a write that makes no progress for a while, and a
//! connection on which no byte arrives or leaves.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

/// The time limits of a [`GuardedStream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Time within which the peer must take some more bytes while a write waits.
    pub write_max: Duration,
    /// Time within which a byte must arrive or leave.
    pub silence_max: Duration,
}

/// A TCP connection with these limits.
#[derive(Debug)]
pub struct GuardedStream {
    stream: TcpStream,
    shed: CancellationToken,
    write: ProgressTimer,
    silence: ProgressTimer,
    is_stalled: bool,
}

/// A time limit that starts with the first wait, and starts over after progress.
#[derive(Debug)]
struct ProgressTimer {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl ProgressTimer ===

impl ProgressTimer {
    const fn new(limit: Duration) -> Self {
        Self { limit, timer: None }
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(context)
    }

    fn start_over(&mut self) {
        self.timer = None;
    }
}

// === impl GuardedStream ===

impl GuardedStream {
    /// Guards a connection. If `shed` is cancelled when it is dropped, the kernel also drops the
    /// bytes that the peer has not taken.
    #[must_use]
    pub const fn new(stream: TcpStream, limits: StreamLimits, shed: CancellationToken) -> Self {
        let StreamLimits { write_max, silence_max } = limits;
        let write = ProgressTimer::new(write_max);
        let silence = ProgressTimer::new(silence_max);
        Self { stream, shed, write, silence, is_stalled: false }
    }

    fn progressed(&mut self) {
        self.write.start_over();
        self.silence.start_over();
    }

    /// Fails a write that has waited for too long.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.write.poll_end(context));
        self.is_stalled = true;
        let waited = self.write.limit;
        let problem = format!("the peer has read nothing for {waited:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, problem)))
    }

    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(result) => {
                self.progressed();
                Poll::Ready(result)
            }
            Poll::Pending => self.poll_stalled(context),
        }
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(result) = Pin::new(&mut this.stream).poll_read(context, buffer) {
            this.silence.start_over();
            return Poll::Ready(result);
        }

        ready!(this.silence.poll_end(context));
        let problem = format!("no byte came or went for {:?}", this.silence.limit);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, problem)))
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.wrote(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.wrote(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Drop for GuardedStream {
    fn drop(&mut self) {
        if self.is_stalled || self.shed.is_cancelled() {
            // The kernel would otherwise keep the unread bytes until its own timeout.
            let _unread_bytes_stay = self.stream.set_zero_linger();
        }
    }
}
