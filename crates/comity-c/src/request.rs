//! Calls in the background, as C uses them.

use crate::{
    errors::{CFault, answer, status},
    group::GroupHandle,
    handles::{self, HeldHandle, comity_group, comity_request},
    job,
    raw::{self, Context},
    types::{comity_call, comity_status},
};
use comity::tools::{ForeignRequest, HomeProcess};
use std::{
    cell::Cell,
    ffi::c_void,
    sync::Arc,
    time::{Duration, Instant},
};

/// Function of yours for comity_request_on_done(). It must be short, must not wait for a request, and must not close or free a group.
/// Inside, comity_request_test() has the status of the call.
///
/// @param context Pointer that you gave.
pub type comity_done_fn = Option<extern "C" fn(context: *mut c_void)>;

pub(crate) struct RequestHandle {
    pub(crate) end: Arc<ForeignRequest>,
    pub(crate) home: HomeProcess,
}

thread_local! {
    /// True while this thread is in a callback, which holds its group's turn.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in a callback. It may be a group's own, which ends with the group.
pub(crate) fn is_in_callback() -> bool {
    TOLD.get()
}

/// Have this called when the request has ended: now, if it has.
pub(crate) fn on_end(request: &ForeignRequest, callback: extern "C" fn(*mut c_void), context: Context) {
    request.then(move |_| {
        let context = context;
        let before = TOLD.replace(true);
        callback(context.0);
        TOLD.set(before);
    });
}

/// Queue a call on its group's thread.
pub(crate) fn start(group: &GroupHandle, call: &comity_call) -> Result<RequestHandle, CFault> {
    let inner = group.limited(call.timeout)?;
    let job = job::checked(&inner, call)?;
    let (end, ending) = ForeignRequest::begin();
    inner
        .spawn(move |g| {
            ending.set(job.run(g));
            Ok(())
        })
        .detach();
    Ok(RequestHandle { end, home: group.home() })
}

/// Wait until one of these has ended; which, or none by `until`. A callback cannot wait.
fn wait_any(all: &[&ForeignRequest], until: Option<Instant>) -> Result<Option<usize>, CFault> {
    if TOLD.get() {
        let ended = ForeignRequest::wait_any(all, Some(Instant::now()));
        return ended.map(Some).ok_or_else(CFault::order);
    }
    Ok(ForeignRequest::wait_any(all, until))
}

/// Status for C of a request that may have ended.
fn status_of(request: &ForeignRequest) -> Result<comity_status, CFault> {
    match request.out() {
        None => Ok(comity_status::COMITY_PENDING),
        Some(out) => Ok(out.map(|()| comity_status::COMITY_OK)?),
    }
}

/// Start a call in the background. Its place among the group's calls is that of this function.
///
/// @param call Copied, and so are the counts that it points to. Leave its buffers alone until the request has ended, also if you free the
/// request before.
/// @param out Gets the request. Free it with comity_request_free().
#[unsafe(no_mangle)]
pub extern "C" fn comity_start(
    group: *mut comity_group,
    call: *const comity_call,
    out: *mut *mut comity_request,
) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let group = handles::find(group)?;
        let call = raw::take_struct("comity_call", call)?;
        raw::put(out, handles::add::<comity_request>(start(&group, &call)?)?)
    })
}

/// Get the status of a request.
///
/// @return COMITY_PENDING while it is under way; then the status of its call, each time.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_test(request: *mut comity_request) -> comity_status {
    status(|| {
        let request = handles::find(request)?;
        request.home.check()?;
        status_of(&request.end)
    })
}

/// When a wait of so many seconds ends; `None` for one without an end of its own.
fn until(seconds: f64) -> Result<Option<Instant>, CFault> {
    if seconds.is_nan() {
        return Err(CFault::misuse("the seconds to wait are not a number"));
    }
    if seconds < 0.0 {
        return Ok(None);
    }
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Ok(Instant::now().checked_add(limit))
}

/// Wait until a request has ended: at the latest at the time limit of its call.
///
/// @param timeout Seconds to wait at most; negative or INFINITY: until the end.
/// @return Status of the call; COMITY_PENDING if it is still under way, which harms nothing; COMITY_ERR_ORDER in a callback.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_wait(request: *mut comity_request, timeout: f64) -> comity_status {
    status(|| {
        let request = handles::find(request)?;
        request.home.check()?;
        wait_any(&[&request.end], until(timeout)?)?;
        status_of(&request.end)
    })
}

/// Wait until one of several requests has ended.
///
/// @param requests Array of `count` handles. NULL is allowed in it.
/// @param timeout Seconds to wait at most; negative or INFINITY: until one ends.
/// @param index Gets the place in `requests` of one that has ended; -1 if none has, or all are NULL.
/// @return Status of that request's call; COMITY_PENDING if none has ended; COMITY_OK if all are NULL.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_wait_any(
    requests: *const *mut comity_request,
    count: i32,
    timeout: f64,
    index: *mut i32,
) -> comity_status {
    status(|| {
        raw::put(index, -1)?;
        let n = usize::try_from(count).map_err(|_| CFault::misuse(format!("the count is {count}")))?;
        let all = raw::list("requests", requests, n)?.iter().enumerate().filter(|(_, r)| !r.is_null());
        let mut found: Vec<(usize, HeldHandle<comity_request>)> = Vec::new();
        for (at, request) in all {
            let request = handles::find(*request)?;
            request.home.check()?;
            found.push((at, request));
        }
        if found.is_empty() {
            return Ok(comity_status::COMITY_OK);
        }
        let states: Vec<&ForeignRequest> = found.iter().map(|(_, r)| &*r.end).collect();
        let Some(ended) = wait_any(&states, until(timeout)?)? else {
            return Ok(comity_status::COMITY_PENDING);
        };
        raw::put(index, found[ended].0 as i32)?;
        status_of(states[ended])
    })
}

/// Call a function when a request has ended: once, on a thread of Comity's, or at once on this thread if it has ended already.
///
/// @param done Function of yours: see comity_done_fn.
/// @param context Passed to `done`. It must stay valid until then, also if you free the request before.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_on_done(
    request: *mut comity_request,
    done: comity_done_fn,
    context: *mut c_void,
) -> comity_status {
    answer(|| {
        let request = handles::find(request)?;
        request.home.check()?;
        let done = done.ok_or_else(|| CFault::misuse("done is NULL"))?;
        on_end(&request.end, done, Context(context));
        Ok(())
    })
}

/// Free a request. NULL is allowed. A call under way goes on, since other ranks count on it: leave its buffers alone until it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_free(request: *mut comity_request) -> comity_status {
    answer(|| if request.is_null() { Ok(()) } else { handles::free(request) })
}
