//! All objects of a process, and what can be done with them: verbs without their C interface.

use crate::{
    abi::{IBV_ACCESS_REMOTE_WRITE, IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UC, ibv_qp_attr, ibv_wc},
    config::Config,
    memory::{Region, Regions},
    pair::{Errno, Pair, Receive, Send, Shape},
    queue::{Entry, Queue},
    send::Sender,
};
use libc::{EAGAIN, EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};
use std::{
    collections::{HashMap, VecDeque},
    net::{Ipv4Addr, TcpListener},
    time::{Duration, Instant},
};

/// Error of create_qp for RC, as reported of Apple's provider: EOPNOTSUPP of macOS.
const MACOS_EOPNOTSUPP: i32 = 102;

/// State that all queue pairs of a process share: configuration, registered memory, completion queues, chance.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: Config,
    pub(crate) regions: Regions,
    pub(crate) queues: HashMap<u32, Queue>,
    /// Protection domains, and how many objects are in each.
    pub(crate) domains: HashMap<u32, u32>,
    pub(crate) receives: u64,
    chance: u64,
    last: u32,
}

impl Host {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            chance: config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            config,
            regions: Regions::default(),
            queues: HashMap::new(),
            domains: HashMap::new(),
            receives: 0,
            last: 0,
        }
    }

    /// A number that no other object of this process has.
    pub(crate) fn fresh(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// From 0 up to 1, the same row for the same seed.
    pub(crate) fn random(&mut self) -> f64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Return whether something happens that has this share. Without any, the row of random numbers stays where it is.
    pub(crate) fn strikes(&mut self, share: f64) -> bool {
        share > 0.0 && self.random() < share
    }

    pub(crate) fn complete(&mut self, queue: u32, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.push(entry);
        }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) host: Host,
    pub(crate) pairs: HashMap<u32, Pair>,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        Self { host: Host::new(config), pairs: HashMap::new() }
    }

    pub(crate) fn create_domain(&mut self, device: usize) -> Result<u32, Errno> {
        let config = &self.host.config;
        // Reported of Apple's provider: without a link there is no protection domain.
        if config.apple && config.devices.get(device).is_none_or(|d| config.down(&[d.address])) {
            return Err(Errno(EBUSY));
        }
        let id = self.host.fresh();
        self.host.domains.insert(id, 0);
        Ok(id)
    }

    pub(crate) fn destroy_domain(&mut self, id: u32) -> Result<(), Errno> {
        match self.host.domains.get(&id) {
            Some(0) => drop(self.host.domains.remove(&id)),
            Some(_) => return Err(Errno(EBUSY)),
            None => return Err(Errno(EINVAL)),
        }
        Ok(())
    }

    pub(crate) fn register(&mut self, region: Region) -> Result<u32, Errno> {
        let host = &mut self.host;
        if host.config.quirks.mr_needs_remote && region.access & IBV_ACCESS_REMOTE_WRITE == 0
            || region.length == 0
        {
            return Err(Errno(EINVAL));
        }
        if host.regions.of_device(region.device) >= host.config.most_regions {
            return Err(Errno(ENOMEM));
        }
        *host.domains.get_mut(&region.domain).ok_or(Errno(EINVAL))? += 1;
        Ok(host.regions.add(region))
    }

    pub(crate) fn deregister(&mut self, key: u32) -> Result<(), Errno> {
        let region = self.host.regions.remove(key).ok_or(Errno(EINVAL))?;
        self.leave(region.domain);
        Ok(())
    }

    fn leave(&mut self, domain: u32) {
        if let Some(users) = self.host.domains.get_mut(&domain) {
            *users = users.saturating_sub(1);
        }
    }

    pub(crate) fn create_queue(&mut self, capacity: usize) -> u32 {
        let id = self.host.fresh();
        self.host.queues.insert(id, Queue { capacity, ..Queue::default() });
        id
    }

    pub(crate) fn with_queue(&mut self, queue: u32, f: impl FnOnce(&mut Queue)) {
        self.host.queues.get_mut(&queue).map(f);
    }

    /// Refused while a queue pair uses it, or events that the client read were not acknowledged: real ones wait for those for ever.
    pub(crate) fn destroy_queue(&mut self, id: u32) -> Result<(), Errno> {
        let queue = self.host.queues.get(&id).ok_or(Errno(EINVAL))?;
        if !queue.pairs.is_empty() {
            return Err(Errno(EBUSY));
        }
        if queue.unacked_events > 0 {
            eprintln!(
                "softverbs: a completion queue is destroyed with {} unacknowledged events",
                queue.unacked_events
            );
            return Err(Errno(EBUSY));
        }
        self.host.queues.remove(&id);
        Ok(())
    }

    /// A new pair; its depths are those that it got.
    pub(crate) fn create_pair(&mut self, mut shape: Shape) -> Result<u32, Errno> {
        let config = &self.host.config;
        match shape.kind {
            IBV_QPT_UC => {}
            IBV_QPT_RC if !config.apple => {}
            IBV_QPT_RC => return Err(Errno(MACOS_EOPNOTSUPP)),
            _ => return Err(Errno(EOPNOTSUPP)),
        }
        let address = config.devices.get(shape.device).ok_or(Errno(EINVAL))?.address;
        let cap = &mut shape.cap;
        let most_parts = if config.apple { 1 } else { 16 };
        if cap.max_send_wr.max(cap.max_recv_wr) > config.most_work
            || cap.max_send_sge.max(cap.max_recv_sge) > most_parts
            || cap.max_inline_data > if config.apple { 0 } else { 512 }
        {
            return Err(Errno(EINVAL));
        }
        let known = |queue| self.host.queues.contains_key(&queue);
        if !self.host.domains.contains_key(&shape.domain)
            || !known(shape.send_queue)
            || !known(shape.recv_queue)
        {
            return Err(Errno(EINVAL));
        }
        if self.pairs.values().filter(|p| p.shape.device == shape.device).count() >= config.most_pairs {
            return Err(Errno(EBUSY));
        }
        cap.max_send_wr = cap.max_send_wr.max(config.least_work);
        cap.max_recv_wr = cap.max_recv_wr.max(config.least_work);
        let (listener, number) = self.listen(address)?;
        for queue in [shape.send_queue, shape.recv_queue] {
            self.with_queue(queue, |q| q.pairs.push(number));
        }
        if let Some(users) = self.host.domains.get_mut(&shape.domain) {
            *users += 1;
        }
        let pair = Pair {
            number,
            address,
            shape,
            attr: ibv_qp_attr::default(),
            state: IBV_QPS_RESET,
            listener,
            peer: None,
            sender: Sender::default(),
            incoming: Vec::new(),
            receives: VecDeque::new(),
            receives_used: 0,
        };
        self.pairs.insert(number, pair);
        Ok(number)
    }

    /// Listener of a new pair. Its number is the port, so no two processes of this host have the same for one address; for another of
    /// this process's addresses the system gives the same port out again, so those are passed over, and kept meanwhile.
    fn listen(&self, address: Ipv4Addr) -> Result<(TcpListener, u32), Errno> {
        let mut taken = Vec::new();
        while taken.len() < 64 {
            let listener = TcpListener::bind((address, 0)).and_then(|l| l.set_nonblocking(true).map(|()| l));
            let listener = listener.map_err(|e| Errno(e.raw_os_error().unwrap_or(EAGAIN)))?;
            let number = listener.local_addr().map_err(|_| Errno(EAGAIN))?.port().into();
            if !self.pairs.contains_key(&number) {
                return Ok((listener, number));
            }
            taken.push(listener);
        }
        Err(Errno(EAGAIN))
    }

    /// Its completions that nobody took go with it.
    pub(crate) fn destroy_pair(&mut self, number: u32) -> Result<(), Errno> {
        let pair = self.pairs.remove(&number).ok_or(Errno(EINVAL))?;
        for queue in [pair.shape.send_queue, pair.shape.recv_queue] {
            self.with_queue(queue, |q| {
                q.pairs.retain(|p| *p != number);
                q.entries.retain(|e| e.wc.qp_num != number);
            });
        }
        self.leave(pair.shape.domain);
        Ok(())
    }

    pub(crate) fn modify(&mut self, number: u32, attr: &ibv_qp_attr, mask: i32) -> Result<(), Errno> {
        self.pairs.get_mut(&number).ok_or(Errno(EINVAL))?.modify(&mut self.host, attr, mask)
    }

    pub(crate) fn post_send(&mut self, number: u32, send: Send) -> Result<(), Errno> {
        self.pairs.get_mut(&number).ok_or(Errno(EINVAL))?.post_send(&self.host, send)
    }

    pub(crate) fn post_recv(&mut self, number: u32, receive: Receive) -> Result<(), Errno> {
        self.pairs.get_mut(&number).ok_or(Errno(EINVAL))?.post_recv(&self.host, receive)
    }

    pub(crate) fn progress(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.progress(&mut self.host);
        }
    }

    pub(crate) fn progress_all(&mut self) {
        for pair in self.pairs.values_mut() {
            pair.progress(&mut self.host);
        }
    }

    /// Return whether the client moves every connection itself: it polls all the queues that pairs use, and sleeps on none.
    pub(crate) fn is_polled(&self, lately: Duration) -> bool {
        let mut used = self.host.queues.values().filter(|q| !q.pairs.is_empty());
        used.all(|q| q.armed.is_none() && q.polled.is_some_and(|t| t.elapsed() < lately))
    }

    /// Up to `most` completions go to `each`. None: the queue overflowed, and is of no more use.
    pub(crate) fn poll(&mut self, id: u32, most: usize, mut each: impl FnMut(ibv_wc)) -> Option<usize> {
        let queue = self.host.queues.get_mut(&id)?;
        queue.polled = Some(Instant::now());
        if queue.overflow {
            return None;
        }
        if queue.entries.is_empty() {
            for i in 0..queue.pairs.len() {
                if let Some(&number) = self.host.queues.get(&id).and_then(|q| q.pairs.get(i)) {
                    self.progress(number);
                }
            }
        }
        let mut count = 0;
        while count < most {
            let Some(entry) = self.host.queues.get_mut(&id).and_then(|q| q.entries.pop_front()) else {
                break;
            };
            if let Some(pair) = self.pairs.get_mut(&entry.wc.qp_num) {
                let used = if entry.send { &mut pair.sender.used } else { &mut pair.receives_used };
                *used = used.saturating_sub(entry.units);
            }
            each(entry.wc);
            count += 1;
        }
        Some(count)
    }
}
