//! Groups form again: after a death, after an abort, and while nothing is wrong; and who does not come is named.

mod common;

use comity::{
    Config, Detection, ErrorKind, Group, JoinCause, Key, Op, ReduceOp, ReformOptions, ReformOutcome, Result,
    ViewMut, tools::Store,
};
use common::{LONG, each, key, reserved, store};
use rustix::process::{Pid, Signal, kill_process};
use scope::{Actor, await_that, role, say};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Number of trials that are timed, if any.
const TRIALS: &str = "COMITY_TEST_TRIALS";

/// Nobody is given up because the machine is busy.
const NEVER: Detection = Detection::After(LONG);

/// Groups of threads that met as processes do, and the store.
fn job(n: usize) -> (Vec<Group>, Store) {
    let store = store(n);
    let connect = |r| common::config(r, n, &store).detection(NEVER).connect().unwrap();
    (each(0..n, connect), store)
}

fn options() -> ReformOptions {
    ReformOptions::new().limit(LONG)
}

fn sum(group: &Group) -> Result<f32> {
    let mut x = [1f32; 1000];
    group.all_reduce(&mut x, ReduceOp::Sum)?;
    assert!(x.iter().all(|y| *y == x[0]));
    Ok(x[0])
}

fn join_error(out: Result<ReformOutcome>) -> comity::JoinError {
    match out.expect_err("a refusal").into_kind() {
        ErrorKind::Join(why) => why,
        other => panic!("{other}"),
    }
}

#[test]
fn a_healthy_group_and_a_failed_one_form_again() {
    let (groups, _store) = job(3);
    let again = each(groups, |g| {
        let next = g.reform(&options()).unwrap();
        assert_eq!((next.group.rank(), next.group.size(), next.left.len()), (g.rank(), 3, 0));
        assert_eq!(sum(&next.group), Ok(3.0));
        assert_eq!(sum(&g), Err(ErrorKind::Closed.into()));
        assert_eq!(g.reform(&options()).err(), Some(ErrorKind::Closed.into()));
        next.group
    });
    each(again, |g| {
        if g.rank() == 1 {
            g.abort("the loss is NaN");
        }
        assert!(sum(&g).unwrap_err().to_string().contains("NaN"));
        let next = g.reform(&options()).unwrap().group;
        // The failed one stays failed, and a part of the new one is a group too.
        assert!(sum(&g).unwrap_err().to_string().contains("NaN"));
        let half = next.split(Some(i32::from(next.rank() == 0)), 0).unwrap().unwrap();
        assert_eq!((sum(&next), sum(&half)), (Ok(3.0), Ok(if next.rank() == 0 { 1.0 } else { 2.0 })));
        next.close().unwrap();
    });
}

#[test]
fn who_does_not_come_and_who_asks_for_something_else_are_named() {
    let (groups, _store) = job(3);
    let others_gave_up = Barrier::new(3);
    each(groups, |g| {
        if g.rank() == 2 {
            g.abort("no more data");
        }
        assert!(sum(&g).is_err());
        let soon = ReformOptions::new().limit(Duration::from_millis(300));
        if g.rank() != 2 {
            let why = join_error(g.reform(&soon));
            assert_eq!(why.cause, JoinCause::Absent, "{why}");
            if g.rank() == 0 {
                assert_absent(&why, 2);
            }
        }
        // Rank 2 lives, and does something else.
        others_gave_up.wait();
        // All have to give the same options.
        let why = join_error(g.reform(&options().fewest(1 + g.rank() % 2)));
        assert_eq!(why.ranks, [1], "{why}");
        let next = g.reform(&options().fewest(3)).unwrap().group;
        assert_eq!(sum(&next), Ok(3.0));
    });
}

/// This rank, and perhaps one that was late itself by so short a limit, had not called reform.
fn assert_absent(why: &comity::JoinError, rank: usize) {
    let text = why.to_string();
    assert!(why.ranks.contains(&rank) && why.ranks.iter().all(|r| [1, rank].contains(r)), "{why}");
    assert!(text.contains("which live") && text.contains("not called reform"), "{why}");
}

