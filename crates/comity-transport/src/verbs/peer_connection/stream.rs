//! A group's bytes over a peer connection: the position of each direction, and the waker for news.

use crate::{
    Interest,
    sys::{Waker, verbs::Slab},
    verbs::flow::FrameOrder,
};
use std::sync::Arc;

/// Bytes that one group may have unread here from one peer: what a group that is not served can keep of this process's memory.
pub(super) const WINDOW: u64 = 4 << 20;

#[derive(Debug)]
pub(in crate::verbs) enum PayloadPlace {
    /// In the slot where the device put them.
    Slot { path: usize, qp: usize, slot: usize, at: usize, slab: Arc<Slab> },
    /// Moved out of the way.
    Heap(Vec<u8>),
}

/// A group's bytes, both ways.
#[derive(Debug)]
pub(super) struct GroupStream {
    pub(super) put: u64,
    pub(super) allowed: u64,
    pub(super) order: FrameOrder<PayloadPlace>,
    /// Rung when an armed link should look; there is none before the group is open here, and after its link is gone.
    pub(super) waker: Option<Arc<Waker>>,
    pub(super) armed: Interest,
    /// The link here is gone.
    pub(super) gone: bool,
}

impl GroupStream {
    pub(super) fn new() -> Self {
        let armed = Interest::default();
        Self { put: 0, allowed: WINDOW, order: FrameOrder::new(), waker: None, armed, gone: false }
    }

    pub(super) fn wake(&self, what: Interest) {
        let wanted = self.armed.recv && what.recv || self.armed.send && what.send;
        if let Some(waker) = self.waker.as_ref().filter(|_| wanted) {
            waker.wake();
        }
    }
}

pub(super) const RECV: Interest = Interest { recv: true, send: false };
pub(super) const SEND: Interest = Interest { recv: false, send: true };
pub(super) const BOTH: Interest = Interest { recv: true, send: true };

impl GroupStream {
    /// The peer has taken so many bytes in all.
    pub(super) fn allow(&mut self, taken: u64) -> Result<(), String> {
        if taken > self.put {
            return Err("took more bytes than were sent".into());
        }
        if taken + WINDOW > self.allowed {
            self.allowed = taken + WINDOW;
            self.wake(SEND);
        }
        Ok(())
    }
}
