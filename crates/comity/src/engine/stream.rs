//! Messages to and from a peer: the position of each stream, and the messages that came too early.

use crate::{
    stats::LiveLink,
    status::{HEADER as LEN, Header, lead},
    transport::{Link, LinkError},
};
use comity_plan::Schedule;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// Most a lead can be: a header and padding to a cache line.
const LEAD: usize = LEN + 64;

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

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

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

    pub(super) fn lead_is_sent(&self) -> bool {
        self.lead_at == self.lead_len
    }

    pub(super) fn end(&mut self) {
        self.open = false;
    }
}

/// Bytes of sends without a receive yet that a peer may make this rank keep.
pub(crate) const STASH: usize = 256 << 20;

/// A send that arrived before its receive.
#[derive(Debug)]
pub(super) struct StashedMessage {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
enum At {
    /// Between messages.
    Start,
    /// In a header; so many bytes of it are here.
    Header(usize),
    /// In padding; so many bytes of it are still to come.
    Pad(usize),
    /// In the payload.
    Body,
    /// In the padding and payload of a message for later.
    Stash(usize),
}

/// Incoming stream of messages from a peer.
#[derive(Debug)]
pub(super) struct Rx {
    pos: u64,
    at: At,
    head: [u8; LEAD],
    stash: VecDeque<StashedMessage>,
    stashed: usize,
    /// Value of [`Header::lends`] in the peer's last header.
    pub(super) lends: bool,
    /// The link had no bytes at the last look.
    pub(super) starved: bool,
    /// Number of bytes that the link had received at the last look before a sleep, and the time of the last arrival.
    pub(super) arrived: (u64, Option<Instant>),
    /// When this rank saw that the peer had left the group.
    pub(super) left: Option<Instant>,
    /// Payload bytes that are in their place but that the schedule does not know of: the link has not checked them yet.
    pub(super) pending: usize,
    /// Byte counters that outside readers see.
    pub(super) live: Option<Arc<LiveLink>>,
}

#[derive(Debug)]
pub(super) enum Begin {
    Nothing,
    /// Bytes came, the payload has not begun.
    More,
    /// The payload follows.
    Body,
}

/// Reason for which a message cannot be taken.
#[derive(Debug)]
pub(super) enum HeaderRefusal {
    /// The link ended.
    Link(LinkError),
    /// The peer made another call.
    Other(Header, &'static str),
    /// The peer sent so much unasked that this rank will not keep it.
    Flood(Header),
}

impl From<LinkError> for HeaderRefusal {
    fn from(e: LinkError) -> Self {
        Self::Link(e)
    }
}

impl Rx {
    pub(super) fn new() -> Self {
        let stash = VecDeque::new();
        let stashed = 0;
        let lends = false;
        let starved = false;
        let arrived = (0, None);
        let left = None;
        let pending = 0;
        let at = At::Start;
        let head = [0; LEAD];
        let live = None;
        Self { pos: 0, at, head, stash, stashed, lends, starved, arrived, left, pending, live }
    }

    /// Returns true if no byte has come for so long.
    pub(super) fn is_quiet(&self, now: Instant, long: Duration) -> bool {
        self.arrived.1.is_none_or(|since| now - since > long)
    }

    /// The first kept send that `wants` accepts, in the order they came.
    pub(super) fn unstash(&mut self, wants: impl Fn(&Header) -> bool) -> Option<StashedMessage> {
        let i = self.stash.iter().position(|p| wants(&p.header))?;
        let p = self.stash.remove(i)?;
        self.stashed -= p.bytes.len() + size_of::<StashedMessage>();
        Some(p)
    }

    /// Come to the payload of the message of `len` bytes that begins with `expected` (if it is a first one), keeping
    /// sends for later that stand before it.
    #[inline]
    pub(super) fn begin(
        &mut self,
        link: &mut dyn Link,
        expected: Option<&Header>,
        len: usize,
        from: usize,
    ) -> Result<Begin, HeaderRefusal> {
        let mut moved = false;
        loop {
            match self.at {
                At::Start if expected.is_some() => self.at = At::Header(0),
                At::Start => self.at = At::Pad(lead(self.pos, false, len)),
                At::Header(have) => {
                    let n = link.take(&mut self.head[have..LEN])?;
                    self.pos += n as u64;
                    moved |= n > 0;
                    if have + n < LEN {
                        self.at = At::Header(have + n);
                        self.starved = true;
                        return Ok(if moved { Begin::More } else { Begin::Nothing });
                    }
                    self.check(expected, len, from)?;
                }
                At::Pad(0) => {
                    self.at = At::Body;
                    return Ok(Begin::Body);
                }
                At::Pad(left) => {
                    let n = link.take(&mut self.head[..left])?;
                    self.pos += n as u64;
                    moved |= n > 0;
                    self.at = At::Pad(left - n);
                    if n < left {
                        self.starved = true;
                        return Ok(if moved { Begin::More } else { Begin::Nothing });
                    }
                }
                At::Body => return Ok(Begin::Body),
                At::Stash(pad) => {
                    let before = self.pos;
                    let whole = self.keep(link, pad)?;
                    moved |= self.pos != before;
                    if !whole {
                        self.starved = true;
                        return Ok(if moved { Begin::More } else { Begin::Nothing });
                    }
                }
            }
        }
    }

