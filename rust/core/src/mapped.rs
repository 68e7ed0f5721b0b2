//! Reading of tensors that stay in their file: a worker's room for a panel, and where it reports.
//!
//! Such a tensor is packed a panel at a time into the worker's scratch whenever it is multiplied,
//! then the kernel is the same as for any other. Its scales are checked then, since a check at
//! load would read the whole file. Knows no tensor: `weights` packs, `exec` owns the scratch and
//! ends the pass when something was reported.

use std::cell::RefCell;

use crate::error::{Error, FirstError};

/// Alignment of a panel in scratch: a cache line, as in an arena.
const PANEL_ALIGN: usize = 64;

/// One worker's room for a packed panel.
#[derive(Debug, Default)]
pub(crate) struct PanelScratch(Vec<u8>);

impl PanelScratch {
    /// Room for panels of up to `panel_bytes`; none at all for 0.
    pub(crate) fn new(panel_bytes: usize) -> Self {
        Self(match panel_bytes {
            0 => Vec::new(),
            _ => vec![0; panel_bytes.saturating_add(PANEL_ALIGN)],
        })
    }

    /// The first bytes of it, aligned to a cache line.
    ///
    /// # Panics
    /// If the panel is larger than the room was made for.
    pub(crate) fn panel(&mut self, panel_bytes: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PANEL_ALIGN);
        &mut self.0[start..start + panel_bytes]
    }
}

/// What a worker reads mapped tensors with in one pass.
#[derive(Debug)]
pub(crate) struct MappedReads<'a> {
    scratch: RefCell<&'a mut PanelScratch>,
    failure: &'a FirstError,
}

impl<'a> MappedReads<'a> {
    /// A worker's own scratch, and the place where all of the pass report.
    pub(crate) fn new(scratch: &'a mut PanelScratch, failure: &'a FirstError) -> Self {
        Self {
            scratch: RefCell::new(scratch),
            failure,
        }
    }

    /// Calls `read` with the scratch; `read` does not come back here.
    pub(crate) fn with_scratch<T>(&self, read: impl FnOnce(&mut PanelScratch) -> T) -> T {
        read(&mut self.scratch.borrow_mut())
    }

    /// Makes the pass end with this error, unless it has another already.
    pub(crate) fn report(&self, error: Error) {
        self.failure.report(error);
    }
}

#[cfg(test)]
mod tests {
    use super::{PANEL_ALIGN, PanelScratch};

    #[test]
    fn panels_are_aligned_and_of_the_size_asked_for() {
        let mut scratch = PanelScratch::new(1000);
        for panel_bytes in [0, 32, 1000] {
            let panel = scratch.panel(panel_bytes);
            assert_eq!(panel.len(), panel_bytes);
            assert_eq!(panel.as_ptr().addr() % PANEL_ALIGN, 0);
        }
        assert!(PanelScratch::new(0).0.is_empty());
    }
}
