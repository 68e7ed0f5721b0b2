//! `NODE0`, `NODE1`, …: all of a tensor on one node, whose threads alone work on it.

use super::{BufferType, Extent, Home, Request, whole};

pub(super) static TYPE: BufferType = BufferType {
    name: "NODE",
    summary: "all on one node; its threads compute, the others wait",
    is_family: true,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    whole(request, Home::Node(request.node))
}
