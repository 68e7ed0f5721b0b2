//! Buffer types: which panels of a tensor go into which node's memory.
//!
//! One file a type, each a pure function from the number of panels and the nodes to extents. Knows
//! neither bytes nor addresses (`weights` lays extents out) and reads nothing. To add a type, write
//! `buffer/<type>.rs` and add it to [`TYPES`].

mod interleave;
mod mirror;
mod mmap;
mod node;
mod split;

use std::ops::Range;

use crate::error::{Error, Result};

/// Every buffer type, as `-ot PATTERN=NAME` takes them.
pub static TYPES: [&BufferType; 5] = [
    &split::TYPE,
    &mirror::TYPE,
    &interleave::TYPE,
    &node::TYPE,
    &mmap::TYPE,
];

/// One buffer type.
#[derive(Debug)]
pub struct BufferType {
    /// Its name; of a family, without the node's number.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// It is a family of one for each node: `NODE0`, `NODE1`, …
    pub is_family: bool,
    place: fn(&Request<'_>) -> Vec<Extent>,
}

/// What a buffer type is asked to place.
#[derive(Debug, Clone, Copy)]
struct Request<'a> {
    /// Panels of the tensor.
    n_panels: usize,
    /// Decode threads of each node in use.
    node_threads: &'a [usize],
    /// The node named, for a family.
    node: usize,
}

/// Where an extent of panels lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// On one node, by dense index.
    Node(usize),
    /// A copy on every node, at the same offset.
    EveryNode,
    /// On all nodes, a page each in turn: one range of addresses.
    Interleaved,
    /// In no memory of ours: in the page cache of its file.
    File,
}

/// Consecutive panels with one home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Where they lie.
    pub home: Home,
    /// Which panels.
    pub panels: Range<usize>,
}

/// A buffer type chosen for a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    kind: &'static BufferType,
    node: usize,
}

impl Buffer {
    /// The buffer of this name: `SPLIT`, `MIRROR`, `NODE1`; lower case will do.
    ///
    /// # Errors
    /// [`Error::Unsupported`] listing the buffers there are with `n_nodes` nodes.
    pub fn by_name(name: &str, n_nodes: usize) -> Result<Self> {
        let upper = name.to_ascii_uppercase();
        for kind in TYPES {
            let number = upper.strip_prefix(kind.name).map(str::parse::<usize>);
            match (kind.is_family, number) {
                (true, Some(Ok(node))) if node < n_nodes => return Ok(Self { kind, node }),
                (false, _) if upper == kind.name => return Ok(Self { kind, node: 0 }),
                _ => {}
            }
        }
        Err(Error::Unsupported {
            kind: "buffer",
            name: name.into(),
            known: names(n_nodes).join(", "),
        })
    }

    /// A copy on every node: what small tensors that every thread reads whole get.
    #[must_use]
    pub fn mirror() -> Self {
        Self {
            kind: &mirror::TYPE,
            node: 0,
        }
    }

    /// Rows dealt to nodes: the default of matrices.
    #[must_use]
    pub fn split() -> Self {
        Self {
            kind: &split::TYPE,
            node: 0,
        }
    }

    /// Where `n_panels` go; every panel is in one extent, in order.
    #[must_use]
    pub fn place(&self, n_panels: usize, node_threads: &[usize]) -> Vec<Extent> {
        let request = Request {
            n_panels,
            node_threads,
            node: self.node,
        };
        (self.kind.place)(&request)
    }
}

/// All panels in one extent.
fn whole(request: &Request<'_>, home: Home) -> Vec<Extent> {
    let panels = 0..request.n_panels;
    let extent = (!panels.is_empty()).then_some(Extent { home, panels });
    extent.into_iter().collect()
}

/// Names of all buffers with `n_nodes` nodes.
#[must_use]
pub fn names(n_nodes: usize) -> Vec<String> {
    let of = |kind: &&BufferType| {
        if kind.is_family {
            let numbered = (0..n_nodes).map(|node| format!("{}{node}", kind.name));
            numbered.collect()
        } else {
            vec![kind.name.to_owned()]
        }
    };
    TYPES.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_places_every_panel_once_and_in_order() {
        for node_threads in [&[1][..], &[4, 4], &[3, 0, 2], &[1, 1, 1, 1, 1]] {
            for name in names(node_threads.len()) {
                let buffer = Buffer::by_name(&name, node_threads.len()).unwrap();
                for n_panels in [0, 1, 2, 7, 6144] {
                    let extents = buffer.place(n_panels, node_threads);
                    let mut next = 0;
                    for extent in &extents {
                        assert_eq!(extent.panels.start, next, "{name}");
                        assert!(!extent.panels.is_empty(), "{name}");
                        next = extent.panels.end;
                        if let Home::Node(node) = extent.home {
                            assert!(node < node_threads.len(), "{name}");
                        }
                    }
                    assert_eq!(next, n_panels, "{name}");
                }
            }
        }
    }

    #[test]
    fn unknown_buffers_list_the_known_ones() {
        let error = Buffer::by_name("NODE2", 2).unwrap_err().to_string();
        assert!(
            error.contains("NODE2") && error.contains("NODE0, NODE1"),
            "{error}"
        );
        for name in ["", "NODE", "NODE-1", "SPLIT1", "CUDA0"] {
            assert!(Buffer::by_name(name, 2).is_err(), "{name}");
        }
        assert!(Buffer::by_name("node1", 2).is_ok());
    }
}
