//! Protection domains and memory regions.

use super::{Context, device::ibv, export, keep, refused, world};
use crate::{
    abi::{ibv_mr, ibv_pd},
    memory::Region,
    pair::Errno,
};
use libc::{EINVAL, c_int, c_void};

/// A protection domain, and the device it is of.
#[repr(C)]
pub(super) struct Domain {
    pub(super) ibv: ibv_pd,
    pub(super) device: usize,
}

export! {
    "IBVERBS_1.1" fn ibv_alloc_pd(context: &Context) -> *mut Domain {
        match world().create_domain(context.device) {
            Ok(handle) => {
                let ibv = ibv_pd { context: ibv(context), handle };
                Box::into_raw(Box::new(Domain { ibv, device: context.device }))
            }
            Err(e) => refused(e),
        }
    }
    "IBVERBS_1.1" fn ibv_dealloc_pd(domain: Box<Domain>) -> c_int {
        let result = world().destroy_domain(domain.ibv.handle);
        keep(domain, result)
    }
    "IBVERBS_1.1" fn ibv_reg_mr(domain: &Domain, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        register(domain, addr, length, access)
    }
    "IBVERBS_1.8" fn ibv_reg_mr_iova2(
        domain: &Domain,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> *mut ibv_mr {
        if iova == addr.addr() as u64 {
            register(domain, addr, length, access as c_int)
        } else {
            refused(Errno(EINVAL))
        }
    }
    "IBVERBS_1.1" fn ibv_dereg_mr(region: Box<ibv_mr>) -> c_int {
        let result = world().deregister(region.lkey);
        keep(region, result)
    }
}

fn register(domain: &Domain, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    let start = addr.expose_provenance() as u64;
    let region =
        Region { device: domain.device, domain: domain.ibv.handle, start, length: length as u64, access };
    match world().register(region) {
        Ok(key) => {
            let context = domain.ibv.context;
            let pd = &raw const domain.ibv;
            Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key }))
        }
        Err(e) => refused(e),
    }
}
