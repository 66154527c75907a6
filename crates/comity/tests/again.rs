//! A rank that could not join tries again in the same process: nothing of the first try is left, neither a listener nor a thread or a descriptor.

mod common;

use comity::{Config, Error, ErrorKind, Group, JoinCause, Result, interrupt_with};
use common::{each, key, reserved, store};
use scope::await_that;
use std::{
    cell::Cell,
    fs,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(120);

thread_local! {
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Run `f`, which is interrupted after a moment.
fn interrupted<T>(f: impl FnOnce() -> T) -> T {
    UNTIL.set(Some(Instant::now() + SHORT));
    interrupt_with(Some(|| (Instant::now() >= UNTIL.get()?).then(|| "interrupted by a test".into())));
    let out = f();
    interrupt_with(None);
    out
}

/// Threads of Comity and descriptors of this process.
fn held() -> (usize, usize) {
    let count = |folder: &str, counts: &dyn Fn(&fs::DirEntry) -> bool| {
        fs::read_dir(folder).map_or(0, |all| all.flatten().filter(counts).count())
    };
    let is_ours = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("comity-"))
    };
    (count("/proc/self/task", &is_ours), count("/proc/self/fd", &|_| true))
}

fn await_held(what: &str, before: (usize, usize)) {
    await_that(&format!("{before:?} threads and descriptors after {what}"), || held() == before);
}

/// Address of rank 0's store, which starts there unless it runs already.
struct Site {
    at: SocketAddr,
    is_there: bool,
}

impl Site {
    fn config(&self, rank: usize, size: usize) -> Config {
        let config = Config::new(rank, size);
        let at = self.at.to_string();
        let config = if self.is_there { config.store(&at) } else { config.rendezvous(&at) };
        config.unwrap().job("job").key(key()).join_timeout(LONG)
    }
}

fn error(out: Result<Group>) -> Error {
    out.map(drop).expect_err("an error")
}

/// Every way to fail here, on two of three ranks.
fn fail(site: &Site, way: &str) -> Vec<Error> {
    let join = |rank| error(site.config(rank, 3).connect());
    let soon = |rank| interrupted(|| error(site.config(rank, 3).connect()));
    match way {
        "all are interrupted" => each([0, 1], soon),
        "rank 0 is interrupted" if site.is_there => vec![soon(0)],
        "rank 0 is interrupted" => vec![soon(0), soon(1)],
        "rank 1 is interrupted" => each([0, 1], |r| if r == 1 { soon(1) } else { join(r) }),
        "the limit passes" => each([0, 1], |r| error(site.config(r, 3).join_timeout(SHORT).connect())),
        "two claim a rank" => {
            let claim = |r| match r {
                0 => join(0),
                // One of another size.
                _ => error(site.config(1, 2).connect()),
            };
            each([0, 1], claim)
        }
        other => panic!("{other}"),
    }
}

fn again(site: &Site) {
    let before = held();
    for way in [
        "all are interrupted",
        "rank 0 is interrupted",
        "rank 1 is interrupted",
        "the limit passes",
        "two claim a rank",
    ] {
        let what = format!("{way}, a store of its own: {}", site.is_there);
        let begun = Instant::now();
        let errors = fail(site, way);
        assert!(begun.elapsed() < LONG / 2, "{what}: {:?}", begun.elapsed());
        for e in &errors {
            let ErrorKind::Join(why) = e.kind() else { panic!("{what}: {e}") };
            let told = way.ends_with("interrupted").then_some("interrupted by a test");
            assert!(e.to_string().contains(told.unwrap_or("")), "{what}: {e}");
            assert!(told.is_none() || why.cause == JoinCause::GaveUp, "{what}: {e}");
        }
        await_held(&what, before);
        // Rank 0 comes first, then those that were there, at last one that has heard nothing of the first try.
        let groups = each([0, 1, 2], |r| {
            thread::sleep(Duration::from_millis(20) * r as u32);
            let is_late = |e: &Error| r > 0 && e.to_string().contains("came too late");
            let begun = Instant::now();
            let mut joined = site.config(r, 3).connect();
            // On a busy machine another one may come before rank 0, is told what ended the first try, and comes again.
            while joined.as_ref().is_err_and(is_late) && begun.elapsed() < LONG {
                joined = site.config(r, 3).connect();
            }
            joined.unwrap_or_else(|e| panic!("{what}: rank {r}: {e}"))
        });
        each([0, 1, 2], |r| groups[r].barrier().and_then(|()| groups[r].close()).unwrap());
        drop(groups);
        await_held(&what, before);
    }
}

#[test]
fn a_rank_that_could_not_join_tries_again() {
    let (_held, free) = reserved();
    again(&Site { at: free, is_there: false });
    let store = store(3);
    if cfg!(target_os = "linux") {
        // Its thread gives itself its name.
        await_held("a store", (1, held().1));
    }
    again(&Site { at: store.addr(), is_there: true });
}
