//! NCCL, found at run time: some twenty functions.
//!
//! The configuration is passed as its prefix of NCCL 2.18, with that version's number: a library copies as much of it as both
//! know. Communicators are of the blocking kind: the other kind starts a thread for every call (40 us). Calls that may block are made on
//! a thread of its own, or ended by [`Comm::abort`] from another thread.
//!
//! A communicator of NCCL: work goes on a stream with it, and it can be aborted over a call that is stuck.

#[cfg(test)]
mod tests;

use super::library::{SymbolScope, functions, load_first, named};
use crate::{DType, Error, ErrorKind, ReduceOp, Result, sync::lock};
use std::{
    ffi::{CStr, OsString, c_char, c_int, c_uint, c_void},
    fmt, ptr,
    sync::{
        Mutex, OnceLock, TryLockError,
        atomic::{AtomicPtr, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

type Code = c_int;
type Handle = *mut c_void;

/// The version of the configuration, and of the first library that has it.
const OLDEST: c_int = 21_800;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// Identifier that all ranks of a communicator must hold to make it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It lets its holder join.
        f.write_str("UniqueId")
    }
}

/// `ncclConfig_t` as of 2.18.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

functions! {
    struct Functions {
        version "ncclGetVersion" (*mut c_int) -> Code;
        unique_id "ncclGetUniqueId" (*mut UniqueId) -> Code;
        init "ncclCommInitRankConfig" (*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Code;
        async_error "ncclCommGetAsyncError" (Handle, *mut Code) -> Code;
        abort "ncclCommAbort" (Handle) -> Code;
        group_start "ncclGroupStart" () -> Code;
        group_end "ncclGroupEnd" () -> Code;
        all_reduce "ncclAllReduce" (usize, usize, usize, c_int, c_int, Handle, usize) -> Code;
        reduce "ncclReduce" (usize, usize, usize, c_int, c_int, c_int, Handle, usize) -> Code;
        broadcast "ncclBroadcast" (usize, usize, usize, c_int, c_int, Handle, usize) -> Code;
        all_gather "ncclAllGather" (usize, usize, usize, c_int, Handle, usize) -> Code;
        reduce_scatter "ncclReduceScatter" (usize, usize, usize, c_int, c_int, Handle, usize) -> Code;
        send "ncclSend" (usize, usize, c_int, c_int, Handle, usize) -> Code;
        recv "ncclRecv" (usize, usize, c_int, c_int, Handle, usize) -> Code;
        error_string "ncclGetErrorString" (Code) -> *const c_char;
    }
}

/// The library. There is one for the process.
#[derive(Debug)]
pub struct Nccl {
    call: Functions,
    version: c_int,
}

impl Nccl {
    /// The library of this machine: `COMITY_NCCL`, then the usual names, then the one in PyPI's wheels.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with every name that was tried.
    pub fn find() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<Nccl>> = OnceLock::new();
        FOUND.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self> {
        let unavailable = |reason| Error::from(ErrorKind::Unavailable { backend: "nccl", reason });
        let mut names: Vec<OsString> = Vec::new();
        match named("COMITY_NCCL") {
            Some(name) => names.push(name),
            None => {
                names.extend(["libnccl.so.2".into(), "libnccl.so".into()]);
                names.extend(in_wheels());
            }
        }
        // SAFETY: loading NCCL runs its constructors, as a program linked to it would.
        let (lib, name) = unsafe { load_first(&names, SymbolScope::Own) }.map_err(|tried| {
            unavailable(format!(
                "no NCCL library could be loaded: tried {}. Install it (PyPI: nvidia-nccl-cu13), or name it in COMITY_NCCL",
                tried.join(", ")
            ))
        })?;
        let missing = |s| {
            unavailable(format!(
                "{} has no function {s}; NCCL 2.18 or newer is needed",
                name.to_string_lossy()
            ))
        };
        // SAFETY: these are NCCL's signatures, stable since 2.18.
        let call = unsafe { Functions::load(lib) }.map_err(missing)?;
        let mut version = 0;
        // SAFETY: writes one int.
        unsafe { (call.version)(&mut version) };
        let found = Self { call, version };
        // One that is older has the functions too, but not this prefix of the configuration.
        if version < OLDEST {
            let name = name.to_string_lossy();
            let version = found.version();
            return Err(unavailable(format!("{name} is NCCL {version}; NCCL 2.18 or newer is needed")));
        }
        Ok(found)
    }

    /// "2.28.9".
    pub fn version(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// For rank 0, which tells the others.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes 128 bytes.
        self.ok(unsafe { (self.call.unique_id)(&mut id) }, "ncclGetUniqueId")?;
        Ok(id)
    }

    /// Make a communicator, with all others that hold the id. The device must be current. Blocks until all have come.
    pub fn make(&'static self, id: UniqueId, rank: usize, size: usize) -> Result<Comm> {
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as c_uint,
            blocking: 1,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
        };
        let mut at = ptr::null_mut();
        // SAFETY: the configuration is copied, the handle written.
        let code = unsafe { (self.call.init)(&mut at, size as c_int, id, rank as c_int, &mut config) };
        self.ok(code, "ncclCommInitRankConfig")?;
        Ok(Comm { nccl: self, at: AtomicPtr::new(at), turn: Mutex::default() })
    }

    fn ok(&self, code: Code, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: a constant text for every code.
        let text = unsafe { CStr::from_ptr((self.call.error_string)(code)) };
        let message = format!("{what}: {}", text.to_string_lossy());
        Err(ErrorKind::Library { library: "NCCL", code: code.into(), message }.into())
    }
}

/// Returns the paths of PyPI's wheels, below the directories that Python imports from.
fn in_wheels() -> Vec<OsString> {
    let mut roots: Vec<std::path::PathBuf> = Vec::new();
    if let Some(venv) = std::env::var_os("VIRTUAL_ENV") {
        let lib = std::path::Path::new(&venv).join("lib");
        let versions = std::fs::read_dir(lib).into_iter().flatten().flatten();
        roots.extend(versions.map(|e| e.path().join("site-packages")));
    }
    if let Some(paths) = std::env::var_os("PYTHONPATH") {
        roots.extend(std::env::split_paths(&paths));
    }
    let found = roots.into_iter().map(|r| r.join("nvidia/nccl/lib/libnccl.so.2"));
    found.filter(|p| p.exists()).map(Into::into).collect()
}

/// A step of a call, on device memory. Counts are in elements.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    AllReduce { src: usize, dst: usize, count: usize, dtype: DType, op: ReduceOp },
    Reduce { src: usize, dst: usize, count: usize, dtype: DType, op: ReduceOp, root: usize },
    Broadcast { src: usize, dst: usize, bytes: usize, root: usize },
    AllGather { src: usize, dst: usize, bytes: usize },
    ReduceScatter { src: usize, dst: usize, count: usize, dtype: DType, op: ReduceOp },
    Send { src: usize, bytes: usize, to: usize },
    Recv { dst: usize, bytes: usize, from: usize },
}

