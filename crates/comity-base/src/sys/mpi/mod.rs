//! MPI without a header or a compiler wrapper: a library found at run time, and the few functions of it that are called.
//!
//! ```text
//!   family       library            handles                      where constants come from
//!   standard     libmpi_abi.so      pointers                     numbers of the MPI 5 standard
//!   Open MPI     libmpi.so.40       addresses of its objects     symbols (`ompi_mpi_byte`)
//!   MPICH        libmpi.so.12       C ints                       numbers of its ABI initiative
//! ```
//!
//! Only calls that return at once are made once MPI is up, save for making a communicator ([`Mpi::world`], [`Mpi::base`],
//! [`Mpi::subset`]), which waits for its members: callers do that on a thread that can be left behind. Every buffer that MPI sees
//! belongs to a [`Pending`] operation and is given up, not freed, when the operation is left unfinished: a network card may
//! still write to it.

use super::library::{SymbolScope, functions, load_first, named};
use crate::{DType, Error, ErrorKind, ReduceOp, Result, sync::lock};
use comity_kernel as kernel;
use libloading::os::unix::Library;
use std::{
    collections::HashMap,
    ffi::{OsStr, OsString, c_int, c_void},
    fmt,
    path::Path,
    ptr,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// Handle of an MPI object in one of the families.
pub trait MpiHandle: Copy + fmt::Debug + Send + Sync + 'static {
    /// Stands for none until MPI writes another.
    const NONE: Self;
}

impl MpiHandle for c_int {
    const NONE: Self = 0;
}

/// A handle of Open MPI and of the standard's ABI.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Pointer(*mut c_void);

// SAFETY: MPI's handles name objects of the whole process; MPI itself guards them, or `Mpi::turn` does.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl MpiHandle for Pointer {
    const NONE: Self = Self(ptr::null_mut());
}

type Code = c_int;
type Data = *const c_void;
type DataMut = *mut c_void;
type Counts = *const c_int;
/// `MPI_User_function`: what is combined, into what, how many.
// SAFETY: MPI calls it with two buffers of so many elements, which do not overlap.
type Combine = unsafe extern "C" fn(DataMut, DataMut, *mut c_int, DataMut);

functions! {
    struct MpiFunctions<H> {
        initialized "MPI_Initialized" (*mut c_int) -> Code;
        finalized "MPI_Finalized" (*mut c_int) -> Code;
        init_thread "MPI_Init_thread" (*mut c_int, *mut c_void, c_int, *mut c_int) -> Code;
        query_thread "MPI_Query_thread" (*mut c_int) -> Code;
        finalize "MPI_Finalize" () -> Code;
        version "MPI_Get_library_version" (*mut u8, *mut c_int) -> Code;
        error_string "MPI_Error_string" (c_int, *mut u8, *mut c_int) -> Code;
        comm_rank "MPI_Comm_rank" (H, *mut c_int) -> Code;
        comm_size "MPI_Comm_size" (H, *mut c_int) -> Code;
        comm_dup "MPI_Comm_dup" (H, *mut H) -> Code;
        comm_group "MPI_Comm_group" (H, *mut H) -> Code;
        group_incl "MPI_Group_incl" (H, c_int, Counts, *mut H) -> Code;
        group_free "MPI_Group_free" (*mut H) -> Code;
        comm_create_group "MPI_Comm_create_group" (H, H, c_int, *mut H) -> Code;
        comm_free "MPI_Comm_free" (*mut H) -> Code;
        set_errhandler "MPI_Comm_set_errhandler" (H, H) -> Code;
        type_contiguous "MPI_Type_contiguous" (c_int, H, *mut H) -> Code;
        type_commit "MPI_Type_commit" (*mut H) -> Code;
        type_free "MPI_Type_free" (*mut H) -> Code;
        op_create "MPI_Op_create" (Combine, c_int, *mut H) -> Code;
        op_free "MPI_Op_free" (*mut H) -> Code;
        broadcast "MPI_Ibcast" (DataMut, c_int, H, c_int, H, *mut H) -> Code;
        all_reduce "MPI_Iallreduce" (Data, DataMut, c_int, H, H, H, *mut H) -> Code;
        reduce "MPI_Ireduce" (Data, DataMut, c_int, H, H, c_int, H, *mut H) -> Code;
        all_gather "MPI_Iallgather" (Data, c_int, H, DataMut, c_int, H, H, *mut H) -> Code;
        all_gather_v "MPI_Iallgatherv" (Data, c_int, H, DataMut, Counts, Counts, H, H, *mut H) -> Code;
        reduce_scatter "MPI_Ireduce_scatter" (Data, DataMut, Counts, H, H, H, *mut H) -> Code;
        gather "MPI_Igather" (Data, c_int, H, DataMut, c_int, H, c_int, H, *mut H) -> Code;
        scatter "MPI_Iscatter" (Data, c_int, H, DataMut, c_int, H, c_int, H, *mut H) -> Code;
        all_to_all "MPI_Ialltoall" (Data, c_int, H, DataMut, c_int, H, H, *mut H) -> Code;
        all_to_all_v "MPI_Ialltoallv" (Data, Counts, Counts, H, DataMut, Counts, Counts, H, H, *mut H) -> Code;
        send "MPI_Isend" (Data, c_int, H, c_int, c_int, H, *mut H) -> Code;
        recv "MPI_Irecv" (DataMut, c_int, H, c_int, c_int, H, *mut H) -> Code;
        test "MPI_Test" (*mut H, *mut c_int, *mut c_void) -> Code;
    }
}

