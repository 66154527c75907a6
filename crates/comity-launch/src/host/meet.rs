//! Things that the ranks need to find each other: a job key, a store, and addresses for the libraries that bring their own.
use crate::address::loopback;
use crate::elastic::{self, TakenIn};
use crate::protocol::Go;
use crate::request::Setting;
use comity::Key;
use comity::tools::Store;
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Bytes of a rank's word in the file of root causes.
const WORD: u64 = 4;

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(bytes)
}

/// Time in which the ranks must come together, as they read it themselves; a rank reports a broken value.
pub(crate) fn join_limit(env: &[Setting]) -> Duration {
    let name = "COMITY_JOIN_TIMEOUT";
    let set = env.iter().rev().find(|s| s.name == name).map(|s| s.value.clone());
    let given = set.or_else(|| std::env::var_os(name)).and_then(|s| s.to_str()?.parse().ok());
    given.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(Duration::from_secs(60))
}

/// Everything by which the ranks of one job meet; it must live as long as they do.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// Its place, without the key.
    go: Go,
    /// None where it is on another host.
    store: Option<Store>,
    /// Addresses kept free for those who are told of them.
    kept: Vec<ReservedPort>,
    /// None in a job without a key.
    pub(crate) key_file: Option<HandedFile>,
    /// File in which ranks write which rank their failure follows from ([`root_cause_of`](Self::root_cause_of)).
    pub(crate) root_causes: HandedFile,
    /// Files that variables of these names lead to.
    files: Vec<(String, HandedFile)>,
}

/// A key and a name for a job; the key is of zeros where none is wanted. A job that takes in processes of others has the key and the name that
/// the user gives, if any.
pub(crate) fn identity(insecure: bool, is_elastic: bool) -> io::Result<(Key, String)> {
    if is_elastic && let Some(given) = elastic::given_key(insecure).map_err(io::Error::other)? {
        return Ok((given, elastic::name()));
    }
    let key = if insecure { Ok(Key::from([0; 32])) } else { Key::random() };
    let job = random::<8>()?.iter().map(|b| format!("{b:02x}")).collect();
    Ok((key.map_err(io::Error::other)?, job))
}

impl Meeting {
    pub(crate) fn open(size: usize, join: Duration, insecure: bool, is_elastic: bool) -> io::Result<Self> {
        let (key, job) = identity(insecure, is_elastic)?;
        let store = Store::start((loopback(), 0).into(), size, &key, &job, join).map_err(io::Error::other)?;
        // MLX's ring dies of a group of one; without its variables it runs alone, as it should.
        let ring = if size > 1 { size } else { 0 };
        let kept: Vec<_> = (0..ring).map(|_| ReservedPort::new()).collect::<io::Result<_>>()?;
        let files = match ring {
            0 => Vec::new(),
            _ => vec![("MLX_HOSTFILE".into(), host_list(&kept))],
        };
        let master = ReservedPort::new()?;
        let go = Go {
            job,
            store: vec![store.addr()],
            master: master.addr,
            vars: Vec::new(),
            files,
            restarted: Vec::new(),
            key: (!insecure).then(|| *key.bytes()),
        };
        let kept = kept.into_iter().chain([master]).collect();
        Self::of(go, size, Some(store), kept)
    }

    /// A meeting of `world` ranks at this place, whose store runs here or elsewhere.
    pub(crate) fn of(
        mut go: Go,
        world: usize,
        store: Option<Store>,
        kept: Vec<ReservedPort>,
    ) -> io::Result<Self> {
        let key_file = go.key.take().map(|key| HandedFile::secret(&key)).transpose()?;
        let file = |(name, text): (String, String)| Ok((name, HandedFile::readable(text.as_bytes())?));
        let files = std::mem::take(&mut go.files).into_iter().map(file).collect::<io::Result<_>>()?;
        let root_causes = HandedFile::writable(world as u64 * WORD)?;
        Ok(Self { go, store, kept, key_file, root_causes, files })
    }

    pub(crate) fn job(&self) -> &str {
        &self.go.job
    }

    /// Variables that tell libraries of the job.
    pub(crate) fn vars(&self) -> impl Iterator<Item = (&str, String)> {
        let files = self.files.iter().map(|(name, file)| (name.as_str(), file.path()));
        files.chain(self.go.vars.iter().map(|(name, value)| (name.as_str(), value.clone())))
    }

    /// While ranks are missing, have it said which.
    pub(crate) fn on_waiting(&self, tell: impl Fn(&str) + Send + 'static) {
        if let Some(store) = &self.store {
            store.on_waiting(tell);
        }
    }

