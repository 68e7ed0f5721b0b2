//! `NODE0`, `NODE1`, …: all of a tensor on one node, whose threads alone work on it.

use super::{BufferType, Extent, Home, Request};

pub(super) static TYPE: BufferType = BufferType {
    name: "NODE",
    summary: "all on one node; its threads compute, the others wait",
    is_family: true,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    let whole = Extent {
        home: Home::Node(request.node),
        panels: 0..request.n_panels,
    };
    if request.n_panels == 0 {
        Vec::new()
    } else {
        vec![whole]
    }
}
