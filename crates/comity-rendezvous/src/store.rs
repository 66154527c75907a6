//! The store: where ranks meet.
//!
//! Each rank sends one message and gets one back when all are there: the table of everyone. A rank that is missing at the
//! deadline is named to all; so is one that dies in between. The store knows nothing else and keeps nothing.

mod joiners;
mod server;

pub(super) use server::firewall;

use crate::{
    ConfigError, Error, Key, Result,
    channel::{Listener, STORE, Secret},
    settings::Insecure,
    sync::lock,
    sys::Waker,
};
use server::Server;
use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Meeting point of the ranks of a job. It runs in a thread of its own, and ends when dropped.
///
/// ```
/// use comity::{Config, Key, tools::Store};
/// use std::{net::TcpListener, time::Duration};
///
/// let (key, limit) = (Key::random()?, Duration::from_secs(60));
/// let at = "127.0.0.1:0".parse().unwrap();
/// let store = Store::start(at, 2, &key, "doc", limit)?;
/// store.on_waiting(|words| eprintln!("{words}"));
/// let here = store.addr().to_string();
/// let ranks = [0, 1].map(|rank| Config::new(rank, 2).store(&here).map(|c| c.job("doc").key(key.clone())));
/// let threads = ranks.map(|config| std::thread::spawn(move || config?.connect()?.barrier()));
/// for thread in threads {
///     thread.join().unwrap()?;
/// }
/// assert_eq!(store.culprit(), None);
///
/// // At more addresses, or at a socket that listens already. `lost` is for a rank that ended before it came.
/// let several = Store::start_at(at, &[], 2, &key, "doc", limit)?;
/// several.lost(1, "was killed");
/// assert_eq!(several.addrs().len(), 1);
/// let listener = TcpListener::bind("127.0.0.1:0").unwrap();
/// let other = Store::from_listener(listener, 2, &key, "doc", limit)?;
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Debug)]
pub struct Store {
    /// Addresses at which it listens; never empty.
    addrs: Vec<SocketAddr>,
    shared: Arc<StoreState>,
    thread: Option<JoinHandle<()>>,
}

/// The job that a store's own process is in, once it has met.
pub trait StoreJob: Send + Sync + fmt::Debug {
    /// Returns true if `rank` is in it: it is this process, or connected.
    fn holds(&self, rank: usize) -> bool;

    /// End the job because of `rank`: fail every group that has it, on all its members. False if none is open.
    fn condemn(&self, rank: usize, cause: &str) -> bool;
}

/// Addresses for a store to listen at.
#[derive(Debug)]
pub struct StoreBind {
    /// At least one of these.
    pub named: Vec<SocketAddr>,
    /// Here where nothing is in the way.
    pub also: Vec<SocketAddr>,
}

#[derive(Debug)]
pub enum NoStore {
    /// Somebody else listens there.
    Taken(Error),
    Other(Error),
}

impl NoStore {
    pub fn into_error(self) -> Error {
        match self {
            Self::Taken(e) | Self::Other(e) => e,
        }
    }
}

#[derive(Debug)]
struct StoreState {
    waker: Waker,
    stop: AtomicBool,
    /// The first rank that ended without a word, and one; 0 if there is none. A rank that gave up says itself on whose account.
    culprit: AtomicU32,
    /// Ranks that are known to have ended, and how.
    gone: Mutex<Vec<(u32, String)>>,
    /// Those of them whose connections are to be forgotten.
    ended: Mutex<Vec<u32>>,
    /// Reason for which the ranks are not to meet, if so.
    refused: Mutex<Option<String>>,
    /// The most processes without a place that the running job takes in.
    guests: AtomicU32,
    /// Listener for the processes that it took in.
    taken_in: Mutex<Option<TakenIn>>,
    /// The job of the process that runs the store, once it has met.
    job: Mutex<Option<Weak<dyn StoreJob>>>,
    /// Output for the reports of missing ranks.
    voice: Mutex<Option<Voice>>,
}

/// Somebody who wants to hear of something.
struct Hook<F: ?Sized>(Box<F>);

impl<F: ?Sized> fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook(..)")
    }
}

/// Says a sentence to whoever waits for the job.
type Voice = Hook<dyn Fn(&str) + Send>;

/// Hears of processes that were taken in.
type TakenIn = Hook<dyn Fn(Option<usize>, usize) + Send>;

impl StoreState {
    /// The job that this store's own process is in.
    fn job(&self) -> Option<Arc<dyn StoreJob>> {
        lock(&self.job).as_ref()?.upgrade()
    }

