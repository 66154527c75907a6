//! Messages that peers read where they lie, in buffers that they map and in a process's own memory: the same bits as through rings, and
//! every promise of a failure.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod operations;

use comity::{Algorithm, Config, Detection, Group, LinkKind, ReduceOp, tools};
use common::{LONG, each, key, store};
use operations::{Buffer, all, given, shared};

/// Location of messages that peers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In buffers of `Group::alloc`.
    Mapped,
    /// In any memory of the process.
    Own,
}

impl Place {
    /// For `COMITY_PULL`.
    fn pull(self) -> Option<&'static str> {
        (self == Self::Own).then_some("65536")
    }
}

const PLACES: [Place; 2] = [Place::Mapped, Place::Own];

/// A rank that joins at a store, on a job of links over shared memory.
fn join((rank, size): (usize, usize), at: &str, pull: Option<&str>) -> Group {
    let pull = |name: &str| if name == "COMITY_PULL" { pull.map(Into::into) } else { None };
    let config = Config::new(rank, size).settings_from_vars(pull).unwrap();
    let config = config.links([LinkKind::Shm]).store(at).unwrap().job("job").key(key()).timeout(LONG);
    config.detection(Detection::After(LONG)).connect().unwrap()
}

/// `n` ranks, which are threads. Between those of `Group::local` own memory is never read by the system: these join as processes do.
fn groups(n: usize, place: Place) -> Vec<Group> {
    if place == Place::Mapped {
        return Group::local(n).unwrap().into_iter().map(|g| g.with_timeout(LONG)).collect();
    }
    meeting(n, place.pull())
}

/// `n` ranks that join as processes do, with this for `COMITY_PULL`.
fn meeting(n: usize, pull: Option<&str>) -> Vec<Group> {
    let store = store(n);
    let at = &store.addr().to_string();
    each(0..n, |r| join((r, n), at, pull))
}

/// Memory with `data` that peers read.
fn lent(place: Place, g: &Group, data: &[f32]) -> Buffer {
    match place {
        Place::Mapped => Buffer::Shared(shared(g, data)),
        Place::Own => Buffer::Private(data.to_vec()),
    }
}

#[test]
fn every_operation_gives_the_same_bits() {
    for (n, count) in [(2, 20_000), (2, 70_001), (3, 20_000), (3, 70_001), (4, 20_000), (4, 70_001)] {
        // Through rings, and with some ranks' buffers mapped.
        let rings = each(groups(n, Place::Mapped), |g| {
            let private = all(&g, count, &|_, data| Buffer::Private(data.to_vec())).unwrap();
            let some = |g: &Group, data: &[f32]| match g.rank() % 2 {
                0 => Buffer::Shared(shared(g, data)),
                _ => Buffer::Private(data.to_vec()),
            };
            assert!(private == all(&g, count, &some).unwrap(), "{n} ranks, {count} elements, some of them");
            private
        });
        for place in PLACES {
            let before = tools::bytes_pulled();
            let bits = each(groups(n, place), |g| all(&g, count, &|g, data| lent(place, g, data)).unwrap());
            assert!(bits == rings, "{n} ranks, {count} elements, {place:?}");
            if cfg!(target_os = "linux") && place == Place::Own {
                assert!(tools::bytes_pulled() - before >= 4 * count as u64, "nothing was read where it lay");
            }
        }
    }
}

/// Exchanges of two ranks that the system copies without being asked, as long as it is quick: what each of five calls gave, and how much was
/// read so.
#[cfg(target_os = "linux")]
#[test]
fn exchanges_are_read_where_they_lie_without_a_setting() {
    const COUNT: usize = 1 << 20;
    let work = |g: Group| {
        let rank = g.rank();
        let mut seen = Vec::new();
        for round in 0..5 {
            let own = given(rank + round, COUNT);
            let mut gathered = vec![0.0; 2 * COUNT];
            let mut dealt = vec![0.0; COUNT];
            let mut sum = own.clone();
            g.all_gather(&own, &mut gathered).unwrap();
            g.all_to_all(&own, &mut dealt).unwrap();
            g.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            seen.push([gathered, dealt, sum]);
        }
        seen
    };
    let run = |pull| {
        let before = tools::bytes_pulled();
        (each(meeting(2, pull), work), tools::bytes_pulled() - before)
    };
    let (none, _) = run(Some("0"));
    // At least one message of each rank, after the first one, which asks whether it may be read: how long that took says how the others go.
    let (unasked, pulled) = run(None);
    assert!(none == unasked && pulled >= 2 * 4 * (COUNT / 2) as u64, "other bits, or {pulled} B");
    // Told to, all but the first call's.
    let (told, pulled) = run(Some("65536"));
    let least = 2 * 4 * 4 * (COUNT + COUNT / 2 + COUNT / 2) as u64;
    assert!(none == told && pulled >= least, "other bits, or {pulled} B");
}

#[test]
fn every_algorithm_gives_the_same_bits() {
    for &algorithm in Algorithm::ALL {
        let rings = each(groups(4, Place::Mapped), |g| {
            tools::prefer_algorithm(&g, Some(algorithm));
            all(&g, 40_000, &|_, data| Buffer::Private(data.to_vec())).unwrap()
        });
        for place in PLACES {
            let bits = each(groups(4, place), |g| {
                tools::prefer_algorithm(&g, Some(algorithm));
                all(&g, 40_000, &|g, data| lent(place, g, data)).unwrap()
            });
            assert!(bits == rings, "{algorithm:?}, {place:?}");
        }
    }
}

#[test]
fn what_is_ordinary_memory_says_why() {
    let alone = Group::single().alloc::<f32>(1 << 20);
    assert!(!alone.is_shared() && alone.why_not().unwrap().contains("no other rank"), "{alone:?}");
    assert!(alone.iter().all(|&x| x == 0.0) && alone.len() == 1 << 20);
    each(groups(2, Place::Mapped), |g| {
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
    each(groups(3, Place::Mapped), |g| {
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
