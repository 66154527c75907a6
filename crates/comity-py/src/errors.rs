//! Comity's errors as the exceptions of `comity.errors`, which are Python classes so that they pickle.

use comity::{CallInfo, Error, ErrorKind, JoinCause, tools::HomeProcess};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyModule},
};

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// An exception of the class with this name.
pub(crate) fn new(
    py: Python<'_>,
    class: &str,
    message: String,
    rank: Option<usize>,
    call: Option<String>,
    cause: Option<String>,
) -> PyErr {
    with(py, class, (message, rank, call, cause), |_| Ok(()))
}

/// The same, with what only this class has.
fn with(
    py: Python<'_>,
    class: &str,
    usual: (String, Option<usize>, Option<String>, Option<String>),
    own: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let more = PyDict::new(py);
    let made = MODULE
        .get_or_try_init(py, || PyModule::import(py, "comity.errors").map(Bound::unbind))
        .and_then(|m| own(&more).and_then(|()| m.bind(py).getattr(class)?.call(usual, Some(&more))));
    match made {
        Ok(e) => PyErr::from_value(e),
        Err(e) => e,
    }
}

/// A rule that the caller broke, with these words. `rank`: the caller's, in the group of the call.
pub(crate) fn misuse(py: Python<'_>, rank: Option<usize>, message: String, call: Option<&str>) -> PyErr {
    new(py, "MisuseError", message, rank, call.map(str::to_owned), None)
}

/// Raise `ForkedError` in a child that was forked from the process `home`.
#[inline]
pub(crate) fn check_home(py: Python<'_>, home: HomeProcess) -> PyResult<()> {
    home.check().map_err(|e| raised(py, None, &e))
}

/// `e` as an exception: of the first failure's class where the group had failed earlier. `own`: this process's rank in the group of the
/// call, whose mistake a `MisuseError` is.
pub(crate) fn raised(py: Python<'_>, own: Option<usize>, e: &Error) -> PyErr {
    let root = e.root();
    match root.kind() {
        ErrorKind::Config(why) => {
            return with(py, "ConfigError", (e.to_string(), None, None, None), |own| {
                own.set_item("file", why.file.as_ref().map(|f| f.display().to_string()))?;
                own.set_item("line", why.line)?;
                own.set_item("column", why.column)?;
                own.set_item("key", &why.key)?;
                own.set_item("value", &why.value)
            });
        }
        ErrorKind::Join(why) => {
            let cause = (why.cause != JoinCause::Other).then(|| why.cause.name().to_owned());
            let usual = (e.to_string(), why.ranks.first().copied(), None, cause);
            return with(py, "JoinError", usual, |own| own.set_item("ranks", &why.ranks));
        }
        ErrorKind::PeerLost { peer, cause, because_of, seen_by, left, call } => {
            let call = call.as_ref().map(ToString::to_string);
            let usual = (e.to_string(), Some(peer.rank), call, Some(cause.clone()));
            return with(py, "PeerLostError", usual, |own| {
                own.set_item("because_of", because_of)?;
                own.set_item("seen_by", seen_by)?;
                own.set_item("left", left)
            });
        }
        _ => {}
    }
    let call = |c: &Option<CallInfo>| c.as_ref().map(ToString::to_string);
    let (class, rank, call, cause) = match root.kind() {
        ErrorKind::Unavailable { reason, .. } => ("UnavailableError", None, None, Some(reason.clone())),
        ErrorKind::Misuse { op, misuse } => {
            ("MisuseError", own, Some(op.to_string()), Some(misuse.to_string()))
        }
        ErrorKind::Order => ("MisuseError", own, None, None),
        ErrorKind::Mismatch { ours, peer, theirs, differs, .. } => {
            let cause = format!("{differs} differs: it called {theirs}");
            ("MismatchError", Some(peer.rank), Some(ours.to_string()), Some(cause))
        }
        ErrorKind::Timeout { call, after, waiting_for, .. } => {
            let cause = format!("not finished within {after:?}");
            ("TimeoutError", waiting_for.first().map(|p| p.rank), Some(call.to_string()), Some(cause))
        }
        ErrorKind::Aborted { by, reason, call: c } => {
            ("AbortedError", Some(by.rank), call(c), Some(reason.clone()))
        }
        ErrorKind::Library { message, .. } => ("LibraryError", None, None, Some(message.clone())),
        ErrorKind::Os(e) => ("SystemCallError", None, None, Some(e.io().to_string())),
        ErrorKind::Closed => ("GroupClosedError", None, None, None),
        ErrorKind::Forked { .. } => ("ForkedError", None, None, None),
        _ => ("Error", None, None, None),
    };
    new(py, class, e.to_string(), rank, call, cause)
}
