//! Bytes over bare sockets of the loopback interface: thread r sends to the next one what an operation makes it send, and receives
//! as much from the one before. Nothing is added up, checked or framed.

use super::Step;
use crate::cell::Operation;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
};

/// Bytes sent and received at a time; they stay in the cache.
const PIECE: usize = 256 << 10;
/// Congestion control that Comity sets within a host, and that every user may set.
#[cfg(target_os = "linux")]
const CONGESTION: &[u8] = b"reno";

/// A thread's two ends.
struct Ends {
    next: TcpStream,
    before: TcpStream,
    out: Vec<u8>,
    into: Vec<u8>,
}

/// Each thread's part of a call.
pub(super) fn steps(op: Operation, ranks: usize, bytes: u64) -> Result<Vec<Step<'static>>, String> {
    let fail = |e| format!("no connection over loopback: {e}");
    let mut nexts = Vec::new();
    let mut befores = Vec::new();
    for _ in 0..ranks {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fail)?;
        let next = TcpStream::connect(listener.local_addr().map_err(fail)?).map_err(fail)?;
        let (before, _) = listener.accept().map_err(fail)?;
        for stream in [&next, &before] {
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(fail)?;
            #[cfg(target_os = "linux")]
            // Where it is not allowed the system's own holds.
            let _ = socket2::SockRef::from(stream).set_tcp_congestion(CONGESTION);
        }
        nexts.push(next);
        befores.push(before);
    }
    // The connection that r made ends at r + 1.
    befores.rotate_right(1);
    let ends = nexts.into_iter().zip(befores);
    let ends = ends.map(|(next, before)| Ends { next, before, out: vec![1; PIECE], into: vec![0; PIECE] });
    Ok(ends.enumerate().map(|(me, ends)| step(op, ranks, bytes, me, ends)).collect())
}

fn step(op: Operation, ranks: usize, bytes: u64, me: usize, mut ends: Ends) -> Step<'static> {
    let part = bytes / ranks as u64;
    let others = ranks as u64 - 1;
    let rounds = ranks.next_power_of_two().trailing_zeros();
    Box::new(move |_| match op {
        Operation::AllReduce => ends.move_bytes(2 * part * others, 2 * part * others),
        Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => {
            ends.move_bytes(part * others, part * others)
        }
        // Each passes on what it gets; the last one does not.
        Operation::Broadcast => (0..ranks.min(2)).try_for_each(|root| {
            let place = (me + ranks - root) % ranks;
            let out = if place + 1 < ranks { bytes } else { 0 };
            ends.move_bytes(out, if place > 0 { bytes } else { 0 })
        }),
        Operation::PingPong if ranks == 2 && me == 0 => {
            ends.move_bytes(bytes, 0).and_then(|()| ends.move_bytes(0, bytes))
        }
        Operation::PingPong if ranks == 2 => {
            ends.move_bytes(0, bytes).and_then(|()| ends.move_bytes(bytes, 0))
        }
        Operation::PingPong => Ok(()),
        Operation::Barrier => (0..rounds).try_for_each(|_| ends.move_bytes(1, 1)),
    })
}

impl Ends {
    /// Send and receive so many bytes at once.
    fn move_bytes(&mut self, mut out: u64, mut into: u64) -> Result<(), String> {
        let mut idle = 0;
        while out > 0 || into > 0 {
            let mut moved = false;
            if out > 0 {
                let piece = out.min(PIECE as u64) as usize;
                let done = settle(self.next.write(&self.out[..piece]))?;
                out -= done;
                moved |= done > 0;
            }
            if into > 0 {
                let piece = into.min(PIECE as u64) as usize;
                let done = settle(self.before.read(&mut self.into[..piece]))?;
                into -= done;
                moved |= done > 0;
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle > 200 {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// Bytes moved; none where the socket was not ready.
fn settle(moved: std::io::Result<usize>) -> Result<u64, String> {
    match moved {
        Ok(0) => Err("the other end of a connection over loopback went away".into()),
        Ok(n) => Ok(n as u64),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(e) => Err(format!("loopback: {e}")),
    }
}
