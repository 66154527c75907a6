//! Buffers that peers read where they lie: the same bits as with any other, and every promise of a failure.

use comity::{Algorithm, Config, Error, Group, Key, ReduceOp, Result, SharedBuffer, tools};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(60);

fn each<T: Send>(n: usize, f: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let groups = Group::local(n).unwrap();
    thread::scope(|s| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|g| {
                let f = &f;
                s.spawn(move || f(g.with_timeout(LONG)))
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// A value whose sums differ by the order of additions.
fn of(rank: usize, i: usize) -> f32 {
    ((rank * 7919 + i * 31) % 1009) as f32 * 0.37 + 1e-3 * rank as f32
}

fn given(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| of(rank, i)).collect()
}

fn shared(g: &Group, data: &[f32]) -> SharedBuffer<f32> {
    let mut b = g.alloc(data.len());
    b.copy_from_slice(data);
    b
}

/// Every operation on `count` elements a rank; what they gave, by their bits. The buffers are used again and again, for the first message
/// out of each goes through the ring.
fn all(g: &Group, count: usize, make: &impl Fn(&Group, &[f32]) -> Buffer) -> Result<Vec<u32>> {
    let (n, r) = (g.size(), g.rank());
    let (small, large) = (given(r, count), given(r, n * count));
    let (mut a, mut b) = (make(g, &small), make(g, &large));
    let (mut c, mut d) = (make(g, &small), make(g, &large));
    let mut bits = Vec::new();
    let mut note = |x: &[f32]| bits.extend(x.iter().step_by(97).chain(x.last()).map(|v| v.to_bits()));
    for root in [0, n - 1] {
        g.all_reduce(&mut *a, ReduceOp::Sum)?;
        note(&a);
        g.all_reduce(&mut *b, ReduceOp::Avg)?;
        note(&b);
        g.all_reduce_into(&*a, &mut *c, ReduceOp::Max)?;
        note(&c);
        g.broadcast(&mut *b, root)?;
        note(&b);
        g.reduce(&mut *a, ReduceOp::Sum, root)?;
        note(&a);
        b.copy_from_slice(&large);
        g.reduce_scatter(&*b, &mut *c, ReduceOp::Sum)?;
        note(&c);
        g.all_gather(&*c, &mut *d)?;
        note(&d);
        g.reduce_scatter_in_place(&mut *d, ReduceOp::Sum)?;
        note(&d[r * count..(r + 1) * count]);
        g.all_gather_in_place(&mut *d)?;
        note(&d);
        g.all_to_all(&*b, &mut *d)?;
        note(&d);
        g.all_to_all_in_place(&mut *d)?;
        note(&d);
        g.gather(&*a, if r == root { &mut d[..] } else { &mut [] }, root)?;
        note(&d);
        g.scatter(if r == root { &d[..] } else { &[] }, &mut *a, root)?;
        note(&a);
        if n > 1 {
            let (to, from) = ((r + 1) % n, (r + n - 1) % n);
            g.sendrecv(&*b, to, &mut *d, from, 3)?;
            note(&d);
        }
    }
    Ok(bits)
}

/// Memory of either sort.
enum Buffer {
    Shared(SharedBuffer<f32>),
    Private(Vec<f32>),
}

impl std::ops::Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Shared(b) => b,
            Self::Private(b) => b,
        }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Shared(b) => b,
            Self::Private(b) => b,
        }
    }
}

#[test]
fn every_operation_gives_the_same_bits() {
    for n in [2, 3, 4] {
        for count in [20_000, 70_001] {
            each(n, |g| {
                let private = all(&g, count, &|_, data| Buffer::Private(data.to_vec())).unwrap();
                let lent = all(&g, count, &|g, data| Buffer::Shared(shared(g, data))).unwrap();
                assert!(private == lent, "{n} ranks, {count} elements");
                // Not all ranks need do the same.
                let some = |g: &Group, data: &[f32]| match g.rank() % 2 {
                    0 => Buffer::Shared(shared(g, data)),
                    _ => Buffer::Private(data.to_vec()),
                };
                assert!(
                    private == all(&g, count, &some).unwrap(),
                    "{n} ranks, {count} elements, some of them"
                );
            });
        }
    }
}

#[test]
fn every_algorithm_gives_the_same_bits() {
    each(4, |g| {
        for &algorithm in Algorithm::ALL {
            tools::prefer_algorithm(&g, Some(algorithm));
            let private = all(&g, 40_000, &|_, data| Buffer::Private(data.to_vec())).unwrap();
            let lent = all(&g, 40_000, &|g, data| Buffer::Shared(shared(g, data))).unwrap();
            assert!(private == lent, "{algorithm:?}");
        }
    });
}

