//! TCP over several paths at once, which the kernel does (MPTCP). A socket that is made for it falls back to TCP where the other end, or
//! something between the two, does not speak it.

use socket2::{Domain, Socket, Type};
use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

/// True if sockets of this process are made for it.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Have the sockets that this process makes from now on use several paths, or not.
pub fn want_paths(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
}

/// A stream socket of TCP: with several paths where they are wanted and the kernel has them.
pub fn tcp_socket(domain: Domain) -> io::Result<Socket> {
    socket(domain, WANTED.load(Ordering::Relaxed))
}

#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "only Linux has them"))]
fn socket(domain: Domain, wants_paths: bool) -> io::Result<Socket> {
    #[cfg(target_os = "linux")]
    if wants_paths && let Ok(socket) = Socket::new(domain, Type::STREAM, Some(socket2::Protocol::MPTCP)) {
        return Ok(socket);
    }
    Socket::new(domain, Type::STREAM, None)
}

/// Succeeds if the kernel makes sockets with several paths; else says why it does not.
#[cfg(target_os = "linux")]
pub fn has_paths() -> Result<(), String> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(socket2::Protocol::MPTCP))
        .map(drop)
        .map_err(|e| format!("the kernel makes no such socket: {e}; `sysctl net.mptcp.enabled` is to be 1"))
}

/// Says why the kernel makes no sockets with several paths.
#[cfg(not(target_os = "linux"))]
pub fn has_paths() -> Result<(), String> {
    Err("only Linux has it".into())
}

/// Returns true if both ends of a connection use several paths.
#[cfg(target_os = "linux")]
pub fn uses_paths(socket: std::os::fd::BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    /// The level and the option of `linux/mptcp.h`, whose first byte is the number of paths beside the first one.
    const SOL_MPTCP: libc::c_int = 284;
    const MPTCP_INFO: libc::c_int = 1;
    let mut paths = 0u8;
    let mut len: libc::socklen_t = 1;
    // SAFETY: the kernel writes at most `len` bytes to `paths`, which is as long, and the length to `len`.
    let out = unsafe {
        libc::getsockopt(socket.as_raw_fd(), SOL_MPTCP, MPTCP_INFO, (&raw mut paths).cast(), &raw mut len)
    };
    // Also where it has fallen back there is no such option.
    out == 0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::{net::SocketAddr, os::fd::AsFd};

    /// A connection whose ends are made with or without several paths: whether each uses them.
    fn used(listens: bool, connects: bool) -> [bool; 2] {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = socket(Domain::IPV4, listens).unwrap();
        listener.bind(&any.into()).unwrap();
        listener.listen(1).unwrap();
        let a = socket(Domain::IPV4, connects).unwrap();
        a.connect(&listener.local_addr().unwrap()).unwrap();
        let b = listener.accept().unwrap().0;
        assert_eq!((a.send(b"x").unwrap(), b.recv(&mut [std::mem::MaybeUninit::uninit()]).unwrap()), (1, 1));
        [uses_paths(a.as_fd()), uses_paths(b.as_fd())]
    }

    #[test]
    fn several_paths_are_used_where_both_ends_want_them() {
        let has = has_paths().is_ok();
        assert_eq!(used(true, true), [has, has]);
        for (listens, connects) in [(true, false), (false, true), (false, false)] {
            assert_eq!(used(listens, connects), [false, false]);
        }
    }
}
