//! The ports at which an agent listens, and connections to those of another: whether there is a way, how long it takes, how much it
//! carries.
//!
//! Beacons find the interface and host at the other end of a cable: all say who they are on each interface, by multicast of the link
//! alone, and note whom they hear. It needs no address but the one that every interface gives itself.
use comity_cluster::checks::DialResult;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A connection that is not made in this time will not be.
const CONNECT: Duration = Duration::from_secs(2);
/// Silence of a connection that was made.
const QUIET: Duration = Duration::from_secs(3);
/// Until the answer to a datagram.
const ECHO: Duration = Duration::from_millis(400);
/// Messages of the measurement of latency.
const ROUNDS: usize = 40;
const MESSAGE: usize = 64;
const BLOCK: usize = 128 << 10;
/// The largest datagram, with room.
const DATAGRAM: usize = 70_000;

/// A datagram that came: from where, and its size.
type Arrival = (IpAddr, usize);

/// An address and its port, or why it has none.
type PortOf = (IpAddr, Result<u16, String>);

/// The ports that are listened at, by the datagrams that came there.
#[derive(Debug, Default)]
pub(super) struct Ports {
    arrived: Arc<Mutex<BTreeSet<Arrival>>>,
}

impl Ports {
    /// Listens; for each address its port, or why not.
    pub(super) fn open(&self, token: &str, ips: &[IpAddr], range: Option<(u16, u16)>) -> Vec<PortOf> {
        ips.iter().map(|ip| (*ip, self.one(token, *ip, range))).collect()
    }

    fn one(&self, token: &str, ip: IpAddr, range: Option<(u16, u16)>) -> Result<u16, String> {
        let mut last = String::from("the range has no port");
        let (first, end) = range.unwrap_or((0, 0));
        for port in first..=end {
            let pair = TcpListener::bind((ip, port)).and_then(|tcp| {
                let port = tcp.local_addr()?.port();
                Ok((UdpSocket::bind((ip, port)).ok(), tcp, port))
            });
            match pair {
                Ok((udp, tcp, port)) => {
                    let own = token.to_owned();
                    let arrived = Arc::clone(&self.arrived);
                    // These threads end with the process.
                    std::thread::spawn(move || accept(&tcp, &own));
                    if let Some(udp) = udp {
                        let own = token.to_owned();
                        std::thread::spawn(move || echo(&udp, &own, &arrived));
                    }
                    return Ok(port);
                }
                Err(e) => last = e.to_string(),
            }
        }
        Err(last)
    }

    /// The datagrams that came.
    pub(super) fn arrived(&self) -> Vec<Arrival> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

fn accept(listener: &TcpListener, token: &str) {
    for stream in listener.incoming() {
        let (Ok(stream), token) = (stream, token.to_owned()) else { continue };
        std::thread::spawn(move || {
            // Who went away has seen enough.
            let _ = answer(stream, &token);
        });
    }
}

/// The token, then what is wanted: `p` for echoes of messages, `r` and milliseconds for data.
fn answer(mut stream: TcpStream, token: &str) -> io::Result<()> {
    set_up(&stream)?;
    let mut head = vec![0; token.len() + 5];
    stream.read_exact(&mut head)?;
    if &head[..token.len()] != token.as_bytes() {
        return Ok(());
    }
    let millis = u32::from_be_bytes(*head.last_chunk().unwrap_or(&[0; 4]));
    match head[token.len()] {
        b'p' => {
            let mut message = [0; MESSAGE];
            loop {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)?;
            }
        }
        _ => {
            let block = vec![7; BLOCK];
            let until = Instant::now() + Duration::from_millis(millis.min(10_000).into());
            while Instant::now() < until {
                stream.write_all(&block)?;
            }
            Ok(())
        }
    }
}