/// Each rank learns who does what, and the joiner that one of them wanted to take in waits on.
#[test]
fn ranks_that_form_again_while_others_call_are_told() {
    let (groups, store) = job(3);
    let at = &store.addr().to_string();
    thread::scope(|s| {
        let late = s.spawn(|| joiner(at, key()).connect().unwrap());
        let again = each(groups, |g| {
            await_joiners(&g, 1);
            let e = match g.rank() {
                1 => g.reform(&options()).map(drop).unwrap_err(),
                _ => sum(&g).map(drop).unwrap_err(),
            };
            let ErrorKind::Mismatch { ours, theirs, .. } = e.kind() else { panic!("{e}") };
            assert_eq!([ours.op, theirs.op].iter().filter(|op| **op == Op::Reform).count(), 1, "{e}");
            assert!(e.to_string().contains("rank 1"), "{e}");
            // Now all may, and it is still there.
            let next = g.reform(&options()).unwrap();
            assert_eq!(next.joined.len(), 1);
            next.group
        });
        each(again.into_iter().chain([late.join().unwrap()]), |g| assert_eq!(sum(&g), Ok(4.0)));
    });
}

/// Both ends say it in words, whichever of them is newer, and the job goes on.
#[test]
fn a_joiner_of_another_version_is_told() {
    let (groups, store) = job(2);
    let at = &store.addr().to_string();
    // What it says, and how it is answered, begins with a mark and a version.
    let mut newer = TcpStream::connect(at).unwrap();
    newer.set_read_timeout(Some(LONG)).unwrap();
    newer.write_all(&[b'c', b'm', 0xf1, 0, 0]).unwrap();
    let mut answer = [0; 3];
    newer.read_exact(&mut answer).unwrap();
    let version = answer[2] >> 4;
    assert!(answer.starts_with(b"cm") && version != 0xf, "{answer:?}");
    // A store of that one answers so.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = listener.local_addr().unwrap().to_string();
    thread::scope(|s| {
        s.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(&[b'c', b'm', 0xf4, 0, 0]).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let e = joiner(&other, key()).connect().unwrap_err().to_string();
        let words = format!("speaks version 15 of Comity's protocol, this process version {version}");
        assert!(e.contains(&words) && e.contains("use one version of Comity everywhere"), "{e}");
        let late = s.spawn(|| joiner(at, key()).connect().unwrap());
        let again = each(groups, |g| {
            await_joiners(&g, 1);
            g.reform(&options()).unwrap().group
        });
        each(again.into_iter().chain([late.join().unwrap()]), |g| assert_eq!(sum(&g), Ok(3.0)));
    });
}

/// A process that has the key, and cannot be in one group with the others: it is told why, and they go on without it.
#[test]
fn a_joiner_that_does_not_fit_is_told_and_the_others_go_on() {
    let store = store(2);
    let at = &store.addr().to_string();
    let connect = |rank| {
        common::config(rank, 2, &store)
            .detection(NEVER)
            .set("COMITY_LINKS", "shm")
            .unwrap()
            .connect()
            .unwrap()
    };
    let mut groups = each(vec![0, 1], connect);
    for (name, value, words) in [
        ("COMITY_SECURE", "data", "was started with COMITY_SECURE=data"),
        ("COMITY_BACKEND", "jaccl", "jaccl"),
        // No kind of link that both have: who is at fault shows only when nothing else is left.
        ("COMITY_LINKS", "tcp", "form no group with this process, and go on without it: "),
    ] {
        let other = joiner(at, key()).set(name, value).unwrap();
        thread::scope(|s| {
            let told = s.spawn(|| other.connect().map(|g| g.size()).unwrap_err().to_string());
            // The last one is called twice.
            while !told.is_finished() {
                groups = each(std::mem::take(&mut groups), |g| {
                    let next = g.reform(&options()).unwrap();
                    assert_eq!(
                        (next.joined.len(), next.left.len(), sum(&next.group)),
                        (0, 0, Ok(2.0)),
                        "{name}"
                    );
                    next.group
                });
            }
            let told = told.join().unwrap();
            assert!(told.contains(words), "{name}: {told}");
        });
        groups.iter().for_each(|g| await_joiners(g, 0));
    }
}