    /// Addresses at which the ranks meet, with a comma between several.
    pub(crate) fn store(&self) -> String {
        self.go.store.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }

    /// For torch's `env://`.
    pub(crate) fn master(&self) -> SocketAddr {
        self.go.master
    }

    /// Root cause, as rank `by` knows it: for a meeting that came to nothing, the store knows; for a group that failed, it stands in
    /// a file that all ranks have (`COMITY_ROOT_CAUSE_FD`): four bytes for each, that rank's number and one.
    pub(crate) fn root_cause_of(&self, by: usize) -> Option<usize> {
        let mut word = [0; WORD as usize];
        let read = self.root_causes.read(&mut word, by as u64 * WORD).ok()?;
        let told = u32::from_ne_bytes(word).checked_sub(1).filter(|_| read == word.len());
        let met = || self.store.as_ref()?.culprit().filter(|rank| *rank != by);
        told.map(|rank| rank as usize).or_else(met)
    }

    /// Forgets what ranks wrote of a failure that the job has survived.
    pub(crate) fn forget_root_causes(&self) {
        // Where that fails, a later failure may be laid to the wrong rank, which is said with all others.
        let _ = self.root_causes.clear();
    }

    /// Hears of processes that the running job takes in, where the store is here.
    pub(crate) fn taken_in(&self, guests: usize) -> io::Result<Option<TakenIn>> {
        self.store.as_ref().map(|store| TakenIn::of(store, guests)).transpose()
    }

    /// Rank `rank` has failed: those that still wait for it need not.
    pub(crate) fn lost(&self, rank: usize, how: &str) {
        if let Some(store) = &self.store {
            store.lost(rank, how);
        }
    }

    /// The descriptors that a rank inherits.
    pub(crate) fn handed(&self) -> Vec<RawFd> {
        let own = self.key_file.iter().chain([&self.root_causes]);
        own.chain(self.files.iter().map(|f| &f.1)).map(HandedFile::fd).collect()
    }

    /// Frees the addresses where holding them would keep the ranks from taking them.
    pub(crate) fn release(&mut self) {
        if !cfg!(target_os = "linux") {
            self.kept.iter_mut().for_each(|r| r.socket = None);
        }
    }
}

/// `[["127.0.0.1:5000"],["127.0.0.1:5001"]]`: an address per rank.
fn host_list(ring: &[ReservedPort]) -> String {
    let hosts: Vec<[String; 1]> = ring.iter().map(|r| [r.addr.to_string()]).collect();
    serde_json::json!(hosts).to_string()
}

/// A port that no one else is given.
///
/// The socket is bound but does not listen. On Linux such a socket keeps the kernel from handing the port to
/// others, and still lets a listener take it that sets SO_REUSEADDR, as servers do.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub(crate) addr: SocketAddr,
    socket: Option<Socket>,
}

impl ReservedPort {
    fn new() -> io::Result<Self> {
        Self::at(loopback())
    }

    pub(crate) fn at(ip: IpAddr) -> io::Result<Self> {
        Self::on((ip, 0).into())
    }

    /// At any port of this address, whose interface counts.
    pub(crate) fn on(mut at: SocketAddr) -> io::Result<Self> {
        at.set_port(0);
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        let addr = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { addr, socket: Some(socket) })
    }
}

/// From which address of this host packets go there.
pub(crate) fn local_toward(to: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    // No packet is sent: connecting only looks up the way.
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    let mut own = socket.local_addr()?;
    own.set_port(0);
    Ok(own)
}

/// Below it are the numbers that shell scripts use for themselves.
const LOWEST: RawFd = 100;

/// A few bytes that ranks inherit as an open file, so that they are in no argument, variable or directory.
#[derive(Debug)]
pub(crate) struct HandedFile {
    fd: OwnedFd,
    /// Path of the file, which stays until the job ends: an inherited descriptor cannot be opened anew without it.
    #[cfg(not(target_os = "linux"))]
    name: Option<tempfile::TempPath>,
}

impl HandedFile {
    #[cfg(test)]
    pub(crate) fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads bytes that ranks have written at offset `at`.
    pub(crate) fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.fd, buffer, at)?)
    }

    /// Writes zeros over what ranks have written.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let length = rustix::fs::fstat(&self.fd)?.st_size;
        rustix::io::pwrite(&self.fd, &vec![0; usize::try_from(length).unwrap_or(0)], 0)?;
        Ok(())
    }

    /// The number under which a rank has it.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(target_os = "linux")]
impl HandedFile {
    /// Without any name in a file system.
    pub(crate) fn secret(bytes: &[u8]) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
        let mut file = File::from(nameless(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all(bytes)?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { fd: raise(file)? })
    }

