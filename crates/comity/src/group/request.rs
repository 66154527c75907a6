//! Work that runs in its turn in the background.

mod future;

use super::{Core, Group, TURN, TurnGuard};
use crate::{
    Error, ErrorKind, Result, lanes::carry_alone, settings::MAX_TIMEOUT, sync::lock, sys::thread_number,
};
use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, atomic::Ordering, mpsc},
    task::Waker,
    thread,
    time::{Duration, Instant},
};

/// A piece of background work.
pub(super) type BackgroundTask = Box<dyn FnOnce() + Send>;

/// The thread that runs a group's background work. It ends when the last handle has gone and no work is left. It is not
/// joined: a process that exits does not wait for peers.
pub(super) fn start_worker() -> Result<mpsc::Sender<BackgroundTask>> {
    let (tx, rx) = mpsc::channel::<BackgroundTask>();
    thread::Builder::new()
        .name("comity".into())
        .spawn(move || {
            carry_alone();
            rx.into_iter().for_each(|job| job());
        })
        .map_err(|e| Error::os("starting the group's thread", e))?;
    Ok(tx)
}

/// Marks this thread as the one that holds a group's turn.
struct Mark<'a> {
    core: &'a Core,
    before: (*const Core, u64),
}

impl<'a> Mark<'a> {
    fn set(core: &'a Arc<Core>, ticket: u64, asker: usize) -> Self {
        core.asker.store(asker, Ordering::Relaxed);
        core.in_background.store(true, Ordering::Relaxed);
        Self { core, before: TURN.replace((Arc::as_ptr(core), ticket)) }
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        TURN.set(self.before);
        self.core.in_background.store(false, Ordering::Relaxed);
        self.core.asker.store(0, Ordering::Relaxed);
    }
}

/// Runs borrowed work in the background. [`Group::scope`] gives it to you.
///
/// ```
/// # use comity::{Group, ReduceOp};
/// # let g = Group::single();
/// let mut a = [1f32; 8];
/// g.scope(|s| s.spawn(|g| g.all_reduce(&mut a, ReduceOp::Sum)).wait())?;
/// # Ok::<(), comity::Error>(())
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    group: &'env Group,
    threads: &'scope thread::Scope<'scope, 'env>,
    jobs: Mutex<Option<ScopeWorker<'scope>>>,
}

type ScopeWorker<'scope> = mpsc::Sender<Box<dyn FnOnce() + Send + 'scope>>;

/// Work under way on a group's thread: it ends with an `R` or an `E`.
///
/// Wait for it with [`wait`](Self::wait), or in a task with `.await`.
///
/// ```
/// # let g = comity::Group::single();
/// let (first, second) = (g.spawn(|g| g.barrier().map(|()| 42)), g.spawn(|g| g.barrier()));
/// println!("done already: {}", first.is_done());
/// assert_eq!(first.wait()?, 42);
/// match second.wait_for(std::time::Duration::from_secs(60)) {
///     Ok(result) => result?,
///     Err(pending) => pending.detach(), // still under way after a minute
/// }
/// # Ok::<(), comity::Error>(())
/// ```
#[must_use = "wait for the result, or `detach` to let the work finish unobserved"]
pub struct Request<R, E = Error> {
    slot: Arc<Slot<R, E>>,
    /// Address of the group's core, to refuse a wait that could never end.
    core: usize,
    ticket: u64,
}

struct Slot<R, E> {
    out: Mutex<Option<Outcome<R, E>>>,
    done: Condvar,
    /// Waker of the task that waits for it, if any.
    waker: Mutex<Option<Waker>>,
}

type Outcome<R, E> = Result<Result<R, E>, Box<dyn Any + Send>>;

impl<R, E> Slot<R, E> {
    fn new(out: Option<Outcome<R, E>>) -> Self {
        Self { out: Mutex::new(out), done: Condvar::new(), waker: Mutex::new(None) }
    }

    fn set(&self, out: Outcome<R, E>) {
        *lock(&self.out) = Some(out);
        self.done.notify_all();
        // Outside the lock: what it runs is the executor's.
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    pub(super) fn new(group: &'env Group, threads: &'scope thread::Scope<'scope, 'env>) -> Self {
        Self { group, threads, jobs: Mutex::new(None) }
    }

    /// Run `f` on the scope's thread, in its turn among the group's calls; otherwise as [`Group::spawn`].
    pub fn spawn<R: Send + 'scope>(&self, f: impl FnOnce(&Group) -> Result<R> + Send + 'scope) -> Request<R> {
        self.spawn_as(f)
    }

