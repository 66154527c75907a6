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
type Handle = *mut c_void;

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

// SAFETY: contexts may be used from any thread; each thread makes it current for itself.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

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
        let mut context = ptr::null_mut();
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
        let mut before = ptr::null_mut();
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

    /// Has the driver make something, which it writes to the place of `at`.
    fn own<T: Copy>(
        &self,
        what: &str,
        mut at: T,
        make: impl FnOnce(&Functions, &mut T) -> Code,
        give_back: fn(&Functions, T) -> Code,
    ) -> Result<Owned<T>> {
        self.within(|| self.ok(make(&self.cuda.call, &mut at), what))?;
        Ok(Owned { device: *self, at, give_back })
    }

    /// Device memory of `len` bytes (at least 1); for work on a stream, to be given back when the work on it so far is done.
    pub fn alloc(&self, len: usize, stream: Option<StreamId>) -> Result<DeviceMemory> {
        let what = if stream.is_some() { "cuMemAllocAsync" } else { "cuMemAlloc" };
        let at: (u64, Option<Handle>) = (0, stream.map(ptr::with_exposed_provenance_mut));
        // SAFETY: writes one address; the stream is the caller's, and lives.
        let make = |call: &Functions, (at, stream): &mut (u64, Option<Handle>)| unsafe {
            match *stream {
                Some(stream) => (call.alloc_async)(at, len.max(1), stream),
                None => (call.alloc)(at, len.max(1)),
            }
        };
        // SAFETY: as `Owned` says.
        let free = |call: &Functions, (at, stream): (u64, Option<Handle>)| unsafe {
            stream.map_or_else(|| (call.free)(at), |stream| (call.free_async)(at, stream))
        };
        Ok(DeviceMemory(self.own(what, at, make, free)?))
    }

    /// Page-locked host memory.
    pub fn pinned(&self, len: usize) -> Result<PinnedMemory> {
        // SAFETY: writes one address.
        let make = |call: &Functions, at: &mut _| unsafe { (call.alloc_host)(at, len.max(1)) };
        // SAFETY: as `Owned` says.
        let owned =
            self.own("cuMemAllocHost", ptr::null_mut(), make, |call, at| unsafe { (call.free_host)(at) })?;
        Ok(PinnedMemory(owned, len))
    }

    /// Copy, in the order of `stream`, between any two places that CUDA knows.
    ///
    /// # Safety
    /// Both ranges stay valid, and nobody else writes to them, until the stream has come that far.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize, stream: StreamId) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let s = ptr::with_exposed_provenance_mut(stream);
        self.within(|| {
            // SAFETY: the caller's promise.
            let code = unsafe { (self.cuda.call.copy_async)(dst as u64, src as u64, len, s) };
            self.ok(code, "cuMemcpyAsync")
        })
    }

    /// A stream of our own, which does not wait for the default stream.
    pub fn stream(&self) -> Result<CudaStream> {
        // SAFETY: writes one handle.
        let make = |call: &Functions, at: &mut _| unsafe { (call.stream_create)(at, NON_BLOCKING) };
        // SAFETY: as `Owned` says; CUDA ends it when its work is done.
        let end = |call: &Functions, at| unsafe { (call.stream_destroy)(at) };
        Ok(CudaStream(self.own("cuStreamCreate", ptr::null_mut(), make, end)?))
    }

    /// A mark at the end of what is on `stream` so far.
    pub fn mark(&self, stream: StreamId) -> Result<Mark> {
        // SAFETY: writes one handle.
        let make = |call: &Functions, at: &mut _| unsafe { (call.event_create)(at, NO_TIMING) };
        // SAFETY: as `Owned` says; CUDA keeps what it still needs of it.
        let end = |call: &Functions, at| unsafe { (call.event_destroy)(at) };
        Mark(self.own("cuEventCreate", ptr::null_mut(), make, end)?).again(stream)
    }
}

/// Something that the driver made. It goes back once: on drop.
#[derive(Debug)]
struct Owned<T: Copy> {
    device: CudaContext,
    at: T,
    /// Called once, and nothing uses it after that but work that is on a stream already.
    give_back: fn(&Functions, T) -> Code,
}

// SAFETY: what the driver makes may be used from any thread.
unsafe impl<T: Copy> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Owned<T> {}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        let _ = self.device.within(|| Ok((self.give_back)(&self.device.cuda.call, self.at)));
    }
}

/// Memory of a device, and the stream in whose order it is given back.
#[derive(Debug)]
pub struct DeviceMemory(Owned<(u64, Option<Handle>)>);

impl DeviceMemory {
    pub fn addr(&self) -> usize {
        self.0.at.0 as usize
    }
}

/// Page-locked host memory, of so many bytes.
#[derive(Debug)]
pub struct PinnedMemory(Owned<*mut u8>, usize);

impl PinnedMemory {
    pub fn addr(&self) -> usize {
        self.0.at.expose_provenance()
    }

    /// The bytes. No copy to or from them may be under way.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes that this alone owns; CUDA hands out zeroed or initialised pages, and any byte is a `u8`.
        unsafe { std::slice::from_raw_parts_mut(self.0.at, self.1) }
    }
}

/// A stream of our own.
#[derive(Debug)]
pub struct CudaStream(Owned<Handle>);

impl CudaStream {
    pub fn id(&self) -> StreamId {
        self.0.at.expose_provenance()
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Mark(Owned<Handle>);

impl Mark {
    /// The same, at the end of what is on `stream` so far; it has been passed before.
    pub fn again(self, stream: StreamId) -> Result<Self> {
        let device = self.0.device;
        let s = ptr::with_exposed_provenance_mut(stream);
        device.within(|| {
            // SAFETY: the event was created here; the stream is that of a call's views, which promise that it lives.
            device.ok(unsafe { (device.cuda.call.event_record)(self.0.at, s) }, "cuEventRecord")
        })?;
        Ok(self)
    }

    /// Returns true if the stream has passed the mark.
    pub fn is_passed(&self) -> Result<bool> {
        let device = self.0.device;
        device.within(|| {
            // SAFETY: created here.
            match unsafe { (device.cuda.call.event_query)(self.0.at) } {
                NOT_READY => Ok(false),
                code => device.ok(code, "cuEventQuery").map(|()| true),
            }
        })
    }
}
