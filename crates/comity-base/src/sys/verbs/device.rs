//! A device: a context, a protection domain, a registered slab, a completion queue, and the queue pairs on them.
//!
//! Everything that a device lends by pointer stays in here; callers name queue pairs by number and memory by its place in the
//! slab, and every call that can fail is checked.

use super::{DeviceError, DeviceStep, Slab, abi::*, api::Verbs};
use std::{
    ffi::c_int,
    fmt, io, mem,
    net::Ipv4Addr,
    os::fd::BorrowedFd,
    process,
    ptr::{self, NonNull},
    sync::Arc,
};

/// Bytes of a frame: Apple's providers count queue depths in these.
const FRAME: usize = 4096;
/// The port that is used. Devices with more list them as devices of their own where it matters.
const PORT: u8 = 1;
/// More than any device lists for one port.
const MOST_GIDS: c_int = 256;

/// Resource that the library made. It goes back once: on drop, in the process that it was made in.
struct Resource<T: 'static> {
    at: NonNull<T>,
    // SAFETY: called once, with what the function before it made, when nothing that depends on it is left.
    give_back: unsafe extern "C" fn(*mut T) -> c_int,
    step: &'static str,
    /// Process that owns it: a forked child has a copy that it must not touch.
    pid: u32,
}

impl<T> Resource<T> {
    /// # Safety
    /// `at` is null, or the library made it and `give_back` takes it.
    unsafe fn new(
        at: *mut T,
        // SAFETY: as above.
        give_back: unsafe extern "C" fn(*mut T) -> c_int,
        step: &'static str,
    ) -> Option<Self> {
        NonNull::new(at).map(|at| Self { at, give_back, step, pid: process::id() })
    }

    fn as_ptr(&self) -> *mut T {
        self.at.as_ptr()
    }
}

impl<T> Drop for Resource<T> {
    fn drop(&mut self) {
        if self.pid == process::id() {
            // SAFETY: made by the library, and whatever depends on it was dropped before.
            let code = unsafe { (self.give_back)(self.as_ptr()) };
            if code != 0 {
                tracing::debug!(step = self.step, code, "closing an RDMA device");
            }
        }
    }
}

/// Abilities of a device, found by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    pub reliable: bool,
    pub unreliable: bool,
    /// A send must be as many frames as its receive, and depths are counted in frames: what Apple says of its providers, which
    /// are those without a reliable service.
    pub equal_frames: bool,
}

/// Address of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub gid: [u8; 16],
    /// 0 on Ethernet and Thunderbolt.
    pub lid: u16,
    /// The number of the packet size: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
}

impl Address {
    /// The IPv4 address that the GID stands for, if it does.
    pub fn ip(&self) -> Option<Ipv4Addr> {
        match self.gid {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d)),
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip() {
            Some(ip) => write!(f, "{ip}"),
            None if self.lid != 0 => write!(f, "LID {}", self.lid),
            None => write!(f, "GID {}", std::net::Ipv6Addr::from(self.gid)),
        }
    }
}

/// The port of an opened device: whether it is up, and the address that packets to it bear.
struct Port {
    verbs: &'static Verbs,
    name: String,
    context: Resource<ibv_context>,
    address: Address,
    gid_index: u8,
}

impl Port {
    fn open(name: &str) -> Result<Self, DeviceError> {
        let verbs = Verbs::find().map_err(|why| DeviceError::new(name, "", why, 0))?;
        let context = verbs.with_devices(|list| match list.iter().find(|(n, _)| n == name) {
            // SAFETY: the device is of this list, which is lent until this returns.
            Some((_, device)) => unsafe {
                let context = (verbs.call.open_device)(*device);
                Resource::new(context, verbs.call.close_device, "ibv_close_device")
                    .ok_or_else(|| DeviceError::last(name, "", "ibv_open_device"))
            },
            None => {
                let names: Vec<&str> = list.iter().map(|(n, _)| n.as_str()).collect();
                let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(DeviceError::new(name, "", format!("there is no such device; there are: {there}"), 0))
            }
        })?;
        let name = name.to_owned();
        let mut port = Self { verbs, name, context, address: Address::default(), gid_index: 0 };
        port.find_address()?;
        Ok(port)
    }

    fn attributes(&self) -> Result<ibv_port_attr, DeviceError> {
        // The exported function fills the first 48 bytes only.
        // SAFETY: all zeros are a valid attribute structure.
        let mut attr: ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and `attr` outlives the call.
        match unsafe { (self.verbs.call.query_port)(self.context.as_ptr(), PORT, &mut attr) } {
            0 => Ok(attr),
            code => Err(self.error("ibv_query_port", code)),
        }
    }

