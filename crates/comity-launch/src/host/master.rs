//! Connections to the place that `MASTER_ADDR` and `MASTER_PORT` name, carried over the launcher's own channel.
//!
//! ```text
//! host b: rank 2 -- 127.0.0.1:p -- host launcher -- ssh -- launcher -- ssh -- host launcher -- 127.0.0.1:q -- rank 0 :host a
//! ```
//!
//! Rank 0 of torch's `env://` listens there. Other hosts may have no way to it (a chain of cables, a firewall), or know it by different
//! addresses (a triangle). The launcher reaches all, so each rank finds rank 0 at its own host's loopback.
//!
//! Each end has at most [`WINDOW`] bytes of a connection on the way, so nobody's memory grows.
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// Bytes of one direction of a connection that the other end has not taken.
const WINDOW: usize = 256 << 10;
/// Bytes in a packet.
const PIECE: usize = 64 << 10;
/// Connections of one host at a time.
const MAX_CARRIED: usize = 1024;
/// Pause before rank 0, which did not listen yet, is tried again.
const AGAIN: Duration = Duration::from_millis(30);
/// Longer than a system takes to connect within a host.
const CONNECT: Duration = Duration::from_millis(100);

/// A part of a connection on its way between two host launchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterPacket {
    /// The host on which the connection began, by its place in the job. That host itself leaves it at 0.
    pub(crate) host: u32,
    connection: u32,
    part: MasterPart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MasterPart {
    Open,
    Bytes(Vec<u8>),
    /// So many bytes were taken at the other end.
    Taken(u32),
    End,
}

impl MasterPacket {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, taken, bytes) = match &self.part {
            MasterPart::Open => (b'o', None, &[][..]),
            MasterPart::Bytes(bytes) => (b'b', None, bytes.as_slice()),
            MasterPart::Taken(n) => (b't', Some(n.to_le_bytes()), &[][..]),
            MasterPart::End => (b'e', None, &[][..]),
        };
        let mut all = [self.host.to_le_bytes(), self.connection.to_le_bytes()].concat();
        all.push(kind);
        all.extend(taken.iter().flatten());
        all.extend_from_slice(bytes);
        all
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let (host, body) = body.split_first_chunk()?;
        let (connection, body) = body.split_first_chunk()?;
        let part = match body.split_first()? {
            (b'o', []) => MasterPart::Open,
            (b'b', bytes) => MasterPart::Bytes(bytes.to_vec()),
            (b't', count) => MasterPart::Taken(u32::from_le_bytes(count.try_into().ok()?)),
            (b'e', []) => MasterPart::End,
            _ => return None,
        };
        let host = u32::from_le_bytes(*host);
        let connection = u32::from_le_bytes(*connection);
        Some(Self { host, connection, part })
    }
}

/// The thread of a host launcher that carries connections; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Master {
    packets: Sender<MasterPacket>,
    waker: UnixStream,
}

impl Master {
    /// Begins to carry: on rank 0's host to `port` there, on another from a port of its own. Also the address for the ranks here.
    pub(crate) fn start(
        port: Option<u16>,
        tell: impl Fn(MasterPacket) + Send + 'static,
    ) -> io::Result<(Self, SocketAddr)> {
        let here = crate::address::loopback();
        let (end, at) = match port {
            Some(port) => (MasterEnd::Rank((here, port).into()), (here, port).into()),
            None => {
                let listener = TcpListener::bind((here, 0))?;
                listener.set_nonblocking(true)?;
                let at = listener.local_addr()?;
                (MasterEnd::Others(listener), at)
            }
        };
        let (waker, woken) = UnixStream::pair()?;
        let (packets, come) = mpsc::channel();
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let carrier = Carrier { end, connections: BTreeMap::new(), next: 0, tell: Box::new(tell) };
        std::thread::Builder::new().name("master".into()).spawn(move || carrier.run(&come, &woken))?;
        Ok((Self { packets, waker }, at))
    }

    /// A packet has come from the other end.
    pub(crate) fn take(&self, packet: MasterPacket) {
        // The thread ends only with this.
        let _ = self.packets.send(packet);
        // A full waker is readable already.
        let _ = (&self.waker).write(&[1]);
    }
}

/// The end of all connections at this host launcher.
enum MasterEnd {
    /// Rank 0 listens here, sooner or later.
    Rank(SocketAddr),
    /// Other ranks connect here.
    Others(TcpListener),
}

/// A connection at this end.
#[derive(Default)]
struct CarriedConnection {
    /// None while rank 0 does not listen.
    stream: Option<TcpStream>,
    /// Bytes to be written.
    pending: Vec<u8>,
    /// Bytes that the other end has not taken yet.
    sent: usize,
    /// Bytes that were written, and the other end was not told.
    written: usize,
    /// The other end is no more.
    is_over: bool,
}