    /// Returns true if `rank` lives in it.
    fn holds(&self, rank: u32) -> bool {
        self.job().is_some_and(|job| job.holds(rank as usize))
    }

    /// End its groups; false if there are none yet.
    fn condemn(&self, rank: u32, words: &str) -> bool {
        self.job().is_none_or(|job| job.condemn(rank as usize, words))
    }

    fn say(&self, words: &str) {
        // No warning: where one is wanted, the voice says it.
        tracing::info!("{words}");
        if let Some(voice) = &*lock(&self.voice) {
            (voice.0)(words);
        }
    }

    fn note_culprit(&self, rank: u32) {
        // The first one stays.
        let _ = self.culprit.compare_exchange(0, rank + 1, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Store {
    /// Serve a job of `size` ranks at `bind`, where port 0 stands for any. The first rank that comes starts the clock; when
    /// `join` has passed, all are told who is missing. A key of zeros lets in whoever knows the job's name, and is refused
    /// at a public address.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](comity_base::ErrorKind::Config) for a size that no job has, or a public address without a key; else what the system refused, such as an address that is
    /// taken.
    pub fn start(bind: SocketAddr, size: usize, key: &Key, job: &str, join: Duration) -> Result<Self> {
        Self::start_at(bind, &[], size, key, job, join)
    }

    /// Serve a job at `bind`, and at each of the other addresses where nothing is in the way; otherwise as [`start`](Self::start).
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_at(
        bind: SocketAddr,
        also: &[SocketAddr],
        size: usize,
        key: &Key,
        job: &str,
        join: Duration,
    ) -> Result<Self> {
        let insecure = if key.is_zeros() { Insecure::Private } else { Insecure::No };
        let bind = StoreBind { named: vec![bind], also: also.to_vec() };
        Self::start_with(bind, size, key, job, join, insecure, None).map_err(NoStore::into_error)
    }

    /// At the first of the named addresses that is this host's, and at each of the others where nothing is in the way. Where another
    /// job may come, which neither a launcher nor a name tells from this one, the first group opens a moment later: so long as this process has
    /// waited for a processor, `waited`, or longer.
    pub fn start_with(
        StoreBind { named, also }: StoreBind,
        size: usize,
        key: &Key,
        job: &str,
        join: Duration,
        insecure: Insecure,
        waited: Option<Duration>,
    ) -> Result<Self, NoStore> {
        let mut listeners = Vec::new();
        let mut failed = None;
        for at in named {
            match listen_at(at, insecure) {
                Ok(listener) => listeners.push(listener),
                Err(no) => failed = failed.or(Some(no)),
            }
        }
        if let Some(no) = failed.filter(|_| listeners.is_empty()) {
            return Err(no);
        }
        for at in also {
            match listen_at(at, insecure) {
                Ok(listener) => listeners.push(listener),
                Err(no) => tracing::debug!(%at, e = %no.into_error(), "the store is not there"),
            }
        }
        Self::run(listeners, size, key, job, join, waited).map_err(NoStore::Other)
    }

    /// Serve a job at a socket that listens already; otherwise as [`start`](Self::start).
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn from_listener(
        listener: TcpListener,
        size: usize,
        key: &Key,
        job: &str,
        join: Duration,
    ) -> Result<Self> {
        let listener = Listener::from_tcp(listener).map_err(|e| Error::os("starting the store", e))?;
        Self::run(vec![listener], size, key, job, join, None)
    }

    /// The address at which it listens; of several the first.
    pub fn addr(&self) -> SocketAddr {
        self.addrs.first().copied().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    /// The addresses at which it listens.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Tell ranks that wait for rank `rank` that it has ended and will not come again. `how` is the rest of the sentence "rank 3 ...".
    pub fn lost(&self, rank: usize, how: &str) {
        self.teller().lost(rank, how);
    }

    /// Returns a handle for whoever learns that ranks will not come.
    pub fn teller(&self) -> StoreTeller {
        StoreTeller(Arc::clone(&self.shared))
    }

    /// Take in at most so many processes that no launcher starts in a rank's place.
    pub fn admit(&self, most: usize) {
        self.shared.guests.store(u32::try_from(most).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Have `tell` hear of each process that the running job takes in: the rank in whose place a launcher started it, if one did, and how many
    /// are in the job that came in nobody's place. That number is told also when it falls.
    pub fn on_taken_in(&self, tell: impl Fn(Option<usize>, usize) + Send + 'static) {
        *lock(&self.shared.taken_in) = Some(Hook(Box::new(tell)));
    }

    /// While ranks are missing, have `tell` say which, every five seconds. It is called by the store's thread, which waits for it.
    pub fn on_waiting(&self, tell: impl Fn(&str) + Send + 'static) {
        *lock(&self.shared.voice) = Some(Hook(Box::new(tell)));
    }

    /// The job of the process that runs this store has met: it holds its ranks from now on.
    pub fn attend(&self, job: Weak<dyn StoreJob>) {
        *lock(&self.shared.job) = Some(job);
    }

    /// The rank that ended without a word before all had met and connected; the first one.
    pub fn culprit(&self) -> Option<usize> {
        self.shared.culprit.load(Ordering::Acquire).checked_sub(1).map(|r| r as usize)
    }

    fn run(
        listeners: Vec<Listener>,
        size: usize,
        key: &Key,
        job: &str,
        join: Duration,
        waited: Option<Duration>,
    ) -> Result<Self> {
        let os_error = |e| Error::os("starting the store", e);
        let addrs = listeners.iter().map(Listener::local_addr).collect::<Result<_, _>>().map_err(os_error)?;
        let size = u32::try_from(size).ok().filter(|s| *s > 0 && *s < STORE).ok_or_else(|| {
            Error::config(format!("the store cannot serve {size} ranks; allowed is 1 to {}", crate::MAX_SIZE))
        })?;
        let shared = Arc::new(StoreState {
            waker: Waker::new().map_err(os_error)?,
            stop: AtomicBool::new(false),
            culprit: AtomicU32::new(0),
            gone: Mutex::default(),
            ended: Mutex::default(),
            refused: Mutex::default(),
            guests: AtomicU32::new(u32::MAX),
            taken_in: Mutex::default(),
            job: Mutex::default(),
            voice: Mutex::default(),
        });
        let mut server = Server::new(Arc::clone(&shared), listeners, Secret::new(key, job, 0), size, join);
        server.unnamed = waited.filter(|_| size > 1);
        let thread = std::thread::Builder::new()
            .name("comity-store".into())
            .spawn(move || server.serve())
            .map_err(os_error)?;
        Ok(Self { addrs, shared, thread: Some(thread) })
    }
}

/// Tells a store that ranks will not come, and does not keep it.
#[derive(Debug)]
pub struct StoreTeller(Arc<StoreState>);

impl StoreTeller {
    /// Have the ranks not meet, those that come later neither.
    pub fn refuse(&self, why: &str) {
        *lock(&self.0.refused) = Some(why.into());
        self.0.waker.wake();
    }

    /// Tell ranks that wait for rank `rank` that it has ended ([`Store::lost`]).
    pub fn lost(&self, rank: usize, how: &str) {
        let Ok(rank) = u32::try_from(rank) else { return };
        lock(&self.0.gone).push((rank, how.into()));
        lock(&self.0.ended).push(rank);
        self.0.waker.wake();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // WAIT(stop): the store's thread, which is told to stop
            let _ = thread.join();
        }
    }
}

fn listen_at(at: SocketAddr, insecure: Insecure) -> Result<Listener, NoStore> {
    if at.ip().is_unspecified() {
        return Err(NoStore::Other(Error::config(format!(
            "the store cannot listen at {at}: that stands for every address; name the one that the ranks connect to"
        ))));
    }
    insecure.check_listen("the store", at).map_err(NoStore::Other)?;
    Listener::tcp(at).and_then(|l| l.listen().map(|()| l)).map_err(|e| {
        let is_taken = e.kind() == std::io::ErrorKind::AddrInUse;
        let error = cannot_listen("the store", at, e);
        if is_taken { NoStore::Taken(error) } else { NoStore::Other(error) }
    })
}

/// The error of a listener, with what to do.
pub(crate) fn cannot_listen(who: &str, at: SocketAddr, e: std::io::Error) -> Error {
    let cure = match e.kind() {
        std::io::ErrorKind::AddrInUse => "another process listens there; end it, or give another port",
        std::io::ErrorKind::AddrNotAvailable => "this host has no such address; give one of its own",
        std::io::ErrorKind::PermissionDenied => "this user may not; give a port above 1023",
        _ => return Error::os(format!("{who} cannot listen at {at}"), e),
    };
    // What the user gave is wrong here, whatever the variable or file it came from.
    let from = "COMITY_ADDRS, MASTER_ADDR and MASTER_PORT, or the hostfile";
    let words = format!("{who} cannot listen at {at} (from {from}): {e}; {cure}");
    ConfigError::new(words).with_value(at.to_string()).into()
}
