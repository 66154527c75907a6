//! The CUDA driver, found at run time: memory, streams and events, as far as moving data needs them.
//!
//! Everything here works in the *primary* context of a device, which is the one that PyTorch, JAX and the CUDA runtime use. Addresses
//! are plain numbers; who may touch what is settled by the views that carry them.

use super::library::{SymbolScope, functions, load_first, named};
use crate::{Error, ErrorKind, Result};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::OnceLock,
};

type Code = c_int;

/// A context, a stream or an event.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
struct Handle(*mut c_void);

// SAFETY: all of them may be used from any thread; each thread makes a context current for itself.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Stands for none until the driver writes another.
    const NONE: Self = Self(ptr::null_mut());

    fn of(stream: StreamId) -> Self {
        Self(ptr::with_exposed_provenance_mut(stream))
    }
}

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: Code = 600;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: c_uint = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

functions! {
    struct Functions {
        init "cuInit" (c_uint) -> Code;
        error_string "cuGetErrorString" (Code, *mut *const c_char) -> Code;
        device_count "cuDeviceGetCount" (*mut c_int) -> Code;
        device_get "cuDeviceGet" (*mut c_int, c_int) -> Code;
        device_name "cuDeviceGetName" (*mut u8, c_int, c_int) -> Code;
        device_uuid "cuDeviceGetUuid" (*mut [u8; 16], c_int) -> Code;
        retain "cuDevicePrimaryCtxRetain" (*mut Handle, c_int) -> Code;
        set_current "cuCtxSetCurrent" (Handle) -> Code;
        get_current "cuCtxGetCurrent" (*mut Handle) -> Code;
        alloc "cuMemAlloc_v2" (*mut u64, usize) -> Code;
        free "cuMemFree_v2" (u64) -> Code;
        alloc_async "cuMemAllocAsync" (*mut u64, usize, Handle) -> Code;
        free_async "cuMemFreeAsync" (u64, Handle) -> Code;
        alloc_host "cuMemAllocHost_v2" (*mut *mut u8, usize) -> Code;
        free_host "cuMemFreeHost" (*mut u8) -> Code;
        copy_async "cuMemcpyAsync" (u64, u64, usize, Handle) -> Code;
        stream_create "cuStreamCreate" (*mut Handle, c_uint) -> Code;
        stream_destroy "cuStreamDestroy_v2" (Handle) -> Code;
        event_create "cuEventCreate" (*mut Handle, c_uint) -> Code;
        event_record "cuEventRecord" (Handle, Handle) -> Code;
        event_query "cuEventQuery" (Handle) -> Code;
        event_destroy "cuEventDestroy_v2" (Handle) -> Code;
    }
}

/// The driver. There is one for the process.
#[derive(Debug)]
pub struct CudaDriver {
    call: Functions,
}

fn unavailable(reason: String) -> Error {
    ErrorKind::Unavailable { backend: "cuda", reason }.into()
}

impl CudaDriver {
    /// The driver of this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when there is none, or no device.
    pub fn find() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<CudaDriver>> = OnceLock::new();
        FOUND.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self> {
        let name = [named("COMITY_CUDA").unwrap_or_else(|| "libcuda.so.1".into())];
        // SAFETY: loading the driver runs its constructors, as every program that uses CUDA does.
        let (lib, _) = unsafe { load_first(&name, SymbolScope::Own) }.map_err(|tried| {
            unavailable(format!("{} could not be loaded; install NVIDIA's driver", tried.join(", ")))
        })?;
        let missing = |symbol| {
            unavailable(format!("the driver has no function {symbol}; CUDA 11.2 or newer is needed"))
        };
        // SAFETY: these are the driver's signatures, stable since CUDA 11.2.
        let call = unsafe { Functions::load(lib) }.map_err(missing)?;
        let cuda = Self { call };
        // SAFETY: takes flags, of which there are none.
        cuda.ok(unsafe { (cuda.call.init)(0) }, "cuInit")?;
        if cuda.devices()? < 1 {
            return Err(unavailable("there is no device; CUDA_VISIBLE_DEVICES may hide it".into()));
        }
        Ok(cuda)
    }

    /// Returns the number of devices that this process sees.
    pub fn devices(&self) -> Result<u32> {
        let mut n = 0;
        // SAFETY: writes one int.
        self.ok(unsafe { (self.call.device_count)(&mut n) }, "cuDeviceGetCount")?;
        Ok(n.max(0) as u32)
    }

    fn ok(&self, code: Code, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: writes the address of a constant text, or null.
        unsafe { (self.call.error_string)(code, &mut text) };
        let words = if text.is_null() {
            "an error without a name".into()
        } else {
            // SAFETY: a constant text that ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(ErrorKind::Library { library: "CUDA", code: code.into(), message: format!("{what}: {words}") }
            .into())
    }
}

/// A device's primary context.
#[derive(Clone, Copy, Debug)]
pub struct CudaContext {
    cuda: &'static CudaDriver,
    pub ordinal: u32,
    context: Handle,
}

/// A stream's address, as views carry it.
pub type StreamId = usize;

impl CudaContext {
    /// The device of this number, among those that CUDA_VISIBLE_DEVICES leaves.
    pub fn open(ordinal: u32) -> Result<Self> {
        let cuda = CudaDriver::find()?;
        let n = cuda.devices()?;
        if ordinal >= n {
            return Err(unavailable(format!("there is no device {ordinal}: this process sees {n}, from 0")));
        }
        let mut device = 0;
        let mut context = Handle::NONE;
        // SAFETY: each writes what it returns. The context is retained for as long as the process lives.
        unsafe {
            cuda.ok((cuda.call.device_get)(&mut device, ordinal as c_int), "cuDeviceGet")?;
            cuda.ok((cuda.call.retain)(&mut context, device), "cuDevicePrimaryCtxRetain")?;
        }
        Ok(Self { cuda, ordinal, context })
    }

