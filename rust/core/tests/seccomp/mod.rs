//! Lets the kernel refuse a system call to the calling thread and those it starts, as a container
//! does.
#![expect(unsafe_code, reason = "installs a filter of system calls")]

use std::io::Write;

/// Offset of an argument's lower half in `struct seccomp_data`; the number of the call is at 0.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Makes `call` fail with `errno` where its second argument is not 0 and, if given, its third is
/// `third`. Only for the calling thread and its future ones.
///
/// Returns: false, and says that the test is skipped, where filters can't be installed.
pub(crate) fn refuse(call: libc::c_long, third: Option<libc::c_int>, errno: libc::c_int) -> bool {
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let is = |value, jt, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, jt, jf);
    let answer = |value| step(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    let mut steps = [
        load(0),
        is(call as u32, 0, 5),
        load(argument(1)),
        is(0, 3, 0),
        load(argument(2)),
        third.map_or(is(0, 0, 0), |value| is(value as u32, 0, 1)),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live for the calls, which copy them; jumps end inside it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    if !installed {
        let _ = writeln!(std::io::stderr(), "skipped: system calls can't be filtered");
    }
    installed
}
