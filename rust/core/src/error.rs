//! The one error type of the engine.
//!
//! Variants carry what was found and what was expected; the wording is here and nowhere else.
//! Knows nothing of Python: the binding maps each variant to a class of `numamirror.errors`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything that can go wrong in the engine, in words for the person at the terminal.
///
/// Messages are lower case, without a full stop; [`Error::hint`] adds what to do, when there is
/// something to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The call and what it was applied to.
        call: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Memory could not be had.
    #[error("not enough memory for {what}: {wanted_bytes} bytes asked for: {source}")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Size of the request in bytes.
        wanted_bytes: usize,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A limit on memory or addresses is too low.
    #[error(
        "not enough memory for {what}: {wanted_bytes} bytes asked for, {limit} is {limit_bytes} \
         bytes, of which {used_bytes} are in use"
    )]
    MemoryLimit {
        /// What the memory was for.
        what: String,
        /// Size of the request in bytes.
        wanted_bytes: u64,
        /// The limit that was reached.
        limit: MemoryLimit,
        /// Its value.
        limit_bytes: u64,
        /// What counts against it already.
        used_bytes: u64,
    },
    /// A node has too little free memory for what is bound to it.
    #[error(
        "not enough memory on node {node} for {what}: {wanted_bytes} more bytes needed, \
         {free_bytes} are free, of which {kept_bytes} are kept for others"
    )]
    NodeMemory {
        /// What the memory was for.
        what: String,
        /// The kernel's number of the node.
        node: u32,
        /// Bytes still to be placed there.
        wanted_bytes: u64,
        /// Free and reclaimable bytes.
        free_bytes: u64,
        /// Bytes that are never taken.
        kept_bytes: u64,
    },
    /// Something else lies where a node's memory has to be.
    #[error("addresses {start:#x} to {end:#x} for {what} are taken by: {occupant}")]
    AddressTaken {
        /// What the addresses were for.
        what: String,
        /// First address wanted.
        start: usize,
        /// First address behind it.
        end: usize,
        /// The occupant's line of `/proc/self/maps`.
        occupant: String,
    },
    /// An option or argument has a value that can't be used.
    #[error("{name}: {found}; expected {expected}")]
    BadRequest {
        /// Name of the option or argument.
        name: String,
        /// What was given.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// Something the file or the caller asks for does not exist here.
    #[error("unsupported {kind}: {name}; known: {known}")]
    Unsupported {
        /// What kind of thing (quantization type, instruction set, …).
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The CPU lacks an instruction set that was asked for by name.
    #[error("instruction set {name} is not available on this cpu ({asked_by})")]
    IsaMissing {
        /// Name of the instruction set.
        name: String,
        /// The variable or option that asked for it.
        asked_by: &'static str,
    },
    /// A program was refused by the verifier.
    #[error("program refused: {place}: {problem}")]
    BadProgram {
        /// The op (index and name), slot or tensor at fault.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A weight block holds a scale that is not a finite number.
    #[error("tensor {tensor}: non-finite scale at row {row}, column {col}")]
    NonFiniteWeight {
        /// Name of the tensor.
        tensor: String,
        /// Row (expert rows counted through).
        row: usize,
        /// First column of the block.
        col: usize,
    },
    /// A forward pass gave a value that is not a finite number.
    #[error("non-finite value in the output of {place}")]
    NonFiniteActivation {
        /// The op and layer that first gave it.
        place: String,
    },
    /// The file ended, or could not be read, inside a tensor.
    #[error("tensor {tensor}: reading {path} failed: {source}")]
    ReadWeights {
        /// Name of the tensor.
        tensor: String,
        /// The file.
        path: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A sequence does not fit into the cache.
    #[error("context is full: {wanted} more tokens asked for, room for {room}")]
    ContextFull {
        /// Tokens that were to be added.
        wanted: usize,
        /// Tokens that would still fit.
        room: usize,
    },
    /// The engine was used in a child process after `fork`.
    #[error("engine of process {owner} used in process {user} after fork")]
    Forked {
        /// Process that made the engine.
        owner: u32,
        /// Process that called it.
        user: u32,
    },
    /// The run was stopped from outside, between two ops.
    #[error("interrupted")]
    Interrupted,
    /// A worker thread panicked: a fault of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// What the user can do about it, when there is something to do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NonFiniteWeight { .. } => Some(
                "the file is damaged or was made wrongly: fetch it again or compare its checksum",
            ),
            Self::ContextFull { .. } => Some("raise --ctx-size, or shorten the prompt"),
            Self::MemoryLimit { limit, .. } => limit.hint(),
            Self::NodeMemory { .. } => {
                Some("free memory on that node, or place less there (--numa, --override-tensor)")
            }
            Self::AddressTaken { .. } => Some(
                "another library of this process has mapped fixed addresses: load the model \
                 before it, or in a process of its own",
            ),
            Self::Forked { .. } => {
                Some("load the model in the child process, or use the spawn start method")
            }
            _ => None,
        }
    }
}

/// Limits that a request for memory can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// `RLIMIT_AS`: address space of the process.
    AddressSpace,
    /// `RLIMIT_DATA`: private writable memory of the process.
    Data,
    /// The system's commit limit, in force with `vm.overcommit_memory=2`.
    Commit,
    /// What one node's arenas of all models may span.
    NodeAddresses,
}

impl MemoryLimit {
    fn hint(self) -> Option<&'static str> {
        match self {
            Self::AddressSpace => {
                Some("raise the limit: ulimit -v unlimited (LimitAS=infinity in a systemd unit)")
            }
            Self::Data => {
                Some("raise the limit: ulimit -d unlimited (LimitDATA=infinity in a systemd unit)")
            }
            Self::Commit => Some("sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio"),
            Self::NodeAddresses => None,
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AddressSpace => "RLIMIT_AS",
            Self::Data => "RLIMIT_DATA",
            Self::Commit => "the commit limit (vm.overcommit_memory=2)",
            Self::NodeAddresses => "the address range of a node",
        })
    }
}

/// Result with the engine's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The first error that any of several workers meets.
#[derive(Debug, Default)]
pub(crate) struct FirstError(Mutex<Option<Error>>);

impl FirstError {
    /// Keeps the error, unless there was one before.
    pub(crate) fn report(&self, error: Error) {
        self.lock().get_or_insert(error);
    }

    /// Whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// The error, if there is one, once all workers are done.
    pub(crate) fn into_result(self) -> Result<()> {
        let error = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        error.map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