    /// The device's name.
    pub fn name(&self) -> String {
        let mut text = [0u8; 256];
        let mut device = 0;
        // SAFETY: at most 255 bytes and a zero are written.
        unsafe {
            (self.cuda.call.device_get)(&mut device, self.ordinal as c_int);
            (self.cuda.call.device_name)(text.as_mut_ptr(), 255, device);
        }
        let end = text.iter().position(|&b| b == 0).unwrap_or(0);
        String::from_utf8_lossy(&text[..end]).into_owned()
    }

    /// Returns the device's UUID, which no other device has.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        let mut device = 0;
        // SAFETY: writes one device, then 16 bytes.
        unsafe {
            self.ok((self.cuda.call.device_get)(&mut device, self.ordinal as c_int), "cuDeviceGet")?;
            self.ok((self.cuda.call.device_uuid)(&mut uuid, device), "cuDeviceGetUuid")?;
        }
        Ok(uuid)
    }

    /// Run `f` with this device current on this thread; what was current before is current again after it.
    pub fn within<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut before = Handle::NONE;
        // SAFETY: writes one handle; the context lives as long as the process.
        unsafe {
            self.ok((self.cuda.call.get_current)(&mut before), "cuCtxGetCurrent")?;
            if before != self.context {
                self.ok((self.cuda.call.set_current)(self.context), "cuCtxSetCurrent")?;
            }
        }
        let out = f();
        if before != self.context {
            // SAFETY: it was current before.
            unsafe { (self.cuda.call.set_current)(before) };
        }
        out
    }

    fn ok(&self, code: Code, what: &str) -> Result<()> {
        self.cuda.ok(code, what)
    }

    /// Call the driver with this device current.
    fn call(&self, what: &str, f: impl FnOnce(&Functions) -> Code) -> Result<()> {
        self.within(|| self.ok(f(&self.cuda.call), what))
    }

    /// Device memory of `len` bytes (at least 1).
    pub fn alloc(&self, len: usize) -> Result<DeviceMemory> {
        let mut at = 0;
        // SAFETY: writes one address.
        self.call("cuMemAlloc", |call| unsafe { (call.alloc)(&mut at, len.max(1)) })?;
        Ok(DeviceMemory { device: *self, at, stream: None })
    }

    /// Device memory for work on `stream`, given back when the work on it so far is done.
    pub fn alloc_on(&self, len: usize, stream: StreamId) -> Result<DeviceMemory> {
        let mut at = 0;
        let s = Handle::of(stream);
        // SAFETY: writes one address; the stream is the caller's, and lives.
        self.call("cuMemAllocAsync", |call| unsafe { (call.alloc_async)(&mut at, len.max(1), s) })?;
        Ok(DeviceMemory { device: *self, at, stream: Some(stream) })
    }

    /// Page-locked host memory.
    pub fn pinned(&self, len: usize) -> Result<PinnedMemory> {
        let mut at = ptr::null_mut();
        // SAFETY: writes one address.
        self.call("cuMemAllocHost", |call| unsafe { (call.alloc_host)(&mut at, len.max(1)) })?;
        Ok(PinnedMemory { device: *self, at, len })
    }

    /// Copy, in the order of `stream`, between any two places that CUDA knows.
    ///
    /// # Safety
    /// Both ranges stay valid, and nobody else writes to them, until the stream has come that far.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize, stream: StreamId) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let s = Handle::of(stream);
        // SAFETY: the caller's promise.
        self.call("cuMemcpyAsync", |call| unsafe { (call.copy_async)(dst as u64, src as u64, len, s) })
    }

    /// A stream of our own, which does not wait for the default stream.
    pub fn stream(&self) -> Result<CudaStream> {
        let mut at = Handle::NONE;
        // SAFETY: writes one handle.
        self.call("cuStreamCreate", |call| unsafe { (call.stream_create)(&mut at, NON_BLOCKING) })?;
        Ok(CudaStream { device: *self, at })
    }

    /// A mark at the end of what is on `stream` so far.
    pub fn mark(&self, stream: StreamId) -> Result<Mark> {
        let mut at = Handle::NONE;
        // SAFETY: writes one handle.
        self.call("cuEventCreate", |call| unsafe { (call.event_create)(&mut at, NO_TIMING) })?;
        Mark { device: *self, at }.again(stream)
    }
}

/// Memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    device: CudaContext,
    at: u64,
    /// Given back in this stream's order.
    stream: Option<StreamId>,
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
                    Some(s) => (call.free_async)(self.at, Handle::of(s)),
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
    device: CudaContext,
    at: *mut u8,
    len: usize,
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
    device: CudaContext,
    at: Handle,
}

impl CudaStream {
    pub fn id(&self) -> StreamId {
        self.at.0.expose_provenance()
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
    device: CudaContext,
    at: Handle,
}

impl Mark {
    /// The same, at the end of what is on `stream` so far; it has been passed before.
    pub fn again(self, stream: StreamId) -> Result<Self> {
        let s = Handle::of(stream);
        // SAFETY: the event was created here; the stream is that of a call's views, which promise that it lives.
        self.device.call("cuEventRecord", |call| unsafe { (call.event_record)(self.at, s) })?;
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
