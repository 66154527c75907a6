//! A device's communicator, and putting work on a stream with it.

use super::{Members, Spot, StepResult, Waiting, guard::Guard, parts::StreamWork};
use crate::{
    CallInfo, Error, Result,
    backend::external::wait,
    sys::{
        cuda::{CudaContext, StreamId},
        nccl::{Comm, Nccl, UniqueId},
    },
};
use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(super) struct DeviceComm {
    pub(super) device: CudaContext,
    comm: Arc<Comm>,
    guard: Guard,
}

/// Opens the device and the library for a communicator.
pub(super) fn open(device: u32) -> Result<(CudaContext, &'static Nccl)> {
    Ok((CudaContext::open(device)?, Nccl::find()?))
}

/// A call, when it must be done, and its limit, which has passed then.
pub(super) type WatchedCall = (CallInfo, (Instant, Duration));

impl DeviceComm {
    /// Make the communicator; all members do so with the same id.
    // WAIT(is_finished): a thread of NCCL, to the deadline of the call
    pub(super) fn join(
        members: &Members,
        device: CudaContext,
        lib: &'static Nccl,
        id: UniqueId,
        waiting: &mut Waiting,
    ) -> StepResult<Self> {
        let rank = members.rank;
        let size = members.size();
        // NCCL waits for all ranks there; this one may have to give up first, and leaves the thread behind then.
        let maker = thread::Builder::new().name("comity-nccl-init".into());
        let maker = maker.spawn(move || device.within(|| lib.make(id, rank, size)));
        let maker = maker.map_err(|e| Error::os("starting a thread", e))?;
        wait(members, waiting, || Ok(maker.is_finished()))?;
        let lost = || Error::os("making an NCCL communicator", io::Error::other("its thread panicked"));
        let comm = Arc::new(maker.join().map_err(|_| lost())??);
        tracing::info!(device = device.ordinal, name = device.name(), nccl = lib.version(), "NCCL is up");
        let guard = Guard::new(Arc::clone(&comm), members)?;
        Ok(Self { device, comm, guard })
    }

    /// Put a call's work on the stream, and have it watched until it is done or late.
    pub(super) fn put(&self, work: &StreamWork, spot: Spot, (info, due): WatchedCall) -> StepResult<()> {
        for &(from, to, len) in &work.copies {
            // SAFETY: addresses inside the caller's views or our own scratch, which is given back after this in the stream's order.
            unsafe { self.device.copy(to, from, len, spot.stream)? };
        }
        if !work.parts.is_empty() {
            self.guard.enter(due, info);
            self.device.within(|| {
                // SAFETY: as above; views of device memory promise their bytes until the stream has come past the call.
                unsafe { self.comm.enqueue(&work.parts, spot.stream)? };
                self.guard.mark(&self.device, spot.stream)
            })?;
        }
        Ok(())
    }

    /// Wait until the stream has come as far as it is filled now.
    pub(super) fn until_passed(
        &self,
        members: &Members,
        stream: StreamId,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let mark = self.device.mark(stream)?;
        // WAIT(Waiting): NCCL, to the deadline of the call
        wait(members, waiting, || Ok(mark.is_passed()?))
    }
}
