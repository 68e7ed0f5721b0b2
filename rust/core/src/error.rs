//! The one error type of the engine.
//!
//! Variants carry what was found and what was expected; the wording is here and nowhere else.
//! Knows nothing of Python: the binding maps each variant to a class of `numamirror.errors`.

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
            Self::Forked { .. } => {
                Some("load the model in the child process, or use the spawn start method")
            }
            _ => None,
        }
    }
}

/// Result with the engine's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
