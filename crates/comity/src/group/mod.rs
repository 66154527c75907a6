//! The handle that users hold, and whose turn it is on it.
//!
//! May import: `backend`, `config`, `recorder`, `turn`.

mod about;
mod communicator;
mod connect;
mod measure;
mod ops;
mod reform;
mod request;
mod served;
mod split;
mod state;

pub use communicator::Communicator;
pub use connect::{init, init_strict};
pub use reform::{Departure, ReformOptions, ReformOutcome};
pub use request::{Request, Scope};

use crate::{
    CallInfo, Error, ErrorKind, LinkKind, Misuse, Op, Peer, Result, Wire,
    backend::{AbortHandle, Backend, Call, NativeBackend, Single, SubgroupFactory, WireCalls},
    links::LocalWorld,
    recorder::Recorder,
    root_cause::RootCauseReport,
    stats::Counters,
    status::{Failure, World},
    sync::lock,
    sys::HomeProcess,
    turn::Turn,
};
use request::BackgroundTask;
use served::Served;
use state::{CallState, CallingThreads};
use std::{
    cell::Cell,
    fmt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Time limit of a call by default.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

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
    /// Whose connections these are.
    home: HomeProcess,
    rank: usize,
    peers: Vec<Peer>,
    turn: Turn,
    state: Mutex<CallState>,
    counters: Arc<Counters>,
    /// Jobs for the group's own thread, which starts with the first.
    worker: Mutex<Option<mpsc::Sender<BackgroundTask>>>,
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
        let peers = vec![Peer { rank: 0, host: None, pid: Some(std::process::id()) }];
        Self::with(0, peers, Box::new(Single), (0, Recorder::new()), counters, DEFAULT_LIMIT)
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
        let worlds = LocalWorld::all(size);
        let open = |w| Self::open(Arc::new(w), Arc::default(), DEFAULT_LIMIT, DEFAULT_LIMIT);
        worlds.into_iter().map(open).collect()
    }

    /// The group of everyone in `world`.
    pub(crate) fn open(
        world: Arc<dyn World>,
        counters: Arc<Counters>,
        limit: Duration,
        join: Duration,
    ) -> Result<Self> {
        Self::open_as(0, world, counters, limit, join)
    }

    /// The group of everyone in `world`, with a number of its own.
    fn open_as(
        group_id: u64,
        world: Arc<dyn World>,
        counters: Arc<Counters>,
        limit: Duration,
        join: Duration,
    ) -> Result<Self> {
        let rank = world.rank();
        let peers = world.peers().to_vec();
        let members = (0..peers.len()).collect();
        let until = Instant::now() + join;
        let native = NativeBackend::open(world, members, group_id, counters.clone(), until)?;
        Ok(Self::with(rank, peers, Box::new(native), (group_id, Recorder::new()), counters, limit))
    }

    /// tell the launcher the root cause when the group fails.
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
        let turn = (!own).then(|| Served::wait(&self.core, self.core.turn.take()));
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
