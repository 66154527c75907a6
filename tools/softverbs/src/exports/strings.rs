//! Names of numbers.

use super::export;
use libc::{c_char, c_int};
use std::ffi::CStr;

/// In the words of the specification, by number.
const STATUS: [&CStr; 22] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory bind operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
];

export! {
    "IBVERBS_1.1" fn ibv_wc_status_str(status: u32) -> *const c_char {
        STATUS.get(status as usize).copied().unwrap_or(c"unknown").as_ptr()
    }
    "IBVERBS_1.1" fn ibv_port_state_str(state: u32) -> *const c_char {
        match state {
            1 => c"PORT_DOWN",
            4 => c"PORT_ACTIVE",
            _ => c"invalid state",
        }
        .as_ptr()
    }
    "IBVERBS_1.1" fn ibv_node_type_str(_kind: u32) -> *const c_char {
        c"InfiniBand channel adapter".as_ptr()
    }
    "IBVERBS_1.1" fn ibv_event_type_str(_kind: u32) -> *const c_char {
        c"unknown".as_ptr()
    }
    "IBVERBS_1.0" fn ibv_get_sysfs_path() -> *const c_char {
        c"/sys".as_ptr()
    }
    // There is nothing in /sys to read.
    "IBVERBS_1.0" fn ibv_read_sysfs_file(
        _folder: *const c_char,
        _file: *const c_char,
        _to: *mut c_char,
        _size: usize,
    ) -> c_int {
        -1
    }
}
