//! Functions that programs link to and that are refused here: other kinds of queue pairs, shared receive queues, imports.

use super::{export, refused, set_errno};
use crate::pair::Errno;
use libc::{EOPNOTSUPP, c_int, c_void};

/// Refuse with errno: those that make something, then those that do something.
macro_rules! refuse {
    ($($made:literal $maker:ident)* ; $($done:literal $doer:ident)*) => {
        export! {
            $($made fn $maker() -> *mut c_void {
                refused(Errno(EOPNOTSUPP))
            })*
            $($done fn $doer() -> c_int {
                set_errno(EOPNOTSUPP);
                EOPNOTSUPP
            })*
        }
    };
}

refuse! {
    "IBVERBS_1.1" ibv_create_srq
    "IBVERBS_1.1" ibv_create_ah
    "IBVERBS_1.1" ibv_create_ah_from_wc
    "IBVERBS_1.6" ibv_qp_to_qp_ex
    "IBVERBS_1.10" ibv_import_device
    "IBVERBS_1.10" ibv_import_mr
    "IBVERBS_1.10" ibv_import_pd
    ;
    "IBVERBS_1.1" ibv_destroy_srq
    "IBVERBS_1.1" ibv_modify_srq
    "IBVERBS_1.1" ibv_query_srq
    "IBVERBS_1.1" ibv_attach_mcast
    "IBVERBS_1.1" ibv_detach_mcast
    "IBVERBS_1.1" ibv_destroy_ah
    "IBVERBS_1.1" ibv_resize_cq
    "IBVERBS_1.1" ibv_rereg_mr
    "IBVERBS_1.1" ibv_init_ah_from_wc
    "IBVERBS_1.10" ibv_query_ece
    "IBVERBS_1.10" ibv_set_ece
}
