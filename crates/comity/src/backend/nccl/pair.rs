//! send, recv and sendrecv of device memory.
//!
//! NCCL has no tags and matches sends and receives in their order. So each send is announced over the links first: tag, type and
//! length. A receive that asks for a later tag takes what is before it into memory of its own.

use super::{
    NcclBackend, Spot, StepResult, Stop, Waiting, device_comm::WatchedCall, parts, parts::StreamWork,
};
use crate::{
    CallInfo, DType, Op,
    backend::{
        Backend, Bufs, Call, Elements,
        external::{fits, room},
    },
    status::ANNOUNCE,
    sys::{cuda::DeviceMemory, nccl::Part},
};
use std::time::Instant;

/// A send whose receive was not called yet, and its bytes.
#[derive(Debug)]
pub(super) struct UnmatchedSend {
    info: CallInfo,
    bytes: DeviceMemory,
}

/// Returns the work that sends so many bytes from there, if there is a receiver.
fn sending(what: Option<(usize, (usize, usize))>) -> StreamWork {
    let mut work = StreamWork::default();
    if let Some((to, (src, bytes))) = what.filter(|(_, (_, bytes))| *bytes > 0) {
        work.parts.push(Part::Send { src, bytes, to });
        work.bytes = bytes;
    }
    work
}

impl NcclBackend {
    pub(super) fn pair(
        &mut self,
        call: Call<'_>,
        spot: Spot,
        until: Instant,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let info = call.info;
        let watched = (info, (until, waiting.limit()));
        let to = call.counts.first().copied();
        let from = call.recv_counts.first().copied();
        let (src, dst) = parts::ends(&call.bufs);
        let (out, want) = call.bufs.messages();
        if let (Some(to), Some(out)) = (to, out) {
            self.announce(to, info, out, until)?;
        }
        let mut work = sending(to.zip(src));
        let Some((from, (count, dtype))) = from.zip(want) else {
            return self.put(&work, spot, watched);
        };
        let (at, bytes) = dst.unwrap_or_default();
        let wanted = CallInfo::sent(count, dtype, from, info.tag);
        let kept = self.stash[from].iter().position(|a| a.info.tag == info.tag);
        if let Some(kept) = kept.and_then(|i| self.stash[from].remove(i)) {
            fits(from, info, kept.info, wanted)?;
            work.copies.push((kept.bytes.addr(), at, bytes));
            self.put(&work, spot, watched)?;
            // What was kept is read until the stream has come past the copy.
            return self.device_comm.until_passed(&self.members, spot.stream, waiting);
        }
        loop {
            let theirs = self.announced(from, until)?;
            let len = length(&theirs);
            if theirs.tag == info.tag {
                fits(from, info, theirs, wanted)?;
                if len > 0 {
                    work.parts.push(Part::Recv { dst: at, bytes: len, from });
                }
                return self.put(&work, spot, watched);
            }
            let kept = self.stash[from].iter().map(|a| length(&a.info)).sum();
            room(kept, len, from, theirs)?;
            let held = self.device_comm.device.alloc(len, None)?;
            if len > 0 {
                work.parts.push(Part::Recv { dst: held.addr(), bytes: len, from });
            }
            self.put(&work, spot, watched)?;
            work = StreamWork::default();
            self.device_comm.until_passed(&self.members, spot.stream, waiting)?;
            self.stash[from].push_back(UnmatchedSend { info: theirs, bytes: held });
        }
    }

    /// Tell `to` of the send in `call`: so many elements of a type.
    fn announce(
        &mut self,
        to: usize,
        call: CallInfo,
        (count, dtype): Elements,
        until: Instant,
    ) -> StepResult<()> {
        let words = [u64::from(call.tag.unwrap_or(0)), dtype as u64, count as u64];
        let mut tell = Call::new(Op::Send, Bufs::In((&words).into()));
        tell.info.root = Some(to);
        tell.info.tag = Some(ANNOUNCE);
        let peers = [to];
        tell.counts = &peers;
        self.native.run(tell, until.saturating_duration_since(Instant::now())).map_err(Stop::Told)
    }

    fn put(&self, work: &StreamWork, spot: Spot, watched: WatchedCall) -> StepResult<()> {
        self.members.counters.add_sent(work.bytes as u64);
        self.device_comm.put(work, spot, watched)
    }

    /// The next send of `from`, in its own words.
    fn announced(&mut self, from: usize, until: Instant) -> StepResult<CallInfo> {
        let mut words = [0u64; 3];
        let peers = [from];
        let mut hear = Call::new(Op::Recv, Bufs::Out((&mut words).into()));
        hear.info.root = Some(from);
        hear.info.tag = Some(ANNOUNCE);
        hear.recv_counts = &peers;
        self.native.run(hear, until.saturating_duration_since(Instant::now())).map_err(Stop::Told)?;
        let dtype = usize::try_from(words[1]).ok().and_then(|d| DType::ALL.get(d).copied());
        let tag = u32::try_from(words[0]).ok().filter(|&t| t <= crate::MAX_TAG);
        let count = usize::try_from(words[2]).ok().filter(|&n| n.checked_mul(8).is_some());
        match (dtype, tag, count) {
            (Some(d), Some(tag), Some(count)) => Ok(CallInfo::sent(count, d, from, Some(tag))),
            _ => Err(Stop::Peer(from, "announced a send that this version does not know".into())),
        }
    }
}

/// Bytes of a send that was announced: a count that does not overflow was checked there.
fn length(theirs: &CallInfo) -> usize {
    theirs.count * theirs.dtype.map_or(1, DType::size)
}