/// Constants that differ between the families besides the handles.
#[derive(Debug)]
struct Constants<H> {
    world: H,
    byte: H,
    errors_return: H,
    status_ignore: usize,
    /// `MPI_THREAD_MULTIPLE`.
    multiple: c_int,
    /// `MPI_THREAD_SERIALIZED`.
    serialized: c_int,
}

/// MPI, up and running. There is one for the process, and it lives as long.
#[derive(Debug)]
pub struct Mpi<H: 'static> {
    call: MpiFunctions<H>,
    constants: Constants<H>,
    version: String,
    /// Held over each call where the library wants one thread at a time.
    turn: Option<Mutex<()>>,
    /// A communicator of all processes that is never given back while MPI runs.
    base: OnceLock<H>,
    /// Elements of 1, 2, 4 and 8 bytes.
    types: [H; 4],
    ops: Mutex<HashMap<(DType, ReduceOp), H>>,
    /// An operation was left unfinished, here or by another rank: a clean end is no longer possible.
    spoilt: AtomicBool,
}

impl<H: MpiHandle> Mpi<H> {
    /// Start MPI, unless the program has.
    fn start(lib: Library, constants: Constants<H>) -> Result<Self> {
        let missing = |symbol: &str| -> Error {
            ErrorKind::Unavailable {
            backend: "mpi",
            reason: format!(
                "the MPI library has no function {symbol}; MPI 3.1 or newer is needed. COMITY_MPI names another library"
            ),
        }.into()
        };
        // SAFETY: these are the standard's signatures, with this family's handles.
        let call = unsafe { MpiFunctions::<H>::load(lib) }.map_err(missing)?;
        let version = library_version(&call);
        let mut mpi = Self {
            call,
            constants,
            version,
            turn: None,
            base: OnceLock::new(),
            types: [H::NONE; 4],
            ops: Mutex::default(),
            spoilt: AtomicBool::new(false),
        };
        mpi.up()?;
        for (i, t) in [1, 2, 4, 8].into_iter().zip(0..) {
            mpi.types[t] = mpi.element(i)?;
        }
        Ok(mpi)
    }

