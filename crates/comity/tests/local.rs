//! Groups of threads: every operation on small groups, splits, background work, misuse and failures.

mod common;

use comity::{Algorithm, ErrorKind, Group, Misuse, Op, ReduceOp, Result, interrupt_with};
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Run `f` on every rank of a group of `n`; results by rank. That each operation is right is checked with `comity-check`, by
/// `every_group_of_threads_is_right` of the command; that a rank which makes no call is named, by `late`; that other lengths are told, by `mismatch`.
fn run<T: Send>(n: usize, f: impl Fn(Group) -> T + Sync) -> Vec<T> {
    common::each(Group::local(n).unwrap(), |g| f(g.with_timeout(Duration::from_secs(20))))
}

fn ok<T>(results: Vec<Result<T>>) -> Vec<T> {
    results.into_iter().map(|r| r.unwrap()).collect()
}

#[test]
fn splits_nest_and_run_side_by_side() {
    ok(run(8, |g| {
        let row = g.split(Some((g.rank() / 4) as i32), 0)?.unwrap();
        let column = g.split(Some((g.rank() % 4) as i32), -(g.rank() as i32))?.unwrap();
        assert_eq!((row.size(), row.rank()), (4, g.rank() % 4));
        assert_eq!((column.size(), column.rank()), (2, 1 - g.rank() / 4));
        let half = row.split(Some((row.rank() / 2) as i32), 0)?.unwrap();
        for _ in 0..20 {
            let mut x = [g.rank() as u32];
            row.all_reduce(&mut x, ReduceOp::Sum)?;
            assert_eq!(x[0], if g.rank() < 4 { 6 } else { 22 });
            let mut x = [g.rank() as u32];
            column.all_reduce(&mut x, ReduceOp::Sum)?;
            assert_eq!(x[0] as usize, 2 * (g.rank() % 4) + 4);
            let mut x = [g.rank() as u32];
            half.all_reduce(&mut x, ReduceOp::Sum)?;
            assert_eq!(x[0] as usize, 4 * (g.rank() / 2) + 1);
        }
        let some = g.split((g.rank() % 2 == 0).then_some(0), 0)?;
        assert_eq!(some.map(|s| s.size()), (g.rank() % 2 == 0).then_some(4));
        let e = g.split(Some(-3), 0).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Misuse { misuse: Misuse::Color(-3), .. }), "{e}");
        g.barrier()
    }));
}

#[test]
fn subgroups_need_their_members_only() {
    ok(run(4, |g| {
        // Ranks 0 and 3 make a pair while the others are busy elsewhere, and in the middle of the group's own call.
        let busy = g.spawn(|g| g.barrier());
        if g.rank() % 3 == 0 {
            let pair = g.subgroup(&[3, 0], 7)?;
            let other = g.subgroup(&[3, 0], 8)?;
            assert_eq!((pair.rank(), pair.size()), (usize::from(g.rank() == 0), 2));
            for (group, add) in [(&pair, 1), (&other, 2)] {
                let mut x = [g.rank() as u32 + add];
                group.all_reduce(&mut x, ReduceOp::Sum)?;
                assert_eq!(x[0], 3 + 2 * add);
            }
        }
        for wrong in [&[][..], &[4, g.rank()], &[g.rank(), g.rank()], &[(g.rank() + 1) % 4]] {
            let e = g.subgroup(wrong, 1).unwrap_err();
            assert!(
                matches!(e.kind(), ErrorKind::Misuse { misuse: Misuse::Members { .. }, .. }),
                "{wrong:?}"
            );
        }
        assert_eq!(g.subgroup(&[g.rank()], 1)?.size(), 1);
        busy.wait()
    }));
}

