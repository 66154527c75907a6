//! NCCL and the CUDA driver as far as Comity calls them, without a GPU: for tests, never for use.
//!
//! The same library has the symbols of both, so `COMITY_CUDA` and `COMITY_NCCL` name the same file. Device memory is host memory; a
//! stream is a thread that takes work in turn; ranks meet at sockets of Linux's abstract namespace, so that nothing is left behind.
//! Mistakes that a caller can make with the real ones are errors here too: memory that the device does not know, work without a
//! current context, a type or reduction that NCCL lacks.
//!
//! ```text
//!   SOFTCUDA_DEVICES=N            how many devices there are (8); CUDA_VISIBLE_DEVICES counts as with the driver
//!   SOFTNCCL_VERSION=21701        the version that the library tells
//!   SOFTNCCL_PEER_LOSS=error      a lost peer is an asynchronous error, as between hosts; otherwise work just never ends
//!   SOFTNCCL_FAULT=KIND@RANK:N    what goes wrong, on that rank, at the Nth piece of work of the process (see `fault`)
//! ```
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "a C interface and memory that its callers vouch for, for tests")]

/// Functions of the C interface.
macro_rules! export {
    ($(fn $name:ident($($arg:ident: $t:ty),*) -> $out:ty $body:block)*) => {$(
        // SAFETY: the name is NVIDIA's, and nothing else in a program that loads this for it has it.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $t),*) -> $out $body
    )*};
}

mod comm;
mod cuda;
mod fault;
mod memory;
mod nccl;
mod reduce;
mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Things by number: handles are never addresses, so that a stale one is an error and no accident.
#[derive(Debug)]
struct Table<T> {
    next: usize,
    rows: std::collections::BTreeMap<usize, T>,
}

impl<T> Table<T> {
    const fn new() -> Self {
        Self { next: 1, rows: std::collections::BTreeMap::new() }
    }

    fn add(&mut self, row: T) -> usize {
        let id = self.next;
        self.next += 1;
        self.rows.insert(id, row);
        id
    }
}
