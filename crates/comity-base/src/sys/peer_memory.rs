//! Memory of another process of this user, read by the system without its help (`process_vm_readv`).
//!
//! Linux only. The reader needs what a debugger needs: the same user and a security policy that allows it.
//!
//! Processes that Linux's Yama lets read this one: its ancestors, and one process more that it names, with all that descends from that one.
//!
//! ```text
//!   launcher 40 --- rank 41        scope 1: 40 may read 41, but 42 may not
//!            \----- rank 42        41 names 40, the nearest ancestor of all ranks: then 42 may, and every other child of 40
//! ```
//! Where Yama's scope is 0, or this system has no Yama, nothing needs to be named. In scope 2 and 3 naming does not help.

use std::{
    fs, io,
    os::unix::{fs::MetadataExt, net::UnixStream},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

/// Bytes of messages that this process has read in others.
static PULLED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of message bytes that this process has read in the memory of other ranks, so far.
pub fn bytes_pulled() -> u64 {
    PULLED.load(Ordering::Relaxed)
}

/// The process and the user at the other end of a Unix socket. The process is 0 where this one's namespace has no number for it, as between
/// two containers. rustix has this call, with a number that cannot be 0: it takes such a success for an error.
#[cfg(target_os = "linux")]
pub fn peer_of(socket: &UnixStream) -> io::Result<libc::ucred> {
    use std::os::fd::AsRawFd;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: an open socket, and a place of `len` bytes for what the option gives.
    let got = unsafe {
        let place = (&raw mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len)
    };
    if got == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// The user at the other end of a Unix socket, also where that end is in another container.
///
/// # Errors
/// The system's, for a descriptor that is no such socket.
///
/// ```
/// let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
/// assert!(comity::tools::peer_user(&here).is_ok());
/// ```
#[cfg(target_os = "linux")]
pub fn peer_user(socket: &UnixStream) -> io::Result<u32> {
    peer_of(socket).map(|peer| peer.uid)
}

/// The memory of one process.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory {
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "only Linux lets a process copy from another")
    )]
    pid: i32,
}

impl Default for PeerMemory {
    fn default() -> Self {
        Self::own()
    }
}

impl PeerMemory {
    /// Returns the memory of the process at the other end of a Unix socket: the process that connected, or the process that listened.
    #[cfg(target_os = "linux")]
    pub fn of(socket: &UnixStream) -> io::Result<Self> {
        match peer_of(socket)?.pid {
            0 => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "a process that this namespace of processes does not show",
            )),
            pid => Ok(Self { pid }),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &UnixStream) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// So many bytes that were read were of messages.
    pub fn count(n: usize) {
        PULLED.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Returns the memory of this process.
    pub fn own() -> Self {
        Self { pid: std::process::id() as i32 }
    }

    /// Copy what lies at address `at` there to the begin of `dst`: how many bytes, never 0 unless `dst` is empty.
    ///
    /// Nobody keeps the other process from writing there meanwhile.
    pub fn read(self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        if dst.is_empty() {
            return Ok(0);
        }
        match self.copy(&[libc::iovec { iov_base: at as *mut _, iov_len: dst.len() }], dst)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => Ok(n),
        }
    }

    /// If this is this process: whether others could read `bytes`, as far as their first and their last byte tell. Memory of devices and
    /// secret memory cannot be read so.
    pub fn lends(self, bytes: &[u8]) -> bool {
        let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
        let ends = [first, last]
            .map(|b| libc::iovec { iov_base: std::ptr::from_ref(b).cast_mut().cast(), iov_len: 1 });
        self.copy(&ends, &mut [0; 2]).is_ok_and(|n| n == 2)
    }

    /// Copy what lies at `places` there to `dst`; how many bytes.
    #[cfg(target_os = "linux")]
    fn copy(self, places: &[libc::iovec], dst: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
        let count = places.len() as libc::c_ulong;
        // SAFETY: the system writes to `dst` alone, which is borrowed mutably; the other addresses are never followed in this process's name,
        // also when it is this process: the system copies, or refuses.
        let n = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, places.as_ptr(), count, 0) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    #[cfg(not(target_os = "linux"))]
    fn copy(self, _: &[libc::iovec], _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Process to name once a peer was refused.
static NAMED: AtomicI64 = AtomicI64::new(NOBODY);
const NOBODY: i64 = 0;
const ANYBODY: i64 = -1;
/// Ancestors looked at.
const MOST: usize = 13;

/// Position of a process among the processes of its host: its PID namespace, and its own and its ancestors' numbers there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    namespace: u64,
    pids: Vec<u32>,
}

impl Lineage {
    /// Reads this process's lineage; none where nothing has to be named, or naming does not help.
    pub fn own() -> Option<Self> {
        (yama_scope()? == 1).then(Self::read).flatten()
    }