fn echo(socket: &UdpSocket, token: &str, arrived: &Mutex<BTreeSet<Arrival>>) {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let Ok((n, from)) = socket.recv_from(&mut buffer) else { continue };
        if !buffer[..n].starts_with(token.as_bytes()) {
            continue;
        }
        let mut all = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < 10_000 {
            all.insert((from.ip(), n));
        }
        drop(all);
        // As short as can be: the way back is another question.
        let _ = socket.send_to(format!("{token} {n}").as_bytes(), from);
    }
}

/// Connects from one address to another; everything that can be learned of the way.
pub(super) fn dial(token: &str, to: SocketAddr, from: IpAddr, sizes: &[usize], millis: u64) -> DialResult {
    let mut result = DialResult::default();
    match connect(to, from).and_then(|s| ping(s, token)) {
        Ok(round) => result.round_us = Some(round.as_secs_f64() * 1e6),
        Err(e) => result.failed = Some(why(&e)),
    }
    if millis > 0 && result.failed.is_none() {
        match connect(to, from).and_then(|s| take(s, token, millis)) {
            Ok(bits) => result.bits = Some(bits),
            Err(e) => result.failed = Some(why(&e)),
        }
    }
    match datagrams(token, to, from, sizes) {
        Ok(echoed) => result.echoed = echoed,
        Err(e) => result.datagrams = Some(why(&e)),
    }
    result
}

fn why(e: &io::Error) -> String {
    match e.kind() {
        ErrorKind::ConnectionRefused => "refused".into(),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "timeout".into(),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => "no route".into(),
        _ => e.to_string(),
    }
}

fn connect(to: SocketAddr, from: IpAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
    socket.connect_timeout(&to.into(), CONNECT)?;
    let stream = TcpStream::from(socket);
    set_up(&stream)?;
    Ok(stream)
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(QUIET))?;
    stream.set_write_timeout(Some(QUIET))
}

fn ping(mut stream: TcpStream, token: &str) -> io::Result<Duration> {
    stream.write_all(format!("{token}p\0\0\0\0").as_bytes())?;
    let mut best = Duration::MAX;
    let mut message = [1; MESSAGE];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        best = best.min(begun.elapsed());
    }
    Ok(best)
}

/// Bits a second that come within so many milliseconds, the first tenth aside.
fn take(mut stream: TcpStream, token: &str, millis: u64) -> io::Result<f64> {
    let mut head = format!("{token}r").into_bytes();
    head.extend(u32::try_from(millis).unwrap_or(0).to_be_bytes());
    stream.write_all(&head)?;
    let mut buffer = vec![0; BLOCK];
    let whole = Duration::from_millis(millis);
    let begun = Instant::now();
    let mut since = None;
    let mut bytes = 0u64;
    loop {
        let n = stream.read(&mut buffer)?;
        let now = begun.elapsed();
        if n == 0 || now > whole {
            let time = since.map_or(Duration::ZERO, |s: Duration| now.saturating_sub(s));
            return Ok(bytes as f64 * 8.0 / time.as_secs_f64().max(1e-3));
        }
        match since {
            None if now > whole / 10 => since = Some(now),
            None => {}
            Some(_) => bytes += n as u64,
        }
    }
}

fn datagrams(token: &str, to: SocketAddr, from: IpAddr, sizes: &[usize]) -> io::Result<Vec<usize>> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    let mut echoed = BTreeSet::new();
    for _ in 0..2 {
        for &size in sizes.iter().filter(|s| **s <= DATAGRAM) {
            let mut text = token.as_bytes().to_vec();
            text.resize(size.max(token.len()), 0);
            // One that is too large for the interface is refused here; it is not echoed, then.
            let _ = socket.send(&text);
        }
        let until = Instant::now() + ECHO;
        while echoed.len() < sizes.len() && Instant::now() < until {
            socket.set_read_timeout(Some(
                until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
            ))?;
            let mut buffer = [0; 256];
            // It has not come; or nobody listens there, which the other measurement says as well.
            let Ok(n) = socket.recv(&mut buffer) else { break };
            let said = String::from_utf8_lossy(&buffer[..n]).into_owned();
            echoed.extend(said.strip_prefix(token).and_then(|s| s.trim().parse::<usize>().ok()));
        }
        if echoed.len() == sizes.len() {
            break;
        }
    }
    Ok(echoed.into_iter().collect())
}

