//! Groups for Python.

use crate::{
    errors,
    fork::Home,
    interrupt,
    raw::Event,
    request::{Ending, Request, State, seconds, wait_to_the_end, watched},
    work::{Args, Given, OnDevice, Work},
};
use comity::ReduceOp;
use pyo3::{prelude::*, types::PyDict};
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Ranks that call collectives together.
#[pyclass(frozen, module = "comity._core")]
pub(crate) struct Group {
    /// `None` only while it is dropped.
    inner: Option<comity::Group>,
    /// The limit of a call, in nanoseconds.
    limit: AtomicU64,
    /// Calls under way or queued. A call that finds none runs on its own thread.
    busy: Arc<AtomicUsize>,
    name: String,
    home: Home,
}

/// Rank, host and process id.
type Member = (usize, Option<String>, Option<u32>);

/// One call that runs on its caller's thread.
struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let inner = self.inner.take();
        if !self.home.is_here() {
            // A forked child must not say goodbye in its parent's name.
            mem::forget(inner);
            return;
        }
        // The goodbye may take half a second, in which other threads run. Where the interpreter has ended, `inner` goes with the closure.
        Python::try_attach(|py| py.detach(|| drop(inner)));
    }
}

fn nanos(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

impl Group {
    pub(crate) fn new(inner: comity::Group, name: String) -> Self {
        let limit = AtomicU64::new(nanos(inner.limit()));
        Self { inner: Some(inner), limit, busy: Arc::default(), name, home: Home::here() }
    }

    /// The group, in the process that made it.
    fn open(&self, py: Python<'_>) -> PyResult<&comity::Group> {
        self.home.check(py)?;
        self.inner
            .as_ref()
            .ok_or_else(|| errors::new(py, "Closed", "the group is gone".into(), None, None, None))
    }

    /// The group with the limit of one call.
    fn limited(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<comity::Group> {
        let limit = match timeout {
            Some(t) => seconds(py, t)?,
            None => Duration::from_nanos(self.limit.load(Ordering::Relaxed)),
        };
        Ok(self.open(py)?.timeout(limit))
    }

    /// Queue `work` on the group's thread.
    fn queue(&self, group: &comity::Group, work: Work, hold: Option<Py<PyAny>>) -> Arc<State> {
        let state = State::new(hold);
        let ending = Ending::new(state.clone(), self.busy.clone());
        group
            .spawn(move |g| {
                ending.set(work.run(g));
                Ok(())
            })
            .detach();
        state
    }
}

/// The reduction of this name.
fn reduction(py: Python<'_>, op: &str, name: Option<&str>) -> PyResult<Option<ReduceOp>> {
    let Some(name) = name else { return Ok(None) };
    ReduceOp::from_name(name).map(Some).ok_or_else(|| {
        let words = format!("there is no reduction {name:?}; see comity._core.REDUCTIONS");
        misuse(py, op, &words)
    })
}

/// What was given as a rank, a tag or counts, which Python's numbers need not be; whether a rank is in the group is seen later.
struct Numbers<'a> {
    py: Python<'a>,
    group: &'a comity::Group,
    op: &'a str,
}

impl Numbers<'_> {
    fn refused(&self, what: &str, given: i64, rule: &str) -> PyErr {
        let rank = self.group.rank();
        errors::misuse(
            self.py,
            format!("rank {rank}: {}: the {what} is {given}, and must be {rule}", self.op),
            Some(self.op),
        )
    }

    fn rank(&self, what: &str, given: Option<i64>) -> PyResult<Option<usize>> {
        let rule = || format!("a rank of this group, 0 to {}", self.group.size() - 1);
        given.map(|n| usize::try_from(n).map_err(|_| self.refused(what, n, &rule()))).transpose()
    }

    fn tag(&self, given: i64) -> PyResult<u32> {
        u32::try_from(given).map_err(|_| self.refused("tag", given, &format!("0 to {}", u32::MAX)))
    }

    fn counts(&self, given: Option<Vec<i64>>) -> PyResult<Option<Vec<usize>>> {
        let count = |n| usize::try_from(n).map_err(|_| self.refused("count of a rank", n, "0 or more"));
        given.map(|all| all.into_iter().map(count).collect()).transpose()
    }

    /// `plain`, and these numbers: root, peer and source; what is sent of each rank, and received.
    fn with(
        &self,
        plain: Args,
        [root, peer, source]: [Option<i64>; 3],
        tag: i64,
        [counts, recv_counts]: [Option<Vec<i64>>; 2],
    ) -> PyResult<Args> {
        Ok(Args {
            root: self.rank("root", root)?,
            peer: self.rank("peer", peer)?,
            source: self.rank("source", source)?,
            tag: self.tag(tag)?,
            counts: self.counts(counts)?,
            recv_counts: self.counts(recv_counts)?,
            ..plain
        })
    }
}

fn misuse(py: Python<'_>, op: &str, words: &str) -> PyErr {
    errors::misuse(py, format!("{op}: {words}"), Some(op))
}

#[pymethods]
impl Group {
    #[getter]
    fn rank(&self) -> usize {
        self.inner.as_ref().map_or(0, comity::Group::rank)
    }

