//! Completion queues and completion channels.

use super::{Context, ShownChannel, device::ibv, export, keep, keep_moving, refused, set_errno, world};
use crate::{
    abi::*,
    pair::Errno,
    queue::{Armed, Channel, Events},
};
use libc::{EAGAIN, EINVAL, EMFILE, ENOSYS, c_char, c_int, c_uint, c_void};
use std::{os::fd::AsRawFd, ptr, sync::Arc};

export! {
    "IBVERBS_1.0" fn ibv_create_comp_channel(context: &Context) -> *mut ShownChannel {
        if world().host.config.quirks.no_channel {
            return refused(Errno(ENOSYS));
        }
        let Ok(events) = Events::new() else { return refused(Errno(EMFILE)) };
        let ibv = ibv_comp_channel { context: ibv(context), fd: events.fd().as_raw_fd(), refcnt: 0 };
        Box::into_raw(Box::new(ShownChannel { ibv, events: Arc::new(events) }))
    }
    "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: Box<ShownChannel>) -> c_int {
        // Queues that tell on it keep the descriptors, so that none writes to a stranger.
        drop(channel);
        0
    }
    "IBVERBS_1.1" fn ibv_create_cq(
        context: &Context,
        entries: c_int,
        cookie: *mut c_void,
        channel: Option<&ShownChannel>,
        _vector: c_int,
    ) -> *mut ibv_cq {
        let Some(capacity) = usize::try_from(entries).ok().filter(|n| (1..=1 << 20).contains(n)) else {
            return refused(Errno(EINVAL));
        };
        let mut world = world();
        let handle = world.create_queue(capacity);
        let made = Box::into_raw(Box::new(ibv_cq {
            context: ibv(context),
            channel: channel.map_or(ptr::null(), |c| &raw const c.ibv),
            cq_context: cookie,
            handle,
            cqe: entries,
            mutex: Mutex::default(),
            cond: Condition::default(),
            events_completed: [0; 2],
        }));
        if let Some(channel) = channel {
            let cookie = made.expose_provenance() as u64;
            let channel = Channel { events: Arc::clone(&channel.events), cookie };
            world.with_queue(handle, |q| q.channel = Some(channel));
        }
        made
    }
    "IBVERBS_1.1" fn ibv_destroy_cq(queue: Box<ibv_cq>) -> c_int {
        let result = world().destroy_queue(queue.handle);
        keep(queue, result)
    }
    "IBVERBS_1.1" fn ibv_get_cq_event(channel: &ShownChannel, queue: &mut *mut ibv_cq, cookie: &mut *mut c_void) -> c_int {
        let address = loop {
            if let Err(e) = channel.events.wait() {
                set_errno(e.raw_os_error().unwrap_or(EAGAIN));
                return -1;
            }
            let mut world = world();
            if let Some(address) = channel.events.next() {
                let told: *mut ibv_cq = ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: a queue takes its unread events with it, and none goes while the world is locked.
                let (handle, told_cookie) = unsafe { ((*told).handle, (*told).cq_context) };
                world.with_queue(handle, |q| q.unacked_events += 1);
                *cookie = told_cookie;
                break told;
            }
        };
        *queue = address;
        0
    }
    // In the words of the specification: the statuses that this device gives.
    "IBVERBS_1.1" fn ibv_wc_status_str(status: u32) -> *const c_char {
        match status {
            IBV_WC_SUCCESS => c"success",
            IBV_WC_LOC_LEN_ERR => c"local length error",
            IBV_WC_LOC_PROT_ERR => c"local protection error",
            IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
            IBV_WC_REM_INV_REQ_ERR => c"remote invalid request error",
            IBV_WC_REM_OP_ERR => c"remote operation error",
            IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
            IBV_WC_RNR_RETRY_EXC_ERR => c"RNR retry counter exceeded",
            IBV_WC_GENERAL_ERR => c"general error",
            _ => c"unknown",
        }
        .as_ptr()
    }
    "IBVERBS_1.1" fn ibv_ack_cq_events(queue: &ibv_cq, events: c_uint) {
        world().with_queue(queue.handle, |q| q.unacked_events = q.unacked_events.saturating_sub(events));
    }
}

pub(super) extern "C" fn poll_cq(queue: &ibv_cq, most: c_int, to: *mut ibv_wc) -> c_int {
    let mut at = 0;
    let count = world().poll(queue.handle, usize::try_from(most).unwrap_or(0), |wc| {
        // SAFETY: the caller gives room for `most` completions, and no more come.
        unsafe { to.add(at).write(wc) };
        at += 1;
    });
    if count == Some(0) {
        // Here the other end may wait for this very processor.
        std::thread::yield_now();
    }
    count.map_or(-1, |n| n as c_int)
}

pub(super) extern "C" fn req_notify_cq(queue: &ibv_cq, solicited_only: c_int) -> c_int {
    let mut world = world();
    let armed = if solicited_only == 0 { Armed::Any } else { Armed::Solicited };
    world.with_queue(queue.handle, |q| q.armed = Some(armed));
    drop(world);
    keep_moving();
    0
}
