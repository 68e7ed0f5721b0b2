//! `SPLIT`: output rows dealt to nodes; each node's threads read only their node's rows.

use super::{BufferType, Extent, Home, Request};
use crate::topology::row_shares;

pub(super) static TYPE: BufferType = BufferType {
    name: "SPLIT",
    summary: "rows dealt to nodes by their threads, one copy in all",
    is_family: false,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    let shares = row_shares(request.n_panels, request.node_threads)
        .into_iter()
        .enumerate();
    let extents = shares.map(|(node, panels)| Extent {
        home: Home::Node(node),
        panels,
    });
    extents.filter(|extent| !extent.panels.is_empty()).collect()
}
