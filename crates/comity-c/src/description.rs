//! Descriptions of errors, in the types of C.

use crate::types::{self, DTypeNumber, ReduceNumber, StatusNumber, comity_status};
use comity::{Error, ErrorKind, Peer};
use std::{
    ffi::{CStr, CString, c_char},
    ptr,
};

/// A text without NUL in it.
pub(crate) fn text(mut text: String) -> CString {
    text.retain(|c| c != '\0');
    CString::new(text).unwrap_or_default()
}

/// The status of a first failure.
pub(crate) fn kind(e: &Error) -> comity_status {
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
pub(crate) fn peer(e: &Error) -> Option<&Peer> {
    match e.kind() {
        // Where it gave up on others' account they are at fault, and their hosts are not known.
        ErrorKind::PeerLost { peer, because_of, .. } => because_of.is_empty().then_some(peer),
        ErrorKind::Mismatch { peer, .. } | ErrorKind::Aborted { by: peer, .. } => Some(peer),
        ErrorKind::Timeout { waiting_for, .. } => waiting_for.first(),
        _ => None,
    }
}

/// This rank's call, and the other's.
pub(crate) fn calls(e: &Error) -> [Option<CString>; 2] {
    let words = |call: &dyn ToString| Some(text(call.to_string()));
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

pub(crate) fn differs(e: &Error) -> Option<CString> {
    match e.kind() {
        ErrorKind::Mismatch { differs, .. } => Some(text((*differs).to_owned())),
        _ => None,
    }
}

pub(crate) fn timeout(e: &Error) -> f64 {
    match e.kind() {
        ErrorKind::Timeout { after, .. } => after.as_secs_f64(),
        _ => 0.0,
    }
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
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_status_name(status: StatusNumber) -> *const c_char {
    name(&STATUSES, status)
}

/// Get the name of a type, such as "bf16".
///
/// @return Text that stays valid; NULL if there is no such type.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_dtype_name(dtype: DTypeNumber) -> *const c_char {
    name(&DTYPES, dtype)
}

/// Get the name of a reduction, such as "sum".
///
/// @return Text that stays valid; NULL if there is no such reduction.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce_op_name(reduce: ReduceNumber) -> *const c_char {
    name(&REDUCTIONS, reduce)
}

/// Get the size of one element in bytes.
///
/// @return 0 if there is no such type.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_dtype_size(dtype: DTypeNumber) -> usize {
    types::dtype(dtype).map_or(0, comity::DType::size)
}

/// Find out whether a reduction is defined on a type.
///
/// @return 1 if it is, else 0.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_dtype_supports(dtype: DTypeNumber, reduce: ReduceNumber) -> i32 {
    match (types::dtype(dtype), types::reduce_op(reduce)) {
        (Ok(dtype), Ok(op)) => dtype.supports(op).into(),
        _ => 0,
    }
}

/// Get the version of the library as a number: major * 10000 + minor * 100 + patch.
// SAFETY: the name is this library's own.
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
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_version_text() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
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
        assert_eq!(text("a\0b".into()).as_c_str(), c"ab");
        assert!(comity_dtype_name(14).is_null() && comity_status_name(u32::MAX).is_null());
        assert_eq!([comity_dtype_size(12), comity_dtype_size(99)], [8, 0]);
        assert_eq!([comity_dtype_supports(0, 4), comity_dtype_supports(1, 4)], [0, 1]);
    }
}
