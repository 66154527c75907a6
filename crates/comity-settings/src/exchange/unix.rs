//! The host itself as an exchange, for ranks that all run on it: rank 0 answers on a Unix socket named after user and job.
//!
//! On Linux the name is abstract, so nothing is left behind whatever happens; elsewhere it is a path in the user's temporary
//! folder. Both ends see to it that the other belongs to the same user.

use super::{
    Exchange, MAX_EXCHANGE_TEXT, begin_share, checked, forget_share, left, numbers, own_text, read_all,
    write_all,
};
use crate::{
    Error, JoinCause, JoinError, Result,
    sync::lock,
    sys::{fnv, give_up},
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::BTreeMap,
    fmt,
    io::{self, PipeReader, PipeWriter},
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Mutex, Weak},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// A client that dawdles longer than this is not a rank.
const PATIENCE: Duration = Duration::from_secs(1);

/// An exchange for ranks of one host and one user.
#[derive(Debug)]
pub struct UnixExchange {
    name: String,
    /// Rank 0's end, once it has posted.
    server: Mutex<Option<Arc<Server>>>,
}

/// The servers of this process, so that a second exchange of the same name posts to the first one's.
static SERVERS: Mutex<Vec<Weak<Server>>> = Mutex::new(Vec::new());

impl UnixExchange {
    /// The exchange of this user's job `job`; nothing is opened yet.
    pub fn new(job: &str) -> Self {
        let name = format!("comity-{}-{:016x}", rustix::process::geteuid().as_raw(), fnv(job.as_bytes()));
        Self { name, server: Mutex::default() }
    }

    fn post(&self, n: usize, text: &str) -> Result<()> {
        let server = self.serve().map_err(|e| {
            if e.kind() == io::ErrorKind::AddrInUse {
                Error::join(
                    "another rank 0 of this user and job runs on this host; set COMITY_JOB to tell the jobs apart",
                )
            } else {
                Error::os(format!("opening {self}"), e)
            }
        })?;
        let texts = numbers(n).map(|n| (n as u64, text.to_owned().into()));
        lock(&server.texts).extend(texts);
        *lock(&self.server) = Some(server);
        Ok(())
    }

    fn serve(&self) -> io::Result<Arc<Server>> {
        let mut servers = lock(&SERVERS);
        servers.retain(|s| s.strong_count() > 0);
        if let Some(server) = servers.iter().filter_map(Weak::upgrade).find(|s| s.name == self.name) {
            return Ok(server);
        }
        let server = Arc::new(Server::start(&self.name)?);
        servers.push(Arc::downgrade(&server));
        Ok(server)
    }

    /// Rank 0's text number `n`, or nothing when it is not there yet.
    fn ask(&self, n: usize, until: Instant) -> io::Result<Option<String>> {
        let mut stream = place::connect(&self.name)?;
        write_all(&stream, &(n as u64).to_le_bytes(), until)?;
        let mut len = [0; 2];
        read_all(&mut stream, &mut len, until)?;
        let len = usize::from(u16::from_le_bytes(len));
        if len == 0 {
            return Ok(None);
        }
        let mut text = Zeroizing::new(vec![0; len.min(MAX_EXCHANGE_TEXT)]);
        read_all(&mut stream, &mut text, until)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

impl fmt::Display for UnixExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a Unix socket ({})", self.name)
    }
}

impl Exchange for UnixExchange {
    fn share(&self, rank: usize, _size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let mine = own_text(rank, mine)?;
        let n = begin_share(&self.name);
        match mine {
            Some(text) => self.post(n, text).map(|()| text.to_owned()),
            None => self.read(n, until).inspect_err(|_| forget_share(&self.name, n)),
        }
    }
}

