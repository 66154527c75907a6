//! Beacons, which find the interface and host at the other end of a cable: all say who they are on each interface, by multicast of the link
//! alone, and note whom they hear. It needs no address but the one that every interface gives itself.
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::{Duration, Instant};

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
pub(super) fn listen(
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
    fn open(token: &str, host: usize, port: u16, nic: &str) -> std::io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(nic).map_err(std::io::Error::from)?;
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
        while let Ok(n) = std::io::Read::read(&mut &self.socket, &mut buffer) {
            let Ok(beacon) = serde_json::from_slice::<Beacon>(&buffer[..n]) else { continue };
            if beacon.token == token && beacon.host != own && heard.len() < 4096 {
                heard.insert((self.nic.clone(), beacon.host, beacon.nic));
            }
        }
    }
}
