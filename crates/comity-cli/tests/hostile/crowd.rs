//! The hostile connections: how each kind behaves, and how long the other side bears it.
use socket2::{Domain, SockRef, Socket, Type};
use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const WORKERS: usize = 8;
/// Connections that a worker has at a time.
const AT_ONCE: usize = 40;
/// After this the other side is taken not to end the connection at all.
const MOST: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Idle,
    /// A byte every 100 ms.
    Slow,
    Garbage,
    /// A header that announces more than anyone sends.
    HugeLength,
    /// First message of a rank with another key.
    WrongKey,
    /// First message that a rank with the right key once sent, and nothing more.
    ReplayFirst,
    /// And third.
    ReplayBoth,
    /// Connects and closes.
    Scan,
    /// Connects and resets.
    Reset,
}

impl Kind {
    fn of(number: usize) -> Self {
        const ALL: [Kind; 9] = [
            Kind::Idle,
            Kind::Slow,
            Kind::Garbage,
            Kind::HugeLength,
            Kind::WrongKey,
            Kind::ReplayFirst,
            Kind::ReplayBoth,
            Kind::Scan,
            Kind::Reset,
        ];
        ALL[number % ALL.len()]
    }
}

/// Messages of handshakes that took place.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) stranger: Vec<u8>,
    pub(crate) first: Vec<u8>,
    pub(crate) third: Vec<u8>,
}

/// Lateness of the machine: by how much a thread that sleeps, and wants nothing else, has run late in all. On a machine
/// with free cores that is next to nothing; where it is not, the other side was late by no less.
#[derive(Clone, Debug, Default)]
struct Lateness(Arc<AtomicU64>);

impl Lateness {
    /// Watch it until `is_over`.
    fn watch(&self, is_over: Arc<AtomicBool>) {
        const STEP: Duration = Duration::from_millis(10);
        // What waking takes anywhere.
        const USUAL: Duration = Duration::from_millis(2);
        let total = Arc::clone(&self.0);
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                thread::sleep(STEP);
                let late = begun.elapsed().saturating_sub(STEP + USUAL);
                total.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
            }
        });
    }

    fn so_far(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Per kind: how many, and how long the longest stood, less what the machine was late meanwhile.
pub(crate) type Lives = BTreeMap<Kind, (usize, Duration)>;

pub(crate) struct Crowd {
    workers: Vec<JoinHandle<Lives>>,
    done: Arc<AtomicUsize>,
    lateness: Lateness,
    is_over: Arc<AtomicBool>,
}

impl Crowd {
    /// `total` connections, spread over `targets`.
    pub(crate) fn start(total: usize, targets: Vec<SocketAddr>, recorded: Recorded) -> Self {
        let done = Arc::<AtomicUsize>::default();
        let next = Arc::<AtomicUsize>::default();
        let (lateness, is_over) = (Lateness::default(), Arc::<AtomicBool>::default());
        lateness.watch(Arc::clone(&is_over));
        let workers = (0..WORKERS)
            .map(|_| {
                let done = Arc::clone(&done);
                let next = Arc::clone(&next);
                let targets = targets.clone();
                let recorded = recorded.clone();
                let lateness = lateness.clone();
                thread::spawn(move || work(total, &targets, (&recorded, &lateness), &next, &done))
            })
            .collect();
        Self { workers, done, lateness, is_over }
    }

    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// By how much the machine has run late.
    pub(crate) fn lateness(&self) -> Duration {
        self.lateness.so_far()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    pub(crate) fn join(self) -> Lives {
        let mut all = Lives::new();
        self.is_over.store(true, Ordering::Relaxed);
        for lives in self.workers.into_iter().map(|w| w.join().unwrap()) {
            for (kind, (n, longest)) in lives {
                let life = all.entry(kind).or_default();
                *life = (life.0 + n, life.1.max(longest));
            }
        }
        all
    }
}

/// A connection, up to its end.
struct Hostile {
    kind: Kind,
    stream: TcpStream,
    since: Instant,
    /// Lateness of the machine then.
    late: Duration,
    /// Bytes that it has still to send, and the time at which it goes on.
    words: Vec<u8>,
    at: Instant,
}

impl Hostile {
    fn new(number: usize, targets: &[SocketAddr], recorded: &Recorded, lateness: &Lateness) -> Option<Self> {
        let kind = Kind::of(number);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
        // From some 200 addresses.
        let from = Ipv4Addr::new(127, 0, 0, 2 + (number / 9 % 200) as u8);
        socket.bind(&SocketAddr::from((from, 0)).into()).ok()?;
        socket.connect_timeout(&targets[number % targets.len()].into(), Duration::from_secs(5)).ok()?;
        socket.set_nonblocking(true).ok()?;
        let stream: TcpStream = socket.into();
        let mut words = match kind {
            Kind::Idle | Kind::Scan | Kind::Reset => Vec::new(),
            Kind::Slow | Kind::ReplayFirst => recorded.first.clone(),
            Kind::Garbage => b"GET / HTTP/1.1\r\nHost: \xff\xfe\x00\r\n\r\n".repeat(20),
            Kind::HugeLength => [&recorded.first[..3], &[0xff; 60]].concat(),
            Kind::WrongKey => recorded.stranger.clone(),
            Kind::ReplayBoth => [&recorded.first[..], &recorded.third].concat(),
        };
        if kind != Kind::Slow {
            // Less than any buffer holds; it may have been closed already.
            let _ = (&stream).write(&words);
            words.clear();
        }
        let now = Instant::now();
        Some(Self { kind, stream, since: now, late: lateness.so_far(), words, at: now })
    }

    fn life(&self, lateness: &Lateness) -> Duration {
        self.since.elapsed().saturating_sub(lateness.so_far() - self.late)
    }

    /// Go on; whether it has ended.
    fn step(&mut self) -> bool {
        match self.kind {
            Kind::Scan => return true,
            Kind::Reset => {
                let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                return true;
            }
            Kind::Slow if Instant::now() >= self.at && !self.words.is_empty() => {
                self.at += Duration::from_millis(100);
                let byte = self.words.remove(0);
                if (&self.stream).write(&[byte]).is_err() {
                    return true;
                }
            }
            _ => {}
        }
        let mut buf = [0; 2048];
        loop {
            match (&self.stream).read(&mut buf) {
                // An answer.
                Ok(n @ 1..) if n > 0 => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.since.elapsed() > MOST,
                _ => return true,
            }
        }
    }
}

fn work(
    total: usize,
    targets: &[SocketAddr],
    (recorded, lateness): (&Recorded, &Lateness),
    next: &AtomicUsize,
    done: &AtomicUsize,
) -> Lives {
    let (mut lives, mut open) = (Lives::new(), Vec::<Hostile>::new());
    let mut more = true;
    while more || !open.is_empty() {
        while more && open.len() < AT_ONCE {
            let number = next.fetch_add(1, Ordering::Relaxed);
            more = number < total;
            if more {
                let hostile = Hostile::new(number, targets, recorded, lateness);
                open.push(hostile.unwrap_or_else(|| panic!("connection {number} was not taken")));
            }
        }
        open.retain_mut(|h| {
            let ended = h.step();
            if ended {
                let life = lives.entry(h.kind).or_default();
                *life = (life.0 + 1, life.1.max(h.life(lateness)));
                done.fetch_add(1, Ordering::Relaxed);
            }
            !ended
        });
        thread::sleep(Duration::from_millis(1));
    }
    lives
}
