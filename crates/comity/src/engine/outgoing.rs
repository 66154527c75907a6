//! Outgoing messages to a peer, and the position of the stream.

use crate::{
    stats::LiveLink,
    status::{HEADER as LEN, lead},
    transport::{Link, LinkError},
};
use comity_plan::Schedule;
use std::sync::Arc;

/// Most a lead can be: a header and padding to a cache line.
pub(super) const LEAD: usize = LEN + 64;

/// Outgoing stream of messages to a peer.
#[derive(Debug)]
pub(super) struct Tx {
    pos: u64,
    lead: [u8; LEAD],
    lead_at: usize,
    lead_len: usize,
    /// The current message's lead has been made.
    open: bool,
    /// The link had no room at the last look.
    pub(super) blocked: bool,
    /// Payload bytes that have left and that the peer may still read in this rank's memory.
    pub(super) lent: usize,
    /// Byte counters that outside readers see.
    pub(super) live: Option<Arc<LiveLink>>,
}

impl Tx {
    pub(super) fn new() -> Self {
        Self {
            pos: 0,
            lead: [0; LEAD],
            lead_at: 0,
            lead_len: 0,
            open: false,
            blocked: false,
            lent: 0,
            live: None,
        }
    }

    /// Returns the number of earlier bytes of the stream.
    pub(super) fn pos(&self) -> u64 {
        self.pos
    }

    /// Returns true if the current message has begun.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Begin a message of `len` bytes.
    pub(super) fn begin(&mut self, header: Option<&[u8; LEN]>, len: usize) {
        self.lead_len = lead(self.pos, header.is_some(), len);
        self.lead_at = 0;
        self.lead[..self.lead_len].fill(0);
        if let Some(h) = header {
            self.lead[..LEN].copy_from_slice(h);
        }
        self.open = true;
    }

    /// Begin a message and offer all of it. If there was no room, the message is under way, and so many bytes of its body have left. If
    /// the link has failed, none.
    #[inline]
    pub(super) fn put_whole(
        &mut self,
        link: &mut dyn Link,
        header: &[u8; LEN],
        body: &[u8],
    ) -> Result<(), usize> {
        // Mostly the header is all of the lead, and need not be copied.
        let is_plain = lead(self.pos, true, body.len()) == LEN;
        let n = if is_plain { link.put(header, body).unwrap_or(0) } else { 0 };
        if n == LEN + body.len() {
            self.pos += n as u64;
            self.blocked = false;
            if let Some(live) = &self.live {
                live.sent(self.pos);
            }
            return Ok(());
        }
        self.begin(Some(header), body.len());
        self.lead_at = n.min(LEN);
        self.pos += n as u64;
        let left = n.saturating_sub(LEN);
        let left = left + self.put(link, &body[left..]).unwrap_or(0);
        self.open = !self.lead_is_sent() || left < body.len();
        if self.open { Err(left) } else { Ok(()) }
    }

    /// Offer the lead, then `body`; how many bytes of `body` left.
    pub(super) fn put(&mut self, link: &mut dyn Link, body: &[u8]) -> Result<usize, LinkError> {
        let lead = &self.lead[self.lead_at..self.lead_len];
        let n = link.put(lead, body)?;
        let of_lead = n.min(lead.len());
        self.lead_at += of_lead;
        self.pos += n as u64;
        self.blocked = n < lead.len() + body.len();
        if let Some(live) = &self.live {
            live.sent(self.pos);
        }
        Ok(n - of_lead)
    }

    /// `n` more payload bytes have left: tell the schedule, and what of those before came back.
    #[inline]
    pub(super) fn gave(
        &mut self,
        link: &mut dyn Link,
        schedule: &mut Schedule,
        queue: usize,
        n: usize,
    ) -> Result<(), LinkError> {
        let lent = link.lent()?;
        if lent == 0 && self.lent == 0 {
            schedule.sent(queue, n);
            return Ok(());
        }
        schedule.lend(queue, n);
        self.lent += n;
        self.came_back(schedule, queue, lent);
        Ok(())
    }

    /// Tell the schedule what came back of what was lent; whether something did.
    pub(super) fn collect(
        &mut self,
        link: &mut dyn Link,
        schedule: &mut Schedule,
        queue: usize,
    ) -> Result<bool, LinkError> {
        let lent = link.lent()?;
        Ok(self.came_back(schedule, queue, lent))
    }

    fn came_back(&mut self, schedule: &mut Schedule, queue: usize, lent: usize) -> bool {
        let returned = self.lent.saturating_sub(lent);
        self.lent -= returned;
        schedule.returned(queue, returned);
        returned > 0
    }

    /// Returns true if the lead has left.
    pub(super) fn lead_is_sent(&self) -> bool {
        self.lead_at == self.lead_len
    }

    /// The message has ended.
    pub(super) fn end(&mut self) {
        self.open = false;
    }
}
