//! NCCL, found at run time: some twenty functions.
//!
//! The configuration is passed as its prefix of NCCL 2.18, with that version's number: a library copies as much of it as both
//! know. Communicators are of the blocking kind: the other kind starts a thread for every call (40 us). Calls that may block are made on
//! a thread of its own, or ended by [`Comm::abort`] from another thread.

mod comm;
mod part;
#[cfg(test)]
mod tests;

pub use comm::Comm;
pub use part::{Part, native};

use super::library::{SymbolScope, functions, load_first, named};
use crate::{Error, ErrorKind, Result};
use std::{
    ffi::{CStr, OsString, c_char, c_int, c_uint, c_void},
    fmt, ptr,
    sync::{Mutex, OnceLock, atomic::AtomicPtr},
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
pub struct Nccl {
    call: Functions,
    version: c_int,
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("version", &self.version).finish_non_exhaustive()
    }
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
        // SAFETY: these are NCCL's signatures, stable since 2.18; it is not unloaded.
        let call = unsafe { Functions::load(&lib) }.map_err(missing)?;
        std::mem::forget(lib);
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
