//! Errors as C sees them: a status, a sentence of this thread's last one, and an object with the rest. The guards around each function of the
//! interface make them: panics end there.

use crate::{
    handles::{self, comity_error},
    raw,
    types::{self, DTypeNumber, ReduceNumber, StatusNumber, comity_error_info, comity_status},
};
use comity::{Error, ErrorKind, Peer};
use std::{
    any::Any,
    cell::RefCell,
    ffi::{CStr, CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::Arc,
};

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
    static LAST: RefCell<Option<Arc<ErrorRecord>>> = const { RefCell::new(None) };
}

impl CFault {
    #[cold]
    fn new(status: comity_status, text: String, fatal: bool) -> Self {
        Self(Arc::new(ErrorRecord { status, fatal, text: plain(text), ..ErrorRecord::default() }))
    }

    #[cold]
    pub(crate) fn misuse(text: impl Into<String>) -> Self {
        Self::new(comity_status::COMITY_ERR_MISUSE, text.into(), false)
    }

    pub(crate) fn order() -> Self {
        Error::from(ErrorKind::Order).into()
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
        let peer = peer(root);
        let [call, peer_call] = calls(root);
        Self(Arc::new(ErrorRecord {
            status: kind(root),
            earlier: !ptr::eq(e, root),
            fatal: e.is_fatal(),
            ranks,
            pid: peer.and_then(|p| p.pid).map_or(0, i64::from),
            host: peer.and_then(host),
            text: plain(e.to_string()),
            call,
            peer_call,
            differs: differs(root),
            timeout: timeout(root),
        }))
    }
}

/// The name of a member's host.
pub(crate) fn host(peer: &Peer) -> Option<CString> {
    peer.host.as_deref().map(|h| plain(h.to_owned()))
}

/// A text without NUL in it.
pub(crate) fn plain(mut text: String) -> CString {
    text.retain(|c| c != '\0');
    CString::new(text).unwrap_or_default()
}

/// The status of a first failure.
fn kind(e: &Error) -> comity_status {
    match e.kind() {
        ErrorKind::Misuse { .. } => comity_status::COMITY_ERR_MISUSE,
        ErrorKind::Config(_) => comity_status::COMITY_ERR_CONFIG,
        ErrorKind::Unavailable { .. } => comity_status::COMITY_ERR_UNAVAILABLE,
        ErrorKind::Order => comity_status::COMITY_ERR_ORDER,
        ErrorKind::Join(_) => comity_status::COMITY_ERR_JOIN,
        ErrorKind::Mismatch { .. } => comity_status::COMITY_ERR_MISMATCH,
        ErrorKind::Timeout { .. } => comity_status::COMITY_ERR_TIMEOUT,
        ErrorKind::PeerLost { .. } => comity_status::COMITY_ERR_PEER_LOST,
        ErrorKind::Aborted { .. } => comity_status::COMITY_ERR_ABORTED,
        ErrorKind::Library { .. } => comity_status::COMITY_ERR_LIBRARY,
        ErrorKind::Os { .. } => comity_status::COMITY_ERR_OS,
        ErrorKind::Closed => comity_status::COMITY_ERR_CLOSED,
        ErrorKind::Forked { .. } => comity_status::COMITY_ERR_FORKED,
        _ => comity_status::COMITY_ERR_INTERNAL,
    }
}

/// The member at fault.
fn peer(e: &Error) -> Option<&Peer> {
    match e.kind() {
        // Where it gave up on others' account they are at fault, and their hosts are not known.
        ErrorKind::PeerLost { peer, because_of, .. } => because_of.is_empty().then_some(peer),
        ErrorKind::Mismatch { peer, .. } | ErrorKind::Aborted { by: peer, .. } => Some(peer),
        ErrorKind::Timeout { waiting_for, .. } => waiting_for.first(),
        _ => None,
    }
}

/// This rank's call, and the other's.
fn calls(e: &Error) -> [Option<CString>; 2] {
    let words = |call: &dyn ToString| Some(plain(call.to_string()));
    match e.kind() {
        ErrorKind::Mismatch { ours, theirs, .. } => [words(ours), words(theirs)],
        ErrorKind::Timeout { call, .. } => [words(call), None],
        ErrorKind::PeerLost { call: Some(call), .. } | ErrorKind::Aborted { call: Some(call), .. } => {
            [words(call), None]
        }
        ErrorKind::Misuse { op, .. } => [words(op), None],
        _ => [None, None],
    }
}

fn differs(e: &Error) -> Option<CString> {
    match e.kind() {
        ErrorKind::Mismatch { differs, .. } => Some(plain((*differs).to_owned())),
        _ => None,
    }
}

fn timeout(e: &Error) -> f64 {
    match e.kind() {
        ErrorKind::Timeout { after, .. } => after.as_secs_f64(),
        _ => 0.0,
    }
}

