//! The only door to the operating system: calls that need `unsafe` or differ between systems.
#![allow(unsafe_code, reason = "calls into the system")]

pub mod clock;
mod cores;
pub mod cuda;
mod fds;
pub mod here;
mod hidden;
mod interfaces;
pub(crate) mod library;
mod map;
pub mod mpi;
pub mod nccl;
mod peer_memory;
mod process;
mod tcp;
pub mod verbs;
mod waker;

pub use cores::{leave_core, thread_number, waited_for_processor, wants_core};
pub use fds::{inherited, recv_bytes, recv_fd, send_byte_with, send_fd};
pub use here::fnv;
pub use hidden::{HiddenBytes, traceless};
pub use interfaces::{Interface, in_network, interfaces};
pub(crate) use map::Words;
pub use map::{Mapping, Region, SharedMemory};
#[cfg(target_os = "linux")]
pub use peer_memory::peer_of;
#[cfg(target_os = "linux")]
pub use peer_memory::peer_user;
pub use peer_memory::{Lineage, PeerMemory, Tracer, bytes_pulled, yama_scope};
pub use process::{HomeProcess, JobPlace, at_exit, end_with, process_number};
#[cfg(target_os = "linux")]
pub use tcp::uses_paths;
pub use tcp::{has_arrived, has_paths, least_round_trip, tcp_socket, unanswered, want_paths};
pub use waker::{Asking, Interrupt, Waker, give_up, interrupt_with, nap, poll_joining, poll_until};

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
