//! The driver's functions. Each does what NVIDIA's manual says of it, as far as Comity asks.

use crate::{Table, fault, lock, memory, stream};
use std::{
    cell::Cell,
    env,
    ffi::{c_char, c_int, c_uint},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

type Code = c_int;

const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const INVALID_DEVICE: Code = 101;
const INVALID_CONTEXT: Code = 201;
const INVALID_HANDLE: Code = 400;
const NOT_READY: Code = 600;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The devices that this process sees, by their numbers on the machine.
fn visible() -> &'static [c_int] {
    static VISIBLE: OnceLock<Vec<c_int>> = OnceLock::new();
    VISIBLE.get_or_init(|| {
        let n = fault::number("SOFTCUDA_DEVICES").unwrap_or(8);
        let all = 0..n;
        match env::var("CUDA_VISIBLE_DEVICES") {
            Err(_) => all.collect(),
            // As the driver: up to the first that makes no sense.
            Ok(list) => list.split(',').map_while(|d| d.parse().ok().filter(|d| all.contains(d))).collect(),
        }
    })
}

/// The number on the machine of a device of this process.
fn number(device: c_int) -> Option<c_int> {
    visible().get(usize::try_from(device).ok()?).copied()
}

/// The current device's number on the machine.
pub(crate) fn current() -> Option<c_int> {
    visible().get(CURRENT.get().checked_sub(1)?).copied()
}

/// Write a value where the caller wants it.
fn put<T>(at: *mut T, value: T) -> Code {
    if at.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller gives the address of one value of that type.
    unsafe { at.write(value) };
    0
}

/// With a context that is current on this thread.
fn within(f: impl FnOnce() -> Code) -> Code {
    if current().is_none() { INVALID_CONTEXT } else { f() }
}

export! {
    fn cuInit(flags: c_uint) -> Code {
        if flags == 0 { 0 } else { INVALID_VALUE }
    }

    fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
        let words = match code {
            0 => c"no error",
            INVALID_VALUE => c"invalid argument",
            OUT_OF_MEMORY => c"out of memory",
            INVALID_DEVICE => c"invalid device ordinal",
            INVALID_CONTEXT => c"invalid device context",
            INVALID_HANDLE => c"invalid resource handle",
            NOT_READY => c"device not ready",
            _ => {
                put(text, std::ptr::null());
                return INVALID_VALUE;
            }
        };
        put(text, words.as_ptr())
    }

    fn cuDeviceGetCount(n: *mut c_int) -> Code {
        put(n, visible().len() as c_int)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
        if number(ordinal).is_some() { put(device, ordinal) } else { INVALID_DEVICE }
    }

    fn cuDeviceGetName(text: *mut u8, len: c_int, device: c_int) -> Code {
        let Some(number) = number(device) else { return INVALID_DEVICE };
        let name = format!("soft device {number}\0");
        if text.is_null() || (len as usize) < name.len() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller gives `len` bytes, and the name is not longer.
        unsafe { text.copy_from_nonoverlapping(name.as_ptr(), name.len()) };
        0
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> Code {
        let Some(number) = number(device) else { return INVALID_DEVICE };
        let mut id = *b"soft device 0000";
        id[12..].copy_from_slice(&number.to_be_bytes());
        put(uuid, id)
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Code {
        if number(device).is_some() { put(context, device as usize + 1) } else { INVALID_DEVICE }
    }

    fn cuCtxSetCurrent(context: usize) -> Code {
        if context > visible().len() {
            return INVALID_CONTEXT;
        }
        CURRENT.set(context);
        0
    }

    fn cuCtxGetCurrent(context: *mut usize) -> Code {
        put(context, CURRENT.get())
    }
}

fn alloc(at: *mut u64, len: usize) -> Code {
    within(|| match memory::take(len) {
        _ if len == 0 => INVALID_VALUE,
        Some(a) => put(at, a as u64),
        None => OUT_OF_MEMORY,
    })
}

export! {
    fn cuMemAlloc_v2(at: *mut u64, len: usize) -> Code {
        alloc(at, len)
    }

    fn cuMemFree_v2(at: u64) -> Code {
        within(|| {
            // The driver waits for the device too.
            stream::finish_all();
            if memory::give(at as usize) { 0 } else { INVALID_VALUE }
        })
    }

    fn cuMemAllocAsync(at: *mut u64, len: usize, on: usize) -> Code {
        if stream::find(on).is_none() { INVALID_HANDLE } else { alloc(at, len) }
    }

    fn cuMemFreeAsync(at: u64, on: usize) -> Code {
        within(|| {
            let Some(stream) = stream::find(on) else { return INVALID_HANDLE };
            if !memory::is_known(at as usize, 1) {
                return INVALID_VALUE;
            }
            stream.give(move || {
                memory::give(at as usize);
            });
            0
        })
    }

    fn cuMemAllocHost_v2(at: *mut u64, len: usize) -> Code {
        alloc(at, len)
    }

    fn cuMemFreeHost(at: u64) -> Code {
        cuMemFree_v2(at)
    }

    fn cuMemcpyAsync(dst: u64, src: u64, len: usize, on: usize) -> Code {
        within(|| {
            let Some(stream) = stream::find(on) else { return INVALID_HANDLE };
            let dst = dst as usize;
            let src = src as usize;
            // Memory that is not page-locked is copied before the driver returns.
            let known = memory::is_known(src, len);
            let there = memory::is_known(dst, len);
            // SAFETY: what the device does not know is read now, while the caller's call lasts.
            let held = (!known).then(|| unsafe { memory::read(src, len) }.to_vec());
            let slow = fault::at_copy();
            let copy = move || {
                thread::sleep(slow);
                // SAFETY: the caller keeps both until the stream has come here; ranges may touch each other, so the bytes go through a copy.
                unsafe {
                    let bytes = held.unwrap_or_else(|| memory::read(src, len).to_vec());
                    memory::write(dst, len).copy_from_slice(&bytes);
                }
            };
            stream.give(copy);
            if !there {
                stream::finish_all();
            }
            0
        })
    }

    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> Code {
        within(|| put(stream, stream::create()))
    }

    fn cuStreamDestroy_v2(id: usize) -> Code {
        if stream::destroy(id) { 0 } else { INVALID_HANDLE }
    }
}

/// Events, and whether their streams have come past the place at which they were recorded last.
static EVENTS: Mutex<Table<Arc<AtomicBool>>> = Mutex::new(Table::new());

export! {
    fn cuEventCreate(event: *mut usize, _flags: c_uint) -> Code {
        within(|| put(event, lock(&EVENTS).add(Arc::new(true.into()))))
    }

    fn cuEventRecord(event: usize, on: usize) -> Code {
        within(|| {
            let Some(stream) = stream::find(on) else { return INVALID_HANDLE };
            let past = Arc::new(AtomicBool::new(false));
            match lock(&EVENTS).rows.get_mut(&event) {
                Some(e) => *e = Arc::clone(&past),
                None => return INVALID_HANDLE,
            }
            stream.give(move || past.store(true, Ordering::Release));
            0
        })
    }

    fn cuEventQuery(event: usize) -> Code {
        match lock(&EVENTS).rows.get(&event) {
            Some(past) if past.load(Ordering::Acquire) => 0,
            Some(_) => NOT_READY,
            None => INVALID_HANDLE,
        }
    }

    fn cuEventDestroy_v2(event: usize) -> Code {
        if lock(&EVENTS).rows.remove(&event).is_some() { 0 } else { INVALID_HANDLE }
    }
}
