//! Completion queues and the channel that tells of them.

use crate::abi::ibv_wc;
use std::{collections::VecDeque, io::Write, os::unix::net::UnixStream, sync::Arc, time::Instant};

/// A completion, and what polling it gives back to its queue pair.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) wc: ibv_wc,
    pub(crate) units: u32,
    pub(crate) send: bool,
    pub(crate) solicited: bool,
}

/// Where events go: the writing end of what the client reads, and the address of its completion queue.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    pub(crate) to: Arc<UnixStream>,
    pub(crate) cookie: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) capacity: usize,
    pub(crate) overflow: bool,
    pub(crate) armed: Option<Armed>,
    pub(crate) channel: Option<Channel>,
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
    pub(crate) fn new(capacity: usize, channel: Option<Channel>) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity,
            overflow: false,
            armed: None,
            channel,
            unacked_events: 0,
            pairs: Vec::new(),
            polled: None,
        }
    }

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
                self.unacked_events += 1;
                // Full only with thousands of events that nobody took.
                let _ = (&*channel.to).write(&channel.cookie.to_ne_bytes());
            }
        }
    }
}