impl UnixExchange {
    /// Rank 0's text number `n`, as soon as it is there.
    fn read(&self, n: usize, until: Instant) -> Result<String> {
        // Often rank 0 comes in the next millisecond; where it takes long, nobody is in a hurry.
        let mut pause = Duration::from_millis(1);
        loop {
            match self.ask(n, until) {
                Ok(Some(text)) => return checked(text, self),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    let why = JoinError::new(format!(
                        "{self} belongs to another user: {e}; give this job a name of its own (COMITY_JOB)"
                    ));
                    return Err(why.at(self).into());
                }
                Ok(None) | Err(_) => {}
            }
            let Ok(left) = left(until) else {
                let why =
                    format!("rank 0 did not post its address on {self} in time; does it run on this host?");
                return Err(JoinError::new(why).of([0]).because(JoinCause::Missing).at(self).into());
            };
            give_up()?;
            // WAIT(until): another try, to the join deadline
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

/// Posted texts, by the number of the share.
type Texts = BTreeMap<u64, Zeroizing<String>>;

/// Rank 0's end: a thread that answers until this is dropped.
#[derive(Debug)]
struct Server {
    texts: Arc<Mutex<Texts>>,
    /// Its end is what the thread ends by.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    name: String,
}

impl Server {
    fn start(name: &str) -> io::Result<Self> {
        let listener = place::bind(name)?;
        listener.set_nonblocking(true)?;
        let (stopped, stop) = io::pipe()?;
        let texts = Arc::default();
        let shared = Arc::clone(&texts);
        let thread = thread::Builder::new()
            .name("comity-exchange".into())
            .spawn(move || serve(&listener, &stopped, &shared))?;
        Ok(Self { texts, stop: Some(stop), thread: Some(thread), name: name.to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It ends within PATIENCE; had it panicked, there would be nothing to do.
            // WAIT(stop): its thread, which is told to stop
            let _ = thread.join();
        }
        place::unbind(&self.name);
    }
}

// WAIT(stopped): others that ask; woken when it is to stop
fn serve(listener: &UnixListener, stopped: &PipeReader, texts: &Mutex<Texts>) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if fds.get(1).is_none_or(|f| !f.revents().is_empty()) {
            return;
        }
        match listener.accept() {
            // One that goes wrong asks again.
            Ok((stream, _)) => drop(answer(stream, texts)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, say: do not spin.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn answer(mut stream: UnixStream, texts: &Mutex<Texts>) -> io::Result<()> {
    place::check_peer(&stream)?;
    stream.set_nonblocking(false)?;
    let until = Instant::now() + PATIENCE;
    let mut n = [0; 8];
    read_all(&mut stream, &mut n, until)?;
    let text = lock(texts).get(&u64::from_le_bytes(n)).cloned().unwrap_or_default();
    let mut reply = Zeroizing::new(Vec::with_capacity(2 + MAX_EXCHANGE_TEXT));
    reply.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
    reply.extend(text.as_bytes());
    write_all(&stream, &reply, until)
}

/// Socket address, by system.
#[cfg(target_os = "linux")]
mod place {
    use super::*;
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};

    pub(super) fn bind(name: &str) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
    }

    pub(super) fn connect(name: &str) -> io::Result<UnixStream> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        check_peer(&stream)?;
        Ok(stream)
    }

    /// Anyone can take an abstract name and connect to one, but not as another user.
    pub(super) fn check_peer(stream: &UnixStream) -> io::Result<()> {
        let theirs = crate::sys::peer_of(stream)?.uid;
        let ours = rustix::process::geteuid().as_raw();
        if theirs == ours {
            return Ok(());
        }
        let why = format!("user {theirs} instead of {ours}");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    pub(super) fn unbind(_name: &str) {}
}

/// Socket address, by system.
#[cfg(not(target_os = "linux"))]
mod place {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt},
        path::PathBuf,
    };

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(name)
    }

    pub(super) fn bind(name: &str) -> io::Result<UnixListener> {
        let path = path(name);
        if UnixStream::connect(&path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // Left by a rank 0 that was killed.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        // To connect takes the right to write, so this keeps other users out.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    pub(super) fn connect(name: &str) -> io::Result<UnixStream> {
        let path = path(name);
        let owner = fs::symlink_metadata(&path)?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {owner}")));
        }
        UnixStream::connect(&path)
    }

    pub(super) fn check_peer(_stream: &UnixStream) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn unbind(name: &str) {
        let _ = fs::remove_file(path(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// An exchange for tests counts by itself, because both ends live in one process here.
    fn ask(exchange: &UnixExchange, n: usize) -> Option<String> {
        exchange.ask(n, soon()).ok().flatten()
    }

    #[test]
    fn others_read_what_rank_0_posts() {
        let job = format!("test-{}", std::process::id());
        let zero = UnixExchange::new(&job);
        let one = UnixExchange::new(&job);
        assert!(one.ask(0, soon()).is_err(), "nobody serves yet");
        zero.post(0, "10.0.0.1:5000").unwrap();
        assert_eq!(ask(&one, 0).as_deref(), Some("10.0.0.1:5000"));
        assert_eq!(ask(&one, 2), None);
        // A second group of the same process.
        let again = UnixExchange::new(&job);
        again.post(1, "10.0.0.1:5001").unwrap();
        drop(zero);
        assert_eq!(ask(&one, 1).as_deref(), Some("10.0.0.1:5001"));
        assert_eq!(ask(&one, 0).as_deref(), Some("10.0.0.1:5001"), "the first share came to nothing");
        drop(again);
        assert!(one.ask(1, soon()).is_err(), "the socket is gone with the last exchange");
    }

    #[test]
    fn a_late_rank_0_is_waited_for_and_a_missing_one_named() {
        let job = format!("late-{}", std::process::id());
        let exchange = UnixExchange::new(&job);
        let start = Instant::now();
        let e = exchange.share(1, 2, None, start + Duration::from_millis(100)).unwrap_err();
        assert!(matches!(e.kind(), crate::ErrorKind::Join(why) if why.ranks == [0]), "{e}");
        assert!(start.elapsed() < Duration::from_secs(20));

        let zero = UnixExchange::new(&job);
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            zero.post(1, "a:1").map(|()| zero)
        });
        assert_eq!(exchange.share(1, 2, None, soon()).unwrap(), "a:1");
        late.join().unwrap().unwrap();
    }

    #[test]
    fn a_silent_client_does_not_stop_the_others() {
        let exchange = UnixExchange::new(&format!("silent-{}", std::process::id()));
        exchange.post(0, "a:1").unwrap();
        let silent = place::connect(&exchange.name).unwrap();
        assert_eq!(ask(&exchange, 0).as_deref(), Some("a:1"));
        drop(silent);
    }
}
