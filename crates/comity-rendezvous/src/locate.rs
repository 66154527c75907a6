//! Location of the store, and the rank that runs it.

use super::store::{NoStore, Store, StoreBind};
use crate::{
    Error, HostPort, Key, MeetingPoint, Result,
    exchange::MAX_EXCHANGE_TEXT,
    settings::{HOSTFILE, NO_NAME, Settings, Trust, own_addresses},
    sys::{give_up, here, interfaces, waited_for_processor},
};
use std::{
    collections::HashSet,
    fmt::Write as _,
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Instant,
};
use zeroize::Zeroizing;

/// The most ranks that are asked to pass on what is said to the store, where no address of it answers.
const MAX_ASKED: usize = 8;
/// The most addresses of the store that an exchange carries.
const MAX_POSTED: usize = 6;

/// Without a launcher, whoever started the job reads what rank 0 says.
pub(super) fn tell(rank: usize, words: &str) {
    // Nobody may read it.
    let _ = writeln!(std::io::stderr(), "comity: rank {rank}: {words}");
}

pub(super) struct StoreLocation {
    pub(super) addrs: Vec<SocketAddr>,
    /// Addresses of ranks that may relay to it.
    pub(super) relays: Vec<SocketAddr>,
    /// The store itself, if this rank runs it.
    pub(super) store: Option<Store>,
    /// The key; zeros where none is wanted.
    pub(super) key: Key,
    /// Error for which this rank runs none, though it should.
    pub(super) taken: Option<Error>,
}

impl StoreLocation {
    fn at(addrs: Vec<SocketAddr>, key: Key) -> Self {
        Self { addrs, relays: Vec::new(), store: None, key, taken: None }
    }
}

/// Starts the store on rank 0: at the first of these that is its own, and at the others where it can.
type Serve<'a> = &'a dyn Fn(StoreBind) -> Result<Store, NoStore>;

/// Find the store, or start it.
///
/// If the address of rank 0 is taken, rank 0 claims its place at whoever listens there. It may be a job with the same key, which rank 0's
/// other ranks are joining.
pub(super) fn locate(config: &Settings, until: Instant) -> Result<StoreLocation> {
    let trust = config.trust()?;
    let known = match trust {
        Trust::Held(key) => key.clone(),
        Trust::Nobody => Key::zeros(),
        Trust::Exchange if config.rank == 0 => Key::random()?,
        Trust::Exchange => Key::zeros(),
    };
    // Ranks that were started by hand, with nothing that tells their job from another.
    let is_unnamed = match config.meeting_point {
        MeetingPoint::Host(_) => config.job == NO_NAME,
        // Named after the file, which another job may have as well.
        MeetingPoint::Hostfile(_) => config.job.starts_with(HOSTFILE),
        _ => false,
    };
    let serve = |at: StoreBind| {
        Store::start_with(
            at,
            config.size,
            &known,
            &config.job,
            config.join_timeout,
            config.insecure,
            is_unnamed.then(waited_for_processor),
        )
        .inspect(|s| s.on_waiting(|words| tell(0, words)))
    };
    match &config.meeting_point {
        MeetingPoint::Store(at) => Ok(StoreLocation::at(resolve_all(at, until)?, known)),
        MeetingPoint::Host(at) => {
            // Rank 0 is found at all its addresses, whichever of them another rank was told.
            let is_within = at.iter().all(HostPort::is_loopback) || !config.addrs.is_empty();
            let others = |port| if is_within { Vec::new() } else { own_at(config, port) };
            at_rank_0(config, resolve_all(at, until)?, others, &known, &serve)
        }
        MeetingPoint::Hostfile(ranks) => in_hostfile(config, ranks, &known, &serve, until),
        MeetingPoint::Exchange(exchange) => over_exchange(config, &**exchange, trust, &known, &serve, until),
        _ => Err(Error::config(format!("{} ranks need a place to meet", config.size))),
    }
}

fn resolve_all(all: &[HostPort], until: Instant) -> Result<Vec<SocketAddr>> {
    let mut addrs = Vec::new();
    let mut failed = None;
    for at in all {
        match at.resolve(until) {
            Ok(found) => addrs.extend(found),
            // One of several names may mean something elsewhere.
            Err(e) => failed = failed.or(Some(e)),
        }
    }
    let mut seen = HashSet::new();
    addrs.retain(|at| seen.insert(*at));
    match failed {
        Some(e) if addrs.is_empty() => Err(e),
        _ => Ok(addrs),
    }
}

