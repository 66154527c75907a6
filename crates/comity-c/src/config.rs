//! Configurations: the place of this process in its job, its way to meet the others, and its settings. An exchange is a function of the
//! program's.

use crate::{
    errors::{CFault, answer},
    group::{hand_out, seconds},
    handles::{self, comity_config, comity_group},
    raw::{self, Context},
    types::comity_status,
};
use comity::{Config, Detection, Exchange, JoinError, Key};
use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt, ptr,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

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
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_store(config: *mut comity_config, at: *const c_char) -> comity_status {
    change(config, |c| Ok(c.store(raw::text("the address", at)?)?))
}

/// Meet at rank 0's first address in a hostfile of MLX's form, and listen on this rank's own addresses.
///
/// @param path Name of the file, which is read at once.
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
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_timeout(config: *mut comity_config, timeout: f64) -> comity_status {
    change(config, |c| Ok(c.timeout(seconds("the timeout", timeout)?)))
}

/// Set the time limit until all ranks have met; the default is 60 s.
///
/// @param timeout Seconds, more than 0.
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_set_join_timeout(config: *mut comity_config, timeout: f64) -> comity_status {
    change(config, |c| Ok(c.join_timeout(seconds("the join timeout", timeout)?)))
}

/// Set the silence after which the others give a rank up; the default is 5 s.
///
/// @param limit Seconds, 0.1 to 86400; INFINITY: never.
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
#[unsafe(no_mangle)]
pub extern "C" fn comity_config_free(config: *mut comity_config) -> comity_status {
    answer(|| if config.is_null() { Ok(()) } else { handles::free(config) })
}

/// Room for the text of any exchange.
const ROOM: usize = 1024;

/// Function of yours for comity_config_set_exchange(): sends a short text from rank 0 to all others, over a channel that your program has.
/// It is called equally often on all ranks; call k of a rank belongs to call k of the others.
///
/// @param mine Text to send: 1 to 512 printable characters; NULL on all ranks but 0.
/// @param timeout Seconds that are left.
/// @param out Gets the text and a NUL, on all ranks but 0.
/// @param room Number of bytes at `out`.
/// @return 0 on success; any other number ends comity_config_connect() with COMITY_ERR_JOIN.
pub type comity_exchange_fn = Option<
    extern "C" fn(
        context: *mut c_void,
        rank: i32,
        size: i32,
        mine: *const c_char,
        timeout: f64,
        out: *mut c_char,
        room: usize,
    ) -> i32,
>;

pub(crate) struct CallbackExchange {
    share: extern "C" fn(*mut c_void, i32, i32, *const c_char, f64, *mut c_char, usize) -> i32,
    context: Context,
}

impl CallbackExchange {
    pub(crate) fn new(
        share: extern "C" fn(*mut c_void, i32, i32, *const c_char, f64, *mut c_char, usize) -> i32,
        context: Context,
    ) -> Self {
        Self { share, context }
    }
}

impl fmt::Display for CallbackExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the exchange given by comity_config_set_exchange")
    }
}

impl fmt::Debug for CallbackExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackExchange").finish_non_exhaustive()
    }
}

impl Exchange for CallbackExchange {
    fn share(&self, rank: usize, size: usize, mine: Option<&str>, until: Instant) -> comity::Result<String> {
        let failed = |words: String| JoinError::new(format!("{self} {words}"));
        let own = mine.map(CString::new).transpose();
        let own = own.map_err(|_| failed("was given a text with NUL in it".into()))?;
        let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
        let mut out = [0u8; ROOM];
        let text = own.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        let out_at = out.as_mut_ptr().cast::<c_char>();
        let code = (self.share)(self.context.0, rank as i32, size as i32, text, left, out_at, ROOM);
        if code != 0 {
            return Err(failed(format!("failed with code {code}")).into());
        }
        if let Some(mine) = mine {
            return Ok(mine.to_owned());
        }
        let told = CStr::from_bytes_until_nul(&out).ok().and_then(|t| t.to_str().ok());
        Ok(told.ok_or_else(|| failed("gave no text".into()))?.to_owned())
    }
}
