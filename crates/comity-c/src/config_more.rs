//! Settings of a configuration that have a good default. `docs/settings.md` says what each does.

use crate::{
    config::change,
    errors::CFault,
    group::seconds,
    handles::comity_config,
    job::count,
    raw,
    types::{self, BackendNumber, SecureNumber, comity_status},
};
use comity::{Algorithm, Detection, LinkKind};
use std::{
    ffi::c_char,
    net::{IpAddr, SocketAddr},
};

/// Use of the key; at first COMITY_SECURE_HANDSHAKE. The same on all ranks.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_secure(config: *mut comity_config, secure: SecureNumber) -> comity_status {
    change(config, |c| Ok(c.secure(types::secure(secure)?)))
}

/// Limit on a call, in seconds; at first 300. INFINITY: as long as all ranks live.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_timeout(config: *mut comity_config, timeout: f64) -> comity_status {
    change(config, |c| Ok(c.timeout(seconds("the timeout", timeout)?)))
}

/// Limit on the time until all ranks have met, in seconds; at first 60.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_join_timeout(config: *mut comity_config, timeout: f64) -> comity_status {
    change(config, |c| Ok(c.join_timeout(seconds("the join timeout", timeout)?)))
}

/// Silence after which the others give a rank up, in seconds: 0.1 to 86400, or 0 for never; at first 5.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_detection(config: *mut comity_config, limit: f64) -> comity_status {
    change(config, |c| {
        if limit == 0.0 {
            return Ok(c.detection(Detection::Off));
        }
        Ok(c.detection(Detection::After(seconds("the detection limit", limit)?)))
    })
}

/// The kinds of link that may be used: "shm,tcp".
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_links(config: *mut comity_config, kinds: *const c_char) -> comity_status {
    change(config, |c| {
        let one = |name: &str| {
            let known = LinkKind::from_name(name.trim());
            known.ok_or_else(|| {
                CFault::misuse(format!("there is no kind of link {name:?}; docs/transports.md lists them"))
            })
        };
        let kinds = raw::text("the kinds of link", kinds)?.split(',').map(one);
        Ok(c.links(kinds.collect::<Result<Vec<_>, _>>()?))
    })
}

/// Backend for the calls; at first COMITY_BACKEND_ANY.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_backend(config: *mut comity_config, backend: BackendNumber) -> comity_status {
    change(config, |c| Ok(c.backend(types::backend(backend)?)))
}

/// The CUDA device of this rank for COMITY_BACKEND_NCCL; at first by the rank's number on its host.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_device(config: *mut comity_config, device: u32) -> comity_status {
    change(config, |c| Ok(c.device(device)))
}

/// The RDMA devices that lead from each rank to each other: JSON in MLX's form, or a path to such a file.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_devices(config: *mut comity_config, matrix: *const c_char) -> comity_status {
    change(config, |c| Ok(c.devices(raw::text("the matrix", matrix)?)?))
}

/// This rank's own addresses to listen on, with a comma between: "10.0.0.1,[fe80::1]:7000".
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_addrs(config: *mut comity_config, addrs: *const c_char) -> comity_status {
    change(config, |c| {
        let one = |text: &str| {
            let text = text.trim();
            let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
            let ip = || bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
            let addr = text.parse::<SocketAddr>().or_else(|_| ip());
            addr.map_err(|_| CFault::misuse(format!("{text:?} is no address such as 10.0.0.1 or [::1]:7000")))
        };
        let addrs = raw::text("the addresses", addrs)?.split(',').map(one);
        Ok(c.addrs(addrs.collect::<Result<Vec<_>, _>>()?))
    })
}

/// TCP connections for each pair of addresses.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_connections(config: *mut comity_config, connections: i32) -> comity_status {
    change(config, |c| Ok(c.connections(count("the number of connections", connections.into())?)))
}

/// Number of threads that may send long messages over TCP beside the rank's own.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_send_threads(config: *mut comity_config, threads: i32) -> comity_status {
    change(config, |c| Ok(c.send_threads(count("the number of threads", threads.into())?)))
}

/// The name of this host. Ranks whose hosts have equal names use shared memory.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_host_name(config: *mut comity_config, name: *const c_char) -> comity_status {
    change(config, |c| Ok(c.host_name(raw::text("the name", name)?)))
}

/// When a group fails, write its last calls to a file in this directory, for `comity report`.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_log_dir(config: *mut comity_config, path: *const c_char) -> comity_status {
    change(config, |c| Ok(c.log_dir(raw::text("the path", path)?)))
}

/// Measure every link when the ranks have met, and choose plans by that. On all ranks or none.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_measure_costs(config: *mut comity_config) -> comity_status {
    change(config, |c| Ok(c.measure_costs()))
}

/// Choose plans by what `comity check --links --json` wrote into a file. On all ranks or none.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_costs_file(config: *mut comity_config, path: *const c_char) -> comity_status {
    change(config, |c| Ok(c.costs_file(raw::text("the path", path)?)))
}

/// Carry out every operation by this algorithm, where it can: "ring". On all ranks or none. For tests and measurements.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_algorithm(config: *mut comity_config, name: *const c_char) -> comity_status {
    change(config, |c| {
        let name = raw::text("the name", name)?;
        let known = Algorithm::from_name(name);
        Ok(c.algorithm(known.ok_or_else(|| CFault::misuse(format!("there is no algorithm {name:?}")))?))
    })
}