/// Ranks learn who makes another call, or has another state; then those of one program go on.
#[test]
fn a_joiner_of_another_program_is_named() {
    let (mut groups, store) = job(2);
    let at = &store.addr().to_string();
    let other_call: fn(&Group) -> Result<()> = Group::barrier;
    let other_state: fn(&Group) -> Result<()> =
        |g| g.sync(&mut [(&mut [0f32; 300]).into(), (&mut [0f32; 299]).into()], false).map(drop);
    for (other, differs) in [(other_call, "op"), (other_state, "count")] {
        thread::scope(|s| {
            let late = s.spawn(|| other(&joiner(at, key()).connect().unwrap()).unwrap_err());
            let again = each(std::mem::take(&mut groups), |g| {
                await_joiners(&g, 1);
                let next = g.reform(&options()).unwrap().group;
                let mut weights = [[1.5f32; 300]; 2];
                let mut views: Vec<ViewMut<'_>> = weights.iter_mut().map(ViewMut::from).collect();
                let told = next.sync(&mut views, true).and_then(|_| next.barrier()).unwrap_err();
                (next, told)
            });
            let late = late.join().unwrap();
            for told in again.iter().map(|(_, told)| told).chain([&late]) {
                assert!(matches!(told.root().kind(), ErrorKind::Mismatch { .. }), "{differs}: {told}");
                assert!(told.to_string().contains("rank 2"), "{differs}: {told}");
            }
            // It has ended.
            groups = each(again, |(g, _)| {
                let next = g.reform(&options()).unwrap();
                assert_eq!(next.left.iter().map(|l| l.peer.rank).collect::<Vec<_>>(), [2]);
                assert_eq!(sum(&next.group), Ok(2.0));
                next.group
            });
        });
    }
}

/// A rank that lives and calls what the failed group does not answer any more is named to those that form again, and is told what to do.
#[test]
fn a_rank_that_calls_on_in_a_failed_group_is_named() {
    let (groups, _store) = job(3);
    let gave_up = AtomicUsize::new(0);
    each(groups, |g| {
        if g.rank() == 0 {
            g.abort("no more data");
        }
        assert!(sum(&g).is_err());
        if g.rank() == 2 {
            while gave_up.load(Ordering::SeqCst) < 2 {
                let told = sum(&g).unwrap_err().to_string();
                assert!(told.contains("no more data") && told.contains("call the group's reform"), "{told}");
                thread::sleep(Duration::from_millis(20));
            }
            return;
        }
        let why = join_error(g.reform(&ReformOptions::new().limit(Duration::from_millis(300))));
        gave_up.fetch_add(1, Ordering::SeqCst);
        assert_eq!(why.cause, JoinCause::Absent, "{why}");
        if g.rank() == 0 {
            assert_absent(&why, 2);
        }
    });
}

/// A rank that has left for good is not waited for; too few are refused, and may go on as fewer.
#[test]
fn fewer_than_asked_for_are_refused() {
    let (groups, _store) = job(3);
    each(groups, |g| {
        if g.rank() == 0 {
            g.abort("enough");
            return;
        }
        assert!(sum(&g).is_err());
        let why = join_error(g.reform(&options().fewest(3)));
        assert_eq!((&why.ranks, why.cause), (&vec![0], JoinCause::Missing), "{why}");
        let next = g.reform(&options().fewest(2)).unwrap();
        assert_eq!(next.left.iter().map(|l| l.peer.rank).collect::<Vec<_>>(), [0]);
        assert_eq!((next.group.rank(), sum(&next.group)), (g.rank() - 1, Ok(2.0)));
    });
}

/// Wait until the store has told `group` of so many joiners.
fn await_joiners(group: &Group, n: usize) {
    await_that(&format!("{n} joiners"), || group.joiners() == n);
}

fn joiner(at: &str, key: Key) -> Config {
    Config::joiner().store(at).unwrap().job("job").key(key).join_timeout(LONG).detection(NEVER)
}

