//! Errors as C sees them: a status, a sentence of this thread's last one, and an object with the rest.

use crate::{
    boundary::{answer, status},
    description,
    handles::{self, comity_error},
    raw,
    types::{comity_error_info, comity_status},
};
use comity::{Error, ErrorKind, Peer};
use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char},
    io, ptr,
    sync::Arc,
};

/// All that is known of one error.
#[derive(Debug, Default)]
pub(crate) struct ErrorRecord {
    pub(crate) status: comity_status,
    pub(crate) earlier: bool,
    pub(crate) fatal: bool,
    pub(crate) ranks: Vec<i32>,
    pub(crate) pid: i64,
    pub(crate) host: Option<CString>,
    pub(crate) text: CString,
    pub(crate) call: Option<CString>,
    pub(crate) peer_call: Option<CString>,
    pub(crate) differs: Option<CString>,
    pub(crate) timeout: f64,
}

/// An error on its way to C.
#[derive(Clone, Debug)]
pub(crate) struct CFault(Arc<ErrorRecord>);

thread_local! {
    /// The last one of this thread.
    static LAST: RefCell<Option<Arc<ErrorRecord>>> = const { RefCell::new(None) };
}

impl CFault {
    /// Makes a fault of this status, with this sentence.
    #[cold]
    fn new(status: comity_status, text: String, fatal: bool) -> Self {
        Self(Arc::new(ErrorRecord { status, fatal, text: description::text(text), ..ErrorRecord::default() }))
    }

    /// The caller broke a rule.
    #[cold]
    pub(crate) fn misuse(text: impl Into<String>) -> Self {
        Self::new(comity_status::COMITY_ERR_MISUSE, text.into(), false)
    }

    pub(crate) fn order() -> Self {
        Error::from(ErrorKind::Order).into()
    }

    #[cold]
    pub(crate) fn os(what: &str, message: &str) -> Self {
        Error::os(what, io::Error::other(message)).into()
    }

    #[cold]
    pub(crate) fn internal(text: &str) -> Self {
        Self::new(comity_status::COMITY_ERR_INTERNAL, text.to_owned(), true)
    }

    #[cold]
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Self::internal(&format!("a mistake in Comity: {said}; please report it"))
    }

    /// Keeps it as this thread's last error.
    #[cold]
    pub(crate) fn keep(self) -> comity_status {
        let status = self.0.status;
        // Where the thread is ending there is no place for it any more.
        let _ = LAST.try_with(|last| last.replace(Some(self.0)));
        status
    }

    #[cfg(test)]
    pub(crate) fn record(&self) -> Arc<ErrorRecord> {
        self.0.clone()
    }
}

impl From<Error> for CFault {
    #[cold]
    fn from(e: Error) -> Self {
        (&e).into()
    }
}

impl From<&Error> for CFault {
    #[cold]
    fn from(e: &Error) -> Self {
        let root = e.root();
        let ranks = root.ranks().into_iter().map(|r| i32::try_from(r).unwrap_or(i32::MAX)).collect();
        let peer = description::peer(root);
        let [call, peer_call] = description::calls(root);
        Self(Arc::new(ErrorRecord {
            status: description::kind(root),
            earlier: !ptr::eq(e, root),
            fatal: e.is_fatal(),
            ranks,
            pid: peer.and_then(|p| p.pid).map_or(0, i64::from),
            host: peer.and_then(host),
            text: description::text(e.to_string()),
            call,
            peer_call,
            differs: description::differs(root),
            timeout: description::timeout(root),
        }))
    }
}

/// The name of a member's host.
pub(crate) fn host(peer: &Peer) -> Option<CString> {
    peer.host.as_deref().map(|h| description::text(h.to_owned()))
}

/// Get the sentence of this thread's last error: what happened, to whom, and what to do next. A function that succeeds leaves it.
///
/// @return Text that is valid until the next function of Comity fails on this thread, or this thread calls comity_error_take(). "" if
/// there was no error.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ref().map(|e| e.text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Take the last error of this thread as an object. comity_error_get() has its details, on any thread.
///
/// Call this on the thread on which the function failed, before another one fails there.
///
/// @param out Gets the error, or NULL if there is none. Free it with comity_error_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_error_take(out: *mut *mut comity_error) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let last = LAST.try_with(|last| last.take()).ok().flatten();
        let handle = last.map(handles::add::<comity_error>).transpose()?;
        raw::put(out, handle.unwrap_or(ptr::null_mut()))
    })
}

/// Get the details of an error.
///
/// @param out Set its `size` to sizeof(comity_error_info) before. Its pointers are valid until comity_error_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_error_get(error: *mut comity_error, out: *mut comity_error_info) -> comity_status {
    let text = |t: &Option<CString>| t.as_ref().map_or(ptr::null(), |t| t.as_ptr());
    answer(|| {
        let e = handles::find(error)?;
        let info = comity_error_info {
            size: size_of::<comity_error_info>(),
            status: e.status,
            earlier: e.earlier.into(),
            fatal: e.fatal.into(),
            rank: e.ranks.first().copied().unwrap_or(-1),
            pid: e.pid,
            host: text(&e.host),
            text: e.text.as_ptr(),
            call: text(&e.call),
            peer_call: text(&e.peer_call),
            differs: text(&e.differs),
            ranks: e.ranks.as_ptr(),
            rank_count: e.ranks.len(),
            timeout: e.timeout,
        };
        raw::put_struct("comity_error_info", out, info)
    })
}

/// Free an error. NULL is allowed.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_error_free(error: *mut comity_error) -> comity_status {
    status(|| {
        if !error.is_null() {
            handles::free(error)?;
        }
        Ok(comity_status::COMITY_OK)
    })
}