/// A group of the link that nobody else uses (one of those free for all, RFC 4291).
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0xc0, 0x417);
const PAUSE: Duration = Duration::from_millis(40);
/// Time to wait for an interface that has no address to send from. A cable that was just plugged in has one after 2 s: the
/// interface looks for a second one with the same address first (RFC 4862, 5.4: up to 1 s at random, then 1 s).
const READY: Duration = Duration::from_millis(2500);
const LARGEST: usize = 512;

/// Datagram by which an interface announces itself.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Beacon {
    token: String,
    host: usize,
    nic: String,
}

/// An interface and whom it heard: the host's number and the interface there.
type HeardThere = (String, usize, String);

/// Beacons that were heard.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct BeaconAnswer {
    pub(crate) heard: Vec<HeardThere>,
    /// An interface had no address at first: others may have ended before it had one.
    pub(crate) late: bool,
}

struct Ear {
    nic: String,
    socket: Socket,
    to: SockAddr,
    text: String,
}

/// Tell and listen for so long.
pub(super) fn beacons(
    token: &str,
    host: usize,
    port: u16,
    nics: &[String],
    time: Duration,
) -> Result<BeaconAnswer, String> {
    let ears: Vec<Ear> = nics.iter().filter_map(|nic| Ear::open(token, host, port, nic).ok()).collect();
    if ears.is_empty() && !nics.is_empty() {
        return Err(
            "no interface has IPv6 of the link (fe80::...), which beacons go over: is IPv6 turned off?"
                .into(),
        );
    }
    let begun = Instant::now();
    let mut heard = BTreeSet::new();
    let mut late = false;
    let mut until = begun + time;
    while Instant::now() < until {
        for ear in &ears {
            let sent = ear.socket.send_to(ear.text.as_bytes(), &ear.to);
            if sent.is_err_and(|e| e.kind() == ErrorKind::AddrNotAvailable) && begun.elapsed() < READY {
                late = true;
                until = until.max(Instant::now() + PAUSE * 2);
            }
            ear.hear(token, host, &mut heard);
        }
        std::thread::sleep(PAUSE);
    }
    ears.iter().for_each(|e| e.hear(token, host, &mut heard));
    Ok(BeaconAnswer { heard: heard.into_iter().collect(), late })
}

impl Ear {
    fn open(token: &str, host: usize, port: u16, nic: &str) -> io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(nic).map_err(io::Error::from)?;
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_only_v6(true)?;
        socket.set_reuse_address(true)?;
        #[cfg(not(target_os = "linux"))]
        socket.set_reuse_port(true)?;
        // With the interface in the address only what comes in there is heard.
        let at = SockAddr::from(SocketAddrV6::new(GROUP, port, 0, index));
        socket.bind(&at)?;
        socket.join_multicast_v6(&GROUP, index)?;
        socket.set_multicast_if_v6(index)?;
        socket.set_multicast_hops_v6(1)?;
        socket.set_nonblocking(true)?;
        let beacon = Beacon { token: token.into(), host, nic: nic.into() };
        Ok(Self { nic: nic.into(), socket, to: at, text: serde_json::to_string(&beacon)? })
    }

    fn hear(&self, token: &str, own: usize, heard: &mut BTreeSet<HeardThere>) {
        let mut buffer = [0; LARGEST];
        while let Ok(n) = Read::read(&mut &self.socket, &mut buffer) {
            let Ok(beacon) = serde_json::from_slice::<Beacon>(&buffer[..n]) else { continue };
            if beacon.token == token && beacon.host != own && heard.len() < 4096 {
                heard.insert((self.nic.clone(), beacon.host, beacon.nic));
            }
        }
    }
}
