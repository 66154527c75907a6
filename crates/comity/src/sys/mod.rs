//! The only door to the operating system: calls that need `unsafe` or differ between systems.
//!
//! May import: `error`, `sync`.

pub(crate) mod clock;
mod cores;
pub(crate) mod cuda;
mod exit;
mod fds;
mod fnv;
pub(crate) mod here;
mod hidden;
mod inherited;
mod interfaces;
mod interrupt;
pub(crate) mod library;
mod map;
pub(crate) mod mpi;
mod multipath;
pub(crate) mod nccl;
mod peer_memory;
mod poll;
mod process;
mod region;
mod tracer;
#[cfg(target_os = "linux")]
mod trip;
mod unacked;
pub(crate) mod verbs;
mod waker;
mod words;

pub(crate) use cores::{leave_core, thread_number, waited_for_processor, wants_core};
pub(crate) use exit::{at_exit, end_with};
pub(crate) use fds::{recv_bytes, recv_fd, send_byte_with, send_fd};
pub(crate) use fnv::fnv;
pub(crate) use hidden::{Hidden, traceless};
pub(crate) use inherited::inherited;
pub(crate) use interfaces::{Interface, interfaces};
pub(crate) use interrupt::{Asking, give_up, nap, poll_joining};
pub use interrupt::{Interrupt, interrupt_with};
pub(crate) use map::Mapping;
#[cfg(target_os = "linux")]
pub(crate) use multipath::uses_paths;
pub(crate) use multipath::{has_paths, tcp_socket, want_paths};
#[cfg(test)]
pub(crate) use peer_memory::NO_READS;
#[cfg(target_os = "linux")]
pub(crate) use peer_memory::peer_of;
#[cfg(target_os = "linux")]
pub use peer_memory::peer_user;
pub(crate) use peer_memory::{PeerMemory, bytes_pulled};
pub(crate) use poll::poll_until;
pub use process::HomeProcess;
pub(crate) use process::{JobPlace, process_number};
pub(crate) use region::{Region, SharedMemory};
pub(crate) use tracer::{Lineage, Tracer, yama_scope};
#[cfg(target_os = "linux")]
pub(crate) use trip::{least_round_trip, unanswered};
pub(crate) use unacked::has_arrived;
pub(crate) use waker::Waker;
pub(crate) use words::Words;

/// None: this system does not tell the time for which nothing has come back.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unanswered(_: std::os::fd::BorrowedFd<'_>) -> Option<std::time::Duration> {
    None
}

/// The system's words; where it has no such call, or a filter of system calls forbids it, a sentence that names the call.
#[cfg(target_os = "linux")]
pub fn refused(call: &str, what_for: &str, e: rustix::io::Errno) -> std::io::Error {
    use rustix::io::Errno;
    let why = match e {
        Errno::NOSYS => {
            "this system does not have it (an old kernel, or a sandbox such as gVisor or seccomp)"
        }
        Errno::PERM | Errno::ACCESS => {
            "this process is not allowed to make it (a seccomp filter or another security policy)"
        }
        _ => return e.into(),
    };
    std::io::Error::new(
        std::io::Error::from(e).kind(),
        format!(
            "Comity needs the system call {call} {what_for}, but {why}; allow {call} there, or run outside of it"
        ),
    )
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_missing_system_call_is_named() {
        use rustix::io::Errno;
        let missing = refused("memfd_create", "for shared memory", Errno::NOSYS);
        assert_eq!(missing.kind(), std::io::ErrorKind::Unsupported);
        let missing = missing.to_string();
        assert!(
            missing.starts_with("Comity needs the system call memfd_create for shared memory"),
            "{missing}"
        );
        assert!(missing.contains("does not have it"), "{missing}");
        let forbidden = refused("eventfd", "to wake its threads", Errno::PERM).to_string();
        assert!(forbidden.contains("eventfd") && forbidden.contains("not allowed"), "{forbidden}");
        // Of everything else the system's own words tell.
        assert_eq!(refused("eventfd", "", Errno::MFILE).raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }
}
