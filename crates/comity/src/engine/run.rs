//! The engine: one rank's links, and the loop that runs a schedule over them.
//!
//! ```text
//!   loop:  every send queue:     schedule says how far -> memory -> link.put
//!          every receive queue:  link.peek -> kernel -> memory, or link.take -> memory
//!          nothing moved:        spin | yield | park, look at the watch, look at the clock
//! ```
//!
//! Headers leave before anything else, also those of messages that have nothing to carry yet, and nothing is written to the
//! caller's output before all ranks that this one hears from have announced the same call.

use super::{
    Patience,
    fold::{types, whole},
    interrupt::Asking,
    stream::{Begin, Refusal, Rx, Tx},
    wait::{Stage, Wait},
};
use crate::{
    CallInfo, DType, Peer, ReduceOp, Result, kernel,
    stats::Counters,
    status::{Failure, Header, Links, Watch, World},
    transport::LinkError,
    view::Memory,
};
use comity_plan::{Act, Buf, Schedule, Slice, Take};
use std::{sync::Arc, thread, time::Duration};

/// The longest sleep without a look around.
const NAP: Duration = Duration::from_millis(500);
/// Moves between two looks at the time and at what others say, in a call that moves on.
const LOOK: u32 = 32;
/// After so long without a byte those who are waited for are told what for.
pub(crate) const ASK: Duration = Duration::from_millis(60);

/// One rank's links of one group.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) rank: usize,
    pub(super) links: Links,
    pub(super) tx: Vec<Tx>,
    pub(super) rx: Vec<Rx>,
    pub(super) world: Arc<dyn World>,
    pub(super) context: u64,
    pub(super) watch: Arc<Watch>,
    pub(super) members: Arc<[Peer]>,
    pub(super) patience: Patience,
    pub(super) counters: Arc<Counters>,
    /// How long a member may be silent.
    pub(super) silence: Option<Duration>,
    /// For how long nothing had moved when the last call ran out of time.
    pub(super) still: Duration,
}

/// What a call is made of besides its data.
pub(crate) struct Task<'a> {
    /// Announced to peers, and named in errors.
    pub(crate) info: CallInfo,
    /// The header for (or from) each peer.
    pub(crate) header: &'a dyn Fn(Way, usize) -> Header,
    /// The call as told to ranks that are waited for; `None` for calls between two ranks alone.
    pub(crate) call: Option<Header>,
    /// How long it may take.
    pub(crate) limit: Duration,
}

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    In,
}

/// Why the loop stopped.
pub(super) enum Stop {
    Refused(usize, Refusal),
    Failed(Failure),
    Late,
    /// This rank's program was interrupted.
    Interrupted(String),
    /// This rank closes the group.
    Closed,
    Left(usize),
}

impl Engine {
    pub(crate) fn new(
        world: Arc<dyn World>,
        context: u64,
        (rank, members): (usize, Arc<[Peer]>),
        (links, watch): (Links, Arc<Watch>),
        patience: Patience,
        counters: Arc<Counters>,
    ) -> Self {
        let size = members.len();
        let (tx, rx) = ((0..size).map(|_| Tx::new()).collect(), (0..size).map(|_| Rx::new()).collect());
        let silence = world.silence();
        Self {
            rank,
            links,
            tx,
            rx,
            world,
            context,
            watch,
            members,
            patience,
            counters,
            silence,
            still: Duration::ZERO,
        }
    }

    /// Run `schedule` to its end over `memory`. An error means that the group has failed, and has been told so.
    pub(crate) fn run(
        &mut self,
        schedule: &mut Schedule,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
    ) -> Result<()> {
        self.watch.advance();
        let out = self.drive(schedule, memory, task);
        self.watch.advance();
        match out {
            Ok(()) => Ok(()),
            Err(stop) => Err(self.explain(stop, schedule, task)),
        }
    }

    /// A send from `peer` that came before its receive, if `wants` accepts its header.
    pub(crate) fn unstash(
        &mut self,
        peer: usize,
        wants: impl Fn(&Header) -> bool,
    ) -> Option<(Header, Vec<u8>)> {
        self.rx[peer].unstash(wants).map(|p| (p.header, p.bytes))
    }