    /// The GID that stands for an IPv4 address, the one of the newer protocol where there are two; on InfiniBand the LID.
    fn find_address(&mut self) -> Result<(), DeviceError> {
        let port = self.attributes()?;
        if port.state != IBV_PORT_ACTIVE {
            return Err(
                self.error(format!("port {PORT} is not active; `ibv_devinfo -d {}` says why", self.name), 0)
            );
        }
        let mut found: Option<(u8, [u8; 16], bool)> = None;
        let mut first = None;
        for i in 0..port.gid_tbl_len.clamp(0, MOST_GIDS) {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open and `gid` outlives the call.
            if unsafe { (self.verbs.call.query_gid)(self.context.as_ptr(), PORT, i, &mut gid) } != 0 {
                continue;
            }
            let Ok(index) = u8::try_from(i) else { break };
            if gid.raw != [0; 16] {
                first.get_or_insert((index, gid.raw));
            }
            let address = Address { gid: gid.raw, ..Address::default() };
            if address.ip().is_none() {
                continue;
            }
            let newer = is_newer(&self.name, index);
            if found.is_none_or(|(_, raw, was)| raw == gid.raw && newer && !was) {
                found = Some((index, gid.raw, newer));
            }
        }
        let found = found.map(|(i, raw, _)| (i, raw));
        let infiniband = port.lid != 0 && port.link_layer != IBV_LINK_LAYER_ETHERNET;
        let Some((index, gid)) = found.or_else(|| first.filter(|_| infiniband)) else {
            let interface = self.name.strip_prefix("rdma_").unwrap_or("its interface");
            return Err(self.error(
                format!("no GID stands for an IPv4 address; give {interface} one, outside of any bridge"),
                0,
            ));
        };
        self.gid_index = index;
        let mtu = u8::try_from(port.active_mtu.clamp(1, 5)).unwrap_or(IBV_MTU_1024 as u8);
        self.address = Address { gid, lid: port.lid, mtu };
        Ok(())
    }

    fn is_up(&self) -> Result<bool, DeviceError> {
        Ok(self.attributes()?.state == IBV_PORT_ACTIVE)
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

/// Returns true if this GID is of RoCE v2, which routers forward.
fn is_newer(device: &str, index: u8) -> bool {
    let path = format!("/sys/class/infiniband/{device}/ports/{PORT}/gid_attrs/types/{index}");
    let kind: io::Result<String> = std::fs::read_to_string(path);
    kind.is_ok_and(|k| k.trim().ends_with("v2"))
}

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

/// An opened RDMA device, with its memory, its completion queue and its queue pairs.
pub struct Device {
    // Dropped in this order: queue pairs first, for what was posted holds the memory until then.
    queues: Vec<Resource<ibv_qp>>,
    mr: Resource<ibv_mr>,
    cq: Resource<ibv_cq>,
    channel: Option<Resource<ibv_comp_channel>>,
    pd: Resource<ibv_pd>,
    port: Port,
    slab: Arc<Slab>,
    abilities: Abilities,
    most_wr: u32,
    completions: usize,
}

// SAFETY: the library allows its handles to be used from any thread, and `&mut` keeps the calls apart.
unsafe impl Send for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = &self.port;
        let mut device = f.debug_struct("Device");
        device.field("name", &port.name).field("address", &port.address).finish_non_exhaustive()
    }
}

