//! Part of a rank that is to be killed, stopped or left alone; it reports events, with the time.
#![allow(unsafe_code, reason = "a test's fork, which keeps sockets open")]
use comity::{ErrorKind, Group, ReduceOp};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use std::{
    io::BufRead,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The variable that makes a process of this test an actor, and tells it what to do.
pub(crate) const ROLE: &str = "FAULTS_TEST_ROLE";
/// Prefix of an actor's lines, among those of the test harness.
pub(crate) const SAYS: &str = "actor: ";

const COUNT: usize = 20_000;

/// Nanoseconds of a clock that all processes share.
pub(crate) fn monotonic() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The program of all ranks.
#[test]
#[ignore = "a rank of the other tests"]
fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    say("started", -1, json!({}));
    if role.strip_prefix("absent ").is_some_and(|r| std::env::var("COMITY_RANK").is_ok_and(|own| own == r)) {
        return;
    }
    match comity::init() {
        Ok(group) => act(&role, group),
        Err(e) => {
            say("error", -1, json!({ "text": e.to_string() }));
            say("closed", -1, json!({ "millis": 0 }));
            if role.starts_with("absent") {
                std::process::exit(1);
            }
        }
    }
}

fn say(event: &str, rank: i64, mut more: serde_json::Value) {
    let rank = if rank < 0 { std::env::var("COMITY_RANK").unwrap().parse().unwrap() } else { rank };
    more["event"] = event.into();
    more["rank"] = rank.into();
    more["at"] = monotonic().into();
    more["pid"] = std::process::id().into();
    println!("{SAYS}{more}");
}

fn act(role: &str, group: Group) {
    let rank = group.rank();
    let told = |event: &str| say(event, rank as i64, json!({}));
    told("ready");
    let Some(out) = play(role, &group, &told) else { return };
    match out {
        Ok(()) => told("done"),
        Err(e) => say("error", rank as i64, json!({ "text": e.to_string() })),
    }
    let begun = Instant::now();
    if let Err(e) = group.barrier() {
        let same = matches!(e.kind(), ErrorKind::Broken(_) | ErrorKind::Closed);
        let micros = begun.elapsed().as_micros() as u64;
        say("again", rank as i64, json!({ "text": e.root().to_string(), "same": same, "micros": micros }));
    }
    let begun = Instant::now();
    let closed = group.close();
    assert!(closed.is_ok(), "{closed:?}");
    drop(group);
    say("closed", rank as i64, json!({ "millis": begun.elapsed().as_millis() as u64 }));
}

/// Result of the calls of this role; none where the process is to end without a report.
fn play(role: &str, group: &Group, told: &dyn Fn(&str)) -> Option<comity::Result<()>> {
    let rank = group.rank();
    Some(match role.split_once(' ').unwrap_or((role, "")) {
        ("ops", _) => ops(group),
        // As a program does that does not handle errors: exit with 1.
        ("needed", leaver) => {
            if leaver == rank.to_string() {
                told("done");
                return None;
            }
            ops(group).inspect_err(|e| {
                say("error", rank as i64, json!({ "text": e.to_string() }));
                std::process::exit(1);
            })
        }
        ("fork", _) => {
            if rank == 1 {
                fork();
                told("forked");
            }
            ops(group)
        }
        ("pairs", _) => pairs(group),
        ("lanes", _) => in_lanes(group, told),
        ("barrier", sleeper) if sleeper == rank.to_string() => loop {
            thread::sleep(Duration::from_secs(1));
        },
        ("barrier", _) => group.barrier(),
        ("closing", _) => group.barrier().and_then(|()| group.barrier()),
        // The thread that beats may not have run yet.
        ("stops", who) if who == rank.to_string() => {
            kill_process(getpid(), Signal::STOP).unwrap();
            Ok(())
        }
        ("idle" | "stops", _) => match line().as_str() {
            "call" => {
                told("called");
                group.barrier()
            }
            _ => Ok(()),
        },
        // Work that cannot end, since nobody else takes part in it: the process ends all the same.
        ("pending", _) if rank == 0 => {
            for _ in 0..3 {
                group.spawn(|g| g.all_reduce(&mut vec![1f32; COUNT], ReduceOp::Sum)).detach();
            }
            thread::sleep(Duration::from_millis(100));
            told("done");
            return None;
        }
        ("pending", _) => {
            // Once the other has ended.
            line();
            group.all_reduce(&mut vec![1f32; COUNT], ReduceOp::Sum)
        }
        ("exit", _) => exit(group, told),
        other => panic!("no role {other:?}"),
    })
}

