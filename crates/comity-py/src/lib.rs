//! The module `comity._core`: groups, requests and the command line for Python. `python/comity/_core.pyi` says what each
//! name is; the modules around it in `python/comity` make arrays and errors out of it.
//!
//! Calls wait without the interpreter's lock. A call with no earlier work under way runs on the thread that makes it.

mod arrays;
mod call;
mod callbacks;
mod config;
mod errors;
mod group;
mod interpreter;
mod memory;
mod request;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use crate::{call::BufferSpec, errors, interpreter, memory};
    use comity::{BackendKind, DType, MAX_TAG, Op, Place, ReduceOp};
    use pyo3::{prelude::*, types::IntoPyDict};
    use std::{ffi::OsString, path::PathBuf};

    #[pymodule_export]
    use crate::{
        arrays::know_numpy,
        call::CallArgs,
        callbacks::post,
        config::{PyStore, init, init_with_store},
        group::PyGroup,
        interpreter::is_given_up,
        memory::{HeldMemory, SharedBytes},
        request::PyRequest,
    };

    #[pymodule_init]
    fn fill(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("DTYPES", DType::ALL.map(|d| (d.name(), d as u8)).into_py_dict(m.py())?)?;
        m.add("SIZES", DType::ALL.map(DType::size))?;
        m.add("REDUCTIONS", ReduceOp::ALL.map(|o| (o.name(), o as u8)).into_py_dict(m.py())?)?;
        m.add("OPS", Op::ALL.map(Op::name))?;
        let close = wrap_pyfunction!(interpreter::close, m)?;
        m.py().import("atexit")?.call_method1("register", (close,))?;
        m.add("MAX_TAG", MAX_TAG)?;
        m.add("VERSION", env!("CARGO_PKG_VERSION"))
    }

    /// Return whether a reduction, by its name, is defined on a type, by its number.
    #[pyfunction]
    fn supports(dtype: u8, reduce: &str) -> bool {
        let dtype = DType::ALL.get(usize::from(dtype));
        dtype.zip(ReduceOp::from_name(reduce)).is_some_and(|(d, o)| d.supports(o))
    }

    /// Return whether the library that a backend needs can be loaded here; false for unknown names.
    #[pyfunction]
    fn is_available(backend: &str) -> bool {
        BackendKind::from_name(backend).is_some_and(BackendKind::is_available)
    }

    /// Copy the bytes of one buffer to another of the same size.
    #[pyfunction]
    fn copy(py: Python<'_>, from: BufferSpec, to: BufferSpec) -> PyResult<()> {
        let pair =
            memory::vouched(from, Place::Host).and_then(|f| Ok((f, memory::vouched(to, Place::Host)?)));
        let (from, to) = pair.map_err(|words| errors::misuse(py, None, words, None))?;
        if from.range().len() != to.range().len() {
            return Err(errors::misuse(py, None, "the two buffers differ in size".into(), None));
        }
        py.detach(|| from.copy_to(&to)).map_err(|e| errors::raised(py, None, &e))
    }

    /// The command `comity` with these arguments, of which the first is the program's name; its exit code. The interpreter is the program
    /// that this process runs.
    #[pyfunction]
    fn run_cli(py: Python<'_>, args: Vec<OsString>, interpreter: PathBuf) -> u8 {
        py.detach(|| comity_cli::run_in(interpreter, args))
    }
}
