//! A device: a context, a protection domain, a registered slab, a completion queue, and the queue pairs on them.
//!
//! Everything that a device lends by pointer stays in here; callers name queue pairs by number and memory by its place in the
//! slab, and every call that can fail is checked.

mod port;
mod queue;

pub use port::Address;
pub use queue::{Completion, Depth, End, QueueService};

use super::{DeviceError, DeviceStep, Slab, abi::*, api::Verbs};
use std::{
    ffi::c_int,
    fmt, mem,
    ptr::{self, NonNull},
    sync::Arc,
};

/// Bytes of a frame: Apple's providers count queue depths in these.
const FRAME: usize = 4096;
/// Abilities of a device, found by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    pub reliable: bool,
    pub unreliable: bool,
    /// A send must be as many frames as its receive, and depths are counted in frames: what Apple says of its providers, which
    /// are those without a reliable service.
    pub equal_frames: bool,
}

/// An opened RDMA device, with its memory, its completion queue and its queue pairs.
pub struct Device {
    verbs: &'static Verbs,
    name: String,
    context: NonNull<ibv_context>,
    pd: Option<NonNull<ibv_pd>>,
    mr: Option<NonNull<ibv_mr>>,
    channel: Option<NonNull<ibv_comp_channel>>,
    cq: Option<NonNull<ibv_cq>>,
    queues: Vec<NonNull<ibv_qp>>,
    slab: Arc<Slab>,
    address: Address,
    gid_index: u8,
    abilities: Abilities,
    most_wr: u32,
    completions: usize,
    /// Process that owns it: a forked child has a copy that it must not touch.
    pid: u32,
}

