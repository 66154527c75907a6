//! Lanes of processes: whose the threads are that carry them, and which groups have some.
#![cfg(target_os = "linux")]

mod common;

use comity::{Group, LinkKind, ReduceOp, tools};
use common::{LONG, each};
use scope::{await_that, eventually};
use std::{
    fs,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

const LANES: usize = 3;
/// Long enough for so many lanes.
const COUNT: usize = 1 << 18;

/// Held by a test: both count what this process does.
static ALONE: Mutex<()> = Mutex::new(());

/// Ranks of a job, which are threads; so many to a host.
fn job(n: usize, per_host: usize) -> Vec<Group> {
    common::job(n, |c| {
        let host = format!("h{}", c.rank() / per_host);
        c.host_name(host).links([LinkKind::Shm, LinkKind::Tcp]).lanes(LANES).timeout(LONG)
    })
}

/// Have all ranks make a call; how many bytes went in lanes.
fn carried(groups: &[Group]) -> u64 {
    let before = tools::bytes_in_lanes();
    each(groups, |g| {
        let mut x = vec![1f32; COUNT];
        g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        assert!(x.iter().all(|v| *v == g.size() as f32));
    });
    tools::bytes_in_lanes() - before
}

/// Have both ranks make a call that lanes carry.
fn call(groups: &[Group]) {
    assert_eq!(carried(groups), 2 * 4 * COUNT as u64, "not by lanes");
}

/// Numbers of this process's threads that carry lanes, in order.
fn lane_threads() -> Vec<u32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|t| t.unwrap().path());
    let named = tasks.filter(|t| fs::read_to_string(t.join("comm")).is_ok_and(|n| n.trim() == "comity-lane"));
    let mut all: Vec<u32> =
        named.map(|t| t.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect();
    all.sort_unstable();
    all
}

/// Those, as soon as there are so many.
fn wait_for(number: usize) -> Vec<u32> {
    let what = format!("{number} threads of lanes");
    eventually(&what, || Some(lane_threads()).filter(|all| all.len() == number))
}

/// The processor time that a thread has had.
fn used(thread: u32) -> Duration {
    let all = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(all.split(' ').next().unwrap().parse().unwrap())
}

fn sleeps(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap().contains(") S ")
}

#[test]
fn the_threads_are_the_processs_sleep_between_calls_and_end_with_the_last_group() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let first = job(2, 2);
    assert!(lane_threads().is_empty(), "made before a call needs them");
    call(&first);
    // Each rank's own thread carries a lane too. A thread takes its name when it first runs.
    let threads = wait_for(2 * (LANES - 1));
    let second = job(2, 2);
    (0..5).for_each(|_| [&first, &second].into_iter().for_each(|groups| call(groups)));
    assert_eq!(lane_threads(), threads, "another group has the same");

    let after_calls: Vec<_> = threads.iter().map(|t| used(*t)).collect();
    // One that does not sleep has most of this.
    thread::sleep(Duration::from_millis(200));
    await_that("threads that sleep", || threads.iter().all(|t| sleeps(*t)));
    for (thread, before) in threads.iter().zip(after_calls) {
        // It spins for 50 us, and goes to sleep.
        let spun = used(*thread) - before;
        assert!(spun < Duration::from_millis(10), "{spun:?} after the last call");
    }

    drop(first);
    call(&second);
    assert_eq!(lane_threads(), threads, "they end with the last group that needs them");
    second.iter().for_each(|g| g.close().unwrap());
    drop(second);
    // One that was joined is listed a little longer.
    wait_for(0);
}

#[test]
fn a_call_in_the_background_goes_in_lanes_and_wakes_no_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    wait_for(0);
    let groups = job(2, 2);
    let before = tools::bytes_in_lanes();
    let sum = |g: &Group| {
        let mut x = vec![1f32; COUNT];
        g.all_reduce(&mut x, ReduceOp::Sum)?;
        Ok(x)
    };
    let requests: Vec<_> = groups.iter().map(|g| g.spawn(sum)).collect();
    for request in requests {
        assert!(request.wait().unwrap().iter().all(|v| *v == 2.0));
    }
    assert_eq!(tools::bytes_in_lanes() - before, 2 * 4 * COUNT as u64);
    assert!(lane_threads().is_empty(), "the program computes meanwhile");
    call(&groups);
    wait_for(2 * (LANES - 1));
}

#[test]
fn buffers_that_peers_read_go_in_lanes_as_others_do() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let groups = job(2, 2);
    let before = tools::bytes_in_lanes();
    each(&groups, |g| {
        let mut x = g.alloc::<f32>(COUNT);
        for value in 1..=3 {
            x.fill(value as f32);
            g.all_reduce(&mut x[..], ReduceOp::Sum).unwrap();
            assert!(x.iter().all(|v| *v == 2.0 * value as f32));
        }
    });
    assert_eq!(tools::bytes_in_lanes() - before, 3 * 2 * 4 * COUNT as u64);
}

#[test]
fn a_group_over_two_hosts_has_lanes_within_each_as_the_groups_of_one_host_have() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let all = job(4, 2);
    // Half to the mate of the host, which sums it, and the other half of the sum.
    assert_eq!(carried(&all), 4 * 4 * COUNT as u64);
    let mates = each(&all, |g| g.split(Some(g.rank() as i32 / 2), 0).unwrap().unwrap());
    assert_eq!(carried(&mates), 4 * 4 * COUNT as u64);
}
