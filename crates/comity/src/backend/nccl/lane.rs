//! One device's communicator, and putting work on a stream with it.

use super::{Spot, Stopped, guard::Guard, parts::Work};
use crate::{
    CallInfo, Result,
    backend::company::Company,
    engine::Wait,
    sys::{
        cuda::{Device, StreamId},
        nccl::{Comm, Nccl, UniqueId},
    },
};
use std::{sync::Arc, time::Instant};

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) device: Device,
    comm: Arc<Comm>,
    guard: Guard,
}

/// What a lane needs of this machine.
pub(super) fn open(device: u32) -> Result<(Device, &'static Nccl)> {
    Ok((Device::open(device)?, Nccl::find()?))
}

impl Lane {
    /// Make the communicator; all members do so with the same id.
    pub(super) fn join(
        company: &Company,
        device: Device,
        lib: &'static Nccl,
        id: UniqueId,
        wait: &mut Wait,
    ) -> Stopped<Self> {
        let comm = Arc::new(device.within(|| lib.begin(id, company.rank, company.size()))?);
        let made = company.wait(wait, || Ok(comm.poll()?));
        if made.is_err() {
            comm.abort();
        }
        made?;
        tracing::info!(device = device.ordinal, name = device.name(), nccl = lib.version(), "NCCL is up");
        let guard = Guard::new(Arc::clone(&comm), company)?;
        Ok(Self { device, comm, guard })
    }

    /// Put a call's work on the stream, and have it watched until it is done or late.
    pub(super) fn put(
        &self,
        company: &Company,
        work: &Work,
        spot: Spot,
        (info, until): (CallInfo, Instant),
        wait: &mut Wait,
    ) -> Stopped<()> {
        for &(from, to, len) in &work.copies {
            // SAFETY: addresses inside the caller's views or our own scratch, which is given back after this in the stream's order.
            unsafe { self.device.copy(to, from, len, spot.stream)? };
        }
        if !work.parts.is_empty() {
            // SAFETY: as above; views of device memory promise their bytes until the stream has come past the call.
            self.device.within(|| unsafe { self.comm.enqueue(&work.parts, spot.stream) })?;
            company.wait(wait, || Ok(self.comm.poll()?))?;
            self.guard.watch(self.device.mark(spot.stream)?, until, info);
        }
        Ok(())
    }

    /// Wait until the stream has come as far as it is filled now.
    pub(super) fn until_passed(&self, company: &Company, stream: StreamId, wait: &mut Wait) -> Stopped<()> {
        let mark = self.device.mark(stream)?;
        company.wait(wait, || Ok(mark.is_passed()?))
    }
}
