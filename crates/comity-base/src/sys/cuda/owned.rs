//! Resources of a device that are given back when they are dropped: memory, streams, marks.

use super::{CudaContext, Handle, NOT_READY, StreamId};
use crate::Result;
use std::ptr;

/// Memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(super) device: CudaContext,
    pub(super) at: u64,
    /// Given back in this stream's order.
    pub(super) stream: Option<StreamId>,
}

impl DeviceMemory {
    pub fn addr(&self) -> usize {
        self.at as usize
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let call = &self.device.cuda.call;
        let _ = self.device.within(|| {
            // SAFETY: allocated here, and not used after this but by work that is on the stream already.
            unsafe {
                match self.stream {
                    Some(s) => (call.free_async)(self.at, ptr::with_exposed_provenance_mut(s)),
                    None => (call.free)(self.at),
                }
            };
            Ok(())
        });
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub struct PinnedMemory {
    pub(super) device: CudaContext,
    pub(super) at: *mut u8,
    pub(super) len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    pub fn addr(&self) -> usize {
        self.at.expose_provenance()
    }

    /// The bytes. No copy to or from them may be under way.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes that this alone owns; CUDA hands out zeroed or initialised pages, and any byte is a `u8`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated here, and not used after this.
        let _ = self.device.within(|| Ok(unsafe { (self.device.cuda.call.free_host)(self.at) }));
    }
}

/// A stream of our own.
#[derive(Debug)]
pub struct CudaStream {
    pub(super) device: CudaContext,
    pub(super) at: Handle,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub fn id(&self) -> StreamId {
        self.at.expose_provenance()
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: created here; CUDA ends it when its work is done.
        let _ = self.device.within(|| Ok(unsafe { (self.device.cuda.call.stream_destroy)(self.at) }));
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Mark {
    pub(super) device: CudaContext,
    pub(super) at: Handle,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// The same, at the end of what is on `stream` so far; it has been passed before.
    pub fn again(self, stream: StreamId) -> Result<Self> {
        let s = ptr::with_exposed_provenance_mut(stream);
        self.device.within(|| {
            // SAFETY: the event was created here; the stream is that of a call's views, which promise that it lives.
            let code = unsafe { (self.device.cuda.call.event_record)(self.at, s) };
            self.device.ok(code, "cuEventRecord")
        })?;
        Ok(self)
    }

    /// Returns true if the stream has passed the mark.
    pub fn is_passed(&self) -> Result<bool> {
        self.device.within(|| {
            // SAFETY: created here.
            match unsafe { (self.device.cuda.call.event_query)(self.at) } {
                NOT_READY => Ok(false),
                code => self.device.ok(code, "cuEventQuery").map(|()| true),
            }
        })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: created here; CUDA keeps what it still needs of it.
        let _ = self.device.within(|| Ok(unsafe { (self.device.cuda.call.event_destroy)(self.at) }));
    }
}