#[test]
fn background_work_keeps_its_turn() {
    ok(run(3, |g| {
        let pending: Vec<_> = (0..50u32)
            .map(|i| {
                g.spawn(move |g| {
                    let mut x = vec![i; 100];
                    g.all_reduce(&mut x, ReduceOp::Sum)?;
                    Ok(x[0])
                })
            })
            .collect();
        let mut now = [1u32];
        g.all_reduce(&mut now, ReduceOp::Sum)?;
        assert_eq!(now, [3]);
        for (i, p) in pending.into_iter().enumerate() {
            assert_eq!(p.wait()?, 3 * i as u32);
        }
        let mut a = vec![1f32; 1000];
        let mut b = [2u8; 3];
        g.scope(|s| {
            let first = s.spawn(|g| g.all_reduce(&mut a, ReduceOp::Sum));
            s.spawn(|g| g.broadcast(&mut b, 1)).detach();
            first.wait()
        })?;
        assert_eq!((a[999], b), (3.0, [2; 3]));
        // The group's own handle inside its work makes the call in that turn, and later work cannot be waited for.
        let outer = g.clone();
        g.spawn(move |_| outer.barrier()).wait()?;
        let outer = g.clone();
        let inner = g.spawn(move |_| Ok(outer.spawn(|_| Ok(())).wait())).wait()?;
        assert_eq!(inner, Err(ErrorKind::Order.into()));
        Ok(())
    }));
}

#[test]
fn misuse_leaves_the_group_usable() {
    ok(run(2, |g| {
        let misuse = |r: Result<()>, op: Op| {
            let e = r.unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::Misuse { op: o, .. } if *o == op), "{e}")
        };
        misuse(g.broadcast(&mut [0u8], 2), Op::Broadcast);
        misuse(g.all_gather(&[0u8; 2], &mut [0u8; 3]), Op::AllGather);
        misuse(g.all_reduce_into(&[0u8; 2], &mut [0u16; 2], ReduceOp::Sum), Op::AllReduce);
        misuse(g.all_reduce(&mut [0f32], ReduceOp::Xor), Op::AllReduce);
        misuse(g.all_reduce(&mut [true], ReduceOp::Avg), Op::AllReduce);
        misuse(g.all_to_all_in_place(&mut [0u8; 3]), Op::AllToAll);
        misuse(g.all_gather_v(&[0u8], &mut [0u8; 2], &[1]), Op::AllGather);
        misuse(g.send(&[0u8], g.rank(), 0), Op::Send);
        misuse(g.recv(&mut [0u8], 1 - g.rank(), u32::MAX), Op::Recv);
        g.barrier()
    }));
}

#[test]
fn ranks_that_disagree_are_told() {
    let errors = run(2, |g| {
        if g.rank() == 0 {
            g.all_reduce(&mut [0f32; 4], ReduceOp::Sum).unwrap_err()
        } else {
            g.broadcast(&mut [0f32; 4], 0).unwrap_err()
        }
    });
    assert!(
        errors.iter().any(|e| matches!(e.kind(), ErrorKind::Mismatch { differs: "operation", .. })),
        "{errors:?}"
    );
    let errors = run(3, |g| {
        let mut x = vec![0i32; if g.rank() == 2 { 5 } else { 4 }];
        let first = g.all_reduce(&mut x, ReduceOp::Sum).unwrap_err();
        let again = g.barrier().unwrap_err();
        assert!(matches!(again.kind(), ErrorKind::Broken(_)) && again.root() == &first);
        first
    });
    assert!(errors.iter().any(|e| e.to_string().contains("i32[5]")), "{errors:?}");
}

#[test]
fn a_rank_that_leaves_is_named() {
    let errors = run(3, |g| {
        if g.rank() == 2 {
            g.barrier().unwrap();
            return None;
        }
        g.barrier().unwrap();
        Some(g.all_reduce(&mut [0u8; 1 << 20], ReduceOp::Max).unwrap_err().to_string())
    });
    assert!(errors.iter().flatten().all(|e| e.contains("rank 2") && e.contains("left")), "{errors:?}");
}

