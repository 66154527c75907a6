//! The states of a queue pair, and which attributes each step wants.

use crate::{
    abi::{
        IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_AV, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE,
        IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
        IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR,
        IBV_QPS_RTS, ibv_qp_attr,
    },
    host::Host,
    pair::{Errno, Pair, Peer},
};
use libc::{EBUSY, EINVAL};
use std::net::Ipv4Addr;

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
    pub(crate) fn modify(&mut self, host: &mut Host, attr: &ibv_qp_attr, mask: i32) -> Result<(), Errno> {
        if mask & IBV_QP_STATE == 0 {
            return Err(Errno(EINVAL));
        }
        if host.config.apple() && host.config.down(&[self.address]) {
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
            if !mapped || usize::from(path.grh.sgid_index) != config.mapped_at(self.shape.device) {
                return Err(Errno(EINVAL));
            }
            Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15])
        } else if config.apple() {
            return Err(Errno(EINVAL));
        } else {
            let ([a, b, ..], [c, d]) = (self.address.octets(), path.dlid.to_be_bytes());
            Ipv4Addr::new(a, b, c, d)
        };
        let cabled = crate::config::is_near(address) && config.cabled(self.address, address);
        if config.apple() && !cabled {
            return Err(Errno(MACOS_ETIMEDOUT));
        }
        Ok(Peer { address, number: attr.dest_qp_num, cabled })
    }
}