struct Carrier {
    end: MasterEnd,
    /// By the host on which they began, and their number there.
    connections: BTreeMap<(u32, u32), CarriedConnection>,
    next: u32,
    tell: Box<dyn Fn(MasterPacket) + Send>,
}

impl Carrier {
    // WAIT(try_recv): connections, until the host launcher ends
    fn run(mut self, come: &Receiver<MasterPacket>, woken: &UnixStream) {
        loop {
            self.wait(woken);
            let mut sink = [0; 256];
            while matches!((&*woken).read(&mut sink), Ok(n) if n > 0) {}
            loop {
                match come.try_recv() {
                    Ok(packet) => self.on(packet),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.accept();
            let keys: Vec<_> = self.connections.keys().copied().collect();
            keys.into_iter().for_each(|key| self.serve(key));
        }
    }

    fn wait(&self, woken: &UnixStream) {
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        if let MasterEnd::Others(listener) = &self.end
            && self.connections.len() < MAX_CARRIED
        {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for carried in self.connections.values() {
            let Some(stream) = &carried.stream else { continue };
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, carried.room() > 0);
            flags.set(PollFlags::OUT, !carried.pending.is_empty());
            fds.push(PollFd::new(stream, flags));
        }
        let waits = self.connections.values().any(|c| c.stream.is_none());
        // WAIT(woken): a packet, a connection, or the end of the host launcher
        if poll_until(&mut fds, waits.then(|| Instant::now() + AGAIN)).is_err() {
            std::thread::sleep(AGAIN);
        }
    }

    fn accept(&mut self) {
        let MasterEnd::Others(listener) = &self.end else { return };
        while self.connections.len() < MAX_CARRIED
            && let Ok((stream, _)) = listener.accept()
        {
            if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
                continue;
            }
            let key = (0, self.next);
            self.next = self.next.wrapping_add(1);
            self.connections
                .insert(key, CarriedConnection { stream: Some(stream), ..CarriedConnection::default() });
            (self.tell)(packet(key, MasterPart::Open));
        }
    }

    fn on(&mut self, MasterPacket { host, connection, part }: MasterPacket) {
        let is_rank = matches!(self.end, MasterEnd::Rank(_));
        let key = (if is_rank { host } else { 0 }, connection);
        if part == MasterPart::Open && is_rank {
            self.connections.insert(key, CarriedConnection::default());
        }
        let Some(carried) = self.connections.get_mut(&key) else { return };
        match part {
            MasterPart::Open => {}
            MasterPart::Bytes(bytes) => carried.pending.extend_from_slice(&bytes),
            MasterPart::Taken(n) => carried.sent = carried.sent.saturating_sub(n as usize),
            MasterPart::End => carried.is_over = true,
        }
    }

    /// Moves what can be moved, and forgets a connection that has ended.
    fn serve(&mut self, key: (u32, u32)) {
        let Some(carried) = self.connections.get_mut(&key) else { return };
        if let (None, MasterEnd::Rank(at)) = (&carried.stream, &self.end) {
            carried.stream = connect(*at);
        }
        let tell = |part| (self.tell)(packet(key, part));
        let is_over = match carried.serve(&tell) {
            Ok(is_over) => is_over,
            Err(_) => {
                if !carried.is_over {
                    tell(MasterPart::End);
                }
                true
            }
        };
        if is_over {
            self.connections.remove(&key);
        }
    }
}

impl CarriedConnection {
    /// Bytes that may still be sent to the other end.
    fn room(&self) -> usize {
        if self.is_over { 0 } else { WINDOW.saturating_sub(self.sent) }
    }

    /// Writes and reads what is there. Whether nothing is left to do; an error where this end has ended.
    fn serve(&mut self, tell: &dyn Fn(MasterPart)) -> io::Result<bool> {
        // An end that sends beyond its window would fill this one's memory.
        if self.pending.len() > 2 * WINDOW {
            return Err(ErrorKind::InvalidData.into());
        }
        let Some(mut stream) = self.stream.as_ref() else { return Ok(self.is_over) };
        while !self.pending.is_empty() {
            match stream.write(&self.pending) {
                Ok(n) => {
                    drop(self.pending.drain(..n));
                    self.written += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if self.written >= WINDOW / 2 {
            tell(MasterPart::Taken(self.written as u32));
            self.written = 0;
        }
        if self.is_over {
            return Ok(self.pending.is_empty());
        }
        let mut piece = vec![0; PIECE];
        while self.room() > 0 {
            let most = self.room().min(PIECE);
            match stream.read(&mut piece[..most]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.sent += n;
                    tell(MasterPart::Bytes(piece[..n].to_vec()));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }
}

fn packet((host, connection): (u32, u32), part: MasterPart) -> MasterPacket {
    MasterPacket { host, connection, part }
}

fn connect(at: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, CONNECT).ok()?;
    stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).ok()?;
    Some(stream)
}

#[cfg(test)]
mod tests;
