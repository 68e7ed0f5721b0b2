//! `MIRROR`: a whole copy on each node; each thread reads its own node's.

use super::{BufferType, Extent, Home, Request};

pub(super) static TYPE: BufferType = BufferType {
    name: "MIRROR",
    summary: "a whole copy on each node",
    is_family: false,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    let whole = Extent {
        home: Home::EveryNode,
        panels: 0..request.n_panels,
    };
    if request.n_panels == 0 {
        Vec::new()
    } else {
        vec![whole]
    }
}
