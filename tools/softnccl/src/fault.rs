//! Faults on purpose.
//!
//! ```text
//!   init-hang@R     rank R never comes out of ncclCommInitRankConfig
//!   init-error@R    rank R's ncclCommInitRankConfig fails
//!   stall@R:N       rank R's Nth piece of work never ends
//!   async@R:N       the same, and ncclCommGetAsyncError tells of it
//!   die@R:N         rank R's process is killed at its Nth piece of work
//!   slow@R:N        rank R's copies from the Nth on take 0.2 s each, eight of them
//! ```

use std::{
    env,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Time that a slow copy takes, longer than a waiting rank keeps silent.
const SLOW: Duration = Duration::from_millis(200);
/// Number of copies that are slow.
const SLOW_COPIES: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InitHang,
    InitError,
    Stall,
    Async,
    Die,
    Slow,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: Kind,
    rank: usize,
    at: u64,
}

fn parse(text: &str) -> Option<Fault> {
    let (kind, place) = text.split_once('@')?;
    let (rank, at) = place.split_once(':').unwrap_or((place, "0"));
    let kind = match kind {
        "init-hang" => Kind::InitHang,
        "init-error" => Kind::InitError,
        "stall" => Kind::Stall,
        "async" => Kind::Async,
        "die" => Kind::Die,
        "slow" => Kind::Slow,
        _ => return None,
    };
    Some(Fault { kind, rank: rank.parse().ok()?, at: at.parse().ok()? })
}

fn wanted() -> Option<Fault> {
    static WANTED: OnceLock<Option<Fault>> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let text = env::var("SOFTNCCL_FAULT").ok()?;
        // A test that asks for what there is not must not pass for that.
        Some(parse(&text).unwrap_or_else(|| panic!("SOFTNCCL_FAULT={text} is no fault")))
    })
}

/// Return the fault of making a communicator, if it goes wrong for `rank`.
pub(crate) fn at_init(rank: usize) -> Option<Kind> {
    let fault = wanted().filter(|f| f.rank == rank)?;
    matches!(fault.kind, Kind::InitHang | Kind::InitError).then_some(fault.kind)
}

/// Return the fault of `rank`'s next piece of work, if it goes wrong. Counts.
pub(crate) fn at_work(rank: usize) -> Option<Kind> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let fault = wanted().filter(|f| f.rank == rank && f.at == n)?;
    matches!(fault.kind, Kind::Stall | Kind::Async | Kind::Die).then_some(fault.kind)
}

/// Return the time that this rank's next copy takes besides. Counts.
pub(crate) fn at_copy() -> Duration {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let own = env::var("COMITY_RANK").ok().and_then(|rank| rank.parse().ok());
    let fault = wanted().filter(|f| f.kind == Kind::Slow && Some(f.rank) == own);
    let is_slow = fault.is_some_and(|f| (f.at..f.at + SLOW_COPIES).contains(&n));
    if is_slow { SLOW } else { Duration::ZERO }
}

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<i32> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
