//! Calls as Python asks for them: arguments besides the buffers, of which Python makes one object for many calls, and what a group makes of
//! them with its buffers at each.

use crate::{errors, memory};
use comity::{
    Group, Op, Place, ReduceOp, Wire,
    tools::{ForeignArgs, ForeignCall},
};
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

/// Buffer from Python: address, number of the type, elements.
pub(crate) type BufferSpec = (usize, u8, usize);

/// The call, or words that say what is missing.
pub(crate) fn prepared(
    group: &Group,
    op: &str,
    inp: Option<BufferSpec>,
    out: Option<BufferSpec>,
    place: Option<OnDevice>,
    args: ForeignArgs,
) -> Result<ForeignCall, String> {
    let op = Op::from_name(op).filter(|o| !matches!(o, Op::Split | Op::Reform));
    let op = op.ok_or("there is no such operation; see comity._core.OPS")?;
    let place = self::place(group, place)?;
    let given = |given: Option<BufferSpec>| given.map(|g| memory::vouched(g, place)).transpose();
    let inp = given(inp)?;
    let out = given(out)?;
    let (needs_inp, needs_out) = needs(op, group, &args, inp.is_some());
    if needs_inp && inp.is_none() {
        return Err(format!("{op} needs an input"));
    }
    if needs_out && out.is_none() {
        return Err(format!("{op} needs an output"));
    }
    if matches!(op, Op::Recv | Op::Barrier) && inp.is_some() {
        return Err(format!("{op} takes no input"));
    }
    if let (Op::Broadcast | Op::Reduce, Some(i), Some(o)) = (op, inp, out)
        && i.range().len() != o.range().len()
    {
        return Err(format!("the input and the output of {op} differ in size"));
    }
    for (lacks, what) in [
        (
            matches!(op, Op::AllReduce | Op::Reduce | Op::ReduceScatter) && args.reduce.is_none(),
            "a reduction",
        ),
        (
            matches!(op, Op::Broadcast | Op::Reduce | Op::Gather | Op::Scatter) && args.root.is_none(),
            "a root",
        ),
        (matches!(op, Op::Send | Op::Recv | Op::SendRecv) && args.peer.is_none(), "a peer"),
        (op == Op::SendRecv && args.source.is_none(), "a source"),
    ] {
        if lacks {
            return Err(format!("{op} needs {what}"));
        }
    }
    ForeignCall::new(group.rank(), op, inp, out, args)
        .ok_or_else(|| format!("the input and the output of {op} overlap; use two buffers, or give only one"))
}

/// Memory of the buffers of a call, or the reason why the group cannot use it.
fn place(group: &Group, given: Option<OnDevice>) -> Result<Place, String> {
    let Some((device, stream)) = given else { return Ok(Place::Host) };
    match (device, group.device()) {
        (None, Some(device)) => Ok(Place::Cuda { device, stream }),
        (Some(device), Some(own)) if device == own => Ok(Place::Cuda { device, stream }),
        (Some(device), Some(own)) => Err(format!(
            "the memory is on CUDA device {device}, and this group's is device {own} (COMITY_DEVICE); move it there"
        )),
        (_, None) => Err("the memory is on a CUDA device, and this group moves host memory; make the group with backend=\"nccl\"".into()),
    }
}

/// Returns whether an operation needs an input and an output here.
fn needs(op: Op, group: &Group, args: &ForeignArgs, has_inp: bool) -> (bool, bool) {
    let root = args.root == Some(group.rank());
    match op {
        Op::Barrier => (false, false),
        Op::Send => (true, false),
        Op::Gather => (true, root),
        Op::Scatter => (root, true),
        Op::SendRecv => (true, true),
        Op::Reduce => (false, root || !has_inp),
        Op::Broadcast => (false, !root || !has_inp),
        // With different counts there is no form in place.
        Op::AllGather | Op::ReduceScatter | Op::AllToAll => (args.counts.is_some() && !has_inp, true),
        _ => (false, true),
    }
}
