//! Which RDMA devices this rank may use.

use crate::{BackendKind, Config, Error, Result, Secure, transport::verbs::Devices};

/// The devices that may be used, if this rank may use any.
pub(super) fn devices(config: &Config) -> Result<Option<Devices>> {
    if !config.links.rdma || config.secure == Secure::Data || config.size == 1 {
        return Ok(None);
    }
    let devices = match &config.devices {
        Some(matrix) => Devices::Named(matrix.rows.get(config.rank).cloned().unwrap_or_default()),
        None => Devices::Found,
    };
    match devices.check() {
        Ok(()) => Ok(Some(devices)),
        // A row of holes is what the user said.
        Err(why) if config.backend == BackendKind::Jaccl && config.devices.is_none() => {
            Err(Error::Unavailable { backend: "jaccl", reason: why })
        }
        Err(why) => {
            tracing::debug!(why, "no RDMA");
            Ok(None)
        }
    }
}
