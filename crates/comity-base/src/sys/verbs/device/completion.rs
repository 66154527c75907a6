//! Completions of a device's queue pairs, polled for or announced by an event.

use super::Device;
use crate::sys::verbs::{DeviceError, abi::*};
use std::{ffi::c_int, mem, os::fd::BorrowedFd, ptr};

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