/// Get the sentence of this thread's last error: what happened, to whom, and what to do next. A function that succeeds leaves it.
///
/// @return Text that is valid until the next function of Comity fails on this thread, or this thread calls comity_error_take(). "" if
/// there was no error.
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
#[unsafe(no_mangle)]
pub extern "C" fn comity_error_free(error: *mut comity_error) -> comity_status {
    answer(|| if error.is_null() { Ok(()) } else { handles::free(error) })
}

const STATUSES: [&CStr; 16] = [
    c"ok",
    c"pending",
    c"misuse",
    c"config",
    c"unavailable",
    c"order",
    c"join",
    c"mismatch",
    c"timeout",
    c"peer lost",
    c"aborted",
    c"library",
    c"os",
    c"closed",
    c"forked",
    c"internal",
];

const DTYPES: [&CStr; 14] = [
    c"bool", c"u8", c"u16", c"u32", c"u64", c"i8", c"i16", c"i32", c"i64", c"f16", c"bf16", c"f32", c"f64",
    c"c64",
];

const REDUCTIONS: [&CStr; 8] = [c"sum", c"product", c"min", c"max", c"avg", c"and", c"or", c"xor"];

fn name(all: &[&'static CStr], n: u32) -> *const c_char {
    all.get(n as usize).map_or(ptr::null(), |t| t.as_ptr())
}

/// Get the name of a status, such as "peer lost".
///
/// @return Text that stays valid; NULL if there is no such status.
#[unsafe(no_mangle)]
pub extern "C" fn comity_status_name(status: StatusNumber) -> *const c_char {
    name(&STATUSES, status)
}

/// Get the name of a type, such as "bf16".
///
/// @return Text that stays valid; NULL if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn comity_dtype_name(dtype: DTypeNumber) -> *const c_char {
    name(&DTYPES, dtype)
}

/// Get the name of a reduction, such as "sum".
///
/// @return Text that stays valid; NULL if there is no such reduction.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce_op_name(reduce: ReduceNumber) -> *const c_char {
    name(&REDUCTIONS, reduce)
}

/// Get the size of one element in bytes.
///
/// @return 0 if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn comity_dtype_size(dtype: DTypeNumber) -> usize {
    types::dtype(dtype).map_or(0, comity::DType::size)
}

/// Find out whether a reduction is defined on a type.
///
/// @return 1 if it is, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn comity_dtype_supports(dtype: DTypeNumber, reduce: ReduceNumber) -> i32 {
    match (types::dtype(dtype), types::reduce_op(reduce)) {
        (Ok(dtype), Ok(op)) => dtype.supports(op).into(),
        _ => 0,
    }
}

/// Get the version of the library as a number: major * 10000 + minor * 100 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn comity_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    let minor = env!("CARGO_PKG_VERSION_MINOR");
    part(major) * 10_000 + part(minor) * 100 + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// Get the version of the library as text, such as "0.1.0".
///
/// @return Text that stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn comity_version_text() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Do `f`; its error, or that of its panic, is what this thread's caller can ask for next.
#[inline]
pub(crate) fn answer(f: impl FnOnce() -> Result<(), CFault>) -> comity_status {
    status(|| f().map(|()| comity_status::COMITY_OK))
}

/// The same, where there is more than one way to go well.
#[inline]
pub(crate) fn status(f: impl FnOnce() -> Result<comity_status, CFault>) -> comity_status {
    // What is behind handles stays usable after a panic: groups fail by themselves, and locks are taken over.
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(status)) => status,
        Ok(Err(fault)) => fault.keep(),
        Err(panic) => CFault::panicked(&*panic).keep(),
    }
}

/// The same for a function that answers a value; `wrong` where there is none.
#[inline]
pub(crate) fn value<T>(wrong: T, f: impl FnOnce() -> Result<T, CFault>) -> T {
    let mut value = wrong;
    answer(|| {
        value = f()?;
        Ok(())
    });
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use comity::{DType, ReduceOp};

    #[test]
    fn names_are_those_of_rust() {
        assert_eq!(DTYPES.map(|n| n.to_str().unwrap()), DType::ALL.map(DType::name));
        assert_eq!(REDUCTIONS.map(|n| n.to_str().unwrap()), ReduceOp::ALL.map(ReduceOp::name));
        assert_eq!(STATUSES.len(), comity_status::COMITY_ERR_INTERNAL as usize + 1);
        assert_eq!(plain("a\0b".into()).as_c_str(), c"ab");
        assert!(comity_dtype_name(14).is_null() && comity_status_name(u32::MAX).is_null());
        assert_eq!([comity_dtype_size(12), comity_dtype_size(99)], [8, 0]);
        assert_eq!([comity_dtype_supports(0, 4), comity_dtype_supports(1, 4)], [0, 1]);
    }
}