impl Device {
    /// Open the device of this name, with `slab` bytes of registered memory and room for `completions` at most.
    pub fn open(name: &str, slab: usize, completions: usize) -> Result<Self, DeviceError> {
        // A port that is down fails in ways of its own further on.
        let port = Port::open(name)?;
        let call = &port.verbs.call;
        let context = port.context.as_ptr();
        let slab = Slab::new(slab)
            .map_err(|e| DeviceError::new(name, "", "mapping memory", e.raw_os_error().unwrap_or(0)))?;
        // SAFETY: the context is open.
        let pd = unsafe { Resource::new((call.alloc_pd)(context), call.dealloc_pd, "ibv_dealloc_pd") };
        let pd = pd.ok_or_else(|| port.last("ibv_alloc_pd"))?;
        // Providers disagree about which of these they take.
        let all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let mr = [IBV_ACCESS_LOCAL_WRITE, all].into_iter().find_map(|access| {
            // SAFETY: the domain is alive; the memory is ours, and given back only after the region.
            unsafe {
                let mr = (call.reg_mr)(pd.as_ptr(), slab.as_ptr().cast(), slab.len(), access);
                Resource::new(mr, call.dereg_mr, "ibv_dereg_mr")
            }
        });
        let mr = mr.ok_or_else(|| port.last(DeviceStep::Register(slab.len())))?;
        // SAFETY: all zeros are a valid attribute structure, which the call fills.
        let mut attr: ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and `attr` outlives the call.
        let known = unsafe { (call.query_device)(context, &mut attr) } == 0;
        let limit = |n: c_int| u32::try_from(n).ok().filter(|_| known);
        let most_wr = limit(attr.max_qp_wr).unwrap_or(u32::MAX);
        let most = limit(attr.max_cqe).filter(|n| *n > 0);
        let completions = most.map_or(completions, |n| completions.min(n as usize));
        let events = call.create_comp_channel.zip(call.destroy_comp_channel);
        let events = events.filter(|_| call.get_cq_event.is_some() && call.ack_cq_events.is_some());
        // SAFETY: the context is open.
        let mut channel = events
            .and_then(|(make, end)| unsafe { Resource::new(make(context), end, "ibv_destroy_comp_channel") });
        if let Some(channel) = &channel
            && let Err(e) = rustix::io::ioctl_fionbio(event_fd(channel), true)
        {
            return Err(port.error("making its event descriptor non-blocking", e.raw_os_error()));
        }
        let make_cq = |channel: &Option<Resource<ibv_comp_channel>>| {
            let channel = channel.as_ref().map_or(ptr::null_mut(), Resource::as_ptr);
            let entries = c_int::try_from(completions).unwrap_or(c_int::MAX);
            // SAFETY: context and channel are alive.
            unsafe {
                let cq = (call.create_cq)(context, entries, ptr::null_mut(), channel, 0);
                Resource::new(cq, call.destroy_cq, "ibv_destroy_cq")
            }
        };
        let mut cq = make_cq(&channel);
        if cq.is_none() && channel.is_some() {
            // It may only lack events.
            channel = None;
            cq = make_cq(&channel);
        }
        let cq = cq.ok_or_else(|| port.last(format!("ibv_create_cq of {completions}")))?;
        let abilities = Abilities { reliable: false, unreliable: false, equal_frames: false };
        let slab = Arc::new(slab);
        let queues = Vec::new();
        let mut device = Self { queues, mr, cq, channel, pd, port, slab, abilities, most_wr, completions };
        device.probe()?;
        Ok(device)
    }

    /// The address of the device of this name, if its port is up.
    pub fn look(name: &str) -> Result<Address, DeviceError> {
        Ok(Port::open(name)?.address)
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
        &self.port.name
    }