    fn read() -> Option<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let mut pids = vec![std::process::id()];
        while pids.len() <= MOST {
            let Some(parent) = pids.last().and_then(|pid| parent_of(*pid)).filter(|p| *p > 0) else { break };
            pids.push(parent);
        }
        Some(Self { namespace, pids })
    }

    /// Encodes it for the announcement.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.namespace
            .to_le_bytes()
            .into_iter()
            .chain(self.pids.iter().flat_map(|p| p.to_le_bytes()))
            .collect()
    }

    /// Decodes a peer's announcement; none if it is empty.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (namespace, pids) = bytes.split_first_chunk()?;
        let pids = pids.as_chunks().0.iter().map(|p| u32::from_le_bytes(*p)).collect();
        Some(Self { namespace: u64::from_le_bytes(*namespace), pids })
    }

    /// The nearest process from which this one and all of `others` descend. Not the first process: everything descends from that.
    pub fn nearest<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Option<u32> {
        let mut left = self.pids.clone();
        for other in others.into_iter().filter(|o| o.namespace == self.namespace) {
            left.retain(|pid| other.pids.contains(pid));
        }
        left.first().copied().filter(|pid| *pid > 1)
    }
}

/// Yama's scope, where this system has it.
pub fn yama_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

fn parent_of(pid: u32) -> Option<u32> {
    parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent that a line of `stat` names. The name of the program stands in brackets and may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Process that this process lets read it.
#[derive(Debug)]
pub enum Tracer {}

impl Tracer {
    /// Name this process, once that is needed.
    pub fn plan(pid: u32) {
        NAMED.store(pid.into(), Ordering::Relaxed);
    }

    /// Name no one in particular: every process of this user may read this one.
    pub fn plan_any() {
        NAMED.store(ANYBODY, Ordering::Relaxed);
    }

    /// A peer was refused: name whom was planned. Whether that was done. What the program named itself is lost then, so this is for the
    /// case that a peer was refused under that.
    pub fn allow() -> bool {
        let pid = NAMED.load(Ordering::Relaxed);
        pid != NOBODY && yama_scope() == Some(1) && name(pid)
    }
}

#[cfg(target_os = "linux")]
fn name(pid: i64) -> bool {
    // SAFETY: this operation takes a number and touches no memory; -1 is its word for any process.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn name(_: i64) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_socket_is_read() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = PeerMemory::of(&a).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32, "both ends are here");
        let words: Vec<u8> = (0..=255).collect();
        let mut copy = [0; 100];
        assert_eq!(peer.read(words[7..].as_ptr() as u64, &mut copy).unwrap(), 100);
        assert_eq!(copy, words[7..107]);
        assert_eq!(peer.read(0, &mut []).unwrap(), 0);
    }

    #[test]
    fn what_is_not_there_is_an_error_and_no_fault() {
        let own = PeerMemory::own();
        assert!(own.read(8, &mut [0; 8]).is_err());
        assert!(own.read(u64::MAX - 3, &mut [0; 8]).is_err());
        let nobody = PeerMemory { pid: i32::MAX };
        assert_eq!(nobody.read(8, &mut [0; 8]).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        let here = [1u8; 64];
        assert!(own.lends(&here) && !own.lends(&[]));
        // A page that may not be read, right behind one that may.
        let page = rustix::param::page_size();
        let map = crate::sys::Mapping::private(2 * page).unwrap();
        // SAFETY: the second page of this test's own mapping, which nobody reads.
        unsafe {
            let second = map.as_ptr().add(page).cast();
            rustix::mm::mprotect(second, page, rustix::mm::MprotectFlags::empty()).unwrap();
        }
        // SAFETY: this test's own mapping. Nobody reads the bytes: the system refuses to.
        let bytes = unsafe { std::slice::from_raw_parts(map.as_ptr(), page + 1) };
        assert!(own.lends(&bytes[..page]) && !own.lends(bytes));
        let mut copy = vec![0; 2 * page];
        assert_eq!(own.read(map.as_ptr() as u64, &mut copy).unwrap(), page, "as far as it goes");
    }
}

#[cfg(test)]
mod tracer_tests {
    use super::*;

    fn of(namespace: u64, pids: &[u32]) -> Lineage {
        Lineage { namespace, pids: pids.to_vec() }
    }

    #[test]
    fn the_nearest_common_ancestor_is_named() {
        let me = of(7, &[41, 40, 20, 1]);
        assert_eq!(me.nearest(&[of(7, &[42, 40, 20, 1])]), Some(40));
        assert_eq!(me.nearest(&[of(7, &[42, 40, 20, 1]), of(7, &[43, 39, 20, 1])]), Some(20));
        assert_eq!(me.nearest(&[of(7, &[44, 41, 40, 20, 1])]), Some(41), "a rank that this one started");
        assert_eq!(me.nearest(&[of(7, &[50, 1])]), None, "everything descends from the first process");
        assert_eq!(me.nearest(&[of(8, &[42, 1])]), Some(41), "a number of another namespace says nothing");
    }

    #[test]
    fn a_lineage_survives_its_bytes_and_nonsense_is_none() {
        let me = of(u64::MAX - 1, &[41, 40, 1]);
        assert_eq!(Lineage::from_bytes(&me.to_bytes()), Some(me));
        assert_eq!(Lineage::from_bytes(&[]), None);
        assert_eq!(Lineage::from_bytes(&[1; 7]), None);
        assert!(of(0, &[1; MOST + 1]).to_bytes().len() <= 64, "what a rank may announce");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_parent() {
        let own = Lineage::read().unwrap();
        assert_eq!(own.pids[0], std::process::id());
        assert_eq!(own.pids[1], std::os::unix::process::parent_id());
        assert_eq!(parent_in("12 (a) b) (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12"), None);
    }
}