/// The number of `dtype` for NCCL with `op`, if NCCL has the pair and means by it what [`ReduceOp`] says.
pub fn native(dtype: DType, op: ReduceOp) -> Option<(DType, c_int, c_int, usize)> {
    use DType as D;
    use ReduceOp as R;
    let number = match dtype {
        D::I8 => 0,
        D::U8 => 1,
        D::I32 => 2,
        D::U32 => 3,
        D::I64 => 4,
        D::U64 => 5,
        D::F16 => 6,
        D::F32 => 7,
        D::F64 => 8,
        D::BF16 => 9,
        // A complex sum is twice as many sums; of 0 and 1 the largest is "or", the least "and".
        D::C64 if matches!(op, R::Sum | R::Avg) => {
            return Some((dtype, 7, if op == R::Avg { 4 } else { 0 }, 2));
        }
        D::Bool if matches!(op, R::Sum | R::Max | R::Or) => return Some((dtype, 1, 2, 1)),
        D::Bool if matches!(op, R::Product | R::Min | R::And) => return Some((dtype, 1, 3, 1)),
        _ => return None,
    };
    let float = matches!(dtype, D::F16 | D::BF16 | D::F32 | D::F64);
    let op = match op {
        R::Sum => 0,
        R::Product => 1,
        // NCCL drops a NaN here, and Comity's rule is that it wins.
        R::Max if !float => 2,
        R::Min if !float => 3,
        // NCCL multiplies integers before it adds them up.
        R::Avg if float => 4,
        _ => return None,
    };
    Some((dtype, number, op, 1))
}

/// Returns [`native`]'s answer for a pair that NCCL supports, else an error.
fn known(dtype: DType, op: ReduceOp) -> Result<(DType, c_int, c_int, usize)> {
    let unknown = || ErrorKind::Library { library: "NCCL", code: 4, message: format!("no {op} on {dtype}") };
    Ok(native(dtype, op).ok_or_else(unknown)?)
}

const IN_PROGRESS: Code = 7;
/// Time for which an abort waits for the call that is under way: a call that is not stuck is done long before.
const TURN: Duration = Duration::from_millis(100);

/// A communicator, or what is left of it.
#[derive(Debug)]
pub struct Comm {
    nccl: &'static Nccl,
    /// Null once it was aborted.
    at: AtomicPtr<c_void>,
    /// Held for each call, save for the one that ends the others.
    turn: Mutex<()>,
}

impl Comm {
    /// An error that was seen in the background, if there is one.
    pub fn check(&self) -> Result<()> {
        // Who holds the turn hears of errors itself.
        let Ok(_turn) = self.turn.try_lock() else { return Ok(()) };
        let mut code = 0;
        // SAFETY: the communicator lives; writes one int.
        let asked = unsafe { (self.nccl.call.async_error)(self.handle()?, &mut code) };
        self.nccl.ok(asked, "ncclCommGetAsyncError")?;
        self.fine(code, "the communicator")
    }

