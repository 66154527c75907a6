//! Small calls on NumPy's arrays, without a frame of Python on the way: what is plain is called at once, everything else is left to
//! `python/comity/arrays`, which knows what can be mended and what is to be refused.
//!
//! ```text
//!   comity.all_reduce(x, out=x)  ->  Group.all_reduce here:  an ndarray? its type known? its memory in one block?  -> the call
//!                                              | no
//!                                              v  `None`, and nothing has happened
//!                                    Kind.read, Kind.write, Group.run
//! ```

use crate::memory::BorrowedBuffer;
use comity::{DType, Group, ReduceOp, tools::ForeignMemory};
use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyString, PyType},
};

static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();

/// Types by which NumPy's arrays are recognized, once it is imported.
struct NumPy {
    ndarray: Py<PyType>,
    empty_like: Py<PyAny>,
    /// Its own types, of which there is one object each: an array with another object for an equal type is not plain.
    dtypes: Vec<(Py<PyAny>, DType)>,
}

/// From now on arrays of exactly this class, with one of these types, are known to calls; `empty_like` makes another of the kind.
#[pyfunction]
#[pyo3(signature = (ndarray, empty_like, dtypes, /))]
pub(crate) fn know_numpy(
    py: Python<'_>,
    ndarray: Py<PyType>,
    empty_like: Py<PyAny>,
    dtypes: Vec<(Py<PyAny>, u8)>,
) {
    let known = |(object, code): (Py<PyAny>, u8)| Some((object, *DType::ALL.get(usize::from(code))?));
    let dtypes = dtypes.into_iter().filter_map(known).collect();
    let _ = NUMPY.set(py, NumPy { ndarray, empty_like, dtypes });
}

/// The type of the elements of `x`, if it is a plain array.
fn dtype_of(py: Python<'_>, numpy: &NumPy, x: &Bound<'_, PyAny>) -> Option<DType> {
    if !x.get_type().is(&numpy.ndarray) {
        return None;
    }
    let object = x.getattr(intern!(py, "dtype")).ok()?;
    numpy.dtypes.iter().find(|(known, _)| known.is(&object)).map(|&(_, dtype)| dtype)
}

/// An all_reduce whose arguments are plain.
#[derive(Clone, Copy)]
pub(crate) struct PlainAllReduce {
    /// None: in place.
    inp: Option<ForeignMemory>,
    out: ForeignMemory,
    reduce: ReduceOp,
}

impl PlainAllReduce {
    /// Give `call` the all_reduce of `x` into `out`, or into a new array without `out`. What `call` says, and the array with the result;
    /// `None` where an argument is not plain, or `call` says so.
    pub(crate) fn with<'py>(
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        reduce: &Bound<'py, PyAny>,
        call: impl FnOnce(&Self) -> Option<PyResult<()>>,
    ) -> Option<PyResult<Bound<'py, PyAny>>> {
        let py = x.py();
        let numpy = NUMPY.get(py)?;
        let dtype = dtype_of(py, numpy, x)?;
        let reduce = ReduceOp::from_name(reduce.cast::<PyString>().ok()?.to_str().ok()?)?;
        if out.is_some_and(|out| out.is(x)) {
            let run = |all: &BorrowedBuffer| call(&Self { inp: None, out: all.elements(dtype)?, reduce });
            return Some(BorrowedBuffer::with(x, true, run)??.map(|()| x.clone()));
        }
        let out = match out {
            Some(out) => out.clone(),
            None => numpy.empty_like.bind(py).call1((x,)).ok()?,
        };
        if dtype_of(py, numpy, &out) != Some(dtype) {
            return None;
        }
        let run = |from: &BorrowedBuffer, to: &BorrowedBuffer| {
            let inp = from.elements(dtype)?;
            let out = to.elements(dtype)?;
            let plain = from.shape() == to.shape() && !inp.overlaps(&out);
            if plain { call(&Self { inp: Some(inp), out, reduce }) } else { None }
        };
        let ended =
            BorrowedBuffer::with(x, false, |from| BorrowedBuffer::with(&out, true, |to| run(from, to)))???;
        Some(ended.map(|()| out))
    }

    pub(crate) fn run(&self, group: &Group) -> comity::Result<()> {
        match &self.inp {
            None => group.all_reduce(self.out.view_mut(), self.reduce),
            Some(inp) => group.all_reduce_into(inp.view(), self.out.view_mut(), self.reduce),
        }
    }
}
