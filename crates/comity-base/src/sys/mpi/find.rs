//! Finding the MPI library that fits the launcher, and telling its family.

use super::{Constants, Mpi, Pointer};
use crate::{
    Error, ErrorKind, Result,
    sys::library::{SymbolScope, load_first, named},
};
use libloading::os::unix::Library;
use std::{
    ffi::{OsStr, OsString, c_int, c_void},
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

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
        let at = |n: usize| Pointer(std::ptr::without_provenance_mut(n));
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

#[cfg(test)]
mod tests {
    use super::*;

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
