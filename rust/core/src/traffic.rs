//! How many weight bytes one token's products read: by the node that reads and the one read from.
//!
//! Arithmetic over a program and a layout; reads nothing. What `-v` shows, and what predictions of
//! speed start from.

use crate::buffer::Home;
use crate::ops::AnyOp;
use crate::ops::operand::Use;
use crate::program::Program;
use crate::topology::row_shares;
use crate::weights::Layout;

/// Bytes that each node's workers read of each node's memory, in a pass of one token.
///
/// # Args
/// `node_threads`: workers of each node in such a pass.
///
/// # Returns
/// `[reader][home]`, one row and column a node; 0 where there is nothing to read. What is
/// interleaved or stays in its file has no one home and is left out.
#[must_use]
pub fn token_reads(program: &Program, layout: &Layout, node_threads: &[usize]) -> Vec<Vec<u64>> {
    let mut reads = vec![vec![0; node_threads.len()]; node_threads.len()];
    for id in product_matrices(program) {
        let entry = &layout.entries()[id];
        for part in &entry.parts {
            let owner = match part.home {
                Home::Node(home) if node_threads[home] > 0 => {
                    reads[home][home] += (part.panels.len() * entry.panel_bytes) as u64;
                    continue;
                }
                Home::Node(home) => Some(home),
                Home::EveryNode => None,
                // Everybody reads these, of all nodes alike or of the page cache.
                Home::Interleaved | Home::File => continue,
            };
            let shares = row_shares(part.panels.len(), node_threads);
            for (reader, share) in shares.into_iter().enumerate() {
                let n_bytes = (share.len() * entry.panel_bytes) as u64;
                reads[reader][owner.unwrap_or(reader)] += n_bytes;
            }
        }
    }
    reads
}

/// Ids of the matrices of all products, one for each use.
fn product_matrices(program: &Program) -> Vec<usize> {
    let mut ids = Vec::new();
    for step in &program.steps {
        if let AnyOp::Linear(_) = step.op {
            step.op.visit(&mut |_, operand| {
                if let Use::Matrix(id) = operand {
                    ids.push(id.0 as usize);
                }
            });
        }
    }
    ids
}