    fn up(&mut self) -> Result<()> {
        let mut up = 0;
        let mut over = 0;
        let mut level = 0;
        // SAFETY: each writes one int.
        unsafe {
            self.ok((self.call.initialized)(&mut up), "MPI_Initialized")?;
            self.ok((self.call.finalized)(&mut over), "MPI_Finalized")?;
        }
        if over != 0 {
            let reason = "this process has ended MPI (MPI_Finalize) and cannot start it again".into();
            return Err(ErrorKind::Unavailable { backend: "mpi", reason }.into());
        }
        if up == 0 {
            let wanted = self.constants.multiple;
            // SAFETY: MPI takes null for the arguments of main; the last is an int to write.
            let code =
                unsafe { (self.call.init_thread)(ptr::null_mut(), ptr::null_mut(), wanted, &mut level) };
            self.ok(code, "MPI_Init_thread")?;
        } else {
            // SAFETY: writes one int.
            self.ok(unsafe { (self.call.query_thread)(&mut level) }, "MPI_Query_thread")?;
        }
        if level < self.constants.serialized {
            let reason = "the program started MPI for one thread only; ask MPI_Init_thread for MPI_THREAD_SERIALIZED or more".into();
            return Err(ErrorKind::Unavailable { backend: "mpi", reason }.into());
        }
        self.turn = (level < self.constants.multiple).then(Mutex::default);
        let world = self.constants.world;
        self.errors_return(world)?;
        Ok(())
    }

    /// Returns true if the program, not this library, has ended MPI.
    fn is_over(&self) -> bool {
        let mut over = 0;
        // SAFETY: writes one int, and may be called at any time.
        unsafe { (self.call.finalized)(&mut over) };
        over != 0
    }

    /// End MPI, if it can end cleanly.
    fn end(&self) {
        if !self.spoilt.load(Ordering::Acquire) && !self.is_over() {
            let _turn = self.turn();
            // SAFETY: MPI is up, and nothing is under way: what is unfinished has spoilt it. The handles are this library's.
            unsafe {
                for mut op in lock(&self.ops).drain().map(|(_, op)| op) {
                    (self.call.op_free)(&mut op);
                }
                for mut element in self.types {
                    (self.call.type_free)(&mut element);
                }
                if let Some(&(mut base)) = self.base.get() {
                    (self.call.comm_free)(&mut base);
                }
                (self.call.finalize)();
            }
        }
    }

    /// Name and version of the library, on one line.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A communicator of all processes, of our own. May block: all of them call this.
    pub fn world(&self) -> Result<H> {
        let mut comm = H::NONE;
        let _turn = self.turn();
        // SAFETY: writes one handle.
        let code = unsafe { (self.call.comm_dup)(self.constants.world, &mut comm) };
        self.ok(code, "MPI_Comm_dup")?;
        self.errors_return(comm)?;
        Ok(comm)
    }

    /// A communicator of all processes to make others from, beside any call. All processes call this the first time,
    /// and it may block then.
    pub fn base(&self) -> Result<H> {
        if let Some(&known) = self.base.get() {
            return Ok(known);
        }
        let new = self.world()?;
        Ok(*self.base.get_or_init(|| new))
    }

    /// Returns true if several threads may be in MPI at once.
    pub fn is_for_many_threads(&self) -> bool {
        self.turn.is_none()
    }

    /// This process's place among all that were started together.
    pub fn place(&self) -> Result<(usize, usize)> {
        let mut rank = 0;
        let mut size = 0;
        let world = self.constants.world;
        // SAFETY: each writes one int.
        unsafe {
            self.ok((self.call.comm_rank)(world, &mut rank), "MPI_Comm_rank")?;
            self.ok((self.call.comm_size)(world, &mut size), "MPI_Comm_size")?;
        }
        Ok((rank as usize, size as usize))
    }

