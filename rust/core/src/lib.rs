//! The engine of numamirror.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "numamirror needs Linux: it places memory and threads with Linux system calls, \
     and there is nothing to install on another system"
);

pub mod error;