    fn handle(&self) -> Result<Handle> {
        let at = self.at.load(Ordering::Acquire);
        if at.is_null() {
            let message = "the communicator was aborted".into();
            return Err(ErrorKind::Library { library: "NCCL", code: 0, message }.into());
        }
        Ok(at)
    }

    /// Put `parts` on the stream, as one. May wait for the peers of the first send or receive between two ranks.
    ///
    /// # Safety
    /// Every address is of memory of this communicator's device (or that the device can reach) and stays valid, for its length, until
    /// the stream has come past this.
    pub unsafe fn enqueue(&self, parts: &[Part], rank_stream: usize) -> Result<()> {
        let _turn = lock(&self.turn);
        // None is to be begun on a communicator that is gone.
        self.handle()?;
        if let [part] = parts {
            // SAFETY: the caller's promise.
            return unsafe { self.put(part, rank_stream) };
        }
        // SAFETY: it takes nothing.
        self.fine(unsafe { (self.nccl.call.group_start)() }, "ncclGroupStart")?;
        // SAFETY: the caller's promise. The first error is the last call: after an abort there is no communicator to make another on.
        let all = parts.iter().try_for_each(|part| unsafe { self.put(part, rank_stream) });
        // SAFETY: it takes nothing. Also after an error: a group that was begun must end.
        let end = self.fine(unsafe { (self.nccl.call.group_end)() }, "ncclGroupEnd");
        all.and(end)
    }

    /// Enqueues a part, on the communicator as it is now. The turn is held.
    ///
    /// # Safety
    /// The conditions of [`enqueue`](Self::enqueue).
    unsafe fn put(&self, part: &Part, s: usize) -> Result<()> {
        let comm = self.handle()?;
        let call = &self.nccl.call;
        // SAFETY: the caller's promise. The communicator was there a moment ago, and an abort waits for the turn that is held here
        // unless a call is stuck: then it ends this one, as NCCL allows.
        unsafe {
            match *part {
                Part::AllReduce { src, dst, count, dtype, op } => {
                    let (_, d, o, k) = known(dtype, op)?;
                    self.fine((call.all_reduce)(src, dst, count * k, d, o, comm, s), "ncclAllReduce")
                }
                Part::Reduce { src, dst, count, dtype, op, root } => {
                    let (_, d, o, k) = known(dtype, op)?;
                    self.fine((call.reduce)(src, dst, count * k, d, o, root as c_int, comm, s), "ncclReduce")
                }
                Part::ReduceScatter { src, dst, count, dtype, op } => {
                    let (_, d, o, k) = known(dtype, op)?;
                    self.fine((call.reduce_scatter)(src, dst, count * k, d, o, comm, s), "ncclReduceScatter")
                }
                Part::Broadcast { src, dst, bytes, root } => {
                    self.fine((call.broadcast)(src, dst, bytes, 0, root as c_int, comm, s), "ncclBroadcast")
                }
                Part::AllGather { src, dst, bytes } => {
                    self.fine((call.all_gather)(src, dst, bytes, 0, comm, s), "ncclAllGather")
                }
                Part::Send { src, bytes, to } => {
                    self.fine((call.send)(src, bytes, 0, to as c_int, comm, s), "ncclSend")
                }
                Part::Recv { dst, bytes, from } => {
                    self.fine((call.recv)(dst, bytes, 0, from as c_int, comm, s), "ncclRecv")
                }
            }
        }
    }

    /// Checks a code: a call that is only under way is no error.
    fn fine(&self, code: Code, what: &str) -> Result<()> {
        self.nccl.ok(if code == IN_PROGRESS { 0 } else { code }, what)
    }

    /// End whatever is under way on it; no rank can use it after this.
    pub fn abort(&self) {
        let at = self.at.swap(ptr::null_mut(), Ordering::AcqRel);
        if at.is_null() {
            return;
        }
        // Who holds the turn sees before its next call that there is none to make: only a call that is stuck is aborted over.
        let until = Instant::now() + TURN;
        let mut turn = self.turn.try_lock();
        while matches!(turn, Err(TryLockError::WouldBlock)) && Instant::now() < until {
            // WAIT(until): a call of NCCL that is under way, and may be stuck
            thread::sleep(Duration::from_millis(1));
            turn = self.turn.try_lock();
        }
        // SAFETY: with the turn, no call is under way and none begins: each takes the turn and then reads null. Without it, a call
        // has been under way since before the swap, for longer than one that is not stuck; NCCL allows this one over it, which ends
        // it. After it the holder of the turn reads null and makes no other on this communicator, but for the end of a group that was
        // begun, which says how that came out.
        unsafe { (self.nccl.call.abort)(at) };
        drop(turn);
    }
}
