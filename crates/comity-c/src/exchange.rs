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

/// Function by which rank 0 sends the others a short text, over a channel of the program's. All ranks are called equally often; call k of one rank
/// belongs to call k of the others.
///
/// @param mine On rank 0 the text to send: 1 to 512 printable characters. NULL on the others.
/// @param seconds The time that is left.
/// @param out Gets the text on the other ranks, with a NUL at its end.
/// @param room Bytes at `out`.
/// @return 0 if it went well.
pub type comity_share_fn = Option<
    extern "C" fn(
        context: *mut c_void,
        rank: i32,
        size: i32,
        mine: *const c_char,
        seconds: f64,
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
        f.write_str("the exchange given by comity_config_exchange")
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