    #[getter]
    fn size(&self) -> usize {
        self.inner.as_ref().map_or(0, comity::Group::size)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The CUDA device whose memory calls take, besides that of the host.
    #[getter]
    fn device(&self) -> Option<u32> {
        self.inner.as_ref().and_then(comity::Group::device)
    }

    /// How long a call may take, in seconds.
    #[getter]
    fn timeout(&self) -> f64 {
        Duration::from_nanos(self.limit.load(Ordering::Relaxed)).as_secs_f64()
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.limit.store(nanos(seconds(py, timeout)?), Ordering::Relaxed);
        Ok(())
    }

    /// The members by rank: (rank, host, pid), where known.
    fn members(&self, py: Python<'_>) -> PyResult<Vec<Member>> {
        let members = self.open(py)?.members();
        Ok(members.iter().map(|p| (p.rank, p.host.as_deref().map(str::to_owned), p.pid)).collect())
    }

    /// The kind of link to each rank; `None` for this one.
    fn link_kinds(&self, py: Python<'_>) -> PyResult<Vec<Option<String>>> {
        let kinds = self.open(py)?.link_kinds();
        Ok(kinds.iter().map(|k| k.map(|k| k.to_string())).collect())
    }

    /// What this group has done on this rank so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.open(py)?.stats();
        let dict = PyDict::new(py);
        dict.set_item("calls", stats.calls)?;
        dict.set_item("errors", stats.errors)?;
        dict.set_item("bytes_sent", stats.bytes_sent)?;
        dict.set_item("parked", stats.parked.as_secs_f64())?;
        dict.set_item("suspicions", stats.suspicions)?;
        dict.set_item("longest_silence", stats.longest_silence.as_secs_f64())?;
        Ok(dict)
    }

    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<i32>, key: i32) -> PyResult<Option<Self>> {
        let group = self.limited(py, None)?;
        let busy = Ending::new(State::new(None), self.busy.clone());
        let (parent, work) = (group.clone(), move || {
            let out = group.split_opt(color, key);
            drop(busy);
            out
        });
        // On a thread of its own, so that a signal can interrupt the wait for the other ranks.
        let made = watched(py, work, move |words| parent.abort(&words))?;
        let name = format!("{}/{}", self.name, color.unwrap_or(-1));
        Ok(made.map(|g| Self::new(g, name)))
    }

    #[pyo3(signature = (members, label, *, timeout=None))]
    fn subgroup(
        &self,
        py: Python<'_>,
        members: Vec<usize>,
        label: u64,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let group = self.limited(py, timeout)?;
        let name = format!("{}/{members:?}", self.name);
        let made = watched(py, move || group.subgroup(&members, label), |_| ())?;
        Ok(Self::new(made, name))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.open(py)?;
        py.detach(|| group.close()).map_err(|e| errors::raised(py, &e))
    }

    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let group = self.open(py)?;
        py.detach(|| group.abort(why));
        Ok(())
    }

    #[pyo3(signature = (op, inp=None, out=None, *, reduce=None, root=None, peer=None, source=None, tag=0, counts=None, recv_counts=None, place=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of every operation, by name")]
    fn run(
        &self,
        py: Python<'_>,
        op: &str,
        inp: Option<Given>,
        out: Option<Given>,
        reduce: Option<&str>,
        root: Option<i64>,
        peer: Option<i64>,
        source: Option<i64>,
        tag: i64,
        counts: Option<Vec<i64>>,
        recv_counts: Option<Vec<i64>>,
        place: Option<OnDevice>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let group = self.limited(py, timeout)?;
        let reduce = reduction(py, op, reduce)?;
        let given = Numbers { py, group: &group, op };
        let plain = Args { reduce, place, event: None, ..Args::default() };
        let args = given.with(plain, [root, peer, source], tag, [counts, recv_counts])?;
        let work = Work::new(&group, op, inp, out, args).map_err(|words| misuse(py, op, &words))?;
        if self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Behind earlier work this thread would sleep where no signal reaches it.
            let state = self.queue(&group, work, None);
            return wait_to_the_end(py, &state, |words| group.abort(words));
        }
        interrupt::arm();
        let busy = Busy(&self.busy);
        let out = py.detach(|| work.run(&group));
        drop(busy);
        out.map_err(|e| interrupt::taken().unwrap_or_else(|| errors::raised(py, &e)))
    }

    #[pyo3(signature = (op, inp=None, out=None, *, reduce=None, root=None, peer=None, source=None, tag=0, counts=None, recv_counts=None, place=None, event=None, timeout=None, hold=None))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of every operation, by name")]
    fn start(
        &self,
        py: Python<'_>,
        op: &str,
        inp: Option<Given>,
        out: Option<Given>,
        reduce: Option<&str>,
        root: Option<i64>,
        peer: Option<i64>,
        source: Option<i64>,
        tag: i64,
        counts: Option<Vec<i64>>,
        recv_counts: Option<Vec<i64>>,
        place: Option<OnDevice>,
        event: Option<Py<Event>>,
        timeout: Option<f64>,
        hold: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        let group = self.limited(py, timeout)?;
        let reduce = reduction(py, op, reduce)?;
        let given = Numbers { py, group: &group, op };
        let plain = Args { reduce, place, event, ..Args::default() };
        let args = given.with(plain, [root, peer, source], tag, [counts, recv_counts])?;
        let work = Work::new(&group, op, inp, out, args).map_err(|words| misuse(py, op, &words))?;
        let what = work.op().to_string();
        Ok(Request::new(self.queue(&group, work, hold), what, self.home))
    }

    fn __repr__(&self) -> String {
        format!("<comity._core.Group {}: rank {} of {}>", self.name, self.rank(), self.size())
    }
}