    /// What this engine counts.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The link to `peer`, for information.
    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    fn drive(
        &mut self,
        schedule: &mut Schedule,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
    ) -> std::result::Result<(), Stop> {
        let mut wait = Wait::new(self.patience, task.limit);
        let (mut armed, mut leaver, mut moves) = (false, None, 0u32);
        let mut asking = Asking::new();
        let mut asked = Vec::new();
        let mut unheard = schedule.speakers();
        loop {
            let mut moved = false;
            for q in 0..schedule.send_queues() {
                let peer = schedule.send_peer(q);
                moved |= self.push(schedule, q, memory, task).map_err(|e| Stop::Refused(peer, e.into()))?;
            }
            for q in 0..schedule.recv_queues() {
                let peer = schedule.recv_peer(q);
                let pulled = self.pull(schedule, q, memory, task, &mut unheard);
                moved |= pulled.map_err(|Blame(who, e)| Stop::Refused(who.unwrap_or(peer), e))?;
            }
            while let Some((src, dst)) =
                if schedule.copy_can_wait(unheard == 0) { None } else { schedule.next_copy() }
            {
                memory.copy(src, dst);
                moved = true;
            }
            if schedule.is_done() {
                wait.reset();
                self.patience = wait.patience();
                if armed {
                    self.disarm();
                }
                return Ok(());
            }
            if moved {
                moves = moves.wrapping_add(1);
                if armed {
                    self.disarm();
                    armed = false;
                }
                leaver = None;
                wait.reset();
                // Between two moves there may be a wait of some milliseconds that is too short to sleep in.
                if moves.is_multiple_of(LOOK) {
                    if let Some(f) = self.watch.failure() {
                        return Err(Stop::Failed(f.clone()));
                    }
                    if wait.left().is_none() {
                        self.still = Duration::ZERO;
                        return Err(Stop::Late);
                    }
                    if let Some(why) = asking.ask() {
                        return Err(Stop::Interrupted(why));
                    }
                }
                continue;
            }
            self.settle();
            if let Some(f) = self.watch.failure() {
                return Err(Stop::Failed(f.clone()));
            }
            if self.watch.is_closing() {
                return Err(Stop::Closed);
            }
            match wait.next() {
                Stage::Spin => std::hint::spin_loop(),
                Stage::Yield => thread::yield_now(),
                Stage::Park => {
                    if self.watch.anyone_left()
                        && let Some(peer) = schedule.waiting_for().into_iter().find(|&p| self.has_left(p))
                    {
                        // What it sent before it left may have come since the last look.
                        if leaver == Some(peer) {
                            return Err(Stop::Left(peer));
                        }
                        leaver = Some(peer);
                        continue;
                    }
                    let idle = wait.waited();
                    if let Some(stop) = self.stalled(schedule, idle).or_else(|| self.forsaken(schedule, idle))
                    {
                        return Err(stop);
                    }
                    let Some(left) = wait.left() else {
                        self.still = idle;
                        return Err(Stop::Late);
                    };
                    if let Some(why) = asking.ask() {
                        return Err(Stop::Interrupted(why));
                    }
                    if !armed {
                        self.arm(schedule);
                        armed = true;
                        continue;
                    }
                    let early = ASK.saturating_sub(wait.waited());
                    match &task.call {
                        Some(call) if early.is_zero() => self.ask(call, &mut asked),
                        _ => {}
                    }
                    let nap = asking.nap(if early.is_zero() { NAP } else { early });
                    self.sleep(left.min(nap), wait.waited());
                    self.disarm();
                    armed = false;
                }
            }
        }
    }

    /// Send what may leave of one queue.
    #[inline]
    fn push(
        &mut self,
        schedule: &mut Schedule,
        q: usize,
        memory: &Memory<'_>,
        task: &Task<'_>,
    ) -> std::result::Result<bool, LinkError> {
        let peer = schedule.send_peer(q);
        let tx = &mut self.tx[peer];
        tx.blocked = false;
        let Some(link) = self.links[peer].as_deref_mut() else { return Ok(false) };
        let mut moved = false;
        loop {
            let Some(want) = schedule.next_send(q) else { return Ok(moved) };
            let len = schedule.len(want.id);
            if !tx.is_open() {
                let header = schedule.is_first_send(q).then(|| (task.header)(Way::Out, peer));
                if want.allowed == 0 && len > 0 && header.is_none() {
                    return Ok(moved);
                }
                tx.begin(header.as_ref(), len);
                link.announce(len, schedule.recv_queues() > 0);
            }
            if want.allowed == want.done && tx.lead_is_sent() && len > 0 {
                return Ok(moved);
            }
            let Act::Send { src, .. } = *schedule.act(want.id) else { return Ok(moved) };
            let n = (want.allowed - want.done).min(link.chunk());
            let n = tx.put(link, memory.read(Slice { at: src.at + want.done, len: n, ..src }))?;
            moved |= n > 0;
            if !tx.lead_is_sent() {
                return Ok(moved);
            }
            self.counters.add_sent(n as u64);
            if want.done + n == len {
                tx.end();
            }
            if n > 0 || len == 0 {
                moved = true;
                schedule.sent(q, n);
            }
            // One chunk, then look at what arrives; a message that has ended makes room for the next small one.
            if want.done + n < len || len >= link.chunk() {
                return Ok(moved);
            }
        }
    }

