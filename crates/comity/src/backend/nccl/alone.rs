//! A group of one rank with a device: every call copies within it, in the order of the caller's stream, or does nothing.

use super::{parts, spot};
use crate::{
    Result,
    backend::{Backend, Call, Single},
    sys::cuda::CudaContext,
};
use std::time::Duration;

/// The backend of a group of one rank with a CUDA device.
#[derive(Debug)]
pub(crate) struct NcclAlone(pub(super) CudaContext);

impl NcclAlone {
    /// Around this device; NCCL itself is not needed.
    pub(crate) fn open(device: u32) -> Result<Self> {
        Ok(Self(CudaContext::open(device)?))
    }
}

impl Backend for NcclAlone {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        let Some(spot) = spot(&call.bufs) else { return Single.run(call, limit) };
        if let (Some((from, len)), Some((to, room))) = parts::ends(&call.bufs)
            && from != to
        {
            // SAFETY: the views promise so many bytes of the device until its stream has come past the call.
            unsafe { self.0.copy(to, from, len.min(room), spot.stream)? };
        }
        Ok(())
    }

    fn alone(&self) -> Box<dyn Backend> {
        Box::new(Self(self.0))
    }

    fn device(&self) -> Option<u32> {
        Some(self.0.ordinal)
    }
}
