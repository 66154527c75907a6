//! CUDA memory for the tools of this project that have no framework to give them some: `comity check` and `comity bench`.
//!
//! Programs bring their own memory and streams; see [`View::from_raw`](crate::View::from_raw).
#![allow(unsafe_code, reason = "addresses of device memory of this project's own tools")]

use crate::{
    DType, Element, Place, Result, View, ViewMut,
    sys::cuda::{CudaContext, CudaDriver, CudaStream, DeviceMemory},
};
use std::{sync::Arc, thread};

/// A stream of a CUDA device.
///
/// ```no_run
/// use comity::{BackendKind, Config, DType, ReduceOp, tools::cuda::Cuda};
///
/// let cuda = Cuda::open(0)?;
/// let mut x = cuda.buffer(4 * 1024)?;
/// x.write(&[1f32; 1024])?;
/// let group = Config::new(0, 1).backend(BackendKind::Nccl).device(0).connect()?;
/// group.all_reduce(x.view_mut(DType::F32, 1024), ReduceOp::Sum)?;
/// cuda.finish()?;
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cuda {
    device: CudaContext,
    stream: Arc<CudaStream>,
}

/// Bytes in a device's memory.
#[derive(Debug)]
pub struct Buffer {
    cuda: Cuda,
    memory: DeviceMemory,
    len: usize,
}

/// Number of this machine's CUDA devices.
///
/// ```
/// assert!(comity::tools::cuda::devices().is_ok_and(|n| n > 0) || comity::tools::cuda::Cuda::open(0).is_err());
/// ```
///
/// # Errors
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) without a driver or a device.
pub fn devices() -> Result<u32> {
    CudaDriver::find()?.devices()
}

impl Cuda {
    /// A new stream of this device.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) without a driver or such a device.
    pub fn open(device: u32) -> Result<Self> {
        let device = CudaContext::open(device)?;
        Ok(Self { device, stream: Arc::new(device.stream()?) })
    }

    /// "NVIDIA H200".
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// `len` bytes, whatever is in them.
    ///
    /// # Errors
    /// [`ErrorKind::Library`](crate::ErrorKind::Library) when the device has no memory left.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Ok(Buffer { cuda: self.clone(), memory: self.device.alloc(len, None)?, len })
    }

    /// Wait until all that was put on the stream is done.
    ///
    /// # Errors
    /// [`ErrorKind::Library`](crate::ErrorKind::Library) when it failed.
    pub fn finish(&self) -> Result<()> {
        let mark = self.device.mark(self.stream.id())?;
        // A look costs a microsecond or two, which is what a measurement here must bear.
        while !mark.is_passed()? {
            // WAIT: a driver's own work, in which no peer has a part
            thread::yield_now();
        }
        Ok(())
    }
}

/// Copy `len` bytes in the order of `stream`, for callers that hold addresses only.
///
/// # Safety
/// Both ranges are memory of this device, and nobody else writes to them until the stream has come that far; the stream is one of the
/// device, and lives.
///
/// # Errors
/// The errors of [`Cuda::finish`].
pub unsafe fn copy(device: u32, to: usize, from: usize, len: usize, stream: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { CudaContext::open(device)?.copy(to, from, len, stream) }
}

impl Buffer {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fill it from the start, and wait until that is done.
    ///
    /// # Errors
    /// The errors of [`Cuda::finish`].
    pub fn write<T: Element>(&mut self, data: &[T]) -> Result<()> {
        let len = size_of_val(data);
        assert!(len <= self.len, "{len} bytes into a buffer of {}", self.len);
        let to = self.memory.addr();
        let from = data.as_ptr().expose_provenance();
        // SAFETY: both hold so many bytes, and the copy is over before this returns, well or not: an error ends the stream.
        unsafe { self.cuda.device.copy(to, from, len, self.cuda.stream.id())? };
        self.cuda.finish()
    }

    /// Its first bytes, when all that was put on the stream is done.
    ///
    /// # Errors
    /// The errors of [`Cuda::finish`].
    pub fn read<T: Element>(&self, data: &mut [T]) -> Result<()> {
        let len = size_of_val(data);
        assert!(len <= self.len, "{len} bytes out of a buffer of {}", self.len);
        let to = data.as_mut_ptr().expose_provenance();
        let from = self.memory.addr();
        // SAFETY: as in `write`. What is in the buffer was written from values of `T`, or made from such by a call on `T`.
        unsafe { self.cuda.device.copy(to, from, len, self.cuda.stream.id())? };
        self.cuda.finish()
    }

    /// `count` elements of it, to read. Work on them is put on the stream: read them again after [`Cuda::finish`].
    pub fn view(&self, dtype: DType, count: usize) -> View<'_> {
        assert!(count * dtype.size() <= self.len);
        let at = std::ptr::with_exposed_provenance(self.memory.addr());
        // SAFETY: so many bytes of this buffer, which is borrowed; its memory is given back in the device's order.
        unsafe { View::from_raw(at, count, dtype, self.place()) }
    }

    /// The same, to write.
    pub fn view_mut(&mut self, dtype: DType, count: usize) -> ViewMut<'_> {
        assert!(count * dtype.size() <= self.len);
        let at = std::ptr::with_exposed_provenance_mut(self.memory.addr());
        // SAFETY: as in `view`, borrowed for writing.
        unsafe { ViewMut::from_raw(at, count, dtype, self.place()) }
    }

    fn place(&self) -> Place {
        Place::Cuda { device: self.cuda.device.ordinal, stream: self.cuda.stream.id() }
    }
}
