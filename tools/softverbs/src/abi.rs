//! The part of `infiniband/verbs.h` that clients with SEND and RECV see, re-declared with the header's own names.
//! Fields that nobody here uses are room, under a name that begins with `_`. Programs that were compiled against the header itself hold all of it to that: rdma-core's own, and `conform.c` (`cargo xtask test --only rdma`).
#![allow(unsafe_code, reason = "functions in the tables of a C interface")]
#![allow(non_camel_case_types, missing_debug_implementations)]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::atomic::AtomicU32,
};

pub(crate) const IBV_QPT_RC: u32 = 2;
pub(crate) const IBV_QPT_UC: u32 = 3;

pub(crate) const IBV_QPS_RESET: u32 = 0;
pub(crate) const IBV_QPS_INIT: u32 = 1;
pub(crate) const IBV_QPS_RTR: u32 = 2;
pub(crate) const IBV_QPS_RTS: u32 = 3;
pub(crate) const IBV_QPS_ERR: u32 = 6;

pub(crate) const IBV_QP_STATE: c_int = 1 << 0;
pub(crate) const IBV_QP_CUR_STATE: c_int = 1 << 1;
pub(crate) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const IBV_QP_PORT: c_int = 1 << 5;
pub(crate) const IBV_QP_AV: c_int = 1 << 7;
pub(crate) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const IBV_QP_ALT_PATH: c_int = 1 << 14;
pub(crate) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const IBV_QP_PATH_MIG_STATE: c_int = 1 << 18;
pub(crate) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(crate) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: c_int = 2;

pub(crate) const IBV_WR_SEND: u32 = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: u32 = 3;

pub(crate) const IBV_SEND_SIGNALED: c_uint = 2;
pub(crate) const IBV_SEND_SOLICITED: c_uint = 4;
pub(crate) const IBV_SEND_INLINE: c_uint = 8;

pub(crate) const IBV_WC_SUCCESS: u32 = 0;
pub(crate) const IBV_WC_LOC_LEN_ERR: u32 = 1;
pub(crate) const IBV_WC_LOC_PROT_ERR: u32 = 4;
pub(crate) const IBV_WC_WR_FLUSH_ERR: u32 = 5;
pub(crate) const IBV_WC_REM_INV_REQ_ERR: u32 = 9;
pub(crate) const IBV_WC_REM_OP_ERR: u32 = 11;
pub(crate) const IBV_WC_RETRY_EXC_ERR: u32 = 12;
pub(crate) const IBV_WC_RNR_RETRY_EXC_ERR: u32 = 13;
pub(crate) const IBV_WC_GENERAL_ERR: u32 = 21;

pub(crate) const IBV_WC_SEND: u32 = 0;
pub(crate) const IBV_WC_RECV: u32 = 128;
pub(crate) const IBV_WC_WITH_IMM: c_uint = 2;

pub(crate) const IBV_MTU_1024: u32 = 3;
pub(crate) const IBV_MTU_4096: u32 = 5;

pub(crate) const IBV_PORT_DOWN: u32 = 1;
pub(crate) const IBV_PORT_ACTIVE: u32 = 4;
pub(crate) const IBV_NODE_CA: c_int = 1;
pub(crate) const IBV_TRANSPORT_IB: c_int = 0;
pub(crate) const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// Aligned as the header's union with 64-bit members.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

/// A mutex and a condition of C, which are there for their size: this library locks neither.
#[cfg(target_os = "macos")]
pub(crate) type Mutex = [u64; 8];
#[cfg(all(not(target_os = "macos"), target_arch = "x86_64"))]
pub(crate) type Mutex = [u64; 5];
#[cfg(all(not(target_os = "macos"), not(target_arch = "x86_64")))]
pub(crate) type Mutex = [u64; 6];
pub(crate) type Condition = [u64; 6];

/// An entry of a table that no client of SEND and RECV calls.
pub(crate) type Unused = Option<unsafe extern "C" fn()>; // SAFETY: never called.

macro_rules! structs {
    ($derives:tt $($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive $derives]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }
    )*};
}

// Values.
structs! {
    (Clone, Copy, Debug, Default)
    ibv_global_route {
        dgid: ibv_gid,
        _flow_label: u32,
        sgid_index: u8,
        _hops_and_class: [u8; 2],
    }
    ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        _level_bits_and_rate: [u8; 3],
        is_global: u8,
        port_num: u8,
    }
    ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    ibv_qp_attr {
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        _migration_and_key: [u32; 2],
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
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
    ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    ibv_wc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        _vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        _path: [u16; 3],
    }
    ibv_port_attr {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        _port_cap_flags: u32,
        max_msg_sz: u32,
        _counters: [u32; 2],
        pkey_tbl_len: u16,
        lid: u16,
        _sm_lid: u16,
        _lmc: u8,
        max_vl_num: u8,
        _subnet: [u8; 3],
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        _flags: u8,
        port_cap_flags2: u16,
    }
    ibv_device_attr {
        fw_ver: [c_char; 32],
        _fw_ver: [c_char; 32],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        _hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        _device_cap_flags: c_uint,
        max_sge: c_int,
        _max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        _max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        _other_kinds: [c_int; 16],
        max_pkeys: u16,
        _local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    /// Functions that the header's inline functions call: the only way to post and to poll.
    ibv_context_ops {
        _before_poll: [Unused; 11],
        poll_cq: Option<extern "C" fn(&ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<extern "C" fn(&ibv_cq, c_int) -> c_int>,
        _before_post: [Unused; 12],
        post_send: Option<extern "C" fn(&ibv_qp, *mut ibv_send_wr, &mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<extern "C" fn(&ibv_qp, *mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int>,
        _rest: [Unused; 5],
    }
}

// Objects and what points to them.
structs! {
    (Debug)
    ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
    }
    ibv_recv_wr {
        wr_id: u64,
        next: *mut Self,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    /// `_unions` has room for unions and their tags that SEND does not use.
    ibv_send_wr {
        wr_id: u64,
        next: *mut Self,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: c_uint,
        imm_data: u32,
        _unions: [u64; 11],
    }
    ibv_device {
        _ops: [Unused; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    /// `abi_compat` null: there is no table of extensions before it.
    ibv_context {
        device: *const ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: Mutex,
        abi_compat: *mut c_void,
    }
    ibv_pd {
        context: *const ibv_context,
        handle: u32,
    }
    ibv_comp_channel {
        context: *const ibv_context,
        fd: c_int,
        refcnt: c_int,
    }
    ibv_cq {
        context: *const ibv_context,
        channel: *const ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: Mutex,
        cond: Condition,
        events_completed: [u32; 2],
    }
    ibv_mr {
        context: *const ibv_context,
        pd: *const ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    ibv_qp {
        context: *const ibv_context,
        qp_context: *mut c_void,
        pd: *const ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        handle: u32,
        qp_num: u32,
        state: AtomicU32,
        qp_type: u32,
        mutex: Mutex,
        cond: Condition,
        events_completed: u32,
    }
}
