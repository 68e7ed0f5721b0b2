//! Which memory policy holds for which bytes: one span an arena, and one for what is interleaved.
//!
//! Numbers only; `commit` applies policies, `touch` and `proof` go by them.

use std::ops::Range;

use super::HUGE_PAGE_BYTES;
use super::arena::NodeArenas;
use crate::topology::NodeId;
use crate::workers::NodeIndex;

/// Where the kernel is to take a span's pages from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Wherever the thread is that touches first.
    FirstTouch,
    /// One node.
    Bind(NodeId),
    /// Several nodes in turn.
    Interleave(Vec<NodeId>),
}

impl Policy {
    /// What each node has to have for `n_bytes` under this policy: whole huge pages of an equal
    /// part.
    pub(super) fn claims(&self, n_bytes: usize) -> Vec<(Option<NodeId>, usize)> {
        match self {
            Self::FirstTouch => vec![(None, n_bytes)],
            Self::Bind(node) => vec![(Some(*node), n_bytes)],
            Self::Interleave(nodes) => {
                let each = equal_part_bytes(n_bytes, nodes.len());
                nodes.iter().map(|node| (Some(*node), each)).collect()
            }
        }
    }
}

/// The most that one of `n_nodes` nodes gets of `n_bytes` when huge pages are dealt to them in
/// turn.
pub(crate) fn equal_part_bytes(n_bytes: usize, n_nodes: usize) -> usize {
    let n_pages = n_bytes.div_ceil(HUGE_PAGE_BYTES);
    n_pages.div_ceil(n_nodes).saturating_mul(HUGE_PAGE_BYTES)
}

/// Consecutive bytes of one arena under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Whose arena.
    pub(super) node: NodeIndex,
    /// Whole huge pages of it.
    pub(super) bytes: Range<usize>,
    pub(super) policy: Policy,
    /// Every node's threads touch it, not the arena's own.
    pub(super) is_shared: bool,
}

impl NodeArenas {
    /// All bytes of all arenas, by policy.
    pub(super) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::with_capacity(self.n_nodes() + 1);
        for (node, arena) in self.iter() {
            let shared = match node {
                NodeIndex(0) => self.interleaved.clone(),
                _ => arena.reserved_bytes()..arena.reserved_bytes(),
            };
            let own = match arena.kernel_node() {
                Some(kernel_node) => Policy::Bind(kernel_node),
                None => Policy::FirstTouch,
            };
            let dealt = self.dealt_nodes();
            let policy = if dealt.len() > 1 {
                Policy::Interleave(dealt)
            } else {
                own.clone()
            };
            let bytes = 0..shared.start;
            for (bytes, policy, is_shared) in [(bytes, own, false), (shared, policy, true)] {
                if !bytes.is_empty() {
                    spans.push(Span {
                        node,
                        bytes,
                        policy,
                        is_shared,
                    });
                }
            }
        }
        spans
    }

    /// The kernel's nodes in use, each once; none when an arena is for no node in particular.
    fn dealt_nodes(&self) -> Vec<NodeId> {
        let nodes: Option<Vec<NodeId>> = self.iter().map(|(_, a)| a.kernel_node()).collect();
        let mut nodes = nodes.unwrap_or_default();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: usize = HUGE_PAGE_BYTES;

    #[test]
    fn a_range_is_interleaved_over_the_kernels_nodes_if_there_are_several() {
        let spans = |kernel_nodes: &[Option<u32>]| {
            let nodes: Vec<_> = kernel_nodes.iter().map(|node| node.map(NodeId)).collect();
            let mut sizes = vec![HUGE; nodes.len()];
            sizes[0] = 4 * HUGE;
            let mut arenas = NodeArenas::reserve("test", &sizes, &nodes).unwrap();
            arenas.interleave(HUGE..4 * HUGE);
            arenas.spans()
        };
        let of = |spans: &[Span]| spans[1].policy.clone();
        let real = spans(&[Some(2), Some(5)]);
        let places: Vec<_> = real.iter().map(|s| (s.node.0, s.bytes.clone())).collect();
        assert_eq!(places, [(0, 0..HUGE), (0, HUGE..4 * HUGE), (1, 0..HUGE)]);
        assert_eq!(of(&real), Policy::Interleave(vec![NodeId(2), NodeId(5)]));
        assert_eq!(of(&spans(&[Some(2), Some(2)])), Policy::Bind(NodeId(2)));
        assert_eq!(of(&spans(&[Some(2), None])), Policy::Bind(NodeId(2)));
        assert_eq!(of(&spans(&[None, None])), Policy::FirstTouch);
    }

    #[test]
    fn each_node_has_to_have_an_equal_part() {
        let policy = Policy::Interleave([0, 1, 2].map(NodeId).to_vec());
        let claims = policy.claims(7 * HUGE);
        assert_eq!(claims, [0, 1, 2].map(|n| (Some(NodeId(n)), 3 * HUGE)));
        assert_eq!(equal_part_bytes(0, 3), 0);
    }
}
