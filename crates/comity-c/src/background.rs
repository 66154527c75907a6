//! Calls in the background: what waits for them, and what is told of their end.

use crate::{
    errors::CFault,
    group::GroupHandle,
    job,
    raw::Context,
    types::{comity_call, comity_status},
};
use comity::tools::HomeProcess;
use std::{
    cell::Cell,
    ffi::c_void,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Function of yours for comity_request_on_done(). It must be short, must not wait for a request, and must not close or free a group.
/// Inside, comity_request_test() has the status of the call.
///
/// @param context Pointer that you gave.
pub type comity_done_fn = Option<extern "C" fn(context: *mut c_void)>;

/// Object behind a `comity_request`.
pub(crate) struct RequestHandle {
    pub(crate) state: Arc<RequestCell>,
    pub(crate) home: HomeProcess,
}

/// Shared by those who wait and the thread that works.
#[derive(Default)]
pub(crate) struct RequestCell {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    out: Option<Result<(), CFault>>,
    waiting: Vec<Arc<Bell>>,
    callbacks: Vec<(extern "C" fn(*mut c_void), Context)>,
}

/// Rings when one of the requests that somebody waits for has ended.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    rings: Condvar,
}

thread_local! {
    /// True while this thread is in a callback, which holds its group's turn.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in a callback. It may be a group's own, which ends with the group.
pub(crate) fn is_in_callback() -> bool {
    TOLD.get()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RequestCell {
    /// Result, if it has ended.
    pub(crate) fn out(&self) -> Option<Result<(), CFault>> {
        lock(&self.inner).out.clone()
    }

    fn set(&self, out: Result<(), CFault>) {
        let mut inner = lock(&self.inner);
        if inner.out.is_some() {
            return;
        }
        inner.out = Some(out);
        let waiting = std::mem::take(&mut inner.waiting);
        let callbacks = std::mem::take(&mut inner.callbacks);
        drop(inner);
        for bell in waiting {
            *lock(&bell.rung) = true;
            bell.rings.notify_all();
        }
        callbacks.into_iter().for_each(|(callback, context)| tell(callback, context));
    }

    /// Call this when it has ended: now, if it has.
    pub(crate) fn then(&self, callback: extern "C" fn(*mut c_void), context: Context) {
        let mut inner = lock(&self.inner);
        if inner.out.is_none() {
            inner.callbacks.push((callback, context));
            return;
        }
        drop(inner);
        tell(callback, context);
    }
}

fn tell(callback: extern "C" fn(*mut c_void), context: Context) {
    let before = TOLD.replace(true);
    callback(context.0);
    TOLD.set(before);
}

/// Ends a request, also where its work never runs.
struct RequestEnd(Arc<RequestCell>);

impl Drop for RequestEnd {
    fn drop(&mut self) {
        self.0.set(Err(CFault::os("background work", "it could not be run: no thread, or a panic")));
    }
}

/// Queue a call on its group's thread.
pub(crate) fn start(group: &GroupHandle, call: &comity_call) -> Result<RequestHandle, CFault> {
    let inner = group.limited(call.timeout)?;
    let job = job::checked(&inner, call)?;
    let state = Arc::<RequestCell>::default();
    let ending = RequestEnd(state.clone());
    inner
        .spawn(move |g| {
            ending.0.set(job.run(g).map_err(CFault::from));
            Ok(())
        })
        .detach();
    Ok(RequestHandle { state, home: group.home() })
}

/// Wait until one of these has ended; which, or none by `until`. `None` waits as long as the calls take.
pub(crate) fn wait_any(all: &[&RequestCell], until: Option<Instant>) -> Result<Option<usize>, CFault> {
    let ended = || all.iter().position(|s| lock(&s.inner).out.is_some());
    if let Some(index) = ended() {
        return Ok(Some(index));
    }
    if TOLD.get() {
        return Err(CFault::order());
    }
    let bell = Arc::<Bell>::default();
    for state in all {
        let mut inner = lock(&state.inner);
        if inner.out.is_some() {
            *lock(&bell.rung) = true;
            break;
        }
        inner.waiting.push(bell.clone());
    }
    let mut rung = lock(&bell.rung);
    while !*rung {
        let Some(until) = until else {
            // WAIT: background work: calls with deadlines
            rung = bell.rings.wait(rung).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // WAIT(left): background work, to the caller's limit
        rung = bell.rings.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(rung);
    for state in all {
        lock(&state.inner).waiting.retain(|b| !Arc::ptr_eq(b, &bell));
    }
    Ok(ended())
}

/// Status for C of a request that may have ended.
pub(crate) fn status_of(state: &RequestCell) -> Result<comity_status, CFault> {
    match state.out() {
        None => Ok(comity_status::COMITY_PENDING),
        Some(out) => out.map(|()| comity_status::COMITY_OK),
    }
}