    /// Take what has come of one queue.
    #[inline]
    fn pull(
        &mut self,
        schedule: &mut Schedule,
        q: usize,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
        unheard: &mut usize,
    ) -> std::result::Result<bool, Blame> {
        let peer = schedule.recv_peer(q);
        let mut moved = false;
        let mut pulled = 0;
        loop {
            let Some(want) = schedule.next_recv(q) else { return Ok(moved) };
            let len = schedule.len(want.id);
            let rx = &mut self.rx[peer];
            let Some(link) = self.links[peer].as_deref_mut() else { return Ok(moved) };
            let act = schedule.act(want.id);
            if let Act::Fold { from, dst, .. } = act
                && rx.is_in_body()
            {
                if *unheard > 0 && dst.buf == Buf::Out {
                    rx.starved = false;
                    return Ok(moved);
                }
                // All of a fold's senders are looked at together, in the turn of the last, and their flags are set there.
                if from.last() != Some(&peer) {
                    return Ok(moved);
                }
                loop {
                    let n = self.fold(schedule, q, memory, task)?;
                    moved |= n > 0;
                    pulled += n;
                    if n == 0 || !self.goes_on(schedule, q, want.id, pulled) {
                        return Ok(moved);
                    }
                }
            }
            rx.starved = false;
            if !rx.is_in_body() {
                let header = schedule.is_first_recv(q).then(|| (task.header)(Way::In, peer));
                match rx.begin(link, header.as_ref(), len, self.rank)? {
                    Begin::Nothing => return Ok(moved),
                    Begin::More => return Ok(true),
                    Begin::Body => moved = true,
                }
                *unheard -= usize::from(header.is_some() && len > 0);
            }
            if *unheard > 0 && matches!(act, Act::Recv { dst, .. } if dst.buf == Buf::Out && len > 0) {
                return Ok(moved);
            }
            // What has come but is not checked stands behind what the schedule knows.
            let done = want.done + rx.pending;
            let may = want.allowed.saturating_sub(done);
            let n = match schedule.act(want.id) {
                Act::Recv { .. } if may == 0 && len > 0 => return Ok(moved),
                &Act::Recv { dst, take: Take::Copy, .. } => {
                    let dst = memory.write(Slice { at: dst.at + done, len: may, ..dst });
                    let n = if len == 0 { 0 } else { link.take(dst)? };
                    if task.info.dtype == Some(DType::Bool) {
                        kernel::normalise_bool(&mut dst[..n]);
                    }
                    n
                }
                &Act::Recv { dst, take: Take::Reduce { with, last }, .. } => {
                    let (dtype, op) = types(&task.info);
                    let chunk = link.chunk();
                    let ready = link.peek(may.min(chunk))?;
                    let n = whole(ready.len().min(may).min(chunk), dtype);
                    let cut = |s: Slice| Slice { at: s.at + done, len: n, ..s };
                    let (out, operand) = memory.operands(cut(dst), cut(with));
                    let theirs = &ready[..n];
                    match operand {
                        // Divides before it rounds.
                        _ if last && op == ReduceOp::Avg => {
                            kernel::fold(dtype, op, self.members.len(), out, operand, &[theirs], &[]);
                        }
                        None => kernel::combine(dtype, op, out, theirs),
                        Some(a) => kernel::combine_into(dtype, op, out, a, theirs),
                    }
                    let piece = n == 0 && !ready.is_empty();
                    link.consume(n);
                    if piece {
                        // A piece of an element: has the link ended?
                        link.put(&[], &[])?;
                    }
                    n
                }
                Act::Fold { .. } => continue,
                Act::Send { .. } | Act::Copy { .. } => return Ok(moved),
            };
            pulled += n;
            // What lies here goes on as one piece, not frame by frame.
            let more = n > 0 && pulled < link.chunk() && link.has_more();
            let rx = &mut self.rx[peer];
            let proven = rx.took(n, link.unproven());
            rx.starved = n == 0 && len > 0;
            if done + n == len {
                rx.end_checked()?;
            }
            moved |= n > 0;
            if proven > 0 || len == 0 {
                moved = true;
                schedule.received(q, proven);
            }
            if !more && (done + n < len || len >= 4096) {
                return Ok(moved);
            }
        }
    }
}

/// Who is to blame, if not the peer whose queue was looked at: a fold takes from several.
pub(super) struct Blame(pub(super) Option<usize>, pub(super) Refusal);

impl<E: Into<Refusal>> From<E> for Blame {
    fn from(e: E) -> Self {
        Self(None, e.into())
    }
}