/// A promise: a rank that waits for a peer uses less than 1% of a core.
#[test]
fn waiting_costs_no_cpu() {
    let used = run(2, |g| {
        if g.rank() == 1 {
            thread::sleep(Duration::from_secs(5));
            g.barrier().unwrap();
            return Duration::ZERO;
        }
        let before = cpu();
        g.barrier().unwrap();
        cpu() - before
    });
    assert!(used[0] < Duration::from_millis(50), "waiting 5 s took {:?} of CPU", used[0]);
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
fn kept_sends_and_long_sendrecvs_do_not_block() {
    ok(run(2, |g| {
        let peer = 1 - g.rank();
        let long = vec![g.rank() as u8; 3 << 20];
        let mut got = vec![0u8; 3 << 20];
        g.sendrecv(&long, peer, &mut got, peer, 1)?;
        assert!(got.iter().all(|&b| b == peer as u8));
        // Sent before a collective, received after it: kept meanwhile.
        if g.rank() == 0 {
            g.send(&long, 1, 7)?;
        }
        let mut x = [1u64];
        g.all_reduce(&mut x, ReduceOp::Sum)?;
        assert_eq!(x, [2]);
        if g.rank() == 1 {
            g.recv(&mut got, 0, 7)?;
            assert!(got.iter().all(|&b| b == 0));
        }
        // A kept send that does not fit its receive is a mismatch, not a wrong number.
        if g.rank() == 0 {
            g.send(&[1f32; 3], 1, 9)?;
            let _ = g.barrier();
        } else {
            let mut x = [0u8];
            let mut y = [0f32; 2];
            let wrong = g.recv(&mut y, 0, 9).unwrap_err();
            assert!(matches!(wrong.kind(), ErrorKind::Mismatch { differs: "count", .. }), "{wrong}");
            assert!(matches!(g.recv(&mut x, 0, 9).unwrap_err().kind(), ErrorKind::Broken(_)));
        }
        Ok(())
    }));
}

#[test]
fn many_threads_may_spawn_on_one_group() {
    ok(run(2, |g| {
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..250).for_each(|_| g.spawn(|_| Ok(())).detach()));
            }
        });
        // Work within work, and a scope within it, have their turn already.
        g.spawn(|g| {
            let mut x = [1u8];
            g.scope(|s| s.spawn(|g| g.all_reduce(&mut x, ReduceOp::Sum)).wait())?;
            assert_eq!(x, [2]);
            Ok(())
        })
        .wait()?;
        g.with_timeout(Duration::MAX).barrier()
    }));
}

#[test]
fn abort_and_close_reach_a_call_under_way() {
    let over = Barrier::new(2);
    let errors = run(2, |g| {
        if g.rank() == 1 {
            over.wait();
            // The first may find what rank 0 sent before it gave up.
            let first = g.barrier();
            return first.and_then(|()| g.barrier()).unwrap_err();
        }
        let error = thread::scope(|s| {
            let call = s.spawn(|| g.barrier().unwrap_err());
            thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            g.abort("enough");
            let error = call.join().unwrap();
            // Its limit is 20 s.
            assert!(began.elapsed() < Duration::from_secs(10));
            error
        });
        over.wait();
        error
    });
    let is_told = |e: &comity::Error| e.to_string().contains("enough") && e.to_string().contains("rank 0");
    assert!(errors.iter().all(is_told), "{errors:?}");
    let errors = run(2, |g| {
        if g.rank() == 1 {
            over.wait();
            // The first may find what rank 0 sent before it closed.
            let _ = g.barrier();
            return g.barrier().unwrap_err();
        }
        thread::scope(|s| {
            let call = s.spawn(|| g.barrier().unwrap_err());
            thread::sleep(Duration::from_millis(100));
            g.close().unwrap();
            over.wait();
            call.join().unwrap()
        })
    });
    assert_eq!(errors[0], ErrorKind::Closed.into());
    assert!(errors[1].to_string().contains("rank 0"), "{errors:?}");
}