/// Give those that do not hold it the state, of which they have one half.
fn sync(group: &Group, holds: bool) {
    let right = vec![[1.5f32; 300], [2.5; 300]];
    let mut weights = right.clone();
    if !holds {
        weights[1].fill(0.0);
    }
    let mut views: Vec<ViewMut<'_>> = weights.iter_mut().map(ViewMut::from).collect();
    let received = group.sync(&mut views, holds).unwrap();
    assert_eq!((received, weights), (if holds { 0 } else { 1200 }, right));
}

#[test]
fn joiners_are_taken_in_and_get_the_state() {
    let (groups, store) = job(2);
    let at = &store.addr().to_string();
    thread::scope(|s| {
        let taken_in: Vec<_> = (0..2).map(|_| s.spawn(|| joiner(at, key()).connect().unwrap())).collect();
        // One with another key is no joiner.
        let stranger = joiner(at, Key::from([8; 32])).connect();
        assert!(stranger.unwrap_err().to_string().contains("key"));
        let old = each(groups, |g| {
            await_joiners(&g, 2);
            let next = g.reform(&options()).unwrap();
            assert_eq!((next.group.rank(), next.group.size()), (g.rank(), 4));
            assert_eq!(next.joined.iter().map(|p| p.rank).collect::<Vec<_>>(), [2, 3]);
            next.group
        });
        let new = taken_in.into_iter().map(|j| j.join().unwrap());
        let left = each(old.into_iter().chain(new), |g: Group| {
            let held = g.rank() < 2;
            assert_eq!(sum(&g), Ok(4.0));
            sync(&g, held);
            await_joiners(&g, 0);
            g.barrier().unwrap();
            // The first two end, and those that joined go on: half of the ranks, with the store's vote.
            if held {
                g.abort("this host is needed elsewhere");
                return None;
            }
            assert!(sum(&g).is_err());
            let next = g.reform(&options()).unwrap();
            assert_eq!(next.left.iter().map(|l| l.peer.rank).collect::<Vec<_>>(), [0, 1]);
            assert_eq!((next.group.size(), sum(&next.group)), (2, Ok(2.0)));
            Some(next.group)
        });
        // The last one takes in another.
        let mut left = left.into_iter().flatten();
        let first = left.next().unwrap();
        drop(left);
        assert!(sum(&first).is_err());
        let alone = first.reform(&options()).unwrap().group;
        assert_eq!((alone.size(), sum(&alone)), (1, Ok(1.0)));
        let late = s.spawn(|| joiner(at, key()).connect().unwrap());
        await_joiners(&alone, 1);
        let both = alone.reform(&options()).unwrap().group;
        each(vec![both, late.join().unwrap()], |g| assert_eq!(sum(&g), Ok(2.0)));
    });
}

/// A joiner that comes while the ranks make one call after the other disturbs none of them, and is taken in when they form their group again.
/// A joiner that nobody takes in is told when the job's store has ended.
#[test]
fn a_joiner_waits_while_calls_go_on() {
    let (groups, store) = job(2);
    let at = &store.addr().to_string();
    thread::scope(|s| {
        let first = s.spawn(|| joiner(at, key()).connect().unwrap());
        let again = each(groups, |g| {
            let mut told = [0u32; 2];
            while told[0] < 2 {
                told = [g.joiners() as u32, 1];
                g.all_reduce(&mut told, ReduceOp::Sum).unwrap();
                assert_eq!(told[1], 2);
            }
            (0..20).for_each(|_| assert_eq!(sum(&g), Ok(2.0)));
            g.reform(&options()).unwrap().group
        });
        let all = each(again.into_iter().chain([first.join().unwrap()]), |g| {
            assert_eq!(sum(&g), Ok(3.0));
            g
        });
        let late = s.spawn(|| joiner(at, key()).connect().unwrap_err().to_string());
        await_joiners(&all[0], 1);
        drop(store);
        let told = late.join().unwrap();
        assert!(told.contains("lost the job's store") && told.contains("has the job ended?"), "{told}");
        each(all, |g| assert_eq!(sum(&g), Ok(3.0)));
    });
}

/// A process in the place of a rank, as a launcher starts it again.
fn in_place(at: &str, rank: &str) -> Config {
    let vars = |name: &str| match name {
        "COMITY_JOIN" => Some("1".into()),
        "COMITY_STORE" => Some(at.into()),
        "COMITY_RANK" => Some(rank.into()),
        _ => None,
    };
    Config::from_vars(vars).unwrap().job("job").key(key()).join_timeout(LONG)
}

