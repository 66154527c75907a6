//! Queue pairs, made, connected, and given what to send and where to receive; and their completions, polled for or announced by an event.

use super::{Address, Device, FRAME, port::PORT};
use crate::sys::verbs::{DeviceError, DeviceStep, abi::*};
use std::{
    ffi::c_int,
    fmt, mem,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
};

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueService {
    /// Acknowledged, and sent again where it was lost.
    Reliable,
    /// Sent once.
    Unreliable,
}

impl fmt::Display for QueueService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Reliable { "RC" } else { "UC" })
    }
}

/// An end of a queue pair, as the other end must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub number: u32,
    /// The number of its first packet.
    pub first: u32,
    pub at: Address,
}

/// Capacity of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Messages in each direction.
    pub slots: usize,
    /// Bytes of the longest.
    pub bytes: usize,
}

/// Something that a queue pair has done, or failed to do.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The queue pair's number.
    pub queue: u32,
    /// Id that was given with the request.
    pub id: u64,
    /// 0: success. With any other the rest says nothing.
    pub status: u32,
    /// Number of bytes received.
    pub bytes: usize,
}

impl Device {
    /// Make a queue pair, ready to be connected; its number.
    pub fn create(&mut self, service: QueueService, depth: Depth) -> Result<u32, DeviceError> {
        let (Some(pd), Some(cq)) = (self.pd, self.cq) else { return Err(self.error("it is not open", 0)) };
        // One frame of a ring cannot be used.
        let frames = depth.slots * depth.bytes.div_ceil(FRAME) + 1;
        let slots = if self.abilities.reliable { depth.slots } else { frames };
        let wr = u32::try_from(slots).unwrap_or(u32::MAX).min(self.most_wr);
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: wr,
                max_recv_wr: wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: if service == QueueService::Reliable { IBV_QPT_RC } else { IBV_QPT_UC },
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are alive, and `attr` outlives the call.
        let qp = NonNull::new(unsafe { (self.verbs.call.create_qp)(pd.as_ptr(), &mut attr) })
            .ok_or_else(|| self.last(format!("ibv_create_qp ({service}, {wr} deep)")))?;
        self.queues.push(qp);
        let mut attr = empty();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = PORT;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        // SAFETY: the library made it, with its number inside.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        self.modify(qp, attr, mask, "ibv_modify_qp to INIT".into()).inspect_err(|_| self.destroy(number))?;
        Ok(number)
    }

    fn queue(&self, number: u32) -> Option<NonNull<ibv_qp>> {
        self.queues.iter().copied().find(|q| {
            // SAFETY: alive until `destroy` takes it from the list.
            unsafe { (*q.as_ptr()).qp_num == number }
        })
    }

    /// Give a queue pair back. Requests that were posted and have not completed never will.
    pub fn destroy(&mut self, number: u32) {
        let Some(qp) = self.queue(number) else { return };
        self.queues.retain(|q| *q != qp);
        if self.pid == std::process::id() {
            // SAFETY: alive, and out of the list.
            unsafe { (self.verbs.call.destroy_qp)(qp.as_ptr()) };
        }
    }

    fn modify(
        &self,
        qp: NonNull<ibv_qp>,
        mut attr: ibv_qp_attr,
        mask: c_int,
        step: DeviceStep,
    ) -> Result<(), DeviceError> {
        // SAFETY: the queue pair is alive and `attr` outlives the call.
        match unsafe { (self.verbs.call.modify_qp)(qp.as_ptr(), &mut attr, mask) } {
            0 => Ok(()),
            // Some providers return -1 and the number in errno.
            -1 => Err(self.last(step)),
            code => Err(self.error(step, code)),
        }
    }

    /// Connect a queue pair to another; `first` is the number of the first packet that this one sends.
    pub fn connect(
        &mut self,
        number: u32,
        service: QueueService,
        first: u32,
        to: &End,
    ) -> Result<(), DeviceError> {
        let qp = self.queue(number).ok_or_else(|| self.error("the queue pair is gone", 0))?;
        let reliable = service == QueueService::Reliable;
        let mut attr = empty();
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = u32::from(self.address.mtu.min(to.at.mtu).clamp(1, 5));
        if self.abilities.equal_frames {
            attr.path_mtu = attr.path_mtu.min(IBV_MTU_1024);
        }
        attr.dest_qp_num = to.number;
        attr.rq_psn = to.first;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.dlid = to.at.lid;
        attr.ah_attr.port_num = PORT;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = ibv_gid { raw: to.at.gid };
        attr.ah_attr.grh.sgid_index = self.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let more = if reliable { IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER } else { 0 };
        self.modify(qp, attr, mask | more, DeviceStep::Connect(to.at.to_string()))?;
        let mut attr = empty();
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = first;
        // 67 ms between tries, doubled by some devices; seven of them are below the limit on silence.
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 1;
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        let more = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(qp, attr, mask | if reliable { more } else { 0 }, "ibv_modify_qp to RTS".into())
    }

    /// The key of the slab, and the element that names `len` bytes of it at `at`.
    fn element(&self, at: usize, len: usize) -> Result<ibv_sge, DeviceError> {
        let inside = self.slab.holds(at, len);
        let (Some(mr), Ok(length), true) = (self.mr, u32::try_from(len), inside) else {
            return Err(self.error("a request outside of the registered memory", 0));
        };
        // SAFETY: the region is alive.
        let lkey = unsafe { (*mr.as_ptr()).lkey };
        Ok(ibv_sge { addr: self.slab.as_ptr().wrapping_add(at) as u64, length, lkey })
    }