    /// A communicator of `members` (ranks of `comm`, in the new order), all of which call this. May block.
    pub fn subset(&self, comm: H, members: &[usize], tag: u16) -> Result<H> {
        let ranks: Vec<c_int> = members.iter().map(|&m| m as c_int).collect();
        let mut all = H::NONE;
        let mut some = H::NONE;
        let mut new = H::NONE;
        let _turn = self.turn();
        // SAFETY: `ranks` holds as many ints as is said; the rest writes one handle each.
        unsafe {
            self.ok((self.call.comm_group)(comm, &mut all), "MPI_Comm_group")?;
            let incl = (self.call.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &mut some);
            self.ok(incl, "MPI_Group_incl")?;
            let made = (self.call.comm_create_group)(comm, some, c_int::from(tag & 0x7fff), &mut new);
            self.ok(made, "MPI_Comm_create_group")?;
            (self.call.group_free)(&mut all);
            (self.call.group_free)(&mut some);
        }
        self.errors_return(new)?;
        Ok(new)
    }

    /// Give a communicator back.
    pub fn free(&self, mut comm: H) {
        if self.spoilt.load(Ordering::Acquire) || self.is_over() {
            return;
        }
        let _turn = self.turn();
        // SAFETY: the handle is one of `world` or `subset`, and is not used again.
        unsafe { (self.call.comm_free)(&mut comm) };
    }

    fn errors_return(&self, comm: H) -> Result<()> {
        // SAFETY: both are handles of this library.
        let code = unsafe { (self.call.set_errhandler)(comm, self.constants.errors_return) };
        self.ok(code, "MPI_Comm_set_errhandler")
    }

    fn element(&self, bytes: c_int) -> Result<H> {
        let mut new = H::NONE;
        // SAFETY: each writes one handle.
        unsafe {
            let made = (self.call.type_contiguous)(bytes, self.constants.byte, &mut new);
            self.ok(made, "MPI_Type_contiguous")?;
            self.ok((self.call.type_commit)(&mut new), "MPI_Type_commit")?;
        }
        Ok(new)
    }

    fn byte(&self) -> H {
        self.constants.byte
    }

    fn status_ignore(&self) -> DataMut {
        ptr::without_provenance_mut(self.constants.status_ignore)
    }

    /// The handles for elements of a type, and for combining them.
    fn reduction(&self, dtype: DType, op: ReduceOp) -> Result<(H, H)> {
        let element = self.types[dtype.size().trailing_zeros() as usize % 4];
        let mut ops = lock(&self.ops);
        if let Some(&known) = ops.get(&(dtype, op)) {
            return Ok((element, known));
        }
        let mut new = H::NONE;
        // SAFETY: the function lives for ever; it may be applied in any order, as 1 says.
        let code = unsafe { (self.call.op_create)(combine(dtype, op), 1, &mut new) };
        self.ok(code, "MPI_Op_create")?;
        ops.insert((dtype, op), new);
        Ok((element, new))
    }

    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.as_ref().map(lock)
    }

    pub fn spoil(&self) {
        self.spoilt.store(true, Ordering::Release);
    }

    fn ok(&self, code: Code, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: MPI's text goes where MPI may write it.
        let words = text(|at, len| unsafe { (self.call.error_string)(code, at, len) });
        Err(ErrorKind::Library {
            library: "MPI",
            code: code.into(),
            message: format!("{what}: {}", words.trim()),
        }
        .into())
    }
}

/// Text that a function of MPI writes, with its length: no MPI writes more than 8192 bytes.
fn text(write: impl FnOnce(*mut u8, *mut c_int) -> Code) -> String {
    let mut text = [0u8; 8192];
    let mut len = 0;
    write(text.as_mut_ptr(), &mut len);
    String::from_utf8_lossy(text.get(..len.max(0) as usize).unwrap_or_default()).into_owned()
}

fn library_version<H>(call: &MpiFunctions<H>) -> String {
    // SAFETY: MPI's text goes where MPI may write it. It may be called before MPI is up.
    let all = text(|at, len| unsafe { (call.version)(at, len) });
    all.lines().next().unwrap_or_default().trim_end_matches('\0').trim().to_owned()
}

