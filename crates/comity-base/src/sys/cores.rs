//! The core that a thread runs on, and the time that it waits for one.

use std::time::Duration;

/// Have the system put this thread on another core than the one that it runs on, if it may run on others, and leave it free to go
/// anywhere as before. Whether it moved does not matter to anyone: the caller sees how long its next calls take.
#[cfg(target_os = "linux")]
pub fn leave_core() {
    use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};
    let Ok(all) = sched_getaffinity(None) else { return };
    let here = sched_getcpu();
    if all.count() < 2 || here >= rustix::thread::CpuSet::MAX_CPU {
        return;
    }
    let mut others = all;
    others.unset(here);
    if sched_setaffinity(None, &others).is_ok() {
        let _ = sched_setaffinity(None, &all);
    }
}

/// Sleeping and waking may do it elsewhere.
#[cfg(not(target_os = "linux"))]
pub fn leave_core() {
    const A_MOMENT: Duration = Duration::from_micros(20);
    // WAIT(A_MOMENT): nobody; it is asleep
    std::thread::sleep(A_MOMENT);
}

/// A number that no other thread of this process has that runs; not 0.
#[inline]
pub fn thread_number() -> usize {
    // SAFETY: a thread that runs has this, and nothing is read or written.
    unsafe { libc::pthread_self() as usize }
}

/// Time for which this process's first thread was ready to run and had no core; zero where the system does not count it.
pub fn waited_for_processor() -> Duration {
    std::fs::read_to_string("/proc/self/schedstat").map_or(Duration::ZERO, |text| waited(&text))
}

/// Returns true if a thread of this name, of the process at the other end of a Unix socket, is ready to run: it has a core, or waits
/// for one. False where the system does not say, and for a process that is stopped.
#[cfg(target_os = "linux")]
pub fn wants_core(peer: &std::os::unix::net::UnixStream, thread: &str) -> bool {
    let Ok(pid) = super::peer_of(peer).map(|p| p.pid) else { return false };
    let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let is_ready = |stat: &str| {
        // "12 (name) R 1 ...": the name may hold anything.
        let (begin, state) = stat.rsplit_once(") ").unwrap_or_default();
        begin.split_once('(').is_some_and(|(_, name)| name == thread) && state.starts_with('R')
    };
    all.flatten().any(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(|s| is_ready(&s)))
}

#[cfg(not(target_os = "linux"))]
pub fn wants_core(_: &std::os::unix::net::UnixStream, _: &str) -> bool {
    false
}

/// From nanoseconds on a core, nanoseconds without one, and a number.
fn waited(schedstat: &str) -> Duration {
    let second = schedstat.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(second.unwrap_or_default())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::thread::{sched_getaffinity, sched_getcpu};

    #[test]
    fn a_thread_leaves_its_core_and_may_go_anywhere_after() {
        let before = sched_getaffinity(None).unwrap();
        let moved = (0..100).filter(|_| {
            let here = sched_getcpu();
            leave_core();
            sched_getcpu() != here
        });
        let moved = moved.count();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        // It may have been moved once more by somebody else.
        assert!(before.count() < 2 || moved > 50, "{moved} of 100");
    }

    #[test]
    fn a_thread_that_is_ready_to_run_is_told_from_one_that_sleeps() {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let name = "test (R) runs";
        let ended = std::sync::atomic::AtomicBool::new(false);
        let run = |busy: bool| {
            let ended = &ended;
            move || {
                while busy && !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                // WAIT(until): twenty seconds, or until the test has seen enough
                let until = std::time::Instant::now() + Duration::from_secs(20);
                while !ended.load(std::sync::atomic::Ordering::Relaxed) && std::time::Instant::now() < until {
                    std::thread::park_timeout(Duration::from_millis(200));
                }
            }
        };
        std::thread::scope(|s| {
            std::thread::Builder::new().name("test (R) sleeps".into()).spawn_scoped(s, run(false)).unwrap();
            std::thread::Builder::new().name(name.into()).spawn_scoped(s, run(true)).unwrap();
            let seen = |name: &str| (0..20).filter(|_| wants_core(&here, name)).count();
            // WAIT(until): the busy thread to have its name, ten seconds
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while !wants_core(&here, name) && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            let runs = seen(name);
            let sleeps = seen("test (R) sleeps");
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(runs > 15 && sleeps < 5, "{runs} {sleeps}");
        });
        assert!(!wants_core(&here, "no such thread"));
    }

    #[test]
    fn waiting_for_a_core_is_counted_where_the_system_does() {
        assert_eq!(waited("4123456 1500000000 12\n"), Duration::from_millis(1500));
        assert_eq!(waited("0 0"), Duration::ZERO);
        assert_eq!(waited(""), Duration::ZERO);
    }
}
