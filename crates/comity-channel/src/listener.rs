//! Sockets that others can connect to: at an address, or by a name on this host.

use super::stream::Stream;
use crate::sys::tcp_socket;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
};

const BACKLOG: i32 = 1024;

/// A socket that others can connect to.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    #[allow(dead_code, reason = "the second field is kept for its drop")]
    Unix(UnixListener, Unlink),
}

impl Listener {
    /// At exactly this address; port 0 stands for any. Nobody can connect before [`listen`](Self::listen): strangers would queue
    /// where nobody turns them away.
    pub fn tcp(at: SocketAddr) -> io::Result<Self> {
        let socket = tcp_socket(Domain::for_address(at))?;
        // Lets a port be used again at once; it does not let two listen on it.
        socket.set_reuse_address(true)?;
        if at.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&at.into())?;
        socket.set_nonblocking(true)?;
        Ok(Self::Tcp(socket.into()))
    }

    /// For this host only. On Linux the name is outside the file system and leaves nothing there.
    pub fn unix(name: &str) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&unix_addr(name)?)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self::Unix(socket.into(), Unlink(unix_path(name))))
    }

    /// Take connections from now on.
    pub fn listen(&self) -> io::Result<()> {
        Ok(rustix::net::listen(self, BACKLOG)?)
    }

    /// Takes a socket that listens already.
    pub fn from_tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// The address of a TCP listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(l) => l.local_addr(),
            Self::Unix(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The next connection, and where it comes from.
    pub(super) fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Self::Tcp(l) => {
                let (s, from) = l.accept()?;
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
                Ok((Stream::Tcp(s), Some(from.ip())))
            }
            Self::Unix(l, _) => {
                let (s, _) = l.accept()?;
                s.set_nonblocking(true)?;
                check_user(&s)?;
                Ok((Stream::Unix(s), None))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Tcp(l) => l.as_fd(),
            Self::Unix(l, _) => l.as_fd(),
        }
    }
}

/// An error if the other end is another user's process, which has no business here, key or not.
#[cfg(target_os = "linux")]
pub(crate) fn check_user(stream: &UnixStream) -> io::Result<()> {
    if crate::sys::peer_of(stream)?.uid == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "its process belongs to another user"))
    }
}

/// Elsewhere the socket lies in a directory of this user's alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn check_user(_: &UnixStream) -> io::Result<()> {
    Ok(())
}

/// Removes a socket's name from the file system in the end.
#[derive(Debug)]
pub struct Unlink(Option<PathBuf>);

impl Drop for Unlink {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the path of a named socket in the file system, if it has one.
fn unix_path(name: &str) -> Option<PathBuf> {
    (!cfg!(target_os = "linux")).then(|| std::env::temp_dir().join(name))
}

/// The address of a socket by name.
#[cfg(target_os = "linux")]
pub(crate) fn unix_addr(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// The address of a socket by name: only Linux has names outside the file system. On macOS the temporary directory is this
/// user's alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unix_addr(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(unix_path(name).unwrap_or_default())
}