fn at_rank_0(
    config: &Settings,
    addrs: Vec<SocketAddr>,
    others: impl FnOnce(u16) -> Vec<SocketAddr>,
    known: &Key,
    serve: Serve<'_>,
) -> Result<StoreLocation> {
    let Some(first) = addrs.first().filter(|_| config.rank == 0).copied() else {
        return Ok(StoreLocation::at(addrs, known.clone()));
    };
    let also = others(first.port()).into_iter().filter(|at| !addrs.contains(at)).collect();
    match serve(StoreBind { named: addrs, also }) {
        Ok(store) => {
            let own = vec![store.addr()];
            Ok(StoreLocation { store: Some(store), ..StoreLocation::at(own, known.clone()) })
        }
        Err(NoStore::Taken(e)) => {
            tell(0, &e.to_string());
            Ok(StoreLocation { taken: Some(e), ..StoreLocation::at(vec![first], known.clone()) })
        }
        Err(NoStore::Other(e)) => Err(e),
    }
}

/// The addresses that this rank would listen at, with a port.
fn own_at(config: &Settings, port: u16) -> Vec<SocketAddr> {
    let mut own = own_addresses(&config.interfaces, &interfaces());
    own.iter_mut().for_each(|at| at.set_port(port));
    own
}

/// At rank 0's first port. A rank that reaches none of its addresses asks the ranks next to it in the file to pass on.
fn in_hostfile(
    config: &Settings,
    ranks: &[Vec<HostPort>],
    known: &Key,
    serve: Serve<'_>,
    until: Instant,
) -> Result<StoreLocation> {
    let none = || Error::config("the hostfile does not tell an address of rank 0, where the ranks meet");
    let first =
        ranks.first().filter(|r| r.first().is_some_and(|at| !at.is_unspecified())).ok_or_else(none)?;
    let port = first.first().map_or(0, HostPort::port);
    let mut addrs = resolve_all(first, until)?;
    addrs.iter_mut().for_each(|at| at.set_port(port));
    addrs.dedup();
    let mut located = at_rank_0(config, addrs, |_| Vec::new(), known, serve)?;
    if config.rank != 0 && config.relay {
        let me = config.rank;
        let mut others: Vec<usize> = (1..ranks.len()).filter(|r| *r != me).collect();
        others.sort_by_key(|r| r.abs_diff(me).min(ranks.len() - r.abs_diff(me)));
        let listed = others.iter().filter_map(|r| ranks.get(*r)).flatten().filter(|at| !at.is_unspecified());
        // A name that means nothing here is nobody to ask.
        located.relays =
            listed.take(MAX_ASKED).flat_map(|at| at.resolve(until).unwrap_or_default()).collect();
    }
    Ok(located)
}

/// The store's addresses go from rank 0 to all over a launcher's own channel.
fn over_exchange(
    config: &Settings,
    exchange: &dyn crate::exchange::Exchange,
    trust: Trust<'_>,
    known: &Key,
    serve: Serve<'_>,
    until: Instant,
) -> Result<StoreLocation> {
    let share = |mine: Option<&str>| {
        let shared = exchange.share(config.rank, config.size, mine, until).map(Zeroizing::new);
        // An exchange has words of its own for what ended its wait.
        shared.map_err(|e| give_up().err().unwrap_or(e))
    };
    if config.rank != 0 {
        let (addrs, key) = read(&share(None)?, trust, config.rank)?;
        return Ok(StoreLocation::at(addrs, key));
    }
    let all_here = config.local.is_some_and(|(_, n)| n == config.size);
    let (ip, others) = match config.addrs.split_first() {
        // Of a triangle of cables another rank may know any of them.
        Some((first, others)) => (first.ip(), others.to_vec()),
        None if all_here => (IpAddr::from(Ipv4Addr::LOCALHOST), Vec::new()),
        None => {
            let toward = exchange.address().map(|at| at.resolve(until)).transpose()?;
            // Of a link-local address the others would have to know the interface.
            let told = |at: &SocketAddr| matches!(at, SocketAddr::V4(_)) || !is_scoped(at);
            let own = own_at(config, 0).into_iter().filter(told).collect();
            (here::outward(&toward.unwrap_or_default()), own)
        }
    };
    let store = serve_in(config, ip, others, serve).map_err(NoStore::into_error)?;
    let posted = posted(store.addrs(), &config.launched_at);
    share(Some(&compose(&posted, trust, known)))?;
    let own = vec![store.addr()];
    Ok(StoreLocation { store: Some(store), ..StoreLocation::at(own, known.clone()) })
}

