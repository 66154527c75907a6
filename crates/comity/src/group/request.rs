//! Work that runs in its turn in the background.

use super::{Core, Group, TURN, TurnGuard};
use crate::{
    Error, ErrorKind, Result, lanes::carry_alone, settings::MAX_TIMEOUT, sync::lock, sys::thread_number,
};
use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, atomic::Ordering, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

/// Way of background work to the thread that runs it.
pub(super) type Jobs<'a> = mpsc::Sender<Box<dyn FnOnce() + Send + 'a>>;

/// Queue a piece of work for a thread that starts with the first.
pub(super) fn queue<'a, R: Send + 'a, E: From<Error> + Send + 'a>(
    group: &Group,
    jobs: &Mutex<Option<Jobs<'a>>>,
    start: impl FnOnce() -> Result<Jobs<'a>>,
    f: impl FnOnce(&Group) -> Result<R, E> + Send + 'a,
) -> Request<R, E> {
    // Tickets and jobs must queue in the same order: one thread takes them one by one.
    let mut jobs = lock(jobs);
    if jobs.is_none() {
        match start() {
            Ok(started) => *jobs = Some(started),
            Err(e) => return Request::ended(Ok(Err(e.into()))),
        }
    }
    let (request, job) = Request::begin(group, f);
    if let Some(jobs) = &*jobs {
        // The thread lives as long as the group does, or the scope, which keeps it alive.
        let _ = jobs.send(Box::new(job));
    }
    request
}

