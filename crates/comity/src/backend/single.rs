//! A group of one: every call copies or does nothing.

use super::{AbortHandle, Backend, Bufs, Call};
use crate::{CallInfo, Error, LinkKind, Result, view};
use std::time::Duration;

/// The backend of a group of one rank in host memory.
#[derive(Debug)]
pub(crate) struct Single;

impl Backend for Single {
    fn run(&mut self, call: Call<'_>, _: Duration) -> Result<()> {
        if let Bufs::Both(src, dst) = call.bufs {
            view::copy(src, dst);
        }
        Ok(())
    }

    fn failure(&self, _: Option<&CallInfo>) -> Option<Error> {
        None
    }

    fn abort_handle(&self) -> Option<AbortHandle> {
        None
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        vec![None]
    }
}