    pub fn address(&self) -> Address {
        self.port.address
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

    /// Returns true if the port is up, as the device says now.
    pub fn is_up(&self) -> Result<bool, DeviceError> {
        self.port.is_up()
    }

    /// Make a queue pair, ready to be connected; its number.
    pub fn create(&mut self, service: QueueService, depth: Depth) -> Result<u32, DeviceError> {
        let call = &self.port.verbs.call;
        // One frame of a ring cannot be used.
        let frames = depth.slots * depth.bytes.div_ceil(FRAME) + 1;
        let slots = if self.abilities.reliable { depth.slots } else { frames };
        let wr = u32::try_from(slots).unwrap_or(u32::MAX).min(self.most_wr);
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq.as_ptr(),
            recv_cq: self.cq.as_ptr(),
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
        let qp = unsafe {
            let qp = (call.create_qp)(self.pd.as_ptr(), &mut attr);
            Resource::new(qp, call.destroy_qp, "ibv_destroy_qp")
        };
        let qp = qp.ok_or_else(|| self.port.last(format!("ibv_create_qp ({service}, {wr} deep)")))?;
        let mut attr = empty();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = PORT;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        // SAFETY: the library made it, with its number inside.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        self.modify(qp.as_ptr(), attr, mask, "ibv_modify_qp to INIT".into())?;
        self.queues.push(qp);
        Ok(number)
    }

    fn queue(&self, number: u32) -> Result<*mut ibv_qp, DeviceError> {
        // SAFETY: alive until `destroy` takes it from the list.
        let found = self.queues.iter().find(|q| unsafe { (*q.as_ptr()).qp_num } == number);
        found.map(Resource::as_ptr).ok_or_else(|| self.port.error("the queue pair is gone", 0))
    }

    /// Give a queue pair back. Requests that were posted and have not completed never will.
    pub fn destroy(&mut self, number: u32) {
        // SAFETY: alive until it leaves the list.
        self.queues.retain(|q| unsafe { (*q.as_ptr()).qp_num } != number);
    }

    fn modify(
        &self,
        qp: *mut ibv_qp,
        mut attr: ibv_qp_attr,
        mask: c_int,
        step: DeviceStep,
    ) -> Result<(), DeviceError> {
        // SAFETY: the queue pair is alive and `attr` outlives the call.
        match unsafe { (self.port.verbs.call.modify_qp)(qp, &mut attr, mask) } {
            0 => Ok(()),
            // Some providers return -1 and the number in errno.
            -1 => Err(self.port.last(step)),
            code => Err(self.port.error(step, code)),
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
        let qp = self.queue(number)?;
        let reliable = service == QueueService::Reliable;
        let mut attr = empty();
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = u32::from(self.port.address.mtu.min(to.at.mtu).clamp(1, 5));
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
        attr.ah_attr.grh.sgid_index = self.port.gid_index;
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
        let length = u32::try_from(len).ok().filter(|_| self.slab.holds(at, len));
        let length =
            length.ok_or_else(|| self.port.error("a request outside of the registered memory", 0))?;
        // SAFETY: the region is alive.
        let lkey = unsafe { (*self.mr.as_ptr()).lkey };
        Ok(ibv_sge { addr: self.slab.as_ptr().wrapping_add(at) as u64, length, lkey })
    }

    /// Send `len` bytes of the slab; false if the queue has no room now. They must not change until the completion.
    pub fn send(&mut self, number: u32, id: u64, at: usize, len: usize) -> Result<bool, DeviceError> {
        let qp = self.queue(number)?;
        let mut element = self.element(at, len)?;
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
            let ops = &(*(*qp).context).ops;
            ops.post_send.map(|post| post(qp, &mut request, &mut bad))
        };
        self.posted(code, "ibv_post_send")
    }

    /// Let `len` bytes of the slab be written by what comes next; false if the queue has no room now.
    pub fn receive(&mut self, number: u32, id: u64, at: usize, len: usize) -> Result<bool, DeviceError> {
        let qp = self.queue(number)?;
        let mut element = self.element(at, len)?;
        let mut request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut element, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: as in `send`.
        let code = unsafe {
            let ops = &(*(*qp).context).ops;
            ops.post_recv.map(|post| post(qp, &mut request, &mut bad))
        };
        self.posted(code, "ibv_post_recv")
    }

    fn posted(&self, code: Option<c_int>, step: &str) -> Result<bool, DeviceError> {
        match code.map(c_int::saturating_abs) {
            Some(0) => Ok(true),
            Some(code) if code == rustix::io::Errno::NOMEM.raw_os_error() => Ok(false),
            Some(code) => Err(self.port.error(step, code)),
            None => Err(self.port.error(format!("the library has no {step}"), 0)),
        }
    }

    /// Appends at most 32 completions to `out`. Returns their number.
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, DeviceError> {
        const AT_ONCE: usize = 32;
        let cq = self.cq.as_ptr();
        // SAFETY: all zeros are a valid completion.
        let mut done: [ibv_wc; AT_ONCE] = unsafe { mem::zeroed() };
        // SAFETY: the queue is alive, its context's table is filled, and `done` has that many entries.
        let n = unsafe {
            let ops = &(*(*cq).context).ops;
            // WAIT(AT_ONCE): a look that never sleeps
            ops.poll_cq.map(|poll| poll(cq, AT_ONCE as c_int, done.as_mut_ptr()))
        };
        let n = n.and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= AT_ONCE);
        let n =
            n.ok_or_else(|| self.port.error("ibv_poll_cq failed: its completion queue has overflowed", 0))?;
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
        format!("status {status}, {}", self.port.verbs.status(status))
    }

    /// Readable after the next completion, once [`announce`](Self::announce) was called; `None` where the provider has no events.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(event_fd)
    }

    /// Ask for an event at the next completion.
    pub fn announce(&mut self) -> Result<(), DeviceError> {
        if self.channel.is_none() {
            return Ok(());
        }
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is alive and its context's table is filled.
        let code = unsafe {
            let ops = &(*(*cq).context).ops;
            ops.req_notify_cq.map(|ask| ask(cq, 0))
        };
        match code {
            Some(0) => Ok(()),
            Some(code) => Err(self.port.error("ibv_req_notify_cq", code)),
            None => Err(self.port.error("the library has no ibv_req_notify_cq", 0)),
        }
    }

    /// Swallow events; whether there were any.
    pub fn drain(&mut self) -> bool {
        let call = &self.port.verbs.call;
        let (Some(channel), Some(get), Some(ack)) = (&self.channel, call.get_cq_event, call.ack_cq_events)
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

fn event_fd(channel: &Resource<ibv_comp_channel>) -> BorrowedFd<'_> {
    // SAFETY: the channel, and so its descriptor, is open as long as this reference lasts.
    unsafe { BorrowedFd::borrow_raw((*channel.as_ptr()).fd) }
}

/// Attributes that say nothing.
fn empty() -> ibv_qp_attr {
    // SAFETY: plain numbers, for which zeros are valid.
    unsafe { mem::zeroed() }
}
