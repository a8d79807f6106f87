//! The memory of servers' earlier responses: their layouts, which many servers share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::collect::exposition::fault::PageError;
use crate::collect::exposition::format::{ExpositionFormat, checked, format};
use crate::collect::exposition::layout::{Layout, Learning};
use crate::collect::exposition::parser::{PageParser, walk};
use plimsoll_core::observe::Reading;

/// Total size of all layouts in bytes. It holds 250 kinds of servers with one rank each, far more
/// than fleets have. Further servers' responses are read without a layout.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// The layouts of many servers. Equal layouts are stored once.
#[derive(Debug, Default)]
pub struct Layouts {
    known: Mutex<Vec<Weak<Layout>>>,
}

/// The memory of one server's responses.
#[derive(Debug, Default)]
pub struct LayoutMemory {
    layouts: Arc<Layouts>,
    layout: Option<Arc<Layout>>,
}

// === impl LayoutMemory ===

impl LayoutMemory {
    /// Creates the memory of a server that has sent no response, sharing `layouts` with others.
    #[must_use]
    pub fn new(layouts: Arc<Layouts>) -> Self {
        Self { layouts, layout: None }
    }

    /// The layout of the last response, if it had one.
    #[must_use]
    pub const fn layout(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref()
    }

    /// Reads the server's next response, with the same result as `exposition::read`. A response
    /// with the layout of the last one is only read faster.
    ///
    /// # Errors
    ///
    /// The same as for `exposition::read`. The memory then stays unchanged.
    pub fn read(&mut self, body: &[u8], content_type: Option<&str>) -> Result<Reading, PageError> {
        let may_fit = format(content_type)? == ExpositionFormat::Text;
        if let Some(layout) = self.layout.as_ref().filter(|_| may_fit)
            && let Some(reading) = layout.read(body)
        {
            return Ok(reading);
        }

        let format = checked(body, content_type)?;
        let learns = may_fit && (self.layout.is_some() || self.layouts.have_room());
        let page = PageParser::new(format, learns.then(Learning::default));
        let (reading, layout) = walk(body, page)?;
        // The old layout is released before a new one is stored.
        self.layout = None;
        self.layout = layout.and_then(|layout| self.layouts.share(layout));
        Ok(reading)
    }
}

// === impl Layouts ===

impl Layouts {
    fn have_room(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|layout| layout.strong_count() > 0);
        known.iter().filter_map(Weak::upgrade).map(|layout| layout.bytes()).sum::<usize>()
            < BYTES_MAX
    }

    /// Returns the layout, or an equal known one; `None` if there is no room for another.
    fn share(&self, layout: Layout) -> Option<Arc<Layout>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.strong_count() > 0);
        let mut bytes = layout.bytes();
        for other in known.iter().filter_map(Weak::upgrade) {
            if other.is_same(&layout) {
                return Some(other);
            }
            bytes += other.bytes();
        }

        (bytes <= BYTES_MAX).then(|| {
            let shared = Arc::new(layout);
            known.push(Arc::downgrade(&shared));
            shared
        })
    }
}
