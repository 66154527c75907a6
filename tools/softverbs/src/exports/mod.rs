//! The C interface, with the names, versions and conventions of rdma-core's library.
//!
//! A reference stands where the interface has a pointer that may not be null, and a `Box` where it takes an object back.
#![allow(unsafe_code, reason = "a C interface, for tests")]

mod device;
mod memory;
mod pair;
mod queue;

use crate::{
    abi::{ibv_comp_channel, ibv_context, ibv_context_ops, ibv_device},
    config::Config,
    pair::Errno,
    queue::Events,
    thread,
    world::World,
};
use libc::{c_char, c_int};
use std::{
    ptr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

/// Define a function of the library, at the version that rdma-core gives its name.
macro_rules! export {
    ($($version:literal $(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        // SAFETY: the name is libibverbs' own, and so are the types; its header says what callers must pass.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) $(-> $ret)? $body

        #[cfg(all(target_os = "linux", not(test)))]
        std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@", $version, ", remove"
        ));
    )*};
}
use export;

/// A device as shown to the client.
#[repr(C)]
pub(crate) struct ShownDevice {
    ibv: ibv_device,
    index: usize,
}

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    ibv: ibv_context,
    device: usize,
}

#[repr(C)]
pub(crate) struct ShownChannel {
    ibv: ibv_comp_channel,
    events: Arc<Events>,
}

/// The objects of this process, or what is wrong with the configuration.
fn shared() -> Result<&'static Mutex<World>, &'static str> {
    static WORLD: OnceLock<Result<Mutex<World>, String>> = OnceLock::new();
    let made = WORLD.get_or_init(|| Config::from_env().map(|config| Mutex::new(World::new(config))));
    made.as_ref().map_err(String::as_str)
}

/// The objects of this process. Only a device, which a sound configuration has, leads here.
fn world() -> MutexGuard<'static, World> {
    match shared() {
        Ok(world) => world.lock().unwrap_or_else(PoisonError::into_inner),
        Err(e) => {
            eprintln!("softverbs: {e}");
            std::process::abort()
        }
    }
}

fn set_errno(value: i32) {
    #[cfg(target_os = "macos")]
    // SAFETY: the place of this thread's own errno.
    let place = unsafe { libc::__error() };
    #[cfg(not(target_os = "macos"))]
    // SAFETY: the place of this thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: valid for as long as this thread runs.
    unsafe { *place = value };
}

/// Result of functions that make something, when they cannot.
fn refused<T>(Errno(e): Errno) -> *mut T {
    set_errno(e);
    ptr::null_mut()
}

/// Result of functions that do something: 0, or the error's number, which is in errno too.
fn code(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(e)) => {
            set_errno(e);
            e
        }
    }
}

/// Give an object back to whoever owned it, when it could not be destroyed.
fn keep<T>(object: Box<T>, result: Result<(), Errno>) -> c_int {
    if result.is_err() {
        Box::leak(object);
    }
    code(result)
}

fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = c_char::from_ne_bytes([from]);
    }
    field
}

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: Some(queue::poll_cq),
        req_notify_cq: Some(queue::req_notify_cq),
        post_send: Some(pair::post_send),
        post_recv: Some(pair::post_recv),
        ..ibv_context_ops::default()
    }
}

/// Connections move while nobody polls, so that a sleeper can be woken and a peer is served.
fn keep_moving() {
    if let Ok(world) = shared() {
        thread::start(world);
    }
}
