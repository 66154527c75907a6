//! A communicator of NCCL: work goes on a stream with it, and it can be aborted over a call that is stuck.

use super::{
    Code, Handle, Nccl,
    part::{Part, known},
};
use crate::{ErrorKind, Result, sync::lock};
use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Mutex, TryLockError,
        atomic::{AtomicPtr, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const IN_PROGRESS: Code = 7;
/// Time for which an abort waits for the call that is under way: a call that is not stuck is done long before.
const TURN: Duration = Duration::from_millis(100);

/// A communicator, or what is left of it.
#[derive(Debug)]
pub struct Comm {
    pub(super) nccl: &'static Nccl,
    /// Null once it was aborted.
    pub(super) at: AtomicPtr<c_void>,
    /// Held for each call, save for the one that ends the others.
    pub(super) turn: Mutex<()>,
}

impl Comm {
    /// An error that was seen in the background, if there is one.
    pub fn check(&self) -> Result<()> {
        // Who holds the turn hears of errors itself.
        let Ok(_turn) = self.turn.try_lock() else { return Ok(()) };
        let mut code = 0;
        // SAFETY: the communicator lives; writes one int.
        let asked = unsafe { (self.nccl.call.async_error)(self.handle()?, &mut code) };
        self.nccl.ok(asked, "ncclCommGetAsyncError")?;
        self.fine(code, "the communicator")
    }

    fn handle(&self) -> Result<Handle> {
        let at = self.at.load(Ordering::Acquire);
        if at.is_null() {
            let message = "the communicator was aborted".into();
            return Err(ErrorKind::Library { library: "NCCL", code: 0, message }.into());
        }
        Ok(at)
    }

    /// Put `parts` on the stream, as one. May wait for the peers of the first send or receive between two ranks.
    ///
    /// # Safety
    /// Every address is of memory of this communicator's device (or that the device can reach) and stays valid, for its length, until
    /// the stream has come past this.
    pub unsafe fn enqueue(&self, parts: &[Part], rank_stream: usize) -> Result<()> {
        let _turn = lock(&self.turn);
        // None is to be begun on a communicator that is gone.
        self.handle()?;
        if let [part] = parts {
            // SAFETY: the caller's promise.
            return unsafe { self.put(part, rank_stream) };
        }
        // SAFETY: it takes nothing.
        self.fine(unsafe { (self.nccl.call.group_start)() }, "ncclGroupStart")?;
        // SAFETY: the caller's promise. The first error is the last call: after an abort there is no communicator to make another on.
        let all = parts.iter().try_for_each(|part| unsafe { self.put(part, rank_stream) });
        // SAFETY: it takes nothing. Also after an error: a group that was begun must end.
        let end = self.fine(unsafe { (self.nccl.call.group_end)() }, "ncclGroupEnd");
        all.and(end)
    }

    /// Enqueues a part, on the communicator as it is now. The turn is held.
    ///
    /// # Safety
    /// The conditions of [`enqueue`](Self::enqueue).
    unsafe fn put(&self, part: &Part, s: usize) -> Result<()> {
        let comm = self.handle()?;
        let call = &self.nccl.call;
        // SAFETY: the caller's promise. The communicator was there a moment ago, and an abort waits for the turn that is held here
        // unless a call is stuck: then it ends this one, as NCCL allows.
        unsafe {
            match *part {
                Part::AllReduce { src, dst, count, dtype, op } => {
                    let (_, d, o, k) = known(dtype, op)?;
                    self.fine((call.all_reduce)(src, dst, count * k, d, o, comm, s), "ncclAllReduce")
                }
                Part::Reduce { src, dst, count, dtype, op, root } => {
                    let (_, d, o, k) = known(dtype, op)?;
                    self.fine((call.reduce)(src, dst, count * k, d, o, root as c_int, comm, s), "ncclReduce")
                }
                Part::ReduceScatter { src, dst, count, dtype, op } => {
                    let (_, d, o, k) = known(dtype, op)?;
                    self.fine((call.reduce_scatter)(src, dst, count * k, d, o, comm, s), "ncclReduceScatter")
                }
                Part::Broadcast { src, dst, bytes, root } => {
                    self.fine((call.broadcast)(src, dst, bytes, 0, root as c_int, comm, s), "ncclBroadcast")
                }
                Part::AllGather { src, dst, bytes } => {
                    self.fine((call.all_gather)(src, dst, bytes, 0, comm, s), "ncclAllGather")
                }
                Part::Send { src, bytes, to } => {
                    self.fine((call.send)(src, bytes, 0, to as c_int, comm, s), "ncclSend")
                }
                Part::Recv { dst, bytes, from } => {
                    self.fine((call.recv)(dst, bytes, 0, from as c_int, comm, s), "ncclRecv")
                }
            }
        }
    }

    /// Checks a code: a call that is only under way is no error.
    fn fine(&self, code: Code, what: &str) -> Result<()> {
        self.nccl.ok(if code == IN_PROGRESS { 0 } else { code }, what)
    }

    /// End whatever is under way on it; no rank can use it after this.
    pub fn abort(&self) {
        let at = self.at.swap(ptr::null_mut(), Ordering::AcqRel);
        if at.is_null() {
            return;
        }
        // Who holds the turn sees before its next call that there is none to make: only a call that is stuck is aborted over.
        let until = Instant::now() + TURN;
        let mut turn = self.turn.try_lock();
        while matches!(turn, Err(TryLockError::WouldBlock)) && Instant::now() < until {
            // WAIT(until): a call of NCCL that is under way, and may be stuck
            thread::sleep(Duration::from_millis(1));
            turn = self.turn.try_lock();
        }
        // SAFETY: with the turn, no call is under way and none begins: each takes the turn and then reads null. Without it, a call
        // has been under way since before the swap, for longer than one that is not stuck; NCCL allows this one over it, which ends
        // it. After it the holder of the turn reads null and makes no other on this communicator, but for the end of a group that was
        // begun, which says how that came out.
        unsafe { (self.nccl.call.abort)(at) };
        drop(turn);
    }
}
