//! An exchange over a function of the program's.

use crate::raw::Context;
use comity::{Exchange, JoinError, Result};
use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt, ptr,
    time::Instant,
};

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
    fn share(&self, rank: usize, size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
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
