//! Groups for Python.

use crate::{
    arrays::PlainAllReduce,
    call::{self, BufferSpec, CallArgs},
    errors, interpreter,
    memory::{self, SharedBytes},
    request::{Given, PyRequest, seconds, wait_to_the_end, watched},
};
use comity::{
    Peer, Place, ReformOptions, ViewMut,
    tools::{ForeignCall, ForeignMemory, ForeignRequest, HomeProcess},
};
use pyo3::{prelude::*, types::PyDict};
use std::{
    borrow::Borrow,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Ranks that call collectives together.
#[pyclass(frozen, module = "comity._core", name = "Group")]
pub(crate) struct PyGroup {
    /// `None` only while it is dropped.
    inner: Option<comity::Group>,
    /// The limit of a call, in nanoseconds.
    limit: AtomicU64,
    /// Calls under way or queued. A call that finds none runs on its own thread.
    busy: Arc<AtomicUsize>,
    name: String,
    home: HomeProcess,
}

/// Rank, host and process id.
type Member = (usize, Option<String>, Option<u32>);
/// A group that follows another; members that left it, and why; members that joined.
type FollowingGroup = (PyGroup, Vec<(Member, String)>, Vec<Member>);

fn member(p: &Peer) -> Member {
    (p.rank, p.host.as_deref().map(str::to_owned), p.pid)
}

/// A call under way or queued, of those that are counted there.
struct Busy<T: Borrow<AtomicUsize>>(T);

impl Busy<Arc<AtomicUsize>> {
    fn queued(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl<T: Borrow<AtomicUsize>> Drop for Busy<T> {
    fn drop(&mut self) {
        self.0.borrow().fetch_sub(1, Ordering::Release);
    }
}

impl Drop for PyGroup {
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

/// Buffers in host memory of which none overlaps another.
fn apart(given: Vec<BufferSpec>) -> Result<Vec<ForeignMemory>, String> {
    let all: Vec<_> = given.into_iter().map(|b| memory::vouched(b, Place::Host)).collect::<Result<_, _>>()?;
    let mut order = all.clone();
    order.sort_by_key(|b| b.range().start);
    match order.windows(2).any(|pair| pair[0].overlaps(&pair[1])) {
        true => Err("sync: two of the arrays overlap; pass the whole instead".into()),
        false => Ok(all),
    }
}

fn nanos(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

impl PyGroup {
    pub(crate) fn new(inner: comity::Group, name: String) -> Self {
        let limit = AtomicU64::new(nanos(inner.timeout()));
        Self { inner: Some(inner), limit, busy: Arc::default(), name, home: HomeProcess::here() }
    }

    /// The group, in the process that made it.
    fn open(&self, py: Python<'_>) -> PyResult<&comity::Group> {
        errors::check_home(py, self.home)?;
        self.inner
            .as_ref()
            .ok_or_else(|| errors::new(py, "GroupClosedError", "the group is gone".into(), None, None, None))
    }

    /// The group with the limit of one call.
    fn limited(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<comity::Group> {
        let limit = match timeout {
            Some(t) => seconds(py, Some(self.rank()), t)?,
            // Infinity is more than any limit.
            None => Duration::from_nanos(self.limit.load(Ordering::Relaxed)),
        };
        Ok(self.open(py)?.with_timeout(limit))
    }

    /// The group with the limit of one call, and the call.
    fn prepared(
        &self,
        py: Python<'_>,
        op: &str,
        [inp, out]: [Option<BufferSpec>; 2],
        args: Option<&Bound<'_, CallArgs>>,
    ) -> PyResult<(comity::Group, ForeignCall)> {
        let none = CallArgs::default();
        let args = args.map_or(&none, |a| a.get());
        let group = self.limited(py, args.timeout)?;
        let misuse = |words| errors::misuse(py, Some(group.rank()), words, Some(op));
        let checked = args.checked(&group, op).map_err(misuse)?;
        let work = call::prepared(&group, op, inp, out, args.place, checked);
        let work = work.map_err(|words| misuse(format!("{op}: {words}")))?;
        Ok((group, work))
    }

    /// Make a call of `group` on this thread; `None` where earlier ones are under way.
    #[inline]
    fn alone(
        &self,
        py: Python<'_>,
        group: &comity::Group,
        call: impl FnOnce(&comity::Group) -> comity::Result<()> + Send,
    ) -> Option<PyResult<()>> {
        self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        interpreter::arm();
        let busy = Busy(&*self.busy);
        let out = py.detach(|| call(group));
        drop(busy);
        let raised = |e| interpreter::taken().unwrap_or_else(|| errors::raised(py, Some(group.rank()), &e));
        Some(out.map_err(raised))
    }

    /// Like `run`, of a call that is complete; `None` where it cannot be made at once.
    fn at_once(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&comity::Group) -> comity::Result<()> + Send,
    ) -> Option<PyResult<()>> {
        match self.limited(py, None) {
            Ok(group) => self.alone(py, &group, call),
            Err(e) => Some(Err(e)),
        }
    }

    /// Queue `work` on the group's thread.
    fn queue(
        &self,
        group: &comity::Group,
        work: impl FnOnce(&comity::Group) -> comity::Result<()> + Send + 'static,
    ) -> Arc<ForeignRequest> {
        let (end, ending) = ForeignRequest::begin();
        let busy = Busy::queued(&self.busy);
        group
            .spawn(move |g| {
                ending.set(work(g));
                drop(busy);
                Ok(())
            })
            .detach();
        end
    }
}

#[pymethods]
impl PyGroup {
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

    /// Limit on a call, in seconds; infinity where there is none.
    #[getter]
    fn timeout(&self) -> f64 {
        match self.limit.load(Ordering::Relaxed) {
            u64::MAX => f64::INFINITY,
            limit => Duration::from_nanos(limit).as_secs_f64(),
        }
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.limit.store(nanos(seconds(py, Some(self.rank()), timeout)?), Ordering::Relaxed);
        Ok(())
    }

    /// The members by rank: (rank, host, pid), where known.
    fn members(&self, py: Python<'_>) -> PyResult<Vec<Member>> {
        let members = self.open(py)?.members();
        Ok(members.iter().map(member).collect())
    }

    /// The kind of link to each rank, before a call has needed it the one tried first; `None` for this one.
    fn link_kinds(&self, py: Python<'_>) -> PyResult<Vec<Option<String>>> {
        let kinds = self.open(py)?.link_kinds();
        Ok(kinds.iter().map(|k| k.map(|k| k.to_string())).collect())
    }

    /// So many bytes of zeros that the other ranks of this host may read where they lie.
    fn alloc(&self, py: Python<'_>, bytes: usize) -> PyResult<SharedBytes> {
        let group = self.open(py)?;
        Ok(SharedBytes::new(py.detach(|| group.alloc(bytes))))
    }

    /// Counters of this group on this rank.
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
        let busy = Busy::queued(&self.busy);
        let parent = group.clone();
        let work = move || {
            let out = group.split(color, key);
            drop(busy);
            out
        };
        // On a thread of its own, so that a signal can interrupt the wait for the other ranks.
        let made = watched(py, Some(self.rank()), work, move |words| parent.abort(&words))?;
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
        let made = watched(py, Some(self.rank()), move || group.subgroup(&members, label), |_| ())?;
        Ok(Self::new(made, name))
    }

    /// Processes that wait to be taken in.
    fn joiners(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.open(py)?.joiners())
    }

    /// The group that follows; who left, and why; who joined.
    #[pyo3(signature = (fewest, store_decides, *, timeout=None))]
    fn reform(
        &self,
        py: Python<'_>,
        fewest: usize,
        store_decides: bool,
        timeout: Option<f64>,
    ) -> PyResult<FollowingGroup> {
        // The new group has the handle's limit, not that of this call.
        let group = self.limited(py, None)?;
        let mut options = ReformOptions::new().fewest(fewest);
        if store_decides {
            options = options.store_decides();
        }
        if let Some(limit) = timeout {
            options = options.limit(seconds(py, Some(self.rank()), limit)?);
        }
        let parent = group.clone();
        let work = move || group.reform(&options);
        let made = watched(py, Some(self.rank()), work, move |words| parent.abort(&words))?;
        let left = made.left.iter().map(|d| (member(&d.peer), d.why.clone())).collect();
        let joined = made.joined.iter().map(member).collect();
        Ok((Self::new(made.group, self.name.clone()), left, joined))
    }

    /// Give all ranks the buffers of those that hold them; the bytes that this rank received.
    #[pyo3(signature = (buffers, holds, *, timeout=None))]
    fn sync(
        &self,
        py: Python<'_>,
        buffers: Vec<BufferSpec>,
        holds: bool,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let group = self.limited(py, timeout)?;
        let buffers = apart(buffers);
        let buffers = buffers.map_err(|words| errors::misuse(py, Some(group.rank()), words, Some("sync")))?;
        let received = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&received);
        let work = move |group: &comity::Group| {
            let mut views: Vec<ViewMut<'_>> = buffers.iter().map(ForeignMemory::view_mut).collect();
            told.store(group.sync(&mut views, holds)?, Ordering::Relaxed);
            Ok(())
        };
        let end = self.queue(&group, work);
        wait_to_the_end(py, group.rank(), &end, |words| group.abort(words))?;
        Ok(received.load(Ordering::Relaxed))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.open(py)?;
        py.detach(|| group.close()).map_err(|e| errors::raised(py, Some(group.rank()), &e))
    }

    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let group = self.open(py)?;
        py.detach(|| group.abort(why));
        Ok(())
    }

    /// An all_reduce of NumPy's arrays; `None` where their kind has to see to it, and nothing has happened.
    #[pyo3(signature = (x, out, reduce, /))]
    fn all_reduce<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        reduce: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        PlainAllReduce::with(x, out, reduce, |call| self.at_once(x.py(), |group| call.run(group))).transpose()
    }

    #[pyo3(signature = (op, inp=None, out=None, args=None, /))]
    fn run(
        &self,
        py: Python<'_>,
        op: &str,
        inp: Option<BufferSpec>,
        out: Option<BufferSpec>,
        args: Option<&Bound<'_, CallArgs>>,
    ) -> PyResult<()> {
        let (group, work) = self.prepared(py, op, [inp, out], args)?;
        let Some(out) = self.alone(py, &group, |group| work.run(group)) else {
            // Behind earlier work this thread would sleep where no signal reaches it.
            let end = self.queue(&group, move |g| work.run(g));
            return wait_to_the_end(py, group.rank(), &end, |words| group.abort(words));
        };
        out
    }

    #[pyo3(signature = (op, inp=None, out=None, args=None, /, *, hold=None))]
    fn start(
        &self,
        py: Python<'_>,
        op: &str,
        inp: Option<BufferSpec>,
        out: Option<BufferSpec>,
        args: Option<&Bound<'_, CallArgs>>,
        hold: Option<Py<PyAny>>,
    ) -> PyResult<PyRequest> {
        let (group, work) = self.prepared(py, op, [inp, out], args)?;
        let what = work.op().to_string();
        let given = Arc::new(Mutex::new(Given { hold, ..Given::default() }));
        // The memory stays until the call has ended, also where nobody keeps the request.
        let kept = Arc::clone(&given);
        let call = move |g: &comity::Group| {
            let out = work.run(g);
            drop(kept);
            out
        };
        Ok(PyRequest::new(self.queue(&group, call), given, group.rank(), what, self.home))
    }

    fn __repr__(&self) -> String {
        format!("<comity._core.Group {}: rank {} of {}>", self.name, self.rank(), self.size())
    }
}