/// Exchanges with one other rank, without end.
fn pairs(group: &Group) -> comity::Result<()> {
    let rank = group.rank();
    let other = group.rank() ^ 1;
    loop {
        let mine = vec![rank as u32; COUNT];
        let mut theirs = vec![0; COUNT];
        group.sendrecv(&mine, other, &mut theirs, other, 1)?;
        assert!(theirs.iter().all(|v| *v == other as u32));
    }
}

/// Ends the process after a call that succeeded, without a word.
fn exit(group: &Group, told: &dyn Fn(&str)) -> comity::Result<()> {
    let mut x = [1u32; 4096];
    let out = group.all_reduce(&mut x, ReduceOp::Sum).and_then(|()| group.barrier());
    assert!(out.is_err() || x.iter().all(|v| *v == group.size() as u32));
    if out.is_ok() {
        told("done");
        std::process::exit(0);
    }
    out
}

/// All-reduces with checked sums, until rank 0 has read a line.
fn ops(group: &Group) -> comity::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    if group.rank() == 0 {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            line();
            stop.store(true, Ordering::Relaxed);
        });
    }
    let mut x = vec![1u32; COUNT];
    loop {
        x.fill(1);
        x[COUNT - 1] = u32::from(stop.load(Ordering::Relaxed));
        group.all_reduce(&mut x, ReduceOp::Sum)?;
        assert!(x[..COUNT - 1].iter().all(|v| *v == group.size() as u32), "a wrong sum");
        if x[COUNT - 1] > 0 {
            return Ok(());
        }
    }
}

/// Calls that several threads of each rank carry, without end, with some of their results checked.
fn in_lanes(group: &Group, told: &dyn Fn(&str)) -> comity::Result<()> {
    const PART: usize = 1 << 19;
    let n = group.size();
    let is = |x: &[u32], value: usize| x.iter().step_by(997).chain(x.last()).all(|v| *v as usize == value);
    let parts_are = |x: &[u32]| x.chunks(PART).enumerate().all(|(r, part)| is(part, r + 1));
    let all = n * (n + 1) / 2;
    let mine = vec![group.rank() as u32 + 1; PART * n];
    let mut x = vec![0; PART * n];
    for round in 0.. {
        x.copy_from_slice(&mine);
        group.all_reduce(&mut x, ReduceOp::Sum)?;
        assert!(is(&x, all), "a wrong sum");
        group.reduce_scatter(&mine, &mut x[..PART], ReduceOp::Sum)?;
        assert!(is(&x[..PART], all), "a wrong sum");
        group.all_gather(&mine[..PART], &mut x)?;
        assert!(parts_are(&x), "a wrong part");
        group.all_to_all(&mine, &mut x)?;
        assert!(parts_are(&x), "a wrong part");
        x.copy_from_slice(&mine);
        group.broadcast(&mut x, round % n)?;
        assert!(is(&x, round % n + 1), "another rank's bytes");
        if round == n {
            assert!(comity::tools::bytes_in_lanes() > 0, "no lanes");
            told("carried");
        }
    }
    Ok(())
}

/// Leave a child that holds this process's sockets for ten seconds.
fn fork() {
    // SAFETY: the child calls nothing but alarm and pause, which are safe after a fork with threads.
    unsafe {
        if libc::fork() == 0 {
            libc::alarm(10);
            loop {
                libc::pause();
            }
        }
    }
}

/// A line from the test; if the test has ended, this process does.
fn line() -> String {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(9);
    }
    line.trim().into()
}
