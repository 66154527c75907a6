//! The peer connections of one process: which device leads to whom, and what was made of it.

use super::{
    VerbsLink,
    driver::{Handle, Held, Slots},
    establish::{Ours, WaitReadable, establish},
};
use crate::{
    Link, Result,
    sync::lock,
    sys::verbs::{Device, QueueService, Verbs},
};
use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

/// Source of the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// By peer: the devices that lead to it; none where the pair goes another way.
    Named(Vec<Vec<String>>),
    /// The one with the address that the pair's connection has here.
    Found,
}

impl Devices {
    /// Checks that RDMA may be used at all here; the reason if not.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Self::Named(row) = self {
            return match row.iter().any(|names| !names.is_empty()) {
                true => Verbs::find().map(drop).map_err(str::to_owned),
                false => Err("the device matrix names no device of this rank".into()),
            };
        }
        // Most hosts have none, and need not load a library to know it.
        let named = std::env::var_os("COMITY_VERBS").is_some_and(|v| !v.is_empty());
        if cfg!(target_os = "linux") && !named && !Path::new("/sys/class/infiniband").exists() {
            return Err("this host has no RDMA device (/sys/class/infiniband)".into());
        }
        let verbs = Verbs::find()?;
        match verbs.devices().is_empty() {
            true => Err(format!("{} lists no device", verbs.name())),
            false => Ok(()),
        }
    }
}

/// This process's peer connections, by rank, and the devices that lead to them.
#[derive(Debug)]
pub(crate) struct PeerTable {
    me: usize,
    size: usize,
    devices: Devices,
    only: Option<QueueService>,
    slots: Slots,
    made: Mutex<HashMap<usize, Arc<Handle>>>,
    /// Peers to whom it was tried in vain.
    vain: Mutex<HashSet<usize>>,
}

impl PeerTable {
    /// Makes the table of rank `me` among `size`; limited to one service, if so.
    pub(crate) fn new(me: usize, size: usize, devices: Devices, only: Option<QueueService>) -> Self {
        Self {
            me,
            size,
            devices,
            only,
            slots: Slots::DEFAULT,
            made: Mutex::default(),
            vain: Mutex::default(),
        }
    }

    /// Returns true if the devices of a pair do not depend on its connection.
    pub(crate) fn are_named(&self) -> bool {
        matches!(self.devices, Devices::Named(_))
    }

    /// Do not try this one again.
    pub(crate) fn give_up(&self, peer: usize) {
        lock(&self.vain).insert(peer);
    }

    /// Returns true if a device may lead to `peer`.
    pub(crate) fn leads_to(&self, peer: usize) -> bool {
        if lock(&self.vain).contains(&peer) {
            return false;
        }
        match &self.devices {
            Devices::Named(row) => row.get(peer).is_some_and(|names| !names.is_empty()),
            Devices::Found => true,
        }
    }

    /// A group's link to `peer`, if there is a peer connection.
    pub(crate) fn link(&self, peer: usize, group_id: u64) -> Option<io::Result<Box<dyn Link>>> {
        let peer_connection = lock(&self.made).get(&peer).cloned()?;
        Some(VerbsLink::new(peer_connection, group_id).map(|link| Box::new(link) as Box<dyn Link>))
    }

    /// Make the peer connection to `peer` beside this connection; the reason if there is none, which the peer knows too.
    pub(crate) fn establish(
        &self,
        peer: usize,
        stream: TcpStream,
        until: Instant,
        wait: WaitReadable<'_>,
    ) -> Result<Result<(), String>> {
        let (held, why) = self.open(peer, stream.local_addr().ok().map(|a| a.ip()));
        let ours = Ours { held, why, slots: self.slots, only: self.only, lower: self.me < peer };
        Ok(match establish(stream, ours, until, wait)? {
            Ok(handle) => {
                lock(&self.made).insert(peer, Arc::new(handle));
                Ok(())
            }
            Err(why) => Err(why),
        })
    }

    /// The devices that lead to `peer`, and why there are not more.
    fn open(&self, peer: usize, local: Option<IpAddr>) -> (Vec<Arc<Held>>, String) {
        let mut held = Vec::new();
        let mut why = Vec::new();
        let names = match &self.devices {
            Devices::Named(row) => {
                let names = row.get(peer).cloned().unwrap_or_default();
                if names.is_empty() {
                    why.push("the device matrix has no device for this pair".to_owned());
                }
                names
            }
            Devices::Found => match Verbs::find() {
                Ok(verbs) => {
                    let mut names = verbs.devices();
                    names.retain(|name| match Device::look(name) {
                        Ok(at) => at.ip().map(IpAddr::from) == local,
                        Err(t) => {
                            why.push(t.to_string());
                            false
                        }
                    });
                    if names.is_empty() {
                        let at = local.map_or_else(|| "of the connection".to_owned(), |ip| ip.to_string());
                        why.push(format!("no device has the address {at}"));
                    }
                    names
                }
                Err(e) => {
                    why.push(e.to_owned());
                    Vec::new()
                }
            },
        };
        for name in names {
            match Held::open(&name, self.size - 1) {
                Ok(h) => held.push(Arc::new(h)),
                Err(t) => why.push(t.to_string()),
            }
        }
        (held, why.join("; "))
    }

    /// Over shorter slots, for tests.
    #[cfg(test)]
    pub(super) fn with_slots(mut self, slots: Slots) -> Self {
        self.slots = slots;
        self
    }
}
