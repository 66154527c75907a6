//! A communicator: a socket to each other rank, and work that goes over them in turn.

use crate::{Table, fault, lock, memory, reduce, stream};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

pub(crate) const SYSTEM: i32 = 2;
pub(crate) const INTERNAL: i32 = 3;
pub(crate) const INVALID_ARGUMENT: i32 = 4;
pub(crate) const INVALID_USAGE: i32 = 5;
pub(crate) const REMOTE: i32 = 6;

/// A call, in addresses and bytes. Of a `Reduce` without a root every rank has the result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Reduce { src: usize, dst: usize, len: usize, dtype: i32, op: i32, root: Option<usize> },
    Broadcast { src: usize, dst: usize, len: usize, root: usize },
    AllGather { src: usize, dst: usize, len: usize },
    ReduceScatter { src: usize, dst: usize, len: usize, dtype: i32, op: i32 },
    Send { src: usize, len: usize, to: usize },
    Recv { dst: usize, len: usize, from: usize },
}

#[derive(Debug)]
pub(crate) struct Comm {
    rank: usize,
    peers: Vec<Option<UnixStream>>,
    aborted: AtomicBool,
    pub(crate) error: AtomicI32,
    /// Work given and work done; NCCL keeps the order of a communicator over all streams.
    turns: Mutex<(u64, u64)>,
    news: Condvar,
}

static COMMS: Mutex<Table<Arc<Comm>>> = Mutex::new(Table::new());

pub(crate) fn find(id: usize) -> Option<Arc<Comm>> {
    lock(&COMMS).rows.get(&id).cloned()
}

/// End its work, and forget it. Whether there was one.
pub(crate) fn abort(id: usize) -> bool {
    let Some(comm) = lock(&COMMS).rows.remove(&id) else { return false };
    comm.aborted.store(true, Ordering::Release);
    let _turns = lock(&comm.turns);
    comm.news.notify_all();
    for peer in comm.peers.iter().flatten() {
        let _ = peer.shutdown(Shutdown::Both);
    }
    true
}

/// Meet all ranks that hold `id`; blocks until they have come. The number of the communicator, or NCCL's code.
pub(crate) fn make(id: &[u8], rank: usize, size: usize, device: i32) -> Result<usize, i32> {
    match fault::at_init(rank) {
        Some(fault::Kind::InitError) => return Err(INTERNAL),
        Some(_) => loop {
            thread::park();
        },
        None => {}
    }
    let (peers, devices) = meet(id, rank, size, device).map_err(|_| SYSTEM)?;
    if devices.iter().filter(|&&d| d == device).count() > 1 {
        return Err(INVALID_USAGE);
    }
    let comm = Comm {
        rank,
        peers,
        aborted: AtomicBool::new(false),
        error: AtomicI32::new(0),
        turns: Mutex::new((0, 0)),
        news: Condvar::new(),
    };
    Ok(lock(&COMMS).add(Arc::new(comm)))
}

/// A connection to each other rank, and every rank's device.
fn meet(id: &[u8], rank: usize, size: usize, device: i32) -> io::Result<(Vec<Option<UnixStream>>, Vec<i32>)> {
    let name = |r: usize| {
        let text: String = id.iter().take(16).map(|b| format!("{b:02x}")).collect();
        SocketAddr::from_abstract_name(format!("softnccl-{text}-{r}"))
    };
    let listener = UnixListener::bind_addr(&name(rank)?)?;
    let hello = [(rank as i32).to_ne_bytes(), device.to_ne_bytes()].concat();
    let mut peers: Vec<Option<UnixStream>> = (0..size).map(|_| None).collect();
    let mut devices = vec![device; size];
    let heard = |s: &mut UnixStream| {
        let mut words = [0; 8];
        s.read_exact(&mut words)?;
        let word = |i: usize| i32::from_ne_bytes(words[i..i + 4].try_into().unwrap_or_default());
        io::Result::Ok((word(0) as usize, word(4)))
    };
    for lower in 0..rank {
        let mut s = loop {
            match UnixStream::connect_addr(&name(lower)?) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    thread::sleep(Duration::from_millis(2));
                }
                other => break other?,
            }
        };
        s.write_all(&hello)?;
        devices[lower] = heard(&mut s)?.1;
        peers[lower] = Some(s);
    }
    for _ in rank + 1..size {
        let (mut s, _) = listener.accept()?;
        s.write_all(&hello)?;
        let (peer, theirs) = heard(&mut s)?;
        if let (Some(p), Some(d)) = (peers.get_mut(peer), devices.get_mut(peer)) {
            (*p, *d) = (Some(s), theirs);
        }
    }
    for s in peers.iter().flatten() {
        s.set_nonblocking(true)?;
    }
    Ok((peers, devices))
}

