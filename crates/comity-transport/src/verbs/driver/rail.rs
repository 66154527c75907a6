//! The devices that are open: one of each, with what of it is in use and by whom.

use super::{driver, is_ours};
use crate::{
    sys::verbs::{Abilities, Address, Completion, Depth, Device, DeviceError, DeviceStep},
    verbs::path::{QUEUE_PAIRS, RdmaPath},
};
use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

/// The most registered memory of one device.
const SLAB: usize = 64 << 20;
/// Completions that one device may owe.
const COMPLETIONS: usize = 8192;

/// Slots of a path, the same on both ends.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Slots {
    pub(in crate::verbs) qps: [Depth; QUEUE_PAIRS],
}

impl Slots {
    /// Short frames for latency; long ones large enough that the checks of a frame cost little.
    pub(in crate::verbs) const DEFAULT: Self =
        Self { qps: [Depth { slots: 64, bytes: 4096 }, Depth { slots: 16, bytes: 128 << 10 }] };

    /// Bytes of a slab, for both directions.
    pub(super) fn bytes(&self) -> usize {
        self.qps.iter().map(|l| 2 * l.slots * l.bytes).sum()
    }

    pub(super) fn completions(&self) -> usize {
        self.qps.iter().map(|l| 2 * l.slots).sum()
    }
}

/// A device, and who uses what of it.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) device: Device,
    pub(super) events: Option<Arc<OwnedFd>>,
    /// Peer connection, path and queue pair by number of the queue pair.
    pub(super) qps: HashMap<u32, (u64, usize, usize)>,
    /// Parts of the slab in use.
    pub(super) regions: Vec<(usize, usize)>,
    /// Bytes of the slab that were ever in use, from its beginning: the rest is zeros.
    pub(super) used: usize,
    pub(super) owed: usize,
    pub(super) done: Vec<Completion>,
    /// Handles on it.
    users: usize,
}

/// The open devices, by place.
#[derive(Debug)]
pub(in crate::verbs) struct Rails(pub(super) Vec<Option<Rail>>);

impl Rails {
    pub(in crate::verbs) fn device(&mut self, rail: usize) -> Option<&mut Device> {
        Some(&mut self.0.get_mut(rail)?.as_mut()?.device)
    }

    pub(super) fn live(&mut self) -> impl Iterator<Item = (usize, &mut Rail)> {
        self.0.iter_mut().enumerate().filter_map(|(i, r)| Some((i, r.as_mut()?)))
    }
}

/// A device held open.
#[derive(Debug)]
pub(in crate::verbs) struct Held {
    pub(in crate::verbs) rail: usize,
    pub(in crate::verbs) name: String,
    pub(in crate::verbs) at: Address,
    pub(in crate::verbs) abilities: Abilities,
}

impl Held {
    /// Open a device, or use it as it is open already; `peers` is how many others may be reached over it.
    pub(in crate::verbs) fn open(name: &str, peers: usize) -> Result<Self, DeviceError> {
        let mut driver = driver();
        driver.own();
        let found = driver.rails.live().find(|(_, r)| r.device.name() == name).map(|(i, _)| i);
        let rail = match found {
            Some(rail) => rail,
            None => {
                let device = open(name, peers)?;
                let events = device.event_fd().and_then(|fd| fd.try_clone_to_owned().ok()).map(Arc::new);
                let new = Rail {
                    device,
                    events,
                    qps: HashMap::new(),
                    regions: Vec::new(),
                    used: 0,
                    owed: 0,
                    done: Vec::new(),
                    users: 0,
                };
                match driver.rails.0.iter().position(Option::is_none) {
                    Some(i) => {
                        driver.rails.0[i] = Some(new);
                        i
                    }
                    None => {
                        driver.rails.0.push(Some(new));
                        driver.rails.0.len() - 1
                    }
                }
            }
        };
        let r = driver.rails.0[rail].as_mut().ok_or_else(|| DeviceError::new(name, "", "it is closed", 0))?;
        r.users += 1;
        Ok(Self { rail, name: name.to_owned(), at: r.device.address(), abilities: r.device.abilities() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        let mut driver = driver();
        let Some(place) = driver.rails.0.get_mut(self.rail) else { return };
        if let Some(rail) = place {
            rail.users -= 1;
            if rail.users == 0 {
                *place = None;
            }
        }
    }
}

/// Opens a device with as much memory as may be needed, or as the system allows to be registered.
fn open(name: &str, peers: usize) -> Result<Device, DeviceError> {
    let path = Slots::DEFAULT.bytes();
    // Two cables to each.
    let mut slab = (2 * peers.max(1) * path).min(SLAB / path * path);
    loop {
        let no_memory = rustix::io::Errno::NOMEM.raw_os_error();
        match Device::open(name, slab, COMPLETIONS) {
            Err(DeviceError { code, step: DeviceStep::Register(_), .. })
                if code == no_memory && slab / 2 >= path =>
            {
                slab /= 2;
            }
            out => return out,
        }
    }
}

impl Rail {
    /// Unused memory of the slab.
    pub(super) fn room(&mut self, len: usize) -> Option<(usize, usize)> {
        self.regions.sort_unstable();
        let mut at = 0;
        for (start, n) in &self.regions {
            if start - at >= len {
                break;
            }
            at = start + n;
        }
        self.device.slab().holds(at, len).then_some((at, len))
    }

    /// Reason for which there is no [`room`](Self::room).
    pub(super) fn is_full(&self) -> String {
        let mib = self.device.slab().len() as f64 / f64::from(1 << 20);
        format!("all {mib:.1} MiB that were registered for the group that opened it first are in use")
    }

    pub(super) fn clear(&mut self, w: &RdmaPath, slots: &Slots) {
        let had = self.regions.len();
        self.regions.retain(|r| *r != w.region);
        if self.regions.len() == had {
            return;
        }
        self.owed -= slots.completions();
        for qp in &w.qps {
            self.qps.remove(&qp.queue);
            self.device.destroy(qp.queue);
        }
    }
}