/// The reduction as MPI calls it: Comity's own kernels, so that every type and every rule of [`ReduceOp`] holds.
fn combine(dtype: DType, op: ReduceOp) -> Combine {
    /// Combine the elements of `src` into those of `dst`.
    ///
    /// # Safety
    /// MPI calls it with two buffers of `*count` elements of the type it was made for.
    unsafe extern "C" fn run<const D: usize, const R: usize>(
        src: DataMut,
        dst: DataMut,
        count: *mut c_int,
        _: DataMut,
    ) {
        let dtype = DType::ALL[D];
        let op = ReduceOp::ALL[R];
        // SAFETY: MPI gives two buffers of `*count` elements of the type that goes with this function, which do not overlap.
        let (src, dst) = unsafe {
            let bytes = (*count).max(0) as usize * dtype.size();
            (
                std::slice::from_raw_parts(src.cast::<u8>(), bytes),
                std::slice::from_raw_parts_mut(dst.cast::<u8>(), bytes),
            )
        };
        kernel::combine(dtype, op, dst, src);
    }
    /// A row for each type, with a column for each reduction.
    macro_rules! table {
        ($($d:literal)*) => { [$(table!(row $d: 0 1 2 3 4 5 6 7)),*] };
        (row $d:literal: $($r:literal)*) => { [$(run::<$d, $r>),*] };
    }
    const TABLE: [[Combine; ReduceOp::ALL.len()]; DType::ALL.len()] = table!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    TABLE[dtype as usize][op as usize]
}

/// MPI of one of the families.
#[derive(Clone, Copy, Debug)]
pub enum Family {
    Pointers(&'static Mpi<Pointer>),
    Ints(&'static Mpi<c_int>),
}

/// The standard's ABI serves every library that has it; then the library of the launcher that started this process.
fn candidates(openmpi: bool, named: Option<OsString>) -> Vec<OsString> {
    if let Some(name) = named {
        return vec![name];
    }
    let own = ["libmpi.so.40", "libmpi.40.dylib"];
    let mpich = ["libmpi.so.12", "libmpich.so.12", "libmpi.12.dylib"];
    let standard = ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"];
    let (first, second) = if openmpi { (&own[..], &mpich[..]) } else { (&mpich[..], &own[..]) };
    // A library of one launcher under another takes every process for a job of its own. Only where the launcher's own library
    // is missing is the standard's tried: it may be anybody's.
    first.iter().chain(&standard).chain(second).map(|n| OsString::from(*n)).collect()
}

/// Load MPI and start it, once for the process.
///
/// # Errors
/// [`ErrorKind::Unavailable`] with every name that was tried.
pub fn find() -> Result<Family> {
    static FOUND: OnceLock<Result<Family>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let openmpi = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
            let found = open(&candidates(openmpi, named("COMITY_MPI")))?;
            STARTED.store(std::process::id(), Ordering::Release);
            crate::sys::at_exit(at_exit).map_err(|e| Error::os("registering an exit handler", e))?;
            Ok(found)
        })
        .clone()
}

/// The process that started MPI.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The process that started MPI ends it. A forked child did not start it.
extern "C" fn at_exit() {
    if STARTED.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    match find() {
        Ok(Family::Pointers(mpi)) => mpi.end(),
        Ok(Family::Ints(mpi)) => mpi.end(),
        Err(_) => {}
    }
}

fn open(names: &[OsString]) -> Result<Family> {
    // SAFETY: loading MPI runs its constructors, which is what a program linked to it would do. Its plugins look for its
    // symbols among the global ones.
    let (lib, name) = unsafe { load_first(names, SymbolScope::Process) }.map_err(|tried| {
        let reason = format!(
            "no MPI library could be loaded: tried {}. Install Open MPI or MPICH, or name the library in COMITY_MPI",
            tried.join(", ")
        );
        Error::from(ErrorKind::Unavailable { backend: "mpi", reason })
    })?;
    family(name, lib)
}

