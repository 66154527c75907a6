//! Calls that NCCL gets, and their order.

use super::*;
use crate::{DType, ReduceOp, sync::lock};

#[test]
fn what_nccl_means_otherwise_is_not_asked_of_it() {
    let has = |d, o| native(d, o).is_some();
    assert!(
        has(DType::F32, ReduceOp::Sum) && has(DType::BF16, ReduceOp::Avg) && has(DType::I64, ReduceOp::Max)
    );
    assert!(has(DType::C64, ReduceOp::Sum) && !has(DType::C64, ReduceOp::Product));
    // NaN wins in Comity's max, and integers are added before they are divided.
    assert!(!has(DType::F32, ReduceOp::Max) && !has(DType::I32, ReduceOp::Avg));
    assert!(
        !has(DType::U16, ReduceOp::Sum) && !has(DType::U8, ReduceOp::Xor) && has(DType::Bool, ReduceOp::Or)
    );
}

/// Names of the functions called, in order.
static CALLS: Mutex<Vec<&str>> = Mutex::new(Vec::new());
/// The communicator that the calls are on.
static COMM: OnceLock<Comm> = OnceLock::new();

fn called(name: &'static str) -> Code {
    lock(&CALLS).push(name);
    0
}

// SAFETY: none of them looks at what it is given, save for the text of an error.
extern "C" fn send(_: usize, _: usize, _: c_int, to: c_int, _: Handle, _: usize) -> Code {
    if to == 2
        && let Some(comm) = COMM.get()
    {
        comm.abort();
    }
    called("send")
}
extern "C" fn reduction(_: usize, _: usize, _: usize, _: c_int, _: c_int, _: Handle, _: usize) -> Code {
    called("reduction")
}
extern "C" fn reduce(
    _: usize,
    _: usize,
    _: usize,
    _: c_int,
    _: c_int,
    _: c_int,
    _: Handle,
    _: usize,
) -> Code {
    called("reduce")
}
extern "C" fn all_gather(_: usize, _: usize, _: usize, _: c_int, _: Handle, _: usize) -> Code {
    called("all_gather")
}
extern "C" fn init(_: *mut Handle, _: c_int, _: UniqueId, _: c_int, _: *mut Config) -> Code {
    called("init")
}
extern "C" fn version(_: *mut c_int) -> Code {
    called("version")
}
extern "C" fn unique_id(_: *mut UniqueId) -> Code {
    called("unique_id")
}
extern "C" fn async_error(_: Handle, _: *mut Code) -> Code {
    called("async_error")
}
extern "C" fn abort(_: Handle) -> Code {
    called("abort")
}
extern "C" fn group_start() -> Code {
    called("group_start")
}
extern "C" fn group_end() -> Code {
    called("group_end")
}
extern "C" fn error_string(_: Code) -> *const c_char {
    c"an error".as_ptr()
}

/// A library of which a group of sends is asked; the second send finds the communicator aborted.
fn stand_in() -> Functions {
    Functions {
        version,
        unique_id,
        init,
        async_error,
        abort,
        group_start,
        group_end,
        all_reduce: reduction,
        reduce,
        broadcast: reduction,
        all_gather,
        reduce_scatter: reduction,
        send,
        recv: send,
        error_string,
    }
}

#[test]
fn an_error_is_the_last_call_and_the_group_ends() {
    let nccl: &'static Nccl = Box::leak(Box::new(Nccl { call: stand_in(), version: OLDEST }));
    let at = AtomicPtr::new(ptr::without_provenance_mut(1));
    let comm = COMM.get_or_init(|| Comm { nccl, at, turn: Mutex::default() });
    let send = |to| Part::Send { src: 0, bytes: 1, to };
    let asked = |parts: &[Part]| {
        // SAFETY: the stand-in looks at no address.
        let out = unsafe { comm.enqueue(parts, 0) };
        (out.map_err(|e| e.to_string()), std::mem::take(&mut *lock(&CALLS)))
    };
    assert_eq!(asked(&[send(0), send(1)]), (Ok(()), vec!["group_start", "send", "send", "group_end"]));
    let unknown = Part::AllReduce { src: 0, dst: 0, count: 1, dtype: DType::U16, op: ReduceOp::Sum };
    let (out, calls) = asked(&[send(0), unknown, send(1)]);
    assert!(out.unwrap_err().contains("no sum on u16"));
    assert_eq!(calls, ["group_start", "send", "group_end"]);
    // Aborted in the second: over it, because it does not come back. The third is not made.
    let (out, calls) = asked(&[send(1), send(2), send(3)]);
    assert!(out.unwrap_err().contains("was aborted"));
    assert_eq!(calls, ["group_start", "send", "abort", "send", "group_end"]);
    assert!(asked(&[send(1)]).0.is_err() && comm.check().is_err() && lock(&CALLS).is_empty());
}