#[test]
fn a_place_has_one_process() {
    let (groups, store) = job(2);
    let at = &store.addr().to_string();
    let refused = |rank| in_place(at, rank).connect().unwrap_err().to_string();
    assert!(refused("1").contains("in the place of rank 1, which runs"));
    // The launcher knows that it has ended.
    store.lost(1, "was killed");
    thread::scope(|s| {
        let first = s.spawn(|| in_place(at, "1").connect().unwrap());
        await_joiners(&groups[0], 1);
        let why = refused("1");
        assert!(why.contains("in the place of rank 1, and so does another process"), "{why}");
        store.admit(0);
        let why = joiner(at, key()).connect().unwrap_err().to_string();
        assert!(why.contains("takes in 0 processes at most"), "{why}");
        let again = each(groups, |g| g.reform(&options()).unwrap().group);
        each(again.into_iter().chain([first.join().unwrap()]), |g| assert_eq!(sum(&g), Ok(3.0)));
    });
}

/// A joiner that dies is waited for by nobody: while it waits, and when it was called to a meeting.
#[test]
fn a_joiner_that_dies_is_dropped() {
    if let Some(role) = role() {
        drop(joiner(role.rsplit(' ').next().unwrap(), key()).connect());
        return;
    }
    let (groups, store) = job(2);
    let start = || start("a_joiner_that_dies_is_dropped", 0, 0, &store.addr().to_string());
    let waits = start();
    await_joiners(&groups[0], 1);
    drop(waits);
    await_joiners(&groups[0], 0);
    let called = start();
    each(groups, |g| {
        await_joiners(&g, 1);
        g.barrier().unwrap();
        let begun = Instant::now();
        let killer = (g.rank() == 0).then(|| {
            let pid = Pid::from_raw(called.child.id() as i32).unwrap();
            kill_process(pid, Signal::STOP).unwrap();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                kill_process(pid, Signal::KILL).unwrap();
            })
        });
        g.barrier().unwrap();
        let next = g.reform(&options()).unwrap();
        assert_eq!((next.joined.len(), sum(&next.group)), (0, Ok(2.0)));
        // Silent, it would have been waited for until the detection limit.
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        if let Some(killer) = killer {
            killer.join().unwrap();
        }
    });
}

/// A store that ends with rank 0 has no place for joiners.
#[test]
fn a_job_without_a_store_of_its_own_takes_in_nobody() {
    let (_held, free) = reserved();
    let at = &free.to_string();
    let config =
        |rank: usize| Config::new(rank, 2).rendezvous(at).unwrap().job("job").key(key()).join_timeout(LONG);
    let groups = each(vec![0, 1], |rank| config(rank).connect().unwrap());
    let e = joiner(at, key()).connect().unwrap_err();
    assert!(e.to_string().contains("takes in nobody"), "{e}");
    // Nor do libraries whose communicators are made once.
    let e = joiner(at, key()).set("COMITY_BACKEND", "mpi").unwrap().connect().unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Unavailable { backend: "mpi", .. }), "{e}");
    // Of two halves the one with rank 0 goes on.
    each(groups, |g| {
        if g.rank() == 1 {
            g.abort("enough");
            return;
        }
        assert!(sum(&g).is_err());
        assert_eq!(g.reform(&options()).unwrap().group.size(), 1);
    });
}

