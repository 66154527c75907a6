//! A queue pair: what is posted, where its peer is, how its work ends, its states, and which attributes each step wants.

use crate::{abi::*, config::Config, queue::Entry, receive::Incoming, send::Sender, world::Host};
use libc::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};
use std::{
    collections::VecDeque,
    net::{Ipv4Addr, TcpListener},
};

pub(crate) const FRAME: usize = 4096;

/// The error number of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// A posted SEND.
#[derive(Debug, Default)]
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) list: Vec<ibv_sge>,
    pub(crate) length: usize,
    pub(crate) immediate: Option<u32>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// The data themselves, when they were taken at once.
    pub(crate) inline: Option<Vec<u8>>,
}

/// A posted RECV.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) list: Vec<ibv_sge>,
    pub(crate) length: usize,
}

/// The other end, as told when this one was made ready to receive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Peer {
    pub(crate) address: Ipv4Addr,
    pub(crate) number: u32,
    pub(crate) cabled: bool,
}

/// Attributes of a new pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) device: usize,
    pub(crate) domain: u32,
    pub(crate) kind: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signal_all: bool,
    pub(crate) send_queue: u32,
    pub(crate) recv_queue: u32,
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) number: u32,
    pub(crate) address: Ipv4Addr,
    pub(crate) shape: Shape,
    pub(crate) attr: ibv_qp_attr,
    pub(crate) state: u32,
    pub(crate) listener: TcpListener,
    pub(crate) peer: Option<Peer>,
    pub(crate) sender: Sender,
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) receives_used: u32,
}

/// Part of a queue's depth that a message takes: in `apple` mode depths are counted in frames.
pub(crate) fn units(config: &Config, length: usize) -> u32 {
    if config.apple { u32::try_from(length.div_ceil(FRAME).max(1)).unwrap_or(u32::MAX) } else { 1 }
}

/// Part of a queue's depth that can be used. A ring of N frames holds N - 1: reported of macOS, where 63 messages of
/// 16 frames fit a depth of 1024.
pub(crate) fn usable(config: &Config, depth: u32) -> u32 {
    if config.apple { depth.saturating_sub(1) } else { depth }
}

/// "Operation timed out" of macOS: reported for a GID that this link does not lead to.
const MACOS_ETIMEDOUT: i32 = 60;

