//! Devices: the list, opening, and what they say of themselves.

use super::{Context, ShownDevice, export, operations, refused, set_errno, shared, text, world};
use crate::{abi::*, config::guid, pair::Errno};
use libc::{EINVAL, c_char, c_int};
use std::{
    mem::{MaybeUninit, offset_of},
    ptr,
    sync::OnceLock,
};

/// Transport type that Thunderbolt devices are reported to have.
const TRANSPORT_THUNDERBOLT: c_int = 100;

/// The addresses of the devices and a null, which stay for good.
struct List(Box<[usize]>);

fn list() -> Result<&'static List, Errno> {
    static LIST: OnceLock<List> = OnceLock::new();
    if let Err(e) = shared() {
        eprintln!("softverbs: {e}");
        return Err(Errno(EINVAL));
    }
    Ok(LIST.get_or_init(|| {
        let config = world().host.config.clone();
        let devices = config.devices.iter().enumerate().map(|(index, device)| {
            let ibv = ibv_device {
                _ops: [None; 2],
                node_type: IBV_NODE_CA,
                transport_type: if config.apple { TRANSPORT_THUNDERBOLT } else { IBV_TRANSPORT_IB },
                name: text(&device.name),
                dev_name: text(&format!("uverbs{index}")),
                dev_path: text("/nonexistent"),
                ibdev_path: text("/nonexistent"),
            };
            ptr::from_mut(Box::leak(Box::new(ShownDevice { ibv, index }))).expose_provenance()
        });
        List(devices.chain([0]).collect())
    }))
}

export! {
    "IBVERBS_1.1" fn ibv_get_device_list(count: Option<&mut c_int>) -> *mut *mut ibv_device {
        match list() {
            Ok(list) => {
                if let Some(count) = count {
                    *count = (list.0.len() - 1) as c_int;
                }
                let copy: Box<[*mut ibv_device]> =
                    list.0.iter().map(|&address| ptr::with_exposed_provenance_mut(address)).collect();
                Box::leak(copy).as_mut_ptr()
            }
            Err(e) => {
                if let Some(count) = count {
                    *count = 0;
                }
                refused(e)
            }
        }
    }
    "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device) {
        if !list.is_null() {
            // SAFETY: it was made above, as long as up to the first null, and is given back once.
            unsafe {
                let devices = (0..).take_while(|&i| !(*list.add(i)).is_null()).count();
                drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, devices + 1)));
            }
        }
    }
    "IBVERBS_1.1" fn ibv_get_device_name(device: &ibv_device) -> *const c_char {
        device.name.as_ptr()
    }
    "IBVERBS_1.1" fn ibv_get_device_guid(device: &ShownDevice) -> u64 {
        world().host.config.devices.get(device.index).map_or(0, |d| guid(d.address)).to_be()
    }
    "IBVERBS_1.1" fn ibv_open_device(device: &ShownDevice) -> *mut Context {
        let ibv = ibv_context {
            device: &raw const device.ibv,
            ops: operations(),
            cmd_fd: -1,
            async_fd: -1,
            num_comp_vectors: 1,
            mutex: Mutex::default(),
            abi_compat: ptr::null_mut(),
        };
        Box::into_raw(Box::new(Context { ibv, device: device.index }))
    }
    "IBVERBS_1.1" fn ibv_close_device(context: Box<Context>) -> c_int {
        drop(context);
        0
    }
    "IBVERBS_1.1" fn ibv_query_device(context: &Context, attr: &mut MaybeUninit<ibv_device_attr>) -> c_int {
        let world = world();
        let config = &world.host.config;
        let Some(device) = config.devices.get(context.device) else { return EINVAL };
        let int = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        attr.write(ibv_device_attr {
            fw_ver: text("softverbs"),
            node_guid: guid(device.address).to_be(),
            sys_image_guid: guid(device.address).to_be(),
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0x5356,
            vendor_part_id: 1,
            max_qp: int(config.most_pairs),
            max_qp_wr: config.most_work as c_int,
            max_sge: if config.apple { 1 } else { 16 },
            max_cq: 1024,
            max_cqe: 1 << 20,
            max_mr: int(config.most_regions),
            max_pd: 1024,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_res_rd_atom: 256,
            max_pkeys: 1,
            phys_port_cnt: 1,
            ..ibv_device_attr::default()
        });
        0
    }
    // The exported function knows the fields up to `flags` only: those of the library's first version.
    "IBVERBS_1.1" fn ibv_query_port(context: &Context, port: u8, attr: *mut u8) -> c_int {
        let world = world();
        let config = &world.host.config;
        let Some(device) = config.devices.get(context.device).filter(|_| port == 1) else {
            set_errno(EINVAL);
            return EINVAL;
        };
        let [_, _, c, d] = device.address.octets();
        let values = ibv_port_attr {
            state: if config.down(&[device.address]) { IBV_PORT_DOWN } else { IBV_PORT_ACTIVE },
            max_mtu: IBV_MTU_4096,
            active_mtu: if config.apple { IBV_MTU_4096 } else { IBV_MTU_1024 },
            gid_tbl_len: config.gids(context.device).len() as c_int,
            max_msg_sz: u32::try_from(config.most_bytes).unwrap_or(u32::MAX),
            pkey_tbl_len: 1,
            lid: if config.apple { 0 } else { u16::from_be_bytes([c, d]) },
            max_vl_num: 1,
            active_width: 2,
            active_speed: 32,
            phys_state: 5,
            // Nothing says which one Apple's has; addressing is by GID, as on Ethernet.
            link_layer: if config.apple { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND },
            ..ibv_port_attr::default()
        };
        let known = offset_of!(ibv_port_attr, port_cap_flags2);
        // SAFETY: the caller gives room for at least the fields of the first version.
        unsafe { ptr::copy_nonoverlapping((&raw const values).cast(), attr, known) };
        0
    }
    "IBVERBS_1.1" fn ibv_query_gid(context: &Context, port: u8, index: c_int, gid: &mut MaybeUninit<ibv_gid>) -> c_int {
        match gid_of(context, port.into(), usize::try_from(index).unwrap_or(usize::MAX)) {
            Some(raw) => {
                gid.write(ibv_gid { raw });
                0
            }
            None => {
                set_errno(EINVAL);
                -1
            }
        }
    }
    "IBVERBS_PRIVATE_34" fn ibv_query_gid_type(context: &Context, port: u8, index: u32, kind: &mut c_int) -> c_int {
        // Of the kernel's numbers: 0 for InfiniBand and RoCE v1, 1 for v2.
        match gid_of(context, port.into(), index as usize) {
            Some(raw) => {
                *kind = (raw[0] == 0).into();
                0
            }
            None => -1,
        }
    }
    // There is nothing in /sys to read.
    "IBVERBS_1.0" fn ibv_read_sysfs_file(_folder: *const c_char, _file: *const c_char, _to: *mut c_char, _size: usize) -> c_int {
        -1
    }
}

fn gid_of(context: &Context, port: u32, index: usize) -> Option<[u8; 16]> {
    world().host.config.gids(context.device).get(index).copied().filter(|_| port == 1)
}

/// For the objects of an open device.
pub(super) fn ibv(context: &Context) -> *const ibv_context {
    &raw const context.ibv
}
