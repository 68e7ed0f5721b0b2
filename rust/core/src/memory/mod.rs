//! Memory of our own, straight from the kernel, and what pages it really has.
//!
//! [`NodeArenas`] is a node's memory at a fixed address: reserved to its exact size, committed with
//! pages of one kind, touched first by the node's own threads, and read back. [`Mapping`] is memory
//! anywhere. Both own their bytes and give them back on drop. Knows nothing of tensors or
//! placements; used by weights, sequence state and activations.
//!
//! | file | holds |
//! | --- | --- |
//! | `address` | where arenas lie; who has which addresses |
//! | `arena` | reservations and access |
//! | `span` | which policy holds for which bytes |
//! | `commit` | from a reservation to pages, with stated fallbacks |
//! | `pages` | kinds of pages, and whether the pools hold enough |
//! | `touch` | the first touch |
//! | `proof` | nodes and sizes of the pages there are |
//! | `refusal` | why the kernel said no |
//! | `smaps` | the text of `/proc/self/smaps` |
//! | `mapping` | memory anywhere |
//! | `file_range` | part of a file, in its page cache |

mod address;
mod arena;
mod commit;
mod file_range;
mod mapping;
mod pages;
mod proof;
mod refusal;
mod smaps;
mod span;
mod touch;

pub use address::{base_address, stride_bytes};
pub use arena::{Arena, NodeArenas};
pub use commit::Committed;
pub use file_range::FileRange;
pub use mapping::Mapping;
pub use pages::PageKind;
pub use proof::{ArenaReport, Evidence};
pub use smaps::PageReport;
pub(crate) use span::equal_part_bytes;
pub use touch::{TouchPiece, first_touch, touch_pieces};

/// Size of a huge page on `x86_64`; arenas, and mappings of at least this size, are aligned to it.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The next multiple of `align`; a size past all memory stays past it, for the kernel to refuse.
pub(crate) fn round_up(n_bytes: usize, align: usize) -> usize {
    n_bytes
        .checked_next_multiple_of(align)
        .unwrap_or(usize::MAX)
}