/// The attributes that a step to this state must have, and may have.
fn attributes(state: u32, reliable: bool) -> (i32, i32) {
    let rc = |mask| if reliable { mask } else { 0 };
    match state {
        IBV_QPS_INIT => (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0),
        IBV_QPS_RTR => (
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | rc(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
        ),
        _ => (
            IBV_QP_SQ_PSN
                | rc(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
            IBV_QP_CUR_STATE
                | IBV_QP_ALT_PATH
                | IBV_QP_ACCESS_FLAGS
                | IBV_QP_PATH_MIG_STATE
                | rc(IBV_QP_MIN_RNR_TIMER),
        ),
    }
}

impl Pair {
    pub(crate) fn reliable(&self) -> bool {
        self.shape.kind == IBV_QPT_RC
    }

    pub(crate) fn post_send(&mut self, host: &Host, send: Send) -> Result<(), Errno> {
        let config = &host.config;
        let cap = &self.shape.cap;
        if self.state < IBV_QPS_RTS
            || send.list.len() > cap.max_send_sge as usize
            || send.length > config.most_bytes
            || send.inline.is_some() && send.length > cap.max_inline_data as usize
        {
            return Err(Errno(EINVAL));
        }
        if config.apple && send.immediate.is_some() {
            return Err(Errno(EOPNOTSUPP));
        }
        let units = units(config, send.length);
        if self.sender.used + units > usable(config, cap.max_send_wr) {
            return Err(Errno(ENOMEM));
        }
        self.sender.used += units;
        self.sender.waiting.push_back(send);
        Ok(())
    }

    pub(crate) fn post_recv(&mut self, host: &Host, receive: Receive) -> Result<(), Errno> {
        let config = &host.config;
        let too_early =
            self.state == IBV_QPS_RESET || config.quirks.recv_needs_rts && self.state < IBV_QPS_RTS;
        if too_early || receive.list.len() > self.shape.cap.max_recv_sge as usize {
            return Err(Errno(EINVAL));
        }
        let units = units(config, receive.length);
        if self.receives_used + units > usable(config, self.shape.cap.max_recv_wr) {
            return Err(Errno(ENOMEM));
        }
        self.receives_used += units;
        self.receives.push_back(receive);
        if config.apple {
            self.incoming.iter_mut().for_each(|i| i.credit(units));
        }
        Ok(())
    }

    /// Move what can be moved; whether anything was.
    pub(crate) fn progress(&mut self, host: &mut Host) -> bool {
        match self.state {
            IBV_QPS_RESET => false,
            IBV_QPS_ERR => {
                self.flush(host);
                false
            }
            _ => {
                let down = self.peer.is_some_and(|p| host.config.down(&[self.address, p.address]));
                let sent = self.progress_send(host, down);
                let works = !down && self.state != IBV_QPS_ERR;
                works && self.progress_receive(host) || sent
            }
        }
    }

    /// A SEND is over. Slots of requests without a completion come back with the next that has one.
    pub(crate) fn complete_send(&mut self, host: &mut Host, send: &Send, status: u32) {
        self.sender.unclaimed += units(&host.config, send.length);
        if send.signaled || status != IBV_WC_SUCCESS {
            let wc = ibv_wc {
                wr_id: send.id,
                status,
                opcode: IBV_WC_SEND,
                byte_len: send.length as u32,
                qp_num: self.number,
                ..ibv_wc::default()
            };
            let units = std::mem::take(&mut self.sender.unclaimed);
            host.complete(self.shape.send_queue, Entry { wc, units, send: true, solicited: false });
        }
    }

    pub(crate) fn complete_receive(
        &mut self,
        host: &mut Host,
        receive: &Receive,
        status: u32,
        length: usize,
        immediate: Option<u32>,
        solicited: bool,
    ) {
        let wc = ibv_wc {
            wr_id: receive.id,
            status,
            opcode: IBV_WC_RECV,
            byte_len: length as u32,
            imm_data: immediate.unwrap_or(0),
            qp_num: self.number,
            src_qp: self.attr.dest_qp_num,
            wc_flags: if immediate.is_some() { IBV_WC_WITH_IMM } else { 0 },
            ..ibv_wc::default()
        };
        let units = units(&host.config, receive.length);
        host.complete(self.shape.recv_queue, Entry { wc, units, send: false, solicited });
    }

    /// The pair works no more: everything posted ends, and the peer's frames find nobody.
    pub(crate) fn fail(&mut self, host: &mut Host) {
        if self.state != IBV_QPS_ERR {
            self.state = IBV_QPS_ERR;
            self.sender.disconnect();
            self.close_incoming();
            self.flush(host);
        }
    }

    fn flush(&mut self, host: &mut Host) {
        while let Some(send) = self.sender.unacked.pop_front().or_else(|| self.sender.waiting.pop_front()) {
            self.complete_send(host, &send, IBV_WC_WR_FLUSH_ERR);
        }
        while let Some(receive) = self.receives.pop_front() {
            self.complete_receive(host, &receive, IBV_WC_WR_FLUSH_ERR, 0, None, false);
        }
    }

    /// Forget everything but the number.
    pub(crate) fn reset(&mut self) {
        self.state = IBV_QPS_RESET;
        self.peer = None;
        self.sender = Sender::default();
        self.incoming.clear();
        self.receives.clear();
        self.receives_used = 0;
    }

    pub(crate) fn modify(&mut self, host: &mut Host, attr: &ibv_qp_attr, mask: i32) -> Result<(), Errno> {
        if mask & IBV_QP_STATE == 0 {
            return Err(Errno(EINVAL));
        }
        if host.config.apple && host.config.down(&[self.address]) {
            return Err(Errno(EBUSY));
        }
        match (self.state, attr.qp_state) {
            (_, IBV_QPS_ERR) => {
                self.fail(host);
                return Ok(());
            }
            (_, IBV_QPS_RESET) => {
                self.reset();
                return Ok(());
            }
            (IBV_QPS_RTS, IBV_QPS_RTS) => return Ok(()),
            (IBV_QPS_RESET, IBV_QPS_INIT) | (IBV_QPS_INIT, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS) => {}
            _ => return Err(Errno(EINVAL)),
        }
        let (must, may) = attributes(attr.qp_state, self.reliable());
        if mask & must != must || mask & !(must | may | IBV_QP_STATE) != 0 {
            return Err(Errno(EINVAL));
        }
        match attr.qp_state {
            IBV_QPS_INIT => {
                if attr.port_num != 1 {
                    return Err(Errno(EINVAL));
                }
                self.attr.port_num = 1;
                self.attr.qp_access_flags = attr.qp_access_flags;
            }
            IBV_QPS_RTR => {
                self.peer = Some(self.peer_of(host, attr)?);
                self.attr.path_mtu = attr.path_mtu;
                self.attr.dest_qp_num = attr.dest_qp_num;
                self.attr.rq_psn = attr.rq_psn;
                self.attr.ah_attr = attr.ah_attr;
                self.attr.min_rnr_timer = attr.min_rnr_timer;
                self.attr.max_dest_rd_atomic = attr.max_dest_rd_atomic;
            }
            _ => {
                self.attr.sq_psn = attr.sq_psn;
                self.attr.timeout = attr.timeout;
                self.attr.retry_cnt = attr.retry_cnt;
                self.attr.rnr_retry = attr.rnr_retry;
                self.attr.max_rd_atomic = attr.max_rd_atomic;
            }
        }
        self.state = attr.qp_state;
        Ok(())
    }

    /// Peer at the other end: named by an IPv4-mapped GID, or by the low half of an address as LID.
    fn peer_of(&self, host: &Host, attr: &ibv_qp_attr) -> Result<Peer, Errno> {
        let config = &host.config;
        let path = &attr.ah_attr;
        if !(1..=5).contains(&attr.path_mtu) || path.port_num != 1 || attr.dest_qp_num > 0xffff {
            return Err(Errno(EINVAL));
        }
        let address = if path.is_global != 0 {
            let gid = path.grh.dgid.raw;
            let mapped = gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff];
            // The other GIDs are of another kind, and lead nowhere.
            if !mapped || usize::from(path.grh.sgid_index) != config.quirks.gid_index {
                return Err(Errno(EINVAL));
            }
            Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15])
        } else if config.apple {
            return Err(Errno(EINVAL));
        } else {
            let ([a, b, ..], [c, d]) = (self.address.octets(), path.dlid.to_be_bytes());
            Ipv4Addr::new(a, b, c, d)
        };
        let cabled = crate::config::is_near(address) && config.cabled(self.address, address);
        if config.apple && !cabled {
            return Err(Errno(MACOS_ETIMEDOUT));
        }
        Ok(Peer { address, number: attr.dest_qp_num, cabled })
    }
}