    /// Spawns as [`spawn`](Self::spawn), for work with an error type of its own. See [`Group::spawn_as`].
    ///
    /// ```
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// type Fault = Box<dyn std::error::Error + Send + Sync>;
    /// let mut a = vec![1f32; 8];
    /// g.scope(|s| {
    ///     s.spawn_as(|g| -> Result<(), Fault> {
    ///         a[0] = "2".parse()?;
    ///         Ok(g.all_reduce(&mut a, ReduceOp::Sum)?)
    ///     })
    ///     .wait()
    /// })?;
    /// assert_eq!(a[0], 2.0);
    /// # Ok::<(), Fault>(())
    /// ```
    pub fn spawn_as<R: Send + 'scope, E: From<Error> + Send + 'scope>(
        &self,
        f: impl FnOnce(&Group) -> Result<R, E> + Send + 'scope,
    ) -> Request<R, E> {
        // In background work of the same group the turn is this thread's already, and later ones come only after it.
        if self.group.in_own_background() {
            return Request::ended(catch_unwind(AssertUnwindSafe(|| f(self.group))));
        }
        // As in `Group::spawn`: tickets and jobs queue in the same order.
        let mut worker = lock(&self.jobs);
        if worker.is_none() {
            match self.start_worker() {
                Ok(w) => *worker = Some(w),
                Err(e) => return Request::ended(Ok(Err(e.into()))),
            }
        }
        let (request, job) = Request::begin(self.group, f);
        if let Some(w) = &*worker {
            let _ = w.send(Box::new(job));
        }
        request
    }

    fn start_worker(&self) -> Result<ScopeWorker<'scope>> {
        let (tx, rx) = mpsc::channel::<Box<dyn FnOnce() + Send + 'scope>>();
        thread::Builder::new()
            .name("comity-scope".into())
            .spawn_scoped(self.threads, move || rx.into_iter().for_each(|job| job()))
            .map_err(|e| Error::os("starting the scope's thread", e))?;
        Ok(tx)
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("group", self.group).finish_non_exhaustive()
    }
}

impl<R, E> Request<R, E> {
    /// The two halves of a piece of work: what is waited for, and what is run.
    pub(super) fn begin<'a>(
        group: &Group,
        f: impl FnOnce(&Group) -> Result<R, E> + Send + 'a,
    ) -> (Self, impl FnOnce() + Send + 'a)
    where
        R: Send + 'a,
        E: Send + 'a,
    {
        let slot = Arc::new(Slot::new(None));
        let ticket = group.core.turn.take();
        let asker = thread_number();
        let request = Self { slot: slot.clone(), core: Arc::as_ptr(&group.core) as usize, ticket };
        let group = group.clone();
        let job = move || {
            let core = group.core.clone();
            let out = {
                // WAIT: an earlier call of this group, which has a deadline
                let _turn = TurnGuard::wait(&core, ticket);
                let _mark = Mark::set(&core, ticket, asker);
                catch_unwind(AssertUnwindSafe(|| f(&group)))
            };
            drop(group);
            slot.set(out);
        };
        (request, job)
    }

    /// Returns true if [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        lock(&self.slot.out).is_some()
    }

    /// Block until the work has ended. A panic in it goes on here.
    ///
    /// # Errors
    /// The error that the work returned; [`ErrorKind::Order`] in background work of the same group when this request comes later.
    pub fn wait(self) -> Result<R, E>
    where
        E: From<Error>,
    {
        let mut out = lock(&self.slot.out);
        loop {
            if let Some(out) = out.take() {
                return out.unwrap_or_else(|p| resume_unwind(p));
            }
            if self.would_wait_for_itself() {
                return Err(Error::from(ErrorKind::Order).into());
            }
            // WAIT: background work: calls with deadlines, and what the user's closure does
            out = self.slot.done.wait(out).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Waits as [`wait`](Self::wait); gives the request back when it is not done within `limit`.
    ///
    /// # Errors
    /// The request itself, still under way.
    pub fn wait_for(self, limit: Duration) -> Result<Result<R, E>, Self>
    where
        E: From<Error>,
    {
        let end = Instant::now() + limit.min(MAX_TIMEOUT);
        {
            let mut out = lock(&self.slot.out);
            loop {
                if let Some(out) = out.take() {
                    return Ok(out.unwrap_or_else(|p| resume_unwind(p)));
                }
                if self.would_wait_for_itself() {
                    return Ok(Err(Error::from(ErrorKind::Order).into()));
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                // WAIT(left): background work, to the caller's limit
                out = self.slot.done.wait_timeout(out, left).unwrap_or_else(|e| e.into_inner()).0;
            }
        }
        Err(self)
    }

    /// Let the work finish unobserved; what it returns is dropped.
    pub fn detach(self) {}

    /// A request that has ended already.
    pub(super) fn ended(out: Outcome<R, E>) -> Self {
        let slot = Arc::new(Slot::new(Some(out)));
        Self { slot, core: 0, ticket: 0 }
    }

    fn would_wait_for_itself(&self) -> bool {
        let (core, held) = TURN.get();
        core as usize == self.core && self.ticket >= held
    }
}

impl<R, E> fmt::Debug for Request<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("is_done", &self.is_done()).finish()
    }
}