    /// Send `len` bytes of the slab; false if the queue has no room now. They must not change until the completion.
    pub fn send(&mut self, number: u32, id: u64, at: usize, len: usize) -> Result<bool, DeviceError> {
        let (Some(qp), mut element) = (self.queue(number), self.element(at, len)?) else {
            return Err(self.error("the queue pair is gone", 0));
        };
        let mut request = ibv_send_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &mut element,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            imm_data: 0,
            wr: [0; 4],
            qp_type: 0,
            bind_mw: [0; 6],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, its context's table is filled, and the request outlives the call.
        let code = unsafe {
            let ops = &(*(*qp.as_ptr()).context).ops;
            ops.post_send.map(|post| post(qp.as_ptr(), &mut request, &mut bad))
        };
        self.posted(code, "ibv_post_send")
    }

    /// Let `len` bytes of the slab be written by what comes next; false if the queue has no room now.
    pub fn receive(&mut self, number: u32, id: u64, at: usize, len: usize) -> Result<bool, DeviceError> {
        let (Some(qp), mut element) = (self.queue(number), self.element(at, len)?) else {
            return Err(self.error("the queue pair is gone", 0));
        };
        let mut request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut element, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: as in `send`.
        let code = unsafe {
            let ops = &(*(*qp.as_ptr()).context).ops;
            ops.post_recv.map(|post| post(qp.as_ptr(), &mut request, &mut bad))
        };
        self.posted(code, "ibv_post_recv")
    }

    fn posted(&self, code: Option<c_int>, step: &str) -> Result<bool, DeviceError> {
        match code.map(c_int::saturating_abs) {
            Some(0) => Ok(true),
            Some(code) if code == rustix::io::Errno::NOMEM.raw_os_error() => Ok(false),
            Some(code) => Err(self.error(step, code)),
            None => Err(self.error(format!("the library has no {step}"), 0)),
        }
    }

    /// Appends at most 32 completions to `out`. Returns their number.
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, DeviceError> {
        const AT_ONCE: usize = 32;
        let Some(cq) = self.cq else { return Ok(0) };
        // SAFETY: all zeros are a valid completion.
        let mut done: [ibv_wc; AT_ONCE] = unsafe { mem::zeroed() };
        // SAFETY: the queue is alive, its context's table is filled, and `done` has that many entries.
        let n = unsafe {
            let ops = &(*(*cq.as_ptr()).context).ops;
            // WAIT(AT_ONCE): a look that never sleeps
            ops.poll_cq.map(|poll| poll(cq.as_ptr(), AT_ONCE as c_int, done.as_mut_ptr()))
        };
        let n = n.and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= AT_ONCE);
        let n = n.ok_or_else(|| self.error("ibv_poll_cq failed: its completion queue has overflowed", 0))?;
        out.extend(done.iter().take(n).map(|c| Completion {
            queue: c.qp_num,
            id: c.wr_id,
            status: c.status,
            bytes: c.byte_len as usize,
        }));
        Ok(n)
    }

    /// A completion's status, in words.
    pub fn status(&self, status: u32) -> String {
        format!("status {status}, {}", self.verbs.status(status))
    }

    /// Readable after the next completion, once [`announce`](Self::announce) was called; `None` where the provider has no events.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.channel?;
        // SAFETY: the channel, and so its descriptor, is open as long as the device.
        Some(unsafe { BorrowedFd::borrow_raw((*channel.as_ptr()).fd) })
    }

    /// Ask for an event at the next completion.
    pub fn announce(&mut self) -> Result<(), DeviceError> {
        let (Some(cq), Some(_)) = (self.cq, self.channel) else { return Ok(()) };
        // SAFETY: the queue is alive and its context's table is filled.
        let code = unsafe {
            let ops = &(*(*cq.as_ptr()).context).ops;
            ops.req_notify_cq.map(|ask| ask(cq.as_ptr(), 0))
        };
        match code {
            Some(0) => Ok(()),
            Some(code) => Err(self.error("ibv_req_notify_cq", code)),
            None => Err(self.error("the library has no ibv_req_notify_cq", 0)),
        }
    }

    /// Swallow events; whether there were any.
    pub fn drain(&mut self) -> bool {
        let call = &self.verbs.call;
        let (Some(channel), Some(get), Some(ack)) = (self.channel, call.get_cq_event, call.ack_cq_events)
        else {
            return false;
        };
        let mut any = false;
        loop {
            let mut cq = ptr::null_mut();
            let mut context = ptr::null_mut();
            // SAFETY: the channel is alive and does not block.
            if unsafe { get(channel.as_ptr(), &mut cq, &mut context) } != 0 || cq.is_null() {
                return any;
            }
            any = true;
            // SAFETY: the event is of this queue, the only one of the channel.
            unsafe { ack(cq, 1) };
        }
    }
}

/// Attributes that say nothing.
fn empty() -> ibv_qp_attr {
    // SAFETY: plain numbers, for which zeros are valid.
    unsafe { mem::zeroed() }
}
