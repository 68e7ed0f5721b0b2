//! `INTERLEAVE`: pages dealt round-robin to all nodes, read by everyone: what
//! `numactl --interleave=all` gives, and what the other types are measured against.

use super::{BufferType, Extent, Home, Request, whole};

pub(super) static TYPE: BufferType = BufferType {
    name: "INTERLEAVE",
    summary: "pages dealt round-robin to all nodes, one copy in all",
    is_family: false,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    whole(request, Home::Interleaved)
}
