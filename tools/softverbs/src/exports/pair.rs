//! Queue pairs: making, moving through their states, posting.

use super::{code, export, keep, keep_moving, memory::Domain, refused, set_errno, world};
use crate::{
    abi::*,
    memory::gather_inline,
    pair::{Errno, Receive, Send, Shape},
};
use libc::{EINVAL, EOPNOTSUPP, c_int, c_void};
use std::{
    mem::MaybeUninit,
    ptr, slice,
    sync::atomic::{AtomicU32, Ordering},
};

export! {
    "IBVERBS_1.1" fn ibv_create_qp(domain: &Domain, init: &mut ibv_qp_init_attr) -> *mut ibv_qp {
        let send = init.send_cq;
        let recv = init.recv_cq;
        if send.is_null() || recv.is_null() {
            return refused(Errno(EINVAL));
        }
        if !init.srq.is_null() {
            return refused(Errno(EOPNOTSUPP));
        }
        // SAFETY: not null, so made by ibv_create_cq and not destroyed.
        let (send_queue, recv_queue) = unsafe { ((*send).handle, (*recv).handle) };
        let shape = Shape {
            device: domain.device,
            domain: domain.ibv.handle,
            kind: init.qp_type,
            cap: init.cap,
            signal_all: init.sq_sig_all != 0,
            send_queue,
            recv_queue,
        };
        let mut world = world();
        let number = match world.create_pair(shape) {
            Ok(number) => number,
            Err(e) => return refused(e),
        };
        if let Some(pair) = world.pairs.get(&number) {
            init.cap = pair.shape.cap;
        }
        drop(world);
        keep_moving();
        Box::into_raw(Box::new(ibv_qp {
            context: domain.ibv.context,
            qp_context: init.qp_context,
            pd: &raw const domain.ibv,
            send_cq: send,
            recv_cq: recv,
            srq: ptr::null_mut(),
            handle: number,
            qp_num: number,
            state: AtomicU32::new(0),
            qp_type: init.qp_type,
            mutex: Mutex::default(),
            cond: Condition::default(),
            events_completed: 0,
        }))
    }
    "IBVERBS_1.1" fn ibv_destroy_qp(pair: Box<ibv_qp>) -> c_int {
        let result = world().destroy_pair(pair.handle);
        keep(pair, result)
    }
    "IBVERBS_1.1" fn ibv_modify_qp(pair: &ibv_qp, attr: &ibv_qp_attr, mask: c_int) -> c_int {
        let result = world().modify(pair.handle, attr, mask);
        if result.is_ok() {
            pair.state.store(attr.qp_state, Ordering::Relaxed);
        }
        code(result)
    }
    "IBVERBS_1.1" fn ibv_query_qp(
        pair: &ibv_qp,
        attr: &mut MaybeUninit<ibv_qp_attr>,
        _mask: c_int,
        init: &mut MaybeUninit<ibv_qp_init_attr>,
    ) -> c_int {
        let world = world();
        let Some(known) = world.pairs.get(&pair.handle) else { return code(Err(Errno(EINVAL))) };
        let cap = known.shape.cap;
        attr.write(ibv_qp_attr { qp_state: known.state, cur_qp_state: known.state, cap, ..known.attr });
        init.write(ibv_qp_init_attr {
            qp_context: pair.qp_context,
            send_cq: pair.send_cq.cast::<ibv_cq>(),
            recv_cq: pair.recv_cq,
            srq: ptr::null_mut(),
            cap,
            qp_type: known.shape.kind,
            sq_sig_all: known.shape.signal_all.into(),
        });
        0
    }
    // ibv_rc_pingpong links to it.
    "IBVERBS_1.6" fn ibv_qp_to_qp_ex(_pair: &ibv_qp) -> *mut c_void {
        refused(Errno(EOPNOTSUPP))
    }
}

/// The parts of a request.
///
/// # Safety
/// `list` is the list of a posted request and `count` its length.
unsafe fn parts(list: *const ibv_sge, count: c_int) -> Vec<ibv_sge> {
    match usize::try_from(count) {
        // SAFETY: as promised.
        Ok(n) if n > 0 && !list.is_null() => unsafe { slice::from_raw_parts(list, n) }.to_vec(),
        _ => Vec::new(),
    }
}

fn length(list: &[ibv_sge]) -> usize {
    list.iter().map(|p| p.length as usize).sum()
}

/// Result of posting: rdma-core's says a positive number and which request it was, Apple's is reported to say a
/// negative one and nothing else.
fn posted<T>(result: Result<(), (Errno, *mut T)>, bad: &mut *mut T, apple: bool) -> c_int {
    match result {
        Ok(()) => 0,
        Err((Errno(e), request)) => {
            set_errno(e);
            if apple {
                -e
            } else {
                *bad = request;
                e
            }
        }
    }
}

pub(super) extern "C" fn post_send(
    pair: &ibv_qp,
    first: *mut ibv_send_wr,
    bad: &mut *mut ibv_send_wr,
) -> c_int {
    let mut world = world();
    let signal_all = world.pairs.get(&pair.handle).is_some_and(|p| p.shape.signal_all);
    let mut next = first;
    let mut result = Ok(());
    // SAFETY: a list of requests as the header describes it: each valid, the last with a null.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: the list of a posted request.
        let list = unsafe { parts(request.sg_list, request.num_sge) };
        let flag = |flag| request.send_flags & flag != 0;
        // SAFETY: inline data are readable while they are posted.
        let inline = flag(IBV_SEND_INLINE).then(|| unsafe { gather_inline(&list) });
        let send = Send {
            id: request.wr_id,
            length: length(&list),
            list,
            immediate: (request.opcode == IBV_WR_SEND_WITH_IMM).then_some(request.imm_data),
            signaled: signal_all || flag(IBV_SEND_SIGNALED),
            solicited: flag(IBV_SEND_SOLICITED),
            inline,
        };
        let done = match request.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => world.post_send(pair.handle, send),
            _ => Err(Errno(EOPNOTSUPP)),
        };
        if let Err(e) = done {
            result = Err((e, next));
            break;
        }
        next = request.next;
    }
    world.progress(pair.handle);
    posted(result, bad, world.host.config.apple)
}

pub(super) extern "C" fn post_recv(
    pair: &ibv_qp,
    first: *mut ibv_recv_wr,
    bad: &mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world();
    let mut next = first;
    let mut result = Ok(());
    // SAFETY: a list of requests as the header describes it: each valid, the last with a null.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: the list of a posted request.
        let list = unsafe { parts(request.sg_list, request.num_sge) };
        let receive = Receive { id: request.wr_id, length: length(&list), list };
        if let Err(e) = world.post_recv(pair.handle, receive) {
            result = Err((e, next));
            break;
        }
        next = request.next;
    }
    world.progress(pair.handle);
    posted(result, bad, world.host.config.apple)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_returned_as_each_library_does() {
        let mut place = 5u8;
        let mut bad = ptr::null_mut();
        let request = &raw mut place;
        assert_eq!(posted(Ok(()), &mut bad, false), 0);
        assert_eq!((posted(Err((Errno(12), request)), &mut bad, true), bad), (-12, ptr::null_mut()));
        assert_eq!((posted(Err((Errno(12), request)), &mut bad, false), bad), (12, request));
    }
}