    /// A whole header is here: is it the expected one?
    fn check(&mut self, expected: Option<&Header>, len: usize, from: usize) -> Result<(), HeaderRefusal> {
        let mut head = [0; LEN];
        head.copy_from_slice(&self.head[..LEN]);
        self.lends = Header::says_lends(&head);
        // Nearly always these are the very bytes that this rank would send.
        if expected.is_some_and(|e| e.encode() == head) {
            self.at = At::Pad(lead(self.pos - LEN as u64, true, len) - LEN);
            return Ok(());
        }
        let Some(got) = Header::decode(&head, from) else {
            return Err(LinkError("sent bytes that are no header; the stream is out of step".into()).into());
        };
        let difference = expected.and_then(|e| e.difference(&got));
        let Some(what) = difference else {
            self.at = At::Pad(lead(self.pos - LEN as u64, true, len) - LEN);
            return Ok(());
        };
        // A send for a later receive may stand before anything; a send with our tag and another shape is a mistake.
        let same_tag = expected.is_some_and(|e| e.info.op == got.info.op && e.info.tag == got.info.tag);
        match got.pair_bytes() {
            Some(bytes) if !same_tag && expected.is_none_or(|e| e.group_id == got.group_id) => {
                let cost = bytes.saturating_add(size_of::<StashedMessage>());
                if cost > STASH - self.stashed {
                    return Err(HeaderRefusal::Flood(got));
                }
                self.stashed += cost;
                // Grows as bytes arrive, not by what a header claims.
                self.stash.push_back(StashedMessage { header: got, bytes: Vec::new() });
                self.at = At::Stash(lead(self.pos - LEN as u64, true, bytes) - LEN);
                Ok(())
            }
            _ => Err(HeaderRefusal::Other(got, what)),
        }
    }

    /// Go on keeping the last message of the stash; true when it is whole.
    fn keep(&mut self, link: &mut dyn Link, mut pad: usize) -> Result<bool, LinkError> {
        while pad > 0 {
            let n = link.take(&mut self.head[..pad])?;
            self.pos += n as u64;
            pad -= n;
            self.at = At::Stash(pad);
            if n == 0 {
                return Ok(false);
            }
        }
        let Some(message) = self.stash.back_mut() else {
            self.at = At::Start;
            return Ok(true);
        };
        let len = message.header.pair_bytes().unwrap_or(0);
        while message.bytes.len() < len {
            let have = message.bytes.len();
            let part = (len - have).min(link.chunk());
            message.bytes.resize(have + part, 0);
            let n = link.take(&mut message.bytes[have..]);
            message.bytes.truncate(have + *n.as_ref().unwrap_or(&0));
            let n = n?;
            self.pos += n as u64;
            if n == 0 {
                return Ok(false);
            }
        }
        self.at = At::Start;
        Ok(true)
    }

    /// `n` payload bytes were taken from the link, which has not checked the last `unproven` ones. How many more are now
    /// known to be right.
    pub(super) fn took(&mut self, n: usize, unproven: usize) -> usize {
        self.pos += n as u64;
        if let Some(live) = &self.live {
            live.received(self.pos);
        }
        self.pending += n;
        let proven = self.pending.saturating_sub(unproven);
        self.pending -= proven;
        proven
    }

    /// The message has ended, and so has its last frame.
    pub(super) fn end_checked(&mut self) -> Result<(), LinkError> {
        self.at = At::Start;
        if self.pending > 0 {
            return Err(LinkError("sent a frame that goes beyond its message".into()));
        }
        Ok(())
    }

    /// Returns true if the next byte is the first of a message.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.at, At::Start)
    }

    /// Returns the number of earlier bytes of the stream.
    pub(super) fn pos(&self) -> u64 {
        self.pos
    }

    /// Returns true if the payload of the current message has begun.
    pub(super) fn is_in_body(&self) -> bool {
        matches!(self.at, At::Body)
    }
}
