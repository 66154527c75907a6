//! Threads of a test that do the same at the same time, and the wait for what is to happen.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Call `f` with each, all at the same time; what it returned, in their order.
///
/// # Panics
/// If one of the calls does.
pub fn each<I: Send, T: Send>(all: impl IntoIterator<Item = I>, f: impl Fn(I) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = all.into_iter().map(|one| s.spawn(move || f(one))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// The final result of `step`.
///
/// # Panics
/// If there is none within a minute.
pub fn eventually<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(t) = step() {
            return t;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        thread::yield_now();
    }
}

/// Wait until this is so, and look some hundred times a second.
///
/// # Panics
/// After a minute, like [`eventually`].
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || {
        let so = is_so().then_some(());
        thread::sleep(Duration::from_millis(if so.is_some() { 0 } else { 2 }));
        so
    });
}