#[test]
fn an_input_is_kept_where_the_call_fails() {
    let (groups, _store) = job(2);
    each(groups, |g| {
        let mut x: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
        let before = x.clone();
        if g.rank() == 1 {
            // It gives up in the midst of a call.
            let other = g.clone();
            thread::spawn(move || other.abort("enough"));
        }
        while g.all_reduce_or_keep(&mut x, ReduceOp::Sum).is_ok() {
            assert_eq!(x[7], 14.0);
            x.clone_from(&before);
        }
        assert_eq!(x, before);
    });
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// A rank that goes on with whoever is left, until it is alone.
fn live(role: &str) {
    let mut words = role.split(' ');
    let mut number = || words.next().unwrap().parse::<usize>().unwrap();
    let rank = number();
    let n = number();
    let at = words.next().unwrap().to_owned();
    let config = Config::new(rank, n).store(&at).unwrap().job("job").key(key()).join_timeout(LONG);
    let config = config.detection(NEVER).set("COMITY_LINKS", words.next().unwrap()).unwrap();
    let mut group = config.connect().unwrap();
    let mut left = Vec::new();
    let mut told = false;
    loop {
        match sum(&group) {
            Ok(total) => {
                assert_eq!(total, group.size() as f32);
                if !std::mem::replace(&mut told, true) {
                    say(format!("{} {} {} {left:?}", now(), group.rank(), group.size()));
                }
                if group.size() == 1 {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::PeerLost { .. }), "{e}");
                let next = group.reform(&options()).unwrap();
                left = next.left.iter().map(|l| l.peer.rank).collect();
                (group, told) = (next.group, false);
            }
        }
    }
}

fn start(test: &str, rank: usize, n: usize, at: &str) -> Actor {
    Actor::start(module_path!(), test, format!("{rank} {n} {at}"))
}

/// The next group of an actor: when it added up right, the rank, the size, who had left.
fn hear(rank: &mut Actor) -> (u128, usize, usize, String) {
    let words = rank.hear();
    let parts: Vec<_> = words.splitn(4, ' ').collect();
    let number = |i: usize| parts[i].parse::<usize>().unwrap();
    (parts[0].parse().unwrap(), number(1), number(2), parts[3].into())
}

/// Start `n` ranks and kill those of `dead` one after the other; the time from each kill until all that are left have added up, in ms.
fn kill(test: &str, links: &str, n: usize, dead: &[usize]) -> Vec<f64> {
    let store = store(n);
    let at = format!("{} {links}", store.addr());
    let mut ranks: Vec<_> = (0..n).map(|r| (r, start(test, r, n, &at))).collect();
    ranks.iter_mut().for_each(|(r, rank)| assert_eq!(hear(rank).1, *r));
    let mut took = Vec::new();
    for dead in dead {
        let place = ranks.iter().position(|(r, _)| r == dead).unwrap();
        let killed = now();
        drop(ranks.remove(place));
        let size = ranks.len();
        let heard: Vec<_> = ranks.iter_mut().map(|(_, rank)| hear(rank)).collect();
        for (i, (_, rank, of, left)) in heard.iter().enumerate() {
            assert_eq!((*rank, *of, left), (i, size, &format!("[{place}]")));
        }
        took.push((heard.iter().map(|h| h.0).max().unwrap() - killed) as f64 / 1e3);
    }
    if let [(_, last)] = &mut ranks[..] {
        assert!(last.child.wait().unwrap().success());
    }
    took
}

#[test]
fn survivors_of_a_kill_go_on_to_the_last() {
    match role() {
        Some(role) => live(&role),
        None => {
            let test = "survivors_of_a_kill_go_on_to_the_last";
            // Rank 0 too; and of the last two the one with the store's vote goes on.
            kill(test, "shm,tcp", 4, &[1, 0, 3]);
            kill(test, "tcp", 3, &[1]);
            if let Ok(trials) = std::env::var(TRIALS) {
                for links in ["shm,tcp", "tcp"] {
                    let mut took: Vec<f64> =
                        (0..trials.parse().unwrap()).flat_map(|_| kill(test, links, 8, &[3])).collect();
                    took.sort_by(f64::total_cmp);
                    println!(
                        "8 ranks, links {links}, ms from kill to sum: p50 {} p99 {}",
                        took[took.len() / 2],
                        took[took.len() * 99 / 100]
                    );
                }
            }
        }
    }
}

/// The page's program is the example, which is compiled.
#[test]
fn the_pages_program_is_the_example() {
    let page = include_str!("../../../docs/elastic.md");
    let example = include_str!("../examples/survives.rs");
    let (_, program) = example.split_once("\n\n").unwrap();
    assert!(
        page.contains(program),
        "docs/elastic.md has another program than crates/comity/examples/survives.rs"
    );
}