/// The addresses at which others look for the store: its own, and those of hosts between it and the launcher. There a rank passes on what comes
/// to its address and the store's port.
fn posted(own: &[SocketAddr], launched_at: &[IpAddr]) -> Vec<SocketAddr> {
    let port = own.first().map_or(0, SocketAddr::port);
    let is_new = |ip: &&IpAddr| !ip.is_loopback() && own.iter().all(|at| at.ip() != **ip);
    let between = launched_at.iter().filter(is_new).map(|ip| SocketAddr::new(*ip, port));
    own.iter().copied().chain(between).take(MAX_POSTED).collect()
}

fn is_scoped(at: &SocketAddr) -> bool {
    matches!(at, SocketAddr::V6(at) if at.ip().is_unicast_link_local())
}

/// A store at any port, or the first of those allowed that is free; at the others at the same one.
fn serve_in(
    config: &Settings,
    ip: IpAddr,
    others: Vec<SocketAddr>,
    serve: Serve<'_>,
) -> Result<Store, NoStore> {
    let bind = |port| {
        let also =
            others.iter().filter(|at| at.ip() != ip).map(|at| SocketAddr::new(at.ip(), port)).collect();
        serve(StoreBind { named: vec![SocketAddr::new(ip, port)], also })
    };
    let Some((first, last)) = config.ports else { return bind(0) };
    let mut last_no = None;
    for port in first..=last {
        match bind(port) {
            Err(no @ NoStore::Taken(_)) => last_no = Some(no),
            done => return done,
        }
    }
    Err(last_no.unwrap_or_else(|| NoStore::Other(Error::config("COMITY_PORTS names no port"))))
}

const KEY: &str = "key-";
const HELD: &str = "held";
const OPEN: &str = "open";

/// Rank 0's text, and the key that it stands for: `10.0.0.1:5000,[fd00::1]:5000/key-HEX` where rank 0 has made the job's key; `/held` where
/// it holds one that every rank must have of its own; `/open` where none is wanted. Nothing of it is ever part of an error: it may be the
/// key. Makes a key where rank 0 has none and wants one.
fn compose(at: &[SocketAddr], trust: Trust<'_>, key: &Key) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(MAX_EXCHANGE_TEXT));
    for (i, at) in at.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{at}", if i == 0 { "" } else { "," });
    }
    text.push('/');
    match trust {
        Trust::Held(_) => text.push_str(HELD),
        Trust::Nobody => text.push_str(OPEN),
        Trust::Exchange => {
            text.push_str(KEY);
            for byte in key.bytes() {
                let _ = write!(text, "{byte:02x}");
            }
        }
    }
    text
}

/// Reads the text on another rank: the store's addresses, and the key.
fn read(text: &str, trust: Trust<'_>, rank: usize) -> Result<(Vec<SocketAddr>, Key)> {
    let nonsense = || Error::join("the exchange holds what no rank 0 of this version of Comity gives");
    let (at, word) = text.rsplit_once('/').ok_or_else(nonsense)?;
    let at: Vec<SocketAddr> =
        at.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| nonsense())?;
    let differ = |zero: &str, other: &str| {
        Error::config(format!(
            "rank 0 {zero}, but rank {rank} {other}; give all ranks the same COMITY_KEY_FILE, or none of them, and COMITY_INSECURE to all or none"
        ))
    };
    let ours = match trust {
        Trust::Held(_) => "has a key of its own (COMITY_KEY_FILE)",
        Trust::Exchange => "has none and was not told to do without one (COMITY_INSECURE)",
        Trust::Nobody => "wants none (COMITY_INSECURE)",
    };
    match (word, trust) {
        (HELD, Trust::Held(key)) => Ok((at, key.clone())),
        (OPEN, Trust::Nobody) => Ok((at, Key::zeros())),
        (HELD, _) => Err(differ("has a key of its own (COMITY_KEY_FILE)", ours)),
        (OPEN, _) => Err(differ("wants no key (COMITY_INSECURE)", ours)),
        (word, trust) => {
            let hex = word.strip_prefix(KEY).ok_or_else(nonsense)?;
            let key = Key::from_hex(hex).map_err(|_| nonsense())?;
            match trust {
                Trust::Exchange => Ok((at, key)),
                _ => Err(differ("has made a key for the job", ours)),
            }
        }
    }
}

