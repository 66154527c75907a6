//! The handle that users hold, and whose turn it is on it.

mod communicator;
mod connect;
mod lifecycle;
mod measure;
mod ops;
mod request;
mod state;
#[cfg(test)]
mod tests;

pub use communicator::Communicator;
pub use connect::{init, init_strict};
pub use lifecycle::{Departure, ReformOptions, ReformOutcome};
pub use request::{Request, Scope};

use crate::{
    CallInfo, Element, Error, ErrorKind, LinkCosts, LinkKind, Misuse, Op, Peer, Result, SharedBuffer, Stats,
    Wire,
    backend::{AbortHandle, Backend, Call, NativeBackend, Single, SubgroupFactory, WireCalls},
    links::LocalWorld,
    recorder::Recorder,
    root_cause::RootCauseReport,
    settings::MAX_TIMEOUT,
    stats::Counters,
    status::{Failure, World},
    sync::lock,
    sys::{HomeProcess, SharedMemory},
    turn::Turn,
};
use comity_plan::Algorithm;
use measure::LinkMeasurement;
use request::{Jobs, queue, start_worker};
use state::{CallState, CallingThreads, TurnGuard};
use std::{
    cell::Cell,
    fmt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Time limit of a call by default.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// Shorter messages are never read where they lie, so shorter buffers need not be shared.
const LEAST: usize = 64 << 10;

/// Ranks that call collectives together.
///
/// A `Group` is a cheap handle: clone it, send it, share it. Calls on one group, from whatever threads, run one at a
/// time in the order they were made, and that order must be the same on every rank. To overlap communication with
/// other work use [`spawn`](Self::spawn); to run two collectives at once use two groups ([`split`](Self::split)).
///
/// A group of one rank is a group too: calls are checked in the same way, then copy or do nothing.
///
/// # Errors
/// [`ErrorKind::Misuse`] and [`ErrorKind::Order`] leave the group as it was, and no byte has moved; so does [`ErrorKind::Forked`], which every call in a
/// forked child returns. Every other error of a call is final: the group has failed on every rank, later calls return [`ErrorKind::Broken`] with the first cause at once, and what the failed
/// call's output buffer holds is undefined.
///
/// ```
/// use comity::{Group, ReduceOp};
/// let totals = std::thread::scope(|s| {
///     let ranks: Vec<_> = Group::local(2)?
///         .into_iter()
///         .map(|g| {
///             s.spawn(move || {
///                 let mut x = [g.rank() as f32 + 1.0; 3];
///                 g.all_reduce(&mut x, ReduceOp::Sum).map(|()| x)
///             })
///         })
///         .collect();
///     ranks.into_iter().map(|r| r.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(totals, [[3.0; 3]; 2]);
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone)]
pub struct Group {
    core: Arc<Core>,
    limit: Duration,
    /// True if calls through this handle are parts of a call that moves objects.
    objects: bool,
    /// Form in which elements of calls through this handle cross the links.
    wire: Option<Wire>,
}

/// State that all handles of a group share.
pub(crate) struct Core {
    /// Process that owns these connections.
    home: HomeProcess,
    rank: usize,
    peers: Vec<Peer>,
    turn: Turn,
    state: Mutex<CallState>,
    counters: Arc<Counters>,
    /// Jobs for the group's own thread, which starts with the first.
    worker: Mutex<Option<Jobs<'static>>>,
    /// True if background work holds the turn. Only then is `TURN` looked at, which in a shared library is a call.
    in_background: AtomicBool,
    /// The thread that has asked for that work; 0 where none runs.
    asker: AtomicUsize,
    /// Reaches calls under way from other threads.
    abort_handle: Option<AbortHandle>,
    /// Makes groups of some members; `None` when there are no others.
    subgroup_factory: Option<SubgroupFactory>,
    kinds: Vec<Option<LinkKind>>,
    /// The CUDA device whose buffers calls can take.
    device: Option<u32>,
}

