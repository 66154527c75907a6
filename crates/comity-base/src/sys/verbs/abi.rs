//! The part of `<infiniband/verbs.h>` that sending and receiving needs, as the library lays it out in memory.
//!
//! [`STRUCTS`] and [`CONSTANTS`] list all of it: a test compares them with the real header. Of what the library makes itself and
//! lends by pointer only the beginning is here, up to the last field that is read.

#![allow(non_camel_case_types)]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
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
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
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
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    whole ibv_port_attr {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
    whole ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Unused,
        bind_mw: Unused,
        dealloc_mw: Unused,
        _compat_create_cq: Unused,
        // SAFETY: called with what the header says it takes, in `device`.
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        // SAFETY: called with what the header says it takes, in `device`.
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Unused,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        // SAFETY: called with what the header says it takes, in `device`.
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        // SAFETY: called with what the header says it takes, in `device`.
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
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
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
    }
    begin ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
    }
    begin ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        handle: u32,
        qp_num: u32,
        state: u32,
        qp_type: u32,
    }
    whole ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_int,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
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
            for (field, offset) in *fields {
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