fn family(name: &OsStr, lib: Library) -> Result<Family> {
    let object = |symbol: &[u8]| -> Option<Pointer> {
        // SAFETY: only the address is used; it names an object that lives as long as the library.
        let found = unsafe { lib.get::<*mut c_void>(symbol) };
        found.ok().map(|s| Pointer(s.into_raw()))
    };
    let base = Path::new(name).file_name().unwrap_or(name).to_string_lossy().into_owned();
    if base.starts_with("libmpi_abi") {
        let at = |n: usize| Pointer(ptr::without_provenance_mut(n));
        let constants = Constants {
            world: at(0x101),
            byte: at(0x247),
            errors_return: at(0x143),
            status_ignore: 0,
            multiple: 4096,
            serialized: 2048,
        };
        return Ok(Family::Pointers(Box::leak(Box::new(Mpi::start(lib, constants)?))));
    }
    if let (Some(world), Some(byte), Some(errors_return)) =
        (object(b"ompi_mpi_comm_world\0"), object(b"ompi_mpi_byte\0"), object(b"ompi_mpi_errors_return\0"))
    {
        let constants =
            Constants { world, byte, errors_return, status_ignore: 0, multiple: 3, serialized: 2 };
        return Ok(Family::Pointers(Box::leak(Box::new(Mpi::start(lib, constants)?))));
    }
    // The numbers that MPICH, Intel MPI, MVAPICH and Cray MPI share.
    let constants = Constants {
        world: 0x4400_0000,
        byte: 0x4c00_010d,
        errors_return: 0x5400_0001,
        status_ignore: 1,
        multiple: 3,
        serialized: 2,
    };
    Ok(Family::Ints(Box::leak(Box::new(Mpi::start(lib, constants)?))))
}

/// Operation on the two buffers of a [`Pending`]. Lengths are in bytes, save where an element type is named.
#[derive(Clone, Debug)]
pub enum Move {
    /// `out` of the root into everyone's `out`.
    Broadcast { root: usize },
    /// `src` of all, combined, into `out`.
    AllReduce { dtype: DType, op: ReduceOp },
    /// The same, into `out` of the root.
    Reduce { dtype: DType, op: ReduceOp, root: usize },
    /// `src` of all, which are equally long, one after the other into `out`.
    AllGather,
    /// The same with these lengths.
    AllGatherV { lens: Vec<usize> },
    /// `src` of all, combined, cut into parts of so many elements; this rank's into `out`.
    ReduceScatter { dtype: DType, op: ReduceOp, counts: Vec<usize> },
    /// `src` of all into `out` of the root.
    Gather { root: usize },
    /// `src` of the root, in equal parts, into everyone's `out`.
    Scatter { root: usize },
    /// Part r of `src` to rank r; parts are equally long.
    AllToAll,
    /// The same with these lengths, out and in.
    AllToAllV { send: Vec<usize>, recv: Vec<usize> },
    /// `src` to one rank.
    Send { to: usize },
    /// From one rank into `out`.
    Recv { from: usize },
}

/// An operation under way. Dropped before it is done, it takes its memory with it, and MPI is not ended cleanly.
#[derive(Debug)]
pub struct Pending<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    request: H,
    done: bool,
    src: Vec<u8>,
    out: Vec<u8>,
    /// Lengths and offsets, which MPI reads until the end.
    tables: Vec<Vec<c_int>>,
}

impl<H: MpiHandle> Pending<H> {
    /// Begin. Both buffers are shorter than 2 GiB, and the lengths are right for `what`: a bug in the backend otherwise.
    pub fn start(
        mpi: &'static Mpi<H>,
        comm: H,
        size: usize,
        what: &Move,
        src: Vec<u8>,
        out: Vec<u8>,
    ) -> Result<Self> {
        // The unsafe calls rest on it.
        assert!(
            what.fits(size, src.len(), out.len()),
            "buffers of {} and {} bytes for {what:?}",
            src.len(),
            out.len()
        );
        let tables = what.tables();
        let mut begun = Self { mpi, request: H::NONE, done: true, src, out, tables };
        let guard = mpi.turn();
        // SAFETY: the buffers and tables live in the `Pending` until MPI is done with them, at addresses that moving the vectors does
        // not change, and are as long as checked above.
        let (name, code) = unsafe { what.call(&mut begun, comm, size) }?;
        drop(guard);
        // Also what failed to begin may have taken the buffers: it is left unfinished then.
        begun.done = false;
        mpi.ok(code, name)?;
        Ok(begun)
    }

