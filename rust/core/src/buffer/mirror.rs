//! `MIRROR`: a whole copy on each node; each thread reads its own node's.

use super::{BufferType, Extent, Home, Request, whole};

pub(super) static TYPE: BufferType = BufferType {
    name: "MIRROR",
    summary: "a whole copy on each node",
    is_family: false,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    whole(request, Home::EveryNode)
}
