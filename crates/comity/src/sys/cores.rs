//! The core that a thread runs on.

/// Have the system put this thread on another core than the one that it runs on, if it may run on others, and leave it free to go
/// anywhere as before. Whether it moved does not matter to anyone: the caller sees how long its next calls take.
#[cfg(target_os = "linux")]
pub(crate) fn leave_core() {
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
pub(crate) fn leave_core() {
    const A_MOMENT: std::time::Duration = std::time::Duration::from_micros(20);
    // WAIT(A_MOMENT): nobody; it is asleep
    std::thread::sleep(A_MOMENT);
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
}