#[cfg(test)]
mod text_tests {
    use super::*;
    use comity_base::ErrorKind;

    #[test]
    fn all_ranks_agree_or_are_told_what_differs() {
        let long = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap();
        let at: Vec<SocketAddr> = vec!["[::1]:5000".parse().unwrap(), long, long, long, long, long];
        let own = Key::from([7; 32]);
        let trusts = [Trust::Held(&own), Trust::Exchange, Trust::Nobody];
        for (i, zero) in trusts.into_iter().enumerate() {
            let key = match zero {
                Trust::Held(key) => key.clone(),
                Trust::Exchange => Key::from([9; 32]),
                Trust::Nobody => Key::zeros(),
            };
            let text = compose(&at, zero, &key);
            assert!(text.len() <= MAX_EXCHANGE_TEXT);
            for (j, other) in trusts.into_iter().enumerate() {
                match read(&text, other, 3) {
                    Ok((there, got)) => {
                        assert!(i == j && there == at && got.bytes() == key.bytes());
                    }
                    Err(e) => {
                        assert!(matches!(e.kind(), ErrorKind::Config(_)), "{e}");
                        let e = e.to_string();
                        assert!(i != j && e.contains("rank 0") && e.contains("rank 3"), "{e}");
                        assert!(!e.contains("0909"), "{e}");
                    }
                }
            }
        }
    }

    #[test]
    fn nonsense_is_not_shown() {
        for text in
            ["", "127.0.0.1:1", "127.0.0.1:1/", "127.0.0.1:1/key-5a5a", "x/held", "127.0.0.1:1/key-", "5a/5a"]
        {
            let e = read(text, Trust::Exchange, 1).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::Join(words) if !words.to_string().contains("5a")), "{e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Board on which rank 0 posts; nobody else asks.
    #[derive(Debug, Default)]
    struct Board(std::sync::Mutex<String>);

    impl std::fmt::Display for Board {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a board")
        }
    }

    impl crate::exchange::Exchange for Board {
        fn share(&self, _: usize, _: usize, mine: Option<&str>, _: Instant) -> Result<String> {
            let text = mine.unwrap_or_default().to_owned();
            self.0.lock().unwrap().clone_from(&text);
            Ok(text)
        }
    }

    // Elsewhere a loopback has one address.
    #[cfg(target_os = "linux")]
    #[test]
    fn rank_0_posts_each_address_that_its_user_names() {
        let board = std::sync::Arc::new(Board::default());
        let addrs: [SocketAddr; 2] = ["127.0.0.1:0", "127.0.0.2:0"].map(|at| at.parse().unwrap());
        let config = Settings {
            meeting_point: MeetingPoint::Exchange(board.clone()),
            addrs: addrs.to_vec(),
            ..Settings::new(0, 2)
        };
        let located = locate(&config, Instant::now()).unwrap();
        assert!(located.store.is_some_and(|store| store.addrs().len() == 2));
        let text = board.0.lock().unwrap().clone();
        let at = text.split('/').next().unwrap_or_default();
        let ips: Vec<_> = at.split(',').map(|at| at.split(':').next().unwrap_or_default()).collect();
        assert_eq!(ips, ["127.0.0.1", "127.0.0.2"]);
    }

    #[test]
    fn a_host_between_is_looked_at_too() {
        let own: Vec<SocketAddr> = ["10.0.1.1:7", "10.0.3.1:7"].map(|at| at.parse().unwrap()).into();
        let launched = ["10.0.1.1", "10.0.2.1", "127.0.0.1"].map(|ip| ip.parse().unwrap());
        let shown = |all: Vec<SocketAddr>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(posted(&own, &launched)), ["10.0.1.1:7", "10.0.3.1:7", "10.0.2.1:7"]);
        assert_eq!(shown(posted(&own, &[])), ["10.0.1.1:7", "10.0.3.1:7"]);
        let many: Vec<IpAddr> = (1..20).map(|i| Ipv4Addr::new(10, 9, 0, i).into()).collect();
        assert_eq!(posted(&own, &many).len(), MAX_POSTED);
    }
}
