//! Configurations: where this process stands in its job, and how it meets the others.

use crate::{
    boundary::answer,
    errors::CFault,
    exchange::{CallbackExchange, comity_share_fn},
    group::hand_out,
    handles::{self, comity_config, comity_group},
    raw::{self, Context},
    types::comity_status,
};
use comity::{Config, Key};
use std::{
    ffi::{c_char, c_void},
    sync::{Arc, Mutex, PoisonError},
};

/// Object behind a `comity_config`.
pub(crate) struct ConfigHandle(Mutex<Config>);

/// Change a configuration; one that cannot be changed so stays as it is.
pub(crate) fn change(
    config: *mut comity_config,
    f: impl FnOnce(Config) -> Result<Config, CFault>,
) -> comity_status {
    answer(|| {
        let config = handles::find(config)?;
        let mut config = config.0.lock().unwrap_or_else(PoisonError::into_inner);
        *config = f(config.clone())?;
        Ok(())
    })
}

fn give(out: *mut *mut comity_config, config: Config) -> Result<(), CFault> {
    raw::put(out, handles::add::<comity_config>(ConfigHandle(Mutex::new(config)))?)
}

/// Rank `rank` of `size`, with every other setting at its default. More than one rank needs a place to meet (one of
/// comity_config_store(), comity_config_rendezvous(), comity_config_hostfile(), comity_config_exchange()) and a key.
///
/// @param out Gets the configuration, yours to free with comity_config_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_new(rank: i32, size: i32, out: *mut *mut comity_config) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        match (usize::try_from(rank), usize::try_from(size)) {
            (Ok(r), Ok(n)) if r < n => give(out, Config::new(r, n)),
            _ => {
                Err(CFault::misuse(format!("rank {rank} of {size}: the rank must be from 0 to the size - 1")))
            }
        }
    })
}

/// Make a configuration from the environment; see comity_init().
///
/// @param out Gets the configuration, yours to free with comity_config_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_from_env(out: *mut *mut comity_config) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        give(out, Config::from_env()?)
    })
}

/// Free a configuration. Groups that were made by it stay. NULL is allowed.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_free(config: *mut comity_config) -> comity_status {
    answer(|| if config.is_null() { Ok(()) } else { handles::free(config) })
}

/// Meet the other ranks and make the group of all of them. Every rank of the job calls this. It returns when all have come, or fails at
/// the join limit and names those that are missing.
///
/// @param config Stays as it is, and yours.
/// @param out Gets the group, yours to free with comity_group_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_connect(config: *mut comity_config, out: *mut *mut comity_group) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let config = handles::find(config)?;
        // Not with the lock held: it may take a minute.
        let config = config.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hand_out(out, config.connect()?)
    })
}

/// Meet at a store that runs elsewhere, such as that of `comity launch`: "host:port".
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_store(config: *mut comity_config, at: *const c_char) -> comity_status {
    change(config, |c| Ok(c.store(raw::text("the address", at)?)?))
}

/// Meet at a store that rank 0 runs at this "host:port", which every rank can reach.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_rendezvous(config: *mut comity_config, at: *const c_char) -> comity_status {
    change(config, |c| Ok(c.rendezvous(raw::text("the address", at)?)?))
}

/// Meet at rank 0's first address in a hostfile of MLX's form, and listen on this rank's own.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_hostfile(config: *mut comity_config, path: *const c_char) -> comity_status {
    change(config, |c| Ok(c.hostfile(raw::text("the path", path)?)?))
}

/// Meet at a store that rank 0 runs at a free port, which it tells the others through a function of yours, over whatever channel the
/// program has. Without a key rank 0 makes one and tells that too: whoever can read the channel can join.
///
/// @param share Called on a thread of Comity's or on that of comity_connect(), and never after that has returned.
/// @param context Given to it.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_exchange(
    config: *mut comity_config,
    share: comity_share_fn,
    context: *mut c_void,
) -> comity_status {
    change(config, |c| {
        let share = share.ok_or_else(|| CFault::misuse("share is NULL"))?;
        Ok(c.exchange(Arc::new(CallbackExchange::new(share, Context(context)))))
    })
}

/// The name of the job, the same on all ranks. Ranks of different jobs refuse one another.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_job(config: *mut comity_config, job: *const c_char) -> comity_status {
    change(config, |c| Ok(c.job(raw::text("the job", job)?)))
}

/// The secret that every rank of the job holds.
///
/// @param key 32 bytes, which are copied.
/// @param length Must be 32.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_key(
    config: *mut comity_config,
    key: *const u8,
    length: usize,
) -> comity_status {
    change(config, |c| {
        let wrong = |_| CFault::misuse(format!("the key has {length} bytes, and must have 32"));
        let bytes: [u8; 32] = raw::list("the key", key, length.min(33))?.try_into().map_err(wrong)?;
        Ok(c.key(Key::from(bytes)))
    })
}

/// Like comity_config_key(), from a file that only its owner can read.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_key_file(config: *mut comity_config, path: *const c_char) -> comity_status {
    change(config, |c| Ok(c.key_file(raw::text("the path", path)?)?))
}

/// Meet without a secret: whoever reaches a port and knows the job's name can join.
///
/// @param public_addresses 0: addresses that the internet may reach are refused. 1: they are not.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_insecure(config: *mut comity_config, public_addresses: i32) -> comity_status {
    change(config, |c| Ok(if public_addresses == 0 { c.insecure() } else { c.insecure_in_public() }))
}
