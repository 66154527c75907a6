//! Configurations: the place of this process in its job, its way to meet the others, and its settings.

use crate::{
    boundary::answer,
    errors::CFault,
    exchange::{CallbackExchange, comity_exchange_fn},
    group::{hand_out, seconds},
    handles::{self, comity_config, comity_group},
    raw::{self, Context},
    types::comity_status,
};
use comity::{Config, Detection, Key};
use std::{
    ffi::{c_char, c_void},
    sync::{Arc, Mutex, PoisonError},
};

/// Object behind a `comity_config`.
pub(crate) struct ConfigHandle(Mutex<Config>);

/// Change a configuration; one that cannot be changed so stays as it is.
fn change(config: *mut comity_config, f: impl FnOnce(Config) -> Result<Config, CFault>) -> comity_status {
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

/// Make a configuration for rank `rank` of `size`, with every setting at its default.
///
/// More than one rank needs a key (comity_config_set_key(), or COMITY_KEY_FILE) and a place to meet: one of
/// comity_config_set_rendezvous(), comity_config_set_store(), comity_config_set_hostfile() and comity_config_set_exchange().
///
/// @param out Gets the configuration. Free it with comity_config_free().
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

/// Make a configuration from the variables of the environment, as comity_init() reads them.
///
/// @param out Gets the configuration. Free it with comity_config_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_from_env(out: *mut *mut comity_config) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        give(out, Config::from_env()?)
    })
}

/// Change a setting, by the name of its variable: comity_config_set(config, "COMITY_LINKS", "shm,tcp").
///
/// `comity info --settings` lists all. Some count in the environment only, such as the paths of libraries: they are refused. After an
/// error the configuration is as before.
///
/// @param name Name of the variable.
/// @param value Value, as the variable takes it.
/// @return COMITY_ERR_CONFIG for an unknown name or a bad value. comity_last_error() names both.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set(
    config: *mut comity_config,
    name: *const c_char,
    value: *const c_char,
) -> comity_status {
    change(config, |c| Ok(c.set(raw::text("the name", name)?, raw::text("the value", value)?)?))
}

/// Meet at a store that rank 0 runs at this address, which every rank can reach.
///
/// @param at "host:port".
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_rendezvous(
    config: *mut comity_config,
    at: *const c_char,
) -> comity_status {
    change(config, |c| Ok(c.rendezvous(raw::text("the address", at)?)?))
}

/// Meet at a store that runs already, such as that of `comity launch`.
///
/// @param at "host:port", as COMITY_STORE takes it.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_store(config: *mut comity_config, at: *const c_char) -> comity_status {
    change(config, |c| Ok(c.store(raw::text("the address", at)?)?))
}

/// Meet at rank 0's first address in a hostfile of MLX's form, and listen on this rank's own addresses.
///
/// @param path Name of the file, which is read at once.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_hostfile(
    config: *mut comity_config,
    path: *const c_char,
) -> comity_status {
    change(config, |c| Ok(c.hostfile(raw::text("the path", path)?)?))
}

/// Meet at a store that rank 0 runs at a free port. Rank 0 tells the others its address through a function of yours, over a channel that
/// your program has. Without a key rank 0 makes one and sends it too: whoever can read the channel can join.
///
/// @param exchange Called on any thread during comity_config_connect(), and never after that has returned.
/// @param context Passed to `exchange`. It must stay valid while comity_config_connect() runs.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_exchange(
    config: *mut comity_config,
    exchange: comity_exchange_fn,
    context: *mut c_void,
) -> comity_status {
    change(config, |c| {
        let exchange = exchange.ok_or_else(|| CFault::misuse("exchange is NULL"))?;
        Ok(c.exchange(Arc::new(CallbackExchange::new(exchange, Context(context)))))
    })
}

/// Set the secret that every rank of the job holds. COMITY_KEY_FILE takes it from a file.
///
/// @param key 32 bytes, which are copied.
/// @param length Number of bytes: must be 32.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_key(
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

/// Set the time limit of a call; the default is 300 s.
///
/// @param timeout Seconds, more than 0; INFINITY: as long as all ranks live.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_timeout(config: *mut comity_config, timeout: f64) -> comity_status {
    change(config, |c| Ok(c.timeout(seconds("the timeout", timeout)?)))
}

/// Set the time limit until all ranks have met; the default is 60 s.
///
/// @param timeout Seconds, more than 0.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_join_timeout(config: *mut comity_config, timeout: f64) -> comity_status {
    change(config, |c| Ok(c.join_timeout(seconds("the join timeout", timeout)?)))
}

/// Set the silence after which the others give a rank up; the default is 5 s.
///
/// @param limit Seconds, 0.1 to 86400; INFINITY: never.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_detection(config: *mut comity_config, limit: f64) -> comity_status {
    change(config, |c| {
        if limit == f64::INFINITY {
            return Ok(c.detection(Detection::Off));
        }
        Ok(c.detection(Detection::After(seconds("the detection limit", limit)?)))
    })
}

/// Meet the other ranks and make the group of all. Every rank of the job calls this. It returns when all have come, or fails at the join
/// limit and names those that are missing.
///
/// @param config Stays as it is, and yours.
/// @param out Gets the group. Free it with comity_group_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_connect(
    config: *mut comity_config,
    out: *mut *mut comity_group,
) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let config = handles::find(config)?;
        // Not with the lock held: it may take a minute.
        let config = config.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hand_out(out, config.connect()?)
    })
}

/// Free a configuration. Groups that it made stay. NULL is allowed.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_free(config: *mut comity_config) -> comity_status {
    answer(|| if config.is_null() { Ok(()) } else { handles::free(config) })
}
