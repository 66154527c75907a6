//! The port of a device: whether it is up, and the address that packets to it bear.

use super::Device;
use crate::sys::verbs::{DeviceError, abi::*};
use std::{ffi::c_int, fmt, io, mem, net::Ipv4Addr};

/// The port that is used. Devices with more list them as devices of their own where it matters.
pub(super) const PORT: u8 = 1;
/// More than any device lists for one port.
const MOST_GIDS: c_int = 256;

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

impl Device {
    fn port(&self) -> Result<ibv_port_attr, DeviceError> {
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
    pub(super) fn find_address(&mut self) -> Result<(), DeviceError> {
        let port = self.port()?;
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

    /// Returns true if the port is up, as the device says now.
    pub fn is_up(&self) -> Result<bool, DeviceError> {
        Ok(self.port()?.state == IBV_PORT_ACTIVE)
    }
}

/// Returns true if this GID is of RoCE v2, which routers forward.
fn is_newer(device: &str, index: u8) -> bool {
    let path = format!("/sys/class/infiniband/{device}/ports/{PORT}/gid_attrs/types/{index}");
    let kind: io::Result<String> = std::fs::read_to_string(path);
    kind.is_ok_and(|k| k.trim().ends_with("v2"))
}
