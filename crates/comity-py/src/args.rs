//! The arguments of a call besides its buffers: what Python makes of them once, and what a group makes of that at each call.

use crate::errors;
use comity::{Group, ReduceOp, Wire, tools::ForeignArgs};
use pyo3::prelude::*;

/// Memory of a CUDA device: its number (`None`: the group's), and the stream.
pub(crate) type OnDevice = (Option<u32>, usize);

/// The arguments of any operation, by name. It never changes, so that one can serve many calls: a reduction is looked up once, not at
/// each call. Numbers are those of Python; whether they suit a group is seen when it is called.
#[pyclass(frozen, module = "comity._core", name = "Args")]
#[derive(Clone, Debug, Default)]
pub(crate) struct CallArgs {
    reduce: Option<ReduceOp>,
    root: Option<i64>,
    peer: Option<i64>,
    source: Option<i64>,
    tag: i64,
    counts: Option<Vec<i64>>,
    recv_counts: Option<Vec<i64>>,
    pub(crate) place: Option<OnDevice>,
    pub(crate) timeout: Option<f64>,
    objects: bool,
    wire: Option<Wire>,
}

#[pymethods]
impl CallArgs {
    #[new]
    #[pyo3(signature = (*, reduce=None, root=None, peer=None, source=None, tag=0, counts=None, recv_counts=None, place=None, timeout=None, objects=false, wire=None))]
    #[expect(clippy::too_many_arguments, reason = "the fields, by name")]
    fn new(
        py: Python<'_>,
        reduce: Option<&str>,
        root: Option<i64>,
        peer: Option<i64>,
        source: Option<i64>,
        tag: i64,
        counts: Option<Vec<i64>>,
        recv_counts: Option<Vec<i64>>,
        place: Option<OnDevice>,
        timeout: Option<f64>,
        objects: bool,
        wire: Option<&str>,
    ) -> PyResult<Self> {
        let reduce = reduce.map(|name| reduction(py, name)).transpose()?;
        let wire = wire.map(|name| self::wire(py, name)).transpose()?;
        Ok(Self { reduce, root, peer, source, tag, counts, recv_counts, place, timeout, objects, wire })
    }

    /// The same but for what is given.
    #[pyo3(signature = (*, place=None, timeout=None))]
    fn replace(&self, place: Option<OnDevice>, timeout: Option<f64>) -> Self {
        Self { place: place.or(self.place), timeout: timeout.or(self.timeout), ..self.clone() }
    }
}

fn wire(py: Python<'_>, name: &str) -> PyResult<Wire> {
    Wire::from_name(name).ok_or_else(|| {
        let names = Wire::ALL.map(Wire::name).join(", ");
        errors::misuse(py, None, format!("there is no wire {name:?}; there are {names}"), None)
    })
}

fn reduction(py: Python<'_>, name: &str) -> PyResult<ReduceOp> {
    ReduceOp::from_name(name).ok_or_else(|| {
        let names = ReduceOp::ALL.map(ReduceOp::name).join(", ");
        let words = format!("there is no reduction {name:?}; there are {names}");
        errors::misuse(py, None, words, None)
    })
}

impl CallArgs {
    /// These arguments for a call of `op` on `group`, or words that say which of them cannot be. Whether a rank is in the group is
    /// seen later.
    pub(crate) fn checked(&self, group: &Group, op: &str) -> Result<ForeignArgs, String> {
        let numbers = Numbers { group, op };
        Ok(ForeignArgs {
            reduce: self.reduce,
            root: numbers.rank("root", self.root)?,
            peer: numbers.rank("peer", self.peer)?,
            source: numbers.rank("source", self.source)?,
            tag: numbers.tag(self.tag)?,
            counts: numbers.counts(self.counts.as_deref())?,
            recv_counts: numbers.counts(self.recv_counts.as_deref())?,
            objects: self.objects,
            wire: self.wire,
        })
    }
}

/// Checks of the numbers given as a rank, a tag or counts, which may be any in Python.
struct Numbers<'a> {
    group: &'a Group,
    op: &'a str,
}

impl Numbers<'_> {
    fn refused(&self, what: &str, given: i64, rule: &str) -> String {
        format!("rank {}: {}: the {what} is {given}, and must be {rule}", self.group.rank(), self.op)
    }

    fn rank(&self, what: &str, given: Option<i64>) -> Result<Option<usize>, String> {
        let rule = || format!("a rank of this group, 0 to {}", self.group.size() - 1);
        given.map(|n| usize::try_from(n).map_err(|_| self.refused(what, n, &rule()))).transpose()
    }

    fn tag(&self, given: i64) -> Result<u32, String> {
        u32::try_from(given).map_err(|_| self.refused("tag", given, &format!("0 to {}", u32::MAX)))
    }

    fn counts(&self, given: Option<&[i64]>) -> Result<Option<Vec<usize>>, String> {
        let count = |&n| usize::try_from(n).map_err(|_| self.refused("count of a rank", n, "0 or more"));
        given.map(|all| all.iter().map(count).collect()).transpose()
    }
}