/// Bytes that leave, and bytes that come, between this rank and one other.
struct Out<'a>(usize, &'a [u8]);
struct In<'a>(usize, &'a mut [u8]);

impl Comm {
    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }

    /// Put work on a stream.
    pub(crate) fn give(self: &Arc<Self>, parts: Vec<Part>, on: usize) -> i32 {
        let Some(stream) = stream::find(on) else { return INVALID_ARGUMENT };
        let error = self.error.load(Ordering::Acquire);
        if error != 0 {
            return error;
        }
        if !parts.iter().all(|p| self.is_sound(p)) {
            return INVALID_ARGUMENT;
        }
        let turn = {
            let mut turns = lock(&self.turns);
            turns.0 += 1;
            turns.0 - 1
        };
        let comm = Arc::clone(self);
        stream.give(move || comm.work(&parts, turn));
        0
    }

    /// Return whether the device knows the memory, and the ranks are there.
    fn is_sound(&self, part: &Part) -> bool {
        let n = self.size();
        let known = memory::is_known;
        match *part {
            Part::Reduce { src, dst, len, root, .. } => {
                let gets = root.is_none_or(|r| r == self.rank);
                root.is_none_or(|r| r < n) && known(src, len) && (!gets || known(dst, len))
            }
            Part::Broadcast { src, dst, len, root } => {
                root < n && (self.rank != root || known(src, len)) && known(dst, len)
            }
            Part::AllGather { src, dst, len } => known(src, len) && known(dst, len * n),
            Part::ReduceScatter { src, dst, len, .. } => known(src, len * n) && known(dst, len),
            Part::Send { src, len, to } => to < n && to != self.rank && known(src, len),
            Part::Recv { dst, len, from } => from < n && from != self.rank && known(dst, len),
        }
    }

    fn work(&self, parts: &[Part], turn: u64) {
        let mut turns = lock(&self.turns);
        while turns.1 != turn && !self.aborted.load(Ordering::Acquire) {
            turns = self.news.wait(turns).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        drop(turns);
        let done = match fault::at_work(self.rank) {
            None => self.carry_out(parts),
            Some(fault::Kind::Die) => {
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                None
            }
            Some(kind) => {
                if kind == fault::Kind::Async {
                    self.error.store(SYSTEM, Ordering::Release);
                }
                None
            }
        };
        let mut turns = lock(&self.turns);
        while done.is_none() && !self.aborted.load(Ordering::Acquire) {
            turns = self.news.wait(turns).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        turns.1 = turns.1.max(turn + 1);
        self.news.notify_all();
    }

    /// `None` when it cannot be done any more.
    fn carry_out(&self, parts: &[Part]) -> Option<()> {
        // Sends and receives of a group go on at the same time; collectives one after the other.
        let mut outs = Vec::new();
        let mut ins = Vec::new();
        for part in parts {
            // SAFETY: these ranges were found known, and the caller keeps them until the stream has come past this.
            unsafe {
                match *part {
                    Part::Send { src, len, to } => outs.push(Out(to, memory::read(src, len))),
                    Part::Recv { dst, len, from } => ins.push(In(from, memory::write(dst, len))),
                    _ => self.collective(part)?,
                }
            }
        }
        self.exchange(outs, ins)
    }

    /// # Safety
    /// The ranges are known, and stay so.
    unsafe fn collective(&self, part: &Part) -> Option<()> {
        let n = self.size();
        let me = self.rank;
        let others = || (0..n).filter(move |&r| r != me);
        // SAFETY: the caller's promise, for all of them.
        let read = |at: usize, len: usize| unsafe { memory::read(at, len) }.to_vec();
        // SAFETY: as above.
        let write =
            |at: usize, bytes: &[u8]| unsafe { memory::write(at, bytes.len()) }.copy_from_slice(bytes);
        match *part {
            Part::Reduce { src, dst, len, dtype, op, root } => {
                let own = read(src, len);
                let gets = |r: usize| root.is_none_or(|root| root == r);
                let mut all = vec![own.clone(); n];
                let ins = if gets(me) { rows(&mut all, me) } else { Vec::new() };
                self.exchange(others().filter(|&r| gets(r)).map(|r| Out(r, &own)).collect(), ins)?;
                if gets(me) {
                    write(dst, &reduce::reduce(dtype, op, &all));
                }
            }
            Part::Broadcast { src, dst, len, root } => {
                if me == root {
                    let own = read(src, len);
                    self.exchange(others().map(|r| Out(r, &own)).collect(), Vec::new())?;
                    write(dst, &own);
                } else {
                    let mut theirs = vec![0; len];
                    self.exchange(Vec::new(), vec![In(root, &mut theirs)])?;
                    write(dst, &theirs);
                }
            }
            Part::AllGather { src, dst, len } => {
                let own = read(src, len);
                let mut all = vec![own.clone(); n];
                self.exchange(others().map(|r| Out(r, &own)).collect(), rows(&mut all, me))?;
                write(dst, &all.concat());
            }
            Part::ReduceScatter { src, dst, len, dtype, op } => {
                let own = read(src, len * n);
                let mut all = vec![own[me * len..][..len].to_vec(); n];
                let outs = others().map(|r| Out(r, &own[r * len..][..len])).collect();
                self.exchange(outs, rows(&mut all, me))?;
                write(dst, &reduce::reduce(dtype, op, &all));
            }
            Part::Send { .. } | Part::Recv { .. } => {}
        }
        Some(())
    }

    /// Move all of it, in any order between pairs and in this order within one. `None` when a peer is gone or this was aborted.
    fn exchange(&self, mut outs: Vec<Out<'_>>, mut ins: Vec<In<'_>>) -> Option<()> {
        outs.retain(|o| !o.1.is_empty());
        ins.retain(|i| !i.1.is_empty());
        while !outs.is_empty() || !ins.is_empty() {
            if self.aborted.load(Ordering::Acquire) {
                return None;
            }
            let mut moved = false;
            let mut busy = vec![PollFlags::empty(); self.size()];
            for Out(to, bytes) in &mut outs {
                if busy[*to].contains(PollFlags::OUT) {
                    continue;
                }
                busy[*to] |= PollFlags::OUT;
                match self.peers[*to].as_ref()?.write(bytes) {
                    Ok(n) => (*bytes, moved) = (&bytes[n..], true),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return self.lost(),
                }
            }
            for In(from, bytes) in &mut ins {
                if busy[*from].contains(PollFlags::IN) {
                    continue;
                }
                busy[*from] |= PollFlags::IN;
                match self.peers[*from].as_ref()?.read(bytes) {
                    Ok(0) => return self.lost(),
                    Ok(n) => {
                        *bytes = &mut std::mem::take(bytes)[n..];
                        moved = true;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return self.lost(),
                }
            }
            outs.retain(|o| !o.1.is_empty());
            ins.retain(|i| !i.1.is_empty());
            if !moved {
                let waits = self.peers.iter().zip(&busy).filter(|(_, b)| !b.is_empty());
                let mut fds: Vec<_> = waits
                    .filter_map(|(p, b)| Some(PollFd::from_borrowed_fd(p.as_ref()?.as_fd(), *b)))
                    .collect();
                let _ = poll(&mut fds, None);
            }
        }
        Some(())
    }

    fn lost(&self) -> Option<()> {
        if std::env::var_os("SOFTNCCL_PEER_LOSS").is_some_and(|v| v == "error") {
            self.error.store(REMOTE, Ordering::Release);
        }
        None
    }
}

/// Rows for the bytes of each other rank.
fn rows(all: &mut [Vec<u8>], me: usize) -> Vec<In<'_>> {
    all.iter_mut().enumerate().filter(|(r, _)| *r != me).map(|(r, row)| In(r, row)).collect()
}