/// Whatever the plan, and so whatever the link: partial sums are stored in some, and the same bits come out where nothing is too large.
#[test]
fn half_precision_averages_do_not_overflow_by_any_algorithm() {
    use half::f16;
    const COUNT: usize = 12;
    let all: Vec<_> = [None].into_iter().chain(Algorithm::ALL.iter().copied().map(Some)).collect();
    for (n, algorithm) in [2, 3, 4, 6].into_iter().flat_map(|n| all.iter().map(move |a| (n, *a))) {
        ok(run(n, |g| {
            // Where it can carry out the operation.
            assert!(comity::tools::prefer_algorithm(&g, algorithm));
            let check = |what: &str, got: &[f16], wanted: f32| {
                assert!(got.iter().all(|v| v.to_f32() == wanted), "{what} of {algorithm:?} on {n}: {got:?}");
            };
            for (given, wanted) in
                [(60_000.0, 60_000.0), (1.0, 1.0), (g.rank() as f32 * 8.0, (n - 1) as f32 * 4.0)]
            {
                let large = f16::from_f32(given);
                let rank = g.rank();
                let mut x = [large; COUNT];
                g.all_reduce(&mut x, ReduceOp::Avg)?;
                check("all_reduce", &x, wanted);
                let mut x = [large; COUNT];
                g.reduce(&mut x, ReduceOp::Avg, 1)?;
                check("reduce", &x, if rank == 1 { wanted } else { given });
                let mut part = [f16::ZERO; COUNT];
                g.reduce_scatter(&vec![large; COUNT * n], &mut part, ReduceOp::Avg)?;
                check("reduce_scatter", &part, wanted);
                let mut all = vec![large; COUNT * n];
                g.reduce_scatter_in_place(&mut all, ReduceOp::Avg)?;
                let (before, own) = all.split_at(COUNT * rank);
                let (own, after) = own.split_at(COUNT);
                check("reduce_scatter in place", own, wanted);
                check("the other parts", &[before, after].concat(), given);
                let counts: Vec<usize> = (1..=n).collect();
                let whole = vec![large; counts.iter().sum()];
                let mut part = vec![f16::ZERO; rank + 1];
                g.reduce_scatter_v(&whole, &mut part, &counts, ReduceOp::Avg)?;
                check("reduce_scatter of unequal parts", &part, wanted);
            }
            Ok(())
        }));
    }
}

/// The lines that make a user's debug builds quick are the same in every place where users look.
#[test]
fn the_lines_for_debug_builds_are_the_same_everywhere() {
    let crates = [
        "comity",
        "comity-base",
        "comity-channel",
        "comity-job",
        "comity-kernel",
        "comity-plan",
        "comity-transport",
    ];
    let lines = crates.map(|name| format!("[profile.dev.package.{name}]\nopt-level = 3\n")).concat();
    let page = include_str!("../../../docs/start/rust.md").contains(&lines);
    let lines = lines.lines().map(|line| format!("//! {line}\n")).collect::<String>();
    let docs = include_str!("../src/lib.rs").contains(&lines);
    assert!(page && docs, "start/rust.md: {page}, rustdoc: {docs}");
}

#[test]
fn a_waiting_call_is_given_up_with_the_words() {
    let mut groups = Group::local(2).unwrap();
    let b = groups.pop().unwrap();
    let a = groups.pop().unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            interrupt_with(Some(|| Some("interrupted by a test".into())));
            let start = Instant::now();
            let e = a.barrier().unwrap_err();
            assert!(
                matches!(e.kind(), ErrorKind::Aborted { reason, .. } if reason == "interrupted by a test"),
                "{e}"
            );
            assert!(start.elapsed() < Duration::from_secs(20), "asked ten times a second");
        });
    });
    // The other rank is told the same words.
    let e = b.barrier().unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Aborted { by, reason, .. } if by.rank == 0 && reason == "interrupted by a test"),
        "{e}"
    );
}
