//! The part of `<infiniband/verbs.h>` that sending and receiving needs, as the library lays it out in memory.
//!
//! [`STRUCTS`] and [`CONSTANTS`] list all of it: a test compares them with the real header. Of what the library makes itself and
//! lends by pointer only the beginning is here, up to the last field that is read. Fields that nobody here uses are room, under a name
//! that begins with `_`.

#![allow(non_camel_case_types)]

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::{offset_of, size_of},
};

macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $type = $value;)*

        /// Name and value of each.
        #[allow(dead_code, reason = "for the comparison with the header")]
        pub(crate) const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $value as i64),)*];
    };
}

constants! {
    IBV_QPT_RC: u32 = 2;
    IBV_QPT_UC: u32 = 3;
    IBV_QPS_INIT: u32 = 1;
    IBV_QPS_RTR: u32 = 2;
    IBV_QPS_RTS: u32 = 3;
    IBV_QP_STATE: c_int = 1 << 0;
    IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
    IBV_QP_PKEY_INDEX: c_int = 1 << 4;
    IBV_QP_PORT: c_int = 1 << 5;
    IBV_QP_AV: c_int = 1 << 7;
    IBV_QP_PATH_MTU: c_int = 1 << 8;
    IBV_QP_TIMEOUT: c_int = 1 << 9;
    IBV_QP_RETRY_CNT: c_int = 1 << 10;
    IBV_QP_RNR_RETRY: c_int = 1 << 11;
    IBV_QP_RQ_PSN: c_int = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    IBV_QP_SQ_PSN: c_int = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    IBV_QP_DEST_QPN: c_int = 1 << 20;
    IBV_ACCESS_LOCAL_WRITE: c_int = 1;
    IBV_ACCESS_REMOTE_WRITE: c_int = 2;
    IBV_ACCESS_REMOTE_READ: c_int = 4;
    IBV_WR_SEND: u32 = 2;
    IBV_SEND_SIGNALED: u32 = 2;
    IBV_MTU_1024: u32 = 3;
    IBV_PORT_ACTIVE: u32 = 4;
    IBV_LINK_LAYER_ETHERNET: u8 = 2;
}

/// Name, size where the whole structure is here, and the offset of each field.
#[allow(dead_code, reason = "for the comparison with the header")]
pub(crate) type Layout = (&'static str, Option<usize>, &'static [(&'static str, usize)]);

macro_rules! structs {
    (@size whole $name:ident) => { Some(size_of::<$name>()) };
    (@size begin $name:ident) => { None };
    ($($part:ident $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*

        /// All of them.
        #[allow(dead_code, reason = "for the comparison with the header")]
        pub(crate) const STRUCTS: &[Layout] = &[$((
            stringify!($name),
            structs!(@size $part $name),
            &[$((stringify!($field), offset_of!($name, $field)),)*],
        ),)*];
    };
}

/// A slot of the table of functions that nobody calls here.
// SAFETY: never called.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// A union in the header, aligned as its 64-bit half.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

structs! {
    whole ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    whole ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    whole ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    whole ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
    }
    whole ibv_qp_attr {
        qp_state: u32,
        _cur_qp_state: u32,
        path_mtu: u32,
        _migration_and_key: [u32; 2],
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        _access_flags_and_cap: [u32; 6],
        ah_attr: ibv_ah_attr,
        _alt_ah_attr: ibv_ah_attr,
        _keys_and_draining: [u16; 3],
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        _alt_port: [u8; 2],
        _rate_limit: u32,
    }
    whole ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    whole ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    whole ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: c_uint,
        imm_data: u32,
        wr: [u64; 4],
        qp_type: u32,
        bind_mw: [u64; 6],
    }
    whole ibv_wc {
        wr_id: u64,
        status: u32,
        _opcode_and_error: [u32; 2],
        byte_len: u32,
        _imm_data: u32,
        qp_num: u32,
        _rest: [u32; 4],
    }
    whole ibv_port_attr {
        state: u32,
        _max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        _limits_and_counters: [u32; 4],
        _pkey_tbl_len: u16,
        lid: u16,
        _sm_lid: u16,
        _widths_and_speeds: [u8; 8],
        link_layer: u8,
        _flags: u8,
        _port_cap_flags2: u16,
    }
    whole ibv_context_ops {
        _before_poll: [Unused; 11],
        // SAFETY: called with what the header says it takes, in `device`.
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        // SAFETY: called with what the header says it takes, in `device`.
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _before_post: [Unused; 12],
        // SAFETY: called with what the header says it takes, in `device`.
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        // SAFETY: called with what the header says it takes, in `device`.
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _rest: [Unused; 5],
    }
    begin ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
    }
    begin ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
    }
    begin ibv_cq {
        context: *mut ibv_context,
    }
    begin ibv_mr {
        _before_handle: [usize; 4],
        _handle: u32,
        lkey: u32,
    }
    begin ibv_qp {
        context: *mut ibv_context,
        _before_handle: [*mut c_void; 5],
        _handle: u32,
        qp_num: u32,
    }
    whole ibv_device_attr {
        _before_work: [u64; 14],
        max_qp_wr: c_int,
        _before_completions: [c_int; 4],
        max_cqe: c_int,
        _rest: [c_int; 23],
    }
}

