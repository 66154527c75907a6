//! NCCL's functions. Each does what its manual says of it, as far as Comity asks.

use crate::{
    comm::{self, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, Part, REMOTE, SYSTEM},
    cuda, fault, reduce,
};
use std::{
    cell::RefCell,
    ffi::{c_char, c_int, c_uint},
    fs::File,
    io::Read,
    sync::atomic::Ordering,
};

type Code = c_int;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; 128]);

/// Fields with which every version of `ncclConfig_t` begins.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// Number of groups begun, and the calls made in them: communicator, stream, call.
type Group = (usize, Vec<(usize, usize, Part)>);

thread_local! {
    static GROUP: RefCell<Group> = const { RefCell::new((0, Vec::new())) };
}

fn version() -> c_int {
    fault::number("SOFTNCCL_VERSION").unwrap_or(22_809)
}

fn put<T>(at: *mut T, value: T) -> Code {
    if at.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller gives the address of one value of that type.
    unsafe { at.write(value) };
    0
}

export! {
    fn ncclGetVersion(out: *mut c_int) -> Code {
        put(out, version())
    }

    fn ncclGetErrorString(code: Code) -> *const c_char {
        match code {
            0 => c"no error",
            1 => c"unhandled cuda error",
            SYSTEM => c"unhandled system error",
            INTERNAL => c"internal error",
            INVALID_ARGUMENT => c"invalid argument",
            INVALID_USAGE => c"invalid usage",
            REMOTE => c"remote process exited or there was a network error",
            _ => c"unknown result code",
        }
        .as_ptr()
    }

    fn ncclGetUniqueId(out: *mut Id) -> Code {
        let mut id = Id([0; 128]);
        match File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut id.0)) {
            Ok(()) => put(out, id),
            Err(_) => SYSTEM,
        }
    }

    fn ncclCommInitRankConfig(out: *mut usize, size: c_int, id: Id, rank: c_int, config: *const Config) -> Code {
        if !config.is_null() {
            // SAFETY: the caller gives a configuration, of which this is the beginning in every version.
            let config = unsafe { &*config };
            if config.magic != 0xcafe_beef || config.size < size_of::<Config>() || config.blocking != 1 {
                return INVALID_ARGUMENT;
            }
        }
        let (Ok(size), Ok(rank)) = (usize::try_from(size), usize::try_from(rank)) else {
            return INVALID_ARGUMENT;
        };
        let Some(device) = cuda::current().filter(|_| rank < size) else { return INVALID_USAGE };
        match comm::make(&id.0, rank, size, device) {
            Ok(comm) => put(out, comm),
            Err(code) => code,
        }
    }

    fn ncclCommGetAsyncError(comm: usize, out: *mut Code) -> Code {
        match comm::find(comm) {
            Some(c) => put(out, c.error.load(Ordering::Acquire)),
            None => INVALID_ARGUMENT,
        }
    }

    fn ncclCommAbort(comm: usize) -> Code {
        if comm::abort(comm) { 0 } else { INVALID_ARGUMENT }
    }

    fn ncclGroupStart() -> Code {
        GROUP.with_borrow_mut(|g| g.0 += 1);
        0
    }

    fn ncclGroupEnd() -> Code {
        let calls = GROUP.with_borrow_mut(|(depth, calls)| {
            if *depth == 0 {
                return None;
            }
            *depth -= 1;
            Some(if *depth == 0 { std::mem::take(calls) } else { Vec::new() })
        });
        let Some(calls) = calls else { return INVALID_USAGE };
        let mut places: Vec<(usize, usize)> = calls.iter().map(|&(c, s, _)| (c, s)).collect();
        places.sort_unstable();
        places.dedup();
        for (comm, stream) in places {
            let parts = calls.iter().filter(|c| (c.0, c.1) == (comm, stream)).map(|c| c.2).collect();
            let code = comm::find(comm).map_or(INVALID_ARGUMENT, |c| c.give(parts, stream));
            if code != 0 {
                return code;
            }
        }
        0
    }
}

fn call(comm: usize, stream: usize, part: Option<Part>) -> Code {
    let (Some(part), Some(known)) = (part, comm::find(comm)) else { return INVALID_ARGUMENT };
    if cuda::current().is_none() {
        return INVALID_USAGE;
    }
    let open = GROUP.with_borrow_mut(|(depth, calls)| {
        if *depth > 0 {
            calls.push((comm, stream, part));
        }
        *depth > 0
    });
    if open { 0 } else { known.give(vec![part], stream) }
}

/// Bytes of so many elements; `None` for a type that NCCL lacks.
fn bytes(count: usize, dtype: c_int) -> Option<usize> {
    reduce::size(dtype)?.checked_mul(count)
}

export! {
    fn ncclAllReduce(src: usize, dst: usize, count: usize, dtype: c_int, op: c_int, comm: usize, stream: usize) -> Code {
        let len = bytes(count, dtype).filter(|_| reduce::is_known(op));
        call(comm, stream, len.map(|len| Part::Reduce { src, dst, len, dtype, op, root: None }))
    }

    fn ncclReduce(src: usize, dst: usize, count: usize, dtype: c_int, op: c_int, root: c_int, comm: usize, stream: usize) -> Code {
        let len = bytes(count, dtype).filter(|_| reduce::is_known(op));
        call(comm, stream, len.map(|len| Part::Reduce { src, dst, len, dtype, op, root: Some(root as usize) }))
    }

    fn ncclBroadcast(src: usize, dst: usize, count: usize, dtype: c_int, root: c_int, comm: usize, stream: usize) -> Code {
        let len = bytes(count, dtype);
        call(comm, stream, len.map(|len| Part::Broadcast { src, dst, len, root: root as usize }))
    }

    fn ncclAllGather(src: usize, dst: usize, count: usize, dtype: c_int, comm: usize, stream: usize) -> Code {
        call(comm, stream, bytes(count, dtype).map(|len| Part::AllGather { src, dst, len }))
    }

    fn ncclReduceScatter(src: usize, dst: usize, count: usize, dtype: c_int, op: c_int, comm: usize, stream: usize) -> Code {
        let len = bytes(count, dtype).filter(|_| reduce::is_known(op));
        call(comm, stream, len.map(|len| Part::ReduceScatter { src, dst, len, dtype, op }))
    }

    fn ncclSend(src: usize, count: usize, dtype: c_int, to: c_int, comm: usize, stream: usize) -> Code {
        call(comm, stream, bytes(count, dtype).map(|len| Part::Send { src, len, to: to as usize }))
    }

    fn ncclRecv(dst: usize, count: usize, dtype: c_int, from: c_int, comm: usize, stream: usize) -> Code {
        call(comm, stream, bytes(count, dtype).map(|len| Part::Recv { dst, len, from: from as usize }))
    }
}