/// The thread that runs a group's background work. It ends when the last handle has gone and no work is left. It is not
/// joined: a process that exits does not wait for peers.
pub(super) fn start_worker() -> Result<Jobs<'static>> {
    let (tx, rx): (Jobs<'_>, _) = mpsc::channel();
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
    jobs: Mutex<Option<Jobs<'scope>>>,
}

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
        queue(self.group, &self.jobs, || self.start_worker(), f)
    }

    fn start_worker(&self) -> Result<Jobs<'scope>> {
        let (tx, rx): (Jobs<'_>, _) = mpsc::channel();
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
    fn begin<'a>(
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
            if let Some(end) = self.end(&mut out) {
                return end;
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
        let until = Instant::now() + limit.min(MAX_TIMEOUT);
        let mut out = lock(&self.slot.out);
        loop {
            if let Some(end) = self.end(&mut out) {
                return Ok(end);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // WAIT(left): background work, to the caller's limit
            out = self.slot.done.wait_timeout(out, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(out);
        Err(self)
    }

    /// Let the work finish unobserved; what it returns is dropped.
    pub fn detach(self) {}

    /// A request that has ended already.
    pub(super) fn ended(out: Outcome<R, E>) -> Self {
        let slot = Arc::new(Slot::new(Some(out)));
        Self { slot, core: 0, ticket: 0 }
    }

    /// Return of a wait now, if there is any: the end, or that this thread would wait for itself.
    fn end(&self, out: &mut Option<Outcome<R, E>>) -> Option<Result<R, E>>
    where
        E: From<Error>,
    {
        if let Some(out) = out.take() {
            return Some(out.unwrap_or_else(|p| resume_unwind(p)));
        }
        let (core, held) = TURN.get();
        let is_own = core as usize == self.core && self.ticket >= held;
        is_own.then(|| Err(Error::from(ErrorKind::Order).into()))
    }
}

impl<R, E> fmt::Debug for Request<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("is_done", &self.is_done()).finish()
    }
}

/// A request can be awaited, in any runtime. The group's thread wakes the task when the work has ended; no thread of the runtime
/// waits. The work runs whether it is polled or not: dropping the future lets it finish unobserved, as [`detach`](Request::detach)
/// does, since other ranks count on it.
///
/// ```
/// use comity::{Group, ReduceOp};
/// use std::{
///     future::Future,
///     pin::pin,
///     sync::Arc,
///     task::{Context, Poll, Wake},
///     thread::{self, Thread},
/// };
///
/// /// The smallest runtime: one task, whose thread sleeps until it is woken.
/// fn block_on<F: Future>(task: F) -> F::Output {
///     struct Unpark(Thread);
///     impl Wake for Unpark {
///         fn wake(self: Arc<Self>) {
///             self.0.unpark();
///         }
///     }
///     let waker = Arc::new(Unpark(thread::current())).into();
///     let mut task = pin!(task);
///     loop {
///         match task.as_mut().poll(&mut Context::from_waker(&waker)) {
///             Poll::Ready(out) => return out,
///             Poll::Pending => thread::park(),
///         }
///     }
/// }
///
/// let g = Group::single();
/// let sum = block_on(async {
///     let mut x = vec![1f32; 1024];
///     let sum = g.spawn(move |g| {
///         g.all_reduce(&mut x, ReduceOp::Sum)?;
///         Ok(x)
///     });
///     // ... other tasks run meanwhile ...
///     sum.await
/// })?;
/// assert_eq!(sum[0], 1.0);
/// # Ok::<(), comity::Error>(())
/// ```
///
/// It ends as [`wait`](Request::wait) does: with the work's result, with [`ErrorKind::Order`] in background work of the same group when
/// this request comes later, or with the work's panic. Whoever polls it after its end waits for ever.
impl<R, E: From<Error>> Future for Request<R, E> {
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut out = lock(&self.slot.out);
        if let Some(end) = self.end(&mut out) {
            return Poll::Ready(end);
        }
        // While the result's lock is held: the work's end comes before, and was seen, or after, and wakes this task.
        let mut waker = lock(&self.slot.waker);
        match &mut *waker {
            Some(w) => w.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::atomic::AtomicUsize, task::Wake};

    const LONG: Duration = Duration::from_secs(20);

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll<R>(request: &mut Request<R>, waker: &Arc<Count>) -> Poll<Result<R>> {
        Pin::new(request).poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
    }

    fn until_woken(waker: &Count) {
        let until = Instant::now() + LONG;
        while waker.0.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < until, "nobody woke the task");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_last_task_that_polled_is_woken_once() {
        let g = Group::single();
        let (go, wait) = mpsc::channel();
        let mut request = g.spawn(move |_| Ok(wait.recv_timeout(LONG).is_ok()));
        let first = Arc::default();
        let last = Arc::default();
        assert!(poll(&mut request, &first).is_pending() && poll(&mut request, &last).is_pending());
        go.send(()).unwrap();
        until_woken(&last);
        assert!(matches!(poll(&mut request, &last), Poll::Ready(Ok(true))));
        assert_eq!((first.0.load(Ordering::SeqCst), last.0.load(Ordering::SeqCst)), (0, 1));
    }

    #[test]
    fn a_future_that_is_dropped_lets_the_work_finish() {
        let g = Group::single();
        let (go, wait) = mpsc::channel::<()>();
        let (done, end) = mpsc::channel();
        let mut request = g.spawn(move |_| {
            let _ = wait.recv_timeout(LONG);
            let _ = done.send(());
            Ok(())
        });
        assert!(poll(&mut request, &Arc::default()).is_pending());
        drop(request);
        go.send(()).unwrap();
        end.recv_timeout(LONG).unwrap();
        g.barrier().unwrap();
    }

    #[test]
    fn work_that_awaits_what_comes_after_it_is_told() {
        let g = Group::single();
        let (give, take) = mpsc::channel::<Request<()>>();
        let first = g.spawn(move |_| {
            let mut later = take.recv_timeout(LONG).unwrap();
            let out = poll(&mut later, &Arc::default());
            Ok(matches!(out, Poll::Ready(Err(e)) if *e.kind() == ErrorKind::Order))
        });
        give.send(g.spawn(|_| Ok(()))).unwrap();
        assert!(first.wait().unwrap());
    }
}