    /// Returns true if it is done; gives MPI time to get on.
    pub fn test(&mut self) -> Result<bool> {
        if !self.done {
            let mut flag = 0;
            let turn = self.mpi.turn();
            // SAFETY: the request is under way; the flag is one int, the status is ignored.
            let code =
                unsafe { (self.mpi.call.test)(&mut self.request, &mut flag, self.mpi.status_ignore()) };
            drop(turn);
            self.mpi.ok(code, "MPI_Test")?;
            self.done = flag != 0;
        }
        Ok(self.done)
    }

    /// The buffers, of an operation that is done.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        assert!(self.done, "an operation of MPI was taken for done");
        (std::mem::take(&mut self.src), std::mem::take(&mut self.out))
    }
}

impl<H: MpiHandle> Drop for Pending<H> {
    fn drop(&mut self) {
        if !self.done {
            self.mpi.spoil();
            std::mem::forget((
                std::mem::take(&mut self.src),
                std::mem::take(&mut self.out),
                std::mem::take(&mut self.tables),
            ));
        }
    }
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).expect("chunks are shorter than 2 GiB")
}

/// Lengths and offsets.
fn table(lens: &[usize]) -> [Vec<c_int>; 2] {
    let mut at = 0;
    let place = |&n: &usize| {
        let begin = int(at);
        at += n;
        begin
    };
    [lens.iter().map(|&n| int(n)).collect(), lens.iter().map(place).collect()]
}

impl Move {
    /// Returns true if buffers of `src` and `out` bytes are long enough among `size` ranks.
    fn fits(&self, size: usize, src: usize, out: usize) -> bool {
        match self {
            Self::Broadcast { .. } | Self::Send { .. } | Self::Recv { .. } => true,
            Self::AllReduce { .. } => out >= src,
            Self::Reduce { .. } => out >= src || out == 0,
            Self::AllGather => out >= src * size,
            Self::AllGatherV { lens } => lens.len() == size && lens.iter().sum::<usize>() <= out,
            Self::ReduceScatter { counts, dtype, .. } => {
                counts.len() == size && counts.iter().sum::<usize>() * dtype.size() <= src
            }
            Self::Gather { .. } => out == 0 || out >= src * size,
            Self::Scatter { .. } => src == 0 || src >= out * size,
            Self::AllToAll => src == out && src.is_multiple_of(size),
            Self::AllToAllV { send, recv } => {
                (send.len(), recv.len()) == (size, size)
                    && send.iter().sum::<usize>() <= src
                    && recv.iter().sum::<usize>() <= out
            }
        }
    }

    /// The tables that MPI reads until the end.
    fn tables(&self) -> Vec<Vec<c_int>> {
        match self {
            Self::AllGatherV { lens } => table(lens).into(),
            Self::ReduceScatter { counts, .. } => table(counts).into(),
            Self::AllToAllV { send, recv } => table(send).into_iter().chain(table(recv)).collect(),
            _ => Vec::new(),
        }
    }