thread_local! {
    /// The group whose turn this thread holds while it runs background work, and the turn.
    static TURN: Cell<(*const Core, u64)> = const { Cell::new((std::ptr::null(), 0)) };
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Group {
    /// A group of this process alone. Calls are checked as in any group, then copy or do nothing.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// let mut x = [0f32; 4];
    /// group.all_gather(&[1f32, 2.0, 3.0, 4.0], &mut x)?;
    /// assert_eq!(x, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn single() -> Self {
        Self::alone(Arc::default())
    }

    fn alone(counters: Arc<Counters>) -> Self {
        Self::alone_by(Box::new(Single), counters)
    }

    fn alone_by(backend: Box<dyn Backend>, counters: Arc<Counters>) -> Self {
        let peers = vec![Peer { rank: 0, host: None, pid: Some(std::process::id()) }];
        Self::with(0, peers, backend, (0, Recorder::new()), counters, DEFAULT_LIMIT)
    }

    /// `size` handles for `size` threads of this process, by rank, of one group whose ranks talk through memory.
    ///
    /// Give each thread its handle, for tests of code that runs in several processes otherwise.
    ///
    /// ```
    /// use comity::{Group, ReduceOp};
    ///
    /// let threads: Vec<_> = Group::local(2)?
    ///     .into_iter()
    ///     .map(|group| {
    ///         std::thread::spawn(move || {
    ///             let mut x = [group.rank() as u64 + 1];
    ///             group.all_reduce(&mut x, ReduceOp::Sum).map(|()| x[0])
    ///         })
    ///     })
    ///     .collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap()?, 3);
    /// }
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Os`] when the system has no descriptors or memory left; [`ErrorKind::Config`] for a size of 0.
    pub fn local(size: usize) -> Result<Vec<Self>> {
        if size == 0 {
            return Err(Error::config("a group needs at least one rank; size 0 was asked for"));
        }
        if size == 1 {
            return Ok(vec![Self::single()]);
        }
        let open = |w| Self::open(0, Arc::new(w), Arc::default(), DEFAULT_LIMIT, DEFAULT_LIMIT);
        LocalWorld::all(size).into_iter().map(open).collect()
    }

    /// The group of everyone in `world`, with this number.
    pub(crate) fn open(
        group_id: u64,
        world: Arc<dyn World>,
        counters: Arc<Counters>,
        limit: Duration,
        join: Duration,
    ) -> Result<Self> {
        let rank = world.rank();
        let peers = world.peers().to_vec();
        let native = NativeBackend::open_all(world, group_id, counters.clone(), join)?;
        Ok(Self::with(rank, peers, Box::new(native), (group_id, Recorder::new()), counters, limit))
    }

    fn report_root_cause_to(self, root_cause: RootCauseReport) -> Self {
        lock(&self.core.state).recorder.report_root_cause_to(root_cause, self.size());
        self
    }

    /// Write what the flight recorder holds to this directory when the group fails.
    fn log_to(self, dir: &Path) -> Self {
        if let Some(me) = self.core.peers.get(self.core.rank) {
            lock(&self.core.state).recorder.log_to(dir, me, self.size());
        }
        self
    }

    fn with(
        rank: usize,
        peers: Vec<Peer>,
        backend: Box<dyn Backend>,
        (group_id, recorder): (u64, Recorder),
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Self {
        let abort_handle = backend.abort_handle();
        let subgroup_factory = backend.subgroup_factory();
        let kinds = backend.links();
        let device = backend.device();
        counters.is(group_id, rank, peers.len());
        let home = HomeProcess::here();
        let threads = CallingThreads::default();
        let state = CallState {
            backend: Some(backend),
            seq: 0,
            splits: 0,
            group_id,
            broken: None,
            recorder,
            home,
            threads,
            wires: WireCalls::new(rank, peers.len()),
        };
        let core = Core {
            home: state.home,
            rank,
            peers,
            turn: Turn::new(),
            state: Mutex::new(state),
            counters,
            worker: Mutex::new(None),
            in_background: AtomicBool::new(false),
            asker: AtomicUsize::new(0),
            abort_handle,
            subgroup_factory,
            kinds,
            device,
        };
        Self { core: Arc::new(core), limit, objects: false, wire: None }
    }

    /// This process's (or thread's) place in the group, from 0.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// assert_eq!((group.rank(), group.size()), (0, 1));
    /// ```
    #[inline]
    pub fn rank(&self) -> usize {
        self.core.rank
    }

    /// The number of ranks in the group, at least 1.
    ///
    /// ```
    /// assert_eq!(comity::Group::local(3)?[0].size(), 3);
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[inline]
    pub fn size(&self) -> usize {
        self.core.peers.len()
    }

    /// The same group; calls through the returned handle fail after `limit` (default: 5 minutes).
    ///
    /// A call that runs out of time ends the group, since nobody can know how far the others got. With `Duration::MAX` a call waits as
    /// long as all members live, such as for a rank that prepares a data set. A rank that dies or
    /// [falls silent](crate::Config::detection) ends it all the same.
    ///
    /// ```
    /// # use comity::Group;
    /// # let g = Group::single();
    /// g.with_timeout(std::time::Duration::from_secs(5)).barrier()?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[must_use]
    pub fn with_timeout(&self, limit: Duration) -> Self {
        Self { limit: limit.min(MAX_TIMEOUT), ..self.clone() }
    }

    /// The same group; in calls through the returned handle elements cross the links in a smaller form, for slow networks: see [`Wire`] for what
    /// each loses. `None` takes them as they are again.
    ///
    /// It is for [`all_reduce`](Self::all_reduce), [`reduce_scatter`](Self::reduce_scatter), [`all_gather`](Self::all_gather) and their other
    /// forms, for sums and averages of `f32`, `f16` and `bf16` in host memory. Any other call is [`Misuse::Wire`](crate::Misuse::Wire). All ranks
    /// name the same wire, or are told so ([`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch)). A group of one rank rounds nothing.
    ///
    /// Each contribution is rounded once, and the sum of an all_reduce once more. It is a sum of `f32` in the order of ranks, and the same bits on
    /// all ranks. An all_gather rounds this rank's part in its own result too.
    ///
    /// ```
    /// # use comity::{ReduceOp, Wire};
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut gradient = [0.1f32; 1000];
    /// group.with_wire(Wire::Bf16).all_reduce(&mut gradient, ReduceOp::Avg)?;
    /// assert!(gradient.iter().all(|x| (x - 0.1).abs() < 0.1 / 128.0));
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[must_use]
    pub fn with_wire(&self, wire: impl Into<Option<Wire>>) -> Self {
        Self { wire: wire.into(), ..self.clone() }
    }

    /// A handle whose calls are parts of one that moves objects.
    pub(crate) fn of_objects(&self) -> Self {
        Self { objects: true, ..self.clone() }
    }

    /// Returns the time limit of a call through this handle, `Duration::MAX` where there is no limit; see [`with_timeout`](Self::with_timeout).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let group = comity::Group::single();
    /// assert_eq!(group.timeout(), Duration::from_secs(300));
    /// assert_eq!(group.with_timeout(Duration::from_secs(5)).timeout(), Duration::from_secs(5));
    /// assert_eq!(group.with_timeout(Duration::MAX).timeout(), Duration::MAX);
    /// ```
    pub fn timeout(&self) -> Duration {
        if self.limit < MAX_TIMEOUT { self.limit } else { Duration::MAX }
    }

    /// The members by rank, as errors name them: one [`Peer`] for each rank.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// for member in group.members() {
    ///     println!("{member}"); // rank 0 (host node7, pid 4711)
    /// }
    /// assert_eq!(group.members().len(), group.size());
    /// ```
    pub fn members(&self) -> &[Peer] {
        &self.core.peers
    }

    /// The host of each rank, numbered in order of first appearance; none where the group's backend does not know.
    pub(crate) fn hosts(&self) -> Option<Vec<usize>> {
        let world = self.core.subgroup_factory.as_ref()?.world.upgrade()?;
        // A group of some members numbers its ranks in its own way.
        Some(world.hosts().to_vec()).filter(|hosts| hosts.len() == self.size())
    }

    /// The kind of link to each rank, by rank; `None` for this rank itself.
    ///
    /// If no call has needed a link yet, it is the kind that is tried first.
    ///
    /// ```
    /// use comity::{Group, LinkKind};
    ///
    /// let groups = Group::local(2)?;
    /// assert_eq!(groups[0].link_kinds(), [None, Some(LinkKind::Local)]);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn link_kinds(&self) -> Vec<Option<LinkKind>> {
        let made = self.core.abort_handle.as_ref().map(|a| a.status.links().kinds()).unwrap_or_default();
        let made = made.into_iter().chain(std::iter::repeat(None));
        self.core.kinds.iter().zip(made).map(|(likely, made)| made.or(*likely)).collect()
    }

    /// The number of connections of the link to each rank, by rank; `None` where none is made.
    pub(crate) fn connections(&self) -> Vec<Option<usize>> {
        self.core.abort_handle.as_ref().map(|a| a.status.links().connections()).unwrap_or_default()
    }

    /// The CUDA device whose buffers this group's calls take besides those in host memory; see
    /// [`BackendKind::Nccl`](crate::BackendKind). `None` with every other backend.
    ///
    /// ```
    /// assert_eq!(comity::Group::single().device(), None);
    /// ```
    pub fn device(&self) -> Option<u32> {
        self.core.device
    }

    /// Returns the counters of this group on this rank: calls, bytes, waiting.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// group.barrier()?;
    /// assert_eq!(group.stats().calls, 1);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.core.counters.read()
    }

    /// [`tools::prefer_algorithm`](crate::tools::prefer_algorithm).
    pub(crate) fn prefer_algorithm(&self, algorithm: Option<Algorithm>) -> bool {
        self.in_turn(|| {
            let mut state = lock(&self.core.state);
            state.backend.as_mut().is_some_and(|b| b.prefer(algorithm))
        })
    }

    /// `count` elements of zeros in memory that the other ranks of this host map, to read only.
    ///
    /// Operations on it, or on a part of it, need no copy within the host: a rank reads what it needs straight from the sender's buffer,
    /// adds it up or puts it in its place, and gives it back. Results have the same bits as with any other buffer. Use it for large
    /// buffers that live long; the peers map each of them once.
    ///
    /// It is ordinary memory where nobody could read it (the group has no other rank on this host, the buffer is short), where the limit
    /// `COMITY_SHARED_BUFFERS` is reached, and where the system gives none; [`SharedBuffer::why_not`] says so.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut gradients = group.alloc::<f32>(1 << 16);
    /// gradients.fill(1.0);
    /// group.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// assert_eq!(gradients[0], 2.0);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the buffer is longer than memory can be, as a vector does.
    pub fn alloc<T: Element>(&self, count: usize) -> SharedBuffer<T> {
        let bytes = count.saturating_mul(size_of::<T>());
        let reads = |k: &Option<LinkKind>| k.and_then(LinkKind::about).is_some_and(|a| a.shares_memory);
        if bytes < LEAST {
            return SharedBuffer::private(count, format!("it is shorter than {} KiB", LEAST >> 10));
        }
        if !self.link_kinds().iter().any(reads) {
            let why = "this group has no link over shared memory: it has no other rank on this host, or may not use it";
            return SharedBuffer::private(count, why.into());
        }
        match SharedMemory::new(bytes) {
            Ok(memory) => SharedBuffer::shared(count, memory),
            Err(e) => SharedBuffer::private(count, format!("no more memory can be shared: {e}")),
        }
    }

    /// Measure every link of the group in both directions, in about `budget`. Every rank calls this, and all get the same numbers.
    ///
    /// A message's latency is half the time of a small one's way there and back. Up to 16 ranks one pair at a time is
    /// measured; with more, every rank in one pair at a time, so that pairs may share a network. To have calls planned by these
    /// numbers, use [`Config::measure_costs`](crate::Config::measure_costs), or write them to a file for
    /// [`Config::costs_file`](crate::Config::costs_file).
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let costs = group.measure_links(std::time::Duration::from_millis(20))?;
    /// assert!(costs.latency(0, 1) < 1.0); // seconds
    /// assert!(costs.bandwidth(0, 1) > 1e3); // bytes per second
    /// assert!(costs.to_json().contains("latency_s"));
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of any call.
    pub fn measure_links(&self, budget: Duration) -> Result<LinkCosts> {
        LinkMeasurement(self).run(budget)
    }

    /// Leave the group: a call under way on another thread and later calls return [`ErrorKind::Closed`], and peers that still
    /// need this rank get an error that names it.
    ///
    /// Before it leaves in good order, this rank compares the calls that it has made with those of the others. That takes a round trip to each of them,
    /// which needs no call there, and up to 2 s if one of them has made fewer.
    ///
    /// Dropping the last handle leaves, too. A difference that it finds then goes to standard error, and the process ends with code 1 when it exits.
    ///
    /// ```
    /// use comity::{Error, ErrorKind, Group};
    ///
    /// let group = Group::single();
    /// group.barrier()?;
    /// group.close()?;
    /// assert_eq!(group.barrier().unwrap_err().kind(), &ErrorKind::Closed);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the ranks made different calls and no call here has shown it; the same on the other ranks. The group is closed all
    /// the same. A group that has failed otherwise, or was closed before, closes without an error.
    pub fn close(&self) -> Result<()> {
        self.core.home.check()?;
        if let Some(a) = &self.core.abort_handle {
            a.close();
        }
        self.in_turn(|| {
            let mut state = lock(&self.core.state);
            let out = state.leave();
            state.broken.get_or_insert_with(|| ErrorKind::Closed.into());
            out
        })
    }

    /// Give the group up on every rank: calls under way and later ones fail with [`ErrorKind::Aborted`], which carries `why`.
    ///
    /// It returns at once; the other ranks learn of it on their own.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// if group.rank() == 1 {
    ///     group.abort("the loss is NaN");
    /// }
    /// let e = group.barrier().unwrap_err();
    /// assert!(e.root().to_string().contains("the loss is NaN"), "{e}");
    /// assert_eq!(e.ranks(), [1]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn abort(&self, why: &str) {
        if !self.core.home.is_here() {
            return;
        }
        let failure = Failure::reported(self.rank(), why);
        if let Some(a) = &self.core.abort_handle {
            a.raise(failure);
        }
        self.in_turn(|| {
            let mut state = lock(&self.core.state);
            let by = self.core.peers[self.rank()].clone();
            let error = ErrorKind::Aborted { by, reason: why.to_owned(), call: None };
            if state.broken.is_none() {
                state.fail(error.into());
            }
        });
    }

    /// Run `f` on the group's own thread, in its turn among this group's calls.
    ///
    /// The turn is taken now: a call made after `spawn` runs after `f`, whichever thread makes it. `f` owns its
    /// buffers and hands them back through [`Request::wait`]. Dropping the request lets the work finish
    /// unobserved, since other ranks count on it. A process may exit with work pending.
    ///
    /// ```
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// let mut grad = vec![1f32; 1024];
    /// let pending = g.spawn(move |g| {
    ///     g.all_reduce(&mut grad, ReduceOp::Sum)?;
    ///     Ok(grad)
    /// });
    /// // ... compute ...
    /// let grad = pending.wait()?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// Borrowed buffers need [`scope`](Self::scope):
    /// ```compile_fail
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// let mut grad = vec![1f32; 1024];
    /// let pending = g.spawn(|g| g.all_reduce(&mut grad, ReduceOp::Sum));
    /// ```
    ///
    /// # Errors
    /// The error that `f` returns; [`ErrorKind::Os`] when the system gives no thread. A panic in `f` goes on in `wait`.
    pub fn spawn<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Self) -> Result<R> + Send + 'static,
    ) -> Request<R> {
        self.spawn_as(f)
    }

    /// Spawns as [`spawn`](Self::spawn), for work with an error type of its own, which [`Error`] can become.
    ///
    /// Name the type where the compiler cannot know it: in the result, or as `spawn_as::<_, MyError>(...)`.
    ///
    /// ```
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// type Fault = Box<dyn std::error::Error + Send + Sync>;
    /// let pending = g.spawn_as(|g| -> Result<f32, Fault> {
    ///     let mut loss: [f32; 1] = ["0.5".parse()?];
    ///     g.all_reduce(&mut loss, ReduceOp::Avg)?;
    ///     Ok(loss[0])
    /// });
    /// assert_eq!(pending.wait()?, 0.5);
    /// # Ok::<(), Fault>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`spawn`](Self::spawn).
    pub fn spawn_as<R: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        f: impl FnOnce(&Self) -> Result<R, E> + Send + 'static,
    ) -> Request<R, E> {
        if let Err(e) = self.core.home.check() {
            return Request::ended(Ok(Err(e.into())));
        }
        queue(self, &self.core.worker, start_worker, f)
    }

    /// Spawns as [`spawn`](Self::spawn), for borrowed buffers: all work spawned in the scope has ended when `scope` returns.
    ///
    /// The scope has a thread of its own, which starts with the first piece of work.
    ///
    /// ```
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// let (mut a, mut b) = (vec![1f32; 8], vec![2f64; 8]);
    /// g.scope(|s| {
    ///     let first = s.spawn(|g| g.all_reduce(&mut a, ReduceOp::Sum));
    ///     s.spawn(|g| g.all_reduce(&mut b, ReduceOp::Sum)).detach();
    ///     first.wait()
    /// })?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    /// ```compile_fail
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// let mut a = vec![1f32; 8];
    /// g.scope(|s| {
    ///     let first = s.spawn(|g| g.all_reduce(&mut a, ReduceOp::Sum));
    ///     a[0] = 3.0; // still borrowed
    ///     first.wait()
    /// })?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn scope<'env, T>(&'env self, f: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
        thread::scope(|threads| {
            // Dropping it at the end, also by a panic, tells the scope's thread that no more work comes.
            let scope = Scope::new(self, threads);
            f(&scope)
        })
    }

    /// Make a checked call, in its turn.
    fn call(&self, call: &mut Call<'_>) -> Result<()> {
        // Before any lock: another thread may have held it at the fork.
        self.core.home.check()?;
        call.info.objects = self.objects;
        let mut run = |state: &mut CallState| {
            state.threads.come(self.core.caller());
            state.run(call, self.limit, &self.core.counters)
        };
        match self.core.free_state() {
            Some(mut state) => run(&mut state),
            None => self.in_turn(|| run(&mut lock(&self.core.state))),
        }
    }

    /// Returns true if this thread runs background work of this group, and so holds its turn.
    #[inline]
    fn in_own_background(&self) -> bool {
        /// Not inlined: the compiler would take the address of `TURN` before it is needed.
        #[inline(never)]
        fn own(core: *const Core) -> bool {
            TURN.get().0 == core
        }
        // A thread that does has written this itself.
        self.core.in_background.load(Ordering::Relaxed) && own(Arc::as_ptr(&self.core))
    }

    /// Run `f` when all calls made before have ended; at once on the thread that runs this group's background work.
    fn in_turn<R>(&self, f: impl FnOnce() -> R) -> R {
        let own = self.in_own_background();
        // WAIT: an earlier call of this group, which has a deadline
        let turn = (!own).then(|| TurnGuard::wait(&self.core, self.core.turn.take()));
        let out = f();
        drop(turn);
        out
    }
}

fn misuse(op: Op, misuse: Misuse) -> Error {
    ErrorKind::Misuse { op, misuse }.into()
}

const _: () = {
    const fn both<T: Send + Sync>() {}
    both::<Group>();
    both::<Error>();
    both::<CallInfo>();
};