/// Fields that are private to the library.
#[repr(C)]
pub(crate) struct ibv_device {
    _private: [u8; 0],
}

/// A protection domain, of which only the address is used.
#[repr(C)]
pub(crate) struct ibv_pd {
    _private: [u8; 0],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets that the calls through the table and the reads of handles stand on; all others are compared with the
    /// header where there is one.
    #[test]
    fn what_is_read_through_pointers_lies_where_the_library_puts_it() {
        let slot = |offset: usize| (offset - offset_of!(ibv_context, ops)) / size_of::<Unused>();
        assert_eq!(offset_of!(ibv_context, ops), 8);
        assert_eq!(slot(8 + offset_of!(ibv_context_ops, poll_cq)), 11);
        assert_eq!(slot(8 + offset_of!(ibv_context_ops, req_notify_cq)), 12);
        assert_eq!(slot(8 + offset_of!(ibv_context_ops, post_send)), 25);
        assert_eq!(slot(8 + offset_of!(ibv_context_ops, post_recv)), 26);
        assert_eq!((offset_of!(ibv_qp, qp_num), offset_of!(ibv_mr, lkey)), (52, 36));
        let size = |name| STRUCTS.iter().find(|s| s.0 == name).and_then(|s| s.1);
        for (name, bytes) in [("ibv_send_wr", 128), ("ibv_recv_wr", 32), ("ibv_sge", 16), ("ibv_wc", 48)] {
            assert_eq!(size(name), Some(bytes), "{name}");
        }
        assert_eq!((size("ibv_qp_attr"), size("ibv_qp")), (Some(144), None));
        assert!(CONSTANTS.contains(&("IBV_WR_SEND", 2)));
    }

    /// The header, where it is installed, has the same offsets, sizes and values.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_header_says_the_same() {
        use std::{fmt::Write, io::Write as _, process};
        const HEADER: &str = "/usr/include/infiniband/verbs.h";
        if !std::path::Path::new(HEADER).exists() {
            assert!(std::env::var_os("CI").is_none(), "{HEADER} is missing (package libibverbs-dev)");
            return;
        }
        let mut text = format!("#include <stddef.h>\n#include \"{HEADER}\"\n");
        let mut hold = |what: String| writeln!(text, "_Static_assert({what}, \"\");").unwrap();
        for (name, size, fields) in STRUCTS {
            size.iter().for_each(|size| hold(format!("sizeof(struct {name}) == {size}")));
            for (field, offset) in fields.iter().filter(|(field, _)| !field.starts_with('_')) {
                let field = field.trim_start_matches("r#");
                hold(format!("offsetof(struct {name}, {field}) == {offset}"));
            }
        }
        CONSTANTS.iter().for_each(|(name, value)| hold(format!("{name} == {value}")));
        let mut cc = process::Command::new("cc");
        let mut cc =
            cc.args(["-fsyntax-only", "-x", "c", "-"]).stdin(process::Stdio::piped()).spawn().unwrap();
        cc.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success(), "{text}");
    }
}