    /// Calls MPI's function for it among `size` ranks. Returns its name and its code. The turn is held.
    ///
    /// # Safety
    /// The buffers of `on` and its tables, which are this operation's, stay where they are until its request is done, and the buffers are as
    /// long as [`fits`](Self::fits) says. Nobody else uses them meanwhile.
    unsafe fn call<H: MpiHandle>(
        &self,
        on: &mut Pending<H>,
        comm: H,
        size: usize,
    ) -> Result<(&'static str, Code)> {
        let mpi = on.mpi;
        let call = &mpi.call;
        let byte = mpi.byte();
        let s = on.src.as_ptr().cast();
        let d = on.out.as_mut_ptr().cast();
        let slen = int(on.src.len());
        let dlen = int(on.out.len());
        let elements = |d: &DType| int(on.src.len() / d.size());
        let at = |i: usize| on.tables[i].as_ptr();
        let request = &mut on.request;
        // SAFETY: the handles are this library's; for the rest, the caller's promise.
        Ok(unsafe {
            match self {
                Self::Broadcast { root } => {
                    ("MPI_Ibcast", (call.broadcast)(d, dlen, byte, int(*root), comm, request))
                }
                Self::AllReduce { dtype, op } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    ("MPI_Iallreduce", (call.all_reduce)(s, d, elements(dtype), t, o, comm, request))
                }
                Self::Reduce { dtype, op, root } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    ("MPI_Ireduce", (call.reduce)(s, d, elements(dtype), t, o, int(*root), comm, request))
                }
                Self::AllGather => {
                    ("MPI_Iallgather", (call.all_gather)(s, slen, byte, d, slen, byte, comm, request))
                }
                Self::AllGatherV { .. } => (
                    "MPI_Iallgatherv",
                    (call.all_gather_v)(s, slen, byte, d, at(0), at(1), byte, comm, request),
                ),
                Self::ReduceScatter { dtype, op, .. } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    ("MPI_Ireduce_scatter", (call.reduce_scatter)(s, d, at(0), t, o, comm, request))
                }
                Self::Gather { root } => {
                    ("MPI_Igather", (call.gather)(s, slen, byte, d, slen, byte, int(*root), comm, request))
                }
                Self::Scatter { root } => {
                    ("MPI_Iscatter", (call.scatter)(s, dlen, byte, d, dlen, byte, int(*root), comm, request))
                }
                Self::AllToAll => {
                    let part = slen / int(size).max(1);
                    ("MPI_Ialltoall", (call.all_to_all)(s, part, byte, d, part, byte, comm, request))
                }
                Self::AllToAllV { .. } => (
                    "MPI_Ialltoallv",
                    (call.all_to_all_v)(s, at(0), at(1), byte, d, at(2), at(3), byte, comm, request),
                ),
                Self::Send { to } => ("MPI_Isend", (call.send)(s, slen, byte, int(*to), 0, comm, request)),
                Self::Recv { from } => {
                    ("MPI_Irecv", (call.recv)(d, dlen, byte, int(*from), 0, comm, request))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_is_the_kernel_of_its_type() {
        let f = combine(DType::BF16, ReduceOp::Sum);
        let bits = |x: f32| half::bf16::from_f32(x).to_bits().to_ne_bytes();
        let mut src: Vec<u8> = [1.0, 2.0, -8.0].into_iter().flat_map(bits).collect();
        let mut dst: Vec<u8> = [10.0, 20.0, 30.0].into_iter().flat_map(bits).collect();
        let mut count = 3;
        // SAFETY: three elements each.
        unsafe { f(src.as_mut_ptr().cast(), dst.as_mut_ptr().cast(), &mut count, ptr::null_mut()) };
        assert_eq!(dst, [11.0, 22.0, 22.0].into_iter().flat_map(bits).collect::<Vec<u8>>());
        let f = combine(DType::F32, ReduceOp::Max);
        let mut a = f32::NAN;
        let mut b = 1f32;
        let mut one = 1;
        // SAFETY: one element each.
        unsafe { f((&raw mut a).cast(), (&raw mut b).cast(), &mut one, ptr::null_mut()) };
        assert!(b.is_nan());
    }

    #[test]
    fn the_launchers_own_library_comes_first() {
        assert_eq!(candidates(true, None)[0], "libmpi.so.40");
        assert_eq!(candidates(false, None)[0], "libmpi.so.12");
        assert_eq!(candidates(true, Some("/x/libmpi.so".into())), ["/x/libmpi.so"]);
    }

    #[test]
    fn what_was_tried_is_told() {
        let e = open(&["libno-such-mpi.so".into()]).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("libno-such-mpi.so") && text.contains("COMITY_MPI"), "{text}");
    }
}
