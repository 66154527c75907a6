//! Requests as C uses them.

use crate::{
    boundary::{answer, status},
    errors::CFault,
    handles::{self, Used, comity_group, comity_request},
    raw::{self, Context},
    request::{self, RequestCell, comity_done_fn},
    types::{comity_call, comity_status},
};
use std::{
    ffi::c_void,
    time::{Duration, Instant},
};

/// Make a call in the background, in its turn among the group's calls: the turn is taken now.
///
/// @param call Read before the function returns, as are the counts that it points to. Its buffers must stay, and nobody else may write
/// them, until the request has ended, also when its handle is freed before.
/// @param out Gets the request, yours to free with comity_request_free().
// SAFETY: the name is this library's own.
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
        raw::put(out, handles::add::<comity_request>(request::start(&group, &call)?)?)
    })
}

/// Status of a request.
///
/// @return COMITY_PENDING while it is under way; then the status of its call, on every call of this function.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_test(request: *mut comity_request) -> comity_status {
    status(|| {
        let request = handles::find(request)?;
        request.home.check()?;
        request::status_of(&request.state)
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

/// Wait until a request has ended. It always does: at the latest at the limit of its call.
///
/// @param seconds Limit on the wait; less than 0: as long as it takes.
/// @return The status of the call; COMITY_PENDING where it is still under way after `seconds`, which harms nothing.
/// COMITY_ERR_ORDER in a callback.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_wait(request: *mut comity_request, seconds: f64) -> comity_status {
    status(|| {
        let request = handles::find(request)?;
        request.home.check()?;
        request::wait_any(&[&request.state], until(seconds)?)?;
        request::status_of(&request.state)
    })
}

/// Wait until one of several requests has ended.
///
/// @param requests `count` handles; NULL among them are passed over.
/// @param seconds Limit on the wait; less than 0: as long as it takes.
/// @param index Gets the place in `requests` of one that has ended; -1 where none has, or all are NULL.
/// @return The status of that call; COMITY_PENDING where none has ended after `seconds`; COMITY_OK where all are NULL.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_wait_any(
    requests: *const *mut comity_request,
    count: i32,
    seconds: f64,
    index: *mut i32,
) -> comity_status {
    status(|| {
        raw::put(index, -1)?;
        let n = usize::try_from(count).map_err(|_| CFault::misuse(format!("the count is {count}")))?;
        let all = raw::list("requests", requests, n)?.iter().enumerate().filter(|(_, r)| !r.is_null());
        let mut found: Vec<(usize, Used<comity_request>)> = Vec::new();
        for (at, request) in all {
            let request = handles::find(*request)?;
            request.home.check()?;
            found.push((at, request));
        }
        if found.is_empty() {
            return Ok(comity_status::COMITY_OK);
        }
        let states: Vec<&RequestCell> = found.iter().map(|(_, r)| &*r.state).collect();
        let Some(ended) = request::wait_any(&states, until(seconds)?)? else {
            return Ok(comity_status::COMITY_PENDING);
        };
        raw::put(index, found[ended].0 as i32)?;
        request::status_of(states[ended])
    })
}

/// Have a function called when a request has ended: once, on a thread of Comity's, or at once on this thread where it has ended already.
///
/// @param done Must be short. It must not wait for requests and must not free or close groups; comity_request_test() may be asked.
/// @param context Given to it. It must stay until then, also when the request's handle is freed before.
// SAFETY: the name is this library's own.
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
        request.state.then(done, Context(context));
        Ok(())
    })
}

/// Free a request. Its call, if it is under way, goes on, since other ranks count on it; its buffers must stay until it has ended.
/// NULL is allowed.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_request_free(request: *mut comity_request) -> comity_status {
    answer(|| if request.is_null() { Ok(()) } else { handles::free(request) })
}
