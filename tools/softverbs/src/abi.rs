//! The part of `infiniband/verbs.h` that clients with SEND and RECV see, re-declared with the header's own names.
//! Programs that were compiled against the header itself hold it to that: rdma-core's own, and `conform.c` (`cargo xtask test --only rdma`).
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
pub(crate) const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Aligned as the header's union with 64-bit members.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// `wr` and `bind_mw` stand for unions that SEND does not use.
#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    pub(crate) wr: [u64; 4],
    pub(crate) qp_type: u32,
    pub(crate) bind_mw: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
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

#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) _ops: [Unused; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// Functions that the header's inline functions call: the only way to post and to poll.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ibv_context_ops {
    pub(crate) _compat_query_device: Unused,
    pub(crate) _compat_query_port: Unused,
    pub(crate) _compat_alloc_pd: Unused,
    pub(crate) _compat_dealloc_pd: Unused,
    pub(crate) _compat_reg_mr: Unused,
    pub(crate) _compat_rereg_mr: Unused,
    pub(crate) _compat_dereg_mr: Unused,
    pub(crate) alloc_mw: Unused,
    pub(crate) bind_mw: Unused,
    pub(crate) dealloc_mw: Unused,
    pub(crate) _compat_create_cq: Unused,
    pub(crate) poll_cq: Option<extern "C" fn(&ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<extern "C" fn(&ibv_cq, c_int) -> c_int>,
    pub(crate) _compat_cq_event: Unused,
    pub(crate) _compat_resize_cq: Unused,
    pub(crate) _compat_destroy_cq: Unused,
    pub(crate) _compat_create_srq: Unused,
    pub(crate) _compat_modify_srq: Unused,
    pub(crate) _compat_query_srq: Unused,
    pub(crate) _compat_destroy_srq: Unused,
    pub(crate) post_srq_recv: Unused,
    pub(crate) _compat_create_qp: Unused,
    pub(crate) _compat_query_qp: Unused,
    pub(crate) _compat_modify_qp: Unused,
    pub(crate) _compat_destroy_qp: Unused,
    pub(crate) post_send: Option<extern "C" fn(&ibv_qp, *mut ibv_send_wr, &mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv: Option<extern "C" fn(&ibv_qp, *mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) _compat_create_ah: Unused,
    pub(crate) _compat_destroy_ah: Unused,
    pub(crate) _compat_attach_mcast: Unused,
    pub(crate) _compat_detach_mcast: Unused,
    pub(crate) _compat_async_event: Unused,
}

/// `abi_compat` null: there is no table of extensions before it.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *const ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) abi_compat: *mut c_void,
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *const ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *const ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *const ibv_context,
    pub(crate) channel: *const ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Condition,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *const ibv_context,
    pub(crate) pd: *const ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *const ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *const ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: AtomicU32,
    pub(crate) qp_type: u32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Condition,
    pub(crate) events_completed: u32,
}
