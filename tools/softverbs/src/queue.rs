//! Completion queues and the channel that tells of them.

use crate::abi::ibv_wc;
use rustix::net::{RecvFlags, recv};
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// A completion, and what polling it gives back to its queue pair.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) wc: ibv_wc,
    pub(crate) units: u32,
    pub(crate) send: bool,
    pub(crate) solicited: bool,
}

/// Receiver of a queue's events, and the address of the client's completion queue.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) events: Arc<Events>,
    pub(crate) cookie: u64,
}

/// Events that the client has not read: their queues' addresses, and a byte for each in a socket that it can poll.
#[derive(Debug)]
pub(crate) struct Events {
    reader: UnixStream,
    writer: UnixStream,
    unread: Mutex<VecDeque<u64>>,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer, unread: Mutex::default() })
    }

    /// Descriptor that the client polls.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    fn add(&self, cookie: u64) {
        // Full only with thousands of events that nobody took.
        if matches!((&self.writer).write(&[1]), Ok(1)) {
            self.unread.lock().unwrap_or_else(PoisonError::into_inner).push_back(cookie);
        }
    }

    /// Wait until there may be an event, unless the client made its descriptor non-blocking.
    pub(crate) fn wait(&self) -> io::Result<()> {
        (&self.reader).read_exact(&mut [0])
    }

    /// The next one. None where its queue went after [`wait`](Self::wait) had returned.
    pub(crate) fn next(&self) -> Option<u64> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// A queue goes, and with it what it had to tell.
    fn forget(&self, cookie: u64) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        let before = unread.len();
        unread.retain(|c| *c != cookie);
        let mut bytes = vec![0_u8; before - unread.len()];
        // Fewer come where a thread has read one and not called `next` yet.
        let _ = recv(&self.reader, &mut bytes[..], RecvFlags::DONTWAIT);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) capacity: usize,
    pub(crate) overflow: bool,
    pub(crate) armed: Option<Armed>,
    pub(crate) channel: Option<Channel>,
    /// Events that the client read and did not acknowledge.
    pub(crate) unacked_events: u32,
    pub(crate) pairs: Vec<u32>,
    pub(crate) polled: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Armed {
    Any,
    /// Only for solicited messages and errors.
    Solicited,
}

impl Queue {
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.entries.len() >= self.capacity {
            if !self.overflow {
                eprintln!("softverbs: a completion queue of {} entries overflowed", self.capacity);
            }
            self.overflow = true;
            return;
        }
        let stands_out = entry.solicited || entry.wc.status != 0;
        self.entries.push_back(entry);
        if self.armed == Some(Armed::Any) || self.armed == Some(Armed::Solicited) && stands_out {
            self.armed = None;
            if let Some(channel) = &self.channel {
                channel.events.add(channel.cookie);
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.events.forget(self.cookie);
    }
}
