//! A TCP connection that ends when its peer stops reading or falls silent.
//!
//! hyper limits the time in which a request must arrive, but not the time in which a response must
//! be read. A peer that announces a TCP window of zero would hold its connection and the response
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::ErrorKind;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;
    use crate::fixtures::paused_now;

    const LONG: Duration = Duration::from_hours(1);
    const LIMIT: Duration = Duration::from_secs(20);
    /// Long enough for two of them to exceed the limit.
    const PAUSE: Duration = Duration::from_secs(15);

    /// A guarded connection, its peer, and the token that sheds it.
    async fn pair(limits: StreamLimits) -> (GuardedStream, TcpStream, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let shed = CancellationToken::new();
        (GuardedStream::new(near, limits, shed.clone()), far, shed)
    }

    /// Writes until the stream fails, and counts the bytes.
    async fn write_on(near: &mut GuardedStream, written: &Cell<usize>) -> io::Error {
        let zeros = vec![0; 65_536];
        loop {
            match near.write(&zeros).await {
                Ok(bytes) => written.set(written.get() + bytes),
                Err(error) => return error,
            }
        }
    }

    /// Reads all that has arrived, and returns how the connection ended.
    async fn end_of(mut far: TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; 65_536];
        while far.read(&mut buffer).await? > 0 {}
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up_and_its_connection_reset() {
        let limits = StreamLimits { write_max: LIMIT, silence_max: LONG };
        let (mut near, far, _shed) = pair(limits).await;
        assert!(near.is_write_vectored(), "heads and bodies are written together");
        let (began, written) = (paused_now(), Cell::new(0));
        let error = write_on(&mut near, &written).await;
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the peer has read nothing for 20s");
        assert_eq!(began.elapsed().as_secs(), 20);

        drop(near);
        assert_eq!(end_of(far).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_waited_for() {
        let limits = StreamLimits { write_max: LIMIT, silence_max: LONG };
        let (mut near, far, _shed) = pair(limits).await;
        let (began, written) = (paused_now(), Cell::new(0));
        let slow = async {
            let mut buffer = vec![0; 65_536];
            for _ in 0..4 {
                sleep(PAUSE).await;
                let before = written.get();
                // Time stands still until the writer goes on.
                while written.get() == before {
                    let _bytes_or_none = far.try_read(&mut buffer);
                    tokio::task::yield_now().await;
                }
            }
        };
        let (error, ()) = tokio::join!(write_on(&mut near, &written), slow);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 4 * 15 + 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_silent_only_if_no_byte_arrives_or_leaves() {
        let limits = StreamLimits { write_max: LONG, silence_max: LIMIT };
        let (near, far, _shed) = pair(limits).await;
        let (mut reader, mut writer) = tokio::io::split(near);
        let (began, arrived) = (paused_now(), Cell::new(0));
        let read = async {
            let mut buffer = [0; 16];
            loop {
                match reader.read(&mut buffer).await {
                    Ok(bytes) => arrived.set(arrived.get() + bytes),
                    Err(error) => return error,
                }
            }
        };
        let exchange = async {
            for round in 1..=3 {
                sleep(PAUSE).await;
                // Time stands still until the byte is there.
                far.try_write(b"a").unwrap();
                while arrived.get() < round {
                    tokio::task::yield_now().await;
                }
                sleep(PAUSE).await;
                writer.write_all(b"b").await.unwrap();
                while far.try_read(&mut [0]).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        };
        let (error, ()) = tokio::join!(read, exchange);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "no byte came or went for 20s");
        assert_eq!(began.elapsed().as_secs(), 6 * 15 + 20);
    }

    #[tokio::test]
    async fn a_connection_is_closed_unless_it_is_shed() {
        let limits = StreamLimits { write_max: LONG, silence_max: LONG };
        for (is_shed, end) in [(false, Ok(())), (true, Err(ErrorKind::ConnectionReset))] {
            let (mut near, far, shed) = pair(limits).await;
            near.write_all(b"not read yet").await.unwrap();
            if is_shed {
                shed.cancel();
            }
            drop(near);
            assert_eq!(end_of(far).await.map_err(|error| error.kind()), end, "{is_shed}");
        }
    }
}