#[test]
fn what_is_ordinary_memory_says_why() {
    let alone = Group::single().alloc::<f32>(1 << 20);
    assert!(!alone.is_shared() && alone.why_not().unwrap().contains("no other rank"), "{alone:?}");
    assert!(alone.iter().all(|&x| x == 0.0) && alone.len() == 1 << 20);
    each(2, |g| {
        let short = g.alloc::<u8>(1000);
        assert!(short.why_not().unwrap().contains("shorter than 64 KiB"), "{short:?}");
        let long = g.alloc::<bool>(1 << 20);
        assert!(long.is_shared() && long.iter().all(|x| !x));
        assert_eq!(g.alloc::<u64>(0).len(), 0);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_peer_maps_a_buffer_once_to_read_only() {
    let mapped = |address: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let lines: Vec<_> = maps.lines().filter(|l| l.contains("memfd:comity")).map(str::to_owned).collect();
        let begin = format!("{address:x}-");
        let own = lines.iter().find(|l| l.starts_with(&begin)).unwrap_or_else(|| panic!("{begin} {maps}"));
        // The same file, to read only.
        let inode = own.split_whitespace().nth(4).unwrap().to_owned();
        let is_there = |l: &&String| l.contains(" r--s ") && l.split_whitespace().nth(4) == Some(&inode);
        lines.iter().filter(is_there).count()
    };
    each(3, |g| {
        let mut x = shared(&g, &given(g.rank(), 400_000));
        for _ in 0..5 {
            g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        }
        g.barrier().unwrap();
        let times = mapped(x.begin().as_ptr() as usize);
        assert!((1..=2).contains(&times), "{times} times by the two others");
        g.barrier().unwrap();
    });
}

#[test]
fn ranks_that_disagree_are_told_and_nothing_is_written() {
    let outs = each(2, |g| {
        let r = g.rank();
        let mut x = shared(&g, &given(r, 1 << 20));
        g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        x.copy_from_slice(&given(r, 1 << 20));
        let error = match r {
            0 => g.all_reduce(&mut x, ReduceOp::Sum).unwrap_err(),
            _ => g.all_reduce(&mut x[1..], ReduceOp::Sum).unwrap_err(),
        };
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert!(*x == given(r, 1 << 20), "rank {r}: something was written");
    });
    assert_eq!(outs.len(), 2);
}

/// What a rank reads of another's buffer after that gave up is never a result.
#[test]
fn a_rank_that_gives_up_in_the_middle_spoils_no_result() {
    for after in [0u64, 1, 3, 10, 30] {
        let start = Barrier::new(2);
        each(2, |g| {
            const COUNT: usize = 4 << 20;
            let want = |i: usize| of(0, i) + of(1, i);
            let mine = given(g.rank(), COUNT);
            let mut x = shared(&g, &mine);
            g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            start.wait();
            thread::scope(|s| {
                if g.rank() == 0 {
                    let g = g.clone();
                    s.spawn(move || {
                        thread::sleep(Duration::from_millis(after));
                        g.abort("enough");
                    });
                }
                for _ in 0..1000 {
                    x.copy_from_slice(&mine);
                    if let Err(e) = g.all_reduce(&mut x, ReduceOp::Sum) {
                        // Between two calls the second is told that the group has failed.
                        assert!(matches!(e, Error::Aborted { .. } | Error::Broken { .. }), "{e}");
                        // What the other may still read.
                        x.fill(f32::NAN);
                        break;
                    }
                    let wrong = (0..COUNT).find(|&i| x[i].to_bits() != want(i).to_bits());
                    assert_eq!(wrong, None, "rank {}", g.rank());
                }
            });
        });
    }
}

const KEY: [u8; 32] = [5; 32];
const ROLE: &str = "COMITY_TEST_SHARED_ROLE";

fn join(rank: usize, at: &str) -> Group {
    Config::new(rank, 2).store(at).unwrap().key(Key::from(KEY)).timeout(LONG).connect().unwrap()
}

/// A rank that calls until it is killed.
fn rank_that_is_killed(at: &str) {
    let g = join(1, at);
    let mut x = g.alloc::<f32>(4 << 20);
    assert!(x.is_shared(), "{x:?}");
    loop {
        x.fill(1.0);
        g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        println!("called");
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_rank_that_is_killed_in_the_middle_is_named() {
    if let Ok(at) = std::env::var(ROLE) {
        return rank_that_is_killed(&at);
    }
    for after in [0u64, 2, 5, 9] {
        let bind = "127.0.0.1:0".parse().unwrap();
        let store = tools::Store::start(bind, 2, &Key::from(KEY), "-", LONG).unwrap();
        let at = store.addr().to_string();
        let mut child = Killed(
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_rank_that_is_killed_in_the_middle_is_named", "--nocapture"])
                .env(ROLE, &at)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let pid = child.0.id();
        let g = join(0, &at);
        let mut x = g.alloc::<f32>(4 << 20);
        assert!(x.is_shared(), "{x:?}");
        let killer = thread::spawn(move || {
            while lines.next().is_some_and(|l| !l.unwrap().contains("called")) {}
            thread::sleep(Duration::from_millis(after));
            child.0.kill().unwrap();
            (Instant::now(), child)
        });
        let (error, named) = loop {
            x.fill(2.0);
            match g.all_reduce(&mut x, ReduceOp::Sum) {
                Ok(()) => assert!(x.iter().all(|&v| v == 3.0), "a result that is none"),
                Err(e) => break (e, Instant::now()),
            }
        };
        let (killed, _child) = killer.join().unwrap();
        assert!(
            matches!(&error, Error::PeerLost { peer, .. } if peer.rank == 1 && peer.pid == Some(pid)),
            "{error}"
        );
        let took = named.saturating_duration_since(killed);
        println!("named after {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}