// SAFETY: the library allows its handles to be used from any thread, and `&mut` keeps the calls apart.
unsafe impl Send for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Open the device of this name, with `slab` bytes of registered memory and room for `completions` at most.
    pub fn open(name: &str, slab: usize, completions: usize) -> Result<Self, DeviceError> {
        let mut device = Self::begin(name, slab, completions)?;
        device.prepare()?;
        Ok(device)
    }

    /// The address of the device of this name, if its port is up.
    pub fn look(name: &str) -> Result<Address, DeviceError> {
        let mut device = Self::begin(name, FRAME, 1)?;
        device.find_address()?;
        Ok(device.address)
    }

    fn begin(name: &str, slab: usize, completions: usize) -> Result<Self, DeviceError> {
        let error = |step: &str| DeviceError::last(name, "", step);
        let verbs = Verbs::find().map_err(|why| DeviceError::new(name, "", why, 0))?;
        let memory = Slab::new(slab)
            .map_err(|e| DeviceError::new(name, "", "mapping memory", e.raw_os_error().unwrap_or(0)))?;
        let context = verbs.with_devices(|list| match list.iter().find(|(n, _)| n == name) {
            // SAFETY: the device is of this list, which is lent until this returns.
            Some((_, device)) => NonNull::new(unsafe { (verbs.call.open_device)(*device) })
                .ok_or_else(|| error("ibv_open_device")),
            None => {
                let names: Vec<&str> = list.iter().map(|(n, _)| n.as_str()).collect();
                let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(DeviceError::new(name, "", format!("there is no such device; there are: {there}"), 0))
            }
        })?;
        let none = Abilities { reliable: false, unreliable: false, equal_frames: false };
        Ok(Self {
            verbs,
            name: name.to_owned(),
            context,
            pd: None,
            mr: None,
            channel: None,
            cq: None,
            queues: Vec::new(),
            slab: Arc::new(memory),
            address: Address::default(),
            gid_index: 0,
            abilities: none,
            most_wr: u32::MAX,
            completions,
            pid: std::process::id(),
        })
    }

    /// Does the steps of [`open`](Self::open) that need a context to close again.
    fn prepare(&mut self) -> Result<(), DeviceError> {
        let call = &self.verbs.call;
        // A port that is down fails in ways of its own further on.
        self.find_address()?;
        // SAFETY: the context is open.
        self.pd = NonNull::new(unsafe { (call.alloc_pd)(self.context.as_ptr()) });
        let pd = self.pd.ok_or_else(|| self.last("ibv_alloc_pd"))?;
        let at = self.slab.as_ptr().cast();
        let len = self.slab.len();
        // Providers disagree about which of these they take.
        for access in [
            IBV_ACCESS_LOCAL_WRITE,
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        ] {
            // SAFETY: the domain is alive; the memory is ours, and given back only after the region.
            self.mr = NonNull::new(unsafe { (call.reg_mr)(pd.as_ptr(), at, len, access) });
            if self.mr.is_some() {
                break;
            }
        }
        if self.mr.is_none() {
            return Err(self.last(DeviceStep::Register(len)));
        }
        // SAFETY: all zeros are a valid attribute structure, which the call fills.
        let mut attr: ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and `attr` outlives the call.
        let known = unsafe { (call.query_device)(self.context.as_ptr(), &mut attr) } == 0;
        if known {
            self.most_wr = u32::try_from(attr.max_qp_wr).unwrap_or(u32::MAX);
            let most = usize::try_from(attr.max_cqe).ok().filter(|n| *n > 0);
            self.completions = most.map_or(self.completions, |n| n.min(self.completions));
        }
        self.channel = call.create_comp_channel.zip(call.get_cq_event).zip(call.ack_cq_events).and_then(
            |((make, _), _)| {
                // SAFETY: the context is open.
                NonNull::new(unsafe { make(self.context.as_ptr()) })
            },
        );
        if let Some(fd) = self.event_fd()
            && let Err(e) = rustix::io::ioctl_fionbio(fd, true)
        {
            return Err(self.error("making its event descriptor non-blocking", e.raw_os_error()));
        }
        self.cq = self.make_cq();
        if self.cq.is_none() && self.channel.is_some() {
            // It may only lack events.
            self.close_channel();
            self.cq = self.make_cq();
        }
        if self.cq.is_none() {
            return Err(self.last(format!("ibv_create_cq of {}", self.completions)));
        }
        self.probe()
    }

    fn make_cq(&self) -> Option<NonNull<ibv_cq>> {
        let channel = self.channel.map_or(ptr::null_mut(), NonNull::as_ptr);
        let entries = c_int::try_from(self.completions).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are alive.
        NonNull::new(unsafe {
            (self.verbs.call.create_cq)(self.context.as_ptr(), entries, ptr::null_mut(), channel, 0)
        })
    }

    fn close_channel(&mut self) {
        if let (Some(close), Some(channel)) = (self.verbs.call.destroy_comp_channel, self.channel.take()) {
            // SAFETY: alive, and no completion queue uses it.
            unsafe { close(channel.as_ptr()) };
        }
    }

    /// Finds the device's services: asking for one is the only way to know.
    fn probe(&mut self) -> Result<(), DeviceError> {
        let depth = Depth { slots: 1, bytes: FRAME };
        let mut why = None;
        for service in [QueueService::Reliable, QueueService::Unreliable] {
            match self.create(service, depth) {
                Ok(queue) => {
                    self.destroy(queue);
                    match service {
                        QueueService::Reliable => self.abilities.reliable = true,
                        QueueService::Unreliable => self.abilities.unreliable = true,
                    }
                }
                Err(e) => why = Some(e),
            }
        }
        self.abilities.equal_frames = !self.abilities.reliable;
        match why {
            Some(e) if !self.abilities.reliable && !self.abilities.unreliable => Err(e),
            _ => Ok(()),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Returns the limit of outstanding completions.
    pub fn completions(&self) -> usize {
        self.completions
    }

    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    fn error(&self, step: impl Into<DeviceStep>, code: i32) -> DeviceError {
        DeviceError::new(&self.name, &self.shown(), step, code)
    }

    fn last(&self, step: impl Into<DeviceStep>) -> DeviceError {
        DeviceError::last(&self.name, &self.shown(), step)
    }

    fn shown(&self) -> String {
        if self.address == Address::default() { String::new() } else { self.address.to_string() }
    }
}

impl Drop for Device {
    /// Queue pairs first: what was posted holds the memory until then.
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        let call = &self.verbs.call;
        let mut bad = Vec::new();
        // SAFETY: each was made by the library, is given back once, and nothing that depends on it is left.
        unsafe {
            for qp in self.queues.drain(..) {
                bad.push(("ibv_destroy_qp", (call.destroy_qp)(qp.as_ptr())));
            }
            if let Some(mr) = self.mr.take() {
                bad.push(("ibv_dereg_mr", (call.dereg_mr)(mr.as_ptr())));
            }
            if let Some(cq) = self.cq.take() {
                bad.push(("ibv_destroy_cq", (call.destroy_cq)(cq.as_ptr())));
            }
        }
        self.close_channel();
        // SAFETY: as above.
        unsafe {
            let call = &self.verbs.call;
            if let Some(pd) = self.pd.take() {
                bad.push(("ibv_dealloc_pd", (call.dealloc_pd)(pd.as_ptr())));
            }
            bad.push(("ibv_close_device", (call.close_device)(self.context.as_ptr())));
        }
        for (step, code) in bad.into_iter().filter(|(_, code)| *code != 0) {
            tracing::debug!(device = self.name, step, code, "closing");
        }
    }
}
