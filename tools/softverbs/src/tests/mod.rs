//! Two processes' worth of devices in one: connected by hand, moved by hand, looked at from outside.

mod apple;
mod faults;
mod reliable;
mod unreliable;

use crate::{
    abi::*,
    config::Config,
    memory::Region,
    pair::{Errno, Receive, Send, Shape},
    world::World,
};
use std::{
    env,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

pub(super) const MEMORY: usize = 1 << 16;

/// An end: a world of its own with one pair.
#[derive(Debug)]
struct End {
    world: World,
    domain: u32,
    queue: u32,
    pair: u32,
    memory: Vec<u8>,
    key: u32,
    seen: Vec<ibv_wc>,
}

fn config(variables: &[(&str, &str)]) -> Config {
    Config::parse(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())).unwrap()
}

fn shape(kind: u32, domain: u32, queue: u32) -> Shape {
    let cap =
        ibv_qp_cap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    Shape { device: 0, domain, kind, cap, signal_all: true, send_queue: queue, recv_queue: queue }
}

impl End {
    fn new(kind: u32, variables: &[(&str, &str)]) -> Self {
        let mut world = World::new(config(variables));
        let domain = world.create_domain(0).unwrap();
        let queue = world.create_queue(4096);
        let pair = world.create_pair(shape(kind, domain, queue)).unwrap();
        let mut memory = vec![0; MEMORY];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let region =
            Region { device: 0, domain, start, length: MEMORY as u64, access: IBV_ACCESS_LOCAL_WRITE };
        let key = world.register(region).unwrap();
        Self { world, domain, queue, pair, memory, key, seen: Vec::new() }
    }

    fn step(&mut self, attr: ibv_qp_attr, mask: i32) -> Result<(), Errno> {
        self.world.modify(self.pair, &attr, mask | IBV_QP_STATE)
    }

    fn init(&mut self) -> Result<(), Errno> {
        let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
        self.step(attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    fn rc(&self, mask: i32) -> i32 {
        if self.world.pairs[&self.pair].reliable() { mask } else { 0 }
    }

    fn ready_to_receive(&mut self, gid: [u8; 16], number: u32) -> Result<(), Errno> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_1024,
            dest_qp_num: number,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid.raw = gid;
        attr.ah_attr.grh.sgid_index = self.world.host.config.quirks.gid_index as u8;
        let mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.step(attr, mask | self.rc(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    }

    /// RC: some 17 ms without the peer are too long.
    fn ready_to_send(&mut self) -> Result<(), Errno> {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 10,
            retry_cnt: 3,
            rnr_retry: 7,
            ..ibv_qp_attr::default()
        };
        let rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.step(attr, IBV_QP_SQ_PSN | self.rc(rc))
    }

    fn gid(&self) -> [u8; 16] {
        let config = &self.world.host.config;
        config.gids(0)[config.quirks.gid_index]
    }

    fn part(&self, at: usize, length: usize) -> ibv_sge {
        let addr = self.memory.as_ptr().expose_provenance() as u64 + at as u64;
        ibv_sge { addr, length: length as u32, lkey: self.key }
    }

    fn post(&mut self, id: u64, at: usize, length: usize) -> Result<(), Errno> {
        let list = vec![self.part(at, length)];
        let send = Send { id, list, length, signaled: true, ..Send::default() };
        self.world.post_send(self.pair, send)
    }

    fn receive(&mut self, id: u64, at: usize, length: usize) -> Result<(), Errno> {
        let list = vec![self.part(at, length)];
        self.world.post_recv(self.pair, Receive { id, list, length })
    }

    fn poll(&mut self) {
        self.world.progress(self.pair);
        let seen = &mut self.seen;
        self.world.poll(self.queue, 16, |wc| seen.push(wc)).expect("a queue that did not overflow");
    }

    /// Identifiers and statuses of what has completed, in order.
    fn ended(&self) -> Vec<(u64, u32)> {
        self.seen.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

/// Two connected ends at 127.0.0.1 and, with `DEVICES` as given, wherever the second list says.
fn connected(kind: u32, a: &[(&str, &str)], b: &[(&str, &str)]) -> (End, End) {
    let mut a = End::new(kind, a);
    let mut b = End::new(kind, b);
    let at = (a.gid(), a.pair);
    let bt = (b.gid(), b.pair);
    for (end, (gid, number)) in [(&mut a, bt), (&mut b, at)] {
        end.init().unwrap();
        end.ready_to_receive(gid, number).unwrap();
        end.ready_to_send().unwrap();
    }
    (a, b)
}

/// Move both until it is so.
fn until(a: &mut End, b: &mut End, so: impl Fn(&End, &End) -> bool) {
    let start = Instant::now();
    while !so(a, b) {
        a.poll();
        b.poll();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "it did not come to that: {:?} and {:?}",
            a.ended(),
            b.ended()
        );
    }
}

/// Move both for a while in which nothing is to happen.
fn for_a_while(a: &mut End, b: &mut End) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(60) {
        a.poll();
        b.poll();
    }
}

/// A name for a file of this test alone.
fn file() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    env::temp_dir().join(format!("softverbs-down-{}-{count}", std::process::id()))
}