    /// To be opened by [`path`](Self::path).
    pub(crate) fn readable(bytes: &[u8]) -> io::Result<Self> {
        Self::secret(bytes)
    }

    /// To be written by the ranks: so many zeros.
    pub(crate) fn writable(length: u64) -> io::Result<Self> {
        use rustix::fs::MemfdFlags;
        let file = File::from(nameless(MemfdFlags::CLOEXEC)?);
        file.set_len(length)?;
        Ok(Self { fd: raise(file)? })
    }

    /// Opens anew, from the first byte, in every process that has inherited the descriptor.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd())
    }
}

/// A file in memory.
#[cfg(target_os = "linux")]
fn nameless(flags: rustix::fs::MemfdFlags) -> io::Result<OwnedFd> {
    rustix::fs::memfd_create("comity", flags)
        .map_err(|e| comity::tools::refused_call("memfd_create", "to hand ranks the job's key", e))
}

#[cfg(not(target_os = "linux"))]
impl HandedFile {
    /// Without any name in a file system.
    pub(crate) fn secret(bytes: &[u8]) -> io::Result<Self> {
        Ok(Self { name: None, ..Self::readable(bytes)? })
    }

    /// To be written by the ranks: so many zeros.
    pub(crate) fn writable(length: u64) -> io::Result<Self> {
        Self::secret(&vec![0; usize::try_from(length).unwrap_or(0)])
    }

    /// To be opened by [`path`](Self::path).
    pub(crate) fn readable(bytes: &[u8]) -> io::Result<Self> {
        let mut named = tempfile::Builder::new().prefix("comity-").tempfile()?;
        named.write_all(bytes)?;
        let (file, name) = named.into_parts();
        Ok(Self { fd: raise(file)?, name: Some(name) })
    }

    /// The file's path, while this value lives.
    pub(crate) fn path(&self) -> String {
        self.name.as_ref().map(|n| n.display().to_string()).unwrap_or_default()
    }
}

/// The same file under a number that is out of the way, unless the limit of open files is too low for that.
pub(crate) fn raise(file: File) -> io::Result<OwnedFd> {
    let dup = |lowest| rustix::io::fcntl_dupfd_cloexec(file.as_fd(), lowest);
    Ok(dup(LOWEST).or_else(|_| dup(3))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    const JOIN: Duration = Duration::from_secs(60);

    #[test]
    fn reserved_addresses_differ_and_can_be_taken_by_a_server() {
        let mut meeting = Meeting::open(3, JOIN, false, false).unwrap();
        meeting.release();
        let mut addrs: Vec<_> = meeting.kept.iter().map(|r| r.addr).collect();
        assert!(addrs.contains(&meeting.master()));
        addrs.push(meeting.store().parse().unwrap());
        addrs.sort();
        addrs.dedup();
        assert_eq!(addrs.len(), 5);
        let ring = meeting.kept.iter().take(3);
        let servers: Vec<_> = ring.map(|r| TcpListener::bind(r.addr).unwrap()).collect();
        std::net::TcpStream::connect(servers[1].local_addr().unwrap()).unwrap();
        // torch listens on every address of the machine.
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, meeting.master().port())).unwrap();
    }

    #[test]
    fn root_cause_is_read_where_a_rank_wrote_it() {
        let meeting = Meeting::open(4, JOIN, false, false).unwrap();
        assert_eq!(meeting.root_cause_of(2), None);
        rustix::io::pwrite(meeting.root_causes.file(), &8u32.to_ne_bytes(), 8).unwrap();
        assert_eq!(
            (meeting.root_cause_of(2), meeting.root_cause_of(1), meeting.root_cause_of(9)),
            (Some(7), None, None)
        );
    }

    #[test]
    fn the_host_file_is_a_list_of_lists() {
        let ring = [ReservedPort::new().unwrap(), ReservedPort::new().unwrap()];
        assert_eq!(host_list(&ring), format!("[[\"{}\"],[\"{}\"]]", ring[0].addr, ring[1].addr));
        assert_eq!(Meeting::open(1, JOIN, true, false).unwrap().vars().count(), 0);
        assert_eq!(Meeting::open(2, JOIN, true, false).unwrap().vars().count(), 1);
    }

    #[test]
    fn it_can_be_read_again_and_not_written() {
        let handed = HandedFile::readable(b"some bytes").unwrap();
        assert!(handed.fd() >= LOWEST);
        for _ in 0..2 {
            assert_eq!(std::fs::read(handed.path()).unwrap(), b"some bytes");
        }
        if cfg!(target_os = "linux") {
            assert!(rustix::io::pwrite(&handed.fd, b"x", 0).is_err());
        }
    }
}
